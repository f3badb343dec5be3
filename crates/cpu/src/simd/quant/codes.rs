//! The codes of quantized weights as integers, in the order of the row; and their scales.
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants or counters of loops of constant length")]

use super::activation::CELL;
use super::decode::{GGUF_BLOCK, code, q4k_codes, q5k_codes, q6k_codes};
use crate::simd::numeric::small_float::{from_e4m3, from_e8m0};

/// Twice the values of floats of four bits.
const E2M1: [i16; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// What codes are unpacked to.
pub(crate) trait Code: Copy {
    /// Converts a code, which is from -128 to 255.
    fn of(code: i16) -> Self;
}

impl Code for i16 {
    #[inline(always)]
    fn of(code: i16) -> Self {
        code
    }
}

/// A byte, which has a sign if codes of the format have one.
impl Code for u8 {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "eight bits hold a code")]
    fn of(code: i16) -> Self {
        code as Self
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "codes have at most eight bits")]
fn eights<const BITS: usize, T: Code>(codes: &[u8], to: &mut [T]) {
    for (codes, to) in codes.as_chunks::<BITS>().0.iter().zip(to.as_chunks_mut::<8>().0) {
        for (at, to) in to.iter_mut().enumerate() {
            *to = T::of(code(codes, at) as i16);
        }
    }
}

/// Codes of four bits.
#[inline(always)]
fn nibbles<T: Code>(codes: &[u8], to: &mut [T]) {
    let (whole, rest) = codes.as_chunks::<32>();
    for (codes, to) in whole.iter().zip(to.as_chunks_mut::<64>().0) {
        for at in 0..32 {
            to[2 * at] = T::of(i16::from(codes[at] & 15));
            to[2 * at + 1] = T::of(i16::from(codes[at] >> 4));
        }
    }
    eights::<4, T>(rest, to.get_mut(64 * whole.len()..).unwrap_or_default());
}

kernel! {
    /// Codes of `bits` bits; their number is a multiple of eight.
    pub(crate) fn affine[T: Code](codes: &[u8], bits: u8, to: &mut [T]) {
        match bits {
            1 => eights::<1, T>(codes, to),
            2 => eights::<2, T>(codes, to),
            3 => eights::<3, T>(codes, to),
            4 => nibbles(codes, to),
            5 => eights::<5, T>(codes, to),
            6 => eights::<6, T>(codes, to),
            7 => eights::<7, T>(codes, to),
            _ => codes.iter().zip(to).for_each(|(code, to)| *to = T::of(i16::from(*code))),
        }
    }

    /// Floats of four bits, doubled.
    pub(crate) fn e2m1[T: Code](codes: &[u8], to: &mut [T]) {
        for (code, to) in codes.iter().zip(to.as_chunks_mut::<2>().0) {
            *to = [T::of(E2M1[usize::from(code & 15)]), T::of(E2M1[usize::from(code >> 4)])];
        }
    }

    /// A block of four bits with minima.
    pub(crate) fn q4k[T: Code](block: &[u8; 144], to: &mut [T; GGUF_BLOCK]) {
        q4k_codes(block, to, |_, code| T::of(code.into()));
    }

    /// A block of five bits with minima.
    pub(crate) fn q5k[T: Code](block: &[u8; 176], to: &mut [T; GGUF_BLOCK]) {
        q5k_codes(block, to, |_, code| T::of(code.into()));
    }

    /// A block of six bits.
    pub(crate) fn q6k[T: Code](block: &[u8; 210], to: &mut [T; GGUF_BLOCK]) {
        q6k_codes(block, to, |_, code| T::of(i16::from(code) - 32));
    }

    /// Scales that are powers of two.
    pub(crate) fn widen_e8m0(codes: &[u8], to: &mut [f32]) {
        codes.iter().zip(to).for_each(|(code, to)| *to = from_e8m0(*code));
    }

    /// Scales that are floats of eight bits.
    pub(crate) fn widen_e4m3(codes: &[u8], to: &mut [f32]) {
        codes.iter().zip(to).for_each(|(code, to)| *to = from_e4m3((*code).into()));
    }

    /// The product of two rows of integers, in cells and chunks: `docs/ARITHMETIC.md`, "QuantMatMul". Groups are of 16, 32 or 64.
    /// Without biases, these are empty.
    pub(crate) fn product(codes: &[i16], scales: &[f32], biases: &[f32], x: ActivationRow<'_>) -> f32 {
        match x.group {
            16 => cells::<16>(codes, scales, biases, x),
            32 => cells::<32>(codes, scales, biases, x),
            _ => cells::<64>(codes, scales, biases, x),
        }
    }
}

/// A quantized row of activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationRow<'a> {
    pub(crate) integers: &'a [i16],
    pub(crate) steps: &'a [f32],
    pub(crate) sums: &'a [i32],
    /// Elements that share a step.
    pub(crate) group: usize,
}

#[inline(always)]
fn cells<const GROUP: usize>(codes: &[i16], scales: &[f32], biases: &[f32], x: ActivationRow<'_>) -> f32 {
    let groups = codes.as_chunks::<GROUP>().0.iter().zip(x.integers.as_chunks::<GROUP>().0);
    let (slots, mut result, mut chunk, mut cell) = (CELL / GROUP, 0.0, 0.0, 0.0_f32);
    for (at, (codes, integers)) in groups.enumerate() {
        let mut sum = 0;
        for (code, integer) in codes.iter().zip(integers) {
            sum += i32::from(*code) * i32::from(*integer);
        }
        let step = x.steps[at];
        cell = (scales[at] * step).mul_add(sum as f32, cell);
        if let Some(bias) = biases.get(at) {
            cell = bias.mul_add(step * x.sums[at] as f32, cell);
        }
        if at % slots == slots - 1 {
            chunk += cell;
            cell = 0.0;
        }
        if at % (4 * slots) == 4 * slots - 1 {
            result += chunk;
            chunk = 0.0;
        }
    }
    // What is left of the last chunk.
    result + (chunk + cell)
}
