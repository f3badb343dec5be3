//! Lines of a tensor along an axis, computed one by one: what softmax, norms, sums along an axis and sorting have in common.

use crate::element::{self, Number, size_of};
use crate::pool::{Scratch, Workers};
use crate::simd::{Isa, stream};
use crate::window::{Line, Sizes, Target, Window};
use ptero_tensor::DType;
use smallvec::SmallVec;

/// About so many elements are worth a task.
const GRAIN: usize = 8 * 1024;

/// Computes every line of `target` along `axis`: `work` gets its number, in row-major order of the other axes, and its elements,
/// which may hold anything before. A line is worth so many elements of work.
pub(crate) fn each_line<N: Number>(
    workers: &mut Workers<'_>,
    isa: Isa,
    target: Target<'_>,
    (axis, cost): (usize, usize),
    work: impl Fn(usize, &mut [N], &mut Scratch) + Sync,
) {
    if target.window.count() == 0 {
        return;
    }
    let (outer, line) = target.window.lines(axis);
    let (outer, numbers) = in_memory_order(outer.coalesced());
    let (dtype, size) = (target.dtype, size_of(target.dtype));
    let (rows, distance) = (outer.size(0), outer.stride(0));
    let inner: usize = outer.shape.iter().skip(1).product();
    let is_large = rows * inner * line.length * size >= stream::LARGE && line.stride == 1;
    let lines = Lines { isa, dtype, outer, numbers, line, inner, is_large };
    match lines.distance() {
        // Tasks own the bytes from their first element to that of the next task.
        Some(reach) if rows > 1 => {
            let places = GRAIN.div_ceil((inner * cost).max(1));
            let (first, distance) = (lines.outer.offset, distance.unsigned_abs());
            let end = first + (rows - 1) * distance + reach + 1;
            let bytes = target.bytes.get_mut(first * size..end * size).unwrap_or_default();
            workers.chunks(bytes, places * distance * size, |task, bytes, scratch| {
                let range = places * task..(places * (task + 1)).min(rows);
                let base = places * task * distance + first;
                lines.run(range, base, bytes, scratch, &work);
            });
        }
        _ => lines.run(0..rows, 0, target.bytes, workers.scratch, &work),
    }
}

/// A window with its largest stride first, so that equal parts of its first axis lie behind each other; and if that moved an
/// axis, the numbers that its elements had, as a window of the same shape.
fn in_memory_order(window: Window) -> (Window, Option<Window>) {
    if window.strides.is_sorted_by(|first, second| first >= second) {
        return (window, None);
    }
    let axes = window.shape.iter().zip(&window.strides).enumerate();
    let number = |axis: usize| window.shape.iter().skip(axis + 1).product::<usize>().cast_signed();
    let mut axes: SmallVec<[_; 6]> = axes.map(|(axis, (&size, &stride))| (size, stride, number(axis))).collect();
    axes.sort_by_key(|&(_, stride, _)| std::cmp::Reverse(stride));
    let shape: Sizes = axes.iter().map(|&(size, ..)| size).collect();
    let numbers = axes.iter().map(|&(.., number)| number).collect();
    let numbers = Window { shape: shape.clone(), strides: numbers, offset: 0, ..window.clone() };
    (Window { shape, strides: axes.iter().map(|&(_, stride, _)| stride).collect(), ..window }, Some(numbers))
}

struct Lines {
    isa: Isa,
    dtype: DType,
    /// The first elements of lines, in the order of memory.
    outer: Window,
    /// Their numbers, unless they are in order.
    numbers: Option<Window>,
    line: Line,
    /// How many lines there are per place of the first axis.
    inner: usize,
    /// Whether they go past the caches.
    is_large: bool,
}

impl Lines {
    /// How far the lines at one place of the first axis reach, if the next place lies behind that.
    fn distance(&self) -> Option<usize> {
        let (first, rest) = (self.outer.stride(0), self.outer.inner(self.outer.shape.len().saturating_sub(1), 0));
        let along = (self.line.length - 1) * usize::try_from(self.line.stride).ok()?;
        let reach = rest.reach()? + along;
        (first.cast_unsigned() > reach && first > 0).then_some(reach)
    }

    /// The lines at some places of the first axis, in bytes that start `base` elements into the buffer.
    fn run<N: Number>(
        &self,
        places: std::ops::Range<usize>,
        base: usize,
        bytes: &mut [u8],
        scratch: &mut Scratch,
        work: &impl Fn(usize, &mut [N], &mut Scratch),
    ) {
        // Taken out of the scratch memory, which the work may use too.
        let mut copy = std::mem::take(N::line(scratch));
        for place in places.start * self.inner..places.end * self.inner {
            let start = self.outer.offset_of(place) - base;
            let number = self.numbers.as_ref().map_or(place, |numbers| numbers.offset_of(place));
            if self.line.stride == 1 && N::IS == self.dtype && !self.is_large {
                let range = start * size_of(self.dtype)..(start + self.line.length) * size_of(self.dtype);
                let line = bytes.get_mut(range).unwrap_or_default();
                work(number, bytemuck::try_cast_slice_mut(line).unwrap_or_default(), scratch);
                continue;
            }
            if copy.len() < self.line.length {
                copy.resize(self.line.length, N::default());
            }
            let line = copy.get_mut(..self.line.length).unwrap_or_default();
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
        *N::line(scratch) = copy;
    }
}
