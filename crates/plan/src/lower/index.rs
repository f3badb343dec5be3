//! Nodes that take elements from, or put elements at, places that are computed; and random bits.

use super::Lowerer;
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::graph::Value;
use crate::prim::{Axis, Prim};
use ptero_pte::field::{Dst, Int, IntOrSrc};
use ptero_pte::nodes::{Gather, IndexCopy, RandomBits, ScatterAdd, SliceUpdate, Take, TakeAlongAxis};
use ptero_tensor::DType;

fn check_indices(view: &Tensor) -> Result<()> {
    match view.dtype {
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U32 => Ok(()),
        dtype => Err(Fault::DType { what: "indices", dtype }),
    }
}

/// The coordinate of every axis of a tensor, unchanged.
fn straight(rank: usize) -> Vec<Axis<Value>> {
    (0..rank).map(|at| Axis { index: None, coordinate: Some(at) }).collect()
}

/// Puts an index in the place of an axis that exists.
fn set_axis(axes: &mut [Axis<Value>], at: usize, axis: Axis<Value>) {
    axes.get_mut(at).into_iter().for_each(|old| *old = axis.clone());
}

impl Lowerer<'_> {
    /// One place along an axis, which goes; or, by a tensor of places, the axis becomes the axes of that tensor.
    pub(super) fn take(&mut self, n: &Take) -> Result<()> {
        let x = self.tensor(n.x)?;
        let at = axis(n.axis.into(), x.rank())?;
        match n.index {
            IntOrSrc::Tensor(indices) => {
                let indices = self.tensor(indices)?;
                let result = self.taken(x, at, indices)?;
                self.set(n.out, result)
            }
            IntOrSrc::Literal(index) => self.take_one(n.out, &x, at, Int::Literal(index)),
            IntOrSrc::Value(value) => self.take_one(n.out, &x, at, Int::Value(value)),
        }
    }

    fn take_one(&mut self, out: Dst, x: &Tensor, at: usize, index: Int) -> Result<()> {
        let (index, size) = (self.int(index)?, x.size(at)?.clone());
        let last = &size - &Dim::fixed(1);
        self.builder.within(&index, &Dim::fixed(0) - &size, last, "place along an axis")?;
        // Negative ones count from the end.
        let index = match index.as_fixed() {
            Some(..0) => &index + &size,
            Some(_) => index,
            None => self.builder.modulo(index, size)?,
        };
        let result = self.builder.at(x, at, &index)?;
        self.set(out, result)
    }

    pub(super) fn taken(&mut self, x: Tensor, at: usize, indices: Tensor) -> Result<Tensor> {
        check_indices(&indices)?;
        let (before, after) = (x.shape.get(..at).unwrap_or_default(), x.shape.get(at + 1..).unwrap_or_default());
        let shape: Vec<Dim> = [before, &indices.shape, after].concat();
        let out = self.builder.new_tensor(x.dtype, shape.clone());
        // The indices, seen as constant along the other axes of the result.
        let seen = self.spread_indices(&indices, after.len(), &shape)?;
        let shift = |axis: usize| if axis < at { axis } else { axis - 1 + indices.rank() };
        let mut axes: Vec<Axis<Value>> =
            (0..x.rank()).map(|axis| Axis { index: None, coordinate: (axis != at).then(|| shift(axis)) }).collect();
        set_axis(&mut axes, at, Axis { index: Some(seen.value), coordinate: None });
        self.builder.prim(Prim::Gather { out: out.value, x: x.value, axes });
        Ok(out)
    }

    pub(super) fn take_along_axis(&mut self, n: &TakeAlongAxis) -> Result<()> {
        let (x, indices) = (self.tensor(n.x)?, self.tensor(n.indices)?);
        check_indices(&indices)?;
        let at = axis(n.axis.into(), x.rank())?;
        if indices.rank() != x.rank() {
            return Err(Fault::Rank { what: "indices along an axis", wanted: x.rank(), found: indices.rank() });
        }
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
        let out = self.builder.new_tensor(x.dtype, shape);
        let mut axes = straight(x.rank());
        set_axis(&mut axes, at, Axis { index: Some(indices.value), coordinate: None });
        self.builder.prim(Prim::Gather { out: out.value, x: x.value, axes });
        self.set(n.out, out)
    }

    /// MLX's gather: index tensors, broadcast together, give the corner of a slice; the result has their axes and then
    /// those of the slice.
    pub(super) fn gather(&mut self, n: &Gather) -> Result<()> {
        let (x, indices) = (self.tensor(n.x)?, self.tensors(&n.indices)?);
        if indices.len() != n.axes.len() {
            return Err(Fault::Count { what: "index tensors", wanted: n.axes.len(), found: indices.len() });
        }
        if n.slice_sizes.len() != x.rank() {
            return Err(Fault::Count { what: "slice sizes", wanted: x.rank(), found: n.slice_sizes.len() });
        }
        let mut places = Vec::new();
        for view in &indices {
            check_indices(view)?;
            places = self.builder.broadcast_shapes(&places, &view.shape)?;
        }
        let slice: Vec<Dim> = n.slice_sizes.iter().map(|size| Dim::fixed((*size).into())).collect();
        for (size, whole) in slice.iter().zip(&x.shape) {
            self.builder.within(size, Dim::fixed(0), whole.clone(), "slice size")?;
        }
        let shape: Vec<Dim> = places.iter().chain(&slice).cloned().collect();
        let mut axes = straight(x.rank());
        for axis in &mut axes {
            axis.coordinate = axis.coordinate.map(|at| at + places.len());
        }
        for (view, at) in indices.iter().zip(&n.axes) {
            let at = axis((*at).into(), x.rank())?;
            let seen = self.spread_indices(view, slice.len(), &shape)?;
            set_axis(&mut axes, at, Axis { index: Some(seen.value), coordinate: Some(at + places.len()) });
        }
        let out = self.builder.new_tensor(x.dtype, shape);
        self.builder.prim(Prim::Gather { out: out.value, x: x.value, axes });
        self.set(n.out, out)
    }

    /// Indices with axes of size one after their own, broadcast to a shape.
    fn spread_indices(&mut self, indices: &Tensor, after: usize, shape: &[Dim]) -> Result<Tensor> {
        let mut wide = indices.shape.clone();
        wide.resize(wide.len() + after, Dim::fixed(1));
        let seen = self.builder.reshape(indices, &wide)?;
        self.builder.broadcast(&seen, shape)
    }

    /// `base` with the updates at the places that the axes name.
    fn scattered(&mut self, base: &Tensor, updates: &Tensor, axes: Vec<Axis<Value>>, add: bool) -> Tensor {
        let out = self.builder.new_tensor(base.dtype, base.shape.clone());
        let (base, updates) = (base.value, updates.value);
        self.builder.prim(Prim::Scatter { out: out.value, base, updates, axes, add });
        out
    }

    pub(super) fn scatter_add(&mut self, n: &ScatterAdd) -> Result<()> {
        let (indices, updates) = (self.tensor(n.indices)?, self.tensor(n.updates)?);
        check_indices(&indices)?;
        let base = self.tensor(n.x)?;
        let at = axis(n.axis.into(), base.rank())?;
        let updates = self.builder.cast(&updates, base.dtype)?;
        let updates = self.builder.broadcast(&updates, &indices.shape)?;
        let mut axes = straight(base.rank());
        set_axis(&mut axes, at, Axis { index: Some(indices.value), coordinate: None });
        let result = self.scattered(&base, &updates, axes, true);
        self.set(n.out, result)
    }

    pub(super) fn slice_update(&mut self, n: &SliceUpdate) -> Result<()> {
        let update = self.tensor(n.update)?;
        if n.step < 1 {
            return Err(Fault::Value { what: "step", value: n.step.into() });
        }
        let (start, stop) = (self.int(n.start)?, self.int(n.stop)?);
        let base = self.tensor(n.dst)?;
        let at = self.fixed_axis(n.axis, base.rank())?;
        let (start, length) = self.span(&start, &stop, &base.size(at)?.clone(), n.step.into())?;
        let result = self.builder.update(&base, &update, at, (start, length, n.step.into()))?;
        self.set(n.out, result)
    }

    pub(super) fn index_copy(&mut self, n: &IndexCopy) -> Result<()> {
        let (update, indices) = (self.tensor(n.update)?, self.tensor(n.indices)?);
        check_indices(&indices)?;
        if indices.rank() != 1 {
            return Err(Fault::Rank { what: "the indices of a copy", wanted: 1, found: indices.rank() });
        }
        let base = self.tensor(n.dst)?;
        let at = axis(n.axis.into(), base.rank())?;
        let mut shape = base.shape.clone();
        shape.splice(at..=at, [Dim::fixed(1)]);
        let mut wide = indices.shape.clone();
        wide.resize(base.rank() - at, Dim::fixed(1));
        let shape = self.builder.broadcast_shapes(&shape, &wide)?;
        let updates = self.builder.cast(&update, base.dtype)?;
        let updates = self.builder.broadcast(&updates, &shape)?;
        let seen = self.spread_indices(&indices, base.rank() - at - 1, &shape)?;
        let mut axes = straight(base.rank());
        set_axis(&mut axes, at, Axis { index: Some(seen.value), coordinate: None });
        let result = self.scattered(&base, &updates, axes, false);
        self.set(n.out, result)
    }

    pub(super) fn random_bits(&mut self, n: &RandomBits) -> Result<()> {
        let dtype = match n.width {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            width => return Err(Fault::Value { what: "width of random bits", value: width.into() }),
        };
        let shape = self.ints(&n.shape)?;
        for size in &shape {
            self.builder.within(size, Dim::fixed(0), Dim::fixed(i32::MAX.into()), "size")?;
        }
        let seed = n.seed.map(|seed| self.value(seed)).transpose()?;
        let out = self.builder.new_tensor(dtype, shape);
        self.builder.prim(Prim::RandomBits { out: out.value, seed });
        self.set(n.out, out)
    }
}
