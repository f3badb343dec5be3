//! Gather and scatter: `gather.cu`, `index.cu`.

use crate::kernels::source;
use crate::kernels::together::{Part, part};
use crate::module::{Source, Variant};
use crate::program::MOST_AXES;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::plan::BufferKind;
use ptero_plan::prim::{Axis, ViewId};

pub(crate) const INDEX: Source = source!("index.cu");
pub(crate) static GATHER: Part = part!("gather", "IndexArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AxisArg {
    index: ViewArg,
    has_index: u32,
    coordinate: u32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct IndexArgs {
    launch: Launch,
    indexed: ViewArg,
    other: ViewArg,
    axes: [AxisArg; MOST_AXES],
    adds: u32,
    apart: u32,
}

const _: () = assert!(size_of::<AxisArg>() == 160, "the layout of `Axis` in index.cuh");
const _: () = assert!(size_of::<IndexArgs>() == 1608, "the layout of `IndexArgs` in index.cuh");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CheckArgs {
    launch: Launch,
    index: ViewArg,
    size: i64,
}

const _: () = assert!(size_of::<CheckArgs>() == 176, "the layout of `CheckArgs` in index.cu");

const THREADS: u32 = 256;

impl IndexArgs {
    fn new(step: &Step<'_>, indexed: ViewId, other: ViewId, axes: &[Axis]) -> Self {
        let mut args =
            Self { launch: step.launch(), indexed: step.view(indexed), other: step.view(other), ..Self::zeroed() };
        for (to, axis) in args.axes.iter_mut().zip(axes) {
            let coordinate = axis.coordinate.and_then(|axis| u32::try_from(axis).ok()).unwrap_or(u32::MAX);
            let index = axis.index.map_or_else(ViewArg::zeroed, |index| step.view(index));
            *to = AxisArg { index, has_index: axis.index.is_some().into(), coordinate };
        }
        args
    }
}

pub(crate) fn gather(step: &mut Step<'_>, out: ViewId, x: ViewId, axes: &[Axis]) -> Result<(), Fault> {
    let args = IndexArgs::new(step, x, out, axes);
    let grid = step.grid(step.shape(out).count(), THREADS as usize, THREADS);
    // A step that fails must not change a state.
    let buf = step.shape(out).buf;
    if matches!(step.program.plan.buffer(buf).kind, BufferKind::State) && axes.iter().any(|axis| axis.index.is_some()) {
        step.run(&INDEX, &[], "check_indices", grid, &args)?;
    }
    step.run_part(&GATHER, Variant::default(), grid, &args);
    Ok(())
}

pub(crate) fn scatter(
    step: &mut Step<'_>,
    out: ViewId,
    updates: ViewId,
    axes: &[Axis],
    add: bool,
) -> Result<(), Fault> {
    let apart = apart(step, updates, axes);
    let args = IndexArgs { adds: add.into(), apart, ..IndexArgs::new(step, out, updates, axes) };
    let view = step.shape(updates);
    step.run(&INDEX, &[], "check_indices", step.grid(view.count(), THREADS as usize, THREADS), &args)?;
    let sizes = view.shape.iter().enumerate().filter(|(axis, _)| apart >> axis & 1 == 1);
    let items = sizes.map(|(_, size)| size).product();
    step.run(&INDEX, &[], "scatter", step.grid(items, THREADS as usize, THREADS), &args)
}

/// The axes of the updates along which no two elements fall on one: those whose coordinate alone indexes an axis. A bit for each.
/// The others are gone through in order.
fn apart(step: &Step<'_>, updates: ViewId, axes: &[Axis]) -> u32 {
    let rank = step.shape(updates).shape.len();
    let alone = |axis: usize| axes.iter().any(|rule| rule.index.is_none() && rule.coordinate == Some(axis));
    let mask = (0..rank).filter(|axis| alone(*axis)).fold(0, |mask, axis| mask | 1 << axis);
    // One update at most: nothing can fall on another.
    if step.shape(updates).count() <= 1 { u32::MAX } else { mask }
}

impl Step<'_> {
    /// Latches a fault if an element of a choice is not an index below `size`.
    pub(crate) fn check_choices(&mut self, index: ViewId, size: usize) -> Result<(), Fault> {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let args = CheckArgs { launch: self.launch(), index: self.view(index), size };
        let grid = self.grid(self.shape(index).count(), THREADS as usize, THREADS);
        self.run(&INDEX, &[], "check_choices", grid, &args)
    }
}
