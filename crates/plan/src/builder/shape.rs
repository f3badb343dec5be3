//! Builds view operations. A view that changes nothing adds no operation.

use super::{Builder, RootView, Tensor};
use crate::dim::Dim;
use crate::error::{Fault, Result, Shape, ensure};
use crate::graph::{Op, ViewOp};
use crate::prim::View;
use crate::promote::promote;
use crate::view::product;

impl Builder {
    fn view(&mut self, x: &Tensor, shape: Vec<Dim>, how: ViewOp) -> Tensor {
        let out = self.new_tensor(x.dtype, shape);
        if let Some(shown) = self.shown.get(&x.value)
            && let Some(view) = shown.view.apply(&out.shape, &how)
        {
            let shown = RootView { root: shown.root.clone(), view };
            self.shown.insert(out.value, shown);
        }
        self.node(Op::View { out: out.value, x: x.value, how });
        out
    }

    pub(crate) fn remove_axis(&mut self, x: &Tensor, axis: usize) -> Tensor {
        let mut shape = x.shape.clone();
        shape.remove(axis);
        self.view(x, shape, ViewOp::Reshape)
    }

    pub(crate) fn insert_axis(&mut self, x: &Tensor, axis: usize) -> Tensor {
        let mut shape = x.shape.clone();
        shape.insert(axis.min(x.rank()), Dim::fixed(1));
        self.view(x, shape, ViewOp::Reshape)
    }

    /// `length` elements along an axis, from `start`, `step` apart.
    pub(crate) fn narrow(&mut self, x: &Tensor, axis: usize, start: &Dim, length: Dim, step: i64) -> Result<Tensor> {
        if start.is(0) && step == 1 && *x.size(axis)? == length {
            return Ok(x.clone());
        }
        Ok(self.view(x, x.shape_with(axis, length)?, ViewOp::Slice { axis, start: start.clone(), step }))
    }

    /// The elements at one index of an axis, without that axis.
    pub(crate) fn at(&mut self, x: &Tensor, axis: usize, index: &Dim) -> Result<Tensor> {
        let line = self.narrow(x, axis, index, Dim::fixed(1), 1)?;
        Ok(self.remove_axis(&line, axis))
    }

    /// The elements along an axis from last to first.
    pub(crate) fn flip(&mut self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let size = x.size(axis)?.clone();
        self.narrow(x, axis, &(&size - &Dim::fixed(1)), size, -1)
    }

    pub(crate) fn permute(&mut self, x: &Tensor, order: &[usize]) -> Result<Tensor> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        let is_permutation = sorted.iter().copied().eq(0..x.rank());
        ensure!(is_permutation, Fault::Count { what: "distinct axes", wanted: x.rank(), found: order.len() });
        if sorted == order {
            return Ok(x.clone());
        }
        let shape = order.iter().map(|axis| x.size(*axis).cloned()).collect::<Result<_>>()?;
        Ok(self.view(x, shape, ViewOp::Permute(order.to_vec())))
    }

    /// Any elements, through strides from the program.
    pub(crate) fn strided(&mut self, x: &Tensor, shape: Vec<Dim>, strides: Vec<Dim>, offset: Dim) -> Tensor {
        self.view(x, shape, ViewOp::Strided { strides, offset })
    }

    /// The shape that two shapes are broadcast to: aligned at the right, sizes of 1 give way.
    pub(crate) fn broadcast_shapes(&mut self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>> {
        let rank = a.len().max(b.len());
        let one = Dim::fixed(1);
        let mut shape = Vec::with_capacity(rank);
        for at in 0..rank {
            let size = |dims: &[Dim]| (at + dims.len()).checked_sub(rank).and_then(|at| dims.get(at).cloned());
            let (left, right) = (size(a).unwrap_or_else(|| one.clone()), size(b).unwrap_or_else(|| one.clone()));
            shape.push(match (left.as_fixed(), right.as_fixed()) {
                _ if left == right => left,
                (Some(1), _) => right,
                (_, Some(1)) => left,
                (Some(_), Some(_)) => return Err(Fault::shapes(a, b)),
                (fixed, _) => {
                    self.check_equal(&left, &right, "sizes that meet in one operation")?;
                    if fixed.is_some() { left } else { right }
                }
            });
        }
        Ok(shape)
    }

    /// Broadcasts a tensor to this shape.
    pub(crate) fn broadcast(&mut self, x: &Tensor, shape: &[Dim]) -> Result<Tensor> {
        if x.shape == shape {
            return Ok(x.clone());
        }
        let misfit = || Fault::shapes(&x.shape, shape);
        let missing = shape.len().checked_sub(x.rank()).ok_or_else(misfit)?;
        for (have, want) in x.shape.iter().zip(shape.iter().skip(missing)) {
            match (have.as_fixed(), want.as_fixed()) {
                _ if have == want => {}
                (Some(1), _) => {}
                (Some(_), Some(_)) => return Err(misfit()),
                _ => self.check_equal(have, want, "sizes that meet in one operation")?,
            }
        }
        Ok(self.view(x, shape.to_vec(), ViewOp::Broadcast))
    }

    /// Reshapes a tensor. One size may be -1.
    pub(crate) fn reshape(&mut self, x: &Tensor, shape: &[Dim]) -> Result<Tensor> {
        let total = product(&x.shape);
        let shape = self.infer(x, shape, &total)?;
        if x.shape == shape {
            return Ok(x.clone());
        }
        self.check_equal(&total, &product(&shape), "element counts before and after a reshape")
            .map_err(|_| Fault::Reshape { shape: Shape(x.shape.clone()), size: Shape(shape.clone()) })?;
        Ok(self.view(x, shape, ViewOp::Reshape))
    }

    fn infer(&mut self, x: &Tensor, shape: &[Dim], total: &Dim) -> Result<Vec<Dim>> {
        let open: Vec<usize> = (0..shape.len()).filter(|at| shape.get(*at).is_some_and(|size| size.is(-1))).collect();
        let misfit = || Fault::Reshape { shape: Shape(x.shape.clone()), size: Shape(shape.to_vec()) };
        match open.as_slice() {
            [] => Ok(shape.to_vec()),
            [open] => {
                let (mut sizes, mut known) = (shape.to_vec(), shape.to_vec());
                known.remove(*open);
                let known = product(&known);
                ensure!(!known.is(0), misfit());
                let inferred = self.floor_div(total.clone(), known)?;
                sizes.splice(*open..=*open, [inferred]);
                Ok(sizes)
            }
            _ => Err(misfit()),
        }
    }

    /// Concatenates tensors along an axis, in the type they are promoted to.
    pub(crate) fn concat(&mut self, parts: &[Tensor], axis: usize) -> Result<Tensor> {
        let first = parts.first().ok_or(Fault::Count { what: "tensors", wanted: 1, found: 0 })?;
        let mut total = Dim::fixed(0);
        for part in parts {
            total = &total + part.size(axis)?;
            let found = part.rank();
            ensure!(found == first.rank(), Fault::Rank { what: "joining", wanted: first.rank(), found });
            for (at, (a, b)) in first.shape.iter().zip(&part.shape).enumerate() {
                if at != axis {
                    self.check_equal(a, b, "sizes of tensors that are joined")?;
                }
            }
        }
        let shape = first.shape_with(axis, total)?;
        let dtype = parts.iter().map(|part| part.dtype).reduce(promote).unwrap_or(first.dtype);
        let parts = parts.iter().map(|part| Ok(self.cast(part, dtype)?.value)).collect::<Result<_>>()?;
        let out = self.new_tensor(dtype, shape);
        self.node(Op::Concat { out: out.value, parts, axis });
        Ok(out)
    }
}

impl View {
    /// The view after a view operation, if there are strides for it.
    pub(crate) fn apply(&self, shape: &[Dim], how: &ViewOp) -> Option<Self> {
        match how {
            ViewOp::Reshape => self.reshaped(shape),
            ViewOp::Permute(order) => Some(self.permuted(order)),
            ViewOp::Broadcast => Some(self.broadcast(shape)),
            ViewOp::Slice { axis, start, step } => Some(self.narrowed(*axis, start, shape.get(*axis)?.clone(), *step)),
            ViewOp::Strided { strides, offset } => self.is_row_major().then(|| View {
                shape: shape.to_vec(),
                strides: strides.clone(),
                offset: &self.offset + offset,
                ..self.clone()
            }),
        }
    }
}
