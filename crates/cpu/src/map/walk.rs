//! Iteration over the elements of an output: coalesced axes, cut into tasks, and those into chunks.
#![allow(
    clippy::indexing_slicing,
    reason = "runs lie inside their chunk and their operand; `check_graph` checks loads and axes"
)]

use super::CHUNK;
use super::function::{Chunk, Function, Register};
use crate::element::{self, Number};
use crate::pool::Scratch;
use crate::simd::{self, stream};
use crate::view::{BoundView, Sizes, Strides, Target, Tensor};
use ptero_backend::Fault;
use smallvec::SmallVec;
use std::ops::Range;

/// What a function reads: a tensor, or the elements that it is about to write.
pub(super) enum Operand<'a> {
    Source(Tensor<'a>),
    Target,
}

/// Operands that a walk holds without allocating: more than the maps of any model seen so far.
const OPERANDS: usize = 8;

pub(super) type Operands<'a> = SmallVec<[Operand<'a>; OPERANDS]>;

/// The views of a map. Consecutive axes are merged where all views allow it.
pub(super) struct Walk<'a> {
    function: &'a Function,
    values: &'a [i64],
    shape: Sizes,
    out: Strides,
    operands: Operands<'a>,
    /// Per operand, its strides.
    strides: SmallVec<[Strides; OPERANDS]>,
    /// By axis of the output, the axis here; `None` for axes of one element.
    axes: SmallVec<[Option<usize>; 6]>,
    /// The result is written past the caches.
    is_large: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        function: &'a Function,
        values: &'a [i64],
        out: &BoundView,
        operands: Operands<'a>,
    ) -> Result<Self, Fault> {
        let views: SmallVec<[&BoundView; OPERANDS]> = operands
            .iter()
            .map(|operand| if let Operand::Source(tensor) = operand { &tensor.view } else { out })
            .collect();
        if views.iter().any(|view| view.shape != out.shape) {
            return Err(Fault::Contract("the operands of a map have the shape of its result"));
        }
        let mut strides: SmallVec<[Strides; OPERANDS]> = views.iter().map(|_| Strides::new()).collect();
        let (mut shape, mut own, mut axes) = (Sizes::new(), Strides::new(), SmallVec::new());
        let mut is_last_pinned = true;
        for (axis, &size) in out.shape.iter().enumerate() {
            if size == 1 {
                axes.push(None);
                continue;
            }
            let is_pinned = function.axes.contains(&axis);
            let continues = |before: &Strides, view: &BoundView| {
                before.last().copied() == view.stride(axis).checked_mul(size.cast_signed())
            };
            let merges = !is_pinned
                && !is_last_pinned
                && continues(&own, out)
                && strides.iter().zip(&views).all(|(before, view)| continues(before, view));
            if merges {
                // The merged axis replaces the last one.
                let last = shape.pop().unwrap_or(1);
                for strides in strides.iter_mut().chain([&mut own]) {
                    strides.pop();
                }
                shape.push(last * size);
            } else {
                shape.push(size);
            }
            own.push(out.stride(axis));
            strides.iter_mut().zip(&views).for_each(|(strides, view)| strides.push(view.stride(axis)));
            is_last_pinned = is_pinned;
            axes.push(Some(shape.len() - 1));
        }
        drop(views);
        let reads_target = operands.iter().any(|operand| matches!(operand, Operand::Target));
        // Elements that were read are in the caches when they are written.
        let is_large = !reads_target && 4 * out.count() >= stream::LARGE;
        Ok(Self { function, values, shape, out: own, operands, strides, axes, is_large })
    }

    /// The number of elements from the first to the last, both included, if no stride is negative.
    pub(super) fn extent(&self) -> usize {
        let reach = self.shape.iter().zip(&self.out).map(|(&size, &stride)| (size - 1) * stride.unsigned_abs());
        1 + reach.sum::<usize>()
    }

    /// Elements per index of the first axis.
    fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Cuts the first axis into tasks of about `grain` elements whose ranges of memory do not overlap: the indices of a task, and
    /// the distance between tasks in elements.
    pub(super) fn split(&self, grain: usize) -> Option<(usize, usize)> {
        let (&size, &stride) = (self.shape.first()?, self.out.first()?);
        if self.out.iter().any(|&stride| stride < 0) {
            return None;
        }
        let row_extent = self.extent() - (size - 1) * stride.unsigned_abs();
        let rows = grain.div_ceil(self.row_len().max(1));
        (stride.unsigned_abs() >= row_extent).then(|| (rows, rows * stride.unsigned_abs()))
    }

    /// Runs the function at some indices of the first axis, clipped to its size. `base` is the index of their first element in
    /// `bytes`.
    pub(super) fn run(&self, rows: Range<usize>, base: usize, target: &mut Target<'_>, scratch: &mut Scratch) {
        let (function, values) = (self.function, self.values);
        let (isa, start) = (target.isa, rows.start * self.row_len());
        let end = rows.end.min(self.shape.first().copied().unwrap_or(1)) * self.row_len();
        let base = base.cast_signed() - self.offset(&self.out, start / self.inner(), start % self.inner());
        let registers = &mut scratch.registers;
        function.start(isa, values, registers);
        for at in (start..end).step_by(CHUNK) {
            let length = CHUNK.min(end - at);
            function.run(isa, values, length, &MapChunk { walk: self, at, base, target }, registers);
            match function.result {
                Register::Float(register) => self.store(at, base, target, registers.float(register, length)),
                Register::Int(register) => self.store(at, base, target, registers.int(register, length)),
            }
        }
        if self.is_large {
            stream::finish();
        }
    }

    /// Writes a chunk that starts with element `at`.
    fn store<N: Number>(&self, at: usize, base: isize, target: &mut Target<'_>, from: &[N]) {
        let (isa, dtype, stride) = (target.isa, target.dtype, self.step(&self.out));
        for (offset, range) in self.runs(&self.out, at, from.len()) {
            let (start, run) = ((base + offset).cast_unsigned(), &from[range]);
            if self.is_large && stride == 1 {
                element::write_past_caches(isa, dtype, target.bytes, start, run);
            } else {
                element::write(isa, dtype, target.bytes, start, stride, run);
            }
        }
    }

    /// The length of the last axis.
    fn inner(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The stride of the last axis.
    fn step(&self, strides: &[isize]) -> isize {
        strides.last().copied().unwrap_or(0)
    }

    /// The distance of an element from the first; `row` counts all axes but the last.
    fn offset(&self, strides: &[isize], row: usize, column: usize) -> isize {
        let outer = self.shape.len().saturating_sub(1);
        let mut rest = row;
        let mut offset = column.cast_signed() * self.step(strides);
        for (&size, &stride) in self.shape.iter().zip(strides).take(outer).rev() {
            offset += (rest % size).cast_signed() * stride;
            rest /= size;
        }
        offset
    }

    /// Splits a chunk into runs along the last axis: the offset of each from the first element, and its range in the chunk.
    fn runs(&self, strides: &[isize], at: usize, length: usize) -> impl Iterator<Item = (isize, Range<usize>)> {
        let (inner, mut start) = (self.inner(), 0);
        std::iter::from_fn(move || {
            let (row, column) = ((at + start) / inner, (at + start) % inner);
            let range = start..length.min(start + inner - column);
            start = range.end;
            (!range.is_empty()).then(|| (self.offset(strides, row, column), range))
        })
    }
}

/// A chunk of a task.
struct MapChunk<'a, 'b> {
    walk: &'a Walk<'b>,
    /// The index of its first element in row-major order.
    at: usize,
    /// The index in `target.bytes` that the first element of the output would have.
    base: isize,
    target: &'a Target<'a>,
}

impl Chunk for MapChunk<'_, '_> {
    fn load<N: Number>(&self, input: usize, to: &mut [N]) {
        let (operand, strides) = (&self.walk.operands[input], &self.walk.strides[input]);
        let Target { isa, dtype, ref bytes, .. } = *self.target;
        let (dtype, bytes, first) = match operand {
            Operand::Source(tensor) => (tensor.dtype, tensor.bytes, tensor.view.offset.cast_signed()),
            Operand::Target => (dtype, &**bytes, self.base),
        };
        let stride = self.walk.step(strides);
        for (offset, range) in self.walk.runs(strides, self.at, to.len()) {
            let (start, run) = ((first + offset).cast_unsigned(), &mut to[range]);
            element::read(isa, dtype, bytes, start, stride, run);
            if stride == 1 {
                // Chunks alternate between operands, which the hardware prefetcher does not predict.
                let next = (start + run.len()) * dtype.size();
                let ahead = (next + run.len() * dtype.size()).min(bytes.len());
                simd::prefetch(&bytes[next..ahead]);
            }
        }
    }

    fn coordinates(&self, axis: usize, to: &mut [i64]) {
        let Some(axis) = self.walk.axes[axis] else { return to.fill(0) };
        // The coordinate changes every `inner` elements and takes `size` values.
        let inner: usize = self.walk.shape.iter().skip(axis + 1).product();
        let size = self.walk.shape[axis];
        let (mut within, mut coordinate) = (self.at % inner, self.at / inner % size);
        for to in to {
            *to = coordinate.cast_signed() as i64;
            within += 1;
            if within == inner {
                within = 0;
                coordinate = if coordinate + 1 == size { 0 } else { coordinate + 1 };
            }
        }
    }
}
