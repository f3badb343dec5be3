//! Matches a branch that computes log-probabilities after the draw: of the scores that a token was drawn by, or of the logits.

use super::filters::is_spread;
use super::pattern::{NEG, host};
use crate::dim::Dim;
use crate::expr::{Binary, Compare, Scalar};
use crate::graph::{BlockId, Def, Op, Place, Value};
use crate::host::HostOp;
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Axis, Fold, Prim};
use ptero_tensor::DType::{F32, I64, U32};

const USED: &str = "not fused: scores are used for something else than log-probabilities";
const RESULTS: &str = "not fused: log-probabilities are not those of a token and of the 20 largest";
const WHICH: &str = "not fused: log-probabilities are not computed where one element is above 0";
const CHOICE: &str = "not fused: log-probabilities are not of scores or logits, by one element";
const SHARES: &str = "not fused: log-probabilities are not scores minus the logarithm of the sum of their exponentials";
const OWN: &str = "not fused: a log-probability is not that of the token";
const LIKELIEST: &str = "not fused: the likeliest tokens are not the indices of the largest scores";
const ZEROS: &str = "not fused: log-probabilities that are not asked for are not zeros";
const MORE: &str = "not fused: a branch does more than compute log-probabilities";

/// How many of the largest scores there are.
const MOST_LIKELIEST: i64 = 20;

/// What was found.
pub(super) struct LogProbabilities {
    /// The branch.
    pub(super) place: Place,
    pub(super) which: Traced,
    /// Its results: of the token, the likeliest, and of these.
    pub(super) outs: [Value; 3],
}

/// Finds the branch after a draw. `scores` has no other use.
pub(super) fn find(
    walk: &Matcher<'_>,
    drawn: Place,
    [token, scores]: [Value; 2],
    logits: &Traced,
) -> Matched<LogProbabilities> {
    let nodes = &walk.graph.block(drawn.0).nodes;
    let is_it = |block: BlockId| {
        let inner = |op: &Op| matches!(op, Op::If { then, .. } if walk.graph.block(*then).results == [scores]);
        walk.graph.block(block).nodes.iter().any(|node| inner(&node.op))
    };
    let found = nodes.iter().enumerate().skip(drawn.1).find_map(|(index, node)| match &node.op {
        Op::If { condition, then, otherwise, outs } if is_it(*then) => {
            Some((index, node.origin, condition, [*then, *otherwise], outs))
        }
        _ => None,
    });
    let (index, at, condition, [then, otherwise], outs) = walk.some(found, USED)?;
    walk.ensure(walk.uses.count(scores) == 1, USED)?;
    let walk = Matcher { block: drawn.0, at, ..*walk };
    let which = above(&walk, condition, 0, WHICH)?;
    check_before(&walk, &which, drawn)?;
    let order = walk.some(order(&walk, outs), RESULTS)?;
    let mut compute = Matcher { block: then, ..walk };
    let (chosen, choice) = choice(&mut compute, &which, scores, logits)?;
    shares(&mut compute, &chosen, token, order)?;
    let is_choice = |op: &Op| match op {
        Op::Host(var) => Dim::var(*var) == choice,
        Op::If { outs, .. } => *outs == [chosen.root],
        _ => false,
    };
    compute.nothing_else(is_choice, MORE)?;
    let zeros = Matcher { block: otherwise, ..walk };
    let results = &walk.graph.block(otherwise).results;
    walk.ensure(results.iter().all(|value| is_zero(&zeros, &zeros.trace(*value))), ZEROS)?;
    zeros.nothing_else(|_| false, MORE)?;
    let out = |at: usize| walk.some(outs.get(at).copied(), RESULTS);
    let [own, likeliest, of_likeliest] = order;
    Ok(LogProbabilities { place: (drawn.0, index), which, outs: [out(own)?, out(likeliest)?, out(of_likeliest)?] })
}

/// Which result is that of the token, which has the likeliest tokens, and which those of these, by their types.
fn order(walk: &Matcher<'_>, outs: &[Value]) -> Option<[usize; 3]> {
    let [one, few] = [1, MOST_LIKELIEST].map(Dim::fixed);
    let of = |dtype, shape: &[Dim]| {
        let is_it = |out: &Value| walk.graph.ty(*out).dtype == dtype && walk.graph.ty(*out).shape == shape;
        outs.iter().position(is_it)
    };
    let row = [one.clone(), few];
    let order = [of(F32, &[one])?, of(I64, &row)?, of(F32, &row)?];
    (outs.len() == 3).then_some(order)
}

/// Matches the host value `number > limit`: the number, one `i64`.
pub(super) fn above(walk: &Matcher<'_>, condition: &Dim, limit: i64, why: &'static str) -> Matched<Traced> {
    let Some(HostOp::Item(value)) = host(walk, condition) else { return walk.decline(why) };
    let greater = walk.peek(&walk.trace(*value), Scalar::Compare(Compare::Greater), Some(I64));
    let [number, bound] = walk.some(greater, why)?;
    walk.ensure(walk.constant(&bound) == Some(&limit.to_le_bytes()), why)?;
    walk.some(walk.element(&number), why)
}

/// Checks that an element is known before the draw.
fn check_before(walk: &Matcher<'_>, element: &Traced, (block, index): Place) -> Matched<()> {
    let is_before = match walk.uses.def(element.root) {
        None | Some(Def::Constant(_)) => true,
        Some(Def::Node(of, at)) => of == block && at < index,
        Some(Def::Param(_)) => false,
    };
    walk.ensure(is_before && element.view.offset.as_fixed().is_some(), WHICH)
}

/// Matches the choice between scores and logits: the chosen ones, and the host value that chooses.
fn choice(compute: &mut Matcher<'_>, which: &Traced, scores: Value, logits: &Traced) -> Matched<(Traced, Dim)> {
    let graph = compute.graph;
    let branch = graph.block(compute.block).nodes.iter().find_map(|node| match &node.op {
        Op::If { condition, then, otherwise, outs } => Some((node.origin, condition, [*then, *otherwise], outs)),
        _ => None,
    });
    let (at, condition, [then, otherwise], outs) = compute.some(branch, CHOICE)?;
    compute.at = at;
    let ([chosen], [model]) = (outs.as_slice(), graph.block(otherwise).results.as_slice()) else {
        return compute.decline(CHOICE);
    };
    let is_same = above(compute, condition, 1, CHOICE)? == *which;
    compute.ensure(is_same && graph.block(then).results == [scores], CHOICE)?;
    let other = Matcher { block: otherwise, ..*compute };
    let model = other.trace(*model);
    let model = other.widened(&model).unwrap_or(model);
    compute.ensure(model.is_same(logits), CHOICE)?;
    Matcher { block: then, ..*compute }.nothing_else(|_| false, MORE)?;
    other.nothing_else(|_| false, MORE)?;
    Ok((Traced::all_of(graph, *chosen), condition.clone()))
}

/// Checks the results, whose indices are given, against the scores.
fn shares(compute: &mut Matcher<'_>, chosen: &Traced, token: Value, order: [usize; 3]) -> Matched<()> {
    let results = &compute.graph.block(compute.block).results;
    let [own, likeliest, of_likeliest] = order.map(|at| results.get(at).map(|value| compute.trace(*value)));
    let own = compute.some(own, RESULTS)?;
    let (shares, index) = along(compute, &own, OWN)?;
    compute.ensure(index.is_line(&Traced::all_of(compute.graph, token)), OWN)?;

    let [scores, total] = compute.operands(&shares, Scalar::Binary(Binary::Sub), Some(F32), SHARES)?;
    let Prim::Reduce { x, axes, fold: Fold::LogSumExp, .. } = compute.source(&total, SHARES)? else {
        return compute.decline(SHARES);
    };
    let is_total = total.view.offset.is(0) && is_spread(&total, &Traced::all_of(compute.graph, total.root));
    let are_scores = scores.is_same(chosen) && compute.trace(*x).is_same(chosen);
    compute.ensure(*axes == [1] && is_total && are_scores, SHARES)?;

    let likeliest = compute.some(likeliest, RESULTS)?;
    let [first] = compute.operands(&likeliest, Scalar::Cast, Some(U32), LIKELIEST)?;
    let of_likeliest = compute.some(of_likeliest, RESULTS)?;
    let (same, index) = along(compute, &of_likeliest, LIKELIEST)?;
    compute.ensure(same.is_same(&shares) && index.is_same(&first), LIKELIEST)?;
    let is_start = first.view.offset.is(0) && first.view.strides.get(1).is_some_and(|stride| stride.is(1));
    let Prim::Sort { x, axis: 1, indices: true, .. } = compute.source(&first, LIKELIEST)? else {
        return compute.decline(LIKELIEST);
    };
    let [sorted] = compute.operands(&compute.trace(*x), NEG, Some(F32), LIKELIEST)?;
    compute.ensure(is_start && sorted.is_same(chosen), LIKELIEST)
}

/// Matches elements of a row by their indices: the rows and the indices.
fn along(compute: &mut Matcher<'_>, found: &Traced, why: &'static str) -> Matched<(Traced, Traced)> {
    let Prim::Gather { out, x, axes } = compute.source(found, why)? else { return compute.decline(why) };
    let [Axis { index: None, coordinate: Some(0) }, Axis { index: Some(index), coordinate: None }] = axes.as_slice()
    else {
        return compute.decline(why);
    };
    compute.ensure(found.is_line(&Traced::all_of(compute.graph, *out)), why)?;
    Ok((compute.trace(*x), compute.trace(*index)))
}

/// Returns `true` for zeros that no tensor is read for.
fn is_zero(walk: &Matcher<'_>, tensor: &Traced) -> bool {
    let is_step = |op: &Scalar| matches!(op, Scalar::Float(0.0) | Scalar::Cast);
    walk.peek_nullary(tensor).is_some_and(|steps| steps.iter().all(|step| is_step(&step.op)))
}
