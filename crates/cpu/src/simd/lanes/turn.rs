//! Squares of 16 rows and 16 columns, turned in registers: rows of keys become lanes.
//!
//! Four columns at a time: a register takes four elements each of the rows `i`, `i + 4`, and so on, one quarter per row; then
//! quarters are turned as squares of four, which needs no exchange between them.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use super::LANES;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Sixteen rows of sixteen elements.
pub(crate) type Rows<'a, T> = [&'a [T; LANES]; LANES];
/// Sixteen columns, widened.
pub(crate) type Square = [[f32; LANES]; LANES];

/// What can be turned.
pub(crate) trait Turn: Copy {
    /// Widened.
    fn wide(self) -> f32;

    /// Four elements from `a` and four from `b`, widened.
    ///
    /// # Safety
    ///
    /// The machine has AVX2 and F16C, and there are as many elements at both.
    #[cfg(target_arch = "x86_64")]
    unsafe fn fours(a: *const Self, b: *const Self) -> __m256;
}

impl Turn for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn fours(a: *const Self, b: *const Self) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b)) }
    }
}

impl Turn for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        super::from_f16(self)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn fours(a: *const Self, b: *const Self) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_cvtph_ps(_mm_unpacklo_epi64(_mm_loadl_epi64(a.cast()), _mm_loadl_epi64(b.cast()))) }
    }
}

impl Turn for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        super::from_bf16(self)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn fours(a: *const Self, b: *const Self) -> __m256 {
        // SAFETY: the caller's.
        unsafe {
            let halves = _mm_unpacklo_epi64(_mm_loadl_epi64(a.cast()), _mm_loadl_epi64(b.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }
}

/// `to[column][row] = rows[row][column]`.
#[inline(always)]
pub(super) fn plain<T: Turn>(rows: &Rows<'_, T>, to: &mut Square) {
    for (column, to) in to.iter_mut().enumerate() {
        to.iter_mut().zip(rows).for_each(|(to, row)| *to = row[column].wide());
    }
}

/// The same.
///
/// # Safety
///
/// The machine has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx2<T: Turn>(rows: &Rows<'_, T>, to: &mut Square) {
    for column in (0..LANES).step_by(4) {
        for row in (0..LANES).step_by(8) {
            // SAFETY: the caller's; and from `column`, a multiple of four, a row has four elements, as from `row` a column has eight.
            unsafe {
                let from = [0, 1, 2, 3]
                    .map(|at: usize| [rows[row + at], rows[row + at + 4]].map(|row| row.as_ptr().add(column)));
                let [a, b] = [T::fours(from[0][0], from[0][1]), T::fours(from[1][0], from[1][1])];
                let [c, d] = [T::fours(from[2][0], from[2][1]), T::fours(from[3][0], from[3][1])];
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

/// Four elements from `column` on of each of the rows `row`, `row + 4`, `row + 8` and `row + 12`.
///
/// # Safety
///
/// The machine has AVX-512, AVX2 and F16C; `row` is below 4 and `column` at most 12.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarters<T: Turn>(rows: &Rows<'_, T>, row: usize, column: usize) -> __m512 {
    let [a, b, c, d] = [rows[row], rows[row + 4], rows[row + 8], rows[row + 12]];
    // SAFETY: the caller's: a row has four elements from `column` on.
    unsafe {
        let low = T::fours(a.as_ptr().add(column), b.as_ptr().add(column));
        let high = T::fours(c.as_ptr().add(column), d.as_ptr().add(column));
        _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
    }
}

/// The same.
///
/// # Safety
///
/// The machine has AVX-512, AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx512<T: Turn>(rows: &Rows<'_, T>, to: &mut Square) {
    for column in (0..LANES).step_by(4) {
        // SAFETY: the caller's; `column` is a multiple of four below 16, and a column has 16 elements.
        unsafe {
            let [a, b] = [quarters(rows, 0, column), quarters(rows, 1, column)];
            let [c, d] = [quarters(rows, 2, column), quarters(rows, 3, column)];
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            _mm512_storeu_ps(to[column].as_mut_ptr(), _mm512_shuffle_ps::<0x44>(ab, cd));
            _mm512_storeu_ps(to[column + 1].as_mut_ptr(), _mm512_shuffle_ps::<0xEE>(ab, cd));
            let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            _mm512_storeu_ps(to[column + 2].as_mut_ptr(), _mm512_shuffle_ps::<0x44>(ab, cd));
            _mm512_storeu_ps(to[column + 3].as_mut_ptr(), _mm512_shuffle_ps::<0xEE>(ab, cd));
        }
    }
}
