//! Functions of floats, element by element: loops over those of `ptero_arithmetic`, which vectorise where it has no branches.

use super::each::{each, pairs};
use ptero_arithmetic as arithmetic;
use ptero_plan::expr::{Binary, Unary};

kernel! {
    /// Applies a function to each element. Functions of integers give NaN; plans with them were refused.
    pub(crate) fn unary(op: Unary, x: &[f32], out: &mut [f32]) {
        match op {
            Unary::Neg => each(x, out, |x| -x),
            Unary::Abs => each(x, out, f32::abs),
            Unary::Sign => each(x, out, arithmetic::sign),
            Unary::Square => each(x, out, |x| x * x),
            Unary::Sqrt => each(x, out, f32::sqrt),
            Unary::Rsqrt => each(x, out, arithmetic::rsqrt),
            Unary::Reciprocal => each(x, out, |x| 1.0 / x),
            Unary::Exp => each(x, out, arithmetic::exp),
            Unary::Expm1 => each(x, out, arithmetic::exp_m1),
            Unary::Log => each(x, out, arithmetic::ln),
            Unary::Log2 => each(x, out, arithmetic::log2),
            Unary::Log10 => each(x, out, arithmetic::log10),
            Unary::Log1p => each(x, out, arithmetic::ln_1p),
            Unary::Sin => each(x, out, arithmetic::sin),
            Unary::Cos => each(x, out, arithmetic::cos),
            Unary::Tan => each(x, out, arithmetic::tan),
            Unary::Arcsin => each(x, out, arithmetic::asin),
            Unary::Arccos => each(x, out, arithmetic::acos),
            Unary::Arctan => each(x, out, arithmetic::atan),
            Unary::Sinh => each(x, out, arithmetic::sinh),
            Unary::Cosh => each(x, out, arithmetic::cosh),
            Unary::Tanh => each(x, out, arithmetic::tanh),
            Unary::Arcsinh => each(x, out, arithmetic::asinh),
            Unary::Arccosh => each(x, out, arithmetic::acosh),
            Unary::Arctanh => each(x, out, arithmetic::atanh),
            Unary::Erf => each(x, out, arithmetic::erf),
            Unary::Sigmoid => each(x, out, arithmetic::sigmoid),
            Unary::Floor => each(x, out, f32::floor),
            Unary::Ceil => each(x, out, f32::ceil),
            Unary::Round => each(x, out, f32::round_ties_even),
            Unary::Trunc => each(x, out, f32::trunc),
            Unary::Not | Unary::BitNot => out.fill(f32::NAN),
        }
    }

    /// Applies a function to each pair of elements. Functions of integers give NaN.
    pub(crate) fn binary(op: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
        match op {
            Binary::Add => pairs(a, b, out, |a, b| a + b),
            Binary::Sub => pairs(a, b, out, |a, b| a - b),
            Binary::Mul => pairs(a, b, out, |a, b| a * b),
            Binary::Div => pairs(a, b, out, |a, b| a / b),
            Binary::FloorDiv => pairs(a, b, out, arithmetic::floor_div),
            Binary::Remainder => pairs(a, b, out, arithmetic::remainder),
            Binary::Power => pairs(a, b, out, arithmetic::power),
            Binary::Max => pairs(a, b, out, arithmetic::max),
            Binary::Min => pairs(a, b, out, arithmetic::min),
            Binary::Atan2 => pairs(a, b, out, arithmetic::atan2),
            Binary::LogAddExp => pairs(a, b, out, arithmetic::log_add_exp),
            Binary::And | Binary::Or | Binary::BitAnd | Binary::BitOr | Binary::BitXor => out.fill(f32::NAN),
        }
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

    type Function = fn(f32) -> f32;

    /// Every instruction set gives what the definition gives for one number.
    #[test]
    fn vectors_have_the_bits_of_the_definition() {
        let x: Vec<f32> = (0..=u32::MAX).step_by(9973).map(f32::from_bits).collect();
        let mut found = vec![0.0; x.len()];
        let functions: [(Unary, Function); 7] = [
            (Unary::Exp, arithmetic::exp),
            (Unary::Log, arithmetic::ln),
            (Unary::Tanh, arithmetic::tanh),
            (Unary::Sigmoid, arithmetic::sigmoid),
            (Unary::Erf, arithmetic::erf),
            (Unary::Rsqrt, arithmetic::rsqrt),
            (Unary::Sin, arithmetic::sin),
        ];
        for (isa, (op, function)) in Isa::available().into_iter().flat_map(|isa| functions.map(|row| (isa, row))) {
            unary(isa, op, &x, &mut found);
            for (x, found) in x.iter().zip(&found) {
                let wanted = function(*x);
                let is_same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
                assert!(is_same, "{op:?} of {x:e} is {found:e} instead of {wanted:e} on {}", isa.name());
            }
        }
    }
}
