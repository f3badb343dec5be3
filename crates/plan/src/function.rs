//! Writes elementwise functions: `Function::of([F32], |f, [x]| f.binary(Binary::Mul, x, f.unary(Unary::Sigmoid, x)))`.

use crate::dim::Dim;
use crate::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;
use std::cell::RefCell;

/// An elementwise function being written.
#[derive(Debug, Default)]
pub struct Function {
    /// In a cell, so that calls can be nested.
    steps: RefCell<Vec<Step>>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    step: u16,
    /// Its type.
    pub dtype: DType,
}

impl Function {
    /// The function of inputs of these types that `f` writes.
    pub fn of<const N: usize>(types: [DType; N], f: impl FnOnce(&Function, [Term; N]) -> Term) -> Expr {
        Self::of_list(&types, |function, terms| f(function, terms.try_into().expect("there is a term for each input")))
    }

    /// Same as `of`, for any number of inputs.
    pub fn of_list(types: &[DType], f: impl FnOnce(&Function, &[Term]) -> Term) -> Expr {
        let function = Self::default();
        let load = |(input, dtype): (usize, &DType)| {
            let input = u16::try_from(input).expect("a function has few inputs");
            function.push(Scalar::Load(input), &[], *dtype)
        };
        let terms: Vec<Term> = types.iter().enumerate().map(load).collect();
        let result = f(&function, &terms);
        // Steps after the result are not used.
        let mut steps = function.steps.into_inner();
        steps.truncate(usize::from(result.step) + 1);
        Expr { steps }
    }

    fn push(&self, op: Scalar, args: &[Term], dtype: DType) -> Term {
        let mut numbers = [0; 3];
        for (number, arg) in numbers.iter_mut().zip(args) {
            *number = arg.step;
        }
        let mut steps = self.steps.borrow_mut();
        steps.push(Step { op, args: numbers, dtype });
        Term { step: u16::try_from(steps.len() - 1).expect("a function has few steps"), dtype }
    }

    /// A float, rounded to the type.
    pub fn float(&self, value: f32, dtype: DType) -> Term {
        self.push(Scalar::Float(value), &[], dtype)
    }

    /// An integer of the host, converted to the type.
    pub fn int(&self, value: Dim, dtype: DType) -> Term {
        self.push(Scalar::Int(value), &[], dtype)
    }

    /// The index along an axis of the result.
    pub fn index(&self, axis: usize, dtype: DType) -> Term {
        self.push(Scalar::Index(u8::try_from(axis).expect("ranks are small")), &[], dtype)
    }

    /// Converts to a type.
    pub fn cast(&self, x: Term, dtype: DType) -> Term {
        if x.dtype == dtype { x } else { self.push(Scalar::Cast, &[x], dtype) }
    }

    /// An operation with one operand.
    pub fn unary(&self, op: Unary, x: Term) -> Term {
        self.push(Scalar::Unary(op), &[x], x.dtype)
    }

    /// An operation with two operands of one type.
    pub fn binary(&self, op: Binary, a: Term, b: Term) -> Term {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Binary(op), &[a, b], a.dtype)
    }

    /// A comparison of two operands of one type.
    pub fn compare(&self, op: Compare, a: Term, b: Term) -> Term {
        debug_assert_eq!(a.dtype, b.dtype, "operands are promoted before");
        self.push(Scalar::Compare(op), &[a, b], DType::Bool)
    }

    /// `yes` where a condition holds, else `no`.
    pub fn select(&self, condition: Term, yes: Term, no: Term) -> Term {
        debug_assert_eq!(yes.dtype, no.dtype, "operands are promoted before");
        self.push(Scalar::Select, &[condition, yes, no], yes.dtype)
    }
}
