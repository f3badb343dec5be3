//! Nodes that combine elements along axes.

use super::Lowerer;
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::expr::{Binary, Unary};
use crate::prim::{Fold, Prim};
use crate::promote::{to_float, to_sum};
use ptero_pte::field::Src;
use ptero_pte::nodes::{Cumsum, Median, Softmax, Std};
use ptero_tensor::DType;

/// The shape of a tensor with a size of one along these axes.
fn with_ones(x: &Tensor, axes: &[usize]) -> Vec<Dim> {
    let size = |(at, size): (usize, &Dim)| if axes.contains(&at) { Dim::fixed(1) } else { size.clone() };
    x.shape.iter().enumerate().map(size).collect()
}

impl Lowerer<'_> {
    /// The named axes, sorted; all axes if none is named.
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

    pub(super) fn reduced(&mut self, x: Tensor, axes: Vec<usize>, fold: Fold) -> Result<Tensor> {
        let dtype = match fold {
            Fold::Sum | Fold::Prod => to_sum(x.dtype),
            Fold::Max | Fold::Min => x.dtype,
            Fold::Any | Fold::All => DType::Bool,
            Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => to_float(x.dtype),
        };
        if matches!(fold, Fold::Max | Fold::Min) {
            for at in &axes {
                self.builder.check_within(x.size(*at)?, 1, i64::MAX, "size of an axis whose extreme is sought")?;
            }
        }
        Ok(self.builder.prim(dtype, with_ones(&x, &axes), |out| Prim::Reduce { out, x, axes, fold }))
    }

    fn without(&mut self, x: Tensor, axes: &[usize], keepdims: bool) -> Result<Tensor> {
        if keepdims {
            return Ok(x);
        }
        let kept = x.shape.iter().enumerate().filter(|(at, _)| !axes.contains(at)).map(|(_, size)| size.clone());
        self.builder.reshape(&x, &kept.collect::<Vec<_>>())
    }

    pub(super) fn reduce(&mut self, x: Src, named: Option<&[i32]>, keepdims: bool, fold: Fold) -> Result<Tensor> {
        let x = self.tensor(x)?;
        let axes = Self::axes(&x, named)?;
        let result = self.reduced(x, axes.clone(), fold)?;
        self.without(result, &axes, keepdims)
    }

    pub(super) fn std(&mut self, n: &Std) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let axes = Self::axes(&x, n.axes.as_deref())?;
        let variance = self.reduced(x, axes.clone(), Fold::Var { ddof: n.ddof })?;
        let root = self.builder.map(&[variance], |f, [x]| f.unary(Unary::Sqrt, x))?;
        self.without(root, &axes, n.keepdims)
    }

    /// The middle of the sorted elements; the mean of the two middle ones where their number is even.
    pub(super) fn median(&mut self, n: &Median) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let axes = Self::axes(&x, n.axes.as_deref())?;
        let kept: Vec<usize> = (0..x.rank()).filter(|at| !axes.contains(at)).collect();
        let order: Vec<usize> = kept.iter().chain(&axes).copied().collect();
        let mut shape: Vec<Dim> = kept.iter().map(|at| x.size(*at).cloned()).collect::<Result<_>>()?;
        let kept_shape = if n.keepdims { with_ones(&x, &axes) } else { shape.clone() };
        shape.push(Dim::fixed(-1));
        let rows = self.builder.permute(&x, &order)?;
        let rows = self.builder.reshape(&rows, &shape)?;
        let last = rows.rank() - 1;
        let count =
            rows.size(last)?.as_fixed().ok_or(Fault::Unsupported("a median of a size known only at run time"))?;
        ensure!(count >= 1, Fault::Value { what: "size of an axis whose median is sought", value: count });
        let sorted = self.sorted(rows, last, false);
        let dtype = to_float(x.dtype);
        let low = self.builder.at(&sorted, last, &Dim::fixed((count - 1) / 2))?;
        let high = self.builder.at(&sorted, last, &Dim::fixed(count / 2))?;
        let middle = self.builder.map(&[low, high], |f, [low, high]| {
            let sum = f.binary(Binary::Add, f.cast(low, dtype), f.cast(high, dtype));
            f.binary(Binary::Mul, sum, f.float(0.5, dtype))
        })?;
        self.builder.reshape(&middle, &kept_shape)
    }

    pub(super) fn arg_reduce(&mut self, x: Src, dim: i32, keepdims: bool, largest: bool) -> Result<Tensor> {
        let (x, axis) = self.along(x, dim)?;
        self.builder.check_within(x.size(axis)?, 1, i64::MAX, "size of an axis whose extreme is sought")?;
        let shape = x.shape_with(axis, 1)?;
        let index = self.builder.prim(DType::U32, shape, |out| Prim::ArgReduce { out, x, axis, largest });
        self.without(index, &[axis], keepdims)
    }

    pub(super) fn softmax(&mut self, n: &Softmax) -> Result<Tensor> {
        let (x, axis) = self.along(n.x, n.axis)?;
        Ok(self.builder.prim(to_float(x.dtype), x.shape.clone(), |out| Prim::Softmax { out, x, axis }))
    }

    pub(super) fn cumsum(&mut self, n: &Cumsum) -> Result<Tensor> {
        let (x, axis) = self.along(n.x, n.axis)?;
        let Cumsum { reverse, inclusive, .. } = *n;
        let sums = |out| Prim::Cumsum { out, x: x.clone(), axis, reverse, inclusive };
        Ok(self.builder.prim(to_sum(x.dtype), x.shape.clone(), sums))
    }

    pub(super) fn sort(&mut self, x: Src, dim: i32, indices: bool) -> Result<Tensor> {
        let (x, axis) = self.along(x, dim)?;
        Ok(self.sorted(x, axis, indices))
    }

    fn sorted(&mut self, x: Tensor, axis: usize, indices: bool) -> Tensor {
        let dtype = if indices { DType::U32 } else { x.dtype };
        self.builder.prim(dtype, x.shape.clone(), |out| Prim::Sort { out, x, axis, indices })
    }
}
