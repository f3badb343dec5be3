//! Matches the operations of one token, from the result and the new state back to the old one.

use crate::dim::{Dim, Var};
use crate::expr::{Binary, Scalar};
use crate::graph::{Carried, Loop, Node, Op, StateId, Value};
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Fold, Prim};

const MORE: &str = "not fused: the loop does more than the gated delta rule";
const RESULT: &str = "not fused: the loop does not collect one result per token";
const CARRY: &str = "not fused: the loop does not carry over one state";
const SHAPE: &str = "not fused: the state is not one matrix per head and batch";
const LEARNT: &str = "not fused: the new state is not the decayed one and what is learnt";
const DECAY: &str = "not fused: the state does not decay by one factor per head";
const OUTER: &str = "not fused: what is learnt is not differences times the key";
const BETA: &str = "not fused: differences are not scaled by one factor per head";
const DIFFERENCE: &str = "not fused: a difference is not the value less what the state gives for the key";
const KEY: &str = "not fused: what the state gives for the key is not a sum over the last axis of the decayed state";
const KEYS: &str = "not fused: the key that is asked for is not the key that is learnt";
const QUERY: &str = "not fused: the result is not a sum over the last axis of the new state times the query";
const SLICE: &str = "not fused: an operand is not the part of a tensor that belongs to the token";

/// Where the state comes from and goes to.
pub(super) enum StateFlow {
    /// The loop carries it over.
    Carried { init: Traced, out: Value },
    /// Each round reads and writes it.
    State { state: StateId, held: Value },
}

/// A matched loop. Operands have all tokens, as the second axis.
pub(super) struct DeltaLoop {
    /// Checks of the loop, none of which depends on the token.
    pub(super) checks: Vec<Node>,
    /// Queries, keys, values, decay and learning rate.
    pub(super) operands: [Traced; 5],
    /// The result, and its axis of tokens.
    pub(super) out: Value,
    pub(super) axis: usize,
    pub(super) state: StateFlow,
}

/// Matches a loop.
pub(super) fn find(mut body: Matcher<'_>, round: &Loop) -> Matched<DeltaLoop> {
    let block = body.graph.block(round.body);
    let is_check =
        |op: &Op| matches!(op, Op::Check(_)) && !op.numbers().into_iter().any(|number| mentions(number, round.index));
    body.nothing_else(|op| is_check(op) || matches!(op, Op::Write { .. }), MORE)?;
    let checks = block.nodes.iter().filter(|node| is_check(&node.op)).cloned().collect();
    let ([stacked], Some(result)) = (round.stacked.as_slice(), block.results.last()) else {
        return body.decline(RESULT);
    };
    let (state, carry, new) = state(&body, round)?;
    let (carry, new, result) = (body.trace(carry), body.trace(new), body.trace(*result));
    let ranks = [&carry, &result].map(|tensor| tensor.view.shape.len());
    body.ensure(ranks == [4, 3] && carry.view.dtype.is_float(), SHAPE)?;

    let [one, other] = body.operands(&new, Scalar::Binary(Binary::Add), None, LEARNT)?;
    let is_decay =
        |tensor: &Traced| body.peek::<2>(tensor, MUL, None).is_some_and(|pair| pair.iter().any(|x| x.is_same(&carry)));
    let (decayed, learnt) = if is_decay(&one) { (one, other) } else { (other, one) };
    body.ensure(is_decay(&decayed), LEARNT)?;
    let part = |body: &Matcher<'_>, operand: &Traced, axes: &[usize], why| all_tokens(body, round, operand, axes, why);
    let g = other_factor(&mut body, &decayed, &carry, DECAY)?;
    let g = part(&body, &g, &[0, 1], DECAY)?;
    let (key, differences) = split_factors(&mut body, &learnt, OUTER)?;
    let k = part(&body, &key, &[0, 1, 3], OUTER)?;
    let scaled = body.some(differences.without(3), OUTER)?;
    let (beta, differences) = split_factors(&mut body, &scaled, BETA)?;
    let beta = part(&body, &beta, &[0, 1], BETA)?;
    let [v, product] = body.operands(&differences, Scalar::Binary(Binary::Sub), None, DIFFERENCE)?;
    body.ensure(!body.is_inside(&v) && body.is_inside(&product), DIFFERENCE)?;
    let v = part(&body, &v, &[0, 1, 2], DIFFERENCE)?;
    let asked = summed_factor(&mut body, &product, &decayed, KEY)?;
    body.ensure(asked.is_same(&key), KEYS)?;
    let q = summed_factor(&mut body, &result, &new, QUERY)?;
    let q = part(&body, &q, &[0, 1, 3], QUERY)?;
    Ok(DeltaLoop { checks, operands: [q, k, v, g, beta], out: stacked.out, axis: stacked.axis, state })
}

const MUL: Scalar = Scalar::Binary(Binary::Mul);

/// The state, in a round, and after it.
fn state(body: &Matcher<'_>, round: &Loop) -> Matched<(StateFlow, Value, Value)> {
    let block = body.graph.block(round.body);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for node in &block.nodes {
        match node.op {
            // A read after a write is another value.
            Op::Read { out, state } => read.push((state, out, written.len())),
            Op::Write { state, x } => written.push((state, x)),
            _ => {}
        }
    }
    match (round.carried.as_slice(), read.as_slice(), written.last()) {
        ([Carried { init, param, out }], [], None) => {
            let new = body.some(block.results.first().copied(), CARRY)?;
            Ok((StateFlow::Carried { init: Traced::all_of(body.graph, *init), out: *out }, *param, new))
        }
        ([], [(state, held, 0)], Some((_, new))) if written.iter().all(|(other, _)| other == state) => {
            Ok((StateFlow::State { state: *state, held: *held }, *held, *new))
        }
        _ => body.decline(CARRY),
    }
}

/// The factor of a product that is not `one`.
fn other_factor(body: &mut Matcher<'_>, tensor: &Traced, one: &Traced, why: &'static str) -> Matched<Traced> {
    match body.operands(tensor, MUL, None, why)? {
        [a, b] if a.is_same(one) && !body.is_inside(&b) => Ok(b),
        [a, b] if b.is_same(one) && !body.is_inside(&a) => Ok(a),
        _ => body.decline(why),
    }
}

/// The factor that is not `one` of products that are summed over the last axis.
fn summed_factor(body: &mut Matcher<'_>, tensor: &Traced, one: &Traced, why: &'static str) -> Matched<Traced> {
    let Prim::Reduce { x, axes, fold: Fold::Sum, .. } = body.source(tensor, why)? else { return body.decline(why) };
    let is_whole = tensor.is_line(&Traced::all_of(body.graph, tensor.root));
    body.ensure(axes.as_slice() == [3] && is_whole, why)?;
    other_factor(body, &body.trace(*x), one, why)
}

/// The factors of a product: first the one from outside of the loop, then the one that the loop computes.
fn split_factors(body: &mut Matcher<'_>, tensor: &Traced, why: &'static str) -> Matched<(Traced, Traced)> {
    let [a, b] = body.operands(tensor, MUL, None, why)?;
    match (body.is_inside(&a), body.is_inside(&b)) {
        (false, true) => Ok((a, b)),
        (true, false) => Ok((b, a)),
        _ => body.decline(why),
    }
}

/// The tensor of all tokens that an operand of one token, with these axes, is a slice of. Tokens become the second axis.
fn all_tokens(body: &Matcher<'_>, round: &Loop, part: &Traced, axes: &[usize], why: &'static str) -> Matched<Traced> {
    let mut others = (0..part.view.shape.len()).rev().filter(|axis| !axes.contains(axis));
    let part = others.try_fold(part.clone(), Traced::without);
    let Traced { root, mut view } = body.some(part.filter(|part| part.view.shape.len() == axes.len()), why)?;
    let mut numbers = view.shape.iter().chain(&view.strides);
    let is_fixed = view.dtype.is_float() && !numbers.any(|number| mentions(number, round.index));
    let (offset, stride) = body.some(view.offset.linear_in(round.index).filter(|_| is_fixed), SLICE)?;
    view.offset = offset;
    view.shape.insert(1, round.count.clone());
    view.strides.insert(1, stride);
    Ok(Traced { root, view })
}

/// Returns `true` if a number depends on a host value.
fn mentions(number: &Dim, var: Var) -> bool {
    number.vars().any(|other| other == var)
}
