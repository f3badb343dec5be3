//! Few rows of activations times four rows of quantized weights in integers, as in `vnni`, for machines with AVX2: codes and
//! activations are numbers of 16 bits, whose products one instruction adds in pairs, exactly. (Products of bytes would need two
//! such for the two bytes of an activation, and overflow for codes of eight bits.)
//!
//! A cell is 64 columns in 8 lanes of 8 neighbours, its codes four registers in one of two orders: `Order::Fours` for codes
//! that unpack from numbers of 16 bits with four in each, `Order::Twos` for codes in bytes and those that run across bytes.
//! Lanes of the same group are then added, which leaves a lane for each of four rows, and floats begin.
#![allow(unsafe_code, reason = "loads of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{CELL, ROWS, Sums};
use super::integer::{Factors, FourRows, MOST, Short, cell_sums};
use crate::quant::Packing;
use crate::simd::lanes::x86::Avx2;
use ptero_tensor::GgufType;
use std::arch::x86_64::*;

/// Floats of a register.
const LANES: usize = 8;
/// Registers of the integers of a cell.
const WORDS: usize = CELL / 16;

/// A function for machines with AVX2.
macro_rules! avx2 {
    ($( $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$attribute])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
}

avx2! {
    /// Writes the products of four rows; see `Integers::products`.
    pub(super) fn products[const M: usize](lines: &FourRows<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        match lines.packing {
            Packing::Affine { bits, .. } if lines.x.layout.group == CELL => affine::<M, 1>(lines, *bits, totals),
            Packing::Affine { bits, .. } => affine::<M, 2>(lines, *bits, totals),
            Packing::E2m1 { .. } if lines.x.layout.group == CELL / 2 => e2m1::<M, 2>(lines, totals),
            Packing::E2m1 { .. } => e2m1::<M, 4>(lines, totals),
            Packing::Gguf(GgufType::Q4K) => {
                four::<M, 2, 144, 4, true>(lines, |block, part| with_minima(block, 16, part), totals);
            }
            Packing::Gguf(GgufType::Q5K) => {
                four::<M, 2, 176, 4, true>(lines, |block, part| with_minima(block, 48, part), totals);
            }
            Packing::Gguf(GgufType::Q6K) => four::<M, 4, 210, 4, true>(lines, |block, part| q6k(block, part), totals),
            Packing::E4m3 { .. } => {}
        }
    }

    fn affine[const M: usize, const SLOTS: usize](lines: &FourRows<'_>, bits: u8, totals: &mut [[f32; ROWS]; MOST]) {
        match bits {
            2 => {
                let wide = |codes: &[u8; 16]| _mm256_cvtepu8_epi16(load_half(codes, 0));
                four::<M, SLOTS, 16, 1, false>(lines, |codes, _| fours(wide(codes), 2), totals);
            }
            4 => four::<M, SLOTS, 32, 1, false>(lines, |codes, _| fours(load(codes), 4), totals),
            8 => four::<M, SLOTS, 64, 1, true>(lines, |codes, _| twos([both(codes, [0, 32]), both(codes, [16, 48])]), totals),
            3 => stream::<M, SLOTS, 3, 24>(lines, totals),
            5 => stream::<M, SLOTS, 5, 40>(lines, totals),
            _ => stream::<M, SLOTS, 6, 48>(lines, totals),
        }
    }

    /// Codes that run across byte borders: two neighbours lie within two bytes, and a factor moves them to the upper end.
    /// Sixteen are `2 * BITS` bytes, of `BYTES` for 64; what would be read beyond these is read from their last sixteen.
    fn stream[const M: usize, const SLOTS: usize, const BITS: usize, const BYTES: usize](
        lines: &FourRows<'_>,
        totals: &mut [[f32; ROWS]; MOST],
    ) {
        let starts: [usize; 4] = const {
            assert!(BYTES == 8 * BITS);
            [0, 2 * BITS, if 4 * BITS < BYTES - 16 { 4 * BITS } else { BYTES - 16 }, BYTES - 16]
        };
        let (mut bytes, mut factors) = ([[0_u8; 32]; 2], [0_u16; 16]);
        for at in 0..16 {
            let first_bit = at % 8 * 2 * BITS;
            factors[at] = 1 << (16 - 2 * BITS - first_bit % 8);
            for (number, bytes) in bytes.iter_mut().enumerate() {
                let sixteen = at / 8 * 2 + number;
                #[allow(clippy::cast_possible_truncation, reason = "below sixteen")]
                let byte = (2 * BITS * sixteen - starts[sixteen] + first_bit / 8) as u8;
                // The byte after the last does not count: the factor moves it out.
                (bytes[2 * at], bytes[2 * at + 1]) = (byte, (byte + 1) % 16);
            }
        }
        let bytes = [load(&bytes[0]), load(&bytes[1])];
        let factors = load(&bytemuck::cast::<[u16; 16], [u8; 32]>(factors));
        let mask = _mm256_set1_epi16((1 << BITS) - 1);
        let (upper, lower) = (_mm_cvtsi32_si128(small(16 - BITS)), _mm_cvtsi32_si128(small(16 - 2 * BITS)));
        four::<M, SLOTS, BYTES, 1, true>(lines, |codes, _| {
            let first = _mm256_shuffle_epi8(both(codes, [starts[0], starts[2]]), bytes[0]);
            let second = _mm256_shuffle_epi8(both(codes, [starts[1], starts[3]]), bytes[1]);
            let (first, second) = (_mm256_mullo_epi16(first, factors), _mm256_mullo_epi16(second, factors));
            [
                _mm256_and_si256(_mm256_srl_epi16(first, lower), mask),
                _mm256_srl_epi16(first, upper),
                _mm256_and_si256(_mm256_srl_epi16(second, lower), mask),
                _mm256_srl_epi16(second, upper),
            ]
        }, totals);
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    fn e2m1[const M: usize, const SLOTS: usize](lines: &FourRows<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let (values, mask, bytes) = (_mm256_broadcastsi128_si256(values), _mm256_set1_epi8(15), _mm256_set1_epi16(0xFF));
        four::<M, SLOTS, 32, 1, false>(lines, |codes, _| {
            let codes = load(codes);
            let even = _mm256_shuffle_epi8(values, _mm256_and_si256(codes, mask));
            let odd = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask));
            [
                _mm256_and_si256(even, bytes),
                _mm256_and_si256(odd, bytes),
                _mm256_srli_epi16(even, 8),
                _mm256_srli_epi16(odd, 8),
            ]
        }, totals);
    }

    /// A part of a block with minima, whose codes begin at `start`: the low and the high halves of 32 bytes, and where these
    /// begin after 48 bytes, a fifth bit from the 32 bytes before.
    fn with_minima[const N: usize](block: &[u8; N], start: usize, part: usize) -> [__m256i; WORDS] {
        let (shifts, bits) = (halves(0, 4), halves(0x0101_0101 << (2 * part), 0x0202_0202 << (2 * part)));
        let half = |at: usize| {
            let low = _mm256_srlv_epi32(twice(block, start + 32 * part + at), shifts);
            let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
            if start == 16 {
                return low;
            }
            let has_fifth = _mm256_cmpeq_epi8(_mm256_and_si256(twice(block, 16 + at), bits), bits);
            _mm256_or_si256(low, _mm256_and_si256(has_fifth, _mm256_set1_epi8(16)))
        };
        twos([half(0), half(16)])
    }

    /// A part of a block of six bits: two runs of 32, with low bits from 64 bytes and high bits from 32.
    fn q6k(block: &[u8; 210], part: usize) -> [__m256i; WORDS] {
        let (half, upper) = (part / 2, part % 2);
        let (low_shift, high_shifts) = (halves(small(4 * upper), small(4 * upper)), halves(small(4 * upper), small(4 * upper + 2)));
        let quarter = |at: usize| {
            let low = both(block, [64 * half + at, 64 * half + 32 + at]);
            let low = _mm256_and_si256(_mm256_srlv_epi32(low, low_shift), _mm256_set1_epi8(15));
            let high = _mm256_srlv_epi32(twice(block, 128 + 32 * half + at), high_shifts);
            _mm256_or_si256(low, _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4))
        };
        twos([quarter(0), quarter(16)])
    }

    /// The products of four rows in blocks of `BYTES`, the last of which may be shorter. A block is `PARTS` cells, in the order of twos
    /// or of fours; a cell has `SLOTS` groups.
    fn four[const M: usize, const SLOTS: usize, const BYTES: usize, const PARTS: usize, const TWOS: bool](
        lines: &FourRows<'_>,
        cell: impl Fn(&[u8; BYTES], usize) -> [__m256i; WORDS],
        totals: &mut [[f32; ROWS]; MOST],
    ) {
        let (codes, x, register) = (&lines.codes, lines.x, Avx2::new());
        let has_offset = matches!(x.layout.sums, Sums::Offset(_));
        let [a, b, c, d] = codes;
        let blocks = [a.as_chunks::<BYTES>().0, b.as_chunks().0, c.as_chunks().0, d.as_chunks().0];
        let whole_blocks = blocks[0].len().min(blocks[1].len()).min(blocks[2].len()).min(blocks[3].len());
        let cells = codes[0].len().div_ceil(BYTES) * PARTS;
        // For a last block that is not whole.
        let mut rests = [[0; BYTES]; ROWS];
        if !codes[0].len().is_multiple_of(BYTES) {
            for row in 0..ROWS {
                let rest = codes[row].as_chunks::<BYTES>().1;
                rests[row][..rest.len()].copy_from_slice(rest);
            }
        }
        // For two cells: integers, and steps and sums by slot.
        let table = x.floats.as_chunks::<LANES>().0.chunks_exact(M * (2 * WORDS + 2 * SLOTS));
        let (mut results, mut chunks) = ([_mm_setzero_ps(); M], [_mm_setzero_ps(); M]);
        for (number, x) in table.enumerate() {
            lines.prefetch(number, 2 * BYTES * ROWS / PARTS);
            let mut sums = [[[_mm256_setzero_si256(); 2]; 2]; M];
            for at in 0..2 {
                let index = 2 * number + at;
                if index >= cells {
                    break;
                }
                let is_whole = index / PARTS < whole_blocks;
                let mut whole = [[_mm256_setzero_si256(); ROWS]; M];
                for row in 0..ROWS {
                    // SAFETY: the number is below that of the blocks of any row.
                    let block = if is_whole { unsafe { blocks[row].get_unchecked(index / PARTS) } } else { &rests[row] };
                    let codes = cell(block, index % PARTS);
                    for m in 0..M {
                        let x = &x[m * (2 * WORDS + 2 * SLOTS) + at * WORDS..][..WORDS];
                        whole[m][row] = lanes::<TWOS>(&codes, x);
                    }
                }
                for m in 0..M {
                    let [a, b, c, d] = whole[m];
                    sums[m][at] = [_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)];
                }
            }
            let (scales, biases) = (pairs::<SLOTS>(&lines.scales, number), pairs::<SLOTS>(&lines.biases, number));
            for m in 0..M {
                let x = &x[m * (2 * WORDS + 2 * SLOTS) + 2 * WORDS..][..2 * SLOTS];
                let cells = cell_sums(register, x, slots::<SLOTS>(&sums[m]), [scales, biases], has_offset);
                let (first, second) = (_mm256_castps256_ps128(cells), _mm256_extractf128_ps(cells, 1));
                if number % 2 == 0 {
                    chunks[m] = _mm_add_ps(first, second);
                } else {
                    results[m] = _mm_add_ps(results[m], _mm_add_ps(_mm_add_ps(chunks[m], first), second));
                    chunks[m] = _mm_setzero_ps();
                }
            }
        }
        for m in 0..M {
            // A chunk of fewer than four cells is left; after others it is zero.
            let total = _mm_add_ps(results[m], chunks[m]);
            // SAFETY: the array has the size of the register.
            unsafe { _mm_storeu_ps(totals[m].as_mut_ptr(), total) };
        }
    }

    /// The products of a cell in eight lanes, each of eight neighbours.
    fn lanes[const TWOS: bool](codes: &[__m256i; WORDS], x: &[[f32; LANES]]) -> __m256i {
        let mut pairs = [_mm256_setzero_si256(); WORDS];
        for at in 0..WORDS {
            pairs[at] = _mm256_madd_epi16(codes[at], _mm256_castps_si256(load_floats(&x[at])));
        }
        let (first, second) = (_mm256_add_epi32(pairs[0], pairs[1]), _mm256_add_epi32(pairs[2], pairs[3]));
        if TWOS { _mm256_hadd_epi32(first, second) } else { _mm256_add_epi32(first, second) }
    }

    /// The sums of the groups of two cells, of four rows each: by slot, the rows of the first cell, then those of the second. Given
    /// are the sums of pairs of lanes, of the first two rows and of the others.
    fn slots[const SLOTS: usize](pairs: &[[__m256i; 2]; 2]) -> [__m256i; SLOTS] {
        let [first, second] = *pairs;
        let mut slots = [_mm256_setzero_si256(); SLOTS];
        if SLOTS == 4 {
            let (even, odd) = (quarters::<0x88>(first), quarters::<0xDD>(first));
            let (other_even, other_odd) = (quarters::<0x88>(second), quarters::<0xDD>(second));
            slots[0] = _mm256_permute2x128_si256(even, other_even, 0x20);
            slots[1] = _mm256_permute2x128_si256(odd, other_odd, 0x20);
            slots[2] = _mm256_permute2x128_si256(even, other_even, 0x31);
            slots[3] = _mm256_permute2x128_si256(odd, other_odd, 0x31);
        } else {
            let (first, second) = (_mm256_hadd_epi32(first[0], first[1]), _mm256_hadd_epi32(second[0], second[1]));
            let low = _mm256_permute2x128_si256(first, second, 0x20);
            let high = _mm256_permute2x128_si256(first, second, 0x31);
            if SLOTS == 2 {
                (slots[0], slots[1]) = (low, high);
            } else {
                slots[0] = _mm256_add_epi32(low, high);
            }
        }
        slots
    }

    /// Every other lane of two registers.
    fn quarters[const WHICH: i32](pairs: [__m256i; 2]) -> __m256i {
        let (first, second) = (_mm256_castsi256_ps(pairs[0]), _mm256_castsi256_ps(pairs[1]));
        _mm256_castps_si256(_mm256_shuffle_ps(first, second, WHICH))
    }

    /// The factors of two cells, in the order of [`slots`]; `number` counts pairs of cells.
    fn pairs[const SLOTS: usize](factors: &Factors<'_>, number: usize) -> [__m256; SLOTS] {
        let mut pairs = [_mm256_setzero_ps(); SLOTS];
        match factors {
            Factors::Transposed(factors) => {
                let cells = &factors[2 * SLOTS * ROWS * number..][..2 * SLOTS * ROWS];
                for slot in 0..SLOTS {
                    let (low, high) = (&cells[slot * ROWS..][..ROWS], &cells[(SLOTS + slot) * ROWS..][..ROWS]);
                    // SAFETY: both slices have the size of the register.
                    let (low, high) = unsafe { (_mm_loadu_ps(low.as_ptr()), _mm_loadu_ps(high.as_ptr())) };
                    pairs[slot] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
                }
            }
            Factors::Short(short) => {
                let bits = if SLOTS == 2 { two_slots(short, number) } else { [one_slot(short, number); 2] };
                for slot in 0..SLOTS {
                    pairs[slot] = match short.is_bfloat {
                        true => _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits[slot]), 16)),
                        false => _mm256_cvtph_ps(bits[slot]),
                    };
                }
            }
        }
        pairs
    }

    /// Short factors of two cells with two groups each: by slot, the rows of the first cell, then those of the second.
    fn two_slots(short: &Short<'_>, number: usize) -> [__m128i; 2] {
        let mut words = [0_i64; ROWS];
        if short.after(4 * number) == 2 {
            // The last cell of an odd number.
            let parts = short.parts::<2>(4 * number);
            for row in 0..ROWS {
                words[row] = i64::from(bytemuck::cast::<[u16; 2], u32>(parts[row]));
            }
        } else {
            words = bytemuck::cast(short.parts::<4>(4 * number));
        }
        let (first, second) = (_mm_set_epi64x(words[1], words[0]), _mm_set_epi64x(words[3], words[2]));
        // In each half of a register: the two factors of the first cell, then those of the second.
        let (first, second) = (_mm_castsi128_ps(first), _mm_castsi128_ps(second));
        let cells = (_mm_shuffle_ps(first, second, 0x88), _mm_shuffle_ps(first, second, 0xDD));
        let by_slot = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        let first = _mm_shuffle_epi8(_mm_castps_si128(cells.0), by_slot);
        let second = _mm_shuffle_epi8(_mm_castps_si128(cells.1), by_slot);
        [_mm_unpacklo_epi64(first, second), _mm_unpackhi_epi64(first, second)]
    }

    /// Short factors of two cells that are a group each, or the halves of one.
    fn one_slot(short: &Short<'_>, number: usize) -> __m128i {
        let mut words = [0_u32; ROWS];
        if short.is_shared || short.after(2 * number) == 1 {
            let parts = short.parts::<1>(if short.is_shared { number } else { 2 * number });
            for row in 0..ROWS {
                words[row] = u32::from(parts[row][0]) * if short.is_shared { 0x0001_0001 } else { 1 };
            }
        } else {
            words = bytemuck::cast(short.parts::<2>(2 * number));
        }
        let words = bytemuck::cast::<[u32; ROWS], __m128i>(words);
        _mm_shuffle_epi8(words, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15))
    }

    /// The codes that numbers of 16 bits hold, in the order of fours.
    fn fours(codes: __m256i, bits: i32) -> [__m256i; WORDS] {
        let (mut fours, mask) = ([codes; WORDS], _mm256_set1_epi16((1 << bits) - 1));
        for (four, shift) in fours.iter_mut().zip([0, bits, 2 * bits, 3 * bits]) {
            *four = _mm256_and_si256(_mm256_srl_epi16(codes, _mm_cvtsi32_si128(shift)), mask);
        }
        fours
    }

    /// Codes in bytes, the first and the third sixteen in the first register, as numbers of 16 bits in the order of twos.
    fn twos(codes: [__m256i; 2]) -> [__m256i; 4] {
        let ([first, second], mask) = (codes, _mm256_set1_epi16(0xFF));
        [
            _mm256_and_si256(first, mask),
            _mm256_srli_epi16(first, 8),
            _mm256_and_si256(second, mask),
            _mm256_srli_epi16(second, 8),
        ]
    }

    fn load(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array has the size of the register.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// Sixteen bytes from `start` on.
    fn load_half[const N: usize](bytes: &[u8; N], start: usize) -> __m128i {
        let bytes = &bytes[start..start + 16];
        // SAFETY: the slice has the size of the register.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// Sixteen bytes from each of two offsets.
    fn both[const N: usize](bytes: &[u8; N], [low, high]: [usize; 2]) -> __m256i {
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(bytes, low)), load_half(bytes, high), 1)
    }

    /// The same sixteen bytes in both halves.
    fn twice[const N: usize](block: &[u8; N], start: usize) -> __m256i {
        _mm256_broadcastsi128_si256(load_half(block, start))
    }

    /// A number for the lanes of each half of a register.
    fn halves(low: i32, high: i32) -> __m256i {
        _mm256_setr_epi32(low, low, low, low, high, high, high, high)
    }

    fn load_floats(floats: &[f32; LANES]) -> __m256 {
        // SAFETY: the array has the size of the register.
        unsafe { _mm256_loadu_ps(floats.as_ptr()) }
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below sixteen")]
fn small(number: usize) -> i32 {
    number as i32
}
