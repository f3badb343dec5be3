//! Sorting and running sums: `order.cu`.

use crate::kernels::source;
use crate::module::Source;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;

pub(crate) const ORDER: Source = source!("order.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SortArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    keys: [u64; 2],
    indices: [u64; 2],
    lines: i64,
    length: i64,
    width: i64,
    axis: u32,
    wants_indices: u32,
}

const _: () = assert!(size_of::<SortArgs>() == 384, "the layout of `SortArgs` in order.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CumsumArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    axis: u32,
    reverse: u32,
    inclusive: u32,
    unused: u32,
}

const _: () = assert!(size_of::<CumsumArgs>() == 336, "the layout of `CumsumArgs` in order.cu");

const THREADS: u32 = 256;

/// The most elements of a line that a block sorts: `MOST_SHORT` in order.cu.
const MOST_SHORT: usize = 1024;

/// Sorts lines: short ones in one launch, and others by merging runs in memory, with a launch for each doubling of their length.
pub(crate) fn sort(step: &mut Step<'_>, out: ViewId, x: ViewId, axis: usize, indices: bool) -> Result<(), Fault> {
    let view = step.shape(x);
    let (count, length) = (view.count(), view.size(axis));
    if count == 0 {
        return Ok(());
    }
    let number = |size: usize| size.cast_signed() as i64;
    let mut args = SortArgs {
        launch: step.launch(),
        out: step.view(out),
        x: step.view(x),
        keys: [0; 2],
        indices: [0; 2],
        lines: number(count / length),
        length: number(length),
        width: 1,
        axis: axis_number(axis)?,
        wants_indices: indices.into(),
    };
    if length <= MOST_SHORT {
        let threads = u32::try_from(length.next_multiple_of(32)).unwrap_or(THREADS);
        return step.run(&ORDER, &[], "sort_short", step.grid(count / length, 1, threads), &args);
    }
    args.keys = [step.scratch(count * 8)?, step.scratch(count * 8)?];
    args.indices = [step.scratch(count * 4)?, step.scratch(count * 4)?];
    let grid = step.grid(count, THREADS as usize, THREADS);
    step.run(&ORDER, &[], "sort_begin", grid, &args)?;
    while args.width < args.length {
        step.run(&ORDER, &[], "sort_merge", grid, &args)?;
        args.keys.reverse();
        args.indices.reverse();
        args.width *= 2;
    }
    step.run(&ORDER, &[], "sort_end", grid, &args)
}

pub(crate) fn cumsum(
    step: &mut Step<'_>,
    out: ViewId,
    x: ViewId,
    axis: usize,
    (reverse, inclusive): (bool, bool),
) -> Result<(), Fault> {
    let lines = step.shape(x).count() / step.shape(x).size(axis).max(1);
    let args = CumsumArgs {
        launch: step.launch(),
        out: step.view(out),
        x: step.view(x),
        axis: axis_number(axis)?,
        reverse: reverse.into(),
        inclusive: inclusive.into(),
        unused: 0,
    };
    step.run(&ORDER, &[], "cumsum", step.grid(lines, 32, 32), &args)
}

fn axis_number(axis: usize) -> Result<u32, Fault> {
    u32::try_from(axis).map_err(|_| Fault::Contract("an axis exists"))
}
