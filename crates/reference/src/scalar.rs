//! Functions of single numbers. Those of floats are defined in `ptero_arithmetic`.

use ptero_arithmetic as arithmetic;
use ptero_plan::expr::{Binary, Compare, Unary};
use std::cmp::Ordering;

/// The function of a float, if it exists.
pub(crate) fn unary_float(op: Unary, x: f32) -> Option<f32> {
    Some(match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => arithmetic::sign(x),
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => arithmetic::rsqrt(x),
        Unary::Reciprocal => 1.0 / x,
        Unary::Exp => arithmetic::exp(x),
        Unary::Expm1 => arithmetic::exp_m1(x),
        Unary::Log => arithmetic::ln(x),
        Unary::Log2 => arithmetic::log2(x),
        Unary::Log10 => arithmetic::log10(x),
        Unary::Log1p => arithmetic::ln_1p(x),
        Unary::Sin => arithmetic::sin(x),
        Unary::Cos => arithmetic::cos(x),
        Unary::Tan => arithmetic::tan(x),
        Unary::Arcsin => arithmetic::asin(x),
        Unary::Arccos => arithmetic::acos(x),
        Unary::Arctan => arithmetic::atan(x),
        Unary::Sinh => arithmetic::sinh(x),
        Unary::Cosh => arithmetic::cosh(x),
        Unary::Tanh => arithmetic::tanh(x),
        Unary::Arcsinh => arithmetic::asinh(x),
        Unary::Arccosh => arithmetic::acosh(x),
        Unary::Arctanh => arithmetic::atanh(x),
        Unary::Erf => arithmetic::erf(x),
        Unary::Sigmoid => arithmetic::sigmoid(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Not | Unary::BitNot => return None,
    })
}

/// The function of an integer, if it exists. For a bool, the caller replaces `BitNot` by `Not`.
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

/// The function of two floats, if it exists.
pub(crate) fn binary_float(op: Binary, a: f32, b: f32) -> Option<f32> {
    Some(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => arithmetic::floor_div(a, b),
        Binary::Remainder => arithmetic::remainder(a, b),
        Binary::Power => arithmetic::power(a, b),
        Binary::Max => arithmetic::max(a, b),
        Binary::Min => arithmetic::min(a, b),
        Binary::Atan2 => arithmetic::atan2(a, b),
        Binary::LogAddExp => arithmetic::log_add_exp(a, b),
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

/// Returns `true` if the comparison holds for two operands of this order, which is `None` if one is NaN.
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

/// The quotient rounded down, or `None` for a divisor of zero.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let exact_or_rounded_to_zero = if b == 0 { return None } else { a.wrapping_div(b) };
    let rounds_up = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
    Some(exact_or_rounded_to_zero - i64::from(rounds_up))
}

/// The remainder of `floor_div`, with the sign of the divisor, or `None` for a divisor of zero.
fn floor_mod(a: i64, b: i64) -> Option<i64> {
    let remainder = if b == 0 { return None } else { a.wrapping_rem(b) };
    Some(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
