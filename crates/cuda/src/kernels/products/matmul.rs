//! Products of matrices: `matmul.cu`.

use crate::kernels::products::product::Product;
use crate::kernels::rows::{MOST_OPERANDS, Stacked};
use crate::kernels::{flag, source};
use crate::module::{Source, Variant};
use crate::step::{Launch, Step, ViewArg, tag};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::bound::BoundView;
use ptero_plan::prim::{Choice, ViewId};
use ptero_tensor::DType;

pub(crate) const MATMUL: Source = source!("matmul.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct MatMulArgs {
    launch: Launch,
    out: ViewArg,
    a: ViewArg,
    b: ViewArg,
    lhs: ViewArg,
    rhs: ViewArg,
    has_lhs: u32,
    has_rhs: u32,
    others: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<MatMulArgs>() == 976, "the layout of `MatMulArgs` in matmul.cu");

/// The tile of a block of `matmul`, and its threads.
const TILE: usize = 32;
const THREADS: u32 = 256;
/// Up to this many rows are few; the columns of a block of `matmul_few`, and its threads.
const MOST_FEW: usize = 8;
const FEW_COLUMNS: usize = 32;
const FEW_THREADS: u32 = 128;

pub(crate) fn matmul(
    step: &mut Step<'_>,
    out: &Product,
    (a, b): (ViewId, ViewId),
    choices: (&Choice, &Choice),
) -> Result<(), Fault> {
    let rank = step.shape(b).shape.len();
    let is_vector = step.is_fixed(b) && has_vector_columns(step.shape(b), rank.saturating_sub(2));
    let right = Right { view: step.view(b), dtype: step.dtype(b), stack: stack(step.shape(b)), is_vector };
    multiply(step, out, a, &right, choices)
}

/// Returns `true` for few rows, and for results so small that their tiles would leave most of the device idle.
pub(crate) fn is_few(step: &Step<'_>, [matrices, rows, columns]: [usize; 3]) -> bool {
    let tiles = matrices * rows.div_ceil(TILE) * columns.div_ceil(TILE);
    rows <= MOST_FEW || tiles <= 2 * step.info().multiprocessors as usize
}

/// The number of matrices of a stack.
pub(crate) fn stack(view: &BoundView) -> usize {
    view.shape.iter().rev().skip(2).product()
}

/// Returns `true` if four neighbours along an axis lie together, and can be loaded at once.
fn has_vector_columns(view: &BoundView, axis: usize) -> bool {
    let others = view.strides.iter().enumerate().filter(|(other, _)| *other != axis);
    view.stride(axis) == 1
        && view.offset.is_multiple_of(4)
        && others.map(|(_, stride)| stride).all(|stride| stride % 4 == 0)
}

/// The right factor of a product.
pub(crate) struct Right {
    pub(crate) view: ViewArg,
    pub(crate) dtype: DType,
    /// The number of its matrices.
    pub(crate) stack: usize,
    /// Four neighbours along a column can be loaded at once.
    pub(crate) is_vector: bool,
}

/// Multiplies a tensor with matrices that need not belong to the plan.
pub(crate) fn multiply(
    step: &mut Step<'_>,
    out: &Product,
    a: ViewId,
    right: &Right,
    (lhs, rhs): (&Choice, &Choice),
) -> Result<(), Fault> {
    for (choice, stack) in [(lhs, stack(step.shape(a))), (rhs, right.stack)] {
        choice.map_or(Ok(()), |choice| step.check_choices(choice, stack))?;
    }
    let optional = |choice: &Choice| choice.map_or_else(ViewArg::zeroed, |choice| step.view(choice));
    let args = MatMulArgs {
        launch: step.launch(),
        out: out.view,
        a: step.view(a),
        b: right.view,
        lhs: optional(lhs),
        rhs: optional(rhs),
        has_lhs: lhs.is_some().into(),
        has_rhs: rhs.is_some().into(),
        others: out.then.as_ref().map_or_else(Zeroable::zeroed, |then| then.operands),
    };
    let is_few = is_few(step, [out.matrices, out.rows, out.columns]);
    let rows = if is_few { out.rows.clamp(1, MOST_FEW).next_power_of_two() } else { 1 };
    let defines = [
        ("A", step.tag(a)),
        ("B", tag(right.dtype)),
        ("OUT", tag(out.dtype)),
        ("ROWS", &*rows.to_string()),
        ("VECTOR", flag(right.is_vector)),
        ("HAS_EPILOGUE", flag(out.then.is_some())),
    ];
    if is_few {
        let tiles = out.matrices * out.rows.div_ceil(rows) * out.columns.div_ceil(FEW_COLUMNS);
        let grid = step.grid(tiles, 1, FEW_THREADS);
        let generated = out.then.as_ref().map_or("", |then| &then.text);
        return step.run_variant(&MATMUL, Variant { defines: &defines, generated }, "matmul_few", grid, &args);
    }
    let tiles = out.matrices * out.rows.div_ceil(TILE) * out.columns.div_ceil(TILE);
    step.run(&MATMUL, &defines, "matmul", step.grid(tiles, 1, THREADS), &args)
}
