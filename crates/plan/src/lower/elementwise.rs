//! Nodes that compute each element from the elements at the same place.

use super::Lowerer;
use crate::builder::Tensor;
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::expr::{Binary, Compare, Unary};
use crate::function::{Function, Part};
use crate::promote::{is_float, promote, to_float};
use ptero_pte::field::{Dst, GeluForm, Src};
use ptero_pte::nodes::{ARange, Clip, Full, FullLike, Gelu, Round, Tri, Where};
use ptero_tensor::DType;

/// What a tensor is filled with.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    Float(f32),
    Int(Dim),
}

impl Lowerer<'_> {
    /// A function of one tensor.
    fn map_one(&mut self, x: Src, out: Dst, f: impl FnOnce(&mut Function, Part) -> Part) -> Result<()> {
        let x = self.tensor(x)?;
        let result = self.builder.map(&[x], |function, [x]| f(function, x))?;
        self.set(out, result)
    }

    /// A function of two tensors in the type that both meet in.
    fn map_two(&mut self, a: Src, b: Src, out: Dst, f: impl FnOnce(&mut Function, Part, Part) -> Part) -> Result<()> {
        let (a, b) = (self.tensor(a)?, self.tensor(b)?);
        let dtype = promote(a.dtype, b.dtype);
        let result = self.builder.map(&[a, b], |function, [a, b]| {
            let (a, b) = (function.cast(a, dtype), function.cast(b, dtype));
            f(function, a, b)
        })?;
        self.set(out, result)
    }

    pub(super) fn unary(&mut self, x: Src, out: Dst, op: Unary) -> Result<()> {
        let dtype = self.tensor(x)?.dtype;
        match (op, dtype) {
            (Unary::BitNot, DType::F16 | DType::Bf16 | DType::F32) => {
                Err(Fault::DType { what: "inverted bits", dtype })
            }
            (Unary::Neg, DType::Bool) => Err(Fault::DType { what: "negation", dtype }),
            _ => self.map_one(x, out, |f, x| f.unary(op, x)),
        }
    }

    /// A function that exists for floats only: integers become `f32`.
    pub(super) fn float_unary(&mut self, x: Src, out: Dst, op: Unary) -> Result<()> {
        self.map_one(x, out, |f, x| {
            let x = f.cast(x, to_float(x.dtype));
            f.unary(op, x)
        })
    }

    /// A rounding, which leaves integers as they are.
    pub(super) fn rounding(&mut self, x: Src, out: Dst, op: Unary) -> Result<()> {
        self.map_one(x, out, |f, x| if is_float(x.dtype) { f.unary(op, x) } else { x })
    }

    pub(super) fn round(&mut self, n: &Round) -> Result<()> {
        if n.decimals == 0 {
            return self.rounding(n.x, n.out, Unary::Round);
        }
        let power = 10_f32.powi(n.decimals);
        self.map_one(n.x, n.out, |f, x| {
            let dtype = x.dtype;
            let x = f.cast(x, to_float(dtype));
            let power = f.float(power, x.dtype);
            let scaled = f.binary(Binary::Mul, x, power);
            let rounded = f.unary(Unary::Round, scaled);
            let back = f.binary(Binary::Div, rounded, power);
            f.cast(back, dtype)
        })
    }

    pub(super) fn logical_not(&mut self, x: Src, out: Dst) -> Result<()> {
        self.map_one(x, out, |f, x| {
            let x = f.cast(x, DType::Bool);
            f.unary(Unary::Not, x)
        })
    }

    pub(super) fn binary(&mut self, a: Src, b: Src, out: Dst, op: Binary) -> Result<()> {
        self.map_two(a, b, out, |f, a, b| f.binary(op, a, b))
    }

    pub(super) fn float_binary(&mut self, a: Src, b: Src, out: Dst, op: Binary) -> Result<()> {
        self.map_two(a, b, out, |f, a, b| {
            let dtype = to_float(a.dtype);
            let (a, b) = (f.cast(a, dtype), f.cast(b, dtype));
            f.binary(op, a, b)
        })
    }

    pub(super) fn logical(&mut self, a: Src, b: Src, out: Dst, op: Binary) -> Result<()> {
        let (a, b) = (self.tensor(a)?, self.tensor(b)?);
        let result = self.builder.map(&[a, b], |f, [a, b]| {
            let (a, b) = (f.cast(a, DType::Bool), f.cast(b, DType::Bool));
            f.binary(op, a, b)
        })?;
        self.set(out, result)
    }

    pub(super) fn compare(&mut self, a: Src, b: Src, out: Dst, op: Compare) -> Result<()> {
        self.map_two(a, b, out, |f, a, b| f.compare(op, a, b))
    }

    pub(super) fn silu(&mut self, x: Src, out: Dst) -> Result<()> {
        self.map_one(x, out, |f, x| {
            let x = f.cast(x, to_float(x.dtype));
            let gate = f.unary(Unary::Sigmoid, x);
            f.binary(Binary::Mul, x, gate)
        })
    }

    /// Rounds to the type of `x` at every step, as upstream does.
    pub(super) fn gelu(&mut self, n: &Gelu) -> Result<()> {
        self.map_one(n.x, n.out, |f, x| {
            let x = f.cast(x, to_float(x.dtype));
            let inner = match n.approximate {
                GeluForm::Erf => {
                    let factor = f.float(std::f32::consts::FRAC_1_SQRT_2, x.dtype);
                    let scaled = f.binary(Binary::Mul, factor, x);
                    f.unary(Unary::Erf, scaled)
                }
                GeluForm::Tanh => {
                    let square = f.binary(Binary::Mul, x, x);
                    let cube = f.binary(Binary::Mul, x, square);
                    let factor = f.float(0.044_715, x.dtype);
                    let term = f.binary(Binary::Mul, factor, cube);
                    let sum = f.binary(Binary::Add, x, term);
                    let factor = f.float(0.797_884_6, x.dtype);
                    let scaled = f.binary(Binary::Mul, factor, sum);
                    f.unary(Unary::Tanh, scaled)
                }
            };
            let one = f.float(1.0, x.dtype);
            let sum = f.binary(Binary::Add, one, inner);
            let product = f.binary(Binary::Mul, x, sum);
            let half = f.float(0.5, x.dtype);
            f.binary(Binary::Mul, half, product)
        })
    }

    pub(super) fn select(&mut self, n: &Where) -> Result<()> {
        let ins = [self.tensor(n.condition)?, self.tensor(n.x)?, self.tensor(n.y)?];
        let [_, x, y] = &ins;
        let dtype = promote(x.dtype, y.dtype);
        let result = self.builder.map(&ins, |f, [condition, x, y]| {
            let condition = f.cast(condition, DType::Bool);
            let (x, y) = (f.cast(x, dtype), f.cast(y, dtype));
            f.select(condition, x, y)
        })?;
        self.set(n.out, result)
    }

    pub(super) fn clip(&mut self, n: &Clip) -> Result<()> {
        let mut result = self.tensor(n.x)?;
        for (bound, op) in [(n.a_min, Binary::Max), (n.a_max, Binary::Min)] {
            let Some(bound) = self.maybe(bound)? else { continue };
            let dtype = promote(result.dtype, bound.dtype);
            result = self.builder.map(&[result, bound], |f, [x, bound]| {
                let (x, bound) = (f.cast(x, dtype), f.cast(bound, dtype));
                f.binary(op, x, bound)
            })?;
        }
        self.set(n.out, result)
    }

    fn filled(&mut self, shape: Vec<Dim>, fill: Fill, dtype: DType) -> Result<Tensor> {
        for size in &shape {
            self.builder.within(size, Dim::fixed(0), Dim::fixed(i32::MAX.into()), "size")?;
        }
        self.builder.fill(shape, |f| match fill {
            // Upstream holds the value as f32 before it is cast.
            Fill::Float(value) if !is_float(dtype) => {
                let value = f.float(value, DType::F32);
                f.cast(value, dtype)
            }
            Fill::Float(value) => f.float(value, dtype),
            Fill::Int(value) => f.int(value, dtype),
        })
    }

    pub(super) fn full(&mut self, n: &Full) -> Result<()> {
        let (shape, fill) = (self.ints(&n.shape)?, self.float(n.v)?);
        let result = self.filled(shape, fill, n.scalar_type)?;
        self.set(n.out, result)
    }

    pub(super) fn full_like(&mut self, n: &FullLike) -> Result<()> {
        let (x, fill) = (self.tensor(n.x)?, self.float(n.v)?);
        let result = self.filled(x.shape, fill, n.scalar_type.unwrap_or(x.dtype))?;
        self.set(n.out, result)
    }

    pub(super) fn arange(&mut self, n: &ARange) -> Result<()> {
        let (start, stop, step) = (self.int(n.start)?, self.int(n.stop)?, self.int(n.step)?);
        let dtype = n.scalar_type.unwrap_or(DType::I32);
        // The count is rounded up: `(stop - start + step - 1) / step`, with the last term turned for a step downwards.
        let one = match step.as_fixed() {
            Some(0) => return Err(Fault::Value { what: "step", value: 0 }),
            Some(..=-1) => Dim::fixed(-1),
            Some(1..) => Dim::fixed(1),
            None => return Err(Fault::Unsupported("a range whose step is known only at run time")),
        };
        let span = &(&(&stop - &start) + &step) - &one;
        let count = self.builder.floor_div(span, step.clone())?;
        let count = self.builder.max(count, Dim::fixed(0));
        let result = self.builder.fill(vec![count], |f| {
            let (index, step, start) = (f.index(0, DType::I64), f.int(step, DType::I64), f.int(start, DType::I64));
            let distance = f.binary(Binary::Mul, index, step);
            let value = f.binary(Binary::Add, distance, start);
            f.cast(value, dtype)
        })?;
        self.set(n.out, result)
    }

    pub(super) fn tri(&mut self, n: &Tri) -> Result<()> {
        let shape = vec![self.int(n.n)?, self.int(n.m)?];
        let result = self.builder.fill(shape, |f| {
            let below = on_or_below(f, 0, 1, n.k);
            f.cast(below, n.scalar_type)
        })?;
        self.set(n.out, result)
    }

    /// Keeps what is on or below a diagonal, or on or above it; the rest is zero.
    pub(super) fn triangle(&mut self, x: Src, out: Dst, k: i32, lower: bool) -> Result<()> {
        let x = self.tensor(x)?;
        let row = x.rank().checked_sub(2).ok_or(Fault::Rank { what: "a triangle", wanted: 2, found: x.rank() })?;
        let result = self.builder.map(&[x], |f, [x]| {
            let below = on_or_below(f, row, row + 1, if lower { k } else { k.saturating_sub(1) });
            let zero = f.int(Dim::fixed(0), x.dtype);
            if lower { f.select(below, x, zero) } else { f.select(below, zero, x) }
        })?;
        self.set(out, result)
    }
}

/// `column <= row + k`.
fn on_or_below(f: &mut Function, row: usize, column: usize, k: i32) -> Part {
    let (row, column) = (f.index(row, DType::I64), f.index(column, DType::I64));
    let k = f.int(Dim::fixed(k.into()), DType::I64);
    let diagonal = f.binary(Binary::Add, row, k);
    f.compare(Compare::LessEqual, column, diagonal)
}
