//! Steps that one launch does together: a step, and those after it that read what it writes.
//!
//! Later steps then run early. Nothing that they read changes in between, and what they write is free: memory of the arena is not used
//! again for [`MOST_JOINED`] steps, and other memory that the first step reads is told apart by addresses.

use crate::kernels::products::product::{Before, Factors};
use crate::kernels::quant::quant_row::quant_row;
use crate::kernels::reductions::norm::norm;
use crate::kernels::reductions::route::route;
use crate::kernels::reductions::sum_rows::{Sum, sum_rows};
use crate::kernels::state::conv::conv_line;
use crate::kernels::state::conv_state::conv_state;
use crate::kernels::state::gated_delta::gated_delta;
use crate::program::FIRST_OWN;
use crate::step::Step;
use ptero_backend::{Conv, DeviceStep, Fault};
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Expr, Scalar};
use ptero_plan::plan::{BufferKind, Plan, PlanStep};
use ptero_plan::prim::{Fold, GatedDelta, Prim, ViewId};
use ptero_tensor::DType;
use std::ops::Range;

/// The most steps that a launch does after its own.
pub(crate) const MOST_JOINED: usize = 4;

/// Launches a step together with steps after it, if they are one launch. Returns the number of those after it: 0 if nothing was launched.
pub(crate) fn join(step: &mut Step<'_>, at: &DeviceStep<'_>) -> Result<usize, Fault> {
    if matches!(at.prim, Prim::Softmax { .. }) {
        return Ok(if route(step, at) { MOST_JOINED } else { 0 });
    }
    if matches!(at.prim, Prim::Map { .. }) && conv_state(step, at) {
        return Ok(MOST_JOINED);
    }
    let Some(following) = next(&step.program.plan, at, 1) else { return Ok(0) };
    let out = *following.out();
    let is_joined = match (at.prim, following) {
        // A norm or a function that only a product reads is computed by the product.
        (Prim::Norm { .. } | Prim::Map { .. }, Prim::QuantMatMul { x, w, transpose, lhs, rhs, epilogue, .. }) => {
            let factors = Factors::Quantized { x: *x, w, transpose: *transpose };
            (can_join(step, at.prim, (following, *x)) || can_join_row(step, at.prim, (following, *x)))
                && quant_row(step, out, factors, (lhs, rhs), epilogue, Before::Joined(at.prim))?
        }
        // A norm computes in f32, so its operand need not become f32 before.
        (Prim::Map { ins, expr, .. }, Prim::Norm { x, weight, bias, eps, kind, .. }) => match *ins.as_slice() {
            [narrow] if matches!(cast(expr), Some([_, DType::F32])) && can_join(step, at.prim, (following, *x)) => {
                norm(step, out, narrow, (*weight, *bias), *eps, *kind)?;
                true
            }
            _ => false,
        },
        // A sum of few rows that a function computes.
        (Prim::Map { ins, expr, .. }, Prim::Reduce { x, axes, fold: Fold::Sum, .. }) => {
            let sum = Sum { x: *x, before: (ins, expr), axes, out, then: None };
            if !can_join(step, at.prim, (following, *x)) {
                return Ok(0);
            }
            if let Some(then) = follows_sum(step, at, out)
                && sum_rows(step, &Sum { out: then.out, then: Some((then.ins, then.at, then.expr)), ..sum })
            {
                return Ok(2);
            }
            sum_rows(step, &sum)
        }
        // The rule computes in f32, and can store its result in another type at once.
        (Prim::GatedDelta(rule), Prim::Map { ins, expr, .. }) => match *ins.as_slice() {
            [wide] if matches!(cast(expr), Some([DType::F32, _])) && can_join(step, at.prim, (following, wide)) => {
                gated_delta(step, &GatedDelta { out, ..GatedDelta::clone(rule) });
                true
            }
            _ => false,
        },
        // A function of the results of a filter.
        (Prim::Conv { x, w, stride, padding, dilation, groups, transposed, .. }, Prim::Map { ins, expr, .. }) => {
            let conv = Conv { stride, padding, dilation, groups: *groups, transposed: *transposed };
            let is_read = matches!(*ins.as_slice(), [result] if can_join(step, at.prim, (following, result)));
            is_read && conv_line(step, [out, *x, *w], &conv, Some(expr))?
        }
        _ => false,
    };
    Ok(is_joined.into())
}

/// A function of a sum.
struct OfSum<'a> {
    out: ViewId,
    ins: &'a [ViewId],
    /// Which operand the sum is.
    at: usize,
    expr: &'a Expr,
}

/// The function after a sum, if nothing else reads the sum and both can be done early.
fn follows_sum<'a>(step: &Step<'a>, at: &DeviceStep<'_>, sum: ViewId) -> Option<OfSum<'a>> {
    let following = next(&step.program.plan, at, 2)?;
    let Prim::Map { out, ins, expr } = following else { return None };
    let (result, all) = (step.shape(sum), step.shape(*out));
    let is_sum = |view: &ViewId| {
        let read = step.shape(*view);
        let is_same = (read.buf, read.dtype, read.offset) == (result.buf, result.dtype, result.offset);
        is_same && read.is_contiguous() && result.is_contiguous() && read.count() == result.count()
    };
    // A thread reads the operands of an element before it stores it, but not those of others.
    let is_apart =
        |view: &ViewId| step.shape(*view) == all || are_apart(memory_of(step, step.shape(*view)), memory_of(step, all));
    let operand = ins.iter().position(is_sum)?;
    let fits = is_alone(step, sum, 2)
        && is_known(step, following)
        && is_early(step, at.prim, *out)
        && ins.iter().all(is_apart)
        && all.shape.last() == result.shape.last();
    fits.then_some(OfSum { out: *out, ins, at: operand, expr })
}

/// A primitive further on in the block.
pub(crate) fn next<'a>(plan: &'a Plan, at: &DeviceStep<'_>, further: usize) -> Option<&'a Prim> {
    let (block, index) = at.at;
    match plan.blocks.get(block)?.steps.get(index + further)? {
        PlanStep::Device(prim) => Some(prim),
        PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => {
            None
        }
    }
}

/// The float types that a function converts from and to, if it does nothing else.
fn cast(expr: &Expr) -> Option<[DType; 2]> {
    match expr.steps.as_slice() {
        [from, to]
            if from.op == Scalar::Load(0) && to.op == Scalar::Cast && from.dtype.is_float() && to.dtype.is_float() =>
        {
            Some([from.dtype, to.dtype])
        }
        _ => None,
    }
}

/// Returns `true` if this many steps name a temporary, and no others.
pub(crate) fn is_alone(step: &Step<'_>, view: ViewId, mentions: u32) -> bool {
    let buf = step.shape(view).buf;
    matches!(step.program.plan.buffer(buf).kind, BufferKind::Temporary) && step.program.mentions(buf) == mentions
}

/// Returns `true` if `x` is the result of a step, and the next step can do both.
fn can_join(step: &Step<'_>, prim: &Prim, (next, x): (&Prim, ViewId)) -> bool {
    step.shape(*prim.out()) == step.shape(x) && is_read_once(step, prim, (next, x))
}

/// As [`can_join`], for a function whose results `x` has as one row, all of them in order.
fn can_join_row(step: &Step<'_>, prim: &Prim, (next, x): (&Prim, ViewId)) -> bool {
    let (result, row) = (step.shape(*prim.out()), step.shape(x));
    let is_whole = row.shape.last().is_some_and(|length| *length == result.count() && *length == row.count());
    let is_same = (row.buf, row.dtype, row.offset) == (result.buf, result.dtype, result.offset);
    let are_in_order = row.is_contiguous() && result.is_contiguous();
    matches!(prim, Prim::Map { .. }) && is_whole && is_same && are_in_order && is_read_once(step, prim, (next, x))
}

/// Returns `true` if nothing but the next step reads what a step writes, and that may run early.
fn is_read_once(step: &Step<'_>, prim: &Prim, (next, x): (&Prim, ViewId)) -> bool {
    let are_known = step.is_fixed(*prim.out()) && is_known(step, next);
    are_known && is_alone(step, x, 2) && is_early(step, prim, *next.out())
}

/// Returns `true` if all numbers of the views of a primitive are known early, and stay when launches are repeated.
pub(crate) fn is_known(step: &Step<'_>, prim: &Prim) -> bool {
    prim.reads().into_iter().chain(prim.writes().into_iter().copied()).all(|view| step.is_fixed(view))
}

/// Returns `true` if the launch of a step may write the result of a later one: its memory exists by then, and the step does not read it.
pub(crate) fn is_early(step: &Step<'_>, prim: &Prim, out: ViewId) -> bool {
    let result = step.shape(out);
    step.program.site(result.buf).region < FIRST_OWN
        && prim.reads().into_iter().all(|view| are_apart(memory_of(step, step.shape(view)), memory_of(step, result)))
}

/// The addresses of the buffer of a view; `None` if it has none.
pub(crate) fn memory_of(step: &Step<'_>, view: &BoundView) -> Option<Range<u64>> {
    let start = step.memory.address_of(step.program, &BoundView { offset: 0, ..view.clone() }).ok()?;
    Some(start..start + step.bound.length(view.buf) as u64)
}

fn are_apart(a: Option<Range<u64>>, b: Option<Range<u64>>) -> bool {
    a.zip(b).is_some_and(|(a, b)| a.end <= b.start || b.end <= a.start)
}
