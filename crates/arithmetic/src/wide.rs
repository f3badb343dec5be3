//! Exponential, logarithm and arc tangent in f64: what the functions of f32 that need not be fast are made of. They err by
//! some 1e-15, so that the one rounding that counts is the last, to f32.

use std::f64::consts::{FRAC_PI_2, LOG2_E};

/// The high part of ln 2: few enough bits that its products with exponents are exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fef0_0000);
/// The rest of ln 2.
const LN_2_LOW: f64 = 7.440_617_110_012_397e-11;

/// Adding this rounds to an integer.
const WHOLE: f64 = 6_755_399_441_055_744.0;

/// The exponents of powers of e beyond which every f32 is infinite or zero.
const MOST: f64 = 200.0;

/// `1 + x / first * (1 + x / (first + 1) * (…))`: from 1 on, the series of the exponential; from 2 on, that of `(e^x - 1) / x`.
fn exponential_series(x: f64, first: u32, last: u32) -> f64 {
    (first..=last).rev().fold(1.0, |sum, n| 1.0 + x / f64::from(n) * sum)
}

/// `e^x`; beyond [`MOST`], that of `MOST`.
pub(crate) fn exp(x: f64) -> f64 {
    let x = if x > MOST { MOST } else { x };
    let x = if x < -MOST { -MOST } else { x };
    let shifted = x * LOG2_E + WHOLE;
    let power = shifted - WHOLE;
    let r = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let exponent = shifted.to_bits().wrapping_sub(WHOLE.to_bits());
    // The exponent of a NaN is garbage, but the product stays NaN.
    exponential_series(r, 1, 14) * f64::from_bits(exponent.wrapping_add(1023) << 52)
}

/// `e^x - 1`.
pub(crate) fn exp_m1(x: f64) -> f64 {
    if x.abs() < 0.5 { x * exponential_series(x, 2, 16) } else { exp(x) - 1.0 }
}

/// `ln((1 + s) / (1 - s))` for `|s|` below 0.2, by its series in odd powers.
fn logarithm_series(s: f64) -> f64 {
    let square = s * s;
    let sum = (0..=11).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    2.0 * s * sum
}

/// The natural logarithm: minus infinity for zero, NaN for negative numbers and NaN. `x` is not subnormal, since it comes from an f32.
pub(crate) fn ln(x: f64) -> f64 {
    const SQRT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if !(x > 0.0 && x < f64::INFINITY) {
        return if x > 0.0 { x } else { f64::NAN };
    }
    let bits = x.to_bits().cast_signed();
    let exponent = (bits - SQRT_HALF) >> 52;
    let mantissa = f64::from_bits((bits - (exponent << 52)).cast_unsigned());
    #[allow(clippy::cast_precision_loss, reason = "an exponent")]
    let power = exponent as f64;
    power * LN_2_HIGH + (power * LN_2_LOW + logarithm_series((mantissa - 1.0) / (mantissa + 1.0)))
}

/// `ln(1 + x)`.
pub(crate) fn ln_1p(x: f64) -> f64 {
    if x.abs() < 0.25 { logarithm_series(x / (2.0 + x)) } else { ln(1.0 + x) }
}

/// The arc tangent: twice the angle is halved, by `tan(a / 2) = tan a / (1 + √(1 + tan² a))`, and the rest is a series.
pub(crate) fn atan(x: f64) -> f64 {
    let magnitude = x.abs();
    let is_steep = magnitude > 1.0;
    let tangent = if is_steep { 1.0 / magnitude } else { magnitude };
    let halved = |tangent: f64| tangent / (1.0 + (1.0 + tangent * tangent).sqrt());
    let quarter = halved(halved(tangent));
    let square = quarter * quarter;
    let sum = (0..=12).rev().fold(0.0, |sum, n| 1.0 / f64::from(2 * n + 1) - sum * square);
    let angle = 4.0 * quarter * sum;
    (if is_steep { FRAC_PI_2 - angle } else { angle }).copysign(x)
}
