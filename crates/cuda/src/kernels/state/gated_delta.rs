//! The gated delta rule: `gated_delta.cu`, and of one token `gated_delta_row.cu`.

use crate::kernels::rows::{Stacked, stacked};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_plan::prim::GatedDelta;

pub(crate) static GATED_DELTA: Part = part!("gated_delta", "GatedDeltaArgs");
pub(crate) static GATED_DELTA_ROW: Part = part!("gated_delta_row", "GatedDeltaRowArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct GatedDeltaArgs {
    launch: Launch,
    out: ViewArg,
    state_out: ViewArg,
    q: ViewArg,
    k: ViewArg,
    v: ViewArg,
    g: ViewArg,
    beta: ViewArg,
    state: ViewArg,
}

const _: () = assert!(size_of::<GatedDeltaArgs>() == 1232, "the layout of `GatedDeltaArgs` in gated_delta.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct GatedDeltaRowArgs {
    launch: Launch,
    out: Stacked,
    state_out: Stacked,
    q: Stacked,
    k: Stacked,
    v: Stacked,
    g: Stacked,
    beta: Stacked,
    state: Stacked,
    heads: u32,
    heads_per_group: u32,
    width: u32,
    unused: u32,
}

const _: () = assert!(size_of::<GatedDeltaRowArgs>() == 288, "the layout of `GatedDeltaRowArgs` in gated_delta_row.cu");

const THREADS: u32 = 128;
/// Threads of a row of a state.
const STRANDS: usize = 16;

pub(crate) fn gated_delta(step: &mut Step<'_>, rule: &GatedDelta) {
    let state = step.shape(rule.state);
    let length = state.size(3);
    let defines = [
        ("Q", step.tag(rule.q)),
        ("K", step.tag(rule.k)),
        ("V", step.tag(rule.v)),
        ("G", step.tag(rule.g)),
        ("BETA", step.tag(rule.beta)),
        ("STATE", step.tag(rule.state)),
        ("STATE_OUT", step.tag(rule.state_out)),
        ("OUT", step.tag(rule.out)),
        ("DK", &length.to_string()),
    ];
    let variant = Variant { defines: &defines, generated: "" };
    if let Some((args, grid)) = row_arguments(step, rule) {
        return step.run_part(&GATED_DELTA_ROW, variant, grid, &args);
    }
    let args = GatedDeltaArgs {
        launch: step.launch(),
        out: step.view(rule.out),
        state_out: step.view(rule.state_out),
        q: step.view(rule.q),
        k: step.view(rule.k),
        v: step.view(rule.v),
        g: step.view(rule.g),
        beta: step.view(rule.beta),
        state: step.view(rule.state),
    };
    let rows = state.count() / length.max(1);
    let grid = step.grid(rows, THREADS as usize / STRANDS, THREADS);
    step.run_part(&GATED_DELTA, variant, grid, &args);
}

/// Of one token; `None` if there are more, or a tensor is of another form.
fn row_arguments(step: &Step<'_>, rule: &GatedDelta) -> Option<(GatedDeltaRowArgs, Grid)> {
    let [1, 1, heads, width] = *step.shape(rule.v).shape.as_slice() else { return None };
    let groups = step.shape(rule.k).size(2);
    let number = |size: usize| u32::try_from(size).ok();
    let are_some = groups > 0 && step.shape(rule.state).size(3) > 0;
    let rows = heads.checked_mul(width).filter(|rows| *rows > 0 && are_some)?;
    let args = GatedDeltaRowArgs {
        launch: step.launch(),
        out: stacked(step, rule.out, 2)?,
        state_out: stacked(step, rule.state_out, 2)?,
        q: stacked(step, rule.q, 2)?,
        k: stacked(step, rule.k, 2)?,
        v: stacked(step, rule.v, 2)?,
        g: stacked(step, rule.g, 1)?,
        beta: stacked(step, rule.beta, 1)?,
        state: stacked(step, rule.state, 2)?,
        heads: number(heads)?,
        heads_per_group: number((heads / groups).max(1))?,
        width: number(width)?,
        unused: 0,
    };
    Some((args, Grid::new(number(rows.checked_mul(STRANDS)?.div_ceil(THREADS as usize))?, THREADS)))
}
