//! Codes of eight rows of weights, unpacked into the panels of `panel`, where codes of 2, 4 or 8 bits fill words of 32 bits.
//!
//! Words of the rows are transposed as they are, and unpacked afterwards: a shift and a mask give, for all rows at once, a
//! code from the lower half of each word and one from the upper half. These are the pairs of a panel, so the left operand has its
//! integers in the same pairs: [`Unpacker::pairs`].
#![allow(unsafe_code, reason = "loads and stores of registers, and calls into versions for one instruction set")]
#![allow(clippy::indexing_slicing, reason = "of arrays by constants, and of slices whose lengths are checked")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::factors::ShortFactors;
use crate::quant::{Packing, Weights};
use crate::simd::{Isa, Level};

/// Rows that are unpacked at once.
pub(crate) const EIGHT: usize = 8;
/// Bytes of a row that are unpacked at once.
const BYTES: usize = 16;

/// Unpacks weights; having one is the proof that the machine has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpacker<'a> {
    bits: usize,
    pub(crate) scales: ShortFactors<'a>,
    pub(crate) biases: Option<ShortFactors<'a>>,
}

impl<'a> Unpacker<'a> {
    /// Returns `None` for weights or machines that it does not support. Activations have groups of `group`.
    pub(crate) fn of(isa: Isa, weights: &Weights<'a>, group: usize) -> Option<Self> {
        let Packing::Affine { bits, .. } = weights.packing else { return None };
        let (scales, biases) = ShortFactors::of(weights, group)?;
        let is_supported = has_instructions(isa)
            && matches!(bits, 2 | 4 | 8)
            && weights.row_bytes().is_multiple_of(BYTES)
            && group.is_multiple_of(8 * BYTES / usize::from(bits) / 4);
        is_supported.then_some(Self { bits: bits.into(), scales, biases })
    }

    /// Writes integers in the pairs of unpacked codes.
    pub(crate) fn pairs(&self, integers: &[i16], to: &mut [i16]) {
        match self.bits {
            2 => pairs::<8>(integers, to),
            4 => pairs::<4>(integers, to),
            _ => pairs::<2>(integers, to),
        }
    }

    /// Unpacks the same columns of eight rows: a pair of row `r` goes to `to[pair * stride + r]`.
    ///
    /// # Panics
    ///
    /// If rows differ in length, are not a multiple of 16 bytes, or `to` is too short.
    pub(crate) fn codes(&self, rows: [&[u8]; EIGHT], to: &mut [f32], stride: usize) {
        let length = rows[0].len();
        assert!(length.is_multiple_of(BYTES) && rows.iter().all(|row| row.len() == length), "whole words of all rows");
        let pairs = 4 * length / self.bits;
        assert!(stride >= EIGHT && (pairs == 0 || to.len() >= (pairs - 1) * stride + EIGHT), "room for all pairs");
        #[cfg(target_arch = "x86_64")]
        {
            let unpack = match self.bits {
                2 => x86::unpack::<2>,
                4 => x86::unpack::<4>,
                _ => x86::unpack::<8>,
            };
            // SAFETY: such a value exists only on machines with AVX2; lengths were checked above.
            unsafe { unpack(rows, to, stride) };
        }
    }
}

fn has_instructions(isa: Isa) -> bool {
    cfg!(target_arch = "x86_64") && isa.level() > Level::Baseline
}

/// Pairs of the first `HALF` of each `2 * HALF` integers with the others.
fn pairs<const HALF: usize>(integers: &[i16], to: &mut [i16]) {
    let twice = integers.as_chunks::<HALF>().0.as_chunks::<2>().0.iter();
    for ([first, second], to) in twice.zip(to.as_chunks_mut::<2>().0.as_chunks_mut::<HALF>().0) {
        for at in 0..HALF {
            to[at] = [first[at], second[at]];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BYTES, EIGHT};
    use std::arch::x86_64::*;

    /// [`super::Unpacker::codes`] of `BITS` bits.
    ///
    /// # Safety
    ///
    /// Rows have the same length, a multiple of 16 bytes, and `to` has room for all pairs.
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    pub(super) unsafe fn unpack<const BITS: usize>(rows: [&[u8]; EIGHT], to: &mut [f32], stride: usize) {
        #[allow(clippy::cast_possible_wrap, reason = "at most eight")]
        let (mask, width) = (_mm256_set1_epi16((1 << BITS) - 1), _mm_set_epi64x(0, BITS as i64));
        for start in (0..rows[0].len()).step_by(BYTES) {
            let mut halves = [_mm256_setzero_si256(); EIGHT / 2];
            for at in 0..EIGHT / 2 {
                let [low, high] = [rows[at], rows[at + EIGHT / 2]].map(|row| row.as_ptr().wrapping_add(start).cast());
                // SAFETY: a multiple of 16 bytes follows in each row.
                halves[at] = unsafe {
                    _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1)
                };
            }
            for (word, codes) in words(halves).into_iter().enumerate() {
                let mut rest = codes;
                for half in 0..16 / BITS {
                    let pairs = _mm256_and_si256(rest, mask);
                    rest = _mm256_srl_epi32(rest, width);
                    let pair = 8 * start / BITS / 2 + word * (16 / BITS) + half;
                    // SAFETY: there is room for all pairs.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(pair * stride).cast(), pairs) };
                }
            }
        }
    }

    /// Four words of eight rows, given as four registers of two rows each: word by word, all rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn words([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
        let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (other_low, other_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(low, other_low),
            _mm256_unpackhi_epi64(low, other_low),
            _mm256_unpacklo_epi64(high, other_high),
            _mm256_unpackhi_epi64(high, other_high),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{QuantRows, Scales};
    use half::bf16;
    use ptero_plan::prim::{QuantFormat, QuantMode};

    #[test]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "columns and codes are small and not negative"
    )]
    fn pairs_of_codes_meet_pairs_of_integers() {
        for (isa, bits) in Isa::available().into_iter().flat_map(|isa| [2_u8, 4, 8].map(|bits| (isa, bits))) {
            let (columns, row_bytes) = (128, 16 * usize::from(bits));
            let codes: Vec<u8> = (0..=255_u8).cycle().map(|at| at.wrapping_mul(167)).take(EIGHT * row_bytes).collect();
            let scales = vec![bf16::ONE; EIGHT * columns / 32];
            let format = QuantFormat::Words { mode: QuantMode::Affine, bits, group: 32 };
            let scales = Scales::Bf16(QuantRows::new(&scales, columns / 32));
            let codes = QuantRows::new(&codes, row_bytes);
            let weights = Weights::new(format, [EIGHT, columns], codes, Some(scales), None)
                .expect("codes and scales of all rows");
            let unpacker = Unpacker::of(isa, &weights, 32);
            assert_eq!(unpacker.is_some(), has_instructions(isa));
            let Some(unpacker) = unpacker else { continue };
            let stride = 11;
            let mut words = vec![-1.0; columns / 2 * stride];
            unpacker.codes(std::array::from_fn(|row| codes.row(row, row_bytes)), &mut words, stride);
            // Columns instead of integers, to see which of them are paired.
            let (numbers, mut pairs) = ((0..128).collect::<Vec<i16>>(), vec![0; columns]);
            unpacker.pairs(&numbers, &mut pairs);
            for (at, pair) in pairs.as_chunks::<2>().0.iter().enumerate() {
                for row in 0..EIGHT {
                    let code = |column: i16| {
                        let mut weight = [0.0];
                        weights.decode(isa, row, column as usize, &mut weight);
                        weight[0] as u32
                    };
                    let expected = code(pair[0]) | code(pair[1]) << 16;
                    assert_eq!(words[at * stride + row].to_bits(), expected, "{isa:?} {bits} {at} {row}");
                }
                assert!(words[at * stride + EIGHT..(at + 1) * stride].iter().all(|word| *word == -1.0));
            }
        }
    }
}
