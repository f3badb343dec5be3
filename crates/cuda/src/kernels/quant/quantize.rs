//! Rows of activations as whole numbers: `quantize.cu`.

use crate::kernels::{flag, source};
use crate::module::Source;
use crate::step::{Launch, RowsKey, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::bound::BoundView;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized, ViewId};
use ptero_tensor::DType;

pub(crate) const QUANTIZE: Source = source!("quantize.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct QuantizeArgs {
    launch: Launch,
    x: ViewArg,
    planes: u64,
    steps: u64,
}

const _: () = assert!(size_of::<QuantizeArgs>() == 184, "the layout of `QuantizeArgs` in quantize.cu");

/// Columns of a cell.
const CELL: usize = 64;
const THREADS: u32 = 256;

/// Addresses of rows as whole numbers, as `quant_args.cuh` describes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeRows {
    pub(crate) planes: u64,
    pub(crate) steps: u64,
    /// Rows of single precision are two: themselves, and their rounding errors.
    pub(crate) is_single: bool,
}

/// Turns the rows of a tensor into whole numbers for products with these weights, in groups of `group` columns; or finds them, if the
/// product before had the same. `view` has the same rows as `x`, or, if its numbers are fixed, some of them.
pub(crate) fn quantize(
    step: &mut Step<'_>,
    x: ViewId,
    view: &BoundView,
    (w, group): (&Quantized, usize),
) -> Result<WholeRows, Fault> {
    // Words of four bits lie so that all even codes of eight are unpacked at once.
    let is_interleaved = matches!(w.format, QuantFormat::Words { mode: QuantMode::Affine, bits: 4, .. });
    let key = RowsKey { lane: step.memory.address(), x: view.clone(), group, is_interleaved };
    if let Some(known) = step.scratch.rows.known(&key) {
        return Ok(known);
    }
    let length = view.shape.last().copied().unwrap_or(1);
    let rows = view.count() / length.max(1);
    let is_single = !matches!(step.dtype(x), DType::F16 | DType::Bf16);
    let whole_rows = if is_single { 2 * rows } else { rows };
    let cells = length.div_ceil(CELL);
    let step_bytes = whole_rows * (length / group) * size_of::<[f32; 2]>();
    // Those of the step before are seldom needed again, and large.
    step.scratch.rows.forget();
    let planes = step.scratch.rows.take(step.stream, whole_rows * cells * 2 * CELL)?;
    let steps = step.scratch.rows.take(step.stream, step_bytes)?;
    let x_view = if step.is_fixed(x) { step.view_of(view) } else { step.view(x) };
    let args = QuantizeArgs { launch: step.launch(), x: x_view, planes, steps };
    let defines = [
        ("X", step.tag(x)),
        ("SINGLE", flag(is_single)),
        ("STEP", &*group.to_string()),
        ("INTERLEAVED", flag(is_interleaved)),
    ];
    let grid = step.grid(rows * cells, THREADS as usize / 32, THREADS);
    step.run(&QUANTIZE, &defines, "quantize", grid, &args)?;
    let rows = WholeRows { planes, steps, is_single };
    step.scratch.rows.note(key, rows);
    Ok(rows)
}
