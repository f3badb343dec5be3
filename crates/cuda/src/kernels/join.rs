//! Steps that one launch does together: a step, and those after it that read what it writes.
//!
//! Later steps then run early. Nothing that they read changes in between, and what they write is free: memory is not used again for
//! [`MOST_JOINED`] steps. What has no place in the arena is told apart by addresses.

use crate::kernels::conv::conv_line;
use crate::kernels::gated_delta::gated_delta;
use crate::kernels::norm::norm;
use crate::kernels::product::Factors;
use crate::kernels::quant_row::quant_row;
use crate::kernels::route::route;
use crate::program::FIRST_OWN;
use crate::step::Step;
use ptero_backend::{Conv, DeviceStep, Fault};
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Expr, Scalar};
use ptero_plan::plan::{BufferKind, PlanStep};
use ptero_plan::prim::{GatedDelta, Prim, ViewId};
use ptero_tensor::DType;
use std::ops::Range;

/// The most steps that a launch does after its own.
pub(crate) const MOST_JOINED: usize = 4;

/// Launches a step together with steps after it, if they are one launch, and notes that these are done. Returns what they write:
/// nothing if the step is to be launched alone.
pub(crate) fn join(step: &mut Step<'_>, at: &DeviceStep<'_>) -> Result<Vec<ViewId>, Fault> {
    if matches!(at.prim, Prim::Softmax { .. }) {
        let written = route(step, at)?;
        let steps = if written.is_empty() { 0 } else { MOST_JOINED };
        note(step, at, steps);
        return Ok(written);
    }
    let program = std::sync::Arc::clone(&step.program.plan);
    let (block, index) = at.at;
    let Some(PlanStep::Device(following)) = program.blocks.get(block).and_then(|block| block.steps.get(index + 1))
    else {
        return Ok(Vec::new());
    };
    let out = *following.out();
    let joined = match (at.prim, following) {
        // A norm or a function that only a product reads is computed by the product.
        (Prim::Norm { .. } | Prim::Map { .. }, Prim::QuantMatMul { x, w, transpose, lhs, rhs, epilogue, .. }) => {
            let factors = Factors::Quantized { x: *x, w, transpose: *transpose };
            can_join(step, at.prim, *x, out) && quant_row(step, out, factors, (lhs, rhs), epilogue, Some(at.prim))?
        }
        // A norm computes in f32, so its operand need not become f32 before.
        (Prim::Map { ins, expr, .. }, Prim::Norm { x, weight, bias, eps, kind, .. })
            if is_cast(expr).is_some_and(|[from, to]| matches!(from, DType::F16 | DType::Bf16) && to == DType::F32) =>
        {
            let can = can_join(step, at.prim, *x, out);
            if let (true, Some(narrow)) = (can, ins.first()) {
                norm(step, out, *narrow, (*weight, *bias), *eps, *kind)?;
            }
            can
        }
        // The rule computes in f32, and can store its result in another type at once.
        (Prim::GatedDelta(rule), Prim::Map { ins, expr, .. })
            if is_cast(expr).is_some_and(|[from, to]| from == DType::F32 && to.is_float()) =>
        {
            let can = ins.first().is_some_and(|x| can_join(step, at.prim, *x, out));
            if can {
                gated_delta(step, &GatedDelta { out, ..GatedDelta::clone(rule) })?;
            }
            can
        }
        // A function of the results of a filter.
        (Prim::Conv { x, w, stride, padding, dilation, groups, transposed, .. }, Prim::Map { ins, expr, .. }) => {
            let conv = Conv { stride, padding, dilation, groups: *groups, transposed: *transposed };
            let [result] = *ins.as_slice() else { return Ok(Vec::new()) };
            can_join(step, at.prim, result, out) && conv_line(step, [out, *x, *w], &conv, Some(expr))?
        }
        _ => false,
    };
    note(step, at, joined.into());
    Ok(if joined { vec![out] } else { Vec::new() })
}

/// Notes that the steps after one are done.
fn note(step: &mut Step<'_>, at: &DeviceStep<'_>, steps: usize) {
    let (block, index) = at.at;
    (1..=steps).for_each(|further| step.scratch.note_joined(step.memory.address(), (block, index + further)));
}

/// A step further on in the block.
pub(crate) fn next<'a>(step: &'a Step<'_>, at: &DeviceStep<'_>, further: usize) -> Option<&'a Prim> {
    let (block, index) = at.at;
    match step.program.plan.blocks.get(block)?.steps.get(index + further)? {
        PlanStep::Device(prim) => Some(prim),
        _ => None,
    }
}

/// Returns `true` if this many steps name a temporary, and no others.
pub(crate) fn is_alone(step: &Step<'_>, view: ViewId, mentions: u32) -> bool {
    let buf = step.shape(view).buf;
    matches!(step.program.plan.buffer(buf).kind, BufferKind::Temporary) && step.program.mentions(buf) == mentions
}

/// The types that a function converts from and to, if it does nothing else.
fn is_cast(expr: &Expr) -> Option<[DType; 2]> {
    match expr.steps.as_slice() {
        [from, to] if from.op == Scalar::Load(0) && to.op == Scalar::Cast && to.args[0] == 0 => {
            Some([from.dtype, to.dtype])
        }
        _ => None,
    }
}

/// Returns `true` if `x` is the result of a step and nothing else reads it, and the next does not write where the step reads.
fn can_join(step: &Step<'_>, prim: &Prim, x: ViewId, out: ViewId) -> bool {
    let result = step.shape(out);
    step.shape(*prim.out()) == step.shape(x)
        && is_alone(step, x, 2)
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
