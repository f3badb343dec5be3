//! Functions of floats, element by element.
//!
//! The ones that programs spend time in (`exp`, `log`, `tanh`, the logistic function) are written without branches, so that loops
//! over them vectorise; they err by at most two units in the last place. The others are the standard library's for `f64`.

use super::each::{self, each, pairs};
use ptero_plan::expr::{Binary, Compare, Unary};
use ptero_sampling::math;

/// Adding and taking off this number rounds what is below 2^22 to an integer.
const ROUND: f32 = 12_582_912.0;

/// `e^x`: `2^n e^r` with `|r| <= ln 2 / 2`, and the series of `e^r`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these it is infinite or zero. Not-a-number passes through everything below.
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -104.0 { -104.0 } else { bounded };
    let shifted = bounded.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first short enough that its products are exact.
    let r = (-n).mul_add(0.693_145_75, bounded);
    let r = (-n).mul_add(1.428_606_8e-6, r);
    let series = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    let series = r.mul_add(series, 1.0 / 120.0);
    let series = r.mul_add(series, 1.0 / 24.0);
    let series = r.mul_add(series, 1.0 / 6.0);
    let series = r.mul_add(series, 0.5);
    let power = (r * r).mul_add(series, r) + 1.0;
    // In two steps, since 2^n itself may be too large or too small to be a float.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    power * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `2^n` for `n` from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// `ln x`, to the bit what [`ptero_sampling::math::ln`] gives: the same operations in the same order, none of them fused, but
/// without branches.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let is_small = x < f32::MIN_POSITIVE;
    let bits = if is_small { x * 8_388_608.0 } else { x }.to_bits().cast_signed();
    let exponent = bits.wrapping_sub(math::SQRT_HALF) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub(exponent << 23).cast_unsigned());
    #[allow(clippy::cast_precision_loss, reason = "an exponent")]
    let power = (exponent - if is_small { 23 } else { 0 }) as f32;
    let f = mantissa - 1.0;
    let square = f * f;
    let polynomial = math::LN.iter().rev().copied().reduce(|sum, coefficient| sum * f + coefficient).unwrap_or(0.0);
    let tail = square * f * polynomial;
    let result = power * math::LN_2_HIGH + (f - (0.5 * square - (tail + power * math::LN_2_LOW)));
    if x > 0.0 && x < f32::INFINITY {
        result
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// The logistic function, each half with the exponential that cannot overflow.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let power = exp(-x.abs());
    let numerator = if x >= 0.0 { 1.0 } else { power };
    numerator / (1.0 + power)
}

/// Near zero by its odd series, elsewhere by `1 - 2 / (e^2x + 1)`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let large = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let z = x * x;
    // Fitted to |x| < 0.625, where the other form loses its first digits.
    let tail = z.mul_add(-5.704_988_7e-3, 2.063_909e-2);
    let tail = z.mul_add(tail, -5.373_971_6e-2);
    let tail = z.mul_add(tail, 1.333_144_2e-1);
    let tail = z.mul_add(tail, -3.333_328e-1);
    let small = (x * z).mul_add(tail, x);
    if magnitude < 0.625 { small } else { large.copysign(x) }
}

/// The larger; not-a-number wins.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    let outside = if x < 0.0 { -1.0 } else { x };
    if x > 0.0 { 1.0 } else { outside }
}

#[inline(always)]
fn remainder(a: f32, b: f32) -> f32 {
    let remainder = a % b;
    if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn log_add_exp(a: f32, b: f32) -> f32 {
    let (high, low) = (max(a, b), -max(-a, -b));
    // Two equal infinities have no difference.
    if high.is_infinite() { high } else { (f64::from(high) + (f64::from(low) - f64::from(high)).exp().ln_1p()) as f32 }
}

/// A power; small whole exponents by products, which is what programs mostly ask for.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn power(a: f32, b: f32) -> f32 {
    if b == 2.0 { a * a } else { f64::from(a).powf(b.into()) as f32 }
}

/// The functions of `f64` that need not be fast; some of those of `f32` are off by hundreds of units in the last place.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn each_wide(x: &[f32], out: &mut [f32], function: impl Fn(f64) -> f64) {
    each(x, out, |x| function(x.into()) as f32);
}

kernel! {
    /// The function of each element. Those that floats do not have give not-a-number; plans with them were refused.
    pub(crate) fn unary(op: Unary, x: &[f32], out: &mut [f32]) {
        match op {
            Unary::Neg => each(x, out, |x| -x),
            Unary::Abs => each(x, out, f32::abs),
            Unary::Sign => each(x, out, sign),
            Unary::Square => each(x, out, |x| x * x),
            Unary::Sqrt => each(x, out, f32::sqrt),
            Unary::Rsqrt => each(x, out, |x| 1.0 / x.sqrt()),
            Unary::Reciprocal => each(x, out, |x| 1.0 / x),
            Unary::Exp => each(x, out, exp),
            Unary::Expm1 => each_wide(x, out, f64::exp_m1),
            Unary::Log => each(x, out, ln),
            Unary::Log2 => each_wide(x, out, f64::log2),
            Unary::Log10 => each_wide(x, out, f64::log10),
            Unary::Log1p => each_wide(x, out, f64::ln_1p),
            Unary::Sin => each_wide(x, out, f64::sin),
            Unary::Cos => each_wide(x, out, f64::cos),
            Unary::Tan => each_wide(x, out, f64::tan),
            Unary::Arcsin => each_wide(x, out, f64::asin),
            Unary::Arccos => each_wide(x, out, f64::acos),
            Unary::Arctan => each_wide(x, out, f64::atan),
            Unary::Sinh => each_wide(x, out, f64::sinh),
            Unary::Cosh => each_wide(x, out, f64::cosh),
            Unary::Tanh => each(x, out, tanh),
            Unary::Arcsinh => each_wide(x, out, f64::asinh),
            Unary::Arccosh => each_wide(x, out, f64::acosh),
            Unary::Arctanh => each_wide(x, out, f64::atanh),
            Unary::Erf => each(x, out, super::erf::erf),
            Unary::Sigmoid => each(x, out, sigmoid),
            Unary::Floor => each(x, out, f32::floor),
            Unary::Ceil => each(x, out, f32::ceil),
            Unary::Round => each(x, out, f32::round_ties_even),
            Unary::Trunc => each(x, out, f32::trunc),
            Unary::Not | Unary::BitNot => out.fill(f32::NAN),
        }
    }

    /// The function of each pair of elements, likewise.
    #[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
    pub(crate) fn binary(op: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
        match op {
            Binary::Add => pairs(a, b, out, |a, b| a + b),
            Binary::Sub => pairs(a, b, out, |a, b| a - b),
            Binary::Mul => pairs(a, b, out, |a, b| a * b),
            Binary::Div => pairs(a, b, out, |a, b| a / b),
            Binary::FloorDiv => pairs(a, b, out, |a, b| (a / b).floor()),
            Binary::Remainder => pairs(a, b, out, remainder),
            Binary::Power => pairs(a, b, out, power),
            Binary::Max => pairs(a, b, out, max),
            Binary::Min => pairs(a, b, out, |a, b| -max(-a, -b)),
            Binary::Atan2 => pairs(a, b, out, |a, b| f64::from(a).atan2(b.into()) as f32),
            Binary::LogAddExp => pairs(a, b, out, log_add_exp),
            Binary::And | Binary::Or | Binary::BitAnd | Binary::BitOr | Binary::BitXor => out.fill(f32::NAN),
        }
    }

    /// How each pair of elements compares: one or zero.
    pub(crate) fn compare(op: Compare, a: &[f32], b: &[f32], out: &mut [i64]) {
        each::compare(op, a, b, out);
    }

    /// The second where the first is not zero, else the third.
    pub(crate) fn select(condition: &[i64], yes: &[f32], no: &[f32], out: &mut [f32]) {
        each::select(condition, yes, no, out);
    }

    /// Integers as floats.
    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a cast must")]
    pub(crate) fn from_ints(x: &[i64], out: &mut [f32]) {
        x.iter().zip(out).for_each(|(x, out)| *out = *x as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn the_logarithm_has_the_bits_that_sampling_asks_for() {
        let edges = [0.0, -0.0, 1.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, -f32::INFINITY, -1.0, f32::NAN];
        let edges =
            edges.into_iter().flat_map(|edge| (-20..=20).map(move |off| edge.to_bits().wrapping_add_signed(off)));
        let x: Vec<f32> = (0..=u32::MAX).step_by(997).chain(edges).map(f32::from_bits).collect();
        let mut found = vec![0.0; x.len()];
        for isa in Isa::available() {
            unary(isa, Unary::Log, &x, &mut found);
            for (x, found) in x.iter().zip(&found) {
                let wanted = math::ln(*x);
                let is_same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
                assert!(is_same, "ln {x:?} is {found:?} where sampling has {wanted:?}, on {}", isa.name());
            }
        }
    }
}
