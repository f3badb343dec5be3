//! Reductions: many elements to one.

use crate::element::Number;
use crate::lines::each_line;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::rows::{self, Accumulate, STRANDS};
use crate::window::{Target, Tensor, Window};
use ptero_arithmetic as arithmetic;
use ptero_backend::Fault;
use ptero_plan::prim::{Fold, ViewId};
use smallvec::SmallVec;

/// Columns that are combined row by row at a time, so that their strands stay in the L1 cache; also the least work of a task.
const COLUMNS: usize = 128;

pub(crate) fn reduce(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    axes: &[usize],
    fold: Fold,
) -> Result<(), Fault> {
    let isa = context.isa;
    let (mut target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let groups = Groups::new(&x, axes);
    let is_empty = groups.inner.count() == 0;
    if is_empty && target.window.count() > 0 && matches!(fold, Fold::Max | Fold::Min) {
        return Err(Fault::Contract("nothing has no largest or smallest element"));
    }
    target.window = axes_of(&target.window, |axis| !axes.contains(&axis));
    let in_floats = x.is_float() || matches!(fold, Fold::Mean | Fold::Var { .. } | Fold::LogSumExp);
    if !in_floats {
        let combine = |ints: &mut [i64]| int_fold(fold, ints);
        groups.each::<i64>(&mut workers, isa, target, combine);
    } else if let Some(how) = accumulates(fold).filter(|_| groups.is_across() && !is_empty) {
        groups.across(&mut workers, isa, target, fold, how);
    } else {
        let combine = |floats: &mut [f32]| float_fold(isa, fold, floats);
        groups.each::<f32>(&mut workers, isa, target, combine);
    }
    Ok(())
}

/// How whole rows are combined, if this reduction can go row by row.
fn accumulates(fold: Fold) -> Option<Accumulate> {
    match fold {
        Fold::Sum | Fold::Mean => Some(Accumulate::Sum),
        Fold::Prod => Some(Accumulate::Product),
        Fold::Max => Some(Accumulate::Largest),
        Fold::Min => Some(Accumulate::Smallest),
        Fold::Any | Fold::All | Fold::Var { .. } | Fold::LogSumExp => None,
    }
}

/// The window of some of the axes.
fn axes_of(window: &Window, is_wanted: impl Fn(usize) -> bool) -> Window {
    let wanted = || (0..window.shape.len()).filter(|axis| is_wanted(*axis));
    Window {
        buf: window.buf,
        dtype: window.dtype,
        shape: wanted().map(|axis| window.size(axis)).collect(),
        strides: wanted().map(|axis| window.stride(axis)).collect(),
        offset: window.offset,
    }
}

/// A tensor as groups of elements, each of which becomes one.
struct Groups<'a> {
    x: &'a Tensor<'a>,
    /// The first elements of groups.
    outer: Window,
    /// The elements of the first group.
    inner: Window,
}

impl<'a> Groups<'a> {
    fn new(x: &'a Tensor<'a>, axes: &[usize]) -> Self {
        let inner = Window { offset: 0, ..axes_of(&x.window, |axis| axes.contains(&axis)) };
        Self { x, outer: axes_of(&x.window, |axis| !axes.contains(&axis)), inner: inner.coalesced() }
    }

    /// Whether neighbours in memory belong to neighbouring groups.
    fn is_across(&self) -> bool {
        let last = self.outer.shape.len().saturating_sub(1);
        let is_narrow = self.inner.shape.len() == 1 && self.inner.stride(0) == 1;
        self.outer.stride(last) == 1 && self.outer.size(last) > 1 && !is_narrow
    }

    /// Copies each group and combines it.
    fn each<N: Number>(
        &self,
        workers: &mut crate::pool::Workers<'_>,
        isa: Isa,
        mut target: Target<'_>,
        combine: impl Fn(&mut [N]) -> N + Sync,
    ) {
        let (run, rows) = (self.inner.lines(self.inner.shape.len().saturating_sub(1)).1, self.inner.outer_count(1));
        let length = self.inner.count();
        // A result is a line of one element.
        target.window.shape.push(1);
        target.window.strides.push(0);
        let axis = target.window.shape.len() - 1;
        each_line(workers, isa, target, (axis, length), |number, out: &mut [N], scratch| {
            let group = N::piece(scratch, length);
            let start = self.outer.offset_of(number);
            for (row, part) in (0..rows).zip(group.chunks_mut(run.length.max(1))) {
                let offset = if rows > 1 { self.inner.inner(1, row).offset } else { 0 };
                self.x.read(isa, start.wrapping_add(offset), run.stride, part);
            }
            out.fill(combine(group));
        });
    }

    /// Combines whole rows, which is how the elements lie: some columns at a time, and what is left of those. There is a row at
    /// least.
    #[allow(clippy::indexing_slicing, reason = "there are `count.min(STRANDS)` strands, and `count` is not zero")]
    fn across(
        &self,
        workers: &mut crate::pool::Workers<'_>,
        isa: Isa,
        target: Target<'_>,
        fold: Fold,
        how: Accumulate,
    ) {
        let columns = self.outer.size(self.outer.shape.len().saturating_sub(1));
        let (whole, rest) = (columns / COLUMNS, columns % COLUMNS);
        for (first, pieces, width) in [(0, whole, COLUMNS), (whole * COLUMNS, 1, rest)] {
            let [from, window] = [&self.outer, &target.window].map(|window| cut(window, first, [pieces, width]));
            let part = Target { dtype: target.dtype, window, bytes: &mut *target.bytes };
            let axis = part.window.shape.len() - 1;
            let (starts, line) = from.lines(axis);
            let count = self.inner.count();
            each_line(workers, isa, part, (axis, width * count), |number, out: &mut [f32], scratch| {
                let ([copy, strands], start) =
                    (scratch.floats([width, count.min(STRANDS) * width]), starts.offset_of(number));
                strands.fill(how.start());
                let mut strands: SmallVec<[&mut [f32]; STRANDS]> = strands.chunks_exact_mut(width.max(1)).collect();
                for row in 0..count {
                    let place = start.wrapping_add(self.inner.offset_of(row));
                    let x = self.x.line(isa, place, line, copy);
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

/// Joins strands, the upper half of all [`STRANDS`] with the lower half, until one is left. Where there are fewer, the others would
/// hold what combining with changes nothing.
fn join(isa: Isa, how: Accumulate, mut strands: &mut [&mut [f32]]) {
    let mut width = STRANDS;
    while width > 1 {
        width /= 2;
        let (lower, upper) = strands.split_at_mut(width.min(strands.len()));
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| rows::accumulate(isa, how, upper, lower));
        strands = lower;
    }
}

/// Columns from some on, as pieces of some width; an axis more.
fn cut(window: &Window, first: usize, [pieces, width]: [usize; 2]) -> Window {
    let mut cut = window.clone();
    let stride = cut.strides.pop().unwrap_or(0);
    cut.shape.pop();
    cut.shape.extend([pieces, width]);
    cut.strides.extend([width.cast_signed() * stride, stride]);
    Window { offset: window.offset.wrapping_add_signed(first.cast_signed() * stride), ..cut }
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
        Fold::Any => f32::truth(x.iter().any(|x| x.is_true())),
        Fold::All => f32::truth(x.iter().all(|x| x.is_true())),
        Fold::Mean => rows::sum(isa, x) / float_of(x.len()),
        Fold::Var { ddof } => {
            let mean = rows::sum(isa, x) / float_of(x.len());
            // Fewer elements than `ddof` are as bad as none to divide by, not a negative number of them.
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
        // These are computed in floats.
        Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => 0,
    }
}

pub(crate) fn arg_reduce(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    axis: usize,
    largest: bool,
) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let (outer, line) = x.window.lines(axis);
    if line.length == 0 && target.window.count() > 0 {
        return Err(Fault::Contract("nothing has no largest or smallest element"));
    }
    each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [i64], scratch| {
        let start = outer.offset_of(number);
        let place = if x.is_float() {
            let copy = f32::piece(scratch, line.length);
            float_place(isa, x.line(isa, start, line, copy), largest)
        } else {
            let line_of_ints = i64::piece(scratch, line.length);
            x.read(isa, start, line.stride, line_of_ints);
            int_place(line_of_ints, largest)
        };
        out.fill(place.cast_signed() as i64);
    });
    Ok(())
}

/// The first of the largest or smallest; the first not-a-number, if there is one.
fn float_place(isa: Isa, x: &[f32], largest: bool) -> usize {
    let best = if largest { rows::largest(isa, x) } else { rows::smallest(isa, x) };
    let place = if best.is_nan() { x.iter().position(|x| x.is_nan()) } else { x.iter().position(|x| *x == best) };
    place.unwrap_or(0)
}

fn int_place(x: &[i64], largest: bool) -> usize {
    let best = if largest { x.iter().max() } else { x.iter().min() };
    x.iter().position(|x| Some(x) == best).unwrap_or(0)
}
