//! The floats that tensors hold, as kernels see them.

use super::convert::{from_bf16, from_f16, narrow_bf16, narrow_f16, to_bf16, to_f16, widen_bf16, widen_f16};
use crate::simd::Isa;
use crate::simd::matmul::dot::{RightRows, add_multiple_bf16, add_multiple_f16, add_multiple_f32};
use crate::simd::matmul::dot::{products_bf16, products_f16, products_f32};
use half::{bf16, f16};

/// A float of 32 or 16 bits. Sums and products are `f32`.
pub trait Float: Copy + Send + Sync + 'static {
    /// Widened.
    fn float(self) -> f32;

    /// Rounded.
    fn rounded(number: f32) -> Self;

    /// Widens.
    fn widen(isa: Isa, from: &[Self], to: &mut [f32]);

    /// Rounds.
    fn narrow(isa: Isa, from: &[f32], to: &mut [Self]);

    /// `out[m][n] = x[m] · y[n]`: the rows of `x` are as long as those of `y`, filled up to a multiple of 16 with -0; those of `out` are
    /// `stride` apart.
    fn products(isa: Isa, x: &[f32], y: RightRows<'_, Self>, out: &mut [f32], stride: usize);

    /// `y = fma(a, x, y)`.
    fn add_multiple(isa: Isa, a: f32, x: &[Self], y: &mut [f32]);
}

impl Float for f32 {
    fn float(self) -> f32 {
        self
    }

    fn rounded(number: f32) -> Self {
        number
    }

    fn widen(_: Isa, from: &[Self], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = *from);
    }

    fn narrow(_: Isa, from: &[f32], to: &mut [Self]) {
        from.iter().zip(to).for_each(|(from, to)| *to = *from);
    }

    fn products(isa: Isa, x: &[f32], y: RightRows<'_, Self>, out: &mut [f32], stride: usize) {
        products_f32(isa, x, y, out, stride);
    }

    fn add_multiple(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        add_multiple_f32(isa, a, x, y);
    }
}

impl Float for f16 {
    fn float(self) -> f32 {
        from_f16(self)
    }

    fn rounded(number: f32) -> Self {
        to_f16(number)
    }

    fn widen(isa: Isa, from: &[Self], to: &mut [f32]) {
        widen_f16(isa, from, to);
    }

    fn narrow(isa: Isa, from: &[f32], to: &mut [Self]) {
        narrow_f16(isa, from, to);
    }

    fn products(isa: Isa, x: &[f32], y: RightRows<'_, Self>, out: &mut [f32], stride: usize) {
        products_f16(isa, x, y, out, stride);
    }

    fn add_multiple(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        add_multiple_f16(isa, a, x, y);
    }
}

impl Float for bf16 {
    fn float(self) -> f32 {
        from_bf16(self)
    }

    fn rounded(number: f32) -> Self {
        to_bf16(number)
    }

    fn widen(isa: Isa, from: &[Self], to: &mut [f32]) {
        widen_bf16(isa, from, to);
    }

    fn narrow(isa: Isa, from: &[f32], to: &mut [Self]) {
        narrow_bf16(isa, from, to);
    }

    fn products(isa: Isa, x: &[f32], y: RightRows<'_, Self>, out: &mut [f32], stride: usize) {
        products_bf16(isa, x, y, out, stride);
    }

    fn add_multiple(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        add_multiple_bf16(isa, a, x, y);
    }
}
