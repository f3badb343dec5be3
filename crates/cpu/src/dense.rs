//! Matrices of plain floats, and their products.
//!
//! With few rows on the left, a product is bound by reading the right matrix, so it is read in place: as dot products where its
//! columns are contiguous, as multiples of its rows, added up in strands, where these are. The bits are those of [`crate::gemm`].
#![allow(clippy::indexing_slicing, reason = "the elements cover the size of the product")]

use crate::finish::{Finish, Sums};
use crate::gemm::{Left, PackedColumns, Product, Right};
use crate::pool::Workers;
use crate::simd::Isa;
use crate::simd::matmul::dot::add_multiple;
use crate::simd::matmul::product::{LEFT_PAD, STRANDS, combine};
use crate::simd::numeric::convert::widen;
use crate::simd::numeric::element::Float;
use crate::simd::strip::Strip;
use std::ops::Range;

/// Up to this many rows, the right matrix is not packed.
const FEW: usize = 4;
/// Columns of a task, with few rows.
const STRIPE: usize = 64;

/// A matrix in memory: element `(row, column)` at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a, T> {
    /// Starting with the first element of the matrix.
    pub elements: &'a [T],
    /// The distance between rows.
    pub row_stride: usize,
    /// The distance between columns.
    pub column_stride: usize,
}

impl<T: Float> Dense<'_, T> {
    /// Reads elements `stride` apart as floats.
    fn line(&self, isa: Isa, start: usize, stride: usize, to: &mut [f32]) {
        if to.is_empty() {
            return;
        }
        if stride == 1 {
            widen(isa, &self.elements[start..], to);
        } else if stride == 0 {
            to.fill(self.elements[start].float());
        } else {
            self.elements[start..].iter().step_by(stride).zip(to).for_each(|(element, to)| *to = element.float());
        }
    }
}

impl<T: Float> Left for Dense<'_, T> {
    fn is_single(&self) -> bool {
        size_of::<T>() > 2
    }

    fn row(&self, isa: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        self.line(isa, m * self.row_stride + k.start * self.column_stride, self.column_stride, to);
    }
}

impl<T: Float> Right for Dense<'_, T> {
    fn pack(&self, isa: Isa, packed: &mut PackedColumns<'_>) {
        let Self { row_stride, column_stride, .. } = *self;
        if row_stride == 1 {
            packed.by_columns(|k, column, to| self.line(isa, k.start + column * column_stride, 1, to));
        } else {
            packed.by_rows(isa, |row, columns, to| {
                self.line(isa, row * row_stride + columns.start * column_stride, column_stride, to);
            });
        }
    }
}

impl<L: Left, T: Float, F: Finish> Product<'_, L, T, F> {
    /// Computes the product with a matrix of floats.
    pub fn times_dense(self, workers: &mut Workers<'_>, right: &Dense<'_, impl Float>) {
        if self.size.m <= FEW && (right.row_stride == 1 || right.column_stride == 1) {
            self.few(workers, right);
        } else {
            self.times(workers, right);
        }
    }

    fn few<U: Float>(self, workers: &mut Workers<'_>, right: &Dense<'_, U>) {
        let Self { isa, size, left, mut out, finish } = self;
        let padded = size.k.next_multiple_of(STRANDS);
        workers.prepared(|shared, workers| {
            let [x] = shared.floats([size.m * padded]);
            for (row, x) in x.chunks_exact_mut(padded.max(1)).enumerate() {
                let (x, pad) = x.split_at_mut(size.k);
                left.row(isa, row, 0..size.k, x);
                pad.fill(LEFT_PAD);
            }
            let x = &*x;
            out.stripes(workers, STRIPE, |stripe, scratch| {
                let columns = stripe.start()..stripe.start() + stripe.width();
                let mut registers = std::mem::take(&mut scratch.registers);
                finish.begin(isa, &mut registers);
                let strands = size.k.min(STRANDS) * columns.len();
                let [sums, strands] = scratch.floats([size.m * columns.len(), strands]);
                if size.k == 0 {
                    sums.fill(0.0);
                } else if right.row_stride == 1 {
                    let elements = &right.elements[columns.start * right.column_stride..];
                    let rows = Strip { elements, stride: right.column_stride, length: size.k, count: columns.len() };
                    U::products(isa, x, rows, sums, columns.len());
                } else {
                    for (x, sums) in x.chunks_exact(padded).zip(sums.chunks_exact_mut(columns.len())) {
                        right.sum_of_rows(isa, &x[..size.k], columns.clone(), strands);
                        sums.copy_from_slice(&strands[..columns.len()]);
                    }
                }
                finish.store(isa, Sums { floats: sums, stride: columns.len(), first_row: 0 }, stripe, &mut registers);
                scratch.registers = registers;
            });
        });
    }
}

impl<T: Float> Dense<'_, T> {
    /// Multiplies `factors` with some columns by adding up multiples of rows. `strands` has room for 16 rows, or for one per factor
    /// if there are fewer; the sum is its first row.
    fn sum_of_rows(&self, isa: Isa, factors: &[f32], columns: Range<usize>, strands: &mut [f32]) {
        strands.fill(0.0);
        for (first, factors) in factors.chunks(STRANDS).enumerate() {
            for ((k, factor), strand) in (first * STRANDS..).zip(factors).zip(strands.chunks_exact_mut(columns.len())) {
                let start = k * self.row_stride + columns.start;
                add_multiple(isa, *factor, &self.elements[start..start + columns.len()], strand);
            }
        }
        combine(isa, strands, columns.len());
    }
}
