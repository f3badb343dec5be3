//! Which scalar operations are inexact, and what that does to the steps after them.
//!
//! The tolerance of a map is for its result. A step before the last that is off by a unit may be enlarged by later ones without
//! bound (`1 + tanh(x)`, `floor(exp(x))`), so the reference also runs the function with that step's result nudged, and what
//! changes is allowed.

use super::super::data::is_float;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;

/// How well the result of a float operation is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accuracy {
    /// By IEEE 754: every device gives the same bits.
    Rounded,
    /// Devices are off by some units in the last place.
    Inexact,
}

fn of_unary(op: Unary) -> Accuracy {
    match op {
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Not | Unary::BitNot => Accuracy::Rounded,
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => Accuracy::Rounded,
        Unary::Sqrt | Unary::Reciprocal | Unary::Exp | Unary::Expm1 => Accuracy::Inexact,
        Unary::Log | Unary::Log2 | Unary::Log1p | Unary::Sin | Unary::Cos => Accuracy::Inexact,
        Unary::Arcsin | Unary::Arccos | Unary::Arctan | Unary::Erf => Accuracy::Inexact,
        Unary::Rsqrt | Unary::Log10 | Unary::Tan | Unary::Sinh | Unary::Cosh | Unary::Tanh => Accuracy::Inexact,
        Unary::Arcsinh | Unary::Arccosh | Unary::Arctanh | Unary::Sigmoid => Accuracy::Inexact,
    }
}

fn of_binary(op: Binary) -> Accuracy {
    match op {
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min => Accuracy::Rounded,
        Binary::And | Binary::Or | Binary::BitAnd | Binary::BitOr | Binary::BitXor => Accuracy::Rounded,
        Binary::FloorDiv | Binary::Remainder => Accuracy::Rounded,
        Binary::Div | Binary::Atan2 => Accuracy::Inexact,
        Binary::Power | Binary::LogAddExp => Accuracy::Inexact,
    }
}

fn of_step(step: &Step) -> Accuracy {
    match &step.op {
        Scalar::Unary(op) if is_float(step.dtype) => of_unary(*op),
        Scalar::Binary(op) if is_float(step.dtype) => of_binary(*op),
        Scalar::Unary(_) | Scalar::Binary(_) | Scalar::Load(_) | Scalar::Float(_) => Accuracy::Rounded,
        Scalar::Int(_) | Scalar::Index(_) | Scalar::Cast | Scalar::Compare(_) | Scalar::Select => Accuracy::Rounded,
    }
}

/// The steps whose results are nudged: inexact ones that are used again.
pub(in crate::suite) fn nudges(expr: &Expr) -> Vec<usize> {
    let before_last = expr.steps.iter().take(expr.steps.len().saturating_sub(1)).enumerate();
    before_last.filter(|(_, step)| of_step(step) == Accuracy::Inexact).map(|(at, _)| at).collect()
}

/// The function with the result of a step changed by some units in the last place.
pub(in crate::suite) fn nudged(expr: &Expr, at: usize, direction: f32) -> Expr {
    let dtype = expr.steps[at].dtype;
    let part = match dtype {
        DType::F16 => 2.0_f32.powi(-10),
        DType::Bf16 => 2.0_f32.powi(-7),
        _ => 2.0_f32.powi(-22),
    };
    let factor = Step { op: Scalar::Float(1.0 + direction * part), args: [0; 3], dtype };
    let product = Step { op: Scalar::Binary(Binary::Mul), args: [at as u16, at as u16 + 1, 0], dtype };
    // Two steps come between: who used the result uses the product, and who comes later moves.
    let moved = |arg: u16| if usize::from(arg) < at { arg } else { arg + 2 };
    let mut steps: Vec<Step> = expr.steps[..=at].to_vec();
    steps.extend([factor, product]);
    steps.extend(expr.steps[at + 1..].iter().map(|step| Step { args: step.args.map(moved), ..step.clone() }));
    Expr { steps }
}
