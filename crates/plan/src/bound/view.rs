//! Views with numbers.

use super::NumberFault;
use crate::prim::{Buf, View};
use ptero_tensor::DType;
use smallvec::SmallVec;

/// Sizes or coordinates. More axes than this cost an allocation per step.
pub type Sizes = SmallVec<[usize; 6]>;
/// Strides.
pub type Strides = SmallVec<[isize; 6]>;

/// A view with numbers. All its elements are inside the buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct BoundView {
    /// The buffer.
    pub buf: Buf,
    /// The type of its elements.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Sizes,
    /// Distances between neighbours along each axis; 0 along an axis of one element.
    pub strides: Strides,
    /// The first element.
    pub offset: usize,
}

/// Every step clones the views that it reads. Copying slices is faster than the derived method.
impl Clone for BoundView {
    fn clone(&self) -> Self {
        self.with(&self.shape, &self.strides, self.offset)
    }
}

impl BoundView {
    /// An empty view, until the numbers are known.
    pub(super) fn empty(view: &View) -> Self {
        let rank = view.shape.len();
        let (shape, strides) = (Sizes::from_elem(0, rank), Strides::from_elem(0, rank));
        Self { buf: view.buf, dtype: view.dtype, shape, strides, offset: 0 }
    }

    /// The view in a call with these host values, on a buffer of that many elements.
    pub(super) fn fill(&mut self, view: &View, values: &[i64], elements: usize) -> Result<(), NumberFault> {
        self.shape.clear();
        self.strides.clear();
        let mut count = 1_usize;
        for dim in &view.shape {
            let size = dim.eval(values);
            let size = usize::try_from(size).map_err(|_| NumberFault::NegativeSize(size))?;
            let whole = count.checked_mul(size.max(1)).filter(|&count| isize::try_from(count).is_ok());
            count = whole.ok_or(NumberFault::TooLarge)?;
            self.shape.push(size);
        }
        if self.shape.contains(&0) {
            self.strides.resize(self.shape.len(), 0);
            self.offset = 0;
            return Ok(());
        }
        let offset = view.offset.eval(values);
        let (mut first, mut last) = (i128::from(offset), i128::from(offset));
        for (&size, dim) in self.shape.iter().zip(&view.strides) {
            let stride = dim.eval(values);
            let reach = (size - 1) as i128 * i128::from(stride);
            first += reach.min(0);
            last += reach.max(0);
            // The stride of an axis of one element is not used.
            let stride = isize::try_from(stride).map_err(|_| NumberFault::TooLarge);
            self.strides.push(if size == 1 { 0 } else { stride? });
        }
        if first < 0 || last >= elements as i128 {
            return Err(NumberFault::OutsideBuffer { first, last, count: elements });
        }
        // `first` is not negative, and `offset` lies between `first` and `last`.
        self.offset = usize::try_from(offset).map_err(|_| NumberFault::TooLarge)?;
        Ok(())
    }

    /// Another view of the same buffer.
    fn with(&self, shape: &[usize], strides: &[isize], offset: usize) -> Self {
        let (shape, strides) = (Sizes::from_slice(shape), Strides::from_slice(strides));
        Self { buf: self.buf, dtype: self.dtype, shape, strides, offset }
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of an axis; 1 if it does not exist.
    pub fn size(&self, axis: usize) -> usize {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    /// The stride of an axis; 0 if it does not exist.
    pub fn stride(&self, axis: usize) -> isize {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// Returns `true` if the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut wanted = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == wanted;
            wanted *= size.cast_signed();
            fits
        })
    }

    /// The offset of an element, given by its index in row-major order.
    pub fn offset_of(&self, number: usize) -> usize {
        let mut rest = number;
        let mut offset = self.offset.cast_signed();
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            offset += (rest % size).cast_signed() * stride;
            rest /= size;
        }
        offset.cast_unsigned()
    }

    /// Splits off an axis: the view of the first elements of the lines along it, and the line. An axis that does not exist is a
    /// line of one element.
    pub fn lines(&self, axis: usize) -> (Self, Line) {
        let line = Line { length: self.size(axis), stride: self.stride(axis) };
        let mut outer = self.clone();
        if axis < outer.shape.len() {
            outer.shape.remove(axis);
            outer.strides.remove(axis);
        }
        (outer, line)
    }

    /// The view of the last `rank` axes, at an index of the other axes in row-major order.
    pub fn inner(&self, rank: usize, number: usize) -> Self {
        let split = self.shape.len().saturating_sub(rank);
        let (outer_shape, shape) = self.shape.split_at(split);
        let (outer_strides, strides) = self.strides.split_at(split);
        self.with(shape, strides, self.with(outer_shape, outer_strides, self.offset).offset_of(number))
    }

    /// The number of views that `inner` can return.
    pub fn outer_count(&self, rank: usize) -> usize {
        self.shape.iter().take(self.shape.len().saturating_sub(rank)).product()
    }

    /// The same elements in the same order, with adjacent axes merged where strides allow it.
    pub fn coalesced(&self) -> Self {
        let mut merged = self.with(&[], &[], self.offset);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let length = stride.checked_mul(size.cast_signed());
            match (merged.shape.last_mut(), merged.strides.last_mut()) {
                _ if size == 1 => {}
                (Some(last_size), Some(last)) if Some(*last) == length => {
                    (*last_size, *last) = (*last_size * size, stride);
                }
                _ => {
                    merged.shape.push(size);
                    merged.strides.push(stride);
                }
            }
        }
        merged
    }

    /// The distance from the first to the last element; `None` if a stride is negative.
    pub fn reach(&self) -> Option<usize> {
        let steps = self.shape.iter().zip(&self.strides);
        steps.map(|(&size, &stride)| Some((size - 1) * usize::try_from(stride).ok()?)).sum()
    }
}

/// Elements at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The number of elements.
    pub length: usize,
    /// The distance between neighbours.
    pub stride: isize,
}
