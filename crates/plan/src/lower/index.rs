//! Nodes that read or write elements at computed indices; and random bits.

use super::Lowerer;
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::prim::{Axis, Prim};
use ptero_pte::field::{Int, IntOrSrc};
use ptero_pte::nodes::{Gather, IndexCopy, RandomBits, ScatterAdd, SliceUpdate, Take, TakeAlongAxis};
use ptero_tensor::DType;

fn check_indices(indices: &Tensor) -> Result<()> {
    match indices.dtype {
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U32 => Ok(()),
        dtype => Err(Fault::DType { what: "indices", dtype }),
    }
}

/// Indexes every axis of a tensor by its own coordinate.
fn own_coordinates(rank: usize) -> Vec<Axis<Tensor>> {
    (0..rank).map(|at| Axis { index: None, coordinate: Some(at) }).collect()
}

/// Indexes an axis, if it exists, by a tensor.
fn set_axis(axes: &mut [Axis<Tensor>], at: usize, index: Tensor, coordinate: Option<usize>) {
    if let Some(axis) = axes.get_mut(at) {
        *axis = Axis { index: Some(index), coordinate };
    }
}

impl Lowerer<'_> {
    /// The elements at one index of an axis, which is removed; or, by a tensor of indices, the axis becomes the axes of that
    /// tensor.
    pub(super) fn take(&mut self, n: &Take) -> Result<Tensor> {
        let (x, at) = self.along(n.x, n.axis)?;
        let index = match n.index {
            IntOrSrc::Tensor(indices) => return self.taken(x, at, self.tensor(indices)?),
            IntOrSrc::Literal(index) => self.int(Int::Literal(index))?,
            IntOrSrc::Value(value) => self.value(value)?,
        };
        let size = x.size(at)?.clone();
        let last = &size - &Dim::fixed(1);
        self.builder.check_within(&index, &Dim::fixed(0) - &size, last, "index along an axis")?;
        // Negative indices count from the end.
        let index = match index.as_fixed() {
            Some(..0) => &index + &size,
            Some(_) => index,
            None => self.builder.modulo(index, size)?,
        };
        self.builder.at(&x, at, &index)
    }

    pub(super) fn taken(&mut self, x: Tensor, at: usize, indices: Tensor) -> Result<Tensor> {
        check_indices(&indices)?;
        let (before, after) = (x.shape.get(..at).unwrap_or_default(), x.shape.get(at + 1..).unwrap_or_default());
        let shape: Vec<Dim> = [before, &indices.shape, after].concat();
        // The indices, constant along the other axes of the result.
        let seen = self.spread_indices(&indices, after.len(), &shape)?;
        let mut axes = own_coordinates(x.rank());
        let moved = axes.iter_mut().skip(at + 1).filter_map(|axis| axis.coordinate.as_mut());
        moved.for_each(|coordinate| *coordinate = *coordinate - 1 + indices.rank());
        set_axis(&mut axes, at, seen, None);
        Ok(self.builder.prim(x.dtype, shape, |out| Prim::Gather { out, x, axes }))
    }

    pub(super) fn take_along_axis(&mut self, n: &TakeAlongAxis) -> Result<Tensor> {
        let ((x, at), indices) = (self.along(n.x, n.axis)?, self.tensor(n.indices)?);
        check_indices(&indices)?;
        let (wanted, found) = (x.rank(), indices.rank());
        ensure!(found == wanted, Fault::Rank { what: "indices along an axis", wanted, found });
        // Other axes are broadcast together.
        let aside = |tensor: &Tensor| {
            let mut shape = tensor.shape.clone();
            shape.remove(at);
            shape
        };
        let mut shape = self.builder.broadcast_shapes(&aside(&x), &aside(&indices))?;
        let mut x_shape = shape.clone();
        shape.insert(at, indices.size(at)?.clone());
        x_shape.insert(at, x.size(at)?.clone());
        let x = self.builder.broadcast(&x, &x_shape)?;
        let indices = self.builder.broadcast(&indices, &shape)?;
        let mut axes = own_coordinates(x.rank());
        set_axis(&mut axes, at, indices, None);
        Ok(self.builder.prim(x.dtype, shape, |out| Prim::Gather { out, x, axes }))
    }

    /// MLX's gather: index tensors, broadcast together, give the first element of a slice; the result has their axes and then
    /// those of the slice.
    pub(super) fn gather(&mut self, n: &Gather) -> Result<Tensor> {
        let (x, indices) = (self.tensor(n.x)?, self.tensors(&n.indices)?);
        let (wanted, found) = (n.axes.len(), indices.len());
        ensure!(found == wanted, Fault::Count { what: "index tensors", wanted, found });
        let (wanted, found) = (x.rank(), n.slice_sizes.len());
        ensure!(found == wanted, Fault::Count { what: "slice sizes", wanted, found });
        let mut outer = Vec::new();
        for tensor in &indices {
            check_indices(tensor)?;
            outer = self.builder.broadcast_shapes(&outer, &tensor.shape)?;
        }
        let slice: Vec<Dim> = n.slice_sizes.iter().map(|size| (*size).into()).collect();
        for (size, whole) in slice.iter().zip(&x.shape) {
            self.builder.check_within(size, 0, whole.clone(), "slice size")?;
        }
        let shape: Vec<Dim> = outer.iter().chain(&slice).cloned().collect();
        let mut axes = own_coordinates(x.rank());
        for axis in &mut axes {
            axis.coordinate = axis.coordinate.map(|at| at + outer.len());
        }
        for (tensor, at) in indices.iter().zip(&n.axes) {
            let at = axis((*at).into(), x.rank())?;
            let spread = self.spread_indices(tensor, slice.len(), &shape)?;
            set_axis(&mut axes, at, spread, Some(at + outer.len()));
        }
        Ok(self.builder.prim(x.dtype, shape, |out| Prim::Gather { out, x, axes }))
    }

    /// Indices with axes of size one after their own, broadcast to a shape.
    fn spread_indices(&mut self, indices: &Tensor, after: usize, shape: &[Dim]) -> Result<Tensor> {
        let mut wide = indices.shape.clone();
        wide.resize(wide.len() + after, Dim::fixed(1));
        let seen = self.builder.reshape(indices, &wide)?;
        self.builder.broadcast(&seen, shape)
    }

    /// Writes or adds updates, cast and broadcast, to `base` at these indices along an axis.
    fn scattered(&mut self, base: Tensor, at: usize, indices: Tensor, updates: &Tensor, add: bool) -> Result<Tensor> {
        let updates = self.builder.cast(updates, base.dtype)?;
        let updates = self.builder.broadcast(&updates, &indices.shape)?;
        let mut axes = own_coordinates(base.rank());
        set_axis(&mut axes, at, indices, None);
        let scatter = |out| Prim::Scatter { out, base: base.clone(), updates, axes, add };
        Ok(self.builder.prim(base.dtype, base.shape.clone(), scatter))
    }

    pub(super) fn scatter_add(&mut self, n: &ScatterAdd) -> Result<Tensor> {
        let (indices, updates) = (self.tensor(n.indices)?, self.tensor(n.updates)?);
        check_indices(&indices)?;
        let (base, at) = self.along(n.x, n.axis)?;
        self.scattered(base, at, indices, &updates, true)
    }

    pub(super) fn slice_update(&mut self, n: &SliceUpdate) -> Result<Tensor> {
        let update = self.tensor(n.update)?;
        ensure!(n.step >= 1, Fault::Value { what: "step", value: n.step.into() });
        let (start, stop) = (self.int(n.start)?, self.int(n.stop)?);
        let base = self.tensor(n.dst)?;
        let at = self.fixed_axis(n.axis, base.rank())?;
        let (start, length) = self.span(&start, &stop, &base.size(at)?.clone(), n.step.into())?;
        self.builder.update(&base, &update, at, (start, length, n.step.into()))
    }

    pub(super) fn index_copy(&mut self, n: &IndexCopy) -> Result<Tensor> {
        let (update, indices) = (self.tensor(n.update)?, self.tensor(n.indices)?);
        check_indices(&indices)?;
        ensure!(indices.rank() == 1, Fault::Rank { what: "the indices of a copy", wanted: 1, found: indices.rank() });
        let (base, at) = self.along(n.dst, n.axis)?;
        let shape = base.shape_with(at, 1)?;
        let mut wide = indices.shape.clone();
        wide.resize(base.rank() - at, Dim::fixed(1));
        let shape = self.builder.broadcast_shapes(&shape, &wide)?;
        let seen = self.spread_indices(&indices, base.rank() - at - 1, &shape)?;
        self.scattered(base, at, seen, &update, false)
    }

    pub(super) fn random_bits(&mut self, n: &RandomBits) -> Result<Tensor> {
        let dtype = match n.width {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            width => return Err(Fault::Value { what: "width of random bits", value: width.into() }),
        };
        let shape = self.ints(&n.shape)?;
        self.builder.check_sizes(&shape, "size")?;
        let seed = n.seed.map(|seed| self.value(seed)).transpose()?;
        Ok(self.builder.prim(dtype, shape, |out| Prim::RandomBits { out, seed }))
    }
}
