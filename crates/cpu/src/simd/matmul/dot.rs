//! Products of rows, in the 16 fused strands of `docs/ARITHMETIC.md`, and multiples added to a row.
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants, and of rows that were cut to one length")]

use super::product::STRANDS;
use crate::simd::lanes::{LANES, Lanes, Loaded};
use crate::simd::numeric::element::Float;
use crate::simd::strands::total;
use crate::simd::strip::Strip;

/// Rows of the right operand that are read together: as many as [`Lanes::totals`] adds up at once.
const TOGETHER: usize = 4;

// Registers pass through no closures: those would be compiled without the instructions.

lanes_kernel! {
    /// `out[m][n] = x[m] · y[n]`. The rows of `x` lie one after another, each as long as those of `y` and filled up to a multiple of 16
    /// with -0 ([`super::product::LEFT_PAD`]); `out` has `stride` floats from row to row.
    pub(crate) fn products[T: Loaded](lanes, x: &[f32], y: Strip<'_, T>, out: &mut [f32], stride: usize) {
        let (x, steps) = (x.as_chunks().0, y.length.div_ceil(LANES));
        if steps == 0 {
            let rows = out.chunks_mut(stride.max(1));
            return rows.for_each(|out| out.iter_mut().take(y.count).for_each(|out| *out = 0.0));
        }
        for first in (0..y.count).step_by(TOGETHER) {
            // Missing rows repeat the last one; what they give is not stored.
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| y.row((first + at).min(y.count - 1)));
            let count = TOGETHER.min(y.count - first);
            for (x, out) in x.chunks(2 * steps).zip(out.chunks_mut(2 * stride)) {
                let (one, other) = x.split_at(steps);
                let (out, next) = out.split_at_mut(stride.min(out.len()));
                if other.is_empty() {
                    store(&four::<L, T, 1, 4>(lanes, [one], [a, b, c, d]), first, count, out);
                } else {
                    // Four sums again, so that they stay in registers: the rows are in the first cache for the second pair.
                    let [p, q, r, s] = four::<L, T, 2, 2>(lanes, [one, other], [a, b]);
                    let [t, u, v, w] = four::<L, T, 2, 2>(lanes, [one, other], [c, d]);
                    store(&[p, q, t, u], first, count, out);
                    store(&[r, s, v, w], first, count, next);
                }
            }
        }
    }
}

/// Stores the first `count` of four sums from index `first` on.
#[inline(always)]
fn store(sums: &[f32; TOGETHER], first: usize, count: usize, out: &mut [f32]) {
    out[first..first + count].copy_from_slice(&sums[..count]);
}

/// Four products of rows: of each of `M` rows with each of `N`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]
fn four<L: Lanes, T: Loaded, const M: usize, const N: usize>(
    lanes: L,
    x: [&[[f32; LANES]]; M],
    y: [&[T]; N],
) -> [f32; TOGETHER] {
    let whole = y[0].len() / LANES;
    let (mut rows, mut tails) = ([[].as_slice(); N], [[T::ZERO; LANES]; N]);
    for n in 0..N {
        let (steps, rest) = y[n].as_chunks();
        rows[n] = &steps[..whole];
        tails[n].iter_mut().zip(rest).for_each(|(tail, rest)| *tail = *rest);
    }
    let mut sums = [lanes.splat(0.0); TOGETHER];
    let mut lefts = x;
    for m in 0..M {
        lefts[m] = &x[m][..whole];
    }
    for step in 0..whole {
        let mut left = [sums[0]; M];
        for m in 0..M {
            left[m] = lanes.load(&lefts[m][step]);
        }
        for n in 0..N {
            let right = T::load(lanes, &rows[n][step]);
            for m in 0..M {
                sums[m * N + n] = lanes.multiply_add(left[m], right, sums[m * N + n]);
            }
        }
    }
    if !y[0].len().is_multiple_of(LANES) {
        for n in 0..N {
            let right = T::load(lanes, &tails[n]);
            for m in 0..M {
                sums[m * N + n] = lanes.multiply_add(lanes.load(&x[m][whole]), right, sums[m * N + n]);
            }
        }
    }
    lanes.totals(&sums)
}

kernel! {
    /// The product of two rows of equal length.
    pub(crate) fn dot_f32(x: &[f32], y: &[f32]) -> f32 {
        let mut strands = [0.0_f32; STRANDS];
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<STRANDS>(), y.as_chunks::<STRANDS>());
        for (x, y) in x.iter().zip(y) {
            strands.iter_mut().zip(x).zip(y).for_each(|((strand, x), y)| *strand = x.mul_add(*y, *strand));
        }
        strands.iter_mut().zip(x_rest).zip(y_rest).for_each(|((strand, x), y)| *strand = x.mul_add(*y, *strand));
        total(strands)
    }

    /// `y = fma(a, x, y)`.
    pub(crate) fn add_multiple[T: Float](a: f32, x: &[T], y: &mut [f32]) {
        x.iter().zip(y).for_each(|(x, y)| *y = a.mul_add(x.float(), *y));
    }

    /// `y = fma(a, b, y)`, element by element.
    pub(crate) fn add_products(a: &[f32], b: &[f32], y: &mut [f32]) {
        a.iter().zip(b).zip(y).for_each(|((a, b), y)| *y = a.mul_add(*b, *y));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;
    use crate::simd::matmul::product::LEFT_PAD;
    use half::{bf16, f16};

    fn numbers(count: usize, seed: u16) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 % 101) as f32 + f32::from(seed)) / 64.0 - 0.8).collect()
    }

    /// As the page says it.
    fn defined(x: &[f32], y: &[f32]) -> f32 {
        let mut strands = [0.0_f32; 16];
        for (at, (x, y)) in x.iter().zip(y).enumerate() {
            strands[at % 16] = x.mul_add(*y, strands[at % 16]);
        }
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|at| strands[at] += strands[at + half]);
        }
        strands[0]
    }

    fn check<T: Float>() {
        for (isa, length) in
            Isa::available().into_iter().flat_map(|isa| [0_usize, 1, 5, 16, 33, 100, 257].map(|n| (isa, n)))
        {
            for (m, n) in [(1, 1), (1, 4), (2, 5), (3, 7), (4, 2), (2, 0)] {
                let padded = length.next_multiple_of(LANES);
                let (rows, stride) = (numbers(m * length, 3), length + 1);
                let y: Vec<T> = numbers(n * stride, 9).into_iter().map(T::rounded).collect();
                let mut x = vec![LEFT_PAD; m * padded];
                for (x, row) in x.chunks_exact_mut(padded.max(1)).zip(rows.chunks_exact(length.max(1))) {
                    x.iter_mut().zip(row).for_each(|(x, number)| *x = *number);
                }
                let mut out = vec![7.0; m * (n + 1)];
                let right = Strip { elements: &y, stride, length, count: n };
                T::products(isa, &x, right, &mut out, n + 1);
                for (at, found) in out.iter().enumerate() {
                    let (row, column) = (at / (n + 1), at % (n + 1));
                    if column == n || length == 0 {
                        continue;
                    }
                    let right: Vec<f32> = y[column * stride..][..length].iter().map(|y| y.float()).collect();
                    let left = &rows[row * length..][..length];
                    let wanted = defined(left, &right);
                    assert_eq!(found.to_bits(), wanted.to_bits(), "{isa:?} {length}: {row}, {column}");
                    assert_eq!(dot_f32(isa, left, &right).to_bits(), wanted.to_bits());
                }
            }
        }
    }

    #[test]
    fn products_of_rows_have_the_bits_of_the_definition() {
        check::<f32>();
        check::<f16>();
        check::<bf16>();
    }

    #[test]
    fn multiples_are_added_in_one_rounding() {
        for isa in Isa::available() {
            let (x, mut y) = (numbers(100, 9), numbers(100, 1));
            add_multiple(isa, 1.3, &x.iter().map(|x| bf16::rounded(*x)).collect::<Vec<_>>(), &mut y);
            let wanted =
                numbers(100, 1).into_iter().zip(&x).map(|(y, x)| 1.3_f32.mul_add(bf16::rounded(*x).float(), y));
            assert!(y.iter().zip(wanted).all(|(y, wanted)| y.to_bits() == wanted.to_bits()));
        }
    }
}
