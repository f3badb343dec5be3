//! Sums of products, and multiples added to a row.
//!
//! A sum runs in `LANES` lanes, each a sequence of rounded products and sums, which are added as a tree: the same bits on
//! every instruction set. Products are rounded before they are added, since fusing the two costs a call where the machine
//! cannot, and gains nothing in loops that wait for memory.

use super::convert::{from_bf16, from_f16};
use half::{bf16, f16};

/// Of a sum. Two registers of AVX-512: as many as hide the latency of an addition behind the loads.
const LANES: usize = 32;

/// The sum over lanes, as a tree.
#[inline(always)]
fn total(lanes: &[f32; LANES]) -> f32 {
    let mut lanes = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        width /= 2;
    }
    lanes.first().copied().unwrap_or(0.0)
}

#[inline(always)]
fn dot<T: Copy>(x: &[f32], y: &[T], widen: impl Fn(T) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += *x * widen(*y);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(x_rest).zip(y_rest) {
        *lane += *x * widen(*y);
    }
    total(&lanes)
}

#[inline(always)]
fn axpy<T: Copy>(a: f32, x: &[T], y: &mut [f32], widen: impl Fn(T) -> f32) {
    x.iter().zip(y).for_each(|(x, y)| *y += a * widen(*x));
}

kernel! {
    /// The sum of the products of two rows of equal length.
    pub(crate) fn dot_f32(x: &[f32], y: &[f32]) -> f32 {
        dot(x, y, |y| y)
    }

    /// Likewise.
    pub(crate) fn dot_f16(x: &[f32], y: &[f16]) -> f32 {
        dot(x, y, from_f16)
    }

    /// Likewise.
    pub(crate) fn dot_bf16(x: &[f32], y: &[bf16]) -> f32 {
        dot(x, y, from_bf16)
    }

    /// `y += a * x`.
    pub(crate) fn axpy_f32(a: f32, x: &[f32], y: &mut [f32]) {
        axpy(a, x, y, |x| x);
    }

    /// Likewise.
    pub(crate) fn axpy_f16(a: f32, x: &[f16], y: &mut [f32]) {
        axpy(a, x, y, from_f16);
    }

    /// Likewise.
    pub(crate) fn axpy_bf16(a: f32, x: &[bf16], y: &mut [f32]) {
        axpy(a, x, y, from_bf16);
    }
}

#[cfg(test)]
mod tests {
    use crate::simd::Isa;
    use crate::simd::element::Float;
    use half::{bf16, f16};

    fn numbers(count: usize, seed: u16) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 % 101) as f32 + f32::from(seed)) / 64.0 - 0.8).collect()
    }

    fn check<T: Float>() {
        for count in [0, 1, 5, 31, 32, 33, 64, 100, 257] {
            let x = numbers(count, 3);
            let y: Vec<T> = numbers(count, 9).into_iter().map(T::rounded).collect();
            let exact: f64 = x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(y.float())).sum();
            let dots: Vec<f32> = Isa::available().into_iter().map(|isa| T::dot(isa, &x, &y)).collect();
            assert!(dots.iter().all(|dot| dot.to_bits() == dots[0].to_bits()), "{dots:?}");
            assert!((f64::from(dots[0]) - exact).abs() < 1e-4, "{count}: {} for {exact}", dots[0]);
            for isa in Isa::available() {
                let mut sums = numbers(count, 1);
                T::axpy(isa, 1.5, &y, &mut sums);
                let expected = numbers(count, 1).into_iter().zip(&y).map(|(sum, y)| sum + 1.5 * y.float());
                assert!(sums.iter().zip(expected).all(|(sum, expected)| *sum == expected));
            }
        }
    }

    #[test]
    fn sums_of_products_have_the_same_bits_on_all_instruction_sets() {
        check::<f32>();
        check::<f16>();
        check::<bf16>();
    }
}
