//! Views: what can be had by looking at the same elements in another way.

use super::Builder;
use crate::dim::Dim;
use crate::error::{Fault, Result, Shape};
use crate::prim::{Buf, View};
use ptero_tensor::DType;

pub(crate) fn product(sizes: &[Dim]) -> Dim {
    sizes.iter().fold(Dim::fixed(1), |product, size| &product * size)
}

/// The strides of a row-major tensor.
fn row_major_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = Dim::fixed(1);
    for size in shape.iter().rev() {
        strides.push(stride.clone());
        stride = &stride * size;
    }
    strides.reverse();
    strides
}

fn remove<T: Clone>(items: &[T], at: usize) -> Vec<T> {
    items.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, item)| item.clone()).collect()
}

fn insert<T: Clone>(items: &[T], at: usize, item: T) -> Vec<T> {
    let mut items = items.to_vec();
    items.insert(at.min(items.len()), item);
    items
}

fn replace<T: Clone>(items: &[T], at: usize, item: T) -> Vec<T> {
    let mut items = items.to_vec();
    items.iter_mut().skip(at).take(1).for_each(|old| *old = item.clone());
    items
}

impl View {
    pub(crate) fn row_major(buf: Buf, dtype: DType, shape: Vec<Dim>) -> Self {
        let strides = row_major_strides(&shape);
        Self { buf, dtype, shape, strides, offset: Dim::fixed(0) }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn size(&self, axis: usize) -> Result<&Dim> {
        self.shape.get(axis).ok_or(Fault::Axis { axis: i64::try_from(axis).unwrap_or(i64::MAX), rank: self.rank() })
    }

    pub(crate) fn stride(&self, axis: usize) -> Dim {
        self.strides.get(axis).cloned().unwrap_or_else(|| Dim::fixed(0))
    }

    /// Whether the elements lie one behind the other, wherever they start.
    pub(crate) fn is_row_major(&self) -> bool {
        let wanted = row_major_strides(&self.shape);
        let axes = self.shape.iter().zip(&self.strides).zip(&wanted);
        axes.into_iter().all(|((size, stride), wanted)| size.is(1) || stride == wanted)
    }

    pub(crate) fn with_axis_removed(&self, axis: usize) -> Self {
        Self { shape: remove(&self.shape, axis), strides: remove(&self.strides, axis), ..self.clone() }
    }

    pub(crate) fn with_axis_inserted(&self, axis: usize) -> Self {
        let shape = insert(&self.shape, axis, Dim::fixed(1));
        Self { shape, strides: insert(&self.strides, axis, Dim::fixed(0)), ..self.clone() }
    }

    /// The part that starts at `start` and has `length` elements along an axis, `step` apart.
    pub(crate) fn narrowed(&self, axis: usize, start: &Dim, length: Dim, step: &Dim) -> Self {
        let stride = self.stride(axis);
        Self {
            offset: &self.offset + &(&stride * start),
            shape: replace(&self.shape, axis, length),
            strides: replace(&self.strides, axis, &stride * step),
            ..self.clone()
        }
    }

    /// The part at one place of an axis, without that axis.
    pub(crate) fn at(&self, axis: usize, index: &Dim) -> Self {
        self.narrowed(axis, index, Dim::fixed(1), &Dim::fixed(1)).with_axis_removed(axis)
    }

    /// The elements along an axis from last to first.
    pub(crate) fn flipped(&self, axis: usize) -> Result<Self> {
        let last = self.size(axis)? - &Dim::fixed(1);
        Ok(self.narrowed(axis, &last, self.size(axis)?.clone(), &Dim::fixed(-1)))
    }

    pub(crate) fn permuted(&self, order: &[usize]) -> Result<Self> {
        let mut seen = vec![false; self.rank()];
        let (mut shape, mut strides) = (Vec::new(), Vec::new());
        for &axis in order {
            shape.push(self.size(axis)?.clone());
            strides.push(self.stride(axis));
            seen.iter_mut().skip(axis).take(1).for_each(|seen| *seen = true);
        }
        if order.len() != self.rank() || !seen.iter().all(|seen| *seen) {
            return Err(Fault::Count { what: "distinct axes", wanted: self.rank(), found: order.len() });
        }
        Ok(Self { shape, strides, ..self.clone() })
    }
}

/// Strides that show the elements of a view in another shape, if there are any.
fn reshaped_strides(view: &View, shape: &[Dim]) -> Option<Vec<Dim>> {
    let old: Vec<(&Dim, &Dim)> = view.shape.iter().zip(&view.strides).filter(|(size, _)| !size.is(1)).collect();
    let mut strides = vec![Dim::fixed(0); shape.len()];
    let (mut from, mut to) = (0, 0);
    while to < shape.len() {
        if shape.get(to)?.is(1) {
            to += 1;
            continue;
        }
        // A group of old axes and a group of new axes with the same product.
        let (first_old, first_new) = (from, to);
        let (mut old_size, mut new_size) = (old.get(from)?.0.clone(), shape.get(to)?.clone());
        (from, to) = (from + 1, to + 1);
        while old_size != new_size {
            if new_size.divided_by(&old_size).is_some() {
                old_size = &old_size * old.get(from)?.0;
                from += 1;
            } else {
                new_size = &new_size * shape.get(to)?;
                to += 1;
            }
        }
        let group = old.get(first_old..from)?;
        let joined = group.windows(2).all(|pair| match pair {
            [(_, outer), (size, inner)] => **outer == *size * inner,
            _ => true,
        });
        if !joined {
            return None;
        }
        let mut stride = group.last()?.1.clone();
        for axis in (first_new..to).rev() {
            *strides.get_mut(axis)? = stride.clone();
            stride = &stride * shape.get(axis)?;
        }
    }
    (from == old.len()).then_some(strides)
}

impl Builder {
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
                (Some(_), Some(_)) => {
                    return Err(Fault::Shapes { left: Shape(a.to_vec()), right: Shape(b.to_vec()) });
                }
                (fixed, _) => {
                    self.same(&left, &right, "sizes that meet in one operation")?;
                    if fixed.is_some() { left } else { right }
                }
            });
        }
        Ok(shape)
    }

    /// The view as if it had this shape.
    pub(crate) fn broadcast(&mut self, view: &View, shape: &[Dim]) -> Result<View> {
        let misfit = || Fault::Shapes { left: Shape(view.shape.clone()), right: Shape(shape.to_vec()) };
        let missing = shape.len().checked_sub(view.rank()).ok_or_else(misfit)?;
        let mut strides = vec![Dim::fixed(0); missing];
        for ((have, stride), want) in view.shape.iter().zip(&view.strides).zip(shape.iter().skip(missing)) {
            match (have.as_fixed(), want.as_fixed()) {
                _ if have == want => strides.push(stride.clone()),
                (Some(1), _) => strides.push(Dim::fixed(0)),
                (Some(_), Some(_)) => return Err(misfit()),
                _ => {
                    self.same(have, want, "sizes that meet in one operation")?;
                    strides.push(stride.clone());
                }
            }
        }
        Ok(View { shape: shape.to_vec(), strides, ..view.clone() })
    }

    /// The view in another shape, copied where strides alone cannot do it. One size may be -1.
    pub(crate) fn reshape(&mut self, view: &View, shape: &[Dim]) -> Result<View> {
        let total = product(&view.shape);
        let shape = self.infer(view, shape, &total)?;
        self.same(&total, &product(&shape), "element counts before and after a reshape")
            .map_err(|_| Fault::Reshape { shape: Shape(view.shape.clone()), size: Shape(shape.clone()) })?;
        if view.is_row_major() {
            return Ok(View { strides: row_major_strides(&shape), shape, ..view.clone() });
        }
        if let Some(strides) = reshaped_strides(view, &shape) {
            return Ok(View { strides, shape, ..view.clone() });
        }
        let copy = self.copy(view)?;
        Ok(View { strides: row_major_strides(&shape), shape, ..copy })
    }

    fn infer(&mut self, view: &View, shape: &[Dim], total: &Dim) -> Result<Vec<Dim>> {
        let open: Vec<usize> = (0..shape.len()).filter(|at| shape.get(*at).is_some_and(|size| size.is(-1))).collect();
        let misfit = || Fault::Reshape { shape: Shape(view.shape.clone()), size: Shape(shape.to_vec()) };
        match open.as_slice() {
            [] => Ok(shape.to_vec()),
            [open] => {
                let known = product(&remove(shape, *open));
                if known.is(0) {
                    return Err(misfit());
                }
                let inferred = self.floor_div(total.clone(), known)?;
                Ok(replace(shape, *open, inferred))
            }
            _ => Err(misfit()),
        }
    }

    /// A row-major view: the same, or a copy.
    pub(crate) fn row_major(&mut self, view: &View) -> Result<View> {
        if view.is_row_major() { Ok(view.clone()) } else { self.copy(view) }
    }

    /// A place along an axis as Python has it: from the end if negative, then clamped to the axis.
    pub(crate) fn clamped(&mut self, index: &Dim, size: &Dim) -> Dim {
        let zero = Dim::fixed(0);
        match (index.as_fixed(), size.as_fixed()) {
            (Some(index), Some(size)) => Dim::fixed(if index < 0 { index + size } else { index }.clamp(0, size)),
            (Some(0), None) => zero,
            (Some(index), None) if index >= i64::from(i32::MAX) => size.clone(),
            (Some(index), None) if index < 0 => {
                let from_start = size + &Dim::fixed(index);
                self.max(from_start, zero)
            }
            (Some(_), None) => self.min(index.clone(), size.clone()),
            (None, _) if index == size => size.clone(),
            (None, _) => self.host_pair(4, index.clone(), size.clone(), crate::plan::HostOp::Clamp),
        }
    }

    /// Likewise for a walk backwards, which may end before the first place.
    pub(crate) fn clamped_backward(&mut self, index: &Dim, size: &Dim) -> Dim {
        match (index.as_fixed(), size.as_fixed()) {
            (Some(index), Some(size)) => Dim::fixed(if index < 0 { index + size } else { index }.clamp(-1, size - 1)),
            _ => self.host_pair(5, index.clone(), size.clone(), crate::plan::HostOp::ClampBackward),
        }
    }
}
