//! Convolutions: `conv.cu`.

use crate::kernels::source;
use crate::module::Source;
use crate::program::MOST_AXES;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::{Conv, Fault};
use ptero_plan::prim::ViewId;

pub(crate) const CONV: Source = source!("conv.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConvArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    w: ViewArg,
    stride: [i64; MOST_AXES],
    padding: [i64; MOST_AXES],
    dilation: [i64; MOST_AXES],
    filters_per_group: i64,
    transposed: u32,
    unused: u32,
}

const _: () = assert!(size_of::<ConvArgs>() == 680, "the layout of `ConvArgs` in conv.cu");

const THREADS: u32 = 256;
/// The strands of a product, each of which has a thread.
const STRANDS: usize = 16;

pub(crate) fn conv(step: &mut Step<'_>, out: ViewId, x: ViewId, w: ViewId, conv: &Conv<'_>) -> Result<(), Fault> {
    let (out_view, x_view, w_view) = (step.shape(out), step.shape(x), step.shape(w));
    let per_group = conv.filters_per_group(&x_view.shape, &w_view.shape, &out_view.shape)?;
    let numbers = |numbers: &[i64]| {
        let mut all = [1; MOST_AXES];
        all.iter_mut().zip(numbers).for_each(|(to, from)| *to = *from);
        all
    };
    let args = ConvArgs {
        launch: step.launch(),
        out: step.view(out),
        x: step.view(x),
        w: step.view(w),
        stride: numbers(conv.stride),
        padding: numbers(conv.padding),
        dilation: numbers(conv.dilation),
        filters_per_group: i64::try_from(per_group.max(1)).unwrap_or(1),
        transposed: conv.transposed.into(),
        unused: 0,
    };
    let defines = [("X", step.tag(x)), ("W", step.tag(w)), ("OUT", step.tag(out))];
    let length: usize = w_view.shape.iter().skip(1).product();
    let is_short = step.is_fixed(w) && length <= STRANDS;
    let (kernel, per_block) =
        if is_short { ("conv_short", THREADS as usize) } else { ("conv", THREADS as usize / STRANDS) };
    step.run(&CONV, &defines, kernel, step.grid(out_view.count(), per_block, THREADS), &args)
}
