//! Views with their numbers and bytes.

use crate::element;
use crate::simd::Isa;
pub(crate) use ptero_plan::bound::{Line, Sizes, Strides, Window};
use ptero_tensor::DType;

/// A view and its bytes, to be read.
#[derive(Clone, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) dtype: DType,
    pub(crate) window: Window,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(crate) fn is_float(&self) -> bool {
        element::is_float(self.dtype)
    }

    /// Elements from `start` on.
    pub(crate) fn read<N: element::Number>(&self, isa: Isa, start: usize, stride: isize, to: &mut [N]) {
        element::read(isa, self.dtype, self.bytes, start, stride, to);
    }

    /// The element of that number in row-major order, as an integer.
    pub(crate) fn int(&self, isa: Isa, number: usize) -> i64 {
        let mut one = [0];
        self.read(isa, self.window.offset_of(number), 0, &mut one);
        one[0]
    }

    /// Appends all elements in row-major order.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let size = element::size_of(self.dtype);
        let (outer, line) = self.window.lines(self.window.shape.len().saturating_sub(1));
        bytes.reserve(self.window.count() * size);
        // An empty tensor has no lines to visit.
        if self.window.count() == 0 {
            return;
        }
        for number in 0..outer.count() {
            let start = outer.offset_of(number);
            if line.stride == 1 {
                bytes.extend_from_slice(self.bytes.get(start * size..(start + line.length) * size).unwrap_or_default());
                continue;
            }
            for at in 0..line.length {
                let at = start.wrapping_add_signed(at.cast_signed() * line.stride);
                bytes.extend_from_slice(self.bytes.get(at * size..(at + 1) * size).unwrap_or_default());
            }
        }
    }

    /// Elements that lie side by side as floats, if they are stored so.
    pub(crate) fn floats(&self, start: usize, length: usize) -> Option<&'a [f32]> {
        if self.dtype != DType::F32 {
            return None;
        }
        element::elements(self.bytes).get(start..start + length)
    }

    /// A line as floats: where it lies, or copied.
    pub(crate) fn line<'b>(&self, isa: Isa, start: usize, line: Line, copy: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        if line.stride == 1
            && let Some(floats) = self.floats(start, line.length)
        {
            return floats;
        }
        self.read(isa, start, line.stride, copy);
        copy
    }
}

/// A view and its bytes, to be written.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) dtype: DType,
    pub(crate) window: Window,
    pub(crate) bytes: &'a mut [u8],
}
