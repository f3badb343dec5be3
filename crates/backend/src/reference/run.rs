//! Walks the blocks of a plan.

use super::attention::{Attention, attention};
use super::conv::{Conv, conv};
use super::gated_delta::gated_delta;
use super::index::{cumsum, gather, scatter, sort};
use super::map::map;
use super::matmul::{dequantize, matmul, quant_matmul};
use super::memory::Memory;
use super::norm::{Rope, norm, rope, softmax};
use super::random::random_bits;
use super::reduce::{arg_reduce, reduce};
use super::scalar::{floor_div, floor_mod};
use crate::error::{Fault, Place, Result};
use ptero_plan::dim::Dim;
use ptero_plan::plan::{Block, Check, HostOp, PlanStep};
use ptero_plan::prim::{Prim, View};

/// Runs a block and those it calls. `check` has seen that it exists and that calls end.
pub(super) fn run(memory: &mut Memory, index: usize) -> Result<()> {
    let plan = memory.plan();
    let Some(block) = plan.blocks.get(index) else { return Ok(()) };
    for (at, step) in block.steps.iter().enumerate() {
        match step {
            PlanStep::Device(prim) => device(memory, prim),
            PlanStep::Host { out, op } => host(memory, op).map(|value| memory.set(*out, value)),
            PlanStep::Check(check) => hold(check, &memory.values),
            PlanStep::If { condition, then, otherwise } => {
                let chosen = if condition.eval(&memory.values) != 0 { *then } else { *otherwise };
                run(memory, chosen)?;
                Ok(())
            }
            PlanStep::Loop { index, count, body } => {
                for turn in 0..count.eval(&memory.values) {
                    memory.set(*index, turn);
                    run(memory, *body)?;
                }
                Ok(())
            }
        }
        .map_err(|fault| fault.at(place(index, block, at, step)))?;
    }
    Ok(())
}

/// Where a step stands.
pub(super) fn place(block_index: usize, block: &Block, step_index: usize, step: &PlanStep) -> Place {
    let name = match step {
        PlanStep::Device(prim) => prim.name(),
        PlanStep::Host { op, .. } => match op {
            HostOp::Item(_) => "item",
            HostOp::Copy(_) => "copy",
            HostOp::FloorDiv(..) => "floor-div",
            HostOp::Mod(..) => "mod",
            HostOp::Min(..) => "min",
            HostOp::Max(..) => "max",
            HostOp::Clamp(..) => "clamp",
            HostOp::ClampBackward(..) => "clamp-backward",
        },
        PlanStep::Check(_) => "check",
        PlanStep::If { .. } => "if",
        PlanStep::Loop { .. } => "loop",
    };
    Place::Step { block: block_index, step: step_index, origin: block.origin.get(step_index).copied(), name }
}

fn device(memory: &mut Memory, prim: &Prim) -> Result<(), Fault> {
    // What has no room must not be computed: it may be as large as a plan can say.
    for view in prim.writes() {
        memory.target(view)?;
    }
    match prim {
        Prim::Map { out, ins, expr } => map(memory, out, ins, expr),
        Prim::Reduce { out, x, axes, fold } => reduce(memory, out, x, axes, *fold),
        Prim::ArgReduce { out, x, axis, largest } => arg_reduce(memory, out, x, *axis, *largest),
        Prim::Softmax { out, x, axis } => softmax(memory, out, x, *axis),
        Prim::Norm { out, x, weight, bias, eps, kind } => {
            norm(memory, out, x, (weight.as_ref(), bias.as_ref()), *eps, *kind)
        }
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(memory, out, x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { out, q, k, v, mask, causal, window, scale } => {
            let (mask, causal, window, scale) = (mask.as_ref(), *causal, *window, *scale);
            attention(memory, out, &Attention { q, k, v, mask, causal, window, scale })
        }
        Prim::MatMul { out, a, b, lhs, rhs } => matmul(memory, out, a, b, (lhs, rhs)),
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs } => quant_matmul(memory, out, x, w, *transpose, (lhs, rhs)),
        Prim::Dequantize { out, w } => dequantize(memory, out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            conv(memory, out, x, w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::Gather { out, x, axes } => gather(memory, out, x, axes),
        Prim::Scatter { out, updates, axes, add } => scatter(memory, out, updates, axes, *add),
        Prim::Sort { out, x, axis, indices } => sort(memory, out, x, *axis, *indices),
        Prim::Cumsum { out, x, axis, reverse, inclusive } => cumsum(memory, out, x, *axis, (*reverse, *inclusive)),
        Prim::GatedDelta(rule) => gated_delta(memory, rule),
        Prim::RandomBits { out, seed } => random_bits(memory, out, seed.as_ref()),
    }
}

fn host(memory: &Memory, op: &HostOp) -> Result<i64, Fault> {
    let eval = |dim: &Dim| dim.eval(&memory.values);
    match op {
        HostOp::Item(view) => item(memory, view),
        HostOp::Copy(dim) => Ok(eval(dim)),
        HostOp::FloorDiv(a, b) => floor_div(eval(a), eval(b)).ok_or(Fault::DividedByZero(eval(a))),
        HostOp::Mod(a, b) => floor_mod(eval(a), eval(b)).ok_or(Fault::DividedByZero(eval(a))),
        HostOp::Min(a, b) => Ok(eval(a).min(eval(b))),
        HostOp::Max(a, b) => Ok(eval(a).max(eval(b))),
        HostOp::Clamp(at, size) => Ok(from_start(eval(at), eval(size)).min(eval(size)).max(0)),
        HostOp::ClampBackward(at, size) => {
            Ok(from_start(eval(at), eval(size)).min(eval(size).saturating_sub(1)).max(-1))
        }
    }
}

/// A place along an axis; negative ones count from the end.
fn from_start(at: i64, size: i64) -> i64 {
    if at < 0 { at.saturating_add(size) } else { at }
}

#[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
fn item(memory: &Memory, view: &View) -> Result<i64, Fault> {
    let mut numbers = memory.tensor(view)?.numbers();
    match (numbers.next(), numbers.next()) {
        (Some(number), None) => Ok(i64::from(number.int() as i32)),
        (None, _) | (_, Some(_)) => Err(Fault::Contract("an item is the only element of its tensor")),
    }
}

fn hold(check: &Check, values: &[i64]) -> Result<(), Fault> {
    match check {
        Check::Equal(left, right, what) => {
            let (left, right) = (left.eval(values), right.eval(values));
            if left == right { Ok(()) } else { Err(Fault::Differ { what, left, right }) }
        }
        Check::Within { value, low, high, what } => {
            let (value, low, high) = (value.eval(values), low.eval(values), high.eval(values));
            if (low..=high).contains(&value) { Ok(()) } else { Err(Fault::NotWithin { what, value, low, high }) }
        }
    }
}
