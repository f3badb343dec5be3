//! Products of one row with few columns of floats: `matmul_row.cu`.

use crate::kernels::flag;
use crate::kernels::products::product::{Epilogue, Factors};
use crate::kernels::products::prologue::Prologue;
use crate::kernels::quant::quant_row::are_there_before;
use crate::kernels::rows::{MOST_OPERANDS, Stacked, Then, stacked};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_plan::prim::{Choice, Prim, ViewId};

pub(crate) static MATMUL_ROW: Part = part!("matmul_row", "MatMulRowArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct MatMulRowArgs {
    launch: Launch,
    b: u64,
    out: u64,
    b_matrix: i64,
    b_column: i64,
    out_matrix: i64,
    length: u32,
    columns: u32,
    eps: f32,
    is_layer: u32,
    row: [Stacked; 3],
    others: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<MatMulRowArgs>() == 360, "the layout of `MatMulRowArgs` in matmul_row.cu");

const THREADS: u32 = 256;
/// Columns of a block, and what follows each in shared memory, in bytes: as in matmul_row.cu.
const COLUMNS: usize = 2;
const PADDING: usize = 64;
/// Columns are loaded in vectors of this many bytes.
const VECTOR: usize = 16;
/// The most shared memory of a block without asking for more.
const MOST_SHARED: usize = 48 << 10;
/// The most blocks for each multiprocessor: more columns than that keep it busy with larger tiles.
const MOST_BLOCKS: usize = 4;

/// Launches a product of single rows, which `norm` may compute. Returns `false` if it is of another form.
pub(crate) fn matmul_row(
    step: &mut Step<'_>,
    out: ViewId,
    factors: Factors<'_>,
    (lhs, rhs): (&Choice, &Choice),
    epilogue: &Epilogue,
    norm: Option<&Prim>,
) -> bool {
    let Factors::Plain(a, b) = factors else { return false };
    let is_chosen = lhs.is_some() || rhs.is_some();
    if is_chosen || !are_there_before(step, [b]) {
        return false;
    }
    let then = epilogue.as_ref().map(|fused| Then::of(step, &fused.ins, &fused.expr));
    let Some(then) = then.map_or(Some(None), |then| then.map(Some)) else { return false };
    let Some(prologue) = Prologue::of(step, a, norm) else { return false };
    let Some((args, grid)) = arguments(step, out, (a, b), &prologue) else { return false };
    let args = MatMulRowArgs { others: then.as_ref().map_or(args.others, |then| then.operands), ..args };
    let tags = [("ROW", step.tag(a)), ("B", step.tag(b)), ("OUT", step.tag(out))];
    let has_epilogue = [("HAS_EPILOGUE", flag(then.is_some()))];
    let defines: Vec<_> = prologue.defines(step).into_iter().chain(tags).chain(has_epilogue).collect();
    let generated = then.as_ref().map_or("", |then| &then.text);
    step.run_part(&MATMUL_ROW, Variant { defines: &defines, generated }, grid, &args);
    true
}

/// `None` if the kernel is not for these.
fn arguments(
    step: &Step<'_>,
    out: ViewId,
    (a, b): (ViewId, ViewId),
    prologue: &Prologue,
) -> Option<(MatMulRowArgs, Grid)> {
    let [.., 1, length] = *step.shape(a).shape.as_slice() else { return None };
    let [outer @ .., _, columns] = step.shape(out).shape.as_slice() else { return None };
    let (columns, matrices) = (*columns, outer.iter().product::<usize>());
    if columns == 0 || length == 0 || !(1..=65_535).contains(&matrices) {
        return None;
    }
    let (weights, to) = (stacked(step, b, 2)?, stacked(step, out, 2)?);
    let size = step.dtype(b).size();
    let is_whole = |elements: i64| elements.unsigned_abs().is_multiple_of((VECTOR / size) as u64);
    let bytes = length.checked_mul(size)?;
    let is_in_vectors = weights.address.is_multiple_of(VECTOR as u64) && bytes.is_multiple_of(VECTOR);
    // The columns of weights are their rows in memory.
    let are_columns = weights.row == 1 && is_whole(weights.column) && is_whole(weights.matrix);
    let are_neighbours = columns == 1 || to.column == 1;
    let shared = COLUMNS * (bytes + PADDING) + length.checked_mul(size_of::<f32>())?;
    let blocks = columns.div_ceil(COLUMNS);
    let are_few = blocks * matrices <= MOST_BLOCKS * step.info().multiprocessors as usize;
    if !(is_in_vectors && are_columns && are_neighbours && are_few) || shared > MOST_SHARED {
        return None;
    }
    let number = |size: usize| u32::try_from(size).ok();
    let args = MatMulRowArgs {
        launch: step.launch(),
        b: weights.address,
        out: to.address,
        b_matrix: weights.matrix,
        b_column: weights.column,
        out_matrix: to.matrix,
        length: number(length)?,
        columns: number(columns)?,
        eps: prologue.eps,
        is_layer: prologue.is_layer.into(),
        row: *prologue.operands.first_chunk()?,
        others: [Stacked::default(); MOST_OPERANDS],
    };
    let blocks = [number(blocks)?, number(matrices)?, 1];
    Some((args, Grid { blocks, shared_bytes: number(shared)?, ..Grid::new(1, THREADS) }))
}
