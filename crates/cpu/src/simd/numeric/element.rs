//! The floats that tensors hold, as kernels see them.

use super::convert::{from_bf16, from_f16, to_bf16, to_f16};
use crate::simd::Isa;
use crate::simd::matmul::dot;
use crate::simd::strip::Strip;
use half::{bf16, f16};

/// A float of 32 or 16 bits. Sums and products are `f32`.
pub trait Float: Copy + Send + Sync + 'static {
    /// Widens it.
    fn float(self) -> f32;

    /// The nearest float of this type.
    fn rounded(number: f32) -> Self;

    /// `out[m][n] = x[m] · y[n]`: the rows of `x` are as long as those of `y`, filled up to a multiple of 16 with -0; those of `out` are
    /// `stride` apart.
    fn products(isa: Isa, x: &[f32], y: Strip<'_, Self>, out: &mut [f32], stride: usize);
}

macro_rules! floats {
    ($($float:ty, $widen:expr, $round:expr;)*) => { $(
        impl Float for $float {
            #[inline(always)]
            fn float(self) -> f32 {
                $widen(self)
            }

            #[inline(always)]
            fn rounded(number: f32) -> Self {
                $round(number)
            }

            fn products(isa: Isa, x: &[f32], y: Strip<'_, Self>, out: &mut [f32], stride: usize) {
                dot::products(isa, x, y, out, stride);
            }
        }
    )* };
}

floats! {
    f32, std::convert::identity, std::convert::identity;
    f16, from_f16, to_f16;
    bf16, from_bf16, to_bf16;
}
