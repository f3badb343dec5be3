//! The way through the elements of an output: coalesced axes, cut into tasks, and those into chunks.

use super::CHUNK;
use super::function::{Chunk, Function, Register};
use crate::element;
use crate::element::Number;
use crate::pool::Scratch;
use crate::simd::{self, Isa, stream};
use crate::window::{Sizes, Strides, Tensor, Window};
use ptero_backend::Fault;
use ptero_tensor::DType;
use smallvec::SmallVec;
use std::ops::Range;

/// What a function reads: a tensor, or the very elements that it is about to write.
pub(super) enum Operand<'a> {
    Source(Tensor<'a>),
    Target,
}

/// Operands that a walk takes without allocating: more than the maps of any model seen so far.
const OPERANDS: usize = 8;

pub(super) type Operands<'a> = SmallVec<[Operand<'a>; OPERANDS]>;

/// Axes that all views walk alike are one.
pub(super) struct Walk<'a> {
    shape: Sizes,
    out: Strides,
    operands: Operands<'a>,
    /// Per operand, its strides.
    strides: SmallVec<[Strides; OPERANDS]>,
    /// By axis of the output, the axis here; none for those of one element.
    axes: SmallVec<[Option<usize>; 6]>,
    /// Whether the result goes past the caches.
    is_large: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(out: &Window, operands: Operands<'a>, function: &Function) -> Result<Self, Fault> {
        let windows: SmallVec<[&Window; OPERANDS]> = operands
            .iter()
            .map(|operand| if let Operand::Source(tensor) = operand { &tensor.window } else { out })
            .collect();
        if windows.iter().any(|window| window.shape != out.shape) {
            return Err(Fault::Contract("the operands of a map have the shape of its result"));
        }
        let mut strides: SmallVec<[Strides; OPERANDS]> = windows.iter().map(|_| Strides::new()).collect();
        let (mut shape, mut own, mut axes) = (Sizes::new(), Strides::new(), SmallVec::new());
        let mut is_last_pinned = true;
        for (axis, &size) in out.shape.iter().enumerate() {
            if size == 1 {
                axes.push(None);
                continue;
            }
            let is_pinned = function.axes.contains(&axis);
            let continues = |before: &Strides, window: &Window| {
                before.last().copied() == window.stride(axis).checked_mul(size.cast_signed())
            };
            let merges = !is_pinned
                && !is_last_pinned
                && continues(&own, out)
                && strides.iter().zip(&windows).all(|(before, window)| continues(before, window));
            if merges {
                shape.iter_mut().next_back().into_iter().for_each(|last| *last *= size);
                own.iter_mut().next_back().into_iter().for_each(|last| *last = out.stride(axis));
                for (strides, window) in strides.iter_mut().zip(&windows) {
                    strides.iter_mut().next_back().into_iter().for_each(|last| *last = window.stride(axis));
                }
            } else {
                shape.push(size);
                own.push(out.stride(axis));
                strides.iter_mut().zip(&windows).for_each(|(strides, window)| strides.push(window.stride(axis)));
            }
            is_last_pinned = is_pinned;
            axes.push(Some(shape.len() - 1));
        }
        drop(windows);
        let reads_target = operands.iter().any(|operand| matches!(operand, Operand::Target));
        // What is read is in the caches when it is written.
        let is_large = !reads_target && 4 * out.count() >= stream::LARGE;
        Ok(Self { shape, out: own, operands, strides, axes, is_large })
    }

    /// How many elements lie between the first and behind the last, if strides are not negative.
    pub(super) fn extent(&self) -> usize {
        let reach = self.shape.iter().zip(&self.out).map(|(&size, &stride)| (size - 1) * stride.unsigned_abs());
        1 + reach.sum::<usize>()
    }

    /// A cut along the first axis into tasks of about `grain` elements, each of which writes to a range of its own: how many
    /// places a task has, and how far apart tasks are.
    pub(super) fn split(&self, grain: usize) -> Option<(usize, usize)> {
        let (&size, &stride) = (self.shape.first()?, self.out.first()?);
        if self.out.iter().any(|&stride| stride < 0) {
            return None;
        }
        let inner_extent = self.extent() - (size - 1) * stride.unsigned_abs();
        let inner_count = self.shape.iter().skip(1).product::<usize>();
        let places = grain.div_ceil(inner_count.max(1));
        (stride.unsigned_abs() >= inner_extent).then(|| (places, places * stride.unsigned_abs()))
    }

    /// Runs the function at these places of the first axis (those that there are). The first of them lies `base` elements into
    /// `bytes`.
    #[allow(clippy::too_many_arguments, reason = "what a task needs")]
    pub(super) fn run(
        &self,
        (isa, values): (Isa, &[i64]),
        places: Range<usize>,
        base: usize,
        (dtype, bytes): (DType, &mut [u8]),
        scratch: &mut Scratch,
        function: &Function,
    ) {
        let inner_count = self.shape.iter().skip(1).product::<usize>();
        let end = places.end.min(self.shape.first().copied().unwrap_or(1)) * inner_count;
        let start = places.start * inner_count;
        let first = self.place(&self.out, start / self.inner(), start % self.inner());
        let registers = &mut scratch.registers;
        function.start(isa, values, registers);
        for at in (start..end).step_by(CHUNK) {
            let length = CHUNK.min(end - at);
            let base = base.cast_signed() - first;
            let part = Part { walk: self, isa, at, base, dtype, bytes };
            function.run(isa, values, length, &part, registers);
            match function.result {
                Register::Float(register) => {
                    self.store(isa, (at, base), dtype, bytes, registers.float(register, length));
                }
                Register::Int(register) => self.store(isa, (at, base), dtype, bytes, registers.int(register, length)),
            }
        }
        if self.is_large {
            stream::finish();
        }
    }

    /// Writes a chunk that starts with element `at`.
    fn store<N: Number>(&self, isa: Isa, (at, base): (usize, isize), dtype: DType, bytes: &mut [u8], from: &[N]) {
        let stride = self.step(&self.out);
        let mut rest = from;
        for segment in self.segments(at, from.len()) {
            let start = (base + self.place(&self.out, segment.row, segment.column)).cast_unsigned();
            let (run, after) = rest.split_at(segment.length);
            if self.is_large && stride == 1 {
                element::write_past_caches(isa, dtype, bytes, start, run);
            } else {
                element::write(isa, dtype, bytes, start, stride, run);
            }
            rest = after;
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

    /// How far an element is from the first: one place of all axes but the last, and one of that.
    fn place(&self, strides: &[isize], row: usize, column: usize) -> isize {
        let outer = self.shape.len().saturating_sub(1);
        let mut rest = row;
        let mut offset = column.cast_signed() * self.step(strides);
        for (&size, &stride) in self.shape.iter().zip(strides).take(outer).rev() {
            offset += (rest % size).cast_signed() * stride;
            rest /= size;
        }
        offset
    }

    /// The parts of rows that a chunk is made of.
    fn segments(&self, at: usize, length: usize) -> impl Iterator<Item = Segment> + use<> {
        let inner = self.inner();
        let (mut at, mut left) = (at, length);
        std::iter::from_fn(move || {
            let (row, column) = (at / inner, at % inner);
            let length = (inner - column).min(left);
            at += length;
            left -= length;
            (length > 0).then_some(Segment { row, column, length })
        })
    }
}

struct Segment {
    row: usize,
    column: usize,
    length: usize,
}

/// A chunk of a task.
struct Part<'a, 'b> {
    walk: &'a Walk<'b>,
    isa: Isa,
    /// The number of its first element in row-major order.
    at: usize,
    /// How far the first of all elements would lie into `bytes`.
    base: isize,
    dtype: DType,
    /// What the task writes.
    bytes: &'a [u8],
}

impl Part<'_, '_> {
    fn load<N: Number>(&self, input: usize, to: &mut [N]) {
        let (Some(operand), Some(strides)) = (self.walk.operands.get(input), self.walk.strides.get(input)) else {
            return;
        };
        let (dtype, bytes, first) = match operand {
            Operand::Source(tensor) => (tensor.dtype, tensor.bytes, tensor.window.offset.cast_signed()),
            Operand::Target => (self.dtype, self.bytes, self.base),
        };
        let stride = self.walk.step(strides);
        let mut rest = to;
        for segment in self.walk.segments(self.at, rest.len()) {
            let start = first + self.walk.place(strides, segment.row, segment.column);
            let (run, after) = rest.split_at_mut(segment.length);
            element::read(self.isa, dtype, bytes, start.cast_unsigned(), stride, run);
            if stride == 1 {
                // Chunks take turns among the operands, which the processor's own prefetching does not foresee.
                let next = (start.cast_unsigned() + run.len()) * element::size_of(dtype);
                let ahead = (next + run.len() * element::size_of(dtype)).min(bytes.len());
                simd::prefetch(bytes.get(next..ahead).unwrap_or_default());
            }
            rest = after;
        }
    }
}

impl Chunk for Part<'_, '_> {
    fn load_floats(&self, input: usize, to: &mut [f32]) {
        self.load(input, to);
    }

    fn load_ints(&self, input: usize, to: &mut [i64]) {
        self.load(input, to);
    }

    fn coordinates(&self, axis: usize, to: &mut [i64]) {
        let Some(Some(axis)) = self.walk.axes.get(axis).copied() else { return to.fill(0) };
        // How many elements pass before the coordinate changes, and how many values it has.
        let inner: usize = self.walk.shape.iter().skip(axis + 1).product();
        let size = self.walk.shape.get(axis).copied().unwrap_or(1);
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
