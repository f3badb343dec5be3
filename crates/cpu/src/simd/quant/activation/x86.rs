//! Quantizing and arranging activations with AVX2, also on machines that have more. The plain twins are in `activation`.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, in loops of constant length")]

use super::{CELL, LARGEST, Order, Quantized, ROUNDER, SMALLEST};
use std::arch::x86_64::*;

/// Numbers of 16 bits of a register.
const WORDS: usize = 16;

/// Quantizes a row of whole groups; see `activation::quantize`.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) fn quantize<const GROUP: usize>(x: &[f32], to: Quantized<'_>) {
    let groups = x.as_chunks::<GROUP>().0.iter().zip(to.integers.as_chunks_mut::<GROUP>().0);
    for ((x, integers), (step, sum)) in groups.zip(to.steps.iter_mut().zip(to.sums)) {
        let x = x.as_chunks::<WORDS>().0;
        let magnitudes = _mm256_set1_epi32(0x7FFF_FFFF);
        let mut largest = _mm256_setzero_si256();
        for x in x {
            for x in halves(x) {
                largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(x), magnitudes));
            }
        }
        let size = f32::from_bits(largest_lane(largest));
        if !size.is_finite() {
            integers.fill(0);
            (*step, *sum) = (f32::NAN, 0);
            continue;
        }
        let inverse = _mm256_set1_ps(if size < SMALLEST { 0.0 } else { LARGEST / size });
        let (rounder, mut total) = (_mm256_set1_ps(ROUNDER), _mm256_setzero_si256());
        for (x, integers) in x.iter().zip(integers.as_chunks_mut::<WORDS>().0) {
            let [low, high] = halves(x);
            let (low, high) = (_mm256_mul_ps(low, inverse), _mm256_mul_ps(high, inverse));
            let (low, high) = (_mm256_add_ps(low, rounder), _mm256_add_ps(high, rounder));
            let bits = _mm256_castps_si256(rounder);
            let low = _mm256_sub_epi32(_mm256_castps_si256(low), bits);
            let high = _mm256_sub_epi32(_mm256_castps_si256(high), bits);
            total = _mm256_add_epi32(total, _mm256_add_epi32(low, high));
            store(integers, _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8));
        }
        (*step, *sum) = (if size < SMALLEST { 0.0 } else { size * (1.0 / LARGEST) }, sum_of_lanes(total));
    }
}

/// The two registers of sixteen floats.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(x: &[f32; WORDS]) -> [__m256; 2] {
    // SAFETY: the array has the size of two registers.
    unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(WORDS / 2))] }
}

#[inline]
#[target_feature(enable = "avx2")]
fn largest_lane(lanes: __m256i) -> u32 {
    let four = _mm_max_epu32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    let two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0b10_11_00_01))).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_of_lanes(lanes: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0b10_11_00_01)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[i16; WORDS]) -> __m256i {
    // SAFETY: the array has the size of the register.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut [i16; WORDS], words: __m256i) {
    // SAFETY: the array has the size of the register.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), words) };
}

/// Writes integers in an order; returns `false` if it is not known here.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) fn arrange(integers: &[i16], order: Order, to: &mut [i16]) -> bool {
    let cells = integers.as_chunks::<CELL>().0;
    match order {
        Order::Fours => {
            for (cell, to) in cells.iter().zip(to.as_chunks_mut().0) {
                fours(cell, to);
            }
        }
        Order::Twos => {
            for (cell, to) in cells.iter().zip(to.as_chunks_mut().0) {
                twos(cell, to);
            }
        }
        Order::Bytes { vectors: 1 } => {
            for (cell, to) in cells.iter().zip(to.as_chunks_mut().0) {
                bytes(cell, to);
            }
        }
        Order::Bytes { vectors: 2 } => {
            for (cells, to) in integers.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
                bytes_in_turns(cells, to);
            }
        }
        Order::Bytes { .. } => return false,
    }
    true
}

/// `Order::Fours`: register `v` gets element `v` of every four.
#[inline]
#[target_feature(enable = "avx2")]
fn fours(cell: &[i16; CELL], to: &mut [i16; CELL]) {
    // Of each eight, in four words of 32 bits: the two first elements of a four, the two second ones, and so on.
    let order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    let mut registers = [_mm256_setzero_si256(); 4];
    for (register, words) in registers.iter_mut().zip(cell.as_chunks().0) {
        *register = _mm256_shuffle_epi8(load(words), _mm256_broadcastsi128_si256(order));
    }
    for (to, words) in to.as_chunks_mut().0.iter_mut().zip(transposed(registers)) {
        store(to, words);
    }
}

/// Four registers are eight halves of four words: word `v` of all halves becomes register `v`.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (first, second) = (_mm256_permute2x128_si256(a, c, 0x20), _mm256_permute2x128_si256(a, c, 0x31));
    let (third, fourth) = (_mm256_permute2x128_si256(b, d, 0x20), _mm256_permute2x128_si256(b, d, 0x31));
    let (low, high) = (_mm256_unpacklo_epi32(first, second), _mm256_unpackhi_epi32(first, second));
    let (other_low, other_high) = (_mm256_unpacklo_epi32(third, fourth), _mm256_unpackhi_epi32(third, fourth));
    [
        _mm256_unpacklo_epi64(low, other_low),
        _mm256_unpackhi_epi64(low, other_low),
        _mm256_unpacklo_epi64(high, other_high),
        _mm256_unpackhi_epi64(high, other_high),
    ]
}

/// `Order::Twos`: even and odd elements of the first and the third sixteen, then of the second and the fourth.
#[inline]
#[target_feature(enable = "avx2")]
fn twos(cell: &[i16; CELL], to: &mut [i16; CELL]) {
    let order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    let mut halves = [_mm256_setzero_si256(); 4];
    for (half, words) in halves.iter_mut().zip(cell.as_chunks().0) {
        let turns = _mm256_shuffle_epi8(load(words), _mm256_broadcastsi128_si256(order));
        *half = _mm256_permute4x64_epi64(turns, 0xD8);
    }
    let [a, b, c, d] = halves;
    let to = to.as_chunks_mut().0;
    store(&mut to[0], _mm256_permute2x128_si256(a, c, 0x20));
    store(&mut to[1], _mm256_permute2x128_si256(a, c, 0x31));
    store(&mut to[2], _mm256_permute2x128_si256(b, d, 0x20));
    store(&mut to[3], _mm256_permute2x128_si256(b, d, 0x31));
}

/// The two signed bytes of each integer, `256 * high + low`, side by side.
#[inline]
#[target_feature(enable = "avx2")]
fn split(integers: __m256i) -> __m256i {
    let high = _mm256_add_epi16(integers, _mm256_set1_epi16(128));
    _mm256_blendv_epi8(integers, high, _mm256_set1_epi16(0xFF00_u16.cast_signed()))
}

/// `Order::Bytes` of one register: the high bytes of a cell, then the low ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(cell: &[i16; CELL], to: &mut [i16; CELL]) {
    let ([first, second, third, fourth], []) = cell.as_chunks() else { return };
    let ([high, next_high, low, next_low], []) = to.as_chunks_mut() else { return };
    for (pair, high, low) in [([first, second], high, low), ([third, fourth], next_high, next_low)] {
        let [a, b] = [split(load(pair[0])), split(load(pair[1]))];
        let lows = _mm256_set1_epi16(0xFF);
        let high_bytes = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        let low_bytes = _mm256_packus_epi16(_mm256_and_si256(a, lows), _mm256_and_si256(b, lows));
        store(high, _mm256_permute4x64_epi64(high_bytes, 0xD8));
        store(low, _mm256_permute4x64_epi64(low_bytes, 0xD8));
    }
}

/// `Order::Bytes` of two registers: the high bytes of the even elements of two cells, their low bytes, and those of the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_in_turns(cells: &[i16; 2 * CELL], to: &mut [i16; 2 * CELL]) {
    // Of each eight, in words of 32 bits: the high bytes of the even elements, their low bytes, and those of the odd ones.
    let order = _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, 3, 7, 11, 15, 2, 6, 10, 14);
    let to = to.as_chunks_mut().0;
    for (half, cell) in cells.as_chunks::<CELL>().0.iter().enumerate() {
        let mut registers = [_mm256_setzero_si256(); 4];
        for (register, words) in registers.iter_mut().zip(cell.as_chunks().0) {
            *register = _mm256_shuffle_epi8(split(load(words)), _mm256_broadcastsi128_si256(order));
        }
        for (kind, bytes) in transposed(registers).into_iter().enumerate() {
            store(&mut to[2 * kind + half], bytes);
        }
    }
}
