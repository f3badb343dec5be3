//! Matches the operations of a sampling head, from the tokens back to the logits.

use crate::dim::Dim;
use crate::expr::{Binary, Compare, Scalar, Unary};
use crate::graph::{Graph, Input, Node, Op, Uses, Value};
use crate::host::{Check, HostBinary, HostOp};
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Fold, MOST_TOKENS, Prim, View};
use ptero_tensor::DType::{F32, I32, I64, U32};
use ptero_tensor::integer;

/// The tensors of a sampler: the tokens; logits, temperature, top-k and top-p; and the seed.
pub(super) type Sampler = (Value, [Parameter; 4], Option<Parameter>);

/// A parameter of a sampler: a tensor, or a number known now.
pub(super) enum Parameter {
    Tensor(Traced),
    Float(f32),
    Int(i64),
}

const RESULT: &str = "not fused: the branches do not give one tensor of tokens";
const LARGEST: &str = "not fused: a token is not the index of the largest score of a row";
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
const INSIDE: &str = "not fused: a parameter depends on what the branch computes";

const NEG: Scalar = Scalar::Unary(Unary::Neg);
const LOG: Scalar = Scalar::Unary(Unary::Log);

/// Matches a branch.
pub(super) fn find(graph: &Graph, uses: &Uses, branch: &Node) -> Matched<Sampler> {
    let Op::If { condition, then, otherwise, outs } = &branch.op else { return Err((branch.origin, RESULT)) };
    let walk = Matcher { graph, uses, block: *then, looks_outside: false, at: branch.origin };
    let (mut draw, mut greedy) = (walk, Matcher { block: *otherwise, ..walk });
    let [out] = outs.as_slice() else { return draw.decline(RESULT) };
    let scores = largest(&mut draw)?;
    let (kept, noise) = score(&mut draw, &scores)?;
    let (bits, seed) = random_bits(&mut draw, noise)?;
    let seed = seed.map(|number| seed_of(&draw, number)).transpose()?;
    let (kept, top_p) = top_p(&mut draw, kept)?;
    let (kept, top_k, last) = top_k(&mut draw, kept)?;
    let (logits, temperature) = divided(&mut draw, &kept)?;
    let greedy_logits = largest(&mut greedy)?;
    greedy.ensure(greedy_logits.is_same(&logits), GREEDY)?;
    // Allowed: checks that the k-th logit exists, and of the number of random bits, which is that of the logits.
    let is_checked = |op: &Op| match op {
        Op::Check(Check::Within { value, low, high, .. }) => {
            let is_fixed = low.as_fixed().and(high.as_fixed()).is_some();
            is_fixed && logits.view.shape.iter().chain(&last).any(|number| number == value)
        }
        Op::Host(var) => !matches!(host(&draw, &Dim::var(*var)), Some(HostOp::Chosen(..))),
        Op::Prim(prim) => *prim.out() == bits,
        _ => false,
    };
    draw.nothing_else(is_checked, MORE)?;
    greedy.nothing_else(|_| false, MORE)?;
    check_condition(&walk, condition, &temperature)?;
    Ok((*out, [Parameter::Tensor(logits), Parameter::Tensor(temperature), top_k, top_p], seed))
}

fn host<'a>(draw: &Matcher<'a>, number: &Dim) -> Option<&'a HostOp> {
    draw.graph.host.get(number.as_var()?.0 as usize)
}

/// A view that does not depend on what the branch computes.
fn outside(draw: &Matcher<'_>, tensor: Option<Traced>, why: &'static str) -> Matched<Traced> {
    let tensor = draw.some(tensor, why)?;
    let numbers = tensor.axes().flat_map(|(size, stride)| [size, stride]).chain([&tensor.view.offset]);
    let vars: Vec<_> = numbers.flat_map(Dim::vars).collect();
    let nodes = &draw.graph.block(draw.block).nodes;
    let is_computed = nodes.iter().any(|node| matches!(&node.op, Op::Host(var) if vars.contains(var)));
    draw.ensure(!is_computed && !draw.is_inside(&tensor), INSIDE)?;
    Ok(tensor)
}

/// The scores whose largest indices are the result of a block.
fn largest(draw: &mut Matcher<'_>) -> Matched<Traced> {
    let [token] = draw.graph.block(draw.block).results.as_slice() else { return draw.decline(RESULT) };
    let token = draw.trace(*token);
    let Prim::ArgReduce { out, x, axis: 1, largest: true } = draw.source(&token, LARGEST)? else {
        return draw.decline(LARGEST);
    };
    let is_all = token.is_line(&Traced::all_of(draw.graph, *out)) && draw.graph.ty(*x).rank() == 2;
    draw.ensure(is_all, LARGEST)?;
    Ok(draw.trace(*x))
}

/// The two operands of the sum: the kept logits, and the noise.
fn score(draw: &mut Matcher<'_>, scores: &Traced) -> Matched<(Traced, Traced)> {
    let [a, b] = draw.operands(scores, Scalar::Binary(Binary::Add), Some(F32), SCORES)?;
    let negated = |tensor: &Traced| draw.peek::<1>(&Traced::all_of(draw.graph, tensor.root), NEG, Some(F32)).is_some();
    let (kept, noise) = if negated(&b) { (a, b) } else { (b, a) };
    // Elementwise functions have one shape, so noise that is used whole has as many random bits as logits.
    let is_whole = noise.is_same(&Traced::all_of(draw.graph, noise.root));
    draw.ensure(is_whole || !negated(&noise), STREAM)?;
    Ok((kept, noise))
}

/// The random bits that the noise is computed from, and their seed.
fn random_bits<'a>(draw: &mut Matcher<'a>, noise: Traced) -> Matched<(Value, Option<&'a Dim>)> {
    let mut x = noise;
    for op in [NEG, LOG, NEG, LOG] {
        [x] = draw.operands(&x, op, Some(F32), NOISE)?;
    }
    let [x, below_one] = draw.operands(&x, Scalar::Binary(Binary::Min), Some(F32), UNIFORM)?;
    draw.ensure(draw.is_float(&below_one, 1.0 - f32::EPSILON / 2.0), UNIFORM)?;
    let [x, most] = draw.operands(&x, Scalar::Binary(Binary::Div), Some(F32), UNIFORM)?;
    draw.ensure(draw.is_float(&most, 4_294_967_295.0), UNIFORM)?;
    let [bits] = draw.operands(&x, Scalar::Cast, Some(U32), UNIFORM)?;
    let Prim::RandomBits { out, seed } = draw.whole(&bits, UNIFORM)? else { return draw.decline(UNIFORM) };
    Ok((*out, seed.as_ref()))
}

fn seed_of(draw: &Matcher<'_>, seed: &Dim) -> Matched<Parameter> {
    if let Some(value) = seed.as_fixed() {
        draw.ensure(i32::try_from(value).is_ok(), SEED)?;
        return Ok(Parameter::Int(value));
    }
    let element = match host(draw, seed) {
        Some(HostOp::Item(value)) => draw.trace(*value).element(),
        Some(HostOp::Element { input, at }) => draw.graph.inputs.get(*input).and_then(|input| {
            let Input::Tensor(root) = input else { return None };
            let Traced { root, view } = Traced::all_of(draw.graph, *root);
            Some(Traced { root, view: View { shape: Vec::new(), strides: Vec::new(), offset: at.clone(), ..view } })
        }),
        _ => None,
    };
    let is_integer = |tensor: &Traced| matches!(tensor.view.dtype, I32 | I64 | U32);
    Ok(Parameter::Tensor(outside(draw, element.filter(is_integer), SEED)?))
}

/// Matches `select(less(x, bound), -infinity, rest)`: `x`, `bound` and `rest`; `None` if it is no such filter.
fn masked(draw: &mut Matcher<'_>, kept: &Traced) -> Matched<Option<[Traced; 3]>> {
    let select = draw.peek(kept, Scalar::Select, Some(F32));
    let Some([mask, fill, rest]) = select else { return Ok(None) };
    draw.source(kept, FILTER)?;
    draw.ensure(draw.is_float(&fill, f32::NEG_INFINITY), FILTER)?;
    let [x, bound] = draw.operands(&mask, Scalar::Compare(Compare::Less), Some(F32), FILTER)?;
    Ok(Some([x, bound, rest]))
}

/// The operand of a sort, largest first.
fn descending(draw: &mut Matcher<'_>, sorted: &Traced, why: &'static str) -> Matched<Traced> {
    let [x] = draw.operands(sorted, NEG, Some(F32), why)?;
    let Prim::Sort { x, axis: 1, indices: false, .. } = draw.whole(&x, why)? else { return draw.decline(why) };
    let [x] = draw.operands(&draw.trace(*x), NEG, Some(F32), why)?;
    Ok(x)
}

/// Returns `true` if each row of a matrix repeats one element of the same row of another.
fn is_spread(tensor: &Traced, rows: &Traced) -> bool {
    let is_apart = |(row, own): ((&Dim, &Dim), (&Dim, &Dim))| row.0 == own.0 && (row.0.is(1) || row.1 == own.1);
    let rows = rows.axes().next();
    tensor.view.shape.len() == 2
        && tensor.clone().without(1).is_some_and(|tensor| tensor.axes().next().zip(rows).is_some_and(is_apart))
}

/// The logits that top-p is applied to, and the mass; without that filter, the same logits and a mass of 1.
fn top_p(draw: &mut Matcher<'_>, kept: Traced) -> Matched<(Traced, Parameter)> {
    let before = *draw;
    let Some([mass, least, scaled]) = masked(draw, &kept)? else { return Ok((kept, Parameter::Float(1.0))) };
    let Ok(Prim::Reduce { x, axes, fold: Fold::Min, .. }) = draw.source(&least, TOP_P) else {
        *draw = before;
        return Ok((kept, Parameter::Float(1.0)));
    };
    let is_least = least.view.offset.is(0) && is_spread(&least, &Traced::all_of(draw.graph, least.root));
    draw.ensure(*axes == [1] && is_least, TOP_P)?;
    let [is_after, fill, sorted] = draw.operands(&draw.trace(*x), Scalar::Select, Some(F32), TOP_P)?;
    draw.ensure(draw.is_float(&fill, f32::INFINITY), TOP_P)?;
    let [before, most] = draw.operands(&is_after, Scalar::Compare(Compare::Greater), Some(F32), TOP_P)?;
    let [sums, own] = draw.operands(&before, Scalar::Binary(Binary::Sub), Some(F32), TOP_P)?;
    let Prim::Cumsum { x: summed, axis: 1, reverse: false, inclusive: true, .. } = draw.whole(&sums, TOP_P)? else {
        return draw.decline(TOP_P);
    };
    let unsorted = descending(draw, &sorted, TOP_P)?;
    let is_same = own.is_same(&sorted) && draw.trace(*summed).is_same(&sorted) && unsorted.is_same(&mass);
    draw.ensure(is_same, TOP_P)?;
    let Prim::Softmax { x, axis: 1, .. } = draw.whole(&mass, TOP_P)? else { return draw.decline(TOP_P) };
    draw.ensure(draw.trace(*x).is_same(&scaled), TOP_P)?;
    Ok((scaled, Parameter::Tensor(outside(draw, most.element(), TOP_P)?)))
}

/// The logits that top-k is applied to, the number, and the index of the k-th; without that filter, the same logits.
fn top_k(draw: &mut Matcher<'_>, kept: Traced) -> Matched<(Traced, Parameter, Option<Dim>)> {
    let Some([x, bound, scaled]) = masked(draw, &kept)? else { return Ok((kept, Parameter::Int(i64::MAX), None)) };
    let sorted = Traced::all_of(draw.graph, bound.root);
    draw.ensure(draw.peek::<1>(&sorted, NEG, Some(F32)).is_some(), FILTER)?;
    let unsorted = descending(draw, &sorted, TOP_K)?;
    let is_same = x.is_same(&scaled) && unsorted.is_same(&scaled) && is_spread(&bound, &sorted);
    draw.ensure(is_same, TOP_K)?;
    let tokens = draw.some(scaled.view.shape.get(1).and_then(Dim::as_fixed), SIZE)?;
    match bound.view.offset.as_fixed() {
        Some(index) if (0..tokens).contains(&index) => Ok((scaled, Parameter::Int(index + 1), None)),
        Some(_) => draw.decline(TOP_K),
        None => {
            let (k, last) = count(draw, &bound.view.offset, tokens)?;
            Ok((scaled, Parameter::Tensor(k), Some(last)))
        }
    }
}

/// Matches the index `(min(k, tokens) - 1) mod tokens`: `k`, and the index before the modulus.
fn count(draw: &mut Matcher<'_>, index: &Dim, tokens: i64) -> Matched<(Traced, Dim)> {
    let last = match host(draw, index) {
        Some(HostOp::Binary(HostBinary::Mod, last, size)) if size.is(tokens) => last,
        _ => return draw.decline(TOP_K),
    };
    let Some(HostOp::Item(least)) = host(draw, &(last + &Dim::fixed(1))) else { return draw.decline(TOP_K) };
    let [a, b] = draw.operands(&draw.trace(*least), Scalar::Binary(Binary::Min), None, TOP_K)?;
    let is_limit =
        |tensor: &Traced| draw.constant(tensor).map(|bytes| integer(tensor.view.dtype, bytes)) == Some(tokens);
    let (k, limit) = if is_limit(&b) { (a, b) } else { (b, a) };
    let is_k = is_limit(&limit) && matches!(k.view.dtype, I32 | I64);
    Ok((outside(draw, k.element().filter(|_| is_k), TOP_K)?, last.clone()))
}

/// The logits, and the temperature that they are divided by.
fn divided(draw: &mut Matcher<'_>, scaled: &Traced) -> Matched<(Traced, Traced)> {
    let [mut logits, temperature] = draw.operands(scaled, Scalar::Binary(Binary::Div), None, SCALED)?;
    let is_f32 = |tensor: &Traced| tensor.view.dtype == F32;
    let temperature = outside(draw, temperature.element().filter(is_f32), TEMPERATURE)?;
    if draw.is_inside(&logits) {
        let narrow = draw.widened(&logits);
        draw.source(&logits, SCALED)?;
        logits = draw.some(narrow, SCALED)?;
    }
    let is_matrix = logits.view.dtype.is_float() && logits.view.shape.len() == 2;
    let logits = outside(draw, Some(logits).filter(|_| is_matrix), SCALED)?;
    let tokens = draw.some(logits.view.shape.get(1).and_then(Dim::as_fixed), SIZE)?;
    draw.ensure((1..=MOST_TOKENS).contains(&tokens), LARGE)?;
    Ok((logits, temperature))
}

/// Checks that the branch is taken if the temperature is above 0.
fn check_condition(walk: &Matcher<'_>, condition: &Dim, temperature: &Traced) -> Matched<()> {
    let Some(HostOp::Item(value)) = host(walk, condition) else { return walk.decline(CONDITION) };
    let greater = walk.peek(&walk.trace(*value), Scalar::Compare(Compare::Greater), Some(F32));
    let [x, zero] = walk.some(greater, CONDITION)?;
    walk.ensure(walk.element(&x) == walk.element(temperature) && walk.is_float(&zero, 0.0), CONDITION)
}
