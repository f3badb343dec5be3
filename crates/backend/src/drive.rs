//! Walks the blocks of a plan: what every device that runs step by step does the same way.

use crate::error::{Fault, Place, Result};
use crate::reference::{floor_div, floor_mod};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::plan::{Block, Check, HostOp, Plan, PlanStep};
use ptero_plan::prim::{Prim, View};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a device does with a single step.
pub trait Steps {
    /// Runs a primitive: that of this block and step.
    fn device(&mut self, prim: &Prim, at: (usize, usize)) -> Result<(), Fault>;

    /// The one element of an integer or bool tensor, cut to 32 bits and sign-extended.
    fn item(&mut self, view: &View) -> Result<i64, Fault>;

    /// The host values, by number.
    fn values(&mut self) -> &mut [i64];
}

/// Runs a block and those it calls. [`crate::check_plan`] has seen that it exists and that calls end. Between two steps it
/// looks whether it is to stop.
pub fn drive(plan: &Plan, index: usize, steps: &mut impl Steps, cancelled: &AtomicBool) -> Result<()> {
    let Some(block) = plan.blocks.get(index) else { return Ok(()) };
    for (at, step) in block.steps.iter().enumerate() {
        let here = |fault: Fault| fault.at(place(index, block, at, step));
        if cancelled.load(Ordering::Relaxed) {
            return Err(here(Fault::Cancelled));
        }
        match step {
            PlanStep::Device(prim) => steps.device(prim, (index, at)).map_err(here)?,
            PlanStep::Host { out, op } => {
                let value = host(steps, op).map_err(here)?;
                set(steps.values(), *out, value);
            }
            PlanStep::Check(check) => hold(check, steps.values()).map_err(here)?,
            PlanStep::If { condition, then, otherwise } => {
                let chosen = if condition.eval(steps.values()) != 0 { *then } else { *otherwise };
                drive(plan, chosen, steps, cancelled)?;
            }
            PlanStep::Loop { index, count, body } => {
                for turn in 0..count.eval(steps.values()) {
                    set(steps.values(), *index, turn);
                    drive(plan, *body, steps, cancelled)?;
                }
            }
        }
    }
    Ok(())
}

fn set(values: &mut [i64], var: Var, value: i64) {
    values.iter_mut().skip(var.0 as usize).take(1).for_each(|slot| *slot = value);
}

/// Where a step stands.
pub(crate) fn place(block_index: usize, block: &Block, step_index: usize, step: &PlanStep) -> Place {
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

fn host(steps: &mut impl Steps, op: &HostOp) -> Result<i64, Fault> {
    let two = |steps: &mut _, a: &Dim, b: &Dim| (eval(steps, a), eval(steps, b));
    Ok(match op {
        HostOp::Item(view) => steps.item(view)?,
        HostOp::Copy(dim) => eval(steps, dim),
        HostOp::FloorDiv(a, b) => {
            let (a, b) = two(steps, a, b);
            floor_div(a, b).ok_or(Fault::DividedByZero(a))?
        }
        HostOp::Mod(a, b) => {
            let (a, b) = two(steps, a, b);
            floor_mod(a, b).ok_or(Fault::DividedByZero(a))?
        }
        HostOp::Min(a, b) => eval(steps, a).min(eval(steps, b)),
        HostOp::Max(a, b) => eval(steps, a).max(eval(steps, b)),
        HostOp::Clamp(at, size) => {
            let (at, size) = two(steps, at, size);
            from_start(at, size).min(size).max(0)
        }
        HostOp::ClampBackward(at, size) => {
            let (at, size) = two(steps, at, size);
            from_start(at, size).min(size.saturating_sub(1)).max(-1)
        }
    })
}

fn eval(steps: &mut impl Steps, dim: &Dim) -> i64 {
    dim.eval(steps.values())
}

/// A place along an axis; negative ones count from the end.
fn from_start(at: i64, size: i64) -> i64 {
    if at < 0 { at.saturating_add(size) } else { at }
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
