//! Few rows times the transpose of quantized weights: bound by reading the weights, so each is read once.

use super::Weights;
use crate::gemm::Left;
use crate::pool::Workers;
use crate::simd::Isa;
use crate::simd::dot::dot_f32;
use crate::simd::element::Element;

/// Columns of the result, which are rows of the weights, of a task.
const STRIPE: usize = 32;

/// Writes the product, rounded once, in row-major order to `out`.
pub(super) fn product<T: Element>(
    workers: &mut Workers<'_>,
    isa: Isa,
    m: usize,
    left: &impl Left,
    weights: &Weights<'_>,
    out: &mut [T],
) {
    let k = weights.columns;
    workers.prepared(|shared, workers| {
        let [x] = shared.floats([m * k]);
        for (row, x) in x.chunks_exact_mut(k.max(1)).enumerate() {
            left.row(isa, row, 0..k, x);
        }
        let x = &*x;
        workers.stripes(out, weights.rows, STRIPE, |_, stripe, scratch| {
            let (start, width) = (stripe.start(), stripe.width());
            let [sums, decoded] = scratch.floats([m * width, k]);
            sums.fill(0.0);
            for column in 0..width {
                weights.decode(isa, start + column, 0, decoded);
                let cells = sums.iter_mut().skip(column).step_by(width);
                cells.zip(x.chunks_exact(k.max(1))).for_each(|(sum, x)| *sum = dot_f32(isa, x, decoded));
            }
            for (row, sums) in sums.chunks_exact(width).enumerate() {
                T::narrow(isa, sums, stripe.row(row));
            }
        });
    });
}
