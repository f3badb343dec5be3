//! Norms along the last axis: `norm.cu`, and of rows at regular distances `normalize_rows.cu`.

use crate::kernels::rows::{contiguous, contiguous_if_any};
use crate::kernels::together::{Part, part};
use crate::kernels::{flag, source};
use crate::launch::Grid;
use crate::module::{Source, Variant};
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::{Normalize, ViewId};

pub(crate) const NORM: Source = source!("norm.cu");
pub(crate) static NORMALIZE_ROWS: Part = part!("normalize_rows", "NormRowsArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct NormArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    weight: ViewArg,
    bias: ViewArg,
    eps: f32,
    is_layer: u32,
    staged: u32,
    unused: u32,
}

const _: () = assert!(size_of::<NormArgs>() == 640, "the layout of `NormArgs` in norm.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct NormRowsArgs {
    launch: Launch,
    x: u64,
    out: u64,
    weight: u64,
    bias: u64,
    x_row: i64,
    out_row: i64,
    size: u32,
    is_layer: u32,
    eps: f32,
    unused: u32,
}

const _: () = assert!(size_of::<NormRowsArgs>() == 80, "the layout of `NormRowsArgs` in normalize_rows.cu");

const THREADS: u32 = 256;
/// Rows above this many elements have a block each.
const LONG: usize = 1024;
/// The most elements of a row that a block holds.
const MOST_STAGED: usize = 10_240;

pub(crate) fn norm(
    step: &mut Step<'_>,
    out: ViewId,
    x: ViewId,
    (weight, bias): (Option<ViewId>, Option<ViewId>),
    eps: f32,
    kind: Normalize,
) -> Result<(), Fault> {
    let view = step.shape(x);
    let size = view.shape.last().copied().unwrap_or(1);
    let rows = view.count() / size.max(1);
    let (is_wide, staged) = (size > LONG, step.is_fixed(x) && size <= MOST_STAGED);
    let tag = |view: Option<ViewId>| view.map_or("F32", |view| step.tag(view));
    let defines = [
        ("X", step.tag(x)),
        ("WEIGHT", tag(weight)),
        ("BIAS", tag(bias)),
        ("OUT", step.tag(out)),
        ("HAS_WEIGHT", flag(weight.is_some())),
        ("HAS_BIAS", flag(bias.is_some())),
    ];
    let count = |count: usize| u32::try_from(count).ok();
    if let (Some(args), Some(blocks), true) = (rows_arguments(step, (out, x), (weight, bias)), count(rows), staged) {
        let args = NormRowsArgs { eps, is_layer: (kind == Normalize::Layer).into(), ..args };
        let threads = args.size.div_ceil(4).next_multiple_of(32).clamp(32, THREADS);
        let grid = Grid { shared_bytes: args.size * 4, ..Grid::new(blocks.max(1), threads) };
        if rows > 0 {
            step.run_part(&NORMALIZE_ROWS, Variant { defines: &defines, generated: "" }, grid, &args);
        }
        return Ok(());
    }
    let optional = |step: &Step<'_>, view: Option<ViewId>| view.map_or_else(ViewArg::zeroed, |view| step.view(view));
    let args = NormArgs {
        launch: step.launch(),
        out: step.view(out),
        x: step.view(x),
        weight: optional(step, weight),
        bias: optional(step, bias),
        eps,
        is_layer: (kind == Normalize::Layer).into(),
        staged: staged.into(),
        unused: 0,
    };
    let grid = if is_wide { step.grid(rows, 1, THREADS) } else { step.grid(rows, THREADS as usize / 32, THREADS) };
    let shared_bytes = if is_wide && staged { u32::try_from(size * 4).unwrap_or(0) } else { 0 };
    let defines: Vec<_> = defines.into_iter().chain([("WIDE", flag(is_wide))]).collect();
    step.run(&NORM, &defines, "normalize", Grid { shared_bytes, ..grid }, &args)
}

/// What `normalize_rows` gets, but for its parameters; `None` if the views are of another form.
fn rows_arguments(
    step: &Step<'_>,
    (out, x): (ViewId, ViewId),
    (weight, bias): (Option<ViewId>, Option<ViewId>),
) -> Option<NormRowsArgs> {
    let (from, to) = (contiguous(step, x, 1)?, contiguous(step, out, 1)?);
    let size = u32::try_from(*step.shape(x).shape.last()?).ok().filter(|size| *size > 0)?;
    let (weight, bias) = (contiguous_if_any(step, weight, 1)?, contiguous_if_any(step, bias, 1)?);
    Some(NormRowsArgs {
        launch: step.launch(),
        x: from.address,
        out: to.address,
        weight: weight.address,
        bias: bias.address,
        x_row: from.matrix,
        out_row: to.matrix,
        size,
        is_layer: 0,
        eps: 0.0,
        unused: 0,
    })
}
