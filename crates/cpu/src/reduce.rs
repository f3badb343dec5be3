//! Reductions: many elements to one.

use crate::element::Number;
use crate::lines::each_line;
use crate::pool::Workers;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::rows::{self, Accumulate, STRANDS};
use crate::view::{BoundView, Target, Tensor, ensure_shape};
use ptero_arithmetic as arithmetic;
use ptero_backend::Fault;
use ptero_plan::prim::{Fold, ViewId};
use smallvec::SmallVec;

/// Columns that are combined row by row at once, so that their strands stay in the L1 cache; also the least work of a task.
const COLUMNS: usize = 128;

pub(crate) fn reduce(context: &mut Context<'_>, x: &ViewId, axes: &[usize], fold: Fold) -> Result<(), Fault> {
    let isa = context.isa;
    let (mut target, sources, mut workers) = context.open()?;
    let x = sources.tensor(x)?;
    let groups = Groups::new(&x, axes);
    let is_empty = groups.inner.count() == 0;
    if is_empty && target.view.count() > 0 && matches!(fold, Fold::Max | Fold::Min) {
        return Err(EMPTY);
    }
    target.view = axes_of(&target.view, |axis| !axes.contains(&axis));
    ensure_shape(&target.view, &groups.outer.shape)?;
    let in_floats = x.is_float() || matches!(fold, Fold::Mean | Fold::Var { .. } | Fold::LogSumExp);
    if !in_floats {
        groups.each(&mut workers, target, |ints: &mut [i64]| int_fold(fold, ints));
    } else if let Some(how) = accumulates(fold).filter(|_| groups.is_across() && !is_empty) {
        groups.across(&mut workers, isa, target, fold, how);
    } else {
        groups.each(&mut workers, target, |floats: &mut [f32]| float_fold(isa, fold, floats));
    }
    Ok(())
}

const EMPTY: Fault = Fault::Contract("nothing has no largest or smallest element");

/// How whole rows are combined, if this reduction can be computed row by row.
fn accumulates(fold: Fold) -> Option<Accumulate> {
    match fold {
        Fold::Sum | Fold::Mean => Some(Accumulate::Sum),
        Fold::Prod => Some(Accumulate::Product),
        Fold::Max => Some(Accumulate::Largest),
        Fold::Min => Some(Accumulate::Smallest),
        Fold::Any | Fold::All | Fold::Var { .. } | Fold::LogSumExp => None,
    }
}

/// The view of those axes for which `is_wanted` returns `true`.
fn axes_of(view: &BoundView, is_wanted: impl Fn(usize) -> bool) -> BoundView {
    let wanted = || (0..view.shape.len()).filter(|axis| is_wanted(*axis));
    BoundView {
        buf: view.buf,
        dtype: view.dtype,
        shape: wanted().map(|axis| view.size(axis)).collect(),
        strides: wanted().map(|axis| view.stride(axis)).collect(),
        offset: view.offset,
    }
}

/// A tensor as groups of elements, each of which is reduced to one element.
struct Groups<'a> {
    x: &'a Tensor<'a>,
    /// The first elements of groups.
    outer: BoundView,
    /// The elements of the first group.
    inner: BoundView,
}

impl<'a> Groups<'a> {
    fn new(x: &'a Tensor<'a>, axes: &[usize]) -> Self {
        let inner = BoundView { offset: 0, ..axes_of(&x.view, |axis| axes.contains(&axis)) };
        Self { x, outer: axes_of(&x.view, |axis| !axes.contains(&axis)), inner: inner.coalesced() }
    }

    /// Returns `true` if neighbours in memory belong to neighbouring groups.
    fn is_across(&self) -> bool {
        let last = self.outer.shape.len().saturating_sub(1);
        let is_narrow = self.inner.shape.len() == 1 && self.inner.stride(0) == 1;
        self.outer.stride(last) == 1 && self.outer.size(last) > 1 && !is_narrow
    }

    /// Copies each group and combines it.
    fn each<N: Number>(
        &self,
        workers: &mut Workers<'_>,
        mut target: Target<'_>,
        combine: impl Fn(&mut [N]) -> N + Sync,
    ) {
        let (run, rows) = (self.inner.lines(self.inner.shape.len().saturating_sub(1)).1, self.inner.outer_count(1));
        let length = self.inner.count();
        // A result is a line of one element.
        target.view.shape.push(1);
        target.view.strides.push(0);
        let axis = target.view.shape.len() - 1;
        each_line(workers, target, (axis, length), |number, out: &mut [N], scratch| {
            let group = N::piece(scratch, length);
            let start = self.outer.offset_of(number);
            for (row, part) in (0..rows).zip(group.chunks_mut(run.length.max(1))) {
                let offset = if rows > 1 { self.inner.inner(1, row).offset } else { 0 };
                self.x.read(start.wrapping_add(offset), run.stride, part);
            }
            out.fill(combine(group));
        });
    }

    /// Combines whole rows, as the elements lie in memory: [`COLUMNS`] columns at a time, then the remaining ones. There is at
    /// least one row.
    #[allow(clippy::indexing_slicing, reason = "there are `count.min(STRANDS)` strands, and `count` is not zero")]
    fn across(&self, workers: &mut Workers<'_>, isa: Isa, mut target: Target<'_>, fold: Fold, how: Accumulate) {
        let columns = self.outer.size(self.outer.shape.len().saturating_sub(1));
        let (whole, rest) = (columns / COLUMNS, columns % COLUMNS);
        for (first, pieces, width) in [(0, whole, COLUMNS), (whole * COLUMNS, 1, rest)] {
            let [from, view] = [&self.outer, &target.view].map(|view| cut(view, first, [pieces, width]));
            let part = target.with(view);
            let axis = part.view.shape.len() - 1;
            let (starts, line) = from.lines(axis);
            let count = self.inner.count();
            each_line(workers, part, (axis, width * count), |number, out: &mut [f32], scratch| {
                let start = starts.offset_of(number);
                let [copy, strands] = scratch.floats([width, count.min(STRANDS) * width]);
                strands.fill(how.start());
                let mut strands: SmallVec<[&mut [f32]; STRANDS]> = strands.chunks_exact_mut(width.max(1)).collect();
                for row in 0..count {
                    let x = self.x.line(start.wrapping_add(self.inner.offset_of(row)), line, copy);
                    rows::accumulate(isa, how, x, strands[row % STRANDS]);
                }
                join(isa, how, &mut strands);
                out.copy_from_slice(strands[0]);
                if matches!(fold, Fold::Mean) {
                    out.iter_mut().for_each(|sum| *sum /= float_of(count));
                }
            });
        }
    }
}

/// Joins the upper half of [`STRANDS`] strands with the lower half, until one is left. Missing strands count as neutral elements.
fn join(isa: Isa, how: Accumulate, mut strands: &mut [&mut [f32]]) {
    let mut width = STRANDS;
    while width > 1 {
        width /= 2;
        let (lower, upper) = strands.split_at_mut(width.min(strands.len()));
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| rows::accumulate(isa, how, upper, lower));
        strands = lower;
    }
}

/// The columns from `first` on, split into `pieces` of `width`: the last axis becomes two.
fn cut(view: &BoundView, first: usize, [pieces, width]: [usize; 2]) -> BoundView {
    let mut cut = view.clone();
    let stride = cut.strides.pop().unwrap_or(0);
    cut.shape.pop();
    cut.shape.extend([pieces, width]);
    cut.strides.extend([width.cast_signed() * stride, stride]);
    BoundView { offset: view.offset.wrapping_add_signed(first.cast_signed() * stride), ..cut }
}

#[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a mean must")]
fn float_of(count: usize) -> f32 {
    count as f32
}

fn float_fold(isa: Isa, fold: Fold, x: &mut [f32]) -> f32 {
    match fold {
        Fold::Sum => rows::sum(isa, x),
        Fold::Prod => rows::product(isa, x),
        Fold::Max => rows::largest(isa, x),
        Fold::Min => rows::smallest(isa, x),
        Fold::Any => x.iter().any(|x| *x != 0.0).into(),
        Fold::All => x.iter().all(|x| *x != 0.0).into(),
        Fold::Mean => rows::sum(isa, x) / float_of(x.len()),
        Fold::Var { ddof } => {
            let mean = rows::sum(isa, x) / float_of(x.len());
            // With fewer elements than `ddof`, the divisor is zero, not negative.
            #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a mean must")]
            let divisor = (x.len().cast_signed() as i64 - i64::from(ddof)).max(0) as f32;
            rows::squares(isa, x, mean) / divisor
        }
        Fold::LogSumExp => {
            let largest = rows::largest(isa, x);
            if largest.is_infinite() { largest } else { largest + arithmetic::ln(rows::sum_of_powers(isa, x, largest)) }
        }
    }
}

fn int_fold(fold: Fold, x: &[i64]) -> i64 {
    match fold {
        Fold::Sum => x.iter().fold(0, |sum, x| sum.wrapping_add(*x)),
        Fold::Prod => x.iter().fold(1, |product, x| product.wrapping_mul(*x)),
        Fold::Max => x.iter().copied().max().unwrap_or(0),
        Fold::Min => x.iter().copied().min().unwrap_or(0),
        Fold::Any => x.iter().any(|x| *x != 0).into(),
        Fold::All => x.iter().all(|x| *x != 0).into(),
        // Computed in floats.
        Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => 0,
    }
}

pub(crate) fn arg_reduce(context: &mut Context<'_>, x: &ViewId, axis: usize, largest: bool) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open()?;
    let x = sources.tensor(x)?.lines(axis);
    ensure_shape(&target.view.lines(axis).0, &x.starts.shape)?;
    let length = x.line.length;
    if length == 0 && target.view.count() > 0 {
        return Err(EMPTY);
    }
    each_line(&mut workers, target, (axis, length), |number, out: &mut [i64], scratch| {
        let index = if x.tensor.is_float() {
            float_index(isa, x.floats(number, f32::piece(scratch, length)), largest)
        } else {
            let ints = i64::piece(scratch, length);
            x.read(number, 0, ints);
            int_index(ints, largest)
        };
        out.fill(index.cast_signed() as i64);
    });
    Ok(())
}

/// The index of the first largest or smallest element, or of the first NaN if there is one.
fn float_index(isa: Isa, x: &[f32], largest: bool) -> usize {
    let best = if largest { rows::largest(isa, x) } else { rows::smallest(isa, x) };
    let index = if best.is_nan() { x.iter().position(|x| x.is_nan()) } else { x.iter().position(|x| *x == best) };
    index.unwrap_or(0)
}

fn int_index(x: &[i64], largest: bool) -> usize {
    let best = if largest { x.iter().max() } else { x.iter().min() };
    x.iter().position(|x| Some(x) == best).unwrap_or(0)
}
