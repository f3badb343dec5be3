//! Views with numbers for sizes: windows (where elements lie) and tensors (windows with their bytes).

use super::number::{Element, Number};
use crate::error::Fault;
use ptero_plan::prim::View;

/// Where the elements of a view lie in its buffer; all of them do lie in it.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) shape: Vec<usize>,
    strides: Vec<i64>,
    offset: i64,
}

impl Window {
    /// The view in a call with these host values, on a buffer of so many elements.
    pub(super) fn new(view: &View, values: &[i64], elements: usize) -> Result<Self, Fault> {
        let shape = evaluate_shape(view, values)?;
        let strides: Vec<i64> = view.strides.iter().map(|stride| stride.eval(values)).collect();
        let offset = view.offset.eval(values);
        if strides.len() != shape.len() {
            return Err(Fault::Contract("a view has as many strides as sizes"));
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
            return Err(Fault::OutsideBuffer { first, last, count: elements });
        }
        Ok(Self { shape, strides, offset })
    }

    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the element of these coordinates lies.
    pub(super) fn offset_of(&self, place: &[usize]) -> usize {
        let steps = place.iter().zip(&self.strides).map(|(&at, &stride)| signed(at) * stride);
        usize::try_from(self.offset + steps.sum::<i64>()).expect("windows lie inside their buffers")
    }

    /// Where each element lies, in row-major order.
    pub(super) fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
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
                .map(move |at| usize::try_from(start + signed(at) * stride).expect("windows lie inside their buffers"))
        })
    }

    /// The same elements with these axes moved to the end, in the order given.
    pub(super) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        let kept = (0..self.shape.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        let outside = || Fault::Contract("an axis is one of the view");
        let pick = |axis: &usize| Some((self.shape.get(*axis)?, self.strides.get(*axis)?));
        let picked: Vec<(&usize, &i64)> = order.iter().map(pick).collect::<Option<_>>().ok_or_else(outside)?;
        let (shape, strides) = picked.into_iter().unzip();
        Ok(Self { shape, strides, offset: self.offset })
    }

    /// The windows of the last `rank` axes, one for each place of the axes before them, in row-major order.
    pub(super) fn inner(&self, rank: usize) -> impl Iterator<Item = Window> + use<> {
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

/// The sizes of a view. Their product fits 63 bits.
pub(super) fn evaluate_shape(view: &View, values: &[i64]) -> Result<Vec<usize>, Fault> {
    let size = |value: i64| usize::try_from(value).map_err(|_| Fault::NegativeSize(value));
    let shape: Vec<usize> = view.shape.iter().map(|dim| size(dim.eval(values))).collect::<Result<_, _>>()?;
    let nonzero = shape.iter().filter(|&&size| size > 0);
    let count = nonzero.into_iter().try_fold(1_i64, |count, &size| count.checked_mul(signed(size)));
    count.map(|_| shape).ok_or(Fault::TooLarge { limit: super::memory::LIMIT_BYTES })
}

#[allow(clippy::cast_possible_wrap, reason = "sizes come from i64s, and places are below sizes")]
pub(super) fn signed(size: usize) -> i64 {
    size as i64
}

/// All coordinates of a shape in row-major order.
pub(super) fn places(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
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

/// A view and its bytes, ready to be read.
#[derive(Clone, Debug)]
pub(super) struct Tensor<'a> {
    pub(super) element: Element,
    pub(super) window: Window,
    pub(super) bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(super) fn shape(&self) -> &[usize] {
        &self.window.shape
    }

    /// The sizes of the last `N` axes.
    pub(super) fn last_sizes<const N: usize>(&self) -> Result<[usize; N], Fault> {
        self.shape().last_chunk().copied().ok_or(Fault::Contract("a tensor has the axes of its primitive"))
    }

    /// The element of these coordinates, which must be in range.
    pub(super) fn at(&self, place: &[usize]) -> Number {
        self.element.load(self.bytes, self.window.offset_of(place))
    }

    /// All elements in row-major order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Number> + use<'a> {
        let (element, bytes) = (self.element, self.bytes);
        self.window.offsets().map(move |place| element.load(bytes, place))
    }

    /// All elements in row-major order, as floats.
    pub(super) fn floats(&self) -> Vec<f32> {
        self.numbers().map(Number::float).collect()
    }

    /// The tensors of the last `rank` axes, one for each place of the axes before them.
    pub(super) fn inner(&self, rank: usize) -> impl Iterator<Item = Tensor<'a>> + use<'a> {
        let (element, bytes) = (self.element, self.bytes);
        self.window.inner(rank).map(move |window| Tensor { element, window, bytes })
    }

    /// The same elements with these axes moved to the end.
    pub(super) fn with_last(&self, axes: &[usize]) -> Result<Self, Fault> {
        Ok(Self { window: self.window.with_last(axes)?, ..self.clone() })
    }

    /// The lines along an axis, in row-major order of the other axes.
    pub(super) fn lines(&self, axis: usize) -> Result<impl Iterator<Item = Tensor<'a>> + use<'a>, Fault> {
        Ok(self.with_last(&[axis])?.inner(1))
    }

    /// The rows of a matrix.
    pub(super) fn rows(&self) -> Vec<Vec<f32>> {
        self.inner(1).map(|row| row.floats()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_tensor_has_no_places_however_long_its_other_axes() {
        let window = Window { shape: vec![usize::MAX / 2, 0], strides: vec![1, 1], offset: 0 };
        assert_eq!(window.offsets().count(), 0);
    }
    use ptero_plan::dim::{Dim, Var};
    use ptero_plan::prim::Buf;
    use ptero_tensor::DType;

    fn view(shape: &[i64], strides: &[i64], offset: i64) -> View {
        let dims = |sizes: &[i64]| sizes.iter().map(|&size| Dim::fixed(size)).collect();
        View { buf: Buf(0), dtype: DType::F32, shape: dims(shape), strides: dims(strides), offset: offset.into() }
    }

    fn offsets(shape: &[i64], strides: &[i64], offset: i64, elements: usize) -> Vec<usize> {
        Window::new(&view(shape, strides, offset), &[], elements).unwrap().offsets().collect()
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
    fn a_view_that_leaves_its_buffer_is_refused_at_either_end() {
        let fault = |shape: &[i64], strides: &[i64], offset| {
            Window::new(&view(shape, strides, offset), &[], 6).unwrap_err().to_string()
        };
        assert_eq!(fault(&[7], &[1], 0), "a view from element 0 to 6 of a buffer of 6 elements");
        assert_eq!(fault(&[2], &[-1], 0), "a view from element -1 to 0 of a buffer of 6 elements");
        assert_eq!(fault(&[1], &[1], 6), "a view from element 6 to 6 of a buffer of 6 elements");
        let far = "a view from element 0 to 18446744073709551614 of a buffer of 6 elements";
        assert_eq!(fault(&[2, 2], &[i64::MAX, i64::MAX], 0), far);
        assert_eq!(fault(&[-1], &[1], 0), "size -1 is negative");
        assert_eq!(fault(&[1 << 32, 1 << 32], &[0, 0], 0), "over 17179869184 bytes in one buffer");
    }

    #[test]
    fn sizes_come_from_the_values_of_the_call() {
        let mut view = view(&[0], &[1], 0);
        view.shape = vec![Dim::var(Var(1))];
        assert_eq!(Window::new(&view, &[9, 4], 4).unwrap().shape, [4]);
    }

    #[test]
    fn axes_move_to_the_end_and_windows_split() {
        let window = Window::new(&view(&[2, 3], &[3, 1], 0), &[], 6).unwrap();
        assert_eq!(window.with_last(&[0]).unwrap().offsets().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        let rows: Vec<Vec<usize>> = window.inner(1).map(|row| row.offsets().collect()).collect();
        assert_eq!(rows, [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(window.inner(2).count(), 1);
        assert_eq!(window.inner(0).map(|one| one.offset_of(&[])).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(window.with_last(&[2]).is_err());
    }
}
