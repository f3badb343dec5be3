//! The steps of one token, recognised by what feeds what, from the result and the new state back to the old one.

use super::Round;
use super::body::{behind_casts, copy_of, input, is_float, settled, without_checks};
use crate::expr::{Binary, Scalar};
use crate::passes::branch::{Branch, Declined, Matched, origin};
use crate::passes::{Uses, tidy};
use crate::plan::{Block, BufferKind, Plan, PlanStep};
use crate::prim::{Fold, GatedDelta, Prim, View};

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
const ELSEWHERE: &str = "not fused: what it computes is used elsewhere too";

/// A loop that is the rule. The state is changed in the buffer that the loop carries it over in.
pub(super) struct Found {
    pub(super) rule: GatedDelta,
    /// Checks that the loop made, none of which depends on the token.
    pub(super) checks: Vec<PlanStep>,
}

/// The rule that a loop is.
pub(super) fn find(plan: &Plan, round: &Round) -> Matched<Found> {
    let at = origin(plan, round.block, round.step);
    let Some(whole) = plan.blocks.get(round.body) else { return Err(Declined { at, why: MORE }) };
    let (body, checks) = without_checks(whole, round.index, MORE)?;
    let body = settled(body);
    let mut branch = Branch::new(plan, &body, at);
    let (result, carry) = (result(&branch, &body, round)?, carry(&branch, &body)?);
    branch.ensure(carry.rank() == 4 && result.rank() == 3, SHAPE)?;

    let new = copied(&mut branch, carry, CARRY)?;
    let [one, other] = operands(&mut branch, new, Binary::Add, LEARNT)?;
    let is_decay = |view: &View| peek(&branch, view, Binary::Mul).is_some_and(|pair| pair.contains(&carry));
    let (decayed, learnt) = if is_decay(one) { (one, other) } else { (other, one) };
    branch.ensure(is_decay(decayed), LEARNT)?;
    let g = the_other(&mut branch, decayed, carry, DECAY)?;
    let g = part(&branch, spread(g, 3).and_then(|g| spread(&g, 2)), round, DECAY)?;
    let (key, differences) = inside_last(&mut branch, learnt, OUTER)?;
    let k = part(&branch, spread(key, 2), round, OUTER)?;
    let scaled = spread(differences, 3).map_or_else(|| branch.decline(OUTER), Ok)?;
    let (beta, differences) = inside_last(&mut branch, &scaled, BETA)?;
    let beta = part(&branch, three_axes(beta).and_then(|beta| spread(&beta, 2)), round, BETA)?;
    let [v, product] = operands(&mut branch, differences, Binary::Sub, DIFFERENCE)?;
    branch.ensure(branch.peek(v.buf).is_none() && branch.peek(product.buf).is_some(), DIFFERENCE)?;
    let v = part(&branch, three_axes(v), round, DIFFERENCE)?;
    let asked = the_other_of_sum(&mut branch, product, decayed, KEY)?;
    branch.ensure(is_same(asked, key), KEYS)?;
    let result_of = copied(&mut branch, result, RESULT)?;
    let q = the_other_of_sum(&mut branch, result_of, new, QUERY)?;
    let q = part(&branch, spread(q, 2), round, QUERY)?;
    let out = part(&branch, Some(result.clone()), round, RESULT)?;
    branch.nothing_else(MORE)?;

    let rule = GatedDelta { out, state_out: carry.clone(), q, k, v, g, beta, state: carry.clone() };
    alone(plan, round, &rule)?;
    Ok(Found { rule, checks })
}

fn writes(body: &Block) -> impl Iterator<Item = &View> {
    body.steps.iter().flat_map(|step| if let PlanStep::Device(prim) = step { prim.writes() } else { Vec::new() })
}

/// What is written at another place for each token.
fn result<'a>(branch: &Branch<'_>, body: &'a Block, round: &Round) -> Matched<&'a View> {
    let views: Vec<&View> = writes(body).filter(|view| tidy::mentions(&view.offset, round.index)).collect();
    if let [one] = views.as_slice() { Ok(one) } else { branch.decline(RESULT) }
}

/// What is read before it is written.
fn carry<'a>(branch: &Branch<'_>, body: &'a Block) -> Matched<&'a View> {
    let (mut read, mut carried) = (Vec::new(), Vec::new());
    for step in &body.steps {
        if let PlanStep::Device(prim) = step {
            read.extend(prim.reads().iter().map(|view| view.buf));
            carried.extend(prim.writes().into_iter().filter(|view| read.contains(&view.buf)));
        }
    }
    if let [one] = carried.as_slice() { Ok(one) } else { branch.decline(CARRY) }
}

/// The operands of the elementwise step that writes just this view, if that is this function of them, but for rounding.
fn peek<'a>(branch: &Branch<'a>, view: &View, op: Binary) -> Option<[&'a View; 2]> {
    let Prim::Map { out, ins, expr } = branch.peek(view.buf)? else { return None };
    let (function, [a, b, _]) = behind_casts(expr, expr.steps.len().checked_sub(1)?)?;
    let operand = |step: u16| ins.get(input(expr, usize::from(step))?);
    (*function == Scalar::Binary(op) && is_same_rows(out, view)).then_some([operand(a)?, operand(b)?])
}

/// Likewise; the step belongs to the pattern.
fn operands<'a>(branch: &mut Branch<'a>, view: &View, op: Binary, why: &'static str) -> Matched<[&'a View; 2]> {
    let found = peek(branch, view, op);
    branch.source(view, why)?;
    found.map_or_else(|| branch.decline(why), Ok)
}

/// What a copy into just this view shows.
fn copied<'a>(branch: &mut Branch<'a>, view: &View, why: &'static str) -> Matched<&'a View> {
    match copy_of(branch.whole(view, why)?) {
        Some((_, from)) => Ok(from),
        None => branch.decline(why),
    }
}

/// The other factor of a product with this one.
fn the_other<'a>(branch: &mut Branch<'a>, view: &View, one: &View, why: &'static str) -> Matched<&'a View> {
    match operands(branch, view, Binary::Mul, why)? {
        [a, b] if a == one && branch.peek(b.buf).is_none() => Ok(b),
        [a, b] if b == one && branch.peek(a.buf).is_none() => Ok(a),
        _ => branch.decline(why),
    }
}

/// The other factor of the products with this one that sums over the last axis are of.
fn the_other_of_sum<'a>(branch: &mut Branch<'a>, view: &View, one: &View, why: &'static str) -> Matched<&'a View> {
    let Prim::Reduce { out, x, axes, fold: Fold::Sum } = branch.source(view, why)? else { return branch.decline(why) };
    branch.ensure(axes.as_slice() == [3] && is_same_rows(out, view), why)?;
    the_other(branch, x, one, why)
}

/// The factors of a product: one from outside of the loop, and one that the loop computes.
fn inside_last<'a>(branch: &mut Branch<'a>, view: &View, why: &'static str) -> Matched<(&'a View, &'a View)> {
    let [a, b] = operands(branch, view, Binary::Mul, why)?;
    match (branch.peek(a.buf).is_some(), branch.peek(b.buf).is_some()) {
        (false, true) => Ok((a, b)),
        (true, false) => Ok((b, a)),
        _ => branch.decline(why),
    }
}

/// Whether two views show the same elements at the same places.
fn is_same(a: &View, b: &View) -> bool {
    let mut axes = a.shape.iter().zip(&b.shape).zip(a.strides.iter().zip(&b.strides));
    let is_same_axes = axes.all(|((size, other), strides)| size == other && (size.is(1) || strides.0 == strides.1));
    a.rank() == b.rank() && a.buf == b.buf && a.dtype == b.dtype && a.offset == b.offset && is_same_axes
}

/// Whether they do, with or without a last axis of size one.
fn is_same_rows(a: &View, b: &View) -> bool {
    if a.rank() == b.rank() {
        return is_same(a, b);
    }
    three_axes(a).zip(three_axes(b)).is_some_and(|(a, b)| is_same(&a, &b))
}

/// One element per batch, head and row, without a last axis of size one.
fn three_axes(view: &View) -> Option<View> {
    match view.shape.as_slice() {
        [_, _, _] => Some(view.clone()),
        [_, _, _, one] if one.is(1) => Some(view.with_axis_removed(3)),
        _ => None,
    }
}

/// Without an axis along which it shows the same element.
fn spread(view: &View, axis: usize) -> Option<View> {
    let is_spread = view.stride(axis).is(0) || view.shape.get(axis)?.is(1);
    (is_spread && axis < view.rank()).then(|| view.with_axis_removed(axis))
}

/// An operand, of which the loop sees the part of one token; or why it is none.
fn part(branch: &Branch<'_>, view: Option<View>, round: &Round, why: &'static str) -> Matched<View> {
    let view = view.map_or_else(|| branch.decline(why), Ok)?;
    over_tokens(&view, round).map_or_else(|| branch.decline(SLICE), Ok)
}

/// The whole of which the loop sees the part of one token: tokens are the second axis.
fn over_tokens(view: &View, round: &Round) -> Option<View> {
    let dims = view.shape.iter().chain(&view.strides);
    if !is_float(view.dtype) || dims.into_iter().any(|dim| tidy::mentions(dim, round.index)) {
        return None;
    }
    let (offset, stride) = tidy::linear(&view.offset, round.index)?;
    let mut whole = View { offset, ..view.with_axis_inserted(1) };
    whole.shape.iter_mut().skip(1).take(1).for_each(|size| *size = round.count.clone());
    whole.strides.iter_mut().skip(1).take(1).for_each(|old| *old = stride.clone());
    Some(whole)
}

/// That nothing else uses what the loop computes but the result and the state.
fn alone(plan: &Plan, round: &Round, rule: &GatedDelta) -> Matched<()> {
    let (uses, inside) = (Uses::of(plan), Uses::of_blocks(plan, &[round.body]));
    let Some(body) = plan.blocks.get(round.body) else { return Ok(()) };
    for (step, at) in body.steps.iter().zip(&body.origin) {
        let PlanStep::Device(prim) = step else { continue };
        for view in prim.writes() {
            let kind = plan.buffers.get(view.buf.0 as usize).map(|buffer| &buffer.kind);
            let is_inside = matches!(kind, Some(BufferKind::Temporary))
                && uses.reads(view.buf) == inside.reads(view.buf)
                && uses.writes(view.buf) == inside.writes(view.buf);
            let is_result = [&rule.out, &rule.state_out].iter().any(|result| result.buf == view.buf);
            if !(is_inside || is_result) {
                return Err(Declined { at: *at, why: ELSEWHERE });
            }
        }
    }
    Ok(())
}
