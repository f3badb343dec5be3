//! Squares of 16 rows and 16 columns, transposed in registers: rows of keys become lanes.
//!
//! Four columns at a time: a register takes four elements each of the rows `i`, `i + 4`, and so on, one quarter per row; then
//! quarters are transposed as squares of four, which needs no exchange between them.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use super::{LANES, Loaded, Square};
use std::arch::x86_64::*;

/// Four elements of 16 bits from `a` and four from `b`.
///
/// # Safety
///
/// Four elements can be read from both.
#[inline(always)]
pub(super) unsafe fn load_fours<T>(a: *const T, b: *const T) -> __m128i {
    // SAFETY: the caller's.
    unsafe { _mm_unpacklo_epi64(_mm_loadl_epi64(a.cast()), _mm_loadl_epi64(b.cast())) }
}

/// Widens eight bfloats.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen_bf16(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

/// Sets `to[column][row] = from[row * stride + column]`.
///
/// # Safety
///
/// The machine has AVX2 and F16C; the last row is complete.
#[inline(always)]
pub(super) unsafe fn avx2<T: Loaded>(from: &[T], stride: usize, to: &mut Square) {
    for column in (0..LANES).step_by(4) {
        for row in (0..LANES).step_by(8) {
            // SAFETY: the caller's: from row `row` on there are eight rows, each with four elements from `column` on; and a
            // column has eight elements from `row` on.
            unsafe {
                let from = from.as_ptr().add(row * stride + column);
                let a = T::fours(from, from.add(4 * stride));
                let b = T::fours(from.add(stride), from.add(5 * stride));
                let c = T::fours(from.add(2 * stride), from.add(6 * stride));
                let d = T::fours(from.add(3 * stride), from.add(7 * stride));
                let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                _mm256_storeu_ps(to[column].as_mut_ptr().add(row), _mm256_shuffle_ps::<0x44>(ab, cd));
                _mm256_storeu_ps(to[column + 1].as_mut_ptr().add(row), _mm256_shuffle_ps::<0xEE>(ab, cd));
                let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                _mm256_storeu_ps(to[column + 2].as_mut_ptr().add(row), _mm256_shuffle_ps::<0x44>(ab, cd));
                _mm256_storeu_ps(to[column + 3].as_mut_ptr().add(row), _mm256_shuffle_ps::<0xEE>(ab, cd));
            }
        }
    }
}

/// The first four elements of each of the rows 0, 4, 8 and 12.
///
/// # Safety
///
/// The machine has AVX-512, AVX2 and F16C; there are as many rows and elements.
#[inline(always)]
unsafe fn quarters<T: Loaded>(from: *const T, stride: usize) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let low = T::fours(from, from.add(4 * stride));
        let high = T::fours(from.add(8 * stride), from.add(12 * stride));
        _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
    }
}

/// The same as [`avx2`].
///
/// # Safety
///
/// The machine has AVX-512, AVX2 and F16C; the last row is complete.
#[inline(always)]
pub(super) unsafe fn avx512<T: Loaded>(from: &[T], stride: usize, to: &mut Square) {
    for column in (0..LANES).step_by(4) {
        // SAFETY: the caller's: the rows from 0, 1, 2 or 3 on, in steps of 4, are four, each with four elements from `column` on;
        // and a column has 16 elements.
        unsafe {
            let from = from.as_ptr().add(column);
            let [a, b] = [quarters(from, stride), quarters(from.add(stride), stride)];
            let [c, d] = [quarters(from.add(2 * stride), stride), quarters(from.add(3 * stride), stride)];
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            _mm512_storeu_ps(to[column].as_mut_ptr(), _mm512_shuffle_ps::<0x44>(ab, cd));
            _mm512_storeu_ps(to[column + 1].as_mut_ptr(), _mm512_shuffle_ps::<0xEE>(ab, cd));
            let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            _mm512_storeu_ps(to[column + 2].as_mut_ptr(), _mm512_shuffle_ps::<0x44>(ab, cd));
            _mm512_storeu_ps(to[column + 3].as_mut_ptr(), _mm512_shuffle_ps::<0xEE>(ab, cd));
        }
    }
}
