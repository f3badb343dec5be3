//! Reductions: `reduce.cu`.

use crate::kernels::source;
use crate::module::Source;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::{Fold, ViewId};

pub(crate) const REDUCE: Source = source!("reduce.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ReduceArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    axes: u32,
    fold: u32,
    ddof: i64,
}

const _: () = assert!(size_of::<ReduceArgs>() == 336, "the layout of `ReduceArgs` in reduce.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ArgReduceArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    axis: u32,
    largest: u32,
}

const _: () = assert!(size_of::<ArgReduceArgs>() == 328, "the layout of `ArgReduceArgs` in reduce.cu");

/// Groups of elements that a block combines at once, 64 threads each.
const GROUPS: usize = 4;
const THREADS: u32 = 256;
/// Up to this many elements are combined by one thread: `FEW` in reduce.cu.
const FEW: usize = 8;
/// Threads of a block of `reduce_few`: small blocks spread over the device.
const FEW_THREADS: u32 = 64;

pub(crate) fn reduce(step: &mut Step<'_>, out: ViewId, x: ViewId, axes: &[usize], fold: Fold) -> Result<(), Fault> {
    let (fold, ddof) = match fold {
        Fold::Sum => (0, 0),
        Fold::Prod => (1, 0),
        Fold::Max => (2, 0),
        Fold::Min => (3, 0),
        Fold::Any => (4, 0),
        Fold::All => (5, 0),
        Fold::Mean => (6, 0),
        Fold::Var { ddof } => (7, i64::from(ddof)),
        Fold::LogSumExp => (8, 0),
    };
    let count: usize = axes.iter().map(|axis| step.shape(x).size(*axis)).product();
    let axes = axes.iter().fold(0, |mask, axis| mask | 1 << axis);
    let args = ReduceArgs { launch: step.launch(), out: step.view(out), x: step.view(x), axes, fold, ddof };
    let is_few = step.is_fixed(x) && count <= FEW;
    let (kernel, groups, threads) =
        if is_few { ("reduce_few", FEW_THREADS as usize, FEW_THREADS) } else { ("reduce", GROUPS, THREADS) };
    step.run(&REDUCE, &[("X", step.tag(x))], kernel, step.grid(step.shape(out).count(), groups, threads), &args)
}

pub(crate) fn arg_reduce(step: &mut Step<'_>, out: ViewId, x: ViewId, axis: usize, largest: bool) -> Result<(), Fault> {
    let axis = u32::try_from(axis).map_err(|_| Fault::Contract("an axis exists"))?;
    let args =
        ArgReduceArgs { launch: step.launch(), out: step.view(out), x: step.view(x), axis, largest: largest.into() };
    let grid = step.grid(step.shape(out).count(), GROUPS, THREADS);
    step.run(&REDUCE, &[("X", step.tag(x))], "arg_reduce", grid, &args)
}
