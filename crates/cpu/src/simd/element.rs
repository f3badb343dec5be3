//! The floats that tensors hold, as kernels see them.

use super::Isa;
use super::convert::{from_bf16, from_f16, narrow_bf16, narrow_f16, to_bf16, to_f16, widen_bf16, widen_f16};
use super::dot::{axpy_bf16, axpy_f16, axpy_f32, dot_bf16, dot_f16, dot_f32};
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

    /// The sum of the products.
    fn dot(isa: Isa, x: &[f32], y: &[Self]) -> f32;

    /// `y += a * x`.
    fn axpy(isa: Isa, a: f32, x: &[Self], y: &mut [f32]);
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

    fn dot(isa: Isa, x: &[f32], y: &[Self]) -> f32 {
        dot_f32(isa, x, y)
    }

    fn axpy(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        axpy_f32(isa, a, x, y);
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

    fn dot(isa: Isa, x: &[f32], y: &[Self]) -> f32 {
        dot_f16(isa, x, y)
    }

    fn axpy(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        axpy_f16(isa, a, x, y);
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

    fn dot(isa: Isa, x: &[f32], y: &[Self]) -> f32 {
        dot_bf16(isa, x, y)
    }

    fn axpy(isa: Isa, a: f32, x: &[Self], y: &mut [f32]) {
        axpy_bf16(isa, a, x, y);
    }
}
