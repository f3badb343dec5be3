//! Products of matrices of many rows: both operands are packed into panels of rows of `f32`, a tile of cells at a time is computed
//! in registers.
//!
//! The left operand is packed once and read by all tasks. A task has a stripe of columns of the result, packs the right operand's
//! part as rows too, and computes some rows of the stripe at a time, block by block of `k`, so that what a tile reads is in the
//! caches. Between blocks the strands of the cells wait in memory: neither threads nor tiles nor blocks change a cell.

use crate::finish::{Finish, Sums};
use crate::pool::{Scratch, Stripe, Workers};
use crate::simd::matmul::product::{LEFT_PAD, MOST_CELLS, PanelPair, RIGHT_PAD, STRANDS, multiply, tile};
use crate::simd::matmul::transpose::{AT_ONCE, transpose};
use crate::simd::numeric::element::Float;
use crate::simd::{Isa, Tile};
use std::ops::Range;

/// The `k` that is packed at once. A multiple of every group of quantized weights that has a fast path.
pub const BLOCK: usize = 256;
/// Rows whose left panels are held at once.
pub(crate) const PASS_ROWS: usize = 576;
/// The most columns of a task.
pub(crate) const STRIPE: usize = 128;
/// Floats that packing gets to use.
const TEMPORARY: usize = AT_ONCE * BLOCK;
/// Steps of 16 elements of `k` that a tile takes before the next tile has its turn: its panels then fit the first cache. A multiple
/// of the steps of a `BLOCK`.
const STEPS: usize = 32;
/// Rows of a stripe that are computed together, a multiple of the rows of every tile: their strands fit the second cache.
const ROWS: usize = 48;

/// The sizes of a product: `[m, k] × [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of the result.
    pub m: usize,
    /// What is summed over.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

/// The left operand.
pub trait Left: Sync {
    /// Writes the part `k` of row `m`, widened.
    fn row(&self, isa: Isa, m: usize, k: Range<usize>, to: &mut [f32]);

    /// Whether it is stored in single precision, so that 16 bits would not hold it.
    fn is_single(&self) -> bool;
}

/// The right operand.
pub trait Right: Sync {
    /// Writes the part `k`, at most [`BLOCK`] long and starting at a multiple of it, of columns `n`, by either method of
    /// `packed`. There is room for `AT_ONCE` such columns in `temporary`, and for `AT_ONCE` such parts of rows.
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, packed: &mut PackedColumns<'_>, temporary: &mut [f32]);
}

/// Rows of an operand, packed as `simd::matmul::product` wants them: `[block][panel][step][row of the panel][lane]`. What is multiplied in
/// one go lies together: at the distance of long rows it would fall on the same few sets of a cache.
#[derive(Debug)]
struct PackedRows<'a> {
    floats: &'a mut [f32],
    /// Of a row.
    steps: usize,
    /// How many there are, a multiple of those of a panel.
    count: usize,
    /// Rows of a panel.
    height: usize,
    /// What the last step is filled up with.
    pad: f32,
}

impl PackedRows<'_> {
    /// Where a step of a row starts.
    fn start(&self, row: usize, step: usize) -> usize {
        let (panel, within) = (row / self.height, row % self.height);
        let block = step / STEPS * STEPS;
        let steps = STEPS.min(self.steps - block);
        (block * self.count + (panel * steps + step - block) * self.height + within) * STRANDS
    }

    /// Takes a part of a row that starts with a step; unless it is the end of the row, it ends with one.
    fn put(&mut self, row: usize, first_step: usize, part: &[f32]) {
        let start = self.start(row, first_step);
        let to = self.floats.get_mut(start..).unwrap_or_default();
        let (whole, rest) = part.as_chunks::<STRANDS>();
        let mut steps = to.chunks_mut(self.height * STRANDS);
        for (from, to) in whole.iter().zip(&mut steps) {
            if let Some(to) = to.first_chunk_mut() {
                *to = *from;
            }
        }
        if let Some(to) = steps.next().and_then(<[f32]>::first_chunk_mut::<STRANDS>).filter(|_| !rest.is_empty()) {
            *to = [self.pad; STRANDS];
            to.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        }
    }
}

/// The columns of a stripe of the right operand, packed as rows.
#[derive(Debug)]
pub struct PackedColumns<'a> {
    rows: PackedRows<'a>,
    /// The block that is being packed.
    block: Range<usize>,
    /// Room for `AT_ONCE` rows of a stripe.
    turned: &'a mut [f32],
}

impl PackedColumns<'_> {
    /// Takes some columns from number `first` on, one after another, each as long as the block.
    pub fn columns(&mut self, first: usize, columns: &[f32]) {
        for (column, floats) in (first..).zip(columns.chunks_exact(self.block.len().max(1))) {
            self.rows.put(column, self.block.start / STRANDS, floats);
        }
    }

    /// Takes up to `AT_ONCE` rows of `width` columns, one after another, from row `first` of the block on, which is a multiple of
    /// `AT_ONCE`; fewer only at the end of the block.
    pub fn rows(&mut self, isa: Isa, first: usize, rows: &[f32], width: usize) {
        let turned = self.turned.split_at_mut(width * AT_ONCE).0;
        transpose(isa, rows, width, turned, AT_ONCE);
        let count = rows.len().checked_div(width).unwrap_or(0);
        if count < AT_ONCE {
            let columns = turned.chunks_exact_mut(AT_ONCE);
            columns.for_each(|column| column.iter_mut().skip(count).for_each(|float| *float = self.rows.pad));
        }
        // The columns of a panel lie side by side, here as there.
        let height = self.rows.height;
        for (panel, floats) in turned.chunks(height * AT_ONCE).enumerate() {
            let start = self.rows.start(panel * height, (self.block.start + first) / STRANDS);
            if let Some(to) = self.rows.floats.get_mut(start..start + floats.len()) {
                to.copy_from_slice(floats);
            }
        }
    }
}

/// Writes the product, rounded once, in row-major order to `out`.
pub fn product<T: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    size: Size,
    left: &impl Left,
    right: &impl Right,
    out: &mut [T],
    finish: &impl Finish,
) {
    debug_assert_eq!(out.len(), size.m * size.n, "the result has the size of the product");
    let tile = tile(isa);
    for (pass, out) in out.chunks_mut((PASS_ROWS * size.n).max(1)).enumerate() {
        let rows = pass * PASS_ROWS..(pass * PASS_ROWS + PASS_ROWS).min(size.m);
        let panel_len = tile.rows * size.k.next_multiple_of(STRANDS);
        workers.prepared(|shared, workers| {
            let [packed] = shared.floats([rows.len().div_ceil(tile.rows) * panel_len]);
            workers.chunks(packed, panel_len, |panel, packed, scratch| {
                let start = rows.start + panel * tile.rows;
                pack_left(isa, left, size.k, start..(start + tile.rows).min(rows.end), packed, scratch);
            });
            let packed = &*packed;
            let width = workers.stripe_width(size.n, tile.columns, STRIPE / tile.columns * tile.columns);
            workers.stripes(out, size.n, width, |_, stripe, scratch| {
                stripe_product(isa, (size.k, rows.start), (packed, right), stripe, scratch, finish);
            });
        });
    }
}

/// Packs the rows of one panel of the left operand, with zeros below the last.
fn pack_left(isa: Isa, left: &impl Left, k: usize, rows: Range<usize>, packed: &mut [f32], scratch: &mut Scratch) {
    let [line] = scratch.floats([BLOCK]);
    let height = tile(isa).rows;
    if rows.len() < height {
        packed.fill(0.0);
    }
    let mut packed = PackedRows { floats: packed, steps: k.div_ceil(STRANDS), count: height, height, pad: LEFT_PAD };
    for start in (0..k).step_by(BLOCK) {
        let line = line.split_at_mut(BLOCK.min(k - start)).0;
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
    let waiting = if steps > STEPS { ROWS * padded * STRANDS } else { 0 };
    let [floats, sums, waiting, temporary, turned] =
        scratch.floats([padded * steps * STRANDS, rows * padded, waiting, TEMPORARY, padded * AT_ONCE]);
    if padded > width {
        floats.fill(0.0);
    }
    let columns = stripe.start()..stripe.start() + width;
    let rows = PackedRows { floats: &mut *floats, steps, count: padded, height: tile.columns, pad: RIGHT_PAD };
    let mut packed = PackedColumns { rows, block: 0..0, turned };
    for start in (0..k).step_by(BLOCK) {
        packed.block = start..k.min(start + BLOCK);
        right.pack(isa, packed.block.clone(), columns.clone(), &mut packed, temporary);
    }
    let panel_len = (tile.rows * steps * STRANDS).max(1);
    let parts = left.chunks(ROWS / tile.rows * panel_len).zip(sums.chunks_mut(ROWS * padded));
    if steps == 0 {
        sums.fill(0.0);
    } else {
        let product = TileProduct { isa, tile, steps, padded };
        parts.for_each(|(left, sums)| product.part(left, floats, waiting, sums));
    }
    finish.store(isa, first_row, Sums { floats: sums, stride: padded }, stripe, &mut registers);
    scratch.registers = registers;
}

/// Products of panels, tile by tile.
struct TileProduct {
    isa: Isa,
    tile: Tile,
    /// Of a row.
    steps: usize,
    /// Columns of the sums.
    padded: usize,
}

impl TileProduct {
    /// The products of some panels of the left operand with all of the right one. `waiting` has room for their strands if they are
    /// longer than a block.
    fn part(&self, left: &[f32], right: &[f32], waiting: &mut [f32], sums: &mut [f32]) {
        let (Tile { rows, columns }, cells) = (self.tile, self.tile.cells());
        let (mut unused, mut totals) = ([[0.0; STRANDS]; MOST_CELLS], [0.0; MOST_CELLS]);
        let totals = totals.split_at_mut(cells).0;
        let waiting = waiting.as_chunks_mut::<STRANDS>().0;
        for start in (0..self.steps).step_by(STEPS) {
            let block = start..self.steps.min(start + STEPS);
            let of = |height: usize| block.start * height * STRANDS..block.end * height * STRANDS;
            let (is_first, is_last) = (start == 0, block.end == self.steps);
            let panel = |number: usize| {
                let start = number * rows * self.steps * STRANDS;
                part(left, start + of(rows).start..start + of(rows).end)
            };
            let panels = left.len() / (rows * self.steps * STRANDS);
            let mut waiting = waiting.chunks_exact_mut(cells);
            let right = part(right, of(self.padded)).chunks_exact(columns * block.len() * STRANDS);
            for (column, right) in right.enumerate() {
                for row in 0..panels {
                    let strands = waiting.next().unwrap_or(&mut unused);
                    let next = panel((row + 1) % panels);
                    multiply(self.isa, PanelPair { left: panel(row), right, next, is_first, is_last }, strands, totals);
                    if is_last {
                        let sums = sums.get_mut(row * rows * self.padded + column * columns..).unwrap_or_default();
                        for (sums, totals) in sums.chunks_mut(self.padded).zip(totals.chunks_exact(columns)) {
                            sums.iter_mut().zip(totals).for_each(|(sum, total)| *sum = *total);
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn part<T>(slice: &[T], range: Range<usize>) -> &[T] {
    slice.get(range).unwrap_or_default()
}

#[cfg(test)]
mod tests;
