//! The steps of a sampling head, recognised by what feeds what, from the tokens back to the logits.

use super::{Fork, Uses, tidy};
use crate::dim::{Dim, Var};
use crate::expr::{Binary, Compare, Unary};
use crate::passes::branch::{Branch, Declined, Matched, is_same_line, is_spread, one_element, origin};
use crate::plan::{Block, BufferKind, HostOp, Plan, PlanStep};
use crate::prim::{Buf, Fold, MOST_TOKENS, Prim, View};
use ptero_tensor::DType::{self, Bf16, Bool, F16, F32, I32, I64, U32};

/// What a sampler is made of.
pub(super) struct Sampler {
    pub(super) out: View,
    pub(super) logits: View,
    pub(super) temperature: View,
    pub(super) top_k: Parameter<i64>,
    pub(super) top_p: Parameter<f32>,
    pub(super) seed: Option<Parameter<i64>>,
    /// The host values that the branch and the seed were.
    pub(super) condition: Var,
    pub(super) seed_var: Option<Var>,
}

/// Something that a sampler is asked for.
pub(super) enum Parameter<T> {
    Tensor(View),
    Known(T),
}

impl<T> Parameter<T> {
    fn view(&self) -> Option<&View> {
        match self {
            Parameter::Tensor(view) => Some(view),
            Parameter::Known(_) => None,
        }
    }
}

const RESULT: &str = "not fused: the branches do not give one tensor of tokens";
const LARGEST: &str = "not fused: a token is not the place of the largest score of a row";
const SCORES: &str = "not fused: scores are not logits and noise";
const NOISE: &str = "not fused: the noise is not -log(-log(u))";
const UNIFORM: &str = "not fused: the noise is not of 32 random bits over 2^32 - 1, below one";
const STREAM: &str = "not fused: the random bits are not one stream over the logits";
const SEED: &str = "not fused: the seed is not one element of type i32, i64 or u32";
const FILTER: &str = "not fused: logits become minus infinity for another reason than top-k or top-p";
const TOP_P: &str = "not fused: what is kept is not the largest mass up to top-p";
const TOP_K: &str = "not fused: what is kept is not the k largest";
const SCALED: &str = "not fused: what is kept is not logits over a temperature";
const TEMPERATURE: &str = "not fused: the temperature is not one element";
const CONDITION: &str = "not fused: tokens are not drawn where just that temperature is above 0";
const GREEDY: &str = "not fused: the other branch does not take the largest of the same logits";
const SIZE: &str = "not fused: the vocabulary has no fixed size";
const LARGE: &str = "not fused: the vocabulary is too large";
const MORE: &str = "not fused: the branch does more than sample";
const ELSEWHERE: &str = "not fused: what it computes is used elsewhere too";
const CHANGED: &str = "not fused: a parameter changes before the branch";

/// The sampler that a branch is.
pub(super) fn find(plan: &Plan, fork: &Fork) -> Matched<Sampler> {
    let at = origin(plan, fork.block, fork.step);
    let blocks = (plan.blocks.get(fork.then), plan.blocks.get(fork.otherwise), plan.blocks.get(fork.block));
    let (Some(then), Some(otherwise), Some(around)) = blocks else { return Err(Declined { at, why: RESULT }) };
    let mut draw = Branch::new(plan, then, at);
    let out = result(then, otherwise).map_or_else(|| draw.decline(RESULT), Ok)?;
    let scores = largest(&mut draw, out)?;
    let (kept, noise) = score(&mut draw, scores)?;
    let seed = random_bits(&mut draw, noise)?;
    let seed = seed.map(|seed| seed_of(&mut draw, plan, fork, seed)).transpose()?;
    let (scaled, top_p) = top_p(&mut draw, kept)?;
    let (scaled, top_k) = top_k(&mut draw, scaled)?;
    let (logits, temperature) = divided(&mut draw, scaled)?;
    // That there are not too many random bits: there are as many as logits.
    logits.shape.iter().for_each(|size| draw.allow_checks_of(size.clone()));
    let mut greedy = Branch::new(plan, otherwise, at);
    let greedy_logits = largest(&mut greedy, out)?;
    greedy.ensure(*greedy_logits == logits, GREEDY)?;
    draw.nothing_else(MORE)?;
    greedy.nothing_else(MORE)?;
    let condition = condition(plan, fork, around, &temperature)?;
    let (seed, seed_var) = seed.map_or((None, None), |(seed, var)| (Some(seed), var));
    let out = tokens(out).map_or_else(|| draw.decline(RESULT), Ok)?;
    let sampler = Sampler { out, logits, temperature, top_k, top_p, seed, condition, seed_var };
    alone(plan, fork, &sampler)?;
    Ok(sampler)
}

/// What both branches write.
fn result<'a>(then: &'a Block, otherwise: &Block) -> Option<&'a View> {
    let shared = writes(then).filter(|view| writes(otherwise).any(|other| other.buf == view.buf));
    let shared: Vec<&View> = shared.collect();
    if let [one] = shared.as_slice() { Some(one) } else { None }
}

fn writes(block: &Block) -> impl Iterator<Item = &View> {
    block.steps.iter().flat_map(|step| if let PlanStep::Device(prim) = step { prim.writes() } else { Vec::new() })
}

/// The tokens in a line, without an axis of size one beside it.
fn tokens(out: &View) -> Option<View> {
    match out.shape.as_slice() {
        [_] => Some(out.clone()),
        [_, one] if one.is(1) => Some(out.with_axis_removed(1)),
        [one, _] if one.is(1) => Some(out.with_axis_removed(0)),
        _ => None,
    }
}

/// The scores whose largest a block writes the places of.
fn largest<'a>(branch: &mut Branch<'a>, out: &View) -> Matched<&'a View> {
    let [token] = branch.map(out, [U32], |_, [x]| x, RESULT)?;
    let Prim::ArgReduce { out, x, axis: 1, largest: true } = branch.source(token, LARGEST)? else {
        return branch.decline(LARGEST);
    };
    branch.ensure(x.rank() == 2 && is_same_line(out, token), LARGEST)?;
    Ok(x)
}

/// The two things that scores are the sum of: what is kept of the logits, and the noise.
fn score<'a>(branch: &mut Branch<'a>, scores: &View) -> Matched<(&'a View, &'a View)> {
    let [a, b] = branch.map(scores, [F32; 2], |f, [a, b]| f.binary(Binary::Add, a, b), SCORES)?;
    let negated = |view: &View| branch.function(view.buf, [F32], |f, [x]| f.unary(Unary::Neg, x));
    let (kept, noise) = if negated(b).is_some() { (a, b) } else { (b, a) };
    // Elementwise steps have one shape, so bits that the noise shows whole are as many as the logits.
    branch.ensure(negated(noise).is_none_or(|(out, _)| out == noise), STREAM)?;
    Ok((kept, noise))
}

/// The seed of the random bits that the noise is made of.
fn random_bits<'a>(branch: &mut Branch<'a>, noise: &View) -> Matched<Option<&'a Dim>> {
    let [x] = branch.map(noise, [F32], |f, [x]| f.unary(Unary::Neg, x), NOISE)?;
    let [x] = branch.map(x, [F32], |f, [x]| f.unary(Unary::Log, x), NOISE)?;
    let [x] = branch.map(x, [F32], |f, [x]| f.unary(Unary::Neg, x), NOISE)?;
    let [uniform] = branch.map(x, [F32], |f, [x]| f.unary(Unary::Log, x), NOISE)?;
    let [x, below_one] = branch.map(uniform, [F32; 2], |f, [a, b]| f.binary(Binary::Min, a, b), UNIFORM)?;
    branch.ensure(branch.float(below_one) == Some(1.0 - f32::EPSILON / 2.0), UNIFORM)?;
    let [x, most] = branch.map(x, [F32; 2], |f, [a, b]| f.binary(Binary::Div, a, b), UNIFORM)?;
    branch.ensure(branch.float(most) == Some(4_294_967_295.0), UNIFORM)?;
    let [bits] = branch.map(x, [U32], |f, [x]| f.cast(x, F32), UNIFORM)?;
    let Prim::RandomBits { seed, .. } = branch.whole(bits, UNIFORM)? else { return branch.decline(UNIFORM) };
    Ok(seed.as_ref())
}

/// Where the seed lies, and the host value that it was.
fn seed_of(branch: &mut Branch<'_>, plan: &Plan, fork: &Fork, seed: &Dim) -> Matched<(Parameter<i64>, Option<Var>)> {
    if let Some(value) = seed.as_fixed() {
        branch.ensure(i32::try_from(value).is_ok(), SEED)?;
        return Ok((Parameter::Known(value), None));
    }
    let definition = seed.as_var().and_then(|var| Some((var, defined(plan, var)?)));
    let Some((var, (block, step, HostOp::Item(view)))) = definition else { return branch.decline(SEED) };
    let element = one_element(view).filter(|element| matches!(element.dtype, I32 | I64 | U32));
    let Some(element) = element else { return branch.decline(SEED) };
    if block == fork.then {
        branch.host(var);
    } else {
        let is_before = block == fork.block && step < fork.step;
        let is_same = is_fixed(plan, element.buf) || is_before && is_unchanged(plan, fork, step, element.buf);
        branch.ensure(is_same, CHANGED)?;
    }
    Ok((Parameter::Tensor(element), Some(var)))
}

/// The one step that fills a host value, its block and its place.
fn defined(plan: &Plan, var: Var) -> Option<(usize, usize, &HostOp)> {
    let mut found = plan.blocks.iter().enumerate().flat_map(|(number, block)| {
        block.steps.iter().enumerate().filter_map(move |(step, what)| match what {
            PlanStep::Host { out, op } if *out == var => Some((number, step, op)),
            _ => None,
        })
    });
    found.next().filter(|_| found.next().is_none())
}

/// Whether a buffer holds the same throughout a call.
fn is_fixed(plan: &Plan, buf: Buf) -> bool {
    let kind = plan.buffers.get(buf.0 as usize).map(|buffer| &buffer.kind);
    matches!(kind, Some(BufferKind::Constant(_) | BufferKind::Input(_)))
}

/// Whether a buffer holds at the branch what it held at a step before it.
fn is_unchanged(plan: &Plan, fork: &Fork, from: usize, buf: Buf) -> bool {
    let between = plan.blocks.get(fork.block).and_then(|block| block.steps.get(from..fork.step)).unwrap_or_default();
    let keeps = |step: &PlanStep| match step {
        PlanStep::Device(prim) => prim.writes().iter().all(|view| view.buf != buf),
        PlanStep::Host { .. } | PlanStep::Check(_) => true,
        PlanStep::If { .. } | PlanStep::Loop { .. } => false,
    };
    is_fixed(plan, buf) || between.iter().all(keeps)
}

/// How logits are filtered.
enum Filter {
    TopK,
    TopP,
    Other,
}

/// How the last filter works that these logits went through, if there is one.
fn filter(branch: &Branch<'_>, kept: &View) -> Option<Filter> {
    let [mask, ..] = branch.peek_map(kept, [Bool, F32, F32], |f, [mask, x, y]| f.select(mask, x, y))?;
    let bound = branch.peek_map(mask, [F32; 2], |f, [a, b]| f.compare(Compare::Less, a, b));
    let source = bound.and_then(|[_, bound]| branch.peek(bound.buf));
    Some(match source {
        Some(Prim::Reduce { .. }) => Filter::TopP,
        Some(Prim::Map { .. }) => Filter::TopK,
        _ => Filter::Other,
    })
}

/// Of `select(less(x, bound), -infinity, rest)`: `x`, `bound` and `rest`.
fn masked<'a>(branch: &mut Branch<'a>, kept: &View) -> Matched<[&'a View; 3]> {
    let [mask, fill, rest] = branch.map(kept, [Bool, F32, F32], |f, [mask, x, y]| f.select(mask, x, y), FILTER)?;
    branch.ensure(branch.float(fill) == Some(f32::NEG_INFINITY), FILTER)?;
    let [x, bound] = branch.map(mask, [F32; 2], |f, [a, b]| f.compare(Compare::Less, a, b), FILTER)?;
    Ok([x, bound, rest])
}

/// What sorted elements were before, largest first.
fn descending<'a>(branch: &mut Branch<'a>, sorted: &View, why: &'static str) -> Matched<&'a View> {
    let [x] = branch.map(sorted, [F32], |f, [x]| f.unary(Unary::Neg, x), why)?;
    let Prim::Sort { x, axis: 1, indices: false, .. } = branch.whole(x, why)? else { return branch.decline(why) };
    let [x] = branch.map(x, [F32], |f, [x]| f.unary(Unary::Neg, x), why)?;
    Ok(x)
}

/// What top-p is applied to, and the mass; without that filter, all of it.
fn top_p<'a>(branch: &mut Branch<'a>, kept: &'a View) -> Matched<(&'a View, Parameter<f32>)> {
    let Some(Filter::TopP) = filter(branch, kept) else { return Ok((kept, Parameter::Known(1.0))) };
    let [mass, least, scaled] = masked(branch, kept)?;
    let Prim::Reduce { out, x, axes, fold: Fold::Min } = branch.source(least, TOP_P)? else {
        return branch.decline(TOP_P);
    };
    branch.ensure(*axes == [1] && least.offset == out.offset && is_spread(least, out), TOP_P)?;
    let [is_after, fill, sorted] = branch.map(x, [Bool, F32, F32], |f, [mask, x, y]| f.select(mask, x, y), TOP_P)?;
    branch.ensure(branch.float(fill) == Some(f32::INFINITY), TOP_P)?;
    let [before, most] = branch.map(is_after, [F32; 2], |f, [a, b]| f.compare(Compare::Greater, a, b), TOP_P)?;
    let [sums, own] = branch.map(before, [F32; 2], |f, [a, b]| f.binary(Binary::Sub, a, b), TOP_P)?;
    let Prim::Cumsum { x, axis: 1, reverse: false, inclusive: true, .. } = branch.whole(sums, TOP_P)? else {
        return branch.decline(TOP_P);
    };
    let unsorted = descending(branch, sorted, TOP_P)?;
    branch.ensure(own == sorted && x == sorted && unsorted == mass, TOP_P)?;
    let Prim::Softmax { x, axis: 1, .. } = branch.whole(mass, TOP_P)? else { return branch.decline(TOP_P) };
    branch.ensure(x == scaled, TOP_P)?;
    let most = one_element(most).map_or_else(|| branch.decline(TOP_P), Ok)?;
    Ok((scaled, Parameter::Tensor(most)))
}

/// What top-k is applied to, and the number; without that filter, all of it.
fn top_k<'a>(branch: &mut Branch<'a>, kept: &'a View) -> Matched<(&'a View, Parameter<i64>)> {
    match filter(branch, kept) {
        Some(Filter::TopK) => {}
        Some(Filter::TopP | Filter::Other) => {
            masked(branch, kept)?;
            return branch.decline(FILTER);
        }
        None => return Ok((kept, Parameter::Known(i64::MAX))),
    }
    let [x, bound, scaled] = masked(branch, kept)?;
    let sorted = branch.source(bound, TOP_K)?.out();
    let unsorted = descending(branch, sorted, TOP_K)?;
    let is_place = sorted.is_row_major() && is_spread(bound, sorted);
    branch.ensure(x == scaled && unsorted == scaled && is_place, TOP_K)?;
    let tokens = scaled.shape.get(1).and_then(Dim::as_fixed).map_or_else(|| branch.decline(SIZE), Ok)?;
    let place = &bound.offset - &sorted.offset;
    match place.as_fixed() {
        Some(place) if (0..tokens).contains(&place) => Ok((scaled, Parameter::Known(place + 1))),
        Some(_) => branch.decline(TOP_K),
        None => Ok((scaled, Parameter::Tensor(count(branch, &place, tokens)?))),
    }
}

/// The tensor that holds k, when the place `(min(k, tokens) - 1) mod tokens` is looked at.
fn count(branch: &mut Branch<'_>, place: &Dim, tokens: i64) -> Matched<View> {
    let place = place.as_var().and_then(|var| branch.host(var));
    let last = match place {
        Some(HostOp::Mod(last, size)) if size.is(tokens) => last,
        _ => return branch.decline(TOP_K),
    };
    branch.allow_checks_of(last.clone());
    let count = (last + &Dim::fixed(1)).as_var().and_then(|var| branch.host(var));
    let Some(HostOp::Item(least)) = count else { return branch.decline(TOP_K) };
    let min = |types: [DType; 2], wide| {
        branch.peek_map(least, types, move |f, [a, b]| {
            let (a, b) = (f.cast(a, wide), f.cast(b, wide));
            f.binary(Binary::Min, a, b)
        })
    };
    let found = min([I64, I64], I64).or_else(|| min([I32, I64], I64)).or_else(|| min([I32, I32], I32));
    branch.source(least, TOP_K)?;
    let k = match found {
        Some([k, limit]) if branch.int(limit) == Some(tokens) => k,
        Some([limit, k]) if branch.int(limit) == Some(tokens) => k,
        _ => return branch.decline(TOP_K),
    };
    one_element(k).map_or_else(|| branch.decline(TOP_K), Ok)
}

/// The logits and the temperature that they were divided by.
fn divided(branch: &mut Branch<'_>, scaled: &View) -> Matched<(View, View)> {
    let divide = |from: DType| {
        branch.peek_map(scaled, [from, F32], |f, [a, b]| {
            let a = f.cast(a, F32);
            f.binary(Binary::Div, a, b)
        })
    };
    let found = divide(F32).or_else(|| divide(F16)).or_else(|| divide(Bf16));
    branch.source(scaled, SCALED)?;
    let [logits, temperature] = found.map_or_else(|| branch.decline(SCALED), Ok)?;
    let temperature = one_element(temperature).map_or_else(|| branch.decline(TEMPERATURE), Ok)?;
    let widened = |from: DType| branch.peek_map(logits, [from], |f, [x]| f.cast(x, F32));
    let logits = match (branch.peek(logits.buf), widened(F16).or_else(|| widened(Bf16))) {
        (Some(_), Some([narrow])) => {
            branch.source(logits, SCALED)?;
            narrow
        }
        (Some(_), None) => return branch.decline(SCALED),
        (None, _) => logits,
    };
    let tokens = logits.shape.get(1).and_then(Dim::as_fixed).map_or_else(|| branch.decline(SIZE), Ok)?;
    branch.ensure((1..=MOST_TOKENS).contains(&tokens), LARGE)?;
    Ok((logits.clone(), temperature))
}

/// The host value that tells whether the temperature is above 0.
fn condition(plan: &Plan, fork: &Fork, around: &Block, temperature: &View) -> Matched<Var> {
    let at = origin(plan, fork.block, fork.step);
    let branch = Branch::new(plan, around, at);
    let definition = fork.condition.as_var().and_then(|var| Some((var, defined(plan, var)?)));
    let Some((var, (block, step, HostOp::Item(view)))) = definition else { return branch.decline(CONDITION) };
    let greater = branch.peek_map(view, [F32; 2], |f, [a, b]| f.compare(Compare::Greater, a, b));
    let (Some([x, zero]), Some(from)) = (greater, branch.place(view.buf)) else { return branch.decline(CONDITION) };
    let is_in_order = block == fork.block && from < step && step < fork.step && Uses::of(plan).writes(view.buf) == 1;
    let is_it = one_element(x).as_ref() == Some(temperature) && branch.float(zero) == Some(0.0);
    branch.ensure(is_in_order && is_it, CONDITION)?;
    branch.ensure(is_unchanged(plan, fork, from, temperature.buf), CHANGED)?;
    Ok(var)
}

/// That nothing else uses what the branches compute but their result.
fn alone(plan: &Plan, fork: &Fork, sampler: &Sampler) -> Matched<()> {
    let uses = Uses::of(plan);
    let blocks = [fork.then, fork.otherwise];
    let inside = Uses::of_blocks(plan, &blocks);
    let parameters = [Some(&sampler.logits), Some(&sampler.temperature), sampler.top_k.view(), sampler.top_p.view()];
    let seed = sampler.seed.as_ref().and_then(Parameter::view);
    let views: Vec<&View> = parameters.into_iter().chain([seed]).flatten().collect();
    let parameters: Vec<Buf> = views.iter().map(|view| view.buf).collect();
    let mut outside = tidy::used_vars(plan, &blocks);
    // Where a parameter lies may depend on what only the branch computes.
    views.into_iter().for_each(|view| outside.extend(tidy::vars(view)));
    for (block, step, what) in blocks.into_iter().flat_map(|block| steps(plan, block)) {
        let is_alone = match what {
            PlanStep::Device(prim) => prim.writes().iter().all(|view| {
                let kind = plan.buffers.get(view.buf.0 as usize).map(|buffer| &buffer.kind);
                let is_inside = matches!(kind, Some(BufferKind::Temporary))
                    && uses.reads(view.buf) == inside.reads(view.buf)
                    && uses.writes(view.buf) == inside.writes(view.buf);
                !parameters.contains(&view.buf) && (is_inside || view.buf == sampler.out.buf)
            }),
            PlanStep::Host { out, .. } => !outside.contains(out),
            PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => true,
        };
        if !is_alone {
            return Err(Declined { at: origin(plan, block, step), why: ELSEWHERE });
        }
    }
    Ok(())
}

fn steps(plan: &Plan, block: usize) -> impl Iterator<Item = (usize, usize, &PlanStep)> {
    let steps = plan.blocks.get(block).into_iter().flat_map(|block| block.steps.iter().enumerate());
    steps.map(move |(step, what)| (block, step, what))
}
