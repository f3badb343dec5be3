//! Many rows: codes are unpacked into panels, a chunk of columns at a time, and tiles are computed in registers.
#![allow(clippy::indexing_slicing, reason = "panels have room for all rows and columns of a tile")]

use super::{IntegerProduct, shares};
use crate::finish::Finish;
use crate::gemm::{Left, STRIPE};
use crate::pool::{OutRows, Scratch, Stripe, Workers};
use crate::simd::matmul::transpose::{AT_ONCE, transpose};
use crate::simd::numeric::element::Float;
use crate::simd::quant::activation::{CHUNK, Quantized, ROWS};
use crate::simd::quant::panel::{self, Panel};
use crate::simd::quant::unpack::{EIGHT, Unpacker};
use crate::simd::{Tile, prefetch};
use std::ops::Range;

/// Unpacking a column takes about as long as multiplying it with this many panels of rows: with an [`Unpacker`], and without.
const UNPACKING: [usize; 2] = [2, 8];

impl IntegerProduct<'_> {
    /// Writes some rows of the product, rounded once, to `out`.
    pub(super) fn many<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        rows: Range<usize>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let (n, count) = (self.weights.rows, rows.len() * self.parts);
        let tile = panel::tile(self.isa, count);
        let Tile { rows: height, columns: wide } = tile;
        let (first, length) = (rows.start * self.parts, height * self.row_floats());
        workers.prepared(|shared, workers| {
            let [packed] = shared.floats([count.div_ceil(height) * length]);
            workers.chunks(packed, length, |panel, packed, scratch| {
                let start = panel * height;
                let rows = first + start..first + count.min(start + height);
                let arrange = |integers: &[i16], to: &mut [f32]| match &self.unpacker {
                    Some(unpacker) => unpacker.pairs(integers, bytemuck::cast_slice_mut(to)),
                    None => to.copy_from_slice(bytemuck::cast_slice(integers)),
                };
                self.pack_left(left, rows, height, arrange, packed, scratch);
            });
            let packed = &*packed;
            // A task unpacks its columns, and reads all its rows.
            let unpacking = UNPACKING[usize::from(self.unpacker.is_none())];
            let cost = |height: usize, width: usize| (height + unpacking) * width + height / 2;
            let sizes = [count.div_ceil(height), n.div_ceil(wide)];
            let [panels, blocks] = shares(sizes, (STRIPE / wide).max(1), workers.pool.threads(), cost);
            out.blocks(workers, 0..n, [panels * height / self.parts, blocks * wide], |stripe, scratch| {
                self.stripe((rows.start, tile), packed, stripe, scratch, finish);
            });
        });
    }

    /// A chunk of a panel.
    fn chunk<'p>(&self, panel: &'p [f32], height: usize, columns: &Range<usize>) -> Panel<'p> {
        let (words, factors) = panel.split_at(height * self.weights.columns / 2);
        let part =
            |floats: &'p [f32], share: usize| &floats[height * columns.start / share..height * columns.end / share];
        let half = (self.group / 2).max(1);
        Panel { words: part(words, 2), factors: part(factors, half) }
    }

    /// Packs up to `height` rows: words, each of two integers, which `arrange` writes, as `[word][row]`; then for each group the
    /// steps of the rows, and their sums for the biases.
    pub(super) fn pack_left(
        &self,
        left: &impl Left,
        rows: Range<usize>,
        height: usize,
        arrange: impl Fn(&[i16], &mut [f32]),
        packed: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Self { isa, weights, group, .. } = *self;
        let (k, count, length) = (weights.columns, rows.len(), self.row_floats());
        let [lines, row, pairs, factors] = scratch.floats([2 * k, length, height * k / 2, 2 * height * (k / group)]);
        if count < height {
            packed.fill(0.0);
        }
        let (all_steps, all_sums) = factors.split_at_mut(height * (k / group));
        let groups = all_steps.chunks_exact_mut((k / group).max(1)).zip(all_sums.chunks_exact_mut((k / group).max(1)));
        for ((number, pairs), (to_steps, to_sums)) in rows.zip(pairs.chunks_exact_mut((k / 2).max(1))).zip(groups) {
            self.quantize(left, number, row, lines);
            let Quantized { integers, steps, sums } = self.parts_of(row);
            arrange(integers, pairs);
            to_steps.copy_from_slice(steps);
            if weights.has_biases() {
                let sums = steps.iter().zip(sums).map(|(step, sum)| step * *sum as f32);
                to_sums.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
            } else {
                to_sums.fill(0.0);
            }
        }
        let (words, factors) = packed.split_at_mut(height * k / 2);
        transpose(isa, pairs.split_at(count * (k / 2)).0, k / 2, words, height);
        transpose(isa, all_steps.split_at(count * (k / group)).0, k / group, factors, 2 * height);
        // Without columns there are no factors.
        let sums = factors.get_mut(height..).unwrap_or_default();
        transpose(isa, all_sums.split_at(count * (k / group)).0, k / group, sums, 2 * height);
    }

    /// Some columns of some rows of the product.
    fn stripe<T: Float>(
        &self,
        (first_row, tile): (usize, Tile),
        packed: &[f32],
        stripe: &mut Stripe<'_, T>,
        scratch: &mut Scratch,
        finish: &impl Finish,
    ) {
        let Self { isa, weights, group, parts, .. } = self;
        let Tile { rows: height, columns: wide } = tile;
        let mut registers = std::mem::take(&mut scratch.registers);
        finish.begin(*isa, &mut registers);
        let (k, width) = (weights.columns, stripe.width());
        let (padded, depth) = (width.next_multiple_of(wide), CHUNK.min(k));
        let [words, factors, sums, lines] = scratch.floats([
            padded * depth / 2,
            2 * padded * (depth / group),
            (stripe.rows() * parts).next_multiple_of(height) * padded,
            AT_ONCE * (depth / 2 + 2 * (depth / group)),
        ]);
        sums.fill(0.0);
        let columns = stripe.start()..stripe.start() + width;
        for start in (0..k).step_by(CHUNK) {
            let chunk = start..k.min(start + CHUNK);
            let [words_len, factors_len] = [wide * chunk.len() / 2, 2 * wide * (chunk.len() / group)];
            let words = words.split_at_mut(padded / wide * words_len).0;
            let factors = factors.split_at_mut(padded / wide * factors_len).0;
            self.pack_right(&chunk, &columns, (&mut *words, &mut *factors), lines);
            // A panel of columns stays in the L1 cache while it is multiplied with all rows.
            let rights = words.chunks_exact(words_len).zip(factors.chunks_exact(factors_len));
            for (number, (words, factors)) in rights.enumerate() {
                let packed = packed.chunks_exact(height * self.row_floats()).skip(stripe.first_row() * parts / height);
                for (left, sums) in packed.zip(sums.chunks_exact_mut(height * padded)) {
                    let (left, right) = (self.chunk(left, height, &chunk), Panel { words, factors });
                    let sums = sums.split_at_mut(number * wide).1;
                    panel::multiply(*isa, height, [left, right], *group, sums, padded);
                }
            }
        }
        self.store(first_row + stripe.first_row(), (sums, padded), stripe, &mut registers, finish);
        scratch.registers = registers;
    }

    /// Packs a chunk of some columns of the product: pairs of codes as `[panel][pair][column]`, and for each group of a panel the
    /// scales of its columns and their biases.
    fn pack_right(
        &self,
        chunk: &Range<usize>,
        columns: &Range<usize>,
        (words, factors): (&mut [f32], &mut [f32]),
        lines: &mut [f32],
    ) {
        let (Self { isa, weights, group, .. }, wide) = (self, panel::columns(self.isa));
        let (pairs, groups, at_once) = (chunk.len() / 2, chunk.len() / group, AT_ONCE.min(wide));
        if !columns.len().is_multiple_of(wide) {
            words.fill(0.0);
            factors.fill(0.0);
        }
        if let Some(unpacker) = &self.unpacker {
            return self.unpack_right(unpacker, chunk, columns, (words, factors));
        }
        let (code_lines, rest) = lines.split_at_mut(at_once * pairs);
        let (scale_lines, rest) = rest.split_at_mut(at_once * groups);
        let bias_lines = rest.split_at_mut(at_once * groups).0;
        for first in columns.clone().step_by(at_once) {
            let rows = first..columns.end.min(first + at_once);
            let count = rows.len();
            let of_groups = scale_lines.chunks_exact_mut(groups).zip(bias_lines.chunks_exact_mut(groups));
            for ((row, codes), (scales, biases)) in rows.zip(code_lines.chunks_exact_mut(pairs)).zip(of_groups) {
                weights.integer_codes::<i16>(*isa, row, chunk.start, bytemuck::cast_slice_mut(codes));
                prefetch(weights.codes_after(row, chunk.clone()));
                weights.factors(*isa, row, chunk.start / group, scales, biases);
            }
            let (panel, column) = ((first - columns.start) / wide, (first - columns.start) % wide);
            let words = &mut words[panel * wide * pairs + column..];
            transpose(*isa, code_lines.split_at(count * pairs).0, pairs, words, wide);
            let factors = &mut factors[panel * 2 * wide * groups + column..];
            transpose(*isa, scale_lines.split_at(count * groups).0, groups, factors, 2 * wide);
            transpose(*isa, bias_lines.split_at(count * groups).0, groups, &mut factors[wide..], 2 * wide);
        }
    }

    /// [`IntegerProduct::pack_right`] with an unpacker, eight columns at a time.
    fn unpack_right(
        &self,
        unpacker: &Unpacker<'_>,
        chunk: &Range<usize>,
        columns: &Range<usize>,
        (words, factors): (&mut [f32], &mut [f32]),
    ) {
        let (Self { isa, weights, group, .. }, wide) = (self, panel::columns(self.isa));
        let (pairs, groups) = (chunk.len() / 2, chunk.start / group..chunk.end / group);
        let bytes = [chunk.start, chunk.end].map(|column| weights.row_bytes() * column / weights.columns);
        let (start, length) = (bytes[0], bytes[1] - bytes[0]);
        let length_after = length.min(weights.row_bytes() - bytes[1]);
        for first in columns.clone().step_by(EIGHT) {
            // The last column is repeated.
            let numbers: [usize; EIGHT] = std::array::from_fn(|at| (first + at).min(columns.end - 1));
            let (panel, column) = ((first - columns.start) / wide, (first - columns.start) % wide);
            let codes = numbers.map(|row| weights.codes.part(row, start, length));
            unpacker.codes(codes, &mut words[panel * wide * pairs + column..], wide);
            for row in numbers {
                prefetch(weights.codes.part(row, bytes[1], length_after));
            }
            let ([low, high], _) = numbers.as_chunks::<ROWS>() else { return };
            for (column, rows) in [(column, low), (column + ROWS, high)] {
                let factors = &mut factors[panel * 2 * wide * groups.len() + column..];
                unpacker.scales.widen(*isa, *rows, groups.clone(), factors, 2 * wide);
                if let Some(biases) = &unpacker.biases {
                    biases.widen(*isa, *rows, groups.clone(), &mut factors[wide..], 2 * wide);
                }
            }
        }
        if unpacker.biases.is_none() {
            let kinds = factors.chunks_exact_mut(wide).skip(1).step_by(2);
            kinds.for_each(|biases| biases.fill(0.0));
        }
    }
}
