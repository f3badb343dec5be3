//! Functions of single numbers.

use ptero_plan::expr::{Binary, Compare, Unary};
use std::cmp::Ordering;

/// The function of a float, if it exists: computed in `f64`, where it is right, and rounded once.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
pub(crate) fn unary_float(op: Unary, x: f32) -> Option<f32> {
    let wide = f64::from(x);
    Some(match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => sign(x),
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => (1.0 / wide.sqrt()) as f32,
        Unary::Reciprocal => 1.0 / x,
        Unary::Exp => wide.exp() as f32,
        Unary::Expm1 => wide.exp_m1() as f32,
        // Samplers draw with it, and their tokens are the same to the bit everywhere.
        Unary::Log => ptero_sampling::math::ln(x),
        Unary::Log2 => wide.log2() as f32,
        Unary::Log10 => wide.log10() as f32,
        Unary::Log1p => wide.ln_1p() as f32,
        Unary::Sin => wide.sin() as f32,
        Unary::Cos => wide.cos() as f32,
        Unary::Tan => wide.tan() as f32,
        Unary::Arcsin => wide.asin() as f32,
        Unary::Arccos => wide.acos() as f32,
        Unary::Arctan => wide.atan() as f32,
        Unary::Sinh => wide.sinh() as f32,
        Unary::Cosh => wide.cosh() as f32,
        Unary::Tanh => wide.tanh() as f32,
        Unary::Arcsinh => wide.asinh() as f32,
        Unary::Arccosh => wide.acosh() as f32,
        Unary::Arctanh => wide.atanh() as f32,
        Unary::Erf => erf(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Not | Unary::BitNot => return None,
    })
}

/// The function of an integer, if it exists. A bool's `BitNot` is `Not`; the caller sees to that.
pub(crate) fn unary_int(op: Unary, x: i64) -> Option<i64> {
    match op {
        Unary::Neg => Some(x.wrapping_neg()),
        Unary::Abs => Some(x.wrapping_abs()),
        Unary::Sign => Some(x.signum()),
        Unary::Square => Some(x.wrapping_mul(x)),
        Unary::Not => Some((x == 0).into()),
        Unary::BitNot => Some(!x),
        Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal | Unary::Exp | Unary::Expm1 => None,
        Unary::Log | Unary::Log2 | Unary::Log10 | Unary::Log1p => None,
        Unary::Sin | Unary::Cos | Unary::Tan | Unary::Arcsin | Unary::Arccos | Unary::Arctan => None,
        Unary::Sinh | Unary::Cosh | Unary::Tanh | Unary::Arcsinh | Unary::Arccosh | Unary::Arctanh => None,
        Unary::Erf | Unary::Sigmoid | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => None,
    }
}

/// The function of two floats, if it exists: computed the same way.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
pub(crate) fn binary_float(op: Binary, a: f32, b: f32) -> Option<f32> {
    Some(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => (a / b).floor(),
        Binary::Remainder => remainder(a, b),
        Binary::Power => f64::from(a).powf(b.into()) as f32,
        Binary::Max => max(a, b),
        Binary::Min => -max(-a, -b),
        Binary::Atan2 => f64::from(a).atan2(b.into()) as f32,
        Binary::LogAddExp => log_add_exp(a, b),
        Binary::And | Binary::Or | Binary::BitAnd | Binary::BitOr | Binary::BitXor => return None,
    })
}

/// The function of two integers, if it exists.
pub(crate) fn binary_int(op: Binary, a: i64, b: i64) -> Option<i64> {
    Some(match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::FloorDiv => floor_div(a, b).unwrap_or(0),
        Binary::Remainder => floor_mod(a, b).unwrap_or(0),
        Binary::Power => power(a, b),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::And => (a != 0 && b != 0).into(),
        Binary::Or => (a != 0 || b != 0).into(),
        Binary::BitAnd => a & b,
        Binary::BitOr => a | b,
        Binary::BitXor => a ^ b,
        Binary::Div | Binary::Atan2 | Binary::LogAddExp => return None,
    })
}

/// Whether two operands of this order (none beside NaN) compare so.
pub(crate) fn compare(op: Compare, order: Option<Ordering>) -> bool {
    match op {
        Compare::Less => order == Some(Ordering::Less),
        Compare::LessEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Compare::Greater => order == Some(Ordering::Greater),
        Compare::GreaterEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        Compare::Equal => order == Some(Ordering::Equal),
        Compare::NotEqual => order != Some(Ordering::Equal),
    }
}

/// The larger; NaN wins.
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The quotient rounded down, or `None` by zero.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let exact_or_rounded_to_zero = if b == 0 { return None } else { a.wrapping_div(b) };
    let rounds_up = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
    Some(exact_or_rounded_to_zero - i64::from(rounds_up))
}

/// What `floor_div` leaves, with the sign of the divisor, or `None` by zero.
fn floor_mod(a: i64, b: i64) -> Option<i64> {
    let remainder = if b == 0 { return None } else { a.wrapping_rem(b) };
    Some(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
}

fn remainder(a: f32, b: f32) -> f32 {
    let remainder = a % b;
    if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
}

/// By squaring, in wrapping 64 bits.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1_i64, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left /= 2;
    }
    result
}

fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn log_add_exp(a: f32, b: f32) -> f32 {
    let (high, low) = (max(a, b), -max(-a, -b));
    // Two equal infinities have no difference.
    if high.is_infinite() { high } else { (f64::from(high) + (f64::from(low) - f64::from(high)).exp().ln_1p()) as f32 }
}

/// The error function: near zero by its series without subtractions (Abramowitz and Stegun 7.1.6), elsewhere by the
/// continued fraction of its complement (7.1.14). In `f64`, so that the one rounding is that of the result.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
fn erf(x: f32) -> f32 {
    let magnitude = f64::from(x).abs();
    let scale = (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt();
    let result = if magnitude < 2.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..60 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        2.0 * scale * sum
    } else {
        let fraction = (1..100).rev().fold(magnitude, |tail, n| magnitude + f64::from(n) / 2.0 / tail);
        1.0 - scale / fraction
    };
    (result as f32).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
    fn erf_is_right_to_the_last_bit_of_a_float() {
        let known: [(f32, f64); 10] = [
            (0.0, 0.0),
            (2.0_f32.powi(-80), 9.333733706301412e-25),
            (0.125, 0.1403162048013338),
            (0.5, 0.5204998778130465),
            (1.0, 0.8427007929497149),
            (1.984375, 0.9949890660500735),
            (2.0, 0.9953222650189527),
            (3.0, 0.9999779095030014),
            (10.0, 1.0),
            (f32::INFINITY, 1.0),
        ];
        for (x, expected) in known {
            assert_eq!((erf(x), erf(-x)), (expected as f32, -expected as f32), "{x}");
        }
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn the_two_halves_of_erf_meet() {
        let (below, above) = (erf(2.0_f32.next_down()), erf(2.0));
        assert!(above >= below && above - below <= 1.2e-7, "{below} {above}");
    }

    #[test]
    fn integer_division_rounds_down_and_takes_the_sign_of_the_divisor() {
        for (a, b, quotient, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0)] {
            assert_eq!((floor_div(a, b), floor_mod(a, b)), (Some(quotient), Some(rest)), "{a} {b}");
        }
        assert_eq!((binary_int(Binary::FloorDiv, 5, 0), binary_int(Binary::Remainder, 5, 0)), (Some(0), Some(0)));
        assert_eq!((floor_div(i64::MIN, 3), floor_mod(i64::MIN, 3)), (Some(i64::MIN / 3 - 1), Some(1)));
        assert_eq!((floor_div(i64::MIN, -1), floor_mod(i64::MIN, -1)), (Some(i64::MIN), Some(0)));
    }

    #[test]
    fn integer_powers_wrap_and_negative_exponents_give_zero() {
        assert_eq!((power(3, 5), power(-2, 3), power(0, 0), power(10, 0)), (243, -8, 1, 1));
        assert_eq!((power(2, 64), power(3, 41)), (0, 3_i64.wrapping_pow(41)));
        assert_eq!((power(2, -1), power(1, -5), power(-1, -5), power(-1, -4), power(0, -1)), (0, 1, -1, 1, 0));
        assert_eq!(power(1, i64::MAX), 1);
    }

    #[test]
    fn not_a_number_wins_and_infinities_do_not_produce_it() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(max(a, b).is_nan());
            assert!(binary_float(Binary::Min, a, b).unwrap().is_nan());
            assert!(log_add_exp(a, b).is_nan());
        }
        assert_eq!(log_add_exp(f32::NEG_INFINITY, f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(log_add_exp(f32::INFINITY, 0.0), f32::INFINITY);
        assert_eq!(log_add_exp(f32::NEG_INFINITY, 3.0), 3.0);
        assert_eq!(log_add_exp(1000.0, 1000.0), 1000.0 + std::f32::consts::LN_2);
        assert_eq!((sigmoid(-200.0), sigmoid(0.0), sigmoid(200.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn remainders_of_floats_take_the_sign_of_the_divisor() {
        assert_eq!((remainder(5.5, 2.0), remainder(-5.5, 2.0), remainder(5.5, -2.0)), (1.5, 0.5, -0.5));
        assert_eq!(binary_float(Binary::FloorDiv, -5.5, 2.0), Some(-3.0));
    }
}
