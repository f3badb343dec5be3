//! Products of matrices with many rows: both operands are packed into panels of rows of `f32`, and tiles of cells are computed in
//! registers.
//!
//! The left operand is packed once and read by all tasks. A task computes a stripe of columns of the result: it packs the right
//! operand's columns as rows too, and computes some rows of the stripe at a time, block by block of `k`, so that the inputs of a
//! tile are in the caches. Between blocks the strands of the cells are kept in memory: neither threads nor tiles nor blocks
//! change the result.
#![allow(clippy::indexing_slicing, reason = "packed operands and offsets are computed from the same sizes")]

use crate::finish::{Finish, Sums};
use crate::pool::{OutRows, Scratch, Stripe, Workers};
use crate::simd::matmul::product::{LEFT_PAD, MOST_CELLS, PanelPair, RIGHT_PAD, STRANDS, multiply, tile};
use crate::simd::matmul::transpose::{AT_ONCE, transpose};
use crate::simd::numeric::element::Float;
use crate::simd::{Isa, Tile};
use std::ops::Range;

/// Elements of `k` that are packed at once. A multiple of every group of quantized weights that has a fast path.
pub const BLOCK: usize = 256;
/// Rows of the left operand that are packed at once.
pub(crate) const PASS_ROWS: usize = 576;
/// Maximal columns of a task.
pub(crate) const STRIPE: usize = 128;
/// Floats of temporary memory for packing.
const TEMPORARY: usize = AT_ONCE * BLOCK;
/// Steps of 16 elements of `k` that a tile computes before the next tile: their panels fit the L1 cache. A multiple of the steps
/// of a `BLOCK`.
const STEPS: usize = 32;
/// Rows of a stripe that are computed together, a multiple of the rows of every tile: their strands fit the L2 cache.
const ROWS: usize = 48;

/// The sizes of a product: `[m, k] × [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of the result.
    pub m: usize,
    /// The length of the sums.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

/// The left operand.
pub trait Left: Sync {
    /// Writes elements `k` of row `m` as floats.
    fn row(&self, isa: Isa, m: usize, k: Range<usize>, to: &mut [f32]);

    /// Returns `true` if 16 bits would not hold its elements.
    fn is_single(&self) -> bool;
}

/// The right operand.
pub trait Right: Sync {
    /// Packs a block of some columns, by one of the methods of `packed`.
    fn pack(&self, isa: Isa, packed: &mut PackedColumns<'_>);
}

/// A product whose right operand is not yet given.
#[derive(Debug)]
pub struct Product<'a, L, T, F> {
    /// The instruction set.
    pub isa: Isa,
    /// The sizes of the product.
    pub size: Size,
    /// The left operand.
    pub left: &'a L,
    /// The rows of the result.
    pub out: OutRows<'a, T>,
    /// How sums are stored.
    pub finish: &'a F,
}

/// Rows of an operand, packed for `simd::matmul::product`: `[block][panel][step][row of the panel][lane]`. Rows are not stored
/// one after another because elements at the distance of long rows share a few sets of a cache.
#[derive(Debug)]
struct PackedRows<'a> {
    floats: &'a mut [f32],
    /// Steps of a row.
    steps: usize,
    /// The number of rows, a multiple of `height`.
    count: usize,
    /// Rows of a panel.
    height: usize,
    /// Fills up the last step.
    pad: f32,
}

impl PackedRows<'_> {
    /// The offset of a step of a row.
    fn start(&self, row: usize, step: usize) -> usize {
        let (panel, within) = (row / self.height, row % self.height);
        let block = step / STEPS * STEPS;
        let steps = STEPS.min(self.steps - block);
        (block * self.count + (panel * steps + step - block) * self.height + within) * STRANDS
    }

    /// Stores a part of a row that starts with a step. Unless it is the end of the row, it consists of whole steps.
    fn put(&mut self, row: usize, first_step: usize, part: &[f32]) {
        let start = self.start(row, first_step);
        let (whole, rest) = part.as_chunks::<STRANDS>();
        let mut steps = self.floats[start..].chunks_mut(self.height * STRANDS);
        for (from, to) in whole.iter().zip(&mut steps) {
            to[..STRANDS].copy_from_slice(from);
        }
        if let Some(to) = steps.next().filter(|_| !rest.is_empty()) {
            to[..rest.len()].copy_from_slice(rest);
            to[rest.len()..STRANDS].fill(self.pad);
        }
    }
}

/// A block of the columns of a stripe of the right operand, packed as rows.
#[derive(Debug)]
pub struct PackedColumns<'a> {
    rows: PackedRows<'a>,
    /// The range of `k`, at most [`BLOCK`] long and starting at a multiple of it.
    block: Range<usize>,
    columns: Range<usize>,
    /// [`TEMPORARY`] floats.
    temporary: &'a mut [f32],
    /// `AT_ONCE` rows of a stripe.
    turned: &'a mut [f32],
}

impl PackedColumns<'_> {
    /// Packs column by column: `read` gets the range of `k`, the column, and where to write its elements.
    pub fn by_columns(&mut self, read: impl Fn(Range<usize>, usize, &mut [f32])) {
        let floats = &mut self.temporary[..self.block.len()];
        for (index, column) in self.columns.clone().enumerate() {
            read(self.block.clone(), column, floats);
            self.rows.put(index, self.block.start / STRANDS, floats);
        }
    }

    /// Packs row by row: `read` gets the row, the range of columns, and where to write its elements.
    pub fn by_rows(&mut self, isa: Isa, read: impl Fn(usize, Range<usize>, &mut [f32])) {
        let (width, height) = (self.columns.len(), self.rows.height);
        for first in self.block.clone().step_by(AT_ONCE) {
            let count = AT_ONCE.min(self.block.end - first);
            let rows = &mut self.temporary[..count * width];
            for (row, to) in (first..).zip(rows.chunks_exact_mut(width.max(1))) {
                read(row, self.columns.clone(), to);
            }
            let turned = &mut self.turned[..width * AT_ONCE];
            transpose(isa, rows, width, turned, AT_ONCE);
            if count < AT_ONCE {
                turned.chunks_exact_mut(AT_ONCE).for_each(|column| column[count..].fill(self.rows.pad));
            }
            // The columns of a panel are contiguous in both layouts.
            for (panel, floats) in turned.chunks(height * AT_ONCE).enumerate() {
                let start = self.rows.start(panel * height, first / STRANDS);
                self.rows.floats[start..start + floats.len()].copy_from_slice(floats);
            }
        }
    }
}

impl<L: Left, T: Float, F: Finish> Product<'_, L, T, F> {
    /// Computes the product with a right operand, which is packed.
    pub fn times(self, workers: &mut Workers<'_>, right: &impl Right) {
        let Self { isa, size, left, mut out, finish } = self;
        debug_assert!(
            size.n == 0 || [out.count(), out.columns()] == [size.m, size.n],
            "the result has the product's size"
        );
        let tile = tile(isa);
        for first in (0..size.m).step_by(PASS_ROWS) {
            let (rows, mut out) = (first..size.m.min(first + PASS_ROWS), out.part(first, PASS_ROWS));
            let panel_len = tile.rows * size.k.next_multiple_of(STRANDS);
            workers.prepared(|shared, workers| {
                let [packed] = shared.floats([rows.len().div_ceil(tile.rows) * panel_len]);
                workers.chunks(packed, panel_len, |panel, packed, scratch| {
                    let start = rows.start + panel * tile.rows;
                    pack_left(isa, left, size.k, start..(start + tile.rows).min(rows.end), packed, scratch);
                });
                let packed = &*packed;
                let width = workers.stripe_width(size.n, tile.columns, STRIPE / tile.columns * tile.columns);
                out.stripes(workers, width, |stripe, scratch| {
                    stripe_product(isa, (size.k, rows.start), (packed, right), stripe, scratch, finish);
                });
            });
        }
    }
}

/// Packs the rows of one panel of the left operand, followed by rows of zeros.
fn pack_left(isa: Isa, left: &impl Left, k: usize, rows: Range<usize>, packed: &mut [f32], scratch: &mut Scratch) {
    let [line] = scratch.floats([BLOCK]);
    let height = tile(isa).rows;
    if rows.len() < height {
        packed.fill(0.0);
    }
    let mut packed = PackedRows { floats: packed, steps: k.div_ceil(STRANDS), count: height, height, pad: LEFT_PAD };
    for start in (0..k).step_by(BLOCK) {
        let line = &mut line[..BLOCK.min(k - start)];
        for (within, row) in rows.clone().enumerate() {
            left.row(isa, row, start..start + line.len(), line);
            packed.put(within, start / STRANDS, line);
        }
    }
}

fn stripe_product<T: Float>(
    isa: Isa,
    (k, first_row): (usize, usize),
    (left, right): (&[f32], &impl Right),
    stripe: &mut Stripe<'_, T>,
    scratch: &mut Scratch,
    finish: &impl Finish,
) {
    let (tile, width) = (tile(isa), stripe.width());
    let (padded, steps) = (width.next_multiple_of(tile.columns), k.div_ceil(STRANDS));
    let mut registers = std::mem::take(&mut scratch.registers);
    finish.begin(isa, &mut registers);
    let rows = stripe.rows().next_multiple_of(tile.rows);
    // Cells whose products fit one block need no memory for their strands.
    let kept = if steps > STEPS { ROWS * padded * STRANDS } else { 0 };
    let [floats, sums, kept, temporary, turned] =
        scratch.floats([padded * steps * STRANDS, rows * padded, kept, TEMPORARY, padded * AT_ONCE]);
    if padded > width {
        floats.fill(0.0);
    }
    let columns = stripe.start()..stripe.start() + width;
    let rows = PackedRows { floats: &mut *floats, steps, count: padded, height: tile.columns, pad: RIGHT_PAD };
    let mut packed = PackedColumns { rows, block: 0..0, columns, temporary, turned };
    for start in (0..k).step_by(BLOCK) {
        packed.block = start..k.min(start + BLOCK);
        right.pack(isa, &mut packed);
    }
    let panel_len = (tile.rows * steps * STRANDS).max(1);
    let parts = left.chunks(ROWS / tile.rows * panel_len).zip(sums.chunks_mut(ROWS * padded));
    if steps == 0 {
        sums.fill(0.0);
    } else {
        let product = TileProduct { isa, tile, steps, padded };
        parts.for_each(|(left, sums)| product.multiply(left, floats, kept, sums));
    }
    finish.store(isa, Sums { floats: sums, stride: padded, first_row }, stripe, &mut registers);
    scratch.registers = registers;
}

/// Products of panels, tile by tile.
struct TileProduct {
    isa: Isa,
    tile: Tile,
    /// Steps of a row.
    steps: usize,
    /// Columns of the sums.
    padded: usize,
}

impl TileProduct {
    /// Multiplies some panels of the left operand with all of the right one. `kept` holds their strands between blocks.
    fn multiply(&self, left: &[f32], right: &[f32], kept: &mut [f32], sums: &mut [f32]) {
        let (Tile { rows, columns }, cells) = (self.tile, self.tile.cells());
        let (mut unused, mut totals) = ([[0.0; STRANDS]; MOST_CELLS], [0.0; MOST_CELLS]);
        let totals = &mut totals[..cells];
        let kept = kept.as_chunks_mut::<STRANDS>().0;
        for start in (0..self.steps).step_by(STEPS) {
            let block = start..self.steps.min(start + STEPS);
            let of = |height: usize| block.start * height * STRANDS..block.end * height * STRANDS;
            let (is_first, is_last) = (start == 0, block.end == self.steps);
            let panel = |number: usize| {
                let start = number * rows * self.steps * STRANDS;
                &left[start + of(rows).start..start + of(rows).end]
            };
            let panels = left.len() / (rows * self.steps * STRANDS);
            let mut kept = kept.chunks_exact_mut(cells);
            let right = right[of(self.padded)].chunks_exact(columns * block.len() * STRANDS);
            for (column, right) in right.enumerate() {
                for row in 0..panels {
                    let strands = kept.next().unwrap_or(&mut unused);
                    let next = panel((row + 1) % panels);
                    multiply(self.isa, PanelPair { left: panel(row), right, next, is_first, is_last }, strands, totals);
                    if is_last {
                        let sums = &mut sums[row * rows * self.padded + column * columns..];
                        for (sums, totals) in sums.chunks_mut(self.padded).zip(totals.chunks_exact(columns)) {
                            sums[..columns].copy_from_slice(totals);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
