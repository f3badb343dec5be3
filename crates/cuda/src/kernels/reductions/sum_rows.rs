//! Sums of few rows that a function computes, in one launch: `sum_rows.cu`.

use crate::kernels::rows::{MOST_OPERANDS, Stacked, Then, before, is_plain, stacked};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_plan::expr::Expr;
use ptero_plan::prim::ViewId;
use smallvec::SmallVec;

pub(crate) static SUM_ROWS: Part = part!("sum_rows", "SumRowsArgs");

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
    others: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<SumRowsArgs>() == 432, "the layout of `SumRowsArgs` in sum_rows.cu");

/// Small blocks spread over the device.
const THREADS: u32 = 64;
/// The most rows: as many as a thread sums.
const MOST_ROWS: usize = 8;

/// A sum, and what comes before and after it.
pub(crate) struct Sum<'a> {
    /// What is summed: the result of a function.
    pub(crate) x: ViewId,
    pub(crate) before: (&'a [ViewId], &'a Expr),
    pub(crate) axes: &'a [usize],
    /// The result, or that of the function which follows.
    pub(crate) out: ViewId,
    /// The operands of the function that follows, and which of them is the sum.
    pub(crate) then: Option<(&'a [ViewId], usize, &'a Expr)>,
}

/// Launches a sum of few rows with the functions before and after it. Returns `false` if these are of another form.
pub(crate) fn sum_rows(step: &mut Step<'_>, sum: &Sum<'_>) -> bool {
    let Some((args, rows)) = arguments(step, sum).filter(|_| is_plain(sum.before.1)) else { return false };
    let (rows, text) = (rows.to_string(), before(sum.before.1));
    let tags = [("X", step.tag(sum.x)), ("OUT", step.tag(sum.out)), ("ROWS", rows.as_str())];
    let grid = Grid::new(args.count.div_ceil(THREADS), THREADS);
    let Some((ins, at, expr)) = sum.then else {
        let defines: Vec<_> = tags.into_iter().chain([("HAS_EPILOGUE", "0"), ("AT", "0")]).collect();
        step.run_part(&SUM_ROWS, Variant { defines: &defines, generated: &text }, grid, &args);
        return true;
    };
    let others: SmallVec<[ViewId; 8]> =
        ins.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, view)| *view).collect();
    let Some(then) = Then::after(step, (others.iter(), 1), (at, expr)) else { return false };
    let at = at.to_string();
    let defines: Vec<_> = tags.into_iter().chain([("HAS_EPILOGUE", "1"), ("AT", at.as_str())]).collect();
    let generated = text + &then.text;
    let args = SumRowsArgs { others: then.operands, ..args };
    step.run_part(&SUM_ROWS, Variant { defines: &defines, generated: &generated }, grid, &args);
    true
}

fn arguments(step: &Step<'_>, sum: &Sum<'_>) -> Option<(SumRowsArgs, usize)> {
    let [outer @ .., rows @ 1..=MOST_ROWS, columns] = step.shape(sum.x).shape.as_slice() else { return None };
    let (matrices, is_float) = (outer.iter().product::<usize>(), step.dtype(sum.x).is_float());
    if *sum.axes != [outer.len()] || !is_float || !step.dtype(sum.out).is_float() {
        return None;
    }
    let mut of = [Stacked::default(); MOST_OPERANDS];
    for (number, view) in sum.before.0.iter().enumerate() {
        *of.get_mut(number)? = stacked(step, *view, 2)?;
    }
    // What follows has a row for each matrix; the sum itself has a matrix with one row.
    let to = stacked(step, sum.out, if sum.then.is_some() { 1 } else { 2 })?;
    let count = u32::try_from(matrices.checked_mul(*columns)?).ok().filter(|count| *count > 0)?;
    let args = SumRowsArgs {
        launch: step.launch(),
        out: to.address,
        out_matrix: to.matrix,
        out_column: to.column,
        columns: u32::try_from(*columns).ok()?,
        count,
        of,
        others: [Stacked::default(); MOST_OPERANDS],
    };
    Some((args, *rows))
}
