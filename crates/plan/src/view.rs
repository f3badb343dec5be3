//! Computes strided views of views. Sizes were checked when the graph was built.

use crate::dim::Dim;
use crate::graph::Type;
use crate::prim::{Buf, View};

pub(crate) fn product(sizes: &[Dim]) -> Dim {
    sizes.iter().fold(Dim::fixed(1), |product, size| &product * size)
}

/// The strides of a row-major tensor.
pub(crate) fn row_major_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = Dim::fixed(1);
    for size in shape.iter().rev() {
        strides.push(stride.clone());
        stride = &stride * size;
    }
    strides.reverse();
    strides
}

impl View {
    /// All of a buffer that holds a tensor of this type, in row-major order.
    pub(crate) fn row_major(buf: Buf, Type { dtype, shape }: &Type) -> Self {
        let (strides, offset) = (row_major_strides(shape), Dim::fixed(0));
        Self { buf, dtype: *dtype, shape: shape.clone(), strides, offset }
    }

    /// Returns `true` if the elements are contiguous in row-major order, from any offset.
    pub(crate) fn is_row_major(&self) -> bool {
        let wanted = row_major_strides(&self.shape);
        let axes = self.shape.iter().zip(&self.strides).zip(&wanted);
        axes.into_iter().all(|((size, stride), wanted)| size.is(1) || stride == wanted)
    }

    /// `length` elements along an axis, from `start`, `step` apart.
    pub(crate) fn narrowed(&self, axis: usize, start: &Dim, length: Dim, step: i64) -> Self {
        let mut view = self.clone();
        if let (Some(size), Some(stride)) = (view.shape.get_mut(axis), view.strides.get_mut(axis)) {
            view.offset = &view.offset + &(&*stride * start);
            *size = length;
            *stride = &*stride * &Dim::fixed(step);
        }
        view
    }

    /// The elements at one index of an axis, without that axis.
    pub(crate) fn at(&self, axis: usize, index: &Dim) -> Self {
        let mut view = self.narrowed(axis, index, Dim::fixed(1), 1);
        view.shape.remove(axis);
        view.strides.remove(axis);
        view
    }

    pub(crate) fn permuted(&self, order: &[usize]) -> Self {
        let pick = |dims: &[Dim]| order.iter().filter_map(|axis| dims.get(*axis).cloned()).collect();
        Self { shape: pick(&self.shape), strides: pick(&self.strides), ..self.clone() }
    }

    /// Broadcast to this shape: shapes are aligned at the right, missing axes and sizes of 1 repeat.
    pub(crate) fn broadcast(&self, shape: &[Dim]) -> Self {
        let missing = shape.len().saturating_sub(self.shape.len());
        let mut strides = vec![Dim::fixed(0); missing];
        for ((have, stride), want) in self.shape.iter().zip(&self.strides).zip(shape.iter().skip(missing)) {
            strides.push(if have != want && have.is(1) { Dim::fixed(0) } else { stride.clone() });
        }
        Self { shape: shape.to_vec(), strides, ..self.clone() }
    }

    /// The same elements in another shape, if there are strides for it.
    pub(crate) fn reshaped(&self, shape: &[Dim]) -> Option<Self> {
        let strides = if self.is_row_major() { row_major_strides(shape) } else { reshaped_strides(self, shape)? };
        Some(Self { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// Its one element, if it repeats only one.
    pub(crate) fn one_element(&self) -> Option<Self> {
        let mut axes = self.shape.iter().zip(&self.strides);
        let is_one = axes.all(|(size, stride)| size.is(1) || stride.is(0));
        is_one.then(|| View { shape: Vec::new(), strides: Vec::new(), ..self.clone() })
    }
}

/// Strides for the elements of a view in another shape, if there are any.
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
