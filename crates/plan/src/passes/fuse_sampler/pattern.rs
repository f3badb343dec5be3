//! Matches the operations of a sampling head, from the tokens back to the logits.

use super::filters::{min_p, top_k, top_p};
use super::log_probabilities::LogProbabilities;
use super::noise::{self, Noise};
use super::{adjust, log_probabilities};
use crate::dim::Dim;
use crate::expr::{Binary, Compare, Scalar, Unary};
use crate::graph::{Graph, Node, Op, Origin, Place, Uses, Value};
use crate::host::{Check, HostOp};
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Adjust, MOST_TOKENS, Prim};
use ptero_tensor::DType::{F32, U32};

/// What a head consists of.
pub(super) struct Sampler {
    /// The result.
    pub(super) token: Value,
    pub(super) logits: Traced,
    pub(super) temperature: Parameter,
    pub(super) top_k: Parameter,
    pub(super) top_p: Parameter,
    pub(super) min_p: Parameter,
    pub(super) seed: Option<Parameter>,
    pub(super) exact_tail: Option<Traced>,
    pub(super) adjust: Option<Adjust<Traced>>,
    pub(super) log_probabilities: Option<LogProbabilities>,
    /// Why the logits are taken as they are after something changed them.
    pub(super) why_not_adjusted: Option<(Origin, &'static str)>,
}

/// A parameter of a sampler: a tensor, or a number known now.
#[derive(PartialEq)]
pub(super) enum Parameter {
    Tensor(Traced),
    Float(f32),
    Int(i64),
}

const RESULT: &str = "not fused: the branches do not give one tensor of tokens";
const SCORES_OUT: &str = "not fused: the branches give more than tokens and the scores that these are drawn by";
const LARGEST: &str = "not fused: a token is not the index of the largest score of a row";
const SCORES: &str = "not fused: scores are not logits and noise";
const SCALED: &str = "not fused: what is kept is not logits over a temperature";
const TEMPERATURE: &str = "not fused: the temperature is not one element";
const CONDITION: &str = "not fused: tokens are not drawn where just that temperature is above 0";
const GREEDY: &str = "not fused: the other branch does not take the largest of the same logits";
pub(super) const SIZE: &str = "not fused: the vocabulary has no fixed size";
const LARGE: &str = "not fused: the vocabulary is too large";
const MORE: &str = "not fused: the branch does more than sample";
const INSIDE: &str = "not fused: a parameter depends on what the branch computes";

pub(super) const NEG: Scalar = Scalar::Unary(Unary::Neg);

/// Matches a branch.
pub(super) fn find(graph: &Graph, uses: &Uses, place: Place, branch: &Node) -> Matched<Sampler> {
    let Op::If { condition, then, otherwise, outs } = &branch.op else { return Err((branch.origin, RESULT)) };
    let walk = Matcher { graph, uses, block: *then, looks_outside: false, at: branch.origin };
    let (mut draw, mut greedy) = (walk, Matcher { block: *otherwise, ..walk });
    let is_token = |out: &Value| graph.ty(*out).dtype == U32;
    let (at, token, scores_out) = match outs.as_slice() {
        [token] => (0, *token, None),
        [token, scores] if is_token(token) => (0, *token, Some((1, *scores))),
        [scores, token] if is_token(token) => (1, *token, Some((0, *scores))),
        _ => return draw.decline(RESULT),
    };
    let scores = largest(&mut draw, at)?;
    let (left, noise) = score(&mut draw, &scores)?;
    let noise = noise::find(&mut draw, &noise)?;
    let (kept, min_p) = min_p(&mut draw, left.clone())?;
    let (kept, top_p) = top_p(&mut draw, kept)?;
    let (kept, top_k, last) = top_k(&mut draw, kept)?;
    let (logits, temperature) = divided(&mut draw, &kept)?;
    let greedy_logits = largest(&mut greedy, at)?;
    greedy.ensure(greedy_logits.is_same(&logits), GREEDY)?;
    if let Some((at, _)) = scores_out {
        let result = |walk: &Matcher<'_>| Some(walk.trace(*graph.block(walk.block).results.get(at)?));
        let is_left = |found: Option<Traced>, wanted: &Traced| found.is_some_and(|found| found.is_same(wanted));
        walk.ensure(is_left(result(&draw), &left) && is_left(result(&greedy), &logits), SCORES_OUT)?;
    }
    check_rest(&draw, &logits, last.as_ref(), noise.source)?;
    greedy.nothing_else(|_| false, MORE)?;
    check_condition(&walk, condition, &temperature)?;
    let (adjust, logits, why_not_adjusted) = match adjust::find(&Matcher { block: place.0, ..walk }, &logits) {
        Ok(Some((adjust, logits))) => (Some(adjust), logits, None),
        Ok(None) => (None, logits, None),
        Err(why) => (None, logits, Some(why)),
    };
    let log_probabilities = match (scores_out, why_not_adjusted) {
        (None, _) => None,
        (Some((_, scores)), None) => Some(log_probabilities::find(&walk, place, [token, scores], &logits)?),
        // The model's own log-probabilities are of logits before they are changed.
        (Some(_), Some(why)) => return Err(why),
    };
    let temperature = Parameter::Tensor(temperature);
    let Noise { seed, exact_tail, .. } = noise;
    Ok(Sampler {
        token,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        exact_tail,
        adjust,
        log_probabilities,
        why_not_adjusted,
    })
}

/// Checks that the block has no other effects. Allowed: what makes the noise, checks that the k-th logit exists, and of the number of
/// random bits, which is that of the logits.
fn check_rest(draw: &Matcher<'_>, logits: &Traced, last: Option<&Dim>, noise: Value) -> Matched<()> {
    let is_checked = |op: &Op| match op {
        Op::Check(Check::Within { value, low, high, .. }) => {
            let is_fixed = low.as_fixed().and(high.as_fixed()).is_some();
            is_fixed && logits.view.shape.iter().chain(last).any(|number| number == value)
        }
        Op::Host(var) => !matches!(host(draw, &Dim::var(*var)), Some(HostOp::Chosen(..))),
        Op::Prim(prim) => *prim.out() == noise,
        Op::If { outs, .. } => *outs == [noise],
        _ => false,
    };
    draw.nothing_else(is_checked, MORE)
}

pub(super) fn host<'a>(draw: &Matcher<'a>, number: &Dim) -> Option<&'a HostOp> {
    draw.graph.host.get(number.as_var()?.0 as usize)
}

/// A view that does not depend on what the branch computes.
pub(super) fn outside(draw: &Matcher<'_>, tensor: Option<Traced>, why: &'static str) -> Matched<Traced> {
    let tensor = draw.some(tensor, why)?;
    let numbers = tensor.axes().flat_map(|(size, stride)| [size, stride]).chain([&tensor.view.offset]);
    let vars: Vec<_> = numbers.flat_map(Dim::vars).collect();
    let nodes = &draw.graph.block(draw.block).nodes;
    let is_computed = nodes.iter().any(|node| matches!(&node.op, Op::Host(var) if vars.contains(var)));
    draw.ensure(!is_computed && !draw.is_inside(&tensor), INSIDE)?;
    Ok(tensor)
}

/// The scores whose largest indices are that result of a block.
fn largest(draw: &mut Matcher<'_>, at: usize) -> Matched<Traced> {
    let token = draw.some(draw.graph.block(draw.block).results.get(at), RESULT)?;
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
    Ok(if noise::may_be(draw, &b) { (a, b) } else { (b, a) })
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
