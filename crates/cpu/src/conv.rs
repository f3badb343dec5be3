//! Convolutions over any number of spatial axes: every place of the output meets one patch of the input, which is laid out as
//! the filters are.
//!
//! With one group, patches are the rows of a matrix that is multiplied by the filters. With a filter per channel, all channels
//! are computed side by side. Otherwise each filter is one product of rows.

use crate::dense::{self, Dense};
use crate::element::{Element, elements, elements_mut, is_float};
use crate::finish::Rounded;
use crate::gemm::{Left, Size, part};
use crate::lines::each_line;
use crate::pool::Workers;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::matmul::dot::{add_products, products};
use crate::simd::matmul::product::{LEFT_PAD, STRANDS, combine, depthwise};
use crate::simd::numeric::element::Float;
use crate::simd::strip::Strip;
use crate::window::{Line, Sizes, Target, Tensor};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;
use std::ops::Range;

/// Channels that are computed side by side: their strands stay in the first cache.
const CHANNELS: usize = 256;

/// What up to 16 taps meet.
type Lines<'a> = [&'a [f32]; STRANDS];

/// The parameters of a convolution.
pub(crate) struct Conv<'a> {
    pub(crate) stride: &'a [i64],
    pub(crate) padding: &'a [i64],
    pub(crate) dilation: &'a [i64],
    pub(crate) groups: i64,
    pub(crate) transposed: bool,
}

pub(crate) fn conv(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    w: &ViewId,
    conv: &Conv<'_>,
) -> Result<(), Fault> {
    let isa = context.isa;
    let mut filters = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(out)?;
    let (x, w) = (sources.tensor(x)?, sources.tensor(w)?);
    let last = x.window.shape.len().saturating_sub(1);
    let (channels, count) = (w.window.size(last), w.window.size(0));
    let groups = usize::try_from(conv.groups).unwrap_or(0);
    let per_group = count.checked_div(groups).unwrap_or(0);
    let is_divided = groups.checked_mul(channels) == Some(x.window.size(last)) && per_group * groups == count;
    let is_met = target.window.size(0) == x.window.size(0) && target.window.size(last) == count && last > 0;
    if !is_divided || !is_met || w.window.shape.len() != x.window.shape.len() {
        return Err(Fault::Contract("filters, channels and batches of a convolution fit each other"));
    }
    let shape: Sizes = target.window.shape.iter().take(last).copied().collect();
    let kernel: Sizes = w.window.shape.iter().take(last).skip(1).copied().collect();
    let patches = Patches { isa, conv, x: &x, shape, taps: kernel.iter().product(), kernel, channels, last };
    if groups == 1 && target.window.is_contiguous() && is_float(target.dtype) {
        patches.product(&mut workers, &w, target, &mut filters);
    } else if channels == 1 && per_group == 1 {
        patches.side_by_side(&mut workers, &w, target, &mut filters);
    } else {
        patches.by_filter(&mut workers, &w, target, per_group, &mut filters);
    }
    *context.staging = filters;
    Ok(())
}

/// Copies the filters in row-major order.
fn copy(isa: Isa, w: &Tensor<'_>, filters: &mut Vec<f32>) {
    filters.resize(w.window.count(), 0.0);
    let (outer, line) = w.window.lines(w.window.shape.len().saturating_sub(1));
    for (number, row) in filters.chunks_exact_mut(line.length.max(1)).enumerate() {
        w.read(isa, outer.offset_of(number), line.stride, row);
    }
}

/// What the filters meet at each place of the output.
struct Patches<'a> {
    isa: Isa,
    conv: &'a Conv<'a>,
    x: &'a Tensor<'a>,
    /// Of the output, without channels.
    shape: Sizes,
    /// Places of a filter.
    taps: usize,
    /// Spatial sizes of a filter.
    kernel: Sizes,
    channels: usize,
    last: usize,
}

impl Patches<'_> {
    /// Patches as rows of a matrix, filters as columns of another; the output is contiguous.
    fn product(&self, workers: &mut Workers<'_>, w: &Tensor<'_>, mut target: Target<'_>, filters: &mut Vec<f32>) {
        let size = Size { m: self.shape.iter().product(), k: self.taps * self.channels, n: w.window.size(0) };
        let in_place = elements::<f32>(w.bytes).get(w.window.offset..);
        let filters = match in_place.filter(|_| w.dtype == DType::F32 && w.window.is_contiguous()) {
            Some(filters) => filters,
            None => {
                copy(self.isa, w, filters);
                filters
            }
        };
        let right = Dense { elements: filters, row_stride: 1, column_stride: size.k };
        match target.dtype {
            DType::F16 => {
                dense::product(workers, self.isa, size, self, &right, all::<half::f16>(&mut target), &Rounded);
            }
            DType::Bf16 => {
                dense::product(workers, self.isa, size, self, &right, all::<half::bf16>(&mut target), &Rounded);
            }
            _ => dense::product(workers, self.isa, size, self, &right, all::<f32>(&mut target), &Rounded),
        }
    }

    /// One filter per channel, all channels at once.
    fn side_by_side(&self, workers: &mut Workers<'_>, w: &Tensor<'_>, target: Target<'_>, filters: &mut Vec<f32>) {
        let count = w.window.size(0);
        // Tap by tap, for all filters.
        filters.resize(self.taps * count, 0.0);
        let taps = w.window.inner(self.last, 0);
        for (tap, row) in filters.chunks_exact_mut(count.max(1)).enumerate() {
            w.read(self.isa, taps.offset_of(tap), w.window.stride(0), row);
        }
        let room = self.taps.min(STRANDS) * CHANNELS;
        each_line(workers, self.isa, target, (self.last, self.taps * count), |number, out: &mut [f32], scratch| {
            let [copies, strands] = scratch.floats([room, room]);
            let mut starts = [None; STRANDS];
            starts.iter_mut().zip(0..self.taps).for_each(|(start, tap)| *start = self.start(number, tap));
            for (piece, out) in out.chunks_mut(CHANNELS).enumerate() {
                let first = piece * CHANNELS;
                if self.taps <= STRANDS {
                    let x = self.lines(part(&starts, 0..self.taps), first, out.len(), copies);
                    let filters = part(filters, first..filters.len());
                    depthwise(self.isa, part(&x, 0..self.taps), filters, count, out);
                } else {
                    self.long_filters(number, first, filters, strands, copies, out);
                }
            }
        });
    }

    /// What taps that start there meet, of some channels from number `first` on; zeros in the padding.
    fn lines<'b>(&'b self, starts: &[Option<usize>], first: usize, length: usize, copies: &'b mut [f32]) -> Lines<'b> {
        let stride = self.x.window.stride(self.last);
        let mut lines: Lines<'b> = [&[]; STRANDS];
        for ((line, start), copy) in lines.iter_mut().zip(starts).zip(copies.chunks_exact_mut(CHANNELS)) {
            let copy = copy.split_at_mut(length).0;
            *line = match start {
                Some(start) => {
                    let start = start.wrapping_add_signed(first.cast_signed() * stride);
                    self.x.line(self.isa, start, Line { length, stride }, copy)
                }
                // Padding is multiplied too: it makes NaN of an infinite filter.
                None => {
                    copy.fill(0.0);
                    copy
                }
            };
        }
        lines
    }

    /// The sums of some channels from number `first` on, at a place of the output, of more taps than there are strands.
    fn long_filters(
        &self,
        number: usize,
        first: usize,
        filters: &[f32],
        strands: &mut [f32],
        copies: &mut [f32],
        out: &mut [f32],
    ) {
        let (count, length) = (self.x.window.size(self.last), out.len());
        let strands = strands.split_at_mut(STRANDS * length).0;
        strands.fill(0.0);
        for (tap, filters) in filters.chunks_exact(count.max(1)).enumerate() {
            let [x, ..] = self.lines(&[self.start(number, tap)], first, length, copies);
            if let Some(strand) = strands.get_mut(tap % STRANDS * length..(tap % STRANDS + 1) * length) {
                add_products(self.isa, x, part(filters, first..first + length), strand);
            }
        }
        combine(self.isa, strands, length);
        out.copy_from_slice(part(strands, 0..length));
    }

    /// Group by group, filter by filter.
    fn by_filter(
        &self,
        workers: &mut Workers<'_>,
        w: &Tensor<'_>,
        target: Target<'_>,
        per_group: usize,
        filters: &mut Vec<f32>,
    ) {
        copy(self.isa, w, filters);
        let length = self.taps * self.channels;
        let cost = per_group * length;
        each_line(workers, self.isa, target, (self.last, cost), |number, out: &mut [f32], scratch| {
            let [patch] = scratch.floats([length.next_multiple_of(STRANDS)]);
            for (group, out) in out.chunks_mut(per_group.max(1)).enumerate() {
                let (elements, pad) = patch.split_at_mut(length);
                self.fill(number, group * self.channels, 0..length, elements);
                pad.fill(LEFT_PAD);
                let elements = filters.get(group * per_group * length..).unwrap_or_default();
                let rows = Strip { elements, stride: length, length, count: out.len() };
                products(self.isa, patch, rows, out, per_group);
            }
        });
    }

    /// A part of the patch at a place of the output, of channels from `channel` on; zeros in the padding.
    fn fill(&self, number: usize, channel: usize, part: Range<usize>, mut to: &mut [f32]) {
        let stride = self.x.window.stride(self.last);
        let mut at = part.start;
        while at < part.end {
            let (tap, first) = (at / self.channels, at % self.channels);
            let start = self.start(number, tap);
            // Taps that lie side by side in the input as in the patch are read at once.
            let taps = if start.is_some() { self.run(number, tap) } else { 1 };
            let length = (taps * self.channels - first).min(part.end - at);
            let (piece, after) = std::mem::take(&mut to).split_at_mut(length);
            match start {
                Some(start) => {
                    let start = start.wrapping_add_signed((channel + first).cast_signed() * stride);
                    self.x.read(self.isa, start, stride, piece);
                }
                None => piece.fill(0.0),
            }
            (to, at) = (after, at + length);
        }
    }

    /// Where the first channel of what a tap meets lies, unless it is padding.
    fn start(&self, number: usize, tap: usize) -> Option<usize> {
        let window = &self.x.window;
        let (mut rest, mut tap_rest, mut start) = (number, tap, window.offset);
        for axis in (1..self.last).rev() {
            let (size, taps) = (self.size(axis), self.kernel_size(axis));
            let source = self.conv.source(axis - 1, rest % size, tap_rest % taps, window.size(axis))?;
            start = start.wrapping_add_signed(source.cast_signed() * window.stride(axis));
            (rest, tap_rest) = (rest / size, tap_rest / taps);
        }
        // What is left of the number is the batch.
        Some(start.wrapping_add_signed(rest.cast_signed() * window.stride(0)))
    }

    /// How many taps from this one on, which meets the input, meet elements that follow each other.
    fn run(&self, number: usize, tap: usize) -> usize {
        let (window, axis) = (&self.x.window, self.last - 1);
        let follows = self.last > 1
            && !self.conv.transposed
            && self.conv.dilation.get(axis.wrapping_sub(1)) == Some(&1)
            && window.stride(self.last) == 1
            && window.stride(axis) == self.channels.cast_signed();
        if !follows {
            return 1;
        }
        let (taps, tap) = (self.kernel_size(axis), tap % self.kernel_size(axis));
        let source = self.conv.source(axis - 1, number % self.size(axis), tap, window.size(axis));
        source.map_or(1, |source| (taps - tap).min(window.size(axis) - source))
    }

    /// The size of an axis of the output.
    fn size(&self, axis: usize) -> usize {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    /// The size of that axis of a filter.
    fn kernel_size(&self, axis: usize) -> usize {
        self.kernel.get(axis - 1).copied().unwrap_or(1)
    }
}

impl Left for Patches<'_> {
    fn row(&self, _: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        self.fill(m, 0, k, to);
    }

    fn is_single(&self) -> bool {
        !matches!(self.x.dtype, DType::F16 | DType::Bf16)
    }
}

/// All elements of a contiguous output.
fn all<'a, T: Element + Float>(target: &'a mut Target<'_>) -> &'a mut [T] {
    let range = target.window.offset..target.window.offset + target.window.count();
    elements_mut::<T>(target.bytes).get_mut(range).unwrap_or_default()
}

impl Conv<'_> {
    /// The place of the input that meets this tap of the filter at this place of the output, along a spatial axis.
    fn source(&self, axis: usize, at: usize, tap: usize, size: usize) -> Option<usize> {
        let of = |parameters: &[i64]| parameters.get(axis).copied();
        let (at, tap) = (i64::try_from(at).ok()?, i64::try_from(tap).ok()?);
        let (stride, padding, reach) = (of(self.stride)?, of(self.padding)?, tap.checked_mul(of(self.dilation)?)?);
        let source = if self.transposed {
            // The `source` with `at == source * stride - padding + reach`, if there is one.
            let scaled = at.checked_add(padding)?.checked_sub(reach)?;
            (scaled % stride == 0).then_some(scaled / stride)?
        } else {
            at.checked_mul(stride)?.checked_sub(padding)?.checked_add(reach)?
        };
        usize::try_from(source).ok().filter(|&source| source < size)
    }
}
