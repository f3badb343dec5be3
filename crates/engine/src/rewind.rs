//! Whether a state may go back to an earlier position: its tensors must have a place of their own for every position, as
//! key-value caches do. Recurrent state has none, and rings write over theirs.

use ptero_plan::dim::Dim;
use ptero_plan::plan::{BufferKind, HostOp, Input, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View};

/// Whether every write into state goes to a place that follows the position, at equal distances over the whole context.
pub(crate) fn keeps_positions(plan: &Plan, positions: Option<usize>, context: usize) -> bool {
    let Some(Input::Tensor { buf: positions, .. }) = positions.and_then(|input| plan.inputs.get(input)) else {
        return false;
    };
    let Ok(last) = i64::try_from(context.saturating_sub(1)) else { return false };
    let probes: Vec<(i64, Vec<i64>)> = [0, 1, 2, last / 2, last - 1, last]
        .into_iter()
        .filter(|at| (0..=last).contains(at))
        .map(|at| (at, host_values(plan, Some(*positions), at)))
        .collect();
    let follows = |view: &View| follows(&view.offset, &probes);
    plan.blocks.iter().enumerate().all(|(block, steps)| {
        let writes =
            steps.steps.iter().filter_map(|step| if let PlanStep::Device(prim) = step { Some(prim) } else { None });
        writes.flat_map(|prim| prim.writes().into_iter().map(move |view| (prim, view))).all(|(prim, view)| {
            // Branches and loops are not followed.
            !is_state(plan, view.buf) || block == plan.main && (follows(view) || goes_by(prim, *positions))
        })
    })
}

fn is_state(plan: &Plan, buf: Buf) -> bool {
    matches!(plan.buffers.get(buf.0 as usize).map(|buffer| &buffer.kind), Some(BufferKind::State))
}

/// Whether the offset grows evenly with the position.
fn follows(offset: &Dim, probes: &[(i64, Vec<i64>)]) -> bool {
    let [(_, first), (_, second), ..] = probes else { return false };
    let start = offset.eval(first);
    let step = offset.eval(second) - start;
    step > 0 && probes.iter().all(|(at, values)| offset.eval(values) == start + at * step)
}

/// Whether it is a scatter to the places that the positions name.
fn goes_by(prim: &Prim, positions: Buf) -> bool {
    match prim {
        Prim::Scatter { axes, add: false, .. } => {
            axes.iter().any(|axis| axis.index.as_ref().is_some_and(|index| index.buf == positions))
        }
        _ => false,
    }
}

/// The host values of a call with one token at that position, as far as the main block computes them by itself.
pub(crate) fn host_values(plan: &Plan, positions: Option<Buf>, position: i64) -> Vec<i64> {
    let mut values = vec![0; plan.vars as usize];
    let set = |values: &mut Vec<i64>, var: u32, value: i64| {
        values.get_mut(var as usize).into_iter().for_each(|place| *place = value);
    };
    for input in &plan.inputs {
        if let Input::Tensor { shape, .. } = input {
            shape.iter().filter_map(Dim::as_var).for_each(|var| set(&mut values, var.0, 1));
        }
    }
    let steps = plan.blocks.get(plan.main).map_or(&[][..], |block| block.steps.as_slice());
    for step in steps {
        let PlanStep::Host { out, op } = step else { continue };
        let of = |dim: &Dim| dim.eval(&values);
        let value = match op {
            HostOp::Item(view) if Some(view.buf) == positions => position,
            HostOp::Item(_) => 0,
            HostOp::Copy(dim) => of(dim),
            HostOp::FloorDiv(a, b) => of(a).checked_div_euclid(of(b)).unwrap_or(0),
            HostOp::Mod(a, b) => of(a).checked_rem_euclid(of(b)).unwrap_or(0),
            HostOp::Min(a, b) => of(a).min(of(b)),
            HostOp::Max(a, b) => of(a).max(of(b)),
            HostOp::Clamp(a, b) => of(a).clamp(0, of(b).max(0)),
            HostOp::ClampBackward(a, b) => of(a).clamp(-1, of(b).max(0) - 1),
        };
        set(&mut values, out.0, value);
    }
    values
}
