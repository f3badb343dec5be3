//! Convolutions: `conv.cu`.

use crate::kernels::rows::{Then, stacked};
use crate::kernels::{flag, source};
use crate::module::{Source, Variant};
use crate::program::MOST_AXES;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::{Conv, Fault};
use ptero_plan::expr::Expr;
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

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConvLineArgs {
    launch: Launch,
    x: u64,
    w: u64,
    out: u64,
    x_place: i64,
    x_channel: i64,
    w_filter: i64,
    w_tap: i64,
    out_place: i64,
    out_channel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    places: i64,
    channels: i64,
    count: i64,
}

const _: () = assert!(size_of::<ConvLineArgs>() == 136, "the layout of `ConvLineArgs` in conv.cu");

const THREADS: u32 = 256;
/// The strands of a product, each of which has a thread.
const STRANDS: usize = 16;

pub(crate) fn conv(step: &mut Step<'_>, out: ViewId, x: ViewId, w: ViewId, conv: &Conv<'_>) -> Result<(), Fault> {
    if conv_line(step, [out, x, w], conv, None)? {
        return Ok(());
    }
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
    let length: usize = w_view.shape.iter().skip(1).product();
    let is_short = step.is_fixed(w) && length <= STRANDS;
    let (kernel, per_block) =
        if is_short { ("conv_short", THREADS as usize) } else { ("conv", THREADS as usize / STRANDS) };
    let defines =
        [("X", step.tag(x)), ("W", step.tag(w)), ("OUT", step.tag(out)), ("TAPS", "1"), ("HAS_EPILOGUE", "0")];
    step.run(&CONV, &defines, kernel, step.grid(out_view.count(), per_block, THREADS), &args)
}

/// Launches a convolution along one axis, with a short filter for each channel, and a function that follows it. Returns `false` if it is
/// of another form.
pub(crate) fn conv_line(
    step: &mut Step<'_>,
    [out, x, w]: [ViewId; 3],
    conv: &Conv<'_>,
    then: Option<&Expr>,
) -> Result<bool, Fault> {
    let Some(args) = line(step, [out, x, w], conv) else { return Ok(false) };
    let Some(then) = then.map_or(Some(None), |expr| Then::of(step, &[], expr).map(Some)) else { return Ok(false) };
    let taps = step.shape(w).size(1).to_string();
    let tags = [("X", step.tag(x)), ("W", step.tag(w)), ("OUT", step.tag(out))];
    let defines = [tags[0], tags[1], tags[2], ("TAPS", &*taps), ("HAS_EPILOGUE", flag(then.is_some()))];
    let generated = then.as_ref().map_or("", |then| &then.text);
    let grid = step.grid(step.shape(out).count(), THREADS as usize, THREADS);
    step.run_variant(&CONV, Variant { defines: &defines, generated }, "conv_line", grid, &args)?;
    Ok(true)
}

/// The arguments of `conv_line`, for one batch; `None` if the convolution is of another form.
fn line(step: &Step<'_>, [out, x, w]: [ViewId; 3], conv: &Conv<'_>) -> Option<ConvLineArgs> {
    let [1, places, channels] = *step.shape(x).shape.as_slice() else { return None };
    let [filters, 1..=STRANDS, 1] = *step.shape(w).shape.as_slice() else { return None };
    let (&[stride], &[padding], &[dilation]) = (conv.stride, conv.padding, conv.dilation) else { return None };
    if conv.transposed || filters != channels {
        return None;
    }
    let [to, from, weights] = [out, x, w].map(|view| stacked(step, view, 2));
    let (to, from, weights) = (to?, from?, weights?);
    let number = |size: usize| i64::try_from(size).ok();
    Some(ConvLineArgs {
        launch: step.launch(),
        x: from.address,
        w: weights.address,
        out: to.address,
        x_place: from.row,
        x_channel: from.column,
        w_filter: weights.matrix,
        w_tap: weights.row,
        out_place: to.row,
        out_channel: to.column,
        stride,
        padding,
        dilation,
        places: number(places)?,
        channels: number(filters)?,
        count: number(step.shape(out).count())?,
    })
}
