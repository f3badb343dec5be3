//! Scales or biases of four rows of weights, side by side: `[group][row]`.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices whose lengths are checked before the loop")]

use super::activation::ROWS;
use crate::quant::{Packing, QuantRows, Scales, Weights};
use crate::simd::numeric::convert::{from_bf16, from_f16};
use crate::simd::{Isa, prefetch};
use half::{bf16, f16};
use std::ops::Range;

/// Scales or biases of 16 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortFactors<'a> {
    rows: QuantRows<'a, u16>,
    /// Factors of a row.
    count: usize,
    /// `true` for bfloats, `false` for halves.
    is_bfloat: bool,
    /// Two groups of activations share a factor.
    is_shared: bool,
}

impl<'a> ShortFactors<'a> {
    /// The scales of weights, and their biases if they have any; `None` if these are not of 16 bits. Activations have groups of
    /// `group`.
    pub(crate) fn of(weights: &Weights<'a>, group: usize) -> Option<(Self, Option<Self>)> {
        let Packing::Affine { group: stored, scales, biases, .. } = &weights.packing else { return None };
        let of = |factors: &Scales<'a>| {
            let (rows, is_bfloat) = factors.short()?;
            Some(Self { rows, count: weights.columns / stored, is_bfloat, is_shared: *stored > group })
        };
        match biases {
            Some(biases) => Some((of(scales)?, Some(of(biases)?))),
            None => Some((of(scales)?, None)),
        }
    }

    /// Groups of activations of a factor.
    fn repeat(&self) -> usize {
        1 + usize::from(self.is_shared)
    }

    /// All groups of activations of a row.
    pub(crate) fn groups(&self) -> Range<usize> {
        0..self.count * self.repeat()
    }

    /// Sets `to[at * stride + row]` for four rows and some groups of activations. Those of a whole number of cells are fastest.
    ///
    /// # Panics
    ///
    /// If `to` is too short, or there are no such rows or groups.
    #[inline]
    pub(crate) fn widen(&self, isa: Isa, numbers: [usize; ROWS], groups: Range<usize>, to: &mut [f32], stride: usize) {
        let (start, count) = match self.is_shared {
            true => (groups.start / 2, groups.len().div_ceil(2)),
            false => (groups.start, groups.len()),
        };
        let rows = numbers.map(|row| self.rows.part(row, start, count));
        assert!(start + count <= self.count && rows.iter().all(|row| row.len() == count), "groups of rows that exist");
        assert!(count == 0 || to.len() >= (count * self.repeat() - 1) * stride + ROWS, "room for all groups");
        if count < FOUR {
            return self.plain(rows, to, stride);
        }
        by_level!(isa, self.plain(rows, to, stride), self.avx2(rows, to, stride), self.avx512(rows, to, stride));
    }

    /// Asks for the factors of rows that are widened soon; there may be no such rows.
    pub(crate) fn prefetch(&self, rows: Range<usize>) {
        for row in rows {
            prefetch(bytemuck::cast_slice(self.rows.part(row, 0, self.count)));
        }
    }

    /// Returns `true` if a row has at least eight factors.
    pub(crate) fn has_eight(&self) -> bool {
        self.count >= 2 * FOUR
    }

    fn plain(&self, rows: [&[u16]; ROWS], to: &mut [f32], stride: usize) {
        for (number, row) in rows.iter().enumerate() {
            for (at, bits) in row.iter().enumerate() {
                let factor = match self.is_bfloat {
                    true => from_bf16(bf16::from_bits(*bits)),
                    false => from_f16(f16::from_bits(*bits)),
                };
                for group in at * self.repeat()..(at + 1) * self.repeat() {
                    to[group * stride + number] = factor;
                }
            }
        }
    }
}

/// The fewest factors that are widened in registers.
const FOUR: usize = 4;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{FOUR, ROWS, ShortFactors};
    use crate::simd::quant::sixteen::SIXTEEN;
    use crate::simd::quant::sixteen::x86::words;
    use std::arch::x86_64::*;

    impl ShortFactors<'_> {
        /// [`ShortFactors::widen`] of at least four factors.
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        pub(super) fn avx2(&self, rows: [&[u16]; ROWS], to: &mut [f32], stride: usize) {
            let bfloats = |bits| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
            let halves = |bits| _mm256_cvtph_ps(bits);
            match (self.is_bfloat, rows[0].len() < 2 * FOUR) {
                (true, false) => widen::<8>(rows, self.repeat(), to, stride, bfloats),
                (true, true) => widen::<4>(rows, self.repeat(), to, stride, bfloats),
                (false, false) => widen::<8>(rows, self.repeat(), to, stride, halves),
                (false, true) => widen::<4>(rows, self.repeat(), to, stride, halves),
            }
        }
    }

    impl ShortFactors<'_> {
        /// Sets `to[at * 16 + row]` for sixteen rows and all groups of activations.
        ///
        /// # Panics
        ///
        /// If `to` is too short, there are no such rows, or they have fewer than eight factors.
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
        pub(crate) fn widen_sixteen(&self, numbers: [usize; SIXTEEN], to: &mut [f32]) {
            let (count, mut start) = (self.count, 0);
            assert!(self.has_eight(), "at least eight factors");
            // Not by `map`: what takes a closure is not compiled for these instructions, so it is not inlined.
            let mut pointers = [std::ptr::null(); SIXTEEN];
            for at in 0..SIXTEEN {
                let row = self.rows.part(numbers[at], 0, count);
                assert!(row.len() == count, "factors of rows that exist");
                pointers[at] = row.as_ptr().cast();
            }
            let to = &mut to.as_chunks_mut::<SIXTEEN>().0[..count * self.repeat()];
            loop {
                // SAFETY: the bytes of eight factors follow in each row.
                let pairs = unsafe { words(&pointers, 2 * start) };
                for at in 0..2 * FOUR {
                    let pair = pairs[at / 2];
                    let upper = if at % 2 == 0 { _mm512_slli_epi32(pair, 16) } else { pair };
                    let upper = _mm512_and_si512(upper, _mm512_set1_epi32(!0xFFFF));
                    let floats = match self.is_bfloat {
                        true => _mm512_castsi512_ps(upper),
                        false => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16))),
                    };
                    for to in &mut to[(start + at) * self.repeat()..(start + at + 1) * self.repeat()] {
                        // SAFETY: the array has the size of the register.
                        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) };
                    }
                }
                if start + 2 * FOUR >= count {
                    return;
                }
                // The last ones may overlap the ones before.
                start = (start + 2 * FOUR).min(count - 2 * FOUR);
            }
        }
    }

    /// Where in a register of eight factors of each of four rows the factors of four groups are, those of all rows side by side,
    /// as the upper halves of words of 32 bits.
    const BY_GROUP: [[u16; 32]; 2] = {
        let (mut indices, mut at) = ([[0; 32]; 2], 0_u16);
        while at < 64 {
            let (group, row) = (at / 8, at / 2 % 4);
            indices[at as usize / 32][at as usize % 32] = 8 * row + group;
            at += 1;
        }
        indices
    };

    impl ShortFactors<'_> {
        /// Same as [`ShortFactors::avx2`], with fewer instructions where groups lie side by side.
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
        pub(super) fn avx512(&self, rows: [&[u16]; ROWS], to: &mut [f32], stride: usize) {
            let count = rows[0].len();
            if count < 2 * FOUR || self.is_shared || stride != ROWS {
                return self.avx2(rows, to, stride);
            }
            let mut indices = [_mm512_setzero_si512(); 2];
            for (register, indices) in indices.iter_mut().zip(&BY_GROUP) {
                // SAFETY: the array has the size of the register.
                *register = unsafe { _mm512_loadu_si512(indices.as_ptr().cast()) };
            }
            let mut start = 0;
            loop {
                let mut four = [_mm_setzero_si128(); ROWS];
                for (register, row) in four.iter_mut().zip(rows) {
                    let row = row[start..start + 2 * FOUR].as_ptr().cast();
                    // SAFETY: the slice has the size of the register.
                    *register = unsafe { _mm_loadu_si128(row) };
                }
                let words = _mm512_inserti32x4(_mm512_castsi128_si512(four[0]), four[1], 1);
                let words = _mm512_inserti32x4(_mm512_inserti32x4(words, four[2], 2), four[3], 3);
                let to = &mut to[start * ROWS..(start + 2 * FOUR) * ROWS];
                for (half, indices) in indices.into_iter().enumerate() {
                    let upper = _mm512_maskz_permutexvar_epi16(0xAAAA_AAAA, indices, words);
                    let floats = match self.is_bfloat {
                        true => _mm512_castsi512_ps(upper),
                        false => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16))),
                    };
                    // SAFETY: the slice has the size of two registers.
                    unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * half), floats) };
                }
                if start + 2 * FOUR >= count {
                    return;
                }
                start = (start + 2 * FOUR).min(count - 2 * FOUR);
            }
        }
    }

    /// Four or eight factors at a time; the last ones may overlap the ones before.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn widen<const COUNT: usize>(
        all: [&[u16]; ROWS],
        repeat: usize,
        to: &mut [f32],
        stride: usize,
        widen: impl Fn(__m128i) -> __m256,
    ) {
        let (count, mut start) = (all[0].len(), 0);
        loop {
            let mut rows = [_mm_setzero_si128(); ROWS];
            for (register, row) in rows.iter_mut().zip(all) {
                let row = row[start..start + COUNT].as_ptr().cast();
                // SAFETY: the slice has the size of the register, or of half of it.
                *register = unsafe { if COUNT == FOUR { _mm_loadl_epi64(row) } else { _mm_loadu_si128(row) } };
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
                let to = &mut to[start * ROWS..(start + COUNT) * ROWS];
                for (pair, bits) in pairs.into_iter().enumerate().take(COUNT / 2) {
                    // SAFETY: the slice has the size of as many registers.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(2 * ROWS * pair), widen(bits)) };
                }
            } else {
                for (pair, bits) in pairs.into_iter().enumerate().take(COUNT / 2) {
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
            if start + COUNT >= count {
                return;
            }
            start = (start + COUNT).min(count - COUNT);
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
            for (count, repeat, stride) in
                [(1, 1, 4), (4, 1, 4), (7, 2, 4), (8, 1, 4), (9, 1, 32), (18, 1, 4), (19, 2, 16)]
            {
                for is_bfloat in [false, true] {
                    let rows: [&[u16]; ROWS] = std::array::from_fn(|row| &bits[19 * row..][..count]);
                    let mut to = vec![-1.0; count * repeat * stride];
                    let factors =
                        ShortFactors { rows: QuantRows::new(&bits, 19), count, is_bfloat, is_shared: repeat == 2 };
                    factors.widen(isa, [0, 1, 2, 3], factors.groups(), &mut to, stride);
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
