//! Few rows: codes are multiplied where they lie, each read once for up to four rows of integers.
//!
//! Where there are no instructions for a format, a row of weights is unpacked and multiplied with each row, in plain code.
#![allow(clippy::indexing_slicing, reason = "the table has all rows")]

use super::IntegerProduct;
use crate::finish::Finish;
use crate::gemm::Left;
use crate::pool::{OutRows, Scratch, Workers};
use crate::simd::numeric::element::Float;
use crate::simd::quant::activation::{Quantized, TableLayout, arrange};
use crate::simd::quant::codes;
use crate::simd::quant::integer::{Activations, MOST, factor_floats};
use std::ops::Range;

/// Tasks of a large product, or one for each thread if there are more: enough that a few threads which are delayed leave some to
/// others, few enough that each reads long runs.
const TASKS: usize = 16;
/// The fewest and the most bytes of codes of a task.
const TASK_BYTES: [usize; 2] = [16 << 10, 256 << 10];

impl IntegerProduct<'_> {
    /// Writes the product, rounded once, to `out`.
    pub(super) fn few<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let (Self { isa, weights, .. }, rows) = (self, out.count() * self.parts);
        let length = self.fast.map_or(self.row_floats(), |(_, layout)| layout.floats(weights.columns));
        workers.prepared(|shared, workers| {
            let [table] = shared.floats([rows * length]);
            workers.chunks(table, MOST * length, |task, table, scratch| {
                self.prepare(left, task * MOST..rows.min((task + 1) * MOST), table, scratch);
            });
            let table = &*table;
            let width = workers.stripe_width(weights.rows, 8, self.most_columns(workers.pool.threads()));
            out.stripes(workers, width, |stripe, scratch| {
                let (width, columns) = (stripe.width(), stripe.start()..stripe.start() + stripe.width());
                let mut registers = std::mem::take(&mut scratch.registers);
                finish.begin(*isa, &mut registers);
                let [sums, memory] = scratch.floats([rows * width, self.memory()]);
                match self.fast {
                    Some((integers, layout)) => {
                        for rows in batches(0..rows) {
                            let floats = &table[rows.start * length..rows.end * length];
                            let x = Activations { layout: TableLayout { rows: rows.len(), ..layout }, floats };
                            let sums = sums.split_at_mut(rows.start * width).1;
                            integers.products(weights, columns.clone(), &x, memory, (sums, width));
                        }
                    }
                    None => self.plain(columns, (table, length), memory, (sums, width)),
                }
                self.store(0, (sums, width), stripe, &mut registers, finish);
                scratch.registers = registers;
            });
        });
    }

    /// Quantizes some rows, in batches.
    fn prepare(&self, left: &impl Left, rows: Range<usize>, table: &mut [f32], scratch: &mut Scratch) {
        let (k, length) = (self.weights.columns, self.row_floats());
        let [lines, row] = scratch.floats([2 * k, length]);
        let Some((_, layout)) = self.fast else {
            let rows = rows.zip(table.chunks_exact_mut(length.max(1)));
            return rows.for_each(|(number, to)| self.quantize(left, number, to, lines));
        };
        let mut rest = table;
        for batch in batches(rows) {
            let layout = TableLayout { rows: batch.len(), ..layout };
            let (table, after) = rest.split_at_mut(batch.len() * layout.floats(k));
            for (at, number) in batch.enumerate() {
                self.quantize(left, number, row, lines);
                let Quantized { integers, steps, sums } = self.parts_of(row);
                arrange(self.isa, integers, (steps, sums), layout, at, table);
            }
            rest = after;
        }
    }

    /// Floats of memory that a task needs.
    fn memory(&self) -> usize {
        self.fast.map_or(self.row_floats(), |_| factor_floats(self.weights.columns, self.group))
    }

    /// Row of weights by row, in plain code.
    fn plain(
        &self,
        columns: Range<usize>,
        (table, length): (&[f32], usize),
        memory: &mut [f32],
        (sums, width): (&mut [f32], usize),
    ) {
        let Self { isa, weights, group, .. } = *self;
        let (row, factors) = memory.split_at_mut(weights.columns / 2);
        let (row, (scales, biases)) = (bytemuck::cast_slice_mut(row), factors.split_at_mut(weights.columns / group));
        for (at, column) in columns.enumerate() {
            weights.integer_codes(isa, column, 0, row);
            weights.factors(isa, column, 0, scales, biases);
            let biases = if weights.has_biases() { &*biases } else { &[] };
            let cells = sums.iter_mut().skip(at).step_by(width);
            for (sum, x) in cells.zip(table.chunks_exact(length.max(1))) {
                let (integers, rest) = x.split_at(weights.columns / 2);
                let (steps, whole) = rest.split_at(weights.columns / group);
                let (integers, sums) = (bytemuck::cast_slice(integers), bytemuck::cast_slice(whole));
                *sum = codes::product(isa, row, scales, biases, codes::ActivationRow { integers, steps, sums, group });
            }
        }
    }

    /// The most columns of the result, which are rows of the weights, of a task.
    pub(super) fn most_columns(&self, threads: usize) -> usize {
        let (row_bytes, [least, most]) = (self.weights.row_bytes().max(1), TASK_BYTES);
        ((self.weights.rows * row_bytes / TASKS.max(threads)).clamp(least, most) / row_bytes).next_multiple_of(8)
    }
}

/// Rows that are multiplied together: four, and at the end two or one.
fn batches(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = rows.start;
    std::iter::from_fn(move || {
        let left = rows.end - start;
        let batch = start..start + if left == 3 { 2 } else { left.min(MOST) };
        start = batch.end;
        (!batch.is_empty()).then_some(batch)
    })
}
