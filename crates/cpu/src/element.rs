//! Converts runs of elements of any type to `f32` or `i64`, and back.
#![allow(
    clippy::indexing_slicing,
    reason = "callers stay inside their view, and `memory` checks that views lie inside their bytes"
)]

use crate::pool::{Bank, Scratch};
use crate::simd::numeric::element::Float;
use crate::simd::numeric::{convert, int};
use crate::simd::{Isa, stream};
use bytemuck::Pod;
use half::{bf16, f16};
use ptero_tensor::DType;
use std::ops::Range;

/// A type that elements are stored in. A bool is stored as `u8`; [`read`] and [`write`] convert it.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "casts truncate and round")]
pub(crate) trait Element: Pod + Send + Sync {
    fn to_float(self) -> f32;
    fn from_float(x: f32) -> Self;
    #[inline(always)]
    fn to_int(self) -> i64 {
        self.to_float() as i64
    }
    #[inline(always)]
    fn from_int(x: i64) -> Self {
        Self::from_float(x as f32)
    }
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
    ($($type:ty),*) => { $(
        impl Element for $type {
            #[inline(always)]
            fn to_float(self) -> f32 {
                self.float()
            }
            #[inline(always)]
            fn from_float(x: f32) -> Self {
                Self::rounded(x)
            }
        }
    )* };
}

float_elements!(f32, f16, bf16);

/// Runs `$body` with `$type` as the type that elements of `$dtype` are stored in. `check_graph` has refused the types that no
/// kernel computes with.
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

/// Runs `$body` with `$type` as the float type of `$dtype`, or `$other` if it is none.
macro_rules! with_float {
    ($dtype:expr, $type:ident => $body:expr, else $other:expr) => {{
        macro_rules! arm {
            ($float:ty) => {{
                type $type = $float;
                $body
            }};
        }
        match $dtype {
            ptero_tensor::DType::F32 => arm!(f32),
            ptero_tensor::DType::F16 => arm!(half::f16),
            ptero_tensor::DType::Bf16 => arm!(half::bf16),
            _ => $other,
        }
    }};
}
pub(crate) use with_float;

/// The two types that kernels compute in: `f32` and `i64`.
pub(crate) trait Number: Copy + Default + PartialEq + From<bool> + Send + Sync + Pod {
    /// The element type with the same representation.
    const DTYPE: DType;
    fn load<E: Element>(element: E) -> Self;
    fn store<E: Element>(self) -> E;
    /// Rounds or wraps numbers to an element type.
    fn fit(isa: Isa, dtype: DType, numbers: &mut [Self]);
    /// The numbers of this type in a thread's scratch memory.
    fn bank(scratch: &mut Scratch) -> &mut Bank<Self>;

    /// Converts elements of another type with vector instructions; returns `false` if there are none for it.
    fn widen(_isa: Isa, _dtype: DType, _bytes: &[u8], _to: &mut [Self]) -> bool {
        false
    }

    /// Converts to elements of another type with vector instructions; returns `false` if there are none for it.
    fn narrow(_isa: Isa, _dtype: DType, _from: &[Self], _bytes: &mut [u8]) -> bool {
        false
    }

    /// Borrows `length` numbers of a thread's scratch memory.
    fn piece(scratch: &mut Scratch, length: usize) -> &mut [Self] {
        let [piece] = Self::bank(scratch).pieces([length]);
        piece
    }
}

impl Number for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn load<E: Element>(element: E) -> Self {
        element.to_float()
    }

    #[inline(always)]
    fn store<E: Element>(self) -> E {
        E::from_float(self)
    }

    fn fit(isa: Isa, dtype: DType, numbers: &mut [Self]) {
        match dtype {
            DType::F16 => convert::round_f16(isa, numbers),
            DType::Bf16 => convert::round_bf16(isa, numbers),
            _ => {}
        }
    }

    fn bank(scratch: &mut Scratch) -> &mut Bank<Self> {
        &mut scratch.floats
    }

    fn widen(isa: Isa, dtype: DType, bytes: &[u8], to: &mut [Self]) -> bool {
        with_float!(dtype, T => convert::widen::<T>(isa, elements(bytes), to), else return false);
        true
    }

    fn narrow(isa: Isa, dtype: DType, from: &[Self], bytes: &mut [u8]) -> bool {
        with_float!(dtype, T => convert::narrow::<T>(isa, from, elements_mut(bytes)), else return false);
        true
    }
}

impl Number for i64 {
    const DTYPE: DType = DType::I64;

    #[inline(always)]
    fn load<E: Element>(element: E) -> Self {
        element.to_int()
    }

    #[inline(always)]
    fn store<E: Element>(self) -> E {
        E::from_int(self)
    }

    fn fit(isa: Isa, dtype: DType, numbers: &mut [Self]) {
        int::wrap(isa, dtype, numbers);
    }

    fn bank(scratch: &mut Scratch) -> &mut Bank<Self> {
        &mut scratch.ints
    }
}

/// Casts bytes to elements. Memory of a plan is aligned for its element type and holds whole elements (see `memory`); only memory
/// that is empty may have any address.
pub(crate) fn elements<E: Element>(bytes: &[u8]) -> &[E] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// Same as [`elements`], mutable.
pub(crate) fn elements_mut<E: Element>(bytes: &mut [u8]) -> &mut [E] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

/// Reads `to.len()` elements, `stride` apart, starting with element `start`.
pub(crate) fn read<N: Number>(isa: Isa, dtype: DType, bytes: &[u8], start: usize, stride: isize, to: &mut [N]) {
    if to.is_empty() {
        return;
    }
    if stride == 1 {
        let run = &bytes[byte_range(dtype, start, to.len())];
        if dtype == N::DTYPE {
            return bytemuck::cast_slice_mut(to).copy_from_slice(run);
        }
        if N::widen(isa, dtype, run, to) {
            return;
        }
    }
    with_element!(dtype, E => read_elements::<E, N>(elements(bytes), start, stride, to));
    if dtype == DType::Bool {
        to.iter_mut().for_each(|number| *number = N::from(*number != N::default()));
    }
}

fn byte_range(dtype: DType, start: usize, count: usize) -> Range<usize> {
    start * dtype.size()..(start + count) * dtype.size()
}

fn read_elements<E: Element, N: Number>(elements: &[E], start: usize, stride: isize, to: &mut [N]) {
    match stride {
        0 => to.fill(N::load(elements[start])),
        1 => to.iter_mut().zip(&elements[start..]).for_each(|(to, from)| *to = N::load(*from)),
        2.. => {
            let steps = elements[start..].iter().step_by(stride.unsigned_abs());
            to.iter_mut().zip(steps).for_each(|(to, from)| *to = N::load(*from));
        }
        ..0 => {
            let backwards = elements[..=start].iter().rev().step_by(stride.unsigned_abs());
            to.iter_mut().zip(backwards).for_each(|(to, from)| *to = N::load(*from));
        }
    }
}

/// Writes `from.len()` elements, `stride` apart, starting with element `start`.
pub(crate) fn write<N: Number>(isa: Isa, dtype: DType, bytes: &mut [u8], start: usize, stride: isize, from: &[N]) {
    if from.is_empty() {
        return;
    }
    if stride == 1 {
        let run = &mut bytes[byte_range(dtype, start, from.len())];
        if dtype == N::DTYPE {
            return run.copy_from_slice(bytemuck::cast_slice(from));
        }
        if N::narrow(isa, dtype, from, run) {
            return;
        }
    }
    if dtype == DType::Bool {
        write_elements(elements_mut::<u8>(bytes), start, stride, from, |number| u8::from(number != N::default()));
    } else {
        with_element!(dtype, E => write_elements(elements_mut::<E>(bytes), start, stride, from, N::store));
    }
}

/// Writes contiguous elements past the caches, where that is possible. The caller calls [`stream::finish`] when done.
pub(crate) fn write_past_caches<N: Number>(isa: Isa, dtype: DType, bytes: &mut [u8], start: usize, from: &[N]) {
    if dtype == DType::F32 && N::DTYPE == dtype {
        let run = &mut bytes[byte_range(dtype, start, from.len())];
        stream::copy(bytemuck::cast_slice(from), elements_mut(run));
    } else {
        write(isa, dtype, bytes, start, 1, from);
    }
}

fn write_elements<E, N: Copy>(elements: &mut [E], start: usize, stride: isize, from: &[N], store: impl Fn(N) -> E) {
    let step = stride.unsigned_abs();
    match stride {
        // A view that is written to shows no element twice: there is only one.
        0 => elements[start..=start].iter_mut().zip(from).for_each(|(to, from)| *to = store(*from)),
        1.. => elements[start..].iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = store(*from)),
        ..0 => elements[..=start].iter_mut().rev().step_by(step).zip(from).for_each(|(to, from)| *to = store(*from)),
    }
}

/// An integer with the order of the floats; both zeros are equal.
pub(crate) fn ordered(x: f32) -> i64 {
    let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
    if x.is_sign_negative() { -magnitude } else { magnitude }
}

/// The inverse of [`ordered`].
#[allow(clippy::cast_possible_truncation, reason = "the bits of a float, without its sign")]
pub(crate) fn from_ordered(number: i64) -> f32 {
    let magnitude = f32::from_bits(number.unsigned_abs() as u32);
    if number < 0 { -magnitude } else { magnitude }
}
