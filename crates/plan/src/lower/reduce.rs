//! Nodes that combine elements along axes.

use super::Lowerer;
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::expr::{Binary, Unary};
use crate::prim::{Fold, Prim};
use crate::promote::{is_float, to_float, to_sum};
use ptero_pte::field::{Dst, Src};
use ptero_pte::nodes::{Cumsum, Median, Softmax, Std};
use ptero_tensor::DType;

impl Lowerer<'_> {
    /// The axes named, sorted; all of them when none is.
    fn axes(x: &Tensor, named: Option<&[i32]>) -> Result<Vec<usize>> {
        let named = named.unwrap_or_default();
        if named.is_empty() {
            return Ok((0..x.rank()).collect());
        }
        let mut axes = named.iter().map(|dim| axis((*dim).into(), x.rank())).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    fn reduced(&mut self, x: Tensor, axes: Vec<usize>, fold: Fold) -> Result<Tensor> {
        let dtype = match fold {
            Fold::Sum | Fold::Prod => to_sum(x.dtype),
            Fold::Max | Fold::Min => x.dtype,
            Fold::Any | Fold::All => DType::Bool,
            Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => to_float(x.dtype),
        };
        if matches!(fold, Fold::Max | Fold::Min) {
            for at in &axes {
                let most = Dim::fixed(i64::MAX);
                self.builder.within(x.size(*at)?, Dim::fixed(1), most, "size of an axis whose extreme is sought")?;
            }
        }
        let one = Dim::fixed(1);
        let shape = x.shape.iter().enumerate().map(|(at, size)| if axes.contains(&at) { &one } else { size }.clone());
        let out = self.builder.new_tensor(dtype, shape.collect());
        self.builder.prim(Prim::Reduce { out: out.value, x: x.value, axes, fold });
        Ok(out)
    }

    fn without(&mut self, x: Tensor, axes: &[usize], keepdims: bool) -> Result<Tensor> {
        if keepdims {
            return Ok(x);
        }
        let kept = x.shape.iter().enumerate().filter(|(at, _)| !axes.contains(at)).map(|(_, size)| size.clone());
        self.builder.reshape(&x, &kept.collect::<Vec<_>>())
    }

    pub(super) fn reduce(&mut self, x: Src, out: Dst, named: Option<&[i32]>, keepdims: bool, fold: Fold) -> Result<()> {
        let x = self.tensor(x)?;
        let axes = Self::axes(&x, named)?;
        let result = self.reduced(x, axes.clone(), fold)?;
        let result = self.without(result, &axes, keepdims)?;
        self.set(out, result)
    }

    pub(super) fn std(&mut self, n: &Std) -> Result<()> {
        let x = self.tensor(n.x)?;
        let axes = Self::axes(&x, n.axes.as_deref())?;
        let variance = self.reduced(x, axes.clone(), Fold::Var { ddof: n.ddof })?;
        let root = self.builder.map(&[variance], |f, [x]| f.unary(Unary::Sqrt, x))?;
        let result = self.without(root, &axes, n.keepdims)?;
        self.set(n.out, result)
    }

    /// The middle of the sorted elements; the mean of the two middle ones where their number is even.
    pub(super) fn median(&mut self, n: &Median) -> Result<()> {
        let x = self.tensor(n.x)?;
        let axes = Self::axes(&x, n.axes.as_deref())?;
        let kept: Vec<usize> = (0..x.rank()).filter(|at| !axes.contains(at)).collect();
        let order: Vec<usize> = kept.iter().chain(&axes).copied().collect();
        let mut shape: Vec<Dim> = kept.iter().map(|at| x.size(*at).cloned()).collect::<Result<_>>()?;
        let one = Dim::fixed(1);
        let keepdims: Vec<Dim> =
            x.shape.iter().enumerate().map(|(at, size)| if axes.contains(&at) { &one } else { size }.clone()).collect();
        let kept_shape = if n.keepdims { keepdims } else { shape.clone() };
        shape.push(Dim::fixed(-1));
        let rows = self.builder.permute(&x, &order)?;
        let rows = self.builder.reshape(&rows, &shape)?;
        let last = rows.rank() - 1;
        let count =
            rows.size(last)?.as_fixed().ok_or(Fault::Unsupported("a median of a size known only at run time"))?;
        if count < 1 {
            return Err(Fault::Value { what: "size of an axis whose median is sought", value: count });
        }
        let sorted = self.sorted(rows, last, false);
        let dtype = to_float(x.dtype);
        let low = self.builder.at(&sorted, last, &Dim::fixed((count - 1) / 2))?;
        let high = self.builder.at(&sorted, last, &Dim::fixed(count / 2))?;
        let middle = self.builder.map(&[low, high], |f, [low, high]| {
            let (low, high) = (f.cast(low, dtype), f.cast(high, dtype));
            let sum = f.binary(Binary::Add, low, high);
            let half = f.float(0.5, dtype);
            f.binary(Binary::Mul, sum, half)
        })?;
        let result = self.builder.reshape(&middle, &kept_shape)?;
        self.set(n.out, result)
    }

    pub(super) fn arg_reduce(&mut self, x: Src, out: Dst, dim: i32, keepdims: bool, largest: bool) -> Result<()> {
        let x = self.tensor(x)?;
        let at = axis(dim.into(), x.rank())?;
        let most = Dim::fixed(i64::MAX);
        self.builder.within(x.size(at)?, Dim::fixed(1), most, "size of an axis whose extreme is sought")?;
        let mut shape = x.shape.clone();
        shape.splice(at..=at, [Dim::fixed(1)]);
        let place = self.builder.new_tensor(DType::U32, shape);
        self.builder.prim(Prim::ArgReduce { out: place.value, x: x.value, axis: at, largest });
        let result = self.without(place, &[at], keepdims)?;
        self.set(out, result)
    }

    pub(super) fn softmax(&mut self, n: &Softmax) -> Result<()> {
        let x = self.tensor(n.x)?;
        let at = axis(n.axis.into(), x.rank())?;
        let out = self.builder.new_tensor(to_float(x.dtype), x.shape.clone());
        self.builder.prim(Prim::Softmax { out: out.value, x: x.value, axis: at });
        self.set(n.out, out)
    }

    pub(super) fn cumsum(&mut self, n: &Cumsum) -> Result<()> {
        let x = self.tensor(n.x)?;
        let at = axis(n.axis.into(), x.rank())?;
        let dtype = if is_float(x.dtype) { x.dtype } else { to_sum(x.dtype) };
        let out = self.builder.new_tensor(dtype, x.shape.clone());
        let (reverse, inclusive) = (n.reverse, n.inclusive);
        self.builder.prim(Prim::Cumsum { out: out.value, x: x.value, axis: at, reverse, inclusive });
        self.set(n.out, out)
    }

    pub(super) fn sort(&mut self, x: Src, out: Dst, dim: i32, indices: bool) -> Result<()> {
        let x = self.tensor(x)?;
        let at = axis(dim.into(), x.rank())?;
        let result = self.sorted(x, at, indices);
        self.set(out, result)
    }

    fn sorted(&mut self, x: Tensor, at: usize, indices: bool) -> Tensor {
        let dtype = if indices { DType::U32 } else { x.dtype };
        let out = self.builder.new_tensor(dtype, x.shape.clone());
        self.builder.prim(Prim::Sort { out: out.value, x: x.value, axis: at, indices });
        out
    }
}
