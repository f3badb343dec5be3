//! Tensors, and where their elements lie.

use ptero_backend::number::{Element, Number};
use ptero_backend::{Fault, LIMIT_BYTES, NumberFault};
use ptero_plan::graph::Type;
use ptero_tensor::Bytes;

/// Where the elements of a tensor lie in its bytes, counted in elements. All of them lie inside.
#[derive(Clone, Debug)]
pub(crate) struct StridedLayout {
    pub(crate) shape: Vec<usize>,
    strides: Vec<i64>,
    offset: i64,
}

impl StridedLayout {
    /// Contiguous elements in row-major order.
    pub(crate) fn row_major(shape: Vec<usize>) -> Self {
        let mut stride = 1;
        let mut strides = vec![0; shape.len()];
        for (slot, &size) in strides.iter_mut().zip(&shape).rev() {
            *slot = stride;
            stride *= signed(size);
        }
        Self { shape, strides, offset: 0 }
    }

    /// Any layout in `elements` elements.
    ///
    /// # Errors
    /// If an element lies outside.
    pub(crate) fn new(shape: Vec<usize>, strides: Vec<i64>, offset: i64, elements: usize) -> Result<Self, Fault> {
        if strides.len() != shape.len() {
            return Err(Fault::Contract("there is a stride for each axis"));
        }
        if shape.contains(&0) {
            return Ok(Self { strides: vec![0; shape.len()], shape, offset: 0 });
        }
        let (mut first, mut last) = (i128::from(offset), i128::from(offset));
        for (&size, &stride) in shape.iter().zip(&strides) {
            let reach = i128::from(signed(size) - 1) * i128::from(stride);
            first += reach.min(0);
            last += reach.max(0);
        }
        if first < 0 || last >= elements as i128 {
            return Err(NumberFault::OutsideBuffer { first, last, count: elements }.into());
        }
        // Along an axis of one element, no step is ever taken.
        let strides = strides.into_iter().zip(&shape).map(|(stride, &size)| if size == 1 { 0 } else { stride });
        Ok(Self { strides: strides.collect(), shape, offset })
    }

    /// Returns `true` if the elements are contiguous, in row-major order.
    pub(crate) fn is_row_major(&self) -> bool {
        let plain = Self::row_major(self.shape.clone());
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(&plain.strides));
        self.shape.contains(&0) || axes.all(|(&size, (stride, plain))| size == 1 || stride == plain)
    }

    /// Contiguous elements in another shape with the same number of elements.
    pub(crate) fn reshaped(&self, shape: Vec<usize>) -> Self {
        Self { offset: self.offset, ..Self::row_major(shape) }
    }

    /// Axis `i` of the result is axis `order[i]`.
    pub(crate) fn permuted(&self, order: &[usize]) -> Result<Self, Fault> {
        let pick = |axis: &usize| Some((self.shape.get(*axis)?, self.strides.get(*axis)?));
        let picked: Option<Vec<(&usize, &i64)>> = order.iter().map(pick).collect();
        let (shape, strides) = picked.ok_or(Fault::Contract("the axis exists"))?.into_iter().unzip();
        Ok(Self { shape, strides, offset: self.offset })
    }

    /// Aligned at the right; sizes of 1 and missing axes repeat.
    pub(crate) fn broadcast(&self, shape: Vec<usize>) -> Result<Self, Fault> {
        let unlike = Fault::Contract("a size is kept or repeated");
        let added = shape.len().checked_sub(self.shape.len()).ok_or(unlike.clone())?;
        let mut strides = vec![0; added];
        for ((&size, &stride), &wanted) in self.shape.iter().zip(&self.strides).zip(shape.iter().skip(added)) {
            strides.push(if size == wanted { stride } else { 0 });
            if size != wanted && size != 1 {
                return Err(unlike);
            }
        }
        Ok(Self { shape, strides, offset: self.offset })
    }

    /// `count` elements along an axis, from `start` on.
    pub(crate) fn sliced(&self, axis: usize, start: i64, count: usize, step: i64) -> Result<Self, Fault> {
        let mut layout = self.clone();
        let (Some(size), Some(stride)) = (layout.shape.get_mut(axis), layout.strides.get_mut(axis)) else {
            return Err(Fault::Contract("the axis exists"));
        };
        // The positions along the axis have a layout themselves.
        let along = Self::new(vec![count], vec![step], start, *size)?;
        let step = along.strides.first().copied().unwrap_or(0);
        layout.offset += along.offset * *stride;
        (*size, *stride) = (count, *stride * step);
        Ok(layout)
    }

    /// Any layout in contiguous elements.
    pub(crate) fn strided(&self, shape: Vec<usize>, strides: Vec<i64>, offset: i64) -> Result<Self, Fault> {
        let layout = Self::new(shape, strides, offset, self.count())?;
        Ok(Self { offset: self.offset + layout.offset, ..layout })
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The offset of the element at these coordinates.
    pub(crate) fn offset_of(&self, coordinates: &[usize]) -> usize {
        let steps = coordinates.iter().zip(&self.strides).map(|(&at, &stride)| signed(at) * stride);
        usize::try_from(self.offset + steps.sum::<i64>()).expect(INSIDE)
    }

    /// The offset of each element, in row-major order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let layout = self.clone();
        // The last axis has a loop of its own: this is where large weights are read.
        let (size, stride) = (self.shape.last().copied().unwrap_or(1), self.strides.last().copied().unwrap_or(0));
        let outer = match self.shape.split_last() {
            // An empty tensor has no elements to visit, however long its other axes are.
            Some(_) if self.shape.contains(&0) => &[0],
            Some((_, outer)) => outer,
            None => &[],
        };
        coordinates(outer).flat_map(move |at| {
            let start = signed(layout.offset_of(&at));
            (0..size).map(move |index| usize::try_from(start + signed(index) * stride).expect(INSIDE))
        })
    }

    /// The same elements with these axes moved to the end, in the order given.
    pub(crate) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        let kept = (0..self.shape.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        self.permuted(&order)
    }

    /// The layout of the last `rank` axes at index `index` of the axes before them, counted in row-major order.
    fn nth(&self, rank: usize, index: usize) -> Option<Self> {
        let outer = self.shape.get(..self.shape.len().saturating_sub(rank))?;
        let (mut at, mut rest) = (vec![0; outer.len()], index);
        for (at, &size) in at.iter_mut().zip(outer).rev() {
            *at = rest.checked_rem(size)?;
            rest /= size;
        }
        (rest == 0).then(|| self.at(&at))
    }

    /// The layouts of the last `rank` axes, one for each index of the axes before them, in row-major order.
    fn inner(&self, rank: usize) -> impl Iterator<Item = Self> + use<> {
        let (layout, outer) = (self.clone(), self.shape.len().saturating_sub(rank));
        coordinates(self.shape.split_at(outer).0).map(move |at| layout.at(&at))
    }

    /// The layout of the other axes at these coordinates of the first ones.
    fn at(&self, first: &[usize]) -> Self {
        let (shape, strides) = (self.shape.split_at(first.len()).1, self.strides.split_at(first.len()).1);
        Self { shape: shape.to_vec(), strides: strides.to_vec(), offset: signed(self.offset_of(first)) }
    }
}

const INSIDE: &str = "elements lie inside their bytes";

/// The sizes of a tensor in a call with these host values. It takes no more than [`LIMIT_BYTES`], and the product of the sizes
/// that are not zero fits 63 bits.
pub(crate) fn evaluate_shape(ty: &Type, values: &[i64]) -> Result<Vec<usize>, Fault> {
    let size = |value: i64| usize::try_from(value).map_err(|_| NumberFault::NegativeSize(value));
    let shape: Vec<usize> = ty.shape.iter().map(|dim| size(dim.eval(values))).collect::<Result<_, _>>()?;
    let nonzero = shape.iter().filter(|&&size| size > 0);
    let count = nonzero.into_iter().try_fold(1_i64, |count, &size| count.checked_mul(signed(size)));
    let bytes = count.and_then(|count| u64::try_from(count).ok()?.checked_mul(ty.dtype.bytes()));
    let is_small = bytes.is_some_and(|bytes| bytes <= LIMIT_BYTES);
    if is_small || count.is_some() && shape.contains(&0) { Ok(shape) } else { Err(NumberFault::TooLarge.into()) }
}

#[allow(clippy::cast_possible_wrap, reason = "sizes come from i64s, and indices are below sizes")]
pub(crate) fn signed(size: usize) -> i64 {
    size as i64
}

/// All coordinates of a shape in row-major order.
pub(crate) fn coordinates(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let first = (!shape.contains(&0)).then(|| vec![0; shape.len()]);
    std::iter::successors(first, move |current| {
        let mut next = current.clone();
        // As an odometer: the last axis that can still advance does, those after it start again.
        for (at, &size) in next.iter_mut().zip(&shape).rev() {
            *at += 1;
            if *at < size {
                return Some(next);
            }
            *at = 0;
        }
        None
    })
}

/// A value: elements in bytes that are shared and never changed.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) element: Element,
    pub(crate) layout: StridedLayout,
    pub(crate) bytes: Bytes,
}

impl Tensor {
    /// Contiguous elements.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub(crate) fn contiguous(element: Element, shape: Vec<usize>, bytes: Bytes) -> Result<Self, Fault> {
        let plain = StridedLayout::row_major(shape);
        let layout = StridedLayout::new(plain.shape, plain.strides, 0, bytes.len() / element.bytes())?;
        Ok(Self { element, layout, bytes })
    }

    /// The same elements in row-major order: this tensor, or a copy.
    pub(crate) fn compact(&self) -> Result<Self, Fault> {
        if self.layout.is_row_major() { Ok(self.clone()) } else { self.edited(|_, _| Ok(())) }
    }

    /// A copy in row-major order, whose bytes and layout are given to `edit`.
    pub(crate) fn edited(
        &self,
        edit: impl FnOnce(&mut [u8], &StridedLayout) -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let layout = StridedLayout::row_major(self.shape().to_vec());
        let mut bytes = zeros(layout.count() * self.element.bytes())?;
        self.copy_to(&mut bytes, &layout);
        edit(&mut bytes, &layout)?;
        Ok(Self { element: self.element, layout, bytes: Bytes::from(bytes) })
    }

    /// Copies all elements to a layout of the same shape in other bytes.
    pub(crate) fn copy_to(&self, bytes: &mut [u8], layout: &StridedLayout) {
        let (width, own) = (self.element.bytes(), &*self.bytes);
        for (source, target) in self.layout.offsets().zip(layout.offsets()) {
            let (source, target) = (source * width, target * width);
            let target = bytes.get_mut(target..target + width).expect(INSIDE);
            target.copy_from_slice(own.get(source..source + width).expect(INSIDE));
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The sizes of the last `N` axes.
    pub(crate) fn last_sizes<const N: usize>(&self) -> Result<[usize; N], Fault> {
        self.shape().last_chunk().copied().ok_or(Fault::Contract("a tensor has the axes of its primitive"))
    }

    /// The element at these coordinates, which must be in range.
    pub(crate) fn at(&self, coordinates: &[usize]) -> Number {
        self.element.load(&self.bytes, self.layout.offset_of(coordinates))
    }

    /// All elements in row-major order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Number> {
        let (element, bytes) = (self.element, &*self.bytes);
        self.layout.offsets().map(move |offset| element.load(bytes, offset))
    }

    /// All elements in row-major order, as floats.
    pub(crate) fn floats(&self) -> Vec<f32> {
        self.numbers().map(Number::float).collect()
    }

    /// The tensors of the last `rank` axes, one for each index of the axes before them.
    pub(crate) fn inner(&self, rank: usize) -> impl Iterator<Item = Tensor> + use<> {
        let (element, bytes) = (self.element, self.bytes.clone());
        self.layout.inner(rank).map(move |layout| Self { element, layout, bytes: bytes.clone() })
    }

    /// The tensor of the last `rank` axes at index `index` of the axes before them, counted in row-major order.
    pub(crate) fn nth(&self, rank: usize, index: usize) -> Option<Tensor> {
        let layout = self.layout.nth(rank, index)?;
        Some(Self { layout, bytes: self.bytes.clone(), ..*self })
    }

    /// The same elements with these axes moved to the end.
    pub(crate) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        Ok(Self { layout: self.layout.with_last(axes)?, ..self.clone() })
    }

    /// The lines along an axis, in row-major order of the other axes.
    pub(crate) fn lines(&self, axis: usize) -> Result<impl Iterator<Item = Tensor> + use<>, Fault> {
        Ok(self.with_last(&[axis])?.inner(1))
    }

    /// The rows of a matrix.
    pub(crate) fn rows(&self) -> Vec<Vec<f32>> {
        self.inner(1).map(|row| row.floats()).collect()
    }
}

/// Allocates memory for a result.
pub(crate) fn zeros(length: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Fault::OutOfMemory { bytes: length })?;
    bytes.resize(length, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptero_plan::dim::{Dim, Var};
    use ptero_tensor::DType;

    fn offsets(shape: &[usize], strides: &[i64], offset: i64, elements: usize) -> Vec<usize> {
        StridedLayout::new(shape.to_vec(), strides.to_vec(), offset, elements).unwrap().offsets().collect()
    }

    #[test]
    fn an_empty_tensor_has_no_offsets_however_long_its_other_axes() {
        let layout = StridedLayout { shape: vec![usize::MAX / 2, 0], strides: vec![1, 1], offset: 0 };
        assert_eq!(layout.offsets().count(), 0);
    }

    #[test]
    fn offsets_go_in_row_major_order_whatever_the_strides() {
        assert_eq!(offsets(&[2, 3], &[3, 1], 0, 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(offsets(&[3, 2], &[1, 3], 0, 6), [0, 3, 1, 4, 2, 5]);
        assert_eq!(offsets(&[2, 2], &[0, -1], 1, 2), [1, 0, 1, 0]);
        assert_eq!(offsets(&[], &[], 4, 5), [4]);
        assert_eq!(offsets(&[3, 0], &[9, 9], 99, 0), [0; 0]);
    }

    #[test]
    fn a_layout_that_leaves_its_bytes_is_refused_at_either_end() {
        let fault = |shape: &[usize], strides: &[i64], offset| {
            StridedLayout::new(shape.to_vec(), strides.to_vec(), offset, 6).unwrap_err().to_string()
        };
        assert_eq!(fault(&[7], &[1], 0), "a view from element 0 to 6 of a buffer of 6 elements");
        assert_eq!(fault(&[2], &[-1], 0), "a view from element -1 to 0 of a buffer of 6 elements");
        assert_eq!(fault(&[1], &[1], 6), "a view from element 6 to 6 of a buffer of 6 elements");
        let far = "a view from element 0 to 18446744073709551614 of a buffer of 6 elements";
        assert_eq!(fault(&[2, 2], &[i64::MAX, i64::MAX], 0), far);
    }

    #[test]
    fn sizes_come_from_the_values_of_the_call_and_are_limited() {
        let shape = |sizes: &[i64]| {
            let (a, b) = (Dim::var(Var(0)), Dim::var(Var(1)));
            evaluate_shape(&Type { dtype: DType::F32, shape: vec![a, b] }, sizes).map_err(|fault| fault.to_string())
        };
        assert_eq!(shape(&[9, 4]).unwrap(), [9, 4]);
        assert_eq!(shape(&[1 << 40, 0]).unwrap(), [1 << 40, 0]);
        assert_eq!(shape(&[-1, 4]).unwrap_err(), "size -1 is negative");
        for huge in [[1 << 32, 1 << 32], [1 << 33, 1]] {
            assert_eq!(shape(&huge).unwrap_err(), "over 17179869184 bytes in one buffer");
        }
    }

    #[test]
    fn axes_move_to_the_end_and_layouts_split() {
        let layout = StridedLayout::row_major(vec![2, 3]);
        assert_eq!(layout.with_last(&[0]).unwrap().offsets().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        let rows: Vec<Vec<usize>> = layout.inner(1).map(|row| row.offsets().collect()).collect();
        assert_eq!(rows, [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(layout.inner(2).count(), 1);
        assert_eq!(layout.nth(1, 1).unwrap().offsets().collect::<Vec<_>>(), [3, 4, 5]);
        assert!(layout.nth(1, 2).is_none() && StridedLayout::row_major(vec![2, 0, 3]).nth(1, 0).is_none());
        assert_eq!(layout.inner(0).map(|one| one.offset_of(&[])).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(layout.with_last(&[2]).is_err());
    }

    #[test]
    fn slices_stay_on_their_axis_even_where_the_bytes_go_on() {
        let layout = StridedLayout::row_major(vec![2, 3]);
        let backwards = layout.sliced(1, 2, 2, -2).unwrap();
        assert_eq!(backwards.offsets().collect::<Vec<_>>(), [2, 0, 5, 3]);
        assert!(layout.sliced(1, 2, 2, 1).is_err());
        assert!(layout.sliced(1, 3, 1, 1).is_err());
        assert_eq!(layout.sliced(1, 99, 0, 1).unwrap().offsets().count(), 0);
        // A step that is never taken may be anything.
        let one = layout.sliced(0, 1, 1, i64::MAX).unwrap();
        assert_eq!(one.sliced(0, 0, 1, i64::MIN).unwrap().offsets().collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn what_repeats_is_not_row_major_and_what_has_one_element_is() {
        let row = StridedLayout::row_major(vec![1, 3]);
        assert!(row.is_row_major() && row.permuted(&[1, 0]).unwrap().is_row_major());
        let repeated = row.broadcast(vec![2, 2, 3]).unwrap();
        assert_eq!(repeated.offsets().collect::<Vec<_>>(), [0, 1, 2].repeat(4));
        assert!(!repeated.is_row_major());
        assert!(row.broadcast(vec![1, 2]).is_err() && row.broadcast(vec![3]).is_err());
    }
}
