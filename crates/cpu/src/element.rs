//! Elements as numbers: runs of elements of any type become runs of `f32` or `i64`, and back.

use crate::pool::Scratch;
use crate::simd::numeric::convert;
use crate::simd::{Isa, stream};
use bytemuck::Pod;
use half::{bf16, f16};
use ptero_tensor::DType;

/// A type that elements are stored in. A bool is stored as `u8`; [`read`] and [`write`] see to that.
pub(crate) trait Element: Pod + Send + Sync {
    fn to_float(self) -> f32;
    fn from_float(x: f32) -> Self;
    fn to_int(self) -> i64;
    fn from_int(x: i64) -> Self;
}

macro_rules! int_elements {
    ($($type:ty),*) => { $(
        #[allow(
            clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless,
            clippy::unnecessary_cast, clippy::cast_precision_loss, reason = "casts truncate and wrap, as a cast of elements does"
        )]
        impl Element for $type {
            #[inline(always)]
            fn to_float(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn from_float(x: f32) -> Self {
                x as i64 as Self
            }
            #[inline(always)]
            fn to_int(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn from_int(x: i64) -> Self {
                x as Self
            }
        }
    )* };
}

int_elements!(u8, i8, u16, i16, u32, i32, i64);

macro_rules! float_elements {
    ($($type:ty, $to:path, $from:path;)*) => { $(
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "casts truncate and round")]
        impl Element for $type {
            #[inline(always)]
            fn to_float(self) -> f32 {
                $to(self)
            }
            #[inline(always)]
            fn from_float(x: f32) -> Self {
                $from(x)
            }
            #[inline(always)]
            fn to_int(self) -> i64 {
                $to(self) as i64
            }
            #[inline(always)]
            fn from_int(x: i64) -> Self {
                $from(x as f32)
            }
        }
    )* };
}

float_elements! {
    f32, std::convert::identity, std::convert::identity;
    f16, convert::from_f16, convert::to_f16;
    bf16, convert::from_bf16, convert::to_bf16;
}

/// Runs `$body` with `$type` as the type that elements are stored in. Types that are not computed with were refused when the
/// plan was checked.
macro_rules! with_element {
    ($dtype:expr, $type:ident => $body:expr) => {{
        macro_rules! arm {
            ($element:ty) => {{
                type $type = $element;
                $body
            }};
        }
        match $dtype {
            ptero_tensor::DType::U8 | ptero_tensor::DType::Bool => arm!(u8),
            ptero_tensor::DType::I8 => arm!(i8),
            ptero_tensor::DType::U16 => arm!(u16),
            ptero_tensor::DType::I16 => arm!(i16),
            ptero_tensor::DType::U32 => arm!(u32),
            ptero_tensor::DType::I32 => arm!(i32),
            ptero_tensor::DType::F16 => arm!(half::f16),
            ptero_tensor::DType::Bf16 => arm!(half::bf16),
            ptero_tensor::DType::F32 => arm!(f32),
            _ => arm!(i64),
        }
    }};
}
pub(crate) use with_element;

/// Whether elements of a type are computed with as floats.
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// What is computed in: `f32` or `i64`.
pub(crate) trait Number: Copy + Default + Send + Sync + Pod {
    /// The element type that is stored just so.
    const IS: DType;
    fn load<E: Element>(element: E) -> Self;
    fn store<E: Element>(self) -> E;
    /// One or zero.
    fn truth(is_true: bool) -> Self;
    fn is_true(self) -> bool;
    /// Converts a whole run of halves or floats at once, if that is what this number is made of.
    fn read_fast(isa: Isa, dtype: DType, bytes: &[u8], to: &mut [Self]) -> bool;
    fn write_fast(isa: Isa, dtype: DType, from: &[Self], bytes: &mut [u8]) -> bool;
    /// The line of a thread's scratch memory.
    fn line(scratch: &mut Scratch) -> &mut Vec<Self>;
    /// So much of a thread's scratch memory, beside the line.
    fn piece(scratch: &mut Scratch, length: usize) -> &mut [Self];
}

impl Number for f32 {
    const IS: DType = DType::F32;

    #[inline(always)]
    fn load<E: Element>(element: E) -> Self {
        element.to_float()
    }

    #[inline(always)]
    fn store<E: Element>(self) -> E {
        E::from_float(self)
    }

    fn truth(is_true: bool) -> Self {
        f32::from(u8::from(is_true))
    }

    fn is_true(self) -> bool {
        self != 0.0
    }

    fn read_fast(isa: Isa, dtype: DType, bytes: &[u8], to: &mut [Self]) -> bool {
        match dtype {
            DType::F32 => to.copy_from_slice(elements(bytes)),
            DType::F16 => convert::widen::<f16>(isa, elements(bytes), to),
            DType::Bf16 => convert::widen::<bf16>(isa, elements(bytes), to),
            _ => return false,
        }
        true
    }

    fn write_fast(isa: Isa, dtype: DType, from: &[Self], bytes: &mut [u8]) -> bool {
        match dtype {
            DType::F32 => elements_mut(bytes).copy_from_slice(from),
            DType::F16 => convert::narrow::<f16>(isa, from, elements_mut(bytes)),
            DType::Bf16 => convert::narrow::<bf16>(isa, from, elements_mut(bytes)),
            _ => return false,
        }
        true
    }

    fn line(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.float_line
    }

    fn piece(scratch: &mut Scratch, length: usize) -> &mut [Self] {
        let [piece] = scratch.floats([length]);
        piece
    }
}

impl Number for i64 {
    const IS: DType = DType::I64;

    #[inline(always)]
    fn load<E: Element>(element: E) -> Self {
        element.to_int()
    }

    #[inline(always)]
    fn store<E: Element>(self) -> E {
        E::from_int(self)
    }

    fn truth(is_true: bool) -> Self {
        is_true.into()
    }

    fn is_true(self) -> bool {
        self != 0
    }

    fn read_fast(_: Isa, dtype: DType, bytes: &[u8], to: &mut [Self]) -> bool {
        if dtype == DType::I64 {
            to.copy_from_slice(elements(bytes));
        }
        dtype == DType::I64
    }

    fn write_fast(_: Isa, dtype: DType, from: &[Self], bytes: &mut [u8]) -> bool {
        if dtype == DType::I64 {
            elements_mut(bytes).copy_from_slice(from);
        }
        dtype == DType::I64
    }

    fn line(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.int_line
    }

    fn piece(scratch: &mut Scratch, length: usize) -> &mut [Self] {
        let [piece] = scratch.ints([length]);
        piece
    }
}

/// Bytes as elements. All memory of a plan is aligned for every element (see `memory`); what is not shows no elements.
pub(crate) fn elements<E: Element>(bytes: &[u8]) -> &[E] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}

/// Likewise, to be written.
pub(crate) fn elements_mut<E: Element>(bytes: &mut [u8]) -> &mut [E] {
    bytemuck::try_cast_slice_mut(bytes).unwrap_or_default()
}

/// The bytes per element.
pub(crate) fn size_of(dtype: DType) -> usize {
    with_element!(dtype, E => std::mem::size_of::<E>())
}

/// Reads a run of elements, `stride` apart, from the element `start` on.
pub(crate) fn read<N: Number>(isa: Isa, dtype: DType, bytes: &[u8], start: usize, stride: isize, to: &mut [N]) {
    if stride == 1 {
        let size = size_of(dtype);
        let run = bytes.get(start * size..(start + to.len()) * size).unwrap_or_default();
        if run.len() == to.len() * size && N::read_fast(isa, dtype, run, to) {
            return;
        }
    }
    with_element!(dtype, E => read_elements::<E, N>(elements(bytes), start, stride, to));
    if dtype == DType::Bool {
        to.iter_mut().for_each(|number| *number = N::truth(number.is_true()));
    }
}

fn read_elements<E: Element, N: Number>(elements: &[E], start: usize, stride: isize, to: &mut [N]) {
    let Some(tail) = elements.get(start..) else { return };
    match stride {
        0 => to.fill(tail.first().map_or(N::default(), |element| N::load(*element))),
        1 => to.iter_mut().zip(tail).for_each(|(to, from)| *to = N::load(*from)),
        2.. => {
            let steps = tail.iter().step_by(stride.unsigned_abs());
            to.iter_mut().zip(steps).for_each(|(to, from)| *to = N::load(*from));
        }
        ..0 => {
            let head = elements.get(..=start).unwrap_or_default();
            let backwards = head.iter().rev().step_by(stride.unsigned_abs());
            to.iter_mut().zip(backwards).for_each(|(to, from)| *to = N::load(*from));
        }
    }
}

/// Writes a run of elements, `stride` apart, from the element `start` on.
pub(crate) fn write<N: Number>(isa: Isa, dtype: DType, bytes: &mut [u8], start: usize, stride: isize, from: &[N]) {
    if stride == 1 {
        let size = size_of(dtype);
        let run = bytes.get_mut(start * size..(start + from.len()) * size).unwrap_or_default();
        if run.len() == from.len() * size && N::write_fast(isa, dtype, from, run) {
            return;
        }
    }
    if dtype == DType::Bool {
        place(elements_mut::<u8>(bytes), start, stride, from, |number| u8::from(number.is_true()));
    } else {
        with_element!(dtype, E => place(elements_mut::<E>(bytes), start, stride, from, N::store));
    }
}

/// Writes a run of elements that lie side by side past the caches, where that is possible. Whoever does so calls
/// [`stream::finish`] when done.
pub(crate) fn write_past_caches<N: Number>(isa: Isa, dtype: DType, bytes: &mut [u8], start: usize, from: &[N]) {
    let floats = if dtype == DType::F32 && N::IS == DType::F32 { bytemuck::try_cast_slice(from).ok() } else { None };
    let run = start * size_of(dtype)..(start + from.len()) * size_of(dtype);
    match (floats, bytes.get_mut(run)) {
        (Some(floats), Some(run)) => stream::copy(floats, elements_mut(run)),
        _ => write(isa, dtype, bytes, start, 1, from),
    }
}

fn place<E, N: Copy>(elements: &mut [E], start: usize, stride: isize, from: &[N], store: impl Fn(N) -> E) {
    let step = stride.unsigned_abs();
    match stride {
        // A view that is written to shows no element twice, so there is one.
        0 => elements.iter_mut().skip(start).zip(from).take(1).for_each(|(to, from)| *to = store(*from)),
        1.. => {
            let tail = elements.get_mut(start..).unwrap_or_default();
            tail.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = store(*from));
        }
        ..0 => {
            let head = elements.get_mut(..=start).unwrap_or_default();
            head.iter_mut().rev().step_by(step).zip(from).for_each(|(to, from)| *to = store(*from));
        }
    }
}
