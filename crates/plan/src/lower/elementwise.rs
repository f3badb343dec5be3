//! Nodes that compute each element from the elements at the same index.

use super::Lowerer;
use crate::builder::Tensor;
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::expr::{Binary, Compare, Unary};
use crate::function::{Function, Term};
use crate::promote::{promote, to_float};
use ptero_pte::field::{GeluForm, Src};
use ptero_pte::nodes::{ARange, Clip, FullLike, Gelu, Round, Tri, Where};
use ptero_tensor::DType;

/// What a tensor is filled with.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    Float(f32),
    Int(Dim),
}

impl Lowerer<'_> {
    /// A function of one tensor.
    fn map_one(&mut self, x: Src, f: impl FnOnce(&Function, Term) -> Term) -> Result<Tensor> {
        let x = self.tensor(x)?;
        self.builder.map(&[x], |function, [x]| f(function, x))
    }

    /// A function of two tensors, promoted to one type.
    fn map_two(&mut self, [a, b]: [Src; 2], f: impl FnOnce(&Function, Term, Term) -> Term) -> Result<Tensor> {
        let (a, b) = (self.tensor(a)?, self.tensor(b)?);
        let dtype = promote(a.dtype, b.dtype);
        self.builder.map(&[a, b], |function, [a, b]| f(function, function.cast(a, dtype), function.cast(b, dtype)))
    }

    pub(super) fn unary(&mut self, x: Src, op: Unary) -> Result<Tensor> {
        let dtype = self.tensor(x)?.dtype;
        match (op, dtype) {
            (Unary::BitNot, DType::F16 | DType::Bf16 | DType::F32) => {
                Err(Fault::DType { what: "inverted bits", dtype })
            }
            (Unary::Neg, DType::Bool) => Err(Fault::DType { what: "negation", dtype }),
            _ => self.map_one(x, |f, x| f.unary(op, x)),
        }
    }

    /// A function that exists for floats only: integers become `f32`.
    pub(super) fn float_unary(&mut self, x: Src, op: Unary) -> Result<Tensor> {
        self.map_one(x, |f, x| f.unary(op, f.cast(x, to_float(x.dtype))))
    }

    /// A rounding; integers stay as they are.
    pub(super) fn rounding(&mut self, x: Src, op: Unary) -> Result<Tensor> {
        self.map_one(x, |f, x| if x.dtype.is_float() { f.unary(op, x) } else { x })
    }

    pub(super) fn round(&mut self, n: &Round) -> Result<Tensor> {
        if n.decimals == 0 {
            return self.rounding(n.x, Unary::Round);
        }
        self.map_one(n.x, |f, x| {
            let (dtype, x) = (x.dtype, f.cast(x, to_float(x.dtype)));
            let power = f.float(10_f32.powi(n.decimals), x.dtype);
            let rounded = f.unary(Unary::Round, f.binary(Binary::Mul, x, power));
            f.cast(f.binary(Binary::Div, rounded, power), dtype)
        })
    }

    pub(super) fn logical_not(&mut self, x: Src) -> Result<Tensor> {
        self.map_one(x, |f, x| f.unary(Unary::Not, f.cast(x, DType::Bool)))
    }

    pub(super) fn binary(&mut self, ins: [Src; 2], op: Binary) -> Result<Tensor> {
        self.map_two(ins, |f, a, b| f.binary(op, a, b))
    }

    pub(super) fn float_binary(&mut self, ins: [Src; 2], op: Binary) -> Result<Tensor> {
        self.map_two(ins, |f, a, b| f.binary(op, f.cast(a, to_float(a.dtype)), f.cast(b, to_float(a.dtype))))
    }

    pub(super) fn logical(&mut self, [a, b]: [Src; 2], op: Binary) -> Result<Tensor> {
        let ins = [self.tensor(a)?, self.tensor(b)?];
        self.builder.map(&ins, |f, [a, b]| f.binary(op, f.cast(a, DType::Bool), f.cast(b, DType::Bool)))
    }

    pub(super) fn compare(&mut self, ins: [Src; 2], op: Compare) -> Result<Tensor> {
        self.map_two(ins, |f, a, b| f.compare(op, a, b))
    }

    pub(super) fn silu(&mut self, x: Src) -> Result<Tensor> {
        self.map_one(x, |f, x| {
            let x = f.cast(x, to_float(x.dtype));
            f.binary(Binary::Mul, x, f.unary(Unary::Sigmoid, x))
        })
    }

    /// Rounds to the type of `x` at every step as upstream does.
    pub(super) fn gelu(&mut self, n: &Gelu) -> Result<Tensor> {
        self.map_one(n.x, |f, x| {
            let x = f.cast(x, to_float(x.dtype));
            let scaled = |factor: f32, term: Term| f.binary(Binary::Mul, f.float(factor, x.dtype), term);
            let inner = match n.approximate {
                GeluForm::Erf => f.unary(Unary::Erf, scaled(std::f32::consts::FRAC_1_SQRT_2, x)),
                GeluForm::Tanh => {
                    let cube = f.binary(Binary::Mul, x, f.binary(Binary::Mul, x, x));
                    let sum = f.binary(Binary::Add, x, scaled(0.044_715, cube));
                    f.unary(Unary::Tanh, scaled(0.797_884_6, sum))
                }
            };
            let sum = f.binary(Binary::Add, f.float(1.0, x.dtype), inner);
            scaled(0.5, f.binary(Binary::Mul, x, sum))
        })
    }

    pub(super) fn select(&mut self, n: &Where) -> Result<Tensor> {
        let ins = [self.tensor(n.condition)?, self.tensor(n.x)?, self.tensor(n.y)?];
        let [_, x, y] = &ins;
        let dtype = promote(x.dtype, y.dtype);
        self.builder.map(&ins, |f, [condition, x, y]| {
            f.select(f.cast(condition, DType::Bool), f.cast(x, dtype), f.cast(y, dtype))
        })
    }

    pub(super) fn clip(&mut self, n: &Clip) -> Result<Tensor> {
        let mut result = self.tensor(n.x)?;
        for (bound, op) in [(n.a_min, Binary::Max), (n.a_max, Binary::Min)] {
            let Some(bound) = self.maybe(bound)? else { continue };
            let dtype = promote(result.dtype, bound.dtype);
            let clip = |f: &Function, [x, bound]: [Term; 2]| f.binary(op, f.cast(x, dtype), f.cast(bound, dtype));
            result = self.builder.map(&[result, bound], clip)?;
        }
        Ok(result)
    }

    pub(super) fn filled(&mut self, shape: Vec<Dim>, fill: Fill, dtype: DType) -> Result<Tensor> {
        self.builder.check_sizes(&shape, "size")?;
        self.builder.fill(shape, |f| match fill {
            // Upstream holds the value as f32 before it is cast.
            Fill::Float(value) if !dtype.is_float() => f.cast(f.float(value, DType::F32), dtype),
            Fill::Float(value) => f.float(value, dtype),
            Fill::Int(value) => f.int(value, dtype),
        })
    }

    pub(super) fn full_like(&mut self, n: &FullLike) -> Result<Tensor> {
        let (x, fill) = (self.tensor(n.x)?, self.float(n.v)?);
        self.filled(x.shape, fill, n.scalar_type.unwrap_or(x.dtype))
    }

    pub(super) fn arange(&mut self, n: &ARange) -> Result<Tensor> {
        let (start, stop, step) = (self.int(n.start)?, self.int(n.stop)?, self.int(n.step)?);
        let dtype = n.scalar_type.unwrap_or(DType::I32);
        // The count is rounded up: `(stop - start + step - 1) / step`, with `+ 1` for a negative step.
        let known = step.as_fixed().ok_or(Fault::Unsupported("a range whose step is known only at run time"))?;
        ensure!(known != 0, Fault::Value { what: "step", value: 0 });
        let span = &(&(&stop - &start) + &step) - &Dim::fixed(known.signum());
        let count = self.builder.floor_div(span, step.clone())?;
        let count = self.builder.max(count, Dim::fixed(0));
        self.builder.fill(vec![count], |f| {
            let (index, step, start) = (f.index(0, DType::I64), f.int(step, DType::I64), f.int(start, DType::I64));
            f.cast(f.binary(Binary::Add, f.binary(Binary::Mul, index, step), start), dtype)
        })
    }

    pub(super) fn tri(&mut self, n: &Tri) -> Result<Tensor> {
        let shape = vec![self.int(n.n)?, self.int(n.m)?];
        self.builder.fill(shape, |f| f.cast(on_or_below(f, 0, 1, n.k), n.scalar_type))
    }

    /// Keeps what is on or below a diagonal, or on or above it; the rest is zero.
    pub(super) fn triangle(&mut self, x: Src, k: i32, lower: bool) -> Result<Tensor> {
        let x = self.tensor(x)?;
        let row = x.rank().checked_sub(2).ok_or(Fault::Rank { what: "a triangle", wanted: 2, found: x.rank() })?;
        self.builder.map(&[x], |f, [x]| {
            let below = on_or_below(f, row, row + 1, if lower { k } else { k.saturating_sub(1) });
            let zero = f.int(Dim::fixed(0), x.dtype);
            if lower { f.select(below, x, zero) } else { f.select(below, zero, x) }
        })
    }
}

/// `column <= row + k`.
fn on_or_below(f: &Function, row: usize, column: usize, k: i32) -> Term {
    let (row, column) = (f.index(row, DType::I64), f.index(column, DType::I64));
    let k = f.int(Dim::fixed(k.into()), DType::I64);
    f.compare(Compare::LessEqual, column, f.binary(Binary::Add, row, k))
}
