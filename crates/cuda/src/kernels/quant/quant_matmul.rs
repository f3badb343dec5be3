//! Products with quantized weights: of few rows by `quant_matmul.cu`, of many by `quant_many.rs`; those that are not multiplied as
//! whole numbers are decoded, for `matmul.cu`.

use crate::kernels::products::by_choice::MOST_MATRICES;
use crate::kernels::products::matmul::{Right, multiply, stack};
use crate::kernels::products::product::Product;
use crate::kernels::quant::dequantize::decode;
use crate::kernels::quant::quant_many::{many, sorted};
use crate::kernels::quant::quantize::quantize;
use crate::kernels::quant::{Defines, QuantizedViews, defines, row_length};
use crate::kernels::{flag, source};
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Number, Step, ViewArg, tag};
use bytemuck::{Pod, Zeroable};
use ptero_backend::{Fault, NumberFault};
use ptero_plan::bound::BoundView;
use ptero_plan::prim::{Choice, QuantFormat, QuantMode, Quantized, ViewId};
use ptero_tensor::{DType, GgufType};

pub(crate) const QUANT_MATMUL: Source = source!("quant_matmul.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct QuantMatMulArgs {
    launch: Launch,
    out: ViewArg,
    weights: QuantizedViews,
    lhs: ViewArg,
    rhs: ViewArg,
    planes: u64,
    steps: u64,
    x_matrices: Number,
    x_rows: Number,
    x_columns: Number,
    repeats: u32,
    has_lhs: u16,
    has_rhs: u16,
}

const _: () = assert!(size_of::<QuantMatMulArgs>() == 976, "the layout of `QuantMatMulArgs` in quant_matmul.cu");

/// Columns of a cell, and cells of the slab of a warp.
const CELL: usize = 64;
const SLAB: usize = 32;
/// Warps of a block of `quant_few`, unless a row has more slabs, and the most it can have.
const WARPS: usize = 8;
const MOST_WARPS: usize = 16;
/// Rows of weights that a warp reads at once.
const COLUMNS: usize = 2;
const THREADS: u32 = 256;
/// The most rows that `quant_few` multiplies, two at a time.
const MOST_FEW: usize = 2;

pub(crate) fn quant_matmul(
    step: &mut Step<'_>,
    out: &Product,
    (x, w, transpose): (ViewId, &Quantized, bool),
    choices: (&Choice, &Choice),
) -> Result<(), Fault> {
    match whole_group(w.format).filter(|_| transpose) {
        Some(group) => multiply_whole(step, out, (x, w, group), choices),
        None => multiply_decoded(step, out, (x, w, transpose), choices),
    }
}

/// The number of weights that are multiplied, as whole numbers, with activations of one step; `None` if they are not.
pub(crate) fn whole_group(format: QuantFormat) -> Option<usize> {
    match format {
        QuantFormat::Words { mode: QuantMode::Mxfp8, .. } => None,
        QuantFormat::Words { group: group @ (16 | 32 | 64 | 128), .. } => Some(usize::from(group).min(CELL)),
        QuantFormat::Words { .. } => None,
        QuantFormat::Gguf(GgufType::Q4K | GgufType::Q5K) => Some(32),
        QuantFormat::Gguf(GgufType::Q6K) => Some(16),
    }
}

fn multiply_decoded(
    step: &mut Step<'_>,
    out: &Product,
    (x, w, transpose): (ViewId, &Quantized, bool),
    choices: (&Choice, &Choice),
) -> Result<(), Fault> {
    let mut shape = step.shape(w.codes).shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = row_length(step, w);
    }
    let bytes = shape.iter().try_fold(4_usize, |bytes, size| bytes.checked_mul(*size)).ok_or(NumberFault::TooLarge)?;
    let address = step.scratch(bytes)?;
    let mut view = ViewArg::row_major(address, DType::F32, &shape);
    decode(step, view, DType::F32, bytes / 4, w)?;
    let rank = shape.len();
    if let (true, Some(last)) = (transpose, rank.checked_sub(2)) {
        view.shape.swap(last, last + 1);
        view.strides.swap(last, last + 1);
    }
    let is_vector = transpose && row_length(step, w).is_multiple_of(4);
    let right = Right { view, dtype: DType::F32, stack: stack(step.shape(w.codes)), is_vector };
    multiply(step, out, x, &right, choices)
}

fn multiply_whole(
    step: &mut Step<'_>,
    out: &Product,
    (x, w, group): (ViewId, &Quantized, usize),
    (lhs, rhs): (&Choice, &Choice),
) -> Result<(), Fault> {
    let (x_view, repeats) = without_repeats(step, x, lhs);
    let [.., x_rows, length] = *x_view.shape.as_slice() else {
        return Err(Fault::Contract("a factor has two axes"));
    };
    let (x_matrices, matrices) = (stack(&x_view), stack(step.shape(w.codes)));
    for (choice, stack) in [(lhs, x_matrices), (rhs, matrices)] {
        choice.map_or(Ok(()), |choice| step.check_choices(choice, stack))?;
    }
    let rows = quantize(step, x, &x_view, (w, group))?;
    let optional = |choice: &Choice| choice.map_or_else(ViewArg::zeroed, |choice| step.view(choice));
    let args = QuantMatMulArgs {
        launch: step.launch(),
        out: out.view,
        weights: QuantizedViews::new(step, w),
        lhs: optional(lhs),
        rhs: optional(rhs),
        planes: rows.planes,
        steps: rows.steps,
        x_matrices: Number::from(x_matrices),
        x_rows: Number::from(x_rows),
        x_columns: Number::from(length),
        repeats,
        has_lhs: lhs.is_some().into(),
        has_rhs: rhs.is_some().into(),
    };
    let mut defines: Defines = defines(step, w)?;
    defines.extend([("OUT", tag(out.dtype)), ("SINGLE", flag(rows.is_single))]);
    let whole_rows = if rows.is_single { 2 * x_rows } else { x_rows };
    if let Some(choices) = rhs.filter(|_| are_sorted(out.matrices, x_rows, matrices)) {
        return sorted(step, out, defines, (choices, matrices), &args);
    }
    if whole_rows > MOST_FEW {
        return many(step, out, defines, whole_rows, &args);
    }
    defines.push(("ROWS", if whole_rows == 1 { "1" } else { "2" }));
    let slabs = length.div_ceil(CELL * SLAB).max(1);
    if slabs > MOST_WARPS {
        let grid = step.grid(out.matrices * out.rows * out.columns, THREADS as usize / 32, THREADS);
        return step.run(&QUANT_MATMUL, &defines, "quant_long", grid, &args);
    }
    let sets = (WARPS / slabs).max(1);
    let blocks = out.columns.div_ceil(sets * COLUMNS);
    let grid = grid(step, blocks, out.matrices, (2, count(32 * slabs * sets)));
    step.run(&QUANT_MATMUL, &defines, "quant_few", grid, &args)
}

/// Returns `true` if a product goes through its epilogue before it is stored.
pub(crate) fn takes_epilogue(step: &Step<'_>, (x, w, transpose): (ViewId, &Quantized, bool), rhs: &Choice) -> bool {
    let [outer @ .., rows, _] = step.shape(x).shape.as_slice() else { return false };
    let is_single = !matches!(step.dtype(x), DType::F16 | DType::Bf16);
    let is_many = *rows * if is_single { 2 } else { 1 } > MOST_FEW;
    let are_sorted = rhs.is_some() && are_sorted(outer.iter().product(), *rows, stack(step.shape(w.codes)));
    transpose && whole_group(w.format).is_some() && (is_many || are_sorted)
}

/// Products of single rows that choose their weights are sorted by their choice from this number on.
const FEWEST_SORTED: usize = 24;

/// Returns `true` for products of single rows of which several likely choose the same weights.
pub(crate) fn are_sorted(products: usize, rows: usize, matrices: usize) -> bool {
    rows == 1 && products >= FEWEST_SORTED && u32::try_from(products).is_ok() && matrices <= MOST_MATRICES
}

/// The matrices of `x`, each once if several products in a row have the same, and how many these are.
fn without_repeats(step: &Step<'_>, x: ViewId, lhs: &Choice) -> (BoundView, u32) {
    let mut view = step.shape(x).clone();
    let axis = view.shape.len().checked_sub(3).filter(|axis| lhs.is_none() && view.stride(*axis) == 0);
    let Some(axis) = axis.filter(|_| step.is_fixed(x)) else { return (view, 1) };
    match u32::try_from(view.size(axis)) {
        Ok(repeats @ 2..) => {
            view.shape.remove(axis);
            view.strides.remove(axis);
            (view, repeats)
        }
        _ => (view, 1),
    }
}

pub(crate) fn count(count: usize) -> u32 {
    u32::try_from(count.clamp(1, 65_535)).unwrap_or(1)
}

/// A grid of blocks that share out columns in x and matrices and rows in y: at most `each` for a multiprocessor.
pub(crate) fn grid(step: &Step<'_>, blocks: usize, tiles: usize, (each, threads): (usize, u32)) -> Grid {
    let most = (each * step.info().multiprocessors as usize).div_ceil(tiles.max(1));
    Grid { blocks: [count(blocks.min(most)), count(tiles), 1], ..Grid::new(1, threads) }
}
