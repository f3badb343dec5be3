//! Matrices of plain floats, and their products.
//!
//! With few rows on the left, a product is bound by reading the right matrix, so it is read once as it lies: as dot products
//! where columns are contiguous, as multiples of rows added up where rows are.

use crate::finish::{Finish, Sums};
use crate::gemm::{self, Left, Panels, Right, Size};
use crate::pool::Workers;
use crate::simd::Isa;
use crate::simd::element::Float;
use crate::simd::transpose::AT_ONCE;
use std::any::TypeId;
use std::ops::Range;

/// With so many rows or fewer, the right matrix is not packed.
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
            T::widen(isa, elements, to);
        } else if stride == 0 {
            to.fill(elements.first().map_or(0.0, |element| element.float()));
        } else {
            elements.iter().step_by(stride).zip(to).for_each(|(element, to)| *to = element.float());
        }
    }

    /// The contiguous elements from a place on.
    fn run(&self, start: usize, length: usize) -> &[T] {
        self.elements.get(start..start + length).unwrap_or_default()
    }
}

impl<T: Float> Left for Dense<'_, T> {
    fn is_single(&self) -> bool {
        size_of::<T>() > 2
    }

    fn is_bfloat(&self) -> bool {
        TypeId::of::<T>() == TypeId::of::<half::bf16>()
    }

    fn row(&self, isa: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        self.line(isa, m * self.row_stride + k.start * self.column_stride, self.column_stride, to);
    }
}

impl<T: Float> Right for Dense<'_, T> {
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, panels: &mut Panels<'_>, temporary: &mut [f32]) {
        if self.row_stride == 1 {
            for first in n.clone().step_by(AT_ONCE) {
                let count = AT_ONCE.min(n.end - first);
                let columns = temporary.split_at_mut(count * k.len()).0;
                for (column, to) in (first..).zip(columns.chunks_exact_mut(k.len())) {
                    self.line(isa, k.start + column * self.column_stride, 1, to);
                }
                panels.columns(isa, first - n.start, columns);
            }
        } else {
            let row = temporary.split_at_mut(n.len()).0;
            for (number, k) in k.enumerate() {
                self.line(isa, k * self.row_stride + n.start * self.column_stride, self.column_stride, row);
                panels.row(number, row);
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
    workers.prepared(|shared, workers| {
        let [x] = shared.floats([size.m * size.k]);
        for (row, x) in x.chunks_exact_mut(size.k.max(1)).enumerate() {
            left.row(isa, row, 0..size.k, x);
        }
        let x = &*x;
        workers.stripes(out, size.n, STRIPE, |_, stripe, scratch| {
            let (start, width) = (stripe.start(), stripe.width());
            let mut registers = std::mem::take(&mut scratch.registers);
            finish.begin(isa, &mut registers);
            let [sums] = scratch.floats([size.m * width]);
            sums.fill(0.0);
            let rows = || x.chunks_exact(size.k.max(1));
            if right.row_stride == 1 {
                for column in 0..width {
                    let weights = right.run((start + column) * right.column_stride, size.k);
                    let cells = sums.iter_mut().skip(column).step_by(width);
                    cells.zip(rows()).for_each(|(sum, x)| *sum = U::dot(isa, x, weights));
                }
            } else {
                for k in 0..size.k {
                    let weights = right.run(k * right.row_stride + start, width);
                    for (sums, x) in sums.chunks_exact_mut(width).zip(rows()) {
                        U::axpy(isa, x.get(k).copied().unwrap_or(0.0), weights, sums);
                    }
                }
            }
            finish.store(isa, 0, Sums { floats: sums, stride: width }, stripe, &mut registers);
            scratch.registers = registers;
        });
    });
}
