//! The gated delta rule: `gated_delta.cu`.

use crate::kernels::together::{Part, part};
use crate::module::Variant;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_plan::prim::GatedDelta;

pub(crate) static GATED_DELTA: Part = part!("gated_delta", "GatedDeltaArgs");

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

const THREADS: u32 = 128;
/// Threads of a row of a state.
const STRANDS: usize = 16;

pub(crate) fn gated_delta(step: &mut Step<'_>, rule: &GatedDelta) {
    let state = step.shape(rule.state);
    let length = state.size(3);
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
    let rows = state.count() / length.max(1);
    let grid = step.grid(rows, THREADS as usize / STRANDS, THREADS);
    step.run_part(&GATED_DELTA, Variant { defines: &defines, generated: "" }, grid, &args);
}
