//! Where elements lie (windows), and windows with their bytes (tensors).

use ptero_backend::number::{Element, Number};
use ptero_backend::{Fault, LIMIT_BYTES, NumberFault};
use ptero_plan::graph::Type;
use ptero_tensor::Bytes;

/// Where the elements of a tensor lie in its bytes, counted in elements; all of them do lie there.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) shape: Vec<usize>,
    strides: Vec<i64>,
    offset: i64,
}

impl Window {
    /// All elements, one after the other.
    pub(crate) fn row_major(shape: Vec<usize>) -> Self {
        let mut stride = 1;
        let mut strides = vec![0; shape.len()];
        for (slot, &size) in strides.iter_mut().zip(&shape).rev() {
            *slot = stride;
            stride *= signed(size);
        }
        Self { shape, strides, offset: 0 }
    }

    /// Any window on `elements` elements.
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

    /// Whether the elements follow each other without gaps.
    pub(crate) fn is_row_major(&self) -> bool {
        let plain = Self::row_major(self.shape.clone());
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(&plain.strides));
        self.shape.contains(&0) || axes.all(|(&size, (stride, plain))| size == 1 || stride == plain)
    }

    /// Elements that follow each other, in another shape of as many.
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
        let mut window = self.clone();
        let (Some(size), Some(stride)) = (window.shape.get_mut(axis), window.strides.get_mut(axis)) else {
            return Err(Fault::Contract("the axis exists"));
        };
        // The positions along the axis are a window themselves.
        let along = Self::new(vec![count], vec![step], start, *size)?;
        let step = along.strides.first().copied().unwrap_or(0);
        window.offset += along.offset * *stride;
        (*size, *stride) = (count, *stride * step);
        Ok(window)
    }

    /// A window on elements that follow each other.
    pub(crate) fn strided(&self, shape: Vec<usize>, strides: Vec<i64>, offset: i64) -> Result<Self, Fault> {
        let window = Self::new(shape, strides, offset, self.count())?;
        Ok(Self { offset: self.offset + window.offset, ..window })
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the element of these coordinates lies.
    pub(crate) fn offset_of(&self, place: &[usize]) -> usize {
        let steps = place.iter().zip(&self.strides).map(|(&at, &stride)| signed(at) * stride);
        usize::try_from(self.offset + steps.sum::<i64>()).expect("windows lie inside their bytes")
    }

    /// Where each element lies, in row-major order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        // The last axis has a loop of its own: this is where large weights are read.
        let window = self.clone();
        let (size, stride) = match (self.shape.last(), self.strides.last()) {
            (Some(&size), Some(&stride)) => (size, stride),
            (None, _) | (_, None) => (1, 0),
        };
        // Of nothing, no place is visited, however large the other axes are.
        let outer = match self.shape.split_last() {
            Some(_) if self.shape.contains(&0) => &[0],
            Some((_, outer)) => outer,
            None => &[],
        };
        places(outer).flat_map(move |place| {
            let start = signed(window.offset_of(&place));
            (0..size)
                .map(move |at| usize::try_from(start + signed(at) * stride).expect("windows lie inside their bytes"))
        })
    }

    /// The same elements with these axes moved to the end, in the order given.
    pub(crate) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        let kept = (0..self.shape.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        self.permuted(&order)
    }

    /// The window of the last `rank` axes at index `index` of the axes before them, counted in row-major order.
    pub(crate) fn nth(&self, rank: usize, index: usize) -> Option<Window> {
        let (outer, shape) = self.shape.split_at(self.shape.len().saturating_sub(rank));
        let (mut place, mut rest) = (vec![0; outer.len()], index);
        for (at, &size) in place.iter_mut().zip(outer).rev() {
            *at = rest.checked_rem(size)?;
            rest /= size;
        }
        let (shape, strides) = (shape.to_vec(), self.strides.split_at(outer.len()).1.to_vec());
        (rest == 0).then(|| Window { shape, strides, offset: signed(self.offset_of(&place)) })
    }

    /// The windows of the last `rank` axes, one for each index of the axes before them, in row-major order.
    pub(crate) fn inner(&self, rank: usize) -> impl Iterator<Item = Window> + use<> {
        let window = self.clone();
        let outer_rank = self.shape.len().saturating_sub(rank);
        let (outer_shape, shape) = self.shape.split_at(outer_rank);
        let (shape, strides) = (shape.to_vec(), self.strides.split_at(outer_rank).1.to_vec());
        places(outer_shape).map(move |place| Window {
            shape: shape.clone(),
            strides: strides.clone(),
            offset: signed(window.offset_of(&place)),
        })
    }
}

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

#[allow(clippy::cast_possible_wrap, reason = "sizes come from i64s, and places are below sizes")]
pub(crate) fn signed(size: usize) -> i64 {
    size as i64
}

/// All coordinates of a shape in row-major order.
pub(crate) fn places(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let first = (!shape.contains(&0)).then(|| vec![0; shape.len()]);
    std::iter::successors(first, move |place| {
        let mut next = place.clone();
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

/// A value: a window on bytes that nobody changes.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) element: Element,
    pub(crate) window: Window,
    pub(crate) bytes: Bytes,
}

impl Held {
    /// Elements that follow each other; there are bytes for all of them.
    pub(crate) fn whole(element: Element, shape: Vec<usize>, bytes: Bytes) -> Result<Self, Fault> {
        let plain = Window::row_major(shape);
        let window = Window::new(plain.shape, plain.strides, 0, bytes.len() / element.bytes())?;
        Ok(Self { element, window, bytes })
    }

    /// To be read.
    pub(crate) fn tensor(&self) -> Tensor<'_> {
        Tensor { element: self.element, window: self.window.clone(), bytes: &self.bytes }
    }

    /// The same elements one after the other: themselves, or a copy.
    pub(crate) fn compact(&self) -> Result<Self, Fault> {
        if self.window.is_row_major() {
            return Ok(self.clone());
        }
        let window = Window::row_major(self.window.shape.clone());
        let mut bytes = zeros(window.count() * self.element.bytes())?;
        copy_elements(self, &mut bytes, &window);
        Ok(Self { element: self.element, window, bytes: Bytes::from(bytes) })
    }
}

/// Copies all elements into a window of the same shape on other bytes.
pub(crate) fn copy_elements(from: &Held, to: &mut [u8], window: &Window) {
    let width = from.element.bytes();
    for (source, target) in from.window.offsets().zip(window.offsets()) {
        let (source, target) = (source * width, target * width);
        let source = from.bytes.get(source..source + width).expect("windows lie inside their bytes");
        let target = to.get_mut(target..target + width).expect("windows lie inside their bytes");
        target.copy_from_slice(source);
    }
}

/// Memory for a result.
pub(crate) fn zeros(length: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Fault::OutOfMemory { bytes: length })?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// A value, ready to be read.
#[derive(Clone, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) element: Element,
    pub(crate) window: Window,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(crate) fn shape(&self) -> &[usize] {
        &self.window.shape
    }

    /// The sizes of the last `N` axes.
    pub(crate) fn last_sizes<const N: usize>(&self) -> Result<[usize; N], Fault> {
        self.shape().last_chunk().copied().ok_or(Fault::Contract("a tensor has the axes of its primitive"))
    }

    /// The element of these coordinates, which must be in range.
    pub(crate) fn at(&self, place: &[usize]) -> Number {
        self.element.load(self.bytes, self.window.offset_of(place))
    }

    /// All elements in row-major order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Number> + use<'a> {
        let (element, bytes) = (self.element, self.bytes);
        self.window.offsets().map(move |place| element.load(bytes, place))
    }

    /// All elements in row-major order, as floats.
    pub(crate) fn floats(&self) -> Vec<f32> {
        self.numbers().map(Number::float).collect()
    }

    /// The tensors of the last `rank` axes, one for each place of the axes before them.
    pub(crate) fn inner(&self, rank: usize) -> impl Iterator<Item = Tensor<'a>> + use<'a> {
        let (element, bytes) = (self.element, self.bytes);
        self.window.inner(rank).map(move |window| Tensor { element, window, bytes })
    }

    /// The tensor of the last `rank` axes at index `index` of the axes before them, counted in row-major order.
    pub(crate) fn nth(&self, rank: usize, index: usize) -> Option<Tensor<'a>> {
        let window = self.window.nth(rank, index)?;
        Some(Self { window, ..*self })
    }

    /// The same elements with these axes moved to the end.
    pub(crate) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        Ok(Self { window: self.window.with_last(axes)?, ..self.clone() })
    }

    /// The lines along an axis, in row-major order of the other axes.
    pub(crate) fn lines(&self, axis: usize) -> Result<impl Iterator<Item = Tensor<'a>> + use<'a>, Fault> {
        Ok(self.with_last(&[axis])?.inner(1))
    }

    /// The rows of a matrix.
    pub(crate) fn rows(&self) -> Vec<Vec<f32>> {
        self.inner(1).map(|row| row.floats()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptero_plan::dim::{Dim, Var};
    use ptero_tensor::DType;

    fn offsets(shape: &[usize], strides: &[i64], offset: i64, elements: usize) -> Vec<usize> {
        Window::new(shape.to_vec(), strides.to_vec(), offset, elements).unwrap().offsets().collect()
    }

    #[test]
    fn an_empty_tensor_has_no_offsets_however_long_its_other_axes() {
        let window = Window { shape: vec![usize::MAX / 2, 0], strides: vec![1, 1], offset: 0 };
        assert_eq!(window.offsets().count(), 0);
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
    fn a_window_that_leaves_its_bytes_is_refused_at_either_end() {
        let fault = |shape: &[usize], strides: &[i64], offset| {
            Window::new(shape.to_vec(), strides.to_vec(), offset, 6).unwrap_err().to_string()
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
    fn axes_move_to_the_end_and_windows_split() {
        let window = Window::row_major(vec![2, 3]);
        assert_eq!(window.with_last(&[0]).unwrap().offsets().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        let rows: Vec<Vec<usize>> = window.inner(1).map(|row| row.offsets().collect()).collect();
        assert_eq!(rows, [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(window.inner(2).count(), 1);
        assert_eq!(window.nth(1, 1).unwrap().offsets().collect::<Vec<_>>(), [3, 4, 5]);
        assert!(window.nth(1, 2).is_none() && Window::row_major(vec![2, 0, 3]).nth(1, 0).is_none());
        assert_eq!(window.inner(0).map(|one| one.offset_of(&[])).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(window.with_last(&[2]).is_err());
    }

    #[test]
    fn slices_stay_on_their_axis_even_where_the_bytes_go_on() {
        let window = Window::row_major(vec![2, 3]);
        let backwards = window.sliced(1, 2, 2, -2).unwrap();
        assert_eq!(backwards.offsets().collect::<Vec<_>>(), [2, 0, 5, 3]);
        assert!(window.sliced(1, 2, 2, 1).is_err());
        assert!(window.sliced(1, 3, 1, 1).is_err());
        assert_eq!(window.sliced(1, 99, 0, 1).unwrap().offsets().count(), 0);
        // A step that is never taken may be anything.
        let one = window.sliced(0, 1, 1, i64::MAX).unwrap();
        assert_eq!(one.sliced(0, 0, 1, i64::MIN).unwrap().offsets().collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn what_repeats_is_not_row_major_and_what_has_one_element_is() {
        let row = Window::row_major(vec![1, 3]);
        assert!(row.is_row_major() && row.permuted(&[1, 0]).unwrap().is_row_major());
        let repeated = row.broadcast(vec![2, 2, 3]).unwrap();
        assert_eq!(repeated.offsets().collect::<Vec<_>>(), [0, 1, 2].repeat(4));
        assert!(!repeated.is_row_major());
        assert!(row.broadcast(vec![1, 2]).is_err() && row.broadcast(vec![3]).is_err());
    }
}
