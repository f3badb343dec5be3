//! The other functions: computed in f64 and rounded once, or exact.

use crate::wide;
use std::f64::consts::{LOG2_E, LOG10_E, PI};

/// One over the square root: two roundings, as every device has both operations.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// Returns 1 with the sign of `x`; zeros and NaN are returned unchanged.
#[inline(always)]
pub fn sign(x: f32) -> f32 {
    let outside = if x < 0.0 { -1.0 } else { x };
    if x > 0.0 { 1.0 } else { outside }
}

/// Returns the larger number, or NaN if either is NaN. Of two zeros, returns the second.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// Returns the smaller number, or NaN if either is NaN. Of two zeros, returns the second.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    -max(-a, -b)
}

/// The quotient, rounded down.
#[inline(always)]
pub fn floor_div(a: f32, b: f32) -> f32 {
    (a / b).floor()
}

/// The remainder of the division rounded down: exact, with the sign of the divisor.
#[inline(always)]
pub fn remainder(a: f32, b: f32) -> f32 {
    let remainder = a % b;
    if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
}

/// Rounds what was computed in f64.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn rounded(x: f64) -> f32 {
    x as f32
}

/// `e^x - 1`.
pub fn exp_m1(x: f32) -> f32 {
    rounded(wide::exp_m1(x.into()))
}

/// `ln(1 + x)`.
pub fn ln_1p(x: f32) -> f32 {
    rounded(wide::ln_1p(x.into()))
}

/// The logarithm to base 2.
pub fn log2(x: f32) -> f32 {
    rounded(wide::ln(x.into()) * LOG2_E)
}

/// The logarithm to base 10.
pub fn log10(x: f32) -> f32 {
    rounded(wide::ln(x.into()) * LOG10_E)
}

/// The arc tangent.
pub fn atan(x: f32) -> f32 {
    rounded(wide::atan(x.into()))
}

/// The arc sine; NaN outside -1 to 1.
pub fn asin(x: f32) -> f32 {
    let x = f64::from(x);
    rounded(wide::atan(x / ((1.0 - x) * (1.0 + x)).sqrt()))
}

/// The arc cosine; NaN outside -1 to 1.
pub fn acos(x: f32) -> f32 {
    let x = f64::from(x);
    rounded(2.0 * wide::atan(((1.0 - x) / (1.0 + x)).sqrt()))
}

/// The angle of the point `(x, y)`, with IEEE 754's results for zeros and infinities.
pub fn atan2(y: f32, x: f32) -> f32 {
    if y.is_nan() || x.is_nan() {
        return f32::NAN;
    }
    let slope = match (y == 0.0, y.is_infinite() && x.is_infinite()) {
        (true, _) => 0.0,
        (_, true) => 1.0,
        _ => f64::from(y.abs()) / f64::from(x.abs()),
    };
    let angle = wide::atan(slope);
    rounded(if x.is_sign_negative() { PI - angle } else { angle }).copysign(y)
}

/// The hyperbolic sine.
pub fn sinh(x: f32) -> f32 {
    let less_one = wide::exp_m1(x.abs().into());
    rounded((less_one + less_one / (less_one + 1.0)) * 0.5).copysign(x)
}

/// The hyperbolic cosine.
pub fn cosh(x: f32) -> f32 {
    let power = wide::exp(x.abs().into());
    rounded((power + 1.0 / power) * 0.5)
}

/// The inverse hyperbolic sine.
pub fn asinh(x: f32) -> f32 {
    let magnitude = f64::from(x.abs());
    let square = magnitude * magnitude;
    let over_one = magnitude + square / (1.0 + (1.0 + square).sqrt());
    if x.is_infinite() { x } else { rounded(wide::ln_1p(over_one)).copysign(x) }
}

/// The inverse hyperbolic cosine; NaN below 1.
pub fn acosh(x: f32) -> f32 {
    let over_one = f64::from(x) - 1.0;
    let root = (over_one * (2.0 + over_one)).sqrt();
    if x < 1.0 { f32::NAN } else { rounded(wide::ln_1p(over_one + root)) }
}

/// The inverse hyperbolic tangent; NaN outside -1 to 1.
pub fn atanh(x: f32) -> f32 {
    let magnitude = f64::from(x.abs());
    rounded(0.5 * wide::ln_1p(2.0 * magnitude / (1.0 - magnitude))).copysign(x)
}

/// `a^b`, as IEEE 754's `pow` has it where a factor is zero, infinite or negative. The square is exact before it is rounded.
pub fn power(a: f32, b: f32) -> f32 {
    if b == 2.0 {
        return a * a;
    }
    if b == 0.0 || a == 1.0 {
        return 1.0;
    }
    let is_whole = b.trunc() == b;
    let is_odd = is_whole && (b * 0.5).trunc() != b * 0.5;
    if a < 0.0 && a.is_finite() && !is_whole {
        return f32::NAN;
    }
    let magnitude = f64::from(a.abs());
    // One has no logarithm that an infinite exponent could multiply.
    let size = if magnitude == 1.0 && !b.is_nan() { 1.0 } else { wide::exp(f64::from(b) * wide::ln(magnitude)) };
    let size = rounded(size);
    if a.is_sign_negative() && is_odd { -size } else { size }
}

/// `ln(e^a + e^b)`.
pub fn log_add_exp(a: f32, b: f32) -> f32 {
    let (high, low) = (max(a, b), min(a, b));
    // Two equal infinities have no difference.
    if high.is_infinite() {
        return high;
    }
    rounded(f64::from(high) + wide::ln_1p(wide::exp(f64::from(low) - f64::from(high))))
}
