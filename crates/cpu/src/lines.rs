//! Computes a tensor line by line along an axis: shared by softmax, norms, reductions along an axis and sorting.
#![allow(clippy::indexing_slicing, reason = "lines lie inside the view of their target, and that inside its bytes")]

use crate::element::{self, Number};
use crate::pool::{Scratch, Workers};
use crate::simd::{Isa, stream};
use crate::view::{BoundView, Line, Sizes, Target};
use ptero_tensor::DType;
use smallvec::SmallVec;
use std::ops::Range;

/// A task has about this many elements of work.
const GRAIN: usize = 8 * 1024;

/// Computes every line of `target` along `axis`: `work` gets its number, in row-major order of the other axes, and its elements,
/// uninitialised. `cost` is the work of a line, in elements.
pub(crate) fn each_line<N: Number>(
    workers: &mut Workers<'_>,
    target: Target<'_>,
    (axis, cost): (usize, usize),
    work: impl Fn(usize, &mut [N], &mut Scratch) + Sync,
) {
    if target.view.count() == 0 {
        return;
    }
    let (outer, line) = target.view.lines(axis);
    let (starts, numbers) = in_memory_order(outer.coalesced());
    let (isa, dtype, size) = (target.isa, target.dtype, target.dtype.size());
    let (rows, stride) = (starts.size(0), starts.stride(0).unsigned_abs());
    let per_row: usize = starts.shape.iter().skip(1).product();
    let is_large = rows * per_row * line.length * size >= stream::LARGE && line.stride == 1;
    let lines = LineWriter { isa, dtype, starts, numbers, line, per_row, is_large };
    match lines.row_reach() {
        // A task owns the bytes from its first element up to that of the next task.
        Some(reach) if rows > 1 => {
            let at_once = GRAIN.div_ceil((per_row * cost).max(1));
            let first = lines.starts.offset;
            let end = first + (rows - 1) * stride + reach + 1;
            let bytes = &mut target.bytes[first * size..end * size];
            workers.chunks(bytes, at_once * stride * size, |task, bytes, scratch| {
                let range = at_once * task..(at_once * (task + 1)).min(rows);
                lines.run(range, at_once * task * stride + first, bytes, scratch, &work);
            });
        }
        _ => lines.run(0..rows, 0, target.bytes, workers.scratch, &work),
    }
}

/// Reorders the axes of a view by descending stride, so that equal parts of the first axis follow each other in memory. If an
/// axis moved, also returns the row-major indices of the elements before, as a view of the same shape.
fn in_memory_order(view: BoundView) -> (BoundView, Option<BoundView>) {
    if view.strides.is_sorted_by(|first, second| first >= second) {
        return (view, None);
    }
    let axes = view.shape.iter().zip(&view.strides).enumerate();
    let index_stride = |axis: usize| view.shape.iter().skip(axis + 1).product::<usize>().cast_signed();
    let mut axes: SmallVec<[_; 6]> = axes.map(|(axis, (&size, &stride))| (size, stride, index_stride(axis))).collect();
    axes.sort_by_key(|&(_, stride, _)| std::cmp::Reverse(stride));
    let shape: Sizes = axes.iter().map(|&(size, ..)| size).collect();
    let strides = axes.iter().map(|&(.., index_stride)| index_stride).collect();
    let numbers = BoundView { shape: shape.clone(), strides, offset: 0, ..view.clone() };
    (BoundView { shape, strides: axes.iter().map(|&(_, stride, _)| stride).collect(), ..view }, Some(numbers))
}

/// The lines of a target. Those at one index of the first axis are a row.
struct LineWriter {
    isa: Isa,
    dtype: DType,
    /// The first elements of lines, in memory order.
    starts: BoundView,
    /// The numbers of lines, unless they are in order.
    numbers: Option<BoundView>,
    line: Line,
    /// Lines of a row.
    per_row: usize,
    /// Lines are written past the caches.
    is_large: bool,
}

impl LineWriter {
    /// How far the last element of a row is from its first, if rows do not overlap.
    fn row_reach(&self) -> Option<usize> {
        let (first, rest) = (self.starts.stride(0), self.starts.inner(self.starts.shape.len().saturating_sub(1), 0));
        let along = (self.line.length - 1) * usize::try_from(self.line.stride).ok()?;
        let reach = rest.reach()? + along;
        (first.cast_unsigned() > reach && first > 0).then_some(reach)
    }

    /// Computes the lines of some rows. `bytes` start with element `base` of the buffer.
    fn run<N: Number>(
        &self,
        rows: Range<usize>,
        base: usize,
        bytes: &mut [u8],
        scratch: &mut Scratch,
        work: &impl Fn(usize, &mut [N], &mut Scratch),
    ) {
        // Taken out of the scratch memory, which the work may use too.
        let mut copy = std::mem::take(&mut N::bank(scratch).line);
        for index in rows.start * self.per_row..rows.end * self.per_row {
            let start = self.starts.offset_of(index) - base;
            let number = self.numbers.as_ref().map_or(index, |numbers| numbers.offset_of(index));
            if self.line.stride == 1 && N::DTYPE == self.dtype && !self.is_large {
                let range = start * self.dtype.size()..(start + self.line.length) * self.dtype.size();
                work(number, bytemuck::cast_slice_mut(&mut bytes[range]), scratch);
                continue;
            }
            if copy.len() < self.line.length {
                copy.resize(self.line.length, N::default());
            }
            let line = copy.split_at_mut(self.line.length).0;
            work(number, line, scratch);
            if self.is_large {
                element::write_past_caches(self.isa, self.dtype, bytes, start, line);
            } else {
                element::write(self.isa, self.dtype, bytes, start, self.line.stride, line);
            }
        }
        if self.is_large {
            stream::finish();
        }
        N::bank(scratch).line = copy;
    }
}
