//! Writes elementwise functions: `f.mul(x, f.sigmoid(x))`.

use crate::dim::Dim;
use crate::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;
use std::cell::RefCell;

/// An elementwise function being written.
#[derive(Debug, Default)]
pub(crate) struct Function {
    /// In a cell, so that calls can be nested.
    steps: RefCell<Vec<Step>>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    step: u16,
    pub(crate) dtype: DType,
}

impl Function {
    fn push(&self, op: Scalar, args: &[Term], dtype: DType) -> Term {
        let mut numbers = [0; 3];
        for (number, arg) in numbers.iter_mut().zip(args) {
            *number = arg.step;
        }
        let mut steps = self.steps.borrow_mut();
        steps.push(Step { op, args: numbers, dtype });
        Term { step: u16::try_from(steps.len() - 1).expect("a function has few steps"), dtype }
    }

    pub(crate) fn load(&self, input: usize, dtype: DType) -> Term {
        self.push(Scalar::Load(u16::try_from(input).expect("a function has few inputs")), &[], dtype)
    }

    pub(crate) fn float(&self, value: f32, dtype: DType) -> Term {
        self.push(Scalar::Float(value), &[], dtype)
    }

    pub(crate) fn int(&self, value: Dim, dtype: DType) -> Term {
        self.push(Scalar::Int(value), &[], dtype)
    }

    pub(crate) fn index(&self, axis: usize, dtype: DType) -> Term {
        self.push(Scalar::Index(u8::try_from(axis).expect("ranks are small")), &[], dtype)
    }

    pub(crate) fn cast(&self, x: Term, dtype: DType) -> Term {
        if x.dtype == dtype { x } else { self.push(Scalar::Cast, &[x], dtype) }
    }

    pub(crate) fn unary(&self, op: Unary, x: Term) -> Term {
        self.push(Scalar::Unary(op), &[x], x.dtype)
    }

    pub(crate) fn binary(&self, op: Binary, a: Term, b: Term) -> Term {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Binary(op), &[a, b], a.dtype)
    }

    pub(crate) fn compare(&self, op: Compare, a: Term, b: Term) -> Term {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Compare(op), &[a, b], DType::Bool)
    }

    pub(crate) fn select(&self, condition: Term, yes: Term, no: Term) -> Term {
        debug_assert_eq!(yes.dtype, no.dtype, "operands are promoted before");
        self.push(Scalar::Select, &[condition, yes, no], yes.dtype)
    }

    /// The function whose result is `x`; later steps are dropped.
    pub(crate) fn finish(self, x: Term) -> Expr {
        let mut steps = self.steps.into_inner();
        steps.truncate(usize::from(x.step) + 1);
        Expr { steps }
    }
}
