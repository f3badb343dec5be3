//! Views whose elements lie at regular distances, so that kernels need no divisions to find them.

use crate::kernels::elements::map::function_text;
use crate::step::{Number, Step};
use bytemuck::{Pod, Zeroable};
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Expr, Scalar};
use ptero_plan::prim::{View, ViewId};

/// Matrices, rows or elements that lie at regular distances: the address of the first element, and the strides of the outer axes as one,
/// of rows and of columns; 0 for those that are not told apart. `Stacked` in operand.cuh.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Stacked {
    pub(crate) address: u64,
    pub(crate) matrix: i64,
    pub(crate) row: i64,
    pub(crate) column: i64,
}

/// A view with its last `inner` axes (0 to 2) kept and the others as one. `None` if the others are not at regular distances, or a number
/// of the view changes from step to step.
pub(crate) fn stacked(step: &Step<'_>, id: ViewId, inner: usize) -> Option<Stacked> {
    let view = step.shape(id);
    let rank = view.shape.len();
    let outer = rank.checked_sub(inner).filter(|_| step.is_fixed(id))?;
    let stride = |from_last: usize| if from_last <= inner { view.stride(rank - from_last) as i64 } else { 0 };
    let address = step.memory.address_of(step.program, view).ok()?;
    Some(Stacked { address, matrix: merged(view, outer)?, row: stride(2), column: stride(1) })
}

/// As [`stacked`], if the elements along the last axis are neighbours.
pub(crate) fn contiguous(step: &Step<'_>, id: ViewId, inner: usize) -> Option<Stacked> {
    stacked(step, id, inner).filter(|found| found.column == 1)
}

/// As [`contiguous`]; all zeros for a view that does not exist.
pub(crate) fn contiguous_if_any(step: &Step<'_>, id: Option<ViewId>, inner: usize) -> Option<Stacked> {
    id.map_or(Some(Stacked::default()), |id| contiguous(step, id, inner))
}

/// As [`stacked`], with one inner axis, for a view whose first element may change from step to step: the address of its buffer, and the
/// number of elements to the first.
pub(crate) fn moving(step: &Step<'_>, id: ViewId) -> Option<(Stacked, Number)> {
    let (view, plan) = (step.shape(id), &step.program.plan);
    let View { shape, strides, offset, .. } = plan.view(id);
    let outer = view.shape.len().checked_sub(1)?;
    if !shape.iter().chain(strides).all(|number| plan.follows_sizes(number)) {
        return None;
    }
    let start = BoundView { offset: 0, ..view.clone() };
    let address = step.memory.address_of(step.program, &start).ok()?;
    let column = view.stride(outer) as i64;
    Some((Stacked { address, matrix: merged(view, outer)?, row: 0, column }, step.number(offset)))
}

/// The stride of the first `axes` axes as one.
fn merged(view: &BoundView, axes: usize) -> Option<i64> {
    // Of the innermost axis with more than one element: its stride; and the stride that the next axis must have.
    let mut found: Option<(i64, i64)> = None;
    for axis in (0..axes).rev().filter(|axis| view.size(*axis) != 1) {
        let (size, stride) = (i64::try_from(view.size(axis)).ok()?, view.stride(axis) as i64);
        match found {
            None => found = Some((stride, stride * size)),
            Some((innermost, wanted)) if stride == wanted => found = Some((innermost, stride * size)),
            Some(_) => return None,
        }
    }
    Some(found.map_or(0, |(innermost, _)| innermost))
}

/// The most operands of a function that a kernel computes before or after its own work: `MOST_OPERANDS` in operand.cuh.
pub(crate) const MOST_OPERANDS: usize = 6;

/// What a kernel does with its results before it stores them.
pub(crate) struct Then {
    /// Of the function, but for the result.
    pub(crate) operands: [Stacked; MOST_OPERANDS],
    /// The function, `epilogue::function`.
    pub(crate) text: String,
}

impl Then {
    /// A function whose first operand is the result. `None` if it or its operands are of another form.
    pub(crate) fn of(step: &Step<'_>, others: &[ViewId], expr: &Expr) -> Option<Self> {
        Self::after(step, (others.iter(), 2), (0, expr))
    }

    /// A function whose operand `at` is the result; the others are stacked with `inner` axes.
    pub(crate) fn after<'v>(
        step: &Step<'_>,
        (others, inner): (impl ExactSizeIterator<Item = &'v ViewId>, usize),
        (at, expr): (usize, &Expr),
    ) -> Option<Self> {
        if others.len() > MOST_OPERANDS || !is_plain(expr) {
            return None;
        }
        let mut operands = [Stacked::default(); MOST_OPERANDS];
        for (to, view) in operands.iter_mut().zip(others) {
            *to = stacked(step, *view, inner)?;
        }
        let function = function_text(expr);
        let text = format!("namespace epilogue {{\nusing Point = EpiloguePointAt<{at}>;\n{function}}}\n");
        Some(Self { operands, text })
    }
}

/// A function that a kernel computes before its own work, `prologue::function`.
pub(crate) fn before(expr: &Expr) -> String {
    format!("namespace prologue {{\nusing Point = ProloguePoint;\n{}}}\n", function_text(expr))
}

/// Returns `true` for an elementwise function of its operands alone: without integers of the host and coordinates.
pub(crate) fn is_plain(expr: &Expr) -> bool {
    expr.numbers().next().is_none() && !expr.steps.iter().any(|step| matches!(step.op, Scalar::Index(_)))
}
