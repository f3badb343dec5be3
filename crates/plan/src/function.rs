//! Writing elementwise functions: `f.mul(x, f.sigmoid(x))`.

use crate::dim::Dim;
use crate::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;

/// A function being written. Its parts are numbers of steps.
#[derive(Debug, Default)]
pub(crate) struct Function {
    steps: Vec<Step>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    step: u16,
    pub(crate) dtype: DType,
}

impl Function {
    fn push(&mut self, op: Scalar, args: &[Part], dtype: DType) -> Part {
        let mut numbers = [0; 3];
        for (number, arg) in numbers.iter_mut().zip(args) {
            *number = arg.step;
        }
        let step = u16::try_from(self.steps.len()).expect("a function has few steps");
        self.steps.push(Step { op, args: numbers, dtype });
        Part { step, dtype }
    }

    pub(crate) fn load(&mut self, input: usize, dtype: DType) -> Part {
        self.push(Scalar::Load(u16::try_from(input).expect("a function has few inputs")), &[], dtype)
    }

    pub(crate) fn float(&mut self, value: f32, dtype: DType) -> Part {
        self.push(Scalar::Float(value), &[], dtype)
    }

    pub(crate) fn int(&mut self, value: Dim, dtype: DType) -> Part {
        self.push(Scalar::Int(value), &[], dtype)
    }

    pub(crate) fn index(&mut self, axis: usize, dtype: DType) -> Part {
        self.push(Scalar::Index(u8::try_from(axis).expect("ranks are small")), &[], dtype)
    }

    pub(crate) fn cast(&mut self, part: Part, dtype: DType) -> Part {
        if part.dtype == dtype { part } else { self.push(Scalar::Cast, &[part], dtype) }
    }

    pub(crate) fn unary(&mut self, op: Unary, x: Part) -> Part {
        self.push(Scalar::Unary(op), &[x], x.dtype)
    }

    pub(crate) fn binary(&mut self, op: Binary, a: Part, b: Part) -> Part {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Binary(op), &[a, b], a.dtype)
    }

    pub(crate) fn compare(&mut self, op: Compare, a: Part, b: Part) -> Part {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Compare(op), &[a, b], DType::Bool)
    }

    pub(crate) fn select(&mut self, condition: Part, yes: Part, no: Part) -> Part {
        debug_assert_eq!(yes.dtype, no.dtype, "operands are promoted before");
        self.push(Scalar::Select, &[condition, yes, no], yes.dtype)
    }

    /// The function whose result is `part`, the last that was written or one before.
    pub(crate) fn finish(mut self, part: Part) -> Expr {
        self.steps.truncate(usize::from(part.step) + 1);
        Expr { steps: self.steps }
    }
}
