//! Views with numbers for sizes.

use super::NumberFault;
use crate::prim::{Buf, View};
use ptero_tensor::DType;
use smallvec::SmallVec;

/// Sizes or coordinates. More axes than are kept here cost an allocation per step, and nothing else.
pub type Sizes = SmallVec<[usize; 6]>;
/// Strides.
pub type Strides = SmallVec<[isize; 6]>;

/// Where the elements of a view lie in its buffer; all of them do lie in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Window {
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

/// Every step clones the windows that it reads: as plain memory, which the derived method would not do.
impl Clone for Window {
    fn clone(&self) -> Self {
        self.with(&self.shape, &self.strides, self.offset)
    }
}

impl Window {
    /// One without elements, until its numbers are known.
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
            // Along an axis of one element no step is ever made.
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

    /// Other elements of the same buffer.
    fn with(&self, shape: &[usize], strides: &[isize], offset: usize) -> Self {
        let (shape, strides) = (Sizes::from_slice(shape), Strides::from_slice(strides));
        Self { buf: self.buf, dtype: self.dtype, shape, strides, offset }
    }

    /// How many elements it shows.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of an axis; one that does not exist has one element.
    pub fn size(&self, axis: usize) -> usize {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    /// The stride of an axis; one that does not exist has none.
    pub fn stride(&self, axis: usize) -> isize {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// Returns `true` if elements follow each other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut wanted = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == wanted;
            wanted *= size.cast_signed();
            fits
        })
    }

    /// Where the element of that number lies, counted in row-major order.
    pub fn offset_of(&self, number: usize) -> usize {
        let mut rest = number;
        let mut offset = self.offset.cast_signed();
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            offset += (rest % size).cast_signed() * stride;
            rest /= size;
        }
        offset.cast_unsigned()
    }

    /// Without this axis: the window of the lines along it. An axis that does not exist is a line of one element.
    pub fn lines(&self, axis: usize) -> (Self, Line) {
        let line = Line { length: self.size(axis), stride: self.stride(axis) };
        let mut outer = self.clone();
        if axis < outer.shape.len() {
            outer.shape.remove(axis);
            outer.strides.remove(axis);
        }
        (outer, line)
    }

    /// The window of the last `rank` axes at the index of that number of the axes before them.
    pub fn inner(&self, rank: usize, number: usize) -> Self {
        let split = self.shape.len().saturating_sub(rank);
        let (outer_shape, shape) = self.shape.split_at(split);
        let (outer_strides, strides) = self.strides.split_at(split);
        self.with(shape, strides, self.with(outer_shape, outer_strides, self.offset).offset_of(number))
    }

    /// How many windows `inner` has.
    pub fn outer_count(&self, rank: usize) -> usize {
        self.shape.iter().take(self.shape.len().saturating_sub(rank)).product()
    }

    /// The same elements in the same order with axes that continue each other made one.
    pub fn coalesced(&self) -> Self {
        let mut merged = self.with(&[], &[], self.offset);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let continues =
                merged.strides.last().is_some_and(|&last| Some(last) == stride.checked_mul(size.cast_signed()));
            if size == 1 {
                continue;
            }
            if continues {
                merged.shape.iter_mut().next_back().into_iter().for_each(|last| *last *= size);
                merged.strides.iter_mut().next_back().into_iter().for_each(|last| *last = stride);
            } else {
                merged.shape.push(size);
                merged.strides.push(stride);
            }
        }
        merged
    }

    /// How far the last element is from the first; none if some stride is negative.
    pub fn reach(&self) -> Option<usize> {
        let steps = self.shape.iter().zip(&self.strides);
        steps.map(|(&size, &stride)| Some((size - 1) * usize::try_from(stride).ok()?)).sum()
    }
}

/// Elements at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// How many.
    pub length: usize,
    /// The distance.
    pub stride: isize,
}
