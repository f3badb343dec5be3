//! Views with numbers for sizes.

use crate::element;
use crate::simd::Isa;
use ptero_backend::Fault;
use ptero_plan::prim::View;
use ptero_tensor::DType;
use smallvec::SmallVec;

/// Sizes or coordinates. More axes than are kept here cost an allocation per step, and nothing else.
pub(crate) type Sizes = SmallVec<[usize; 6]>;
/// Strides.
pub(crate) type Strides = SmallVec<[isize; 6]>;

/// The most bytes that sizes may stand for.
const LIMIT_BYTES: u64 = 16 << 30;

/// Where the elements of a view lie in its buffer; all of them do lie in it.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) shape: Sizes,
    pub(crate) strides: Strides,
    pub(crate) offset: usize,
}

impl Window {
    /// The view in a call with these host values, on a buffer of so many elements.
    pub(crate) fn new(view: &View, values: &[i64], elements: usize) -> Result<Self, Fault> {
        let mut shape = Sizes::new();
        let mut count = 1_usize;
        for dim in &view.shape {
            let size = dim.eval(values);
            let size = usize::try_from(size).map_err(|_| Fault::NegativeSize(size))?;
            count = count.checked_mul(size.max(1)).filter(|&count| isize::try_from(count).is_ok()).ok_or(TOO_LARGE)?;
            shape.push(size);
        }
        if shape.contains(&0) {
            return Ok(Self { strides: Strides::from_elem(0, shape.len()), shape, offset: 0 });
        }
        let offset = view.offset.eval(values);
        let (mut first, mut last) = (i128::from(offset), i128::from(offset));
        let mut strides = Strides::new();
        for (&size, dim) in shape.iter().zip(&view.strides) {
            let stride = dim.eval(values);
            let reach = (size - 1) as i128 * i128::from(stride);
            first += reach.min(0);
            last += reach.max(0);
            // Along an axis of one element no step is ever made.
            strides.push(if size == 1 { 0 } else { isize::try_from(stride).map_err(|_| TOO_LARGE)? });
        }
        if first < 0 || last >= elements as i128 {
            return Err(Fault::OutsideBuffer { first, last, count: elements });
        }
        // `first` is not negative, and `offset` lies between `first` and `last`.
        Ok(Self { shape, strides, offset: usize::try_from(offset).map_err(|_| TOO_LARGE)? })
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of an axis; one that does not exist has one element.
    pub(crate) fn size(&self, axis: usize) -> usize {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    pub(crate) fn stride(&self, axis: usize) -> isize {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// Whether elements follow each other in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut wanted = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == wanted;
            wanted *= size.cast_signed();
            fits
        })
    }

    /// Where the element of that number lies, counted in row-major order.
    pub(crate) fn offset_of(&self, number: usize) -> usize {
        let mut rest = number;
        let mut offset = self.offset.cast_signed();
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            offset += (rest % size).cast_signed() * stride;
            rest /= size;
        }
        offset.cast_unsigned()
    }

    /// Without this axis: the window of the lines along it. An axis that does not exist is a line of one element.
    pub(crate) fn lines(&self, axis: usize) -> (Self, Line) {
        let line = Line { length: self.size(axis), stride: self.stride(axis) };
        let mut outer = self.clone();
        if axis < outer.shape.len() {
            outer.shape.remove(axis);
            outer.strides.remove(axis);
        }
        (outer, line)
    }

    /// The window of the last `rank` axes at the place of that number of the axes before them.
    pub(crate) fn inner(&self, rank: usize, number: usize) -> Self {
        let split = self.shape.len().saturating_sub(rank);
        let (outer_shape, shape) = self.shape.split_at(split);
        let (outer_strides, strides) = self.strides.split_at(split);
        let outer = Self { shape: outer_shape.into(), strides: outer_strides.into(), offset: self.offset };
        Self { shape: shape.into(), strides: strides.into(), offset: outer.offset_of(number) }
    }

    /// How many windows `inner` has.
    pub(crate) fn outer_count(&self, rank: usize) -> usize {
        self.shape.iter().take(self.shape.len().saturating_sub(rank)).product()
    }
}

const TOO_LARGE: Fault = Fault::TooLarge { limit: LIMIT_BYTES };

/// Elements at equal distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) length: usize,
    pub(crate) stride: isize,
}

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
        // Of nothing, no line is visited, however many there are.
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
