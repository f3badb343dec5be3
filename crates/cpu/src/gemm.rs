//! Products of matrices of many rows: both operands are packed into panels of `f32`, a tile at a time is computed in registers.
//!
//! The left operand is packed once and read by all tasks. A task has a stripe of columns of the result; it packs the right
//! operand's part block by block of `k`, small enough to stay in the second cache, and adds all tiles of the stripe for each.
//! A cell of the result is the sum over blocks of `k` of the sums inside the block: neither threads nor tiles change it.

use crate::finish::{Finish, Sums};
use crate::pool::{Scratch, Stripe, Workers};
use crate::simd::Isa;
use crate::simd::element::Float;
use crate::simd::gemm::{Tile, multiply};
use crate::simd::transpose::{AT_ONCE, transpose};
use std::ops::Range;

/// The `k` of a block. A multiple of every group of quantized weights that has a fast path.
pub const BLOCK: usize = 256;
/// Rows whose left panels are held at once.
pub(crate) const PASS_ROWS: usize = 576;
/// The most columns of a task.
pub(crate) const STRIPE: usize = 128;
/// Floats that packing gets to use.
const TEMPORARY: usize = AT_ONCE * BLOCK;

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

    /// Whether all its elements are bfloats.
    fn is_bfloat(&self) -> bool;
}

/// The right operand.
pub trait Right: Sync {
    /// Writes the part `k`, at most [`BLOCK`] long and starting at a multiple of it, of columns `n`, by either method of
    /// `panels`. There is room for `AT_ONCE` such columns in `temporary`, and for such a part of a row.
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, panels: &mut Panels<'_>, temporary: &mut [f32]);
}

/// Some columns of a block of the right operand, packed: `[panel][k][column of the panel]`.
#[derive(Debug)]
pub struct Panels<'a> {
    floats: &'a mut [f32],
    depth: usize,
    width: usize,
}

impl<'a> Panels<'a> {
    /// In memory for panels of so many rows and columns.
    pub(crate) fn new(floats: &'a mut [f32], depth: usize, width: usize) -> Self {
        Self { floats, depth, width }
    }

    /// Takes a row: element `(k, n)` for all columns, `k` counted from the start of the block.
    pub fn row(&mut self, k: usize, row: &[f32]) {
        let panels = self.floats.chunks_exact_mut((self.depth * self.width).max(1));
        for (panel, part) in panels.zip(row.chunks(self.width)) {
            if let Some(cells) = panel.chunks_exact_mut(self.width).nth(k) {
                cells.iter_mut().zip(part).for_each(|(cell, number)| *cell = *number);
            }
        }
    }

    /// Takes up to `AT_ONCE` columns, one after another, each as long as the block; `first` is a multiple of `AT_ONCE`.
    pub fn columns(&mut self, isa: Isa, first: usize, columns: &[f32]) {
        let at_once = AT_ONCE.min(self.width);
        for (number, columns) in columns.chunks((at_once * self.depth).max(1)).enumerate() {
            let first = first + number * at_once;
            let start = first / self.width * self.width * self.depth + first % self.width;
            let panel = self.floats.get_mut(start..).unwrap_or_default();
            transpose(isa, columns, self.depth, panel, self.width);
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
    let tile = Tile::of(isa);
    for (pass, out) in out.chunks_mut((PASS_ROWS * size.n).max(1)).enumerate() {
        let rows = pass * PASS_ROWS..(pass * PASS_ROWS + PASS_ROWS).min(size.m);
        let panel_len = tile.rows * size.k;
        workers.prepared(|shared, workers| {
            let [packed] = shared.floats([rows.len().div_ceil(tile.rows) * panel_len]);
            workers.chunks(packed, panel_len, |panel, packed, scratch| {
                let start = rows.start + panel * tile.rows;
                pack_left(isa, left, start..(start + tile.rows).min(rows.end), packed, tile.rows, scratch);
            });
            let packed = &*packed;
            let width = workers.stripe_width(size.n, tile.columns, STRIPE);
            workers.stripes(out, size.n, width, |_, stripe, scratch| {
                stripe_product(isa, (size.k, rows.start), (packed, right), stripe, scratch, finish);
            });
        });
    }
}

/// Packs rows of the left operand as `[k][row]`, with zeros below the last.
fn pack_left(isa: Isa, left: &impl Left, rows: Range<usize>, packed: &mut [f32], height: usize, scratch: &mut Scratch) {
    let [lines] = scratch.floats([height * BLOCK]);
    if rows.len() < height {
        packed.fill(0.0);
    }
    for (block, packed) in packed.chunks_mut(height * BLOCK).enumerate() {
        let (start, depth) = (block * BLOCK, packed.len() / height);
        for (row, line) in rows.clone().zip(lines.chunks_exact_mut(depth)) {
            left.row(isa, row, start..start + depth, line);
        }
        transpose(isa, part(lines, 0..rows.len() * depth), depth, packed, height);
    }
}

fn stripe_product<T: Float>(
    isa: Isa,
    (k, first_row): (usize, usize),
    (packed, right): (&[f32], &impl Right),
    stripe: &mut Stripe<'_, T>,
    scratch: &mut Scratch,
    finish: &impl Finish,
) {
    let (tile, width) = (Tile::of(isa), stripe.width());
    let (padded, columns) = (width.next_multiple_of(tile.columns), stripe.start()..stripe.start() + width);
    let mut registers = std::mem::take(&mut scratch.registers);
    finish.begin(isa, &mut registers);
    let [floats, sums, temporary] =
        scratch.floats([padded * BLOCK.min(k), stripe.rows().next_multiple_of(tile.rows) * padded, TEMPORARY]);
    sums.fill(0.0);
    for start in (0..k).step_by(BLOCK) {
        let depth = BLOCK.min(k - start);
        let floats = floats.split_at_mut(padded * depth).0;
        if padded > width {
            floats.fill(0.0);
        }
        let mut panels = Panels::new(floats, depth, tile.columns);
        right.pack(isa, start..start + depth, columns.clone(), &mut panels, temporary);
        for (left, sums) in packed.chunks_exact(tile.rows * k).zip(sums.chunks_exact_mut(tile.rows * padded)) {
            let left = part(left, start * tile.rows..(start + depth) * tile.rows);
            for (number, right) in panels.floats.chunks_exact(tile.columns * depth).enumerate() {
                multiply(isa, left, right, sums.split_at_mut(number * tile.columns).1, padded);
            }
        }
    }
    finish.store(isa, first_row, Sums { floats: sums, stride: padded }, stripe, &mut registers);
    scratch.registers = registers;
}

pub(crate) fn part<T>(slice: &[T], range: Range<usize>) -> &[T] {
    slice.get(range).unwrap_or_default()
}

#[cfg(test)]
mod tests;
