//! Matrices of plain floats, and their products.
//!
//! With few rows on the left, a product is bound by reading the right matrix, so it is read as it lies: as products of rows where
//! its columns are contiguous, as multiples of its rows, added up in strands, where these are. The bits are those of [`gemm`].

use crate::finish::{Finish, Sums};
use crate::gemm::{self, Left, PackedColumns, Right, Size, part};
use crate::pool::Workers;
use crate::simd::Isa;
use crate::simd::matmul::dot::add_multiple;
use crate::simd::matmul::product::{LEFT_PAD, STRANDS, combine};
use crate::simd::matmul::transpose::AT_ONCE;
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
    /// From the first element on.
    pub elements: &'a [T],
    /// Between rows.
    pub row_stride: usize,
    /// Between columns.
    pub column_stride: usize,
}

impl<T: Float> Dense<'_, T> {
    /// Writes elements at a fixed distance, widened.
    fn line(&self, isa: Isa, start: usize, stride: usize, to: &mut [f32]) {
        let elements = self.elements.get(start..).unwrap_or_default();
        if stride == 1 {
            widen(isa, elements, to);
        } else if stride == 0 {
            to.fill(elements.first().map_or(0.0, |element| element.float()));
        } else {
            elements.iter().step_by(stride).zip(to).for_each(|(element, to)| *to = element.float());
        }
    }

    /// `length` contiguous elements.
    fn run(&self, start: usize, length: usize) -> &[T] {
        self.elements.get(start..start + length).unwrap_or_default()
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
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, packed: &mut PackedColumns<'_>, temporary: &mut [f32]) {
        if self.row_stride == 1 {
            for column in n.clone() {
                let line = temporary.split_at_mut(k.len()).0;
                self.line(isa, k.start + column * self.column_stride, 1, line);
                packed.columns(column - n.start, line);
            }
        } else {
            for first in k.clone().step_by(AT_ONCE) {
                let rows = temporary.split_at_mut(AT_ONCE.min(k.end - first) * n.len()).0;
                for (k, row) in (first..).zip(rows.chunks_exact_mut(n.len().max(1))) {
                    self.line(isa, k * self.row_stride + n.start * self.column_stride, self.column_stride, row);
                }
                packed.rows(isa, first - k.start, rows, n.len());
            }
        }
    }
}

/// Writes the product of two matrices of floats, rounded once, in row-major order to `out`.
pub fn product<T: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    size: Size,
    left: &impl Left,
    right: &Dense<'_, impl Float>,
    out: &mut [T],
    finish: &impl Finish,
) {
    if size.m <= FEW && (right.row_stride == 1 || right.column_stride == 1) {
        few(workers, isa, size, left, right, out, finish);
    } else {
        gemm::product(workers, isa, size, left, right, out, finish);
    }
}

fn few<T: Float, U: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    size: Size,
    left: &impl Left,
    right: &Dense<'_, U>,
    out: &mut [T],
    finish: &impl Finish,
) {
    let padded = size.k.next_multiple_of(STRANDS);
    workers.prepared(|shared, workers| {
        let [x] = shared.floats([size.m * padded]);
        for (row, x) in x.chunks_exact_mut(padded.max(1)).enumerate() {
            let (x, pad) = x.split_at_mut(size.k);
            left.row(isa, row, 0..size.k, x);
            pad.fill(LEFT_PAD);
        }
        let x = &*x;
        workers.stripes(out, size.n, STRIPE, |_, stripe, scratch| {
            let columns = stripe.start()..stripe.start() + stripe.width();
            let mut registers = std::mem::take(&mut scratch.registers);
            finish.begin(isa, &mut registers);
            let strands = size.k.min(STRANDS) * columns.len();
            let [sums, strands] = scratch.floats([size.m * columns.len(), strands]);
            if size.k == 0 {
                sums.fill(0.0);
            } else if right.row_stride == 1 {
                let elements = right.elements.get(columns.start * right.column_stride..).unwrap_or_default();
                let rows = Strip { elements, stride: right.column_stride, length: size.k, count: columns.len() };
                U::products(isa, x, rows, sums, columns.len());
            } else {
                for (x, sums) in x.chunks_exact(padded).zip(sums.chunks_exact_mut(columns.len())) {
                    right.sum_of_rows(isa, part(x, 0..size.k), columns.clone(), strands);
                    sums.copy_from_slice(part(strands, 0..columns.len()));
                }
            }
            finish.store(isa, 0, Sums { floats: sums, stride: columns.len() }, stripe, &mut registers);
            scratch.registers = registers;
        });
    });
}

impl<T: Float> Dense<'_, T> {
    /// The sum of the rows, of some columns, each row multiplied with its factor, as the product of `factors` and those columns is
    /// defined: `strands` has room for 16 of them, or for as many as there are factors, and gets the sum first.
    fn sum_of_rows(&self, isa: Isa, factors: &[f32], columns: Range<usize>, strands: &mut [f32]) {
        strands.fill(0.0);
        for (first, factors) in factors.chunks(STRANDS).enumerate() {
            for ((k, factor), strand) in (first * STRANDS..).zip(factors).zip(strands.chunks_exact_mut(columns.len())) {
                let row = self.run(k * self.row_stride + columns.start, columns.len());
                add_multiple(isa, *factor, row, strand);
            }
        }
        combine(isa, strands, columns.len());
    }
}
