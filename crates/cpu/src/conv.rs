//! Convolutions over any number of spatial axes: every position of the output is computed from one patch of the input, laid out
//! as the filters are.
//!
//! With one group, patches are the rows of a matrix that is multiplied by the filters. With one filter per channel, all channels
//! are computed side by side. Otherwise each filter is a dot product with the patch.
#![allow(clippy::indexing_slicing, reason = "taps and channels are below the sizes that slices are cut to")]

use crate::dense::Dense;
use crate::element::with_float;
use crate::finish::Rounded;
use crate::gemm::{Left, Product, Size};
use crate::lines::each_line;
use crate::pool::{Matrices, Workers};
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::matmul::dot::{add_products, products};
use crate::simd::matmul::product::{LEFT_PAD, STRANDS, combine, depthwise};
use crate::simd::strip::Strip;
use crate::view::{Line, Sizes, Target, Tensor};
use ptero_backend::{Conv, Fault};
use ptero_plan::prim::ViewId;
use std::ops::Range;

/// Channels that are computed side by side: their strands stay in the L1 cache.
const CHANNELS: usize = 256;

/// The inputs of up to 16 taps.
type TapInputs<'a> = [&'a [f32]; STRANDS];

pub(crate) fn conv(context: &mut Context<'_>, x: &ViewId, w: &ViewId, conv: &Conv<'_>) -> Result<(), Fault> {
    let mut filters = std::mem::take(&mut context.resources.staging);
    let (target, sources, mut workers) = context.open()?;
    let (x, w) = (sources.tensor(x)?, sources.tensor(w)?);
    let last = x.view.shape.len().saturating_sub(1);
    let channels = w.view.size(last);
    let per_group = conv.filters_per_group(&x.view.shape, &w.view.shape, &target.view.shape)?;
    let shape: Sizes = target.view.shape.iter().take(last).copied().collect();
    let kernel: Sizes = w.view.shape.iter().take(last).skip(1).copied().collect();
    let patches = Patches { conv, x: &x, shape, taps: kernel.iter().product(), kernel, channels, per_group, last };
    if conv.groups == 1 && target.view.is_contiguous() && target.dtype.is_float() {
        patches.product(&mut workers, &w, target, &mut filters);
    } else if channels == 1 && per_group == 1 {
        patches.side_by_side(&mut workers, &w, target, &mut filters);
    } else {
        patches.by_filter(&mut workers, &w, target, &mut filters);
    }
    context.resources.staging = filters;
    Ok(())
}

/// The filters as floats in row-major order: in place if possible, else copied.
fn contiguous<'a>(w: &Tensor<'a>, copy: &'a mut Vec<f32>) -> &'a [f32] {
    let count = w.view.count();
    if w.view.is_contiguous()
        && let Some(filters) = w.floats(w.view.offset, count)
    {
        return filters;
    }
    copy.resize(copy.len().max(count), 0.0);
    let copy = copy.split_at_mut(count).0;
    let lines = w.clone().lines(w.view.shape.len().saturating_sub(1));
    for (number, row) in copy.chunks_exact_mut(lines.line.length.max(1)).enumerate() {
        lines.read(number, 0, row);
    }
    copy
}

/// The patches of the input: one for each position of the output.
struct Patches<'a> {
    conv: &'a Conv<'a>,
    x: &'a Tensor<'a>,
    /// Shape of the output without channels.
    shape: Sizes,
    /// Positions of a filter.
    taps: usize,
    /// Spatial sizes of a filter.
    kernel: Sizes,
    channels: usize,
    /// Filters of a group.
    per_group: usize,
    last: usize,
}

impl Patches<'_> {
    /// Multiplies a matrix of patches by the filters; the output is contiguous.
    fn product(&self, workers: &mut Workers<'_>, w: &Tensor<'_>, mut target: Target<'_>, filters: &mut Vec<f32>) {
        let size = Size { m: self.shape.iter().product(), k: self.taps * self.channels, n: w.view.size(0) };
        let right = Dense { elements: contiguous(w, filters), row_stride: 1, column_stride: size.k };
        with_float!(target.dtype, T => {
            let mut out = Matrices::one(target.slice::<T>(0..size.m * size.n), size.n);
            let product = Product { isa: self.x.isa, size, left: self, out: out.all(), finish: &Rounded };
            product.times_dense(workers, &right);
        }, else {});
    }

    /// Computes all channels at once, each with its own filter.
    fn side_by_side(&self, workers: &mut Workers<'_>, w: &Tensor<'_>, target: Target<'_>, filters: &mut Vec<f32>) {
        let count = w.view.size(0);
        // Tap by tap, for all filters.
        filters.resize(filters.len().max(self.taps * count), 0.0);
        let filters = filters.split_at_mut(self.taps * count).0;
        let taps = w.view.inner(self.last, 0);
        for (tap, row) in filters.chunks_exact_mut(count.max(1)).enumerate() {
            w.read(taps.offset_of(tap), w.view.stride(0), row);
        }
        let room = self.taps.min(STRANDS) * CHANNELS;
        each_line(workers, target, (self.last, self.taps * count), |number, out: &mut [f32], scratch| {
            let [copies, strands] = scratch.floats([room, room]);
            let mut starts = [None; STRANDS];
            starts.iter_mut().zip(0..self.taps).for_each(|(start, tap)| *start = self.start(number, tap));
            for (piece, out) in out.chunks_mut(CHANNELS).enumerate() {
                let first = piece * CHANNELS;
                if self.taps <= STRANDS {
                    let x = self.inputs(&starts[..self.taps], first..first + out.len(), copies);
                    // Without taps there are no filters.
                    let (_, filters) = filters.split_at(first.min(filters.len()));
                    depthwise(self.x.isa, &x[..self.taps], filters, count, out);
                } else {
                    self.long_filters(number, first, filters, [&mut *strands, &mut *copies], out);
                }
            }
        });
    }

    /// The inputs of the taps that start at these offsets, of some channels; zeros in the padding.
    fn inputs<'b>(&'b self, starts: &[Option<usize>], channels: Range<usize>, copies: &'b mut [f32]) -> TapInputs<'b> {
        let length = channels.len();
        let stride = self.x.view.stride(self.last);
        let mut inputs: TapInputs<'b> = [&[]; STRANDS];
        for ((input, start), copy) in inputs.iter_mut().zip(starts).zip(copies.chunks_exact_mut(CHANNELS)) {
            let copy = copy.split_at_mut(length).0;
            *input = match start {
                Some(start) => {
                    let start = start.wrapping_add_signed(channels.start.cast_signed() * stride);
                    self.x.line(start, Line { length, stride }, copy)
                }
                // Padding is multiplied too: zero times an infinite filter is NaN.
                None => {
                    copy.fill(0.0);
                    copy
                }
            };
        }
        inputs
    }

    /// Computes channels starting with `first` at one position of the output, with more taps than there are strands.
    fn long_filters(&self, number: usize, first: usize, filters: &[f32], memory: [&mut [f32]; 2], out: &mut [f32]) {
        let [strands, copies] = memory;
        let (count, length) = (self.x.view.size(self.last), out.len());
        let strands = strands.split_at_mut(STRANDS * length).0;
        strands.fill(0.0);
        for (tap, filters) in filters.chunks_exact(count.max(1)).enumerate() {
            let [x, ..] = self.inputs(&[self.start(number, tap)], first..first + length, copies);
            let strand = &mut strands[tap % STRANDS * length..(tap % STRANDS + 1) * length];
            add_products(self.x.isa, x, &filters[first..first + length], strand);
        }
        combine(self.x.isa, strands, length);
        out.copy_from_slice(&strands[..length]);
    }

    /// Computes group by group, filter by filter.
    fn by_filter(&self, workers: &mut Workers<'_>, w: &Tensor<'_>, target: Target<'_>, filters: &mut Vec<f32>) {
        let per_group = self.per_group;
        let filters = contiguous(w, filters);
        let length = self.taps * self.channels;
        let cost = per_group * length;
        each_line(workers, target, (self.last, cost), |number, out: &mut [f32], scratch| {
            let [patch] = scratch.floats([length.next_multiple_of(STRANDS)]);
            for (group, out) in out.chunks_mut(per_group.max(1)).enumerate() {
                let (elements, pad) = patch.split_at_mut(length);
                self.fill(number, group * self.channels, 0..length, elements);
                pad.fill(LEFT_PAD);
                let elements = &filters[group * per_group * length..];
                let rows = Strip { elements, stride: length, length, count: out.len() };
                products(self.x.isa, patch, rows, out, per_group);
            }
        });
    }

    /// Reads a part of the patch at a position of the output, of channels starting with `channel`; zeros in the padding.
    fn fill(&self, number: usize, channel: usize, part: Range<usize>, mut to: &mut [f32]) {
        let stride = self.x.view.stride(self.last);
        let mut at = part.start;
        while at < part.end {
            let (tap, first) = (at / self.channels, at % self.channels);
            let start = self.start(number, tap);
            // Taps that are contiguous in the input as in the patch are read at once.
            let taps = if start.is_some() { self.run(number, tap) } else { 1 };
            let length = (taps * self.channels - first).min(part.end - at);
            let (piece, after) = std::mem::take(&mut to).split_at_mut(length);
            match start {
                Some(start) => {
                    let start = start.wrapping_add_signed((channel + first).cast_signed() * stride);
                    self.x.read(start, stride, piece);
                }
                None => piece.fill(0.0),
            }
            (to, at) = (after, at + length);
        }
    }

    /// The offset of the first channel of a tap's input, unless it is padding.
    fn start(&self, number: usize, tap: usize) -> Option<usize> {
        let view = &self.x.view;
        let (mut rest, mut tap_rest, mut start) = (number, tap, view.offset);
        for axis in (1..self.last).rev() {
            let (size, taps) = (self.shape[axis], self.kernel[axis - 1]);
            let source = self.conv.source(axis - 1, rest % size, tap_rest % taps, view.size(axis))?;
            start = start.wrapping_add_signed(source.cast_signed() * view.stride(axis));
            (rest, tap_rest) = (rest / size, tap_rest / taps);
        }
        // The rest is the batch.
        Some(start.wrapping_add_signed(rest.cast_signed() * view.stride(0)))
    }

    /// The number of taps, starting with this one, whose inputs are contiguous. This tap is not in the padding.
    fn run(&self, number: usize, tap: usize) -> usize {
        let (view, axis) = (&self.x.view, self.last - 1);
        let follows = self.last > 1
            && !self.conv.transposed
            && self.conv.dilation.get(axis.wrapping_sub(1)) == Some(&1)
            && view.stride(self.last) == 1
            && view.stride(axis) == self.channels.cast_signed();
        if !follows {
            return 1;
        }
        let (taps, tap) = (self.kernel[axis - 1], tap % self.kernel[axis - 1]);
        let source = self.conv.source(axis - 1, number % self.shape[axis], tap, view.size(axis));
        source.map_or(1, |source| (taps - tap).min(view.size(axis) - source))
    }
}

impl Left for Patches<'_> {
    fn row(&self, _: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        self.fill(m, 0, k, to);
    }

    fn is_single(&self) -> bool {
        self.x.is_single()
    }
}
