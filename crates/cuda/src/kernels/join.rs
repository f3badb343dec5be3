//! A norm or an elementwise function whose only reader is the product of the next step is computed by that product's launch.
//!
//! The product then runs a step early. Nothing that it reads changes in between, and what it writes is free: memory that only becomes
//! free with the step before it, which is that step's operands, is told apart by addresses.

use crate::kernels::product::Factors;
use crate::kernels::quant_row::quant_row;
use crate::program::FIRST_OWN;
use crate::step::Step;
use ptero_backend::{DeviceStep, Fault};
use ptero_plan::bound::BoundView;
use ptero_plan::plan::{BufferKind, PlanStep};
use ptero_plan::prim::{Prim, ViewId};
use std::ops::Range;

/// Launches the product of the next step together with this one, if both are one launch, and notes that it is done. Returns its result.
pub(crate) fn join_product(step: &mut Step<'_>, at: &DeviceStep<'_>) -> Result<Option<ViewId>, Fault> {
    let (block, index) = at.at;
    let next = step.program.plan.blocks.get(block).and_then(|block| block.steps.get(index + 1));
    let Some(PlanStep::Device(Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue })) = next else {
        return Ok(None);
    };
    if !matches!(at.prim, Prim::Norm { .. } | Prim::Map { .. }) || rhs.is_some() || !can_join(step, at.prim, *x, *out) {
        return Ok(None);
    }
    let factors = Factors::Quantized { x: *x, w, transpose: *transpose };
    let joined = quant_row(step, *out, factors, (lhs, rhs), epilogue, Some(at.prim))?;
    if joined {
        step.scratch.note_joined(step.memory.address(), (block, index + 1));
    }
    Ok(joined.then_some(*out))
}

/// Returns `true` if `x` is the result of a step and nothing else reads it, and the product does not write where the step reads.
fn can_join(step: &Step<'_>, prim: &Prim, x: ViewId, out: ViewId) -> bool {
    let (plan, from, to) = (&step.program.plan, step.shape(*prim.out()), step.shape(x));
    let is_temporary = |view: &BoundView| matches!(plan.buffer(view.buf).kind, BufferKind::Temporary);
    let result = step.shape(out);
    from == to
        && is_temporary(to)
        && step.program.mentions(to.buf) == 2
        && step.program.site(result.buf).region < FIRST_OWN
        && step.is_fixed(x)
        && prim.reads().into_iter().all(|view| are_apart(memory_of(step, step.shape(view)), memory_of(step, result)))
}

/// The addresses of the buffer of a view; `None` if it has none.
fn memory_of(step: &Step<'_>, view: &BoundView) -> Option<Range<u64>> {
    let start = step.memory.address_of(step.program, &BoundView { offset: 0, ..view.clone() }).ok()?;
    Some(start..start + step.bound.length(view.buf) as u64)
}

fn are_apart(a: Option<Range<u64>>, b: Option<Range<u64>>) -> bool {
    a.zip(b).is_some_and(|(a, b)| a.end <= b.start || b.end <= a.start)
}
