//! Nodes that take elements from, or put elements at, places that are computed; and random bits.

use super::Lowerer;
use crate::builder::axis;
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::prim::{Axis, Prim, View};
use ptero_pte::field::{Dst, Int, IntOrSrc, Src};
use ptero_pte::nodes::{Gather, IndexCopy, RandomBits, ScatterAdd, SliceUpdate, Take, TakeAlongAxis};
use ptero_tensor::DType;

fn check_indices(view: &View) -> Result<()> {
    match view.dtype {
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U32 => Ok(()),
        dtype => Err(Fault::DType { what: "indices", dtype }),
    }
}

/// The coordinate of every axis of a tensor, unchanged.
fn straight(rank: usize) -> Vec<Axis> {
    (0..rank).map(|at| Axis { index: None, coordinate: Some(at) }).collect()
}

fn set_axis(axes: &mut [Axis], at: usize, axis: Axis) {
    axes.iter_mut().skip(at).take(1).for_each(|old| *old = axis.clone());
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

    fn take_one(&mut self, out: Dst, x: &View, at: usize, index: Int) -> Result<()> {
        let (index, size) = (self.int(index)?, x.size(at)?.clone());
        let last = &size - &Dim::fixed(1);
        self.builder.within(&index, &Dim::fixed(0) - &size, last, "place along an axis")?;
        // Negative ones count from the end.
        let index = match index.as_fixed() {
            Some(..0) => &index + &size,
            Some(_) => index,
            None => self.builder.modulo(index, size)?,
        };
        self.set(out, x.at(at, &index))
    }

    pub(super) fn taken(&mut self, x: View, at: usize, indices: View) -> Result<View> {
        check_indices(&indices)?;
        let (before, after) = (x.shape.get(..at).unwrap_or_default(), x.shape.get(at + 1..).unwrap_or_default());
        let shape: Vec<Dim> = [before, &indices.shape, after].concat();
        let out = self.builder.new_tensor(x.dtype, shape.clone());
        // The indices, seen as constant along the other axes of the result.
        let mut seen = indices.clone();
        for _ in after {
            seen = seen.with_axis_inserted(seen.rank());
        }
        let seen = self.builder.broadcast(&seen, &shape)?;
        let shift = |axis: usize| if axis < at { axis } else { axis - 1 + indices.rank() };
        let mut axes: Vec<Axis> =
            (0..x.rank()).map(|axis| Axis { index: None, coordinate: (axis != at).then(|| shift(axis)) }).collect();
        set_axis(&mut axes, at, Axis { index: Some(seen), coordinate: None });
        self.builder.prim(Prim::Gather { out: out.clone(), x, axes });
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
        let aside = |view: &View| view.with_axis_removed(at).shape;
        let mut shape = self.builder.broadcast_shapes(&aside(&x), &aside(&indices))?;
        let mut x_shape = shape.clone();
        shape.insert(at, indices.size(at)?.clone());
        x_shape.insert(at, x.size(at)?.clone());
        let x = self.builder.broadcast(&x, &x_shape)?;
        let indices = self.builder.broadcast(&indices, &shape)?;
        let out = self.builder.new_tensor(x.dtype, shape);
        let mut axes = straight(x.rank());
        set_axis(&mut axes, at, Axis { index: Some(indices), coordinate: None });
        self.builder.prim(Prim::Gather { out: out.clone(), x, axes });
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
            let mut seen = view.clone();
            for _ in &slice {
                seen = seen.with_axis_inserted(seen.rank());
            }
            let at = axis((*at).into(), x.rank())?;
            let seen = self.builder.broadcast(&seen, &shape)?;
            set_axis(&mut axes, at, Axis { index: Some(seen), coordinate: Some(at + places.len()) });
        }
        let out = self.builder.new_tensor(x.dtype, shape);
        self.builder.prim(Prim::Gather { out: out.clone(), x, axes });
        self.set(n.out, out)
    }

    /// The tensor that a node changes part of: the state itself where it may be changed in place, else a copy.
    fn changed(&mut self, dst: Src, out: Dst) -> Result<View> {
        let view = self.tensor(dst)?;
        match self.states.get(&out.0).cloned() {
            Some(state) if dst.0 == out.0 && view == state => {
                self.keep_old(out.0, &state, false)?;
                Ok(state)
            }
            _ => self.builder.copy(&view),
        }
    }

    pub(super) fn scatter_add(&mut self, n: &ScatterAdd) -> Result<()> {
        let (indices, updates) = (self.tensor(n.indices)?, self.tensor(n.updates)?);
        check_indices(&indices)?;
        let out = self.changed(n.x, n.out)?;
        let at = axis(n.axis.into(), out.rank())?;
        let updates = self.builder.cast(&updates, out.dtype)?;
        let updates = self.builder.broadcast(&updates, &indices.shape)?;
        let mut axes = straight(out.rank());
        set_axis(&mut axes, at, Axis { index: Some(indices), coordinate: None });
        self.builder.prim(Prim::Scatter { out: out.clone(), updates, axes, add: true });
        self.set(n.out, out)
    }

    pub(super) fn slice_update(&mut self, n: &SliceUpdate) -> Result<()> {
        let update = self.tensor(n.update)?;
        if n.step < 1 {
            return Err(Fault::Value { what: "step", value: n.step.into() });
        }
        let (start, stop) = (self.int(n.start)?, self.int(n.stop)?);
        // Read before the state under it changes.
        let update = self.apart(update, n.dst)?;
        let out = self.changed(n.dst, n.out)?;
        let at = self.fixed_axis(n.axis, out.rank())?;
        let (start, length) = self.span(&start, &stop, &out.size(at)?.clone(), n.step.into())?;
        let part = out.narrowed(at, &start, length, &Dim::fixed(n.step.into()));
        self.builder.copy_into(part, &update)?;
        self.set(n.out, out)
    }

    /// The view, or a copy of it where it shows the very buffer that is about to change.
    fn apart(&mut self, view: View, changed: Src) -> Result<View> {
        if view.buf == self.tensor(changed)?.buf { self.builder.copy(&view) } else { Ok(view) }
    }

    pub(super) fn index_copy(&mut self, n: &IndexCopy) -> Result<()> {
        let (update, indices) = (self.tensor(n.update)?, self.tensor(n.indices)?);
        check_indices(&indices)?;
        if indices.rank() != 1 {
            return Err(Fault::Rank { what: "the indices of a copy", wanted: 1, found: indices.rank() });
        }
        let update = self.apart(update, n.dst)?;
        let out = self.changed(n.dst, n.out)?;
        let at = axis(n.axis.into(), out.rank())?;
        let mut shape = out.shape.clone();
        shape.iter_mut().skip(at).take(1).for_each(|size| *size = Dim::fixed(1));
        let mut seen = indices.clone();
        for _ in at + 1..out.rank() {
            seen = seen.with_axis_inserted(seen.rank());
        }
        let shape = self.builder.broadcast_shapes(&shape, &seen.shape)?;
        let updates = self.builder.cast(&update, out.dtype)?;
        let updates = self.builder.broadcast(&updates, &shape)?;
        let seen = self.builder.broadcast(&seen, &shape)?;
        let mut axes = straight(out.rank());
        set_axis(&mut axes, at, Axis { index: Some(seen), coordinate: None });
        self.builder.prim(Prim::Scatter { out: out.clone(), updates, axes, add: false });
        self.set(n.out, out)
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
        self.builder.prim(Prim::RandomBits { out: out.clone(), seed });
        self.set(n.out, out)
    }
}
