//! Functions of integers, element by element, in 64 bits.

use super::each::{each, pairs};
use ptero_plan::expr::{Binary, Unary};
use ptero_tensor::DType;

/// The quotient rounded down; by zero it is 0.
fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let rounds_up = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
    a.wrapping_div(b) - i64::from(rounds_up)
}

/// The remainder of `floor_div`, with the sign of the divisor; by zero it is 0.
fn floor_mod(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let remainder = a.wrapping_rem(b);
    if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder }
}

/// By squaring, wrapping.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match (base, exponent % 2 == 0) {
            (1, _) | (-1, true) => 1,
            (-1, false) => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1_i64, base, exponent);
    while left > 0 {
        result = if left % 2 == 1 { result.wrapping_mul(square) } else { result };
        square = square.wrapping_mul(square);
        left /= 2;
    }
    result
}

kernel! {
    /// Applies a function to each element. Functions of floats give zero; plans with them were refused.
    pub(crate) fn unary(op: Unary, x: &[i64], out: &mut [i64]) {
        match op {
            Unary::Neg => each(x, out, i64::wrapping_neg),
            Unary::Abs => each(x, out, i64::wrapping_abs),
            Unary::Sign => each(x, out, i64::signum),
            Unary::Square => each(x, out, |x| x.wrapping_mul(x)),
            Unary::Not => each(x, out, |x| (x == 0).into()),
            Unary::BitNot => each(x, out, |x| !x),
            Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal | Unary::Exp | Unary::Expm1 => out.fill(0),
            Unary::Log | Unary::Log2 | Unary::Log10 | Unary::Log1p => out.fill(0),
            Unary::Sin | Unary::Cos | Unary::Tan | Unary::Arcsin | Unary::Arccos | Unary::Arctan => out.fill(0),
            Unary::Sinh | Unary::Cosh | Unary::Tanh | Unary::Arcsinh | Unary::Arccosh | Unary::Arctanh => out.fill(0),
            Unary::Erf | Unary::Sigmoid | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => out.fill(0),
        }
    }

    /// Applies a function to each pair of elements. Functions of floats give zero.
    pub(crate) fn binary(op: Binary, a: &[i64], b: &[i64], out: &mut [i64]) {
        match op {
            Binary::Add => pairs(a, b, out, i64::wrapping_add),
            Binary::Sub => pairs(a, b, out, i64::wrapping_sub),
            Binary::Mul => pairs(a, b, out, i64::wrapping_mul),
            Binary::FloorDiv => pairs(a, b, out, floor_div),
            Binary::Remainder => pairs(a, b, out, floor_mod),
            Binary::Power => pairs(a, b, out, power),
            Binary::Max => pairs(a, b, out, i64::max),
            Binary::Min => pairs(a, b, out, i64::min),
            Binary::And => pairs(a, b, out, |a, b| (a != 0 && b != 0).into()),
            Binary::Or => pairs(a, b, out, |a, b| (a != 0 || b != 0).into()),
            Binary::BitAnd => pairs(a, b, out, |a, b| a & b),
            Binary::BitOr => pairs(a, b, out, |a, b| a | b),
            Binary::BitXor => pairs(a, b, out, |a, b| a ^ b),
            Binary::Div | Binary::Atan2 | Binary::LogAddExp => out.fill(0),
        }
    }

    /// Floats truncated towards zero; NaN gives 0, and values out of range the nearest integer.
    #[allow(clippy::cast_possible_truncation, reason = "truncation is meant")]
    pub(crate) fn from_floats(x: &[f32], out: &mut [i64]) {
        x.iter().zip(out).for_each(|(x, out)| *out = *x as i64);
    }

    /// Writes 1 for floats that are not zero, and 0 for the others.
    pub(crate) fn are_true(x: &[f32], out: &mut [i64]) {
        x.iter().zip(out).for_each(|(x, out)| *out = (*x != 0.0).into());
    }

    /// Wraps to a type of fewer bits; a bool is 0 or 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "wrapping is meant")]
    pub(crate) fn wrap(dtype: DType, numbers: &mut [i64]) {
        match dtype {
            DType::Bool => numbers.iter_mut().for_each(|x| *x = (*x != 0).into()),
            DType::U8 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as u8)),
            DType::I8 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as i8)),
            DType::U16 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as u16)),
            DType::I16 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as i16)),
            DType::U32 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as u32)),
            DType::I32 => numbers.iter_mut().for_each(|x| *x = i64::from(*x as i32)),
            _ => {}
        }
    }
}
