//! Softmax along an axis: `softmax.cu`.

use crate::kernels::source;
use crate::module::Source;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;

pub(crate) const SOFTMAX: Source = source!("softmax.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SoftmaxArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
}

const _: () = assert!(size_of::<SoftmaxArgs>() == 320, "the layout of `SoftmaxArgs` in softmax.cu");

const THREADS: u32 = 256;

pub(crate) fn softmax(step: &mut Step<'_>, out: ViewId, x: ViewId, axis: usize) -> Result<(), Fault> {
    let lines = step.shape(x).count() / step.shape(x).size(axis).max(1);
    let args =
        SoftmaxArgs { launch: step.launch(), out: with_last(step.view(out), axis), x: with_last(step.view(x), axis) };
    let defines = [("X", step.tag(x)), ("OUT", step.tag(out))];
    step.run(&SOFTMAX, &defines, "softmax", step.grid(lines, THREADS as usize / 32, THREADS), &args)
}

/// The same elements with an axis moved to the end.
fn with_last(mut view: ViewArg, axis: usize) -> ViewArg {
    let axes = axis..usize::from(view.rank);
    for numbers in [&mut view.shape, &mut view.strides] {
        if let Some(moved) = numbers.get_mut(axes.clone()) {
            moved.rotate_left(usize::from(!moved.is_empty()));
        }
    }
    view
}
