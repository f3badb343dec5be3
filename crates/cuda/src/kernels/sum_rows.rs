//! Sums of few rows that a function computes, in one launch: `sum_rows.cu`.

use crate::kernels::map::function_text;
use crate::kernels::rows::{MOST_OPERANDS, Stacked, is_plain, stacked};
use crate::kernels::source;
use crate::launch::Grid;
use crate::module::{Source, Variant};
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::expr::Expr;
use ptero_plan::prim::ViewId;

pub(crate) const SUM_ROWS: Source = source!("sum_rows.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SumRowsArgs {
    launch: Launch,
    out: u64,
    out_matrix: i64,
    out_column: i64,
    columns: u32,
    count: u32,
    of: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<SumRowsArgs>() == 240, "the layout of `SumRowsArgs` in sum_rows.cu");

/// Small blocks spread over the device.
const THREADS: u32 = 64;
/// The most rows: as many as a thread sums.
const MOST_ROWS: usize = 8;

/// Launches a function `x` and its sum along axes. Returns `false` if these are of another form.
pub(crate) fn sum_rows(
    step: &Step<'_>,
    out: ViewId,
    (x, ins, expr): (ViewId, &[ViewId], &Expr),
    axes: &[usize],
) -> Result<bool, Fault> {
    let Some((args, rows)) = arguments(step, out, (x, ins), axes).filter(|_| is_plain(expr)) else { return Ok(false) };
    let defines = [("X", step.tag(x)), ("OUT", step.tag(out)), ("ROWS", &*rows.to_string())];
    let generated = format!("namespace prologue {{\n{}}}\n", function_text(expr));
    let grid = Grid::new(args.count.div_ceil(THREADS), THREADS);
    step.run_variant(&SUM_ROWS, Variant { defines: &defines, generated: &generated }, "sum_rows", grid, &args)?;
    Ok(true)
}

fn arguments(
    step: &Step<'_>,
    out: ViewId,
    (x, ins): (ViewId, &[ViewId]),
    axes: &[usize],
) -> Option<(SumRowsArgs, usize)> {
    let [outer @ .., rows @ 1..=MOST_ROWS, columns] = step.shape(x).shape.as_slice() else { return None };
    let (matrices, is_float) = (outer.iter().product::<usize>(), step.dtype(x).is_float());
    if *axes != [outer.len()] || !is_float || !step.dtype(out).is_float() {
        return None;
    }
    let mut of = [Stacked::default(); MOST_OPERANDS];
    for (number, view) in ins.iter().enumerate() {
        *of.get_mut(number)? = stacked(step, *view, 2)?;
    }
    let to = stacked(step, out, 2)?;
    let count = u32::try_from(matrices.checked_mul(*columns)?).ok().filter(|count| *count > 0)?;
    let args = SumRowsArgs {
        launch: step.launch(),
        out: to.address,
        out_matrix: to.matrix,
        out_column: to.column,
        columns: u32::try_from(*columns).ok()?,
        count,
        of,
    };
    Some((args, *rows))
}
