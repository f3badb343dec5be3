//! Scales or biases of four rows of weights, side by side: `[group][row]`.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices whose lengths are checked before the loop")]

use super::activation::ROWS;
use crate::quant::{Packing, QuantRows, Scales, Weights};
use crate::simd::Isa;
use crate::simd::numeric::convert::{from_bf16, from_f16};
use half::{bf16, f16};

/// Scales or biases of 16 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortFactors<'a> {
    rows: QuantRows<'a, u16>,
    /// Factors of a row.
    count: usize,
    /// `true` for bfloats, `false` for halves.
    is_bfloat: bool,
    /// How many groups of activations share a factor.
    repeat: usize,
}

impl<'a> ShortFactors<'a> {
    /// The scales of weights, and their biases if they have any; `None` if these are not of 16 bits. Activations have groups of
    /// `group`.
    pub(crate) fn of(weights: &Weights<'a>, group: usize) -> Option<(Self, Option<Self>)> {
        let Packing::Affine { group: stored, scales, biases, .. } = &weights.packing else { return None };
        let of = |factors: &Scales<'a>| {
            let (rows, is_bfloat) = factors.short()?;
            Some(Self { rows, count: weights.columns / stored, is_bfloat, repeat: stored / group })
        };
        match biases {
            Some(biases) => Some((of(scales)?, Some(of(biases)?))),
            None => Some((of(scales)?, None)),
        }
    }

    /// Sets `to[group * stride + row]` for four rows and all groups of activations.
    ///
    /// # Panics
    ///
    /// If `to` is too short, or there is no such row.
    #[inline]
    pub(crate) fn widen(&self, isa: Isa, numbers: [usize; ROWS], to: &mut [f32], stride: usize) {
        let rows = numbers.map(|row| self.rows.row(row, self.count));
        assert!(rows.iter().all(|row| row.len() == self.count), "rows that exist");
        assert!(self.count == 0 || to.len() >= (self.count * self.repeat - 1) * stride + ROWS, "room for all groups");
        if self.count < EIGHT {
            return self.plain(rows, to, stride);
        }
        by_level!(isa, self.plain(rows, to, stride), self.avx2(rows, to, stride), self.avx2(rows, to, stride));
    }

    fn plain(&self, rows: [&[u16]; ROWS], to: &mut [f32], stride: usize) {
        for (number, row) in rows.iter().enumerate() {
            for (at, bits) in row.iter().enumerate() {
                let factor = match self.is_bfloat {
                    true => from_bf16(bf16::from_bits(*bits)),
                    false => from_f16(f16::from_bits(*bits)),
                };
                for group in at * self.repeat..(at + 1) * self.repeat {
                    to[group * stride + number] = factor;
                }
            }
        }
    }
}

/// Groups that registers hold.
const EIGHT: usize = 8;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{EIGHT, ROWS, ShortFactors};
    use std::arch::x86_64::*;

    impl ShortFactors<'_> {
        /// [`ShortFactors::widen`] of at least eight groups.
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        pub(super) fn avx2(&self, rows: [&[u16]; ROWS], to: &mut [f32], stride: usize) {
            match self.is_bfloat {
                true => eights(rows, self.repeat, to, stride, |bits| {
                    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                }),
                false => eights(rows, self.repeat, to, stride, |bits| _mm256_cvtph_ps(bits)),
            }
        }
    }

    /// Eight groups at a time; the last eight may overlap the ones before.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn eights(all: [&[u16]; ROWS], repeat: usize, to: &mut [f32], stride: usize, widen: impl Fn(__m128i) -> __m256) {
        let (count, mut start) = (all[0].len(), 0);
        loop {
            let mut rows = [_mm_setzero_si128(); ROWS];
            for (register, row) in rows.iter_mut().zip(all) {
                let row = &row[start..start + EIGHT];
                // SAFETY: the slice has the size of the register.
                *register = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
            }
            let [a, b, c, d] = rows;
            let (ab, cd) = (_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
            let (next_ab, next_cd) = (_mm_unpackhi_epi16(a, b), _mm_unpackhi_epi16(c, d));
            // Two groups each.
            let pairs = [
                _mm_unpacklo_epi32(ab, cd),
                _mm_unpackhi_epi32(ab, cd),
                _mm_unpacklo_epi32(next_ab, next_cd),
                _mm_unpackhi_epi32(next_ab, next_cd),
            ];
            if repeat == 1 && stride == ROWS {
                let to = &mut to[start * ROWS..(start + EIGHT) * ROWS];
                for (pair, bits) in pairs.into_iter().enumerate() {
                    // SAFETY: the slice has the size of four registers.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(2 * ROWS * pair), widen(bits)) };
                }
            } else {
                for (pair, bits) in pairs.into_iter().enumerate() {
                    let floats = widen(bits);
                    let two = [_mm256_castps256_ps128(floats), _mm256_extractf128_ps(floats, 1)];
                    for (at, four) in two.into_iter().enumerate() {
                        let group = (start + 2 * pair + at) * repeat;
                        for group in group..group + repeat {
                            let to = &mut to[group * stride..group * stride + ROWS];
                            // SAFETY: the slice has the size of the register.
                            unsafe { _mm_storeu_ps(to.as_mut_ptr(), four) };
                        }
                    }
                }
            }
            if start + EIGHT >= count {
                return;
            }
            start = (start + EIGHT).min(count - EIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_four_rows_lie_side_by_side() {
        let bits: Vec<u16> = (0..4 * 19).map(|at| 0x3000 + 37 * at).collect();
        for isa in Isa::available() {
            for (count, repeat, stride) in [(1, 1, 4), (7, 2, 4), (8, 1, 4), (9, 1, 32), (18, 1, 4), (19, 2, 16)] {
                for is_bfloat in [false, true] {
                    let rows: [&[u16]; ROWS] = std::array::from_fn(|row| &bits[19 * row..][..count]);
                    let mut to = vec![-1.0; count * repeat * stride];
                    let factors = ShortFactors { rows: QuantRows::new(&bits, 19), count, is_bfloat, repeat };
                    factors.widen(isa, [0, 1, 2, 3], &mut to, stride);
                    for (at, found) in to.iter().enumerate() {
                        let (group, row) = (at / stride, at % stride);
                        let expected = rows.get(row).map_or(-1.0, |row| {
                            let bits = row[group / repeat];
                            if is_bfloat { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
                        });
                        assert_eq!(found.to_bits(), expected.to_bits(), "{isa:?} {count} {repeat} {stride} {at}");
                    }
                }
            }
        }
    }
}
