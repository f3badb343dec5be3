//! Which scalar operations are inexact, and what that does to the steps after them.
//!
//! The tolerance of a map is for its result. A step before the last that is off by a unit may be enlarged by later ones without
//! bound (`1 + tanh(x)`, `floor(exp(x))`), so the reference also runs the function with that step's result nudged, and what
//! changes is allowed.

use super::super::data::is_float;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;

/// Returns `true` if devices are off by some units in the last place; other operations give the same bits everywhere (IEEE 754).
fn is_inexact(step: &Step) -> bool {
    use Binary::{Atan2, Div, LogAddExp, Power};
    use Unary::{Abs, BitNot, Ceil, Floor, Neg, Not, Round, Sign, Square, Trunc};
    is_float(step.dtype)
        && match &step.op {
            Scalar::Unary(op) => !matches!(op, Neg | Abs | Sign | Square | Not | BitNot | Floor | Ceil | Round | Trunc),
            Scalar::Binary(op) => matches!(op, Div | Atan2 | Power | LogAddExp),
            Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => false,
            Scalar::Cast | Scalar::Compare(_) | Scalar::Select => false,
        }
}

/// The steps whose results are nudged: inexact ones that are used again.
pub(in crate::suite) fn nudges(expr: &Expr) -> Vec<usize> {
    let before_last = expr.steps.iter().take(expr.steps.len().saturating_sub(1)).enumerate();
    before_last.filter(|(_, step)| is_inexact(step)).map(|(at, _)| at).collect()
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
