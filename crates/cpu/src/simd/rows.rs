//! Sums, extremes and norms of rows, in the order that `docs/ARITHMETIC.md` defines: in 64 strands, combined halves with halves.

use super::strands::{fold, total};
use ptero_arithmetic::{exp, max};

/// The number of strands of a sum.
pub(crate) const STRANDS: usize = 64;

/// Elements between two passes: as many as strands, or several times that.
const PIECE: usize = 1024;

/// Combines what `of` gives for each element.
#[inline(always)]
fn reduce(x: &[f32], start: f32, of: impl Fn(f32) -> f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut strands = [start; STRANDS];
    add(&mut strands, x, of, &combine);
    fold(strands, combine)
}

/// Combines what `of` gives for each element with the strands, the first element with the first of them.
#[inline(always)]
fn add(strands: &mut [f32; STRANDS], x: &[f32], of: impl Fn(f32) -> f32, combine: impl Fn(f32, f32) -> f32) {
    let (chunks, rest) = x.as_chunks::<STRANDS>();
    for chunk in chunks {
        for (strand, x) in strands.iter_mut().zip(chunk) {
            *strand = combine(*strand, of(*x));
        }
    }
    strands.iter_mut().zip(rest).for_each(|(strand, x)| *strand = combine(*strand, of(*x)));
}

kernel! {
    /// The sum.
    pub(crate) fn sum(x: &[f32]) -> f32 {
        reduce(x, 0.0, |x| x, |a, b| a + b)
    }

    /// The product.
    pub(crate) fn product(x: &[f32]) -> f32 {
        reduce(x, 1.0, |x| x, |a, b| a * b)
    }

    /// The sum of squared distances from `center`.
    pub(crate) fn squares(x: &[f32], center: f32) -> f32 {
        reduce(x, 0.0, |x| (x - center) * (x - center), |a, b| a + b)
    }

    /// The largest, or NaN if any is NaN; minus infinity if there is none.
    pub(crate) fn largest(x: &[f32]) -> f32 {
        reduce(x, f32::NEG_INFINITY, |x| x, max)
    }

    /// The smallest, or NaN if any is NaN; infinity if there is none.
    pub(crate) fn smallest(x: &[f32]) -> f32 {
        -reduce(x, f32::NEG_INFINITY, |x| -x, max)
    }

    /// The sum of `exp(x - center)`.
    pub(crate) fn sum_of_powers(x: &[f32], center: f32) -> f32 {
        reduce(x, 0.0, |x| exp(x - center), |a, b| a + b)
    }

    /// `out` becomes `exp(x - center)`, whose sum is returned.
    pub(crate) fn powers_of(x: &[f32], center: f32, out: &mut [f32]) -> f32 {
        // In pieces that stay in the first cache; exponentials need all registers, so sums come after them.
        let mut strands = [0.0; STRANDS];
        for (x, out) in x.chunks(PIECE).zip(out.chunks_mut(PIECE)) {
            for (x, out) in x.iter().zip(out.iter_mut()) {
                *out = exp(*x - center);
            }
            add(&mut strands, out, |x| x, |a, b| a + b);
        }
        total(strands)
    }

    /// `x` becomes `factor * x`.
    pub(crate) fn scale(x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }

    /// `(x - center) * factor`, times `weight` and plus `bias` where there are any.
    pub(crate) fn normalize(x: &[f32], center: f32, factor: f32, weight: Option<&[f32]>, bias: Option<&[f32]>, out: &mut [f32]) {
        let pairs = x.iter().map(|x| (x - center) * factor).zip(out);
        match (weight, bias) {
            (Some(weight), Some(bias)) => {
                pairs.zip(weight.iter().zip(bias)).for_each(|((x, out), (weight, bias))| *out = x * weight + bias);
            }
            (Some(weight), None) => pairs.zip(weight).for_each(|((x, out), weight)| *out = x * weight),
            (None, Some(bias)) => pairs.zip(bias).for_each(|((x, out), bias)| *out = x + bias),
            (None, None) => pairs.for_each(|(x, out)| *out = x),
        }
    }

    /// `y = combine(y, x)`, element by element.
    pub(crate) fn accumulate(how: Accumulate, x: &[f32], y: &mut [f32]) {
        let pairs = y.iter_mut().zip(x);
        match how {
            Accumulate::Sum => pairs.for_each(|(y, x)| *y += x),
            Accumulate::Product => pairs.for_each(|(y, x)| *y *= x),
            Accumulate::Largest => pairs.for_each(|(y, x)| *y = max(*y, *x)),
            Accumulate::Smallest => pairs.for_each(|(y, x)| *y = -max(-*y, -*x)),
        }
    }
}

/// How rows are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulate {
    /// By addition.
    Sum,
    /// By multiplication.
    Product,
    /// By the larger, or NaN.
    Largest,
    /// By the smaller, or NaN.
    Smallest,
}

impl Accumulate {
    /// The neutral element.
    pub(crate) fn start(self) -> f32 {
        match self {
            Accumulate::Sum => 0.0,
            Accumulate::Product => 1.0,
            Accumulate::Largest => f32::NEG_INFINITY,
            Accumulate::Smallest => f32::INFINITY,
        }
    }
}
