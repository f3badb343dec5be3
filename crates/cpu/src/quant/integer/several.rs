//! Several rows: codes of sixteen rows of weights are unpacked in registers, each for a batch of rows.
#![allow(clippy::indexing_slicing, reason = "the table has all rows")]

use super::{IntegerProduct, shares};
use crate::finish::Finish;
use crate::gemm::Left;
use crate::pool::{OutRows, Scratch, Stripe, Workers};
use crate::simd::numeric::element::Float;
use crate::simd::quant::activation::{Quantized, arrange};
use crate::simd::quant::sixteen::{SIXTEEN, Sixteen};
use std::ops::Range;

/// The most pairs of rows whose sums are held in the cache while codes are in registers.
const BATCH: usize = 32;
/// The most times sixteen columns of a task.
const MOST_BLOCKS: usize = 16;

impl IntegerProduct<'_> {
    /// Writes the product, rounded once, to `out`.
    pub(super) fn several<T: Float>(
        &self,
        sixteen: &Sixteen<'_>,
        workers: &mut Workers<'_>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let (n, count, length) = (self.weights.rows, out.count() * self.parts, sixteen.pair_floats());
        workers.prepared(|shared, workers| {
            let [table] = shared.floats([count.div_ceil(2) * length]);
            workers.chunks(table, length, |pair, table, scratch| {
                self.arrange_pair(sixteen, left, 2 * pair..count.min(2 * pair + 2), table, scratch);
            });
            let table = &*table;
            // Unpacking codes takes about as long as multiplying them with a pair, and so does beginning a task.
            let cost = |height: usize, width: usize| (height * BATCH.min(count.div_ceil(2)) + 1) * width + 1;
            let sizes = [count.div_ceil(2 * BATCH), n.div_ceil(SIXTEEN)];
            let [height, width] = shares(sizes, MOST_BLOCKS, workers.pool.threads(), cost);
            out.blocks(workers, 0..n, [height * 2 * BATCH / self.parts, width * SIXTEEN], |stripe, scratch| {
                self.sixteens(sixteen, table, stripe, scratch, finish);
            });
        });
    }

    /// Quantizes two rows, or the last one, which gets a row of zeros beside it.
    fn arrange_pair(
        &self,
        sixteen: &Sixteen<'_>,
        left: &impl Left,
        rows: Range<usize>,
        table: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let [lines, row] = scratch.floats([2 * self.weights.columns, self.row_floats()]);
        if rows.len() < 2 {
            table.fill(0.0);
        }
        for (at, number) in rows.enumerate() {
            self.quantize(left, number, row, lines);
            let Quantized { integers, steps, sums } = self.parts_of(row);
            arrange(self.isa, integers, (steps, sums), sixteen.layout, at, table);
        }
    }

    /// Some columns of some rows of the product.
    fn sixteens<T: Float>(
        &self,
        sixteen: &Sixteen<'_>,
        table: &[f32],
        stripe: &mut Stripe<'_, T>,
        scratch: &mut Scratch,
        finish: &impl Finish,
    ) {
        let mut registers = std::mem::take(&mut scratch.registers);
        finish.begin(self.isa, &mut registers);
        let columns = stripe.start()..stripe.start() + stripe.width();
        let (width, length) = (stripe.width().next_multiple_of(SIXTEEN), sixteen.pair_floats());
        let (first, pairs) = (stripe.first_row() * self.parts / 2, (stripe.rows() * self.parts).div_ceil(2));
        let [sums, memory] = scratch.floats([2 * pairs * width, sixteen.memory(BATCH)]);
        sums.fill(0.0);
        let batches = table[first * length..][..pairs * length].chunks(BATCH * length);
        for (table, sums) in batches.zip(sums.chunks_mut(2 * BATCH * width)) {
            sixteen.products(columns.clone(), table, memory, (sums, width));
        }
        let sums = &mut sums[..stripe.rows() * self.parts * width];
        self.store(stripe.first_row(), (sums, width), stripe, &mut registers, finish);
        scratch.registers = registers;
    }
}
