//! Many rows on machines that multiply tiles of bytes: activations and codes are unpacked once, for all threads, and threads share
//! blocks of the result.
#![allow(clippy::indexing_slicing, reason = "packed operands and offsets are computed from the same sizes")]

use super::{IntegerProduct, shares};
use crate::finish::Finish;
use crate::gemm::Left;
use crate::pool::{OutRows, Scratch, Stripe, Workers};
use crate::simd::matmul::transpose::transpose;
use crate::simd::numeric::element::Float;
use crate::simd::quant::activation::{CELL, CHUNK, split_bytes};
use crate::simd::quant::panel::Panel;
use crate::simd::quant::tiles::{Codes, MEMORY, ROWS, SIDE, Tiles, code_floats};
use std::ops::Range;

/// Floats of codes that are unpacked at once, unless 32 rows have more: they stay in the caches until they are read.
const MOST_FLOATS: usize = 1 << 20;
/// The most times 32 columns of a task.
const MOST_BLOCKS: usize = 4;

/// Operands as tiles have them.
#[derive(Clone, Copy)]
struct Packed<'a> {
    /// Panels of 16 rows of integers.
    left: &'a [f32],
    /// Blocks of 32 rows of weights.
    codes: &'a [f32],
    /// The number of the first of these blocks.
    first_block: usize,
}

impl IntegerProduct<'_> {
    /// Writes some rows of the product, rounded once, to `out`.
    pub(super) fn in_tiles<T: Float>(
        &self,
        tiles: Tiles,
        workers: &mut Workers<'_>,
        rows: Range<usize>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let (n, count, blocks) = (self.weights.rows, rows.len() * self.parts, self.weights.rows.div_ceil(ROWS));
        let (first, length) = (rows.start * self.parts, SIDE * self.row_floats());
        let (panels, block) = (count.div_ceil(SIDE), code_floats(self.weights.columns, self.group));
        let at_once = (MOST_FLOATS / block.max(1)).clamp(1, blocks.max(1));
        workers.prepared(|shared, workers| {
            let [packed, codes] = shared.floats([panels * length, at_once * block]);
            workers.chunks(packed, length, |panel, packed, scratch| {
                let rows = first + panel * SIDE..first + count.min((panel + 1) * SIDE);
                let arrange = |integers: &[i16], to: &mut [f32]| {
                    split_bytes(self.isa, integers, self.group, bytemuck::cast_slice_mut(to));
                };
                self.pack_left(left, rows, SIDE, arrange, packed, scratch);
            });
            for first_block in (0..blocks).step_by(at_once) {
                let count = at_once.min(blocks - first_block);
                workers.chunks(&mut codes[..count * block], block, |number, codes, _| {
                    self.unpack_codes(first_block + number, codes);
                });
                let packed = Packed { left: packed, codes, first_block };
                let columns = first_block * ROWS..n.min((first_block + count) * ROWS);
                // A task reads its operands from the caches of others: that takes about half as long as their product.
                let cost = |height: usize, width: usize| 2 * height * width + height + width;
                let [height, width] = shares([panels, count], MOST_BLOCKS, workers.pool.threads(), cost);
                let size = [height * SIDE / self.parts, width * ROWS];
                out.blocks(workers, columns, size, |stripe, scratch| {
                    self.tiles_block(tiles, rows.start, packed, stripe, scratch, finish);
                });
            }
        });
    }

    /// Unpacks the codes of 32 rows of weights, and their factors.
    fn unpack_codes(&self, number: usize, to: &mut [f32]) {
        let Self { isa, weights, group, .. } = *self;
        let rows = number * ROWS..weights.rows.min((number + 1) * ROWS);
        if rows.len() < ROWS {
            to.fill(0.0);
        }
        let (mut scales, mut biases) = ([0.0; CHUNK / 16], [0.0; CHUNK / 16]);
        for (at, row) in rows.enumerate() {
            for start in (0..weights.columns).step_by(CHUNK) {
                let length = CHUNK.min(weights.columns - start);
                let (bytes, factors) = to[code_floats(start, group)..].split_at_mut(ROWS * length / 4);
                let bytes = &mut bytes[at * length / 4..(at + 1) * length / 4];
                weights.integer_codes::<u8>(isa, row, start, bytemuck::cast_slice_mut(bytes));
                let (scales, biases) = (&mut scales[..length / group], &mut biases[..length / group]);
                weights.factors(isa, row, start / group, scales, biases);
                let cells = scales.chunks(CELL / group).zip(biases.chunks(CELL / group));
                for ((scales, biases), to) in cells.zip(factors.chunks_mut(2 * ROWS * (CELL / group))) {
                    let to = to.as_chunks_mut::<2>().0[at * scales.len()..].iter_mut();
                    scales.iter().zip(biases).zip(to).for_each(|((scale, bias), to)| *to = [*scale, *bias]);
                }
            }
        }
    }

    /// Some columns of some rows of the product.
    fn tiles_block<T: Float>(
        &self,
        tiles: Tiles,
        first_row: usize,
        packed: Packed<'_>,
        stripe: &mut Stripe<'_, T>,
        scratch: &mut Scratch,
        finish: &impl Finish,
    ) {
        let Self { isa, weights, group, parts, .. } = *self;
        let mut registers = std::mem::take(&mut scratch.registers);
        finish.begin(isa, &mut registers);
        let (columns, padded, length) =
            (weights.columns, stripe.width().next_multiple_of(ROWS), SIDE * self.row_floats());
        let (first_panel, panels) = (stripe.first_row() * parts / SIDE, (stripe.rows() * parts).div_ceil(SIDE));
        let cells = panels * SIDE * padded;
        let [memory, tiled, sums] = scratch.floats([MEMORY, cells, cells]);
        tiled.fill(0.0);
        let first_block = stripe.start() / ROWS - packed.first_block;
        let floats = &packed.codes[first_block * code_floats(columns, group)..];
        let floats = &floats[..padded / ROWS * code_floats(columns, group)];
        let lefts = packed.left.get(first_panel * length..).unwrap_or_default();
        for start in (0..columns).step_by(CHUNK) {
            let codes = Codes { floats, columns, start, group, is_signed: weights.has_signed_codes() };
            for (left, tiled) in lefts.chunks_exact(length).zip(tiled.chunks_exact_mut(SIDE * padded)) {
                let (words, factors) = left.split_at(SIDE * columns / 2);
                tiles.multiply(Panel { words, factors }, codes, memory, tiled);
            }
        }
        for (tiled, sums) in tiled.chunks_exact(SIDE * padded).zip(sums.chunks_exact_mut(SIDE * padded)) {
            for (number, tile) in tiled.chunks_exact(SIDE * SIDE).enumerate() {
                transpose(isa, tile, SIDE, &mut sums[number * SIDE..], padded);
            }
        }
        self.store(first_row + stripe.first_row(), (sums, padded), stripe, &mut registers, finish);
        scratch.registers = registers;
    }
}

#[cfg(test)]
mod tests;
