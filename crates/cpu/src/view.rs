//! Views of a bound plan together with their bytes.
#![allow(clippy::indexing_slicing, reason = "`memory` checks that all elements of a view lie inside its bytes")]

use crate::element;
use crate::simd::Isa;
use ptero_backend::Fault;
pub(crate) use ptero_plan::bound::{BoundView, Line, Sizes, Strides};
use ptero_tensor::DType;
use std::ops::Range;

/// Fails unless a view has the shape that a step needs.
pub(crate) fn ensure_shape(view: &BoundView, shape: &[usize]) -> Result<(), Fault> {
    let fits = view.shape.as_slice() == shape;
    fits.then_some(()).ok_or(Fault::Contract("the shapes of a step's tensors fit each other"))
}

/// A view and its bytes, to be read.
#[derive(Clone, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) isa: Isa,
    pub(crate) dtype: DType,
    pub(crate) view: BoundView,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(crate) fn is_float(&self) -> bool {
        self.dtype.is_float()
    }

    /// Returns `true` if 16 bits would not hold its elements.
    pub(crate) fn is_single(&self) -> bool {
        !matches!(self.dtype, DType::F16 | DType::Bf16)
    }

    /// Reads `to.len()` elements, `stride` apart, starting with element `start` of the buffer.
    pub(crate) fn read<N: element::Number>(&self, start: usize, stride: isize, to: &mut [N]) {
        element::read(self.isa, self.dtype, self.bytes, start, stride, to);
    }

    /// The element at an index in row-major order.
    pub(crate) fn number<N: element::Number>(&self, index: usize) -> N {
        let mut number = N::default();
        self.read(self.view.offset_of(index), 0, std::slice::from_mut(&mut number));
        number
    }

    /// Appends all elements in row-major order.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let (size, count) = (self.dtype.size(), self.view.count());
        let last = self.view.shape.len().saturating_sub(1);
        let run = if self.view.stride(last) == 1 { self.view.size(last) } else { 1 };
        bytes.reserve(count * size);
        for number in (0..count).step_by(run.max(1)) {
            let start = self.view.offset_of(number);
            bytes.extend_from_slice(&self.bytes[start * size..(start + run) * size]);
        }
    }

    /// Contiguous elements in place, if they are stored as `f32`.
    pub(crate) fn floats(&self, start: usize, length: usize) -> Option<&'a [f32]> {
        (self.dtype == DType::F32).then(|| &element::elements(self.bytes)[start..start + length])
    }

    /// A line as floats: in place if possible, else copied.
    pub(crate) fn line(&self, start: usize, line: Line, copy: &'a mut [f32]) -> &'a [f32] {
        if line.stride == 1
            && let Some(floats) = self.floats(start, line.length)
        {
            return floats;
        }
        self.read(start, line.stride, copy);
        copy
    }

    /// The lines along an axis.
    pub(crate) fn lines(self, axis: usize) -> TensorLines<'a> {
        let (starts, line) = self.view.lines(axis);
        TensorLines { tensor: self, starts, line }
    }
}

/// A tensor as lines along an axis, numbered in row-major order of the other axes.
pub(crate) struct TensorLines<'a> {
    pub(crate) tensor: Tensor<'a>,
    pub(crate) starts: BoundView,
    pub(crate) line: Line,
}

impl<'a> TensorLines<'a> {
    /// Reads `to.len()` elements of a line, starting with element `first` of it.
    pub(crate) fn read<N: element::Number>(&self, number: usize, first: usize, to: &mut [N]) {
        let start = self.starts.offset_of(number).wrapping_add_signed(first.cast_signed() * self.line.stride);
        self.tensor.read(start, self.line.stride, to);
    }

    /// A line as floats: in place if possible, else copied.
    pub(crate) fn floats(&self, number: usize, copy: &'a mut [f32]) -> &'a [f32] {
        self.tensor.line(self.starts.offset_of(number), self.line, copy)
    }
}

/// A view and its bytes, to be written.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) isa: Isa,
    pub(crate) dtype: DType,
    pub(crate) view: BoundView,
    pub(crate) bytes: &'a mut [u8],
}

impl Target<'_> {
    /// Elements of a contiguous target, by index in row-major order.
    pub(crate) fn slice<T: element::Element>(&mut self, range: Range<usize>) -> &mut [T] {
        let start = self.view.offset;
        &mut element::elements_mut(self.bytes)[start + range.start..start + range.end]
    }

    /// Another view of the same buffer.
    pub(crate) fn with(&mut self, view: BoundView) -> Target<'_> {
        Target { isa: self.isa, dtype: self.dtype, view, bytes: self.bytes }
    }
}
