//! Few rows of activations times four rows of quantized weights in integers, as in `vnni`, for machines with AVX2: codes and
//! activations are numbers of 16 bits, whose products one instruction adds in pairs, exactly. (Products of bytes would need two
//! such for the two bytes of an activation, and overflow for codes of eight bits.) On machines with AVX-VNNI, the same instruction
//! adds them to a sum, too.
//!
//! A cell is 64 columns in 8 lanes of 8 neighbours, its codes four registers in one of two orders: `Order::Fours` for codes
//! that unpack from numbers of 16 bits with four in each, `Order::Twos` for codes in bytes and those that run across bytes.
//! Lanes of the same group are then added, which leaves a lane for each of four rows, and floats begin.
#![allow(unsafe_code, reason = "loads of registers, and an instruction")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{CELL, ROWS, Sums};
use super::integer::{Activations, FourRows, WeightRows, cell_sums};
use crate::quant::Packing;
use crate::simd::lanes::x86::Avx2;
use ptero_tensor::GgufType;
use std::arch::asm;
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

/// The sums of four rows, while they grow.
struct Floats<'a, const M: usize, const SLOTS: usize> {
    table: &'a [[f32; LANES]],
    /// `SLOTS` for two cells.
    scales: &'a [[f32; LANES]],
    biases: &'a [[f32; LANES]],
    has_offset: bool,
    results: [__m128; M],
    /// Sums of the cells of a chunk so far.
    chunks: [__m128; M],
}

avx2! {
    /// Writes the products of all rows; see `Integers::products`.
    pub(super) fn products[const M: usize, const VNNI: bool](weights: &mut WeightRows<'_>) {
        match *weights.packing() {
            Packing::Affine { bits, .. } if weights.x.layout.group == CELL => affine::<M, 1, VNNI>(weights, bits),
            Packing::Affine { bits, .. } => affine::<M, 2, VNNI>(weights, bits),
            Packing::E2m1 { .. } if weights.x.layout.group == CELL / 2 => e2m1::<M, 2, VNNI>(weights),
            Packing::E2m1 { .. } => e2m1::<M, 4, VNNI>(weights),
            Packing::Gguf(GgufType::Q4K) => {
                rows::<M, 2, 144, 4, true, VNNI>(weights, |block, part| with_minima(block, 16, part));
            }
            Packing::Gguf(GgufType::Q5K) => {
                rows::<M, 2, 176, 4, true, VNNI>(weights, |block, part| with_minima(block, 48, part));
            }
            Packing::Gguf(GgufType::Q6K) => rows::<M, 4, 210, 4, true, VNNI>(weights, |block, part| q6k(block, part)),
            Packing::E4m3 { .. } => {}
        }
    }

    fn affine[const M: usize, const SLOTS: usize, const VNNI: bool](weights: &mut WeightRows<'_>, bits: u8) {
        match bits {
            2 => rows::<M, SLOTS, 16, 1, false, VNNI>(weights, |codes, _| {
                fours(_mm256_cvtepu8_epi16(load_half(codes, 0)), 2)
            }),
            4 => rows::<M, SLOTS, 32, 1, false, VNNI>(weights, |codes, _| fours(load(codes), 4)),
            8 => rows::<M, SLOTS, 64, 1, true, VNNI>(weights, |codes, _| {
                twos([both(codes, [0, 32]), both(codes, [16, 48])])
            }),
            3 => stream::<M, SLOTS, 3, 24, VNNI>(weights),
            5 => stream::<M, SLOTS, 5, 40, VNNI>(weights),
            _ => stream::<M, SLOTS, 6, 48, VNNI>(weights),
        }
    }

    /// Codes that run across byte borders: two neighbours lie within two bytes, and a factor moves them to the upper end.
    /// Sixteen are `2 * BITS` bytes, of `BYTES` for a cell; what would be read beyond these is read from their last sixteen.
    fn stream[const M: usize, const SLOTS: usize, const BITS: usize, const BYTES: usize, const VNNI: bool](weights: &mut WeightRows<'_>) {
        let starts: [usize; 4] = const {
            assert!(BYTES == 8 * BITS);
            let last = BYTES - 16;
            [0, 2 * BITS, if 4 * BITS < last { 4 * BITS } else { last }, last]
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
        rows::<M, SLOTS, BYTES, 1, true, VNNI>(weights, |codes, _| {
            let first = _mm256_shuffle_epi8(both(codes, [starts[0], starts[2]]), bytes[0]);
            let second = _mm256_shuffle_epi8(both(codes, [starts[1], starts[3]]), bytes[1]);
            let (first, second) = (_mm256_mullo_epi16(first, factors), _mm256_mullo_epi16(second, factors));
            [
                _mm256_and_si256(_mm256_srl_epi16(first, lower), mask),
                _mm256_srl_epi16(first, upper),
                _mm256_and_si256(_mm256_srl_epi16(second, lower), mask),
                _mm256_srl_epi16(second, upper),
            ]
        });
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    fn e2m1[const M: usize, const SLOTS: usize, const VNNI: bool](weights: &mut WeightRows<'_>) {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let (values, mask, bytes) = (_mm256_broadcastsi128_si256(values), _mm256_set1_epi8(15), _mm256_set1_epi16(0xFF));
        rows::<M, SLOTS, 32, 1, false, VNNI>(weights, |codes, _| {
            let codes = load(codes);
            let even = _mm256_shuffle_epi8(values, _mm256_and_si256(codes, mask));
            let odd = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask));
            [
                _mm256_and_si256(even, bytes),
                _mm256_and_si256(odd, bytes),
                _mm256_srli_epi16(even, 8),
                _mm256_srli_epi16(odd, 8),
            ]
        });
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
        let shift = small(4 * upper);
        let (low_shift, high_shifts) = (halves(shift, shift), halves(shift, shift + 2));
        let quarter = |at: usize| {
            let low = both(block, [64 * half + at, 64 * half + 32 + at]);
            let low = _mm256_and_si256(_mm256_srlv_epi32(low, low_shift), _mm256_set1_epi8(15));
            let high = _mm256_srlv_epi32(twice(block, 128 + 32 * half + at), high_shifts);
            _mm256_or_si256(low, _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4))
        };
        twos([quarter(0), quarter(16)])
    }

    /// The products of all rows, four at a time; see [`four`].
    fn rows[const M: usize, const SLOTS: usize, const BYTES: usize, const PARTS: usize, const TWOS: bool, const VNNI: bool](
        weights: &mut WeightRows<'_>,
        cell: impl Fn(&[u8; BYTES], usize) -> [__m256i; WORDS],
    ) {
        let x = weights.x;
        for at in (0..weights.count()).step_by(ROWS) {
            let totals = four::<M, SLOTS, BYTES, PARTS, TWOS, VNNI>(&weights.four(at), x, &cell);
            weights.store(at, &totals);
        }
    }

    /// The products of four rows in blocks of `BYTES`, the last of which may be shorter. A block is `PARTS` cells, one or four,
    /// in the order of twos or of fours; a cell has `SLOTS` groups.
    ///
    /// The floats of two cells are computed after the integers of the next two, which do not depend on them: so the machine
    /// does not wait for either.
    fn four[const M: usize, const SLOTS: usize, const BYTES: usize, const PARTS: usize, const TWOS: bool, const VNNI: bool](
        rows: &FourRows<'_>,
        x: &Activations<'_>,
        cell: &impl Fn(&[u8; BYTES], usize) -> [__m256i; WORDS],
    ) -> [[f32; ROWS]; M] {
        let [(a, rest_a), (b, rest_b), (c, rest_c), (d, rest_d)] = rows.codes.map(|codes| codes.as_chunks::<BYTES>());
        assert!(b.len() == a.len() && c.len() == a.len() && d.len() == a.len(), "rows have the same length");
        // The last block, if it is not whole.
        let mut rests = [[0; BYTES]; ROWS];
        if !rest_a.is_empty() {
            for (to, rest) in rests.iter_mut().zip([rest_a, rest_b, rest_c, rest_d]) {
                to[..rest.len()].copy_from_slice(rest);
            }
        }
        let (whole_cells, cells) = (a.len() * PARTS, rows.columns.div_ceil(CELL));
        // For two cells: integers, and steps and sums by slot.
        let (table, width) = (x.floats.as_chunks::<LANES>().0, M * (2 * WORDS + 2 * SLOTS));
        let mut floats = Floats::<M, SLOTS> {
            table,
            scales: rows.scales.as_chunks().0,
            biases: rows.biases.as_chunks().0,
            has_offset: matches!(x.layout.sums, Sums::Offset(_)),
            results: [_mm_setzero_ps(); M],
            chunks: [_mm_setzero_ps(); M],
        };
        let mut before = [[_mm256_setzero_si256(); SLOTS]; M];
        for (index, x) in table.chunks_exact(width).enumerate() {
            rows.prefetch(index, 2 * BYTES * ROWS / PARTS);
            let mut sums = [[[_mm256_setzero_si256(); 2]; 2]; M];
            for at in 0..2 {
                let number = 2 * index + at;
                if number >= cells {
                    break;
                }
                let mut blocks = [&rests[0], &rests[1], &rests[2], &rests[3]];
                if number < whole_cells {
                    let block = number / PARTS;
                    // SAFETY: the number is below that of the blocks of any row.
                    blocks = unsafe {
                        [a.get_unchecked(block), b.get_unchecked(block), c.get_unchecked(block), d.get_unchecked(block)]
                    };
                }
                let mut whole = [[_mm256_setzero_si256(); ROWS]; M];
                for row in 0..ROWS {
                    let codes = cell(blocks[row], number % PARTS);
                    for m in 0..M {
                        let x = &x[m * (2 * WORDS + 2 * SLOTS) + at * WORDS..][..WORDS];
                        whole[m][row] = lanes::<TWOS, VNNI>(&codes, x);
                    }
                }
                for m in 0..M {
                    let [a, b, c, d] = whole[m];
                    sums[m][at] = [_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)];
                }
            }
            if index > 0 {
                add(&mut floats, index - 1, &before);
            }
            for m in 0..M {
                before[m] = slots::<SLOTS>(&sums[m]);
            }
        }
        if !table.is_empty() {
            add(&mut floats, table.len() / width - 1, &before);
        }
        let mut totals = [[0.0; ROWS]; M];
        for (m, totals) in totals.iter_mut().enumerate() {
            // A chunk of fewer than four cells is left; after others it is zero.
            let total = _mm_add_ps(floats.results[m], floats.chunks[m]);
            // SAFETY: the array has the size of the register.
            unsafe { _mm_storeu_ps(totals.as_mut_ptr(), total) };
        }
        totals
    }

    /// Adds two cells, pair number `index`, given the sums of their groups.
    fn add[const M: usize, const SLOTS: usize](
        floats: &mut Floats<'_, M, SLOTS>,
        index: usize,
        sums: &[[__m256i; SLOTS]; M],
    ) {
        let register = Avx2::new();
        let scales = by_slot::<SLOTS>(&floats.scales[index * SLOTS..][..SLOTS]);
        let biases = by_slot::<SLOTS>(&floats.biases[index * SLOTS..][..SLOTS]);
        for (m, sums) in sums.iter().enumerate() {
            let x = &floats.table[(index * M + m) * (2 * WORDS + 2 * SLOTS) + 2 * WORDS..][..2 * SLOTS];
            let cells = cell_sums(register, x, *sums, [scales, biases], floats.has_offset);
            let (first, second) = (_mm256_castps256_ps128(cells), _mm256_extractf128_ps(cells, 1));
            floats.chunks[m] = _mm_add_ps(_mm_add_ps(floats.chunks[m], first), second);
            if index % 2 == 1 {
                floats.results[m] = _mm_add_ps(floats.results[m], floats.chunks[m]);
                floats.chunks[m] = _mm_setzero_ps();
            }
        }
    }

    /// The products of a cell in eight lanes, each of eight neighbours.
    fn lanes[const TWOS: bool, const VNNI: bool](codes: &[__m256i; WORDS], x: &[[f32; LANES]]) -> __m256i {
        let mut sums = [_mm256_setzero_si256(); 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            let at = 2 * half;
            let [x, other_x] = [&x[at], &x[at + 1]].map(|x| _mm256_castps_si256(load_floats(x)));
            let products = _mm256_madd_epi16(codes[at], x);
            *sum = if VNNI {
                add_products(products, codes[at + 1], other_x)
            } else {
                _mm256_add_epi32(products, _mm256_madd_epi16(codes[at + 1], other_x))
            };
        }
        let [first, second] = sums;
        if TWOS { _mm256_hadd_epi32(first, second) } else { _mm256_add_epi32(first, second) }
    }

    /// Adds the products of numbers of 16 bits in pairs to sums. Only for machines with AVX-VNNI. A function with the intrinsic of this
    /// instruction would not be inlined into those for AVX2.
    fn add_products(mut sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the instruction changes the sums alone; callers of this file's functions for AVX-VNNI know that there is one.
        unsafe {
            asm!("{{vex}} vpdpwssd {sums}, {codes}, {x}", sums = inout(ymm_reg) sums, codes = in(ymm_reg) codes,
                x = in(ymm_reg) x, options(pure, nomem, nostack, preserves_flags));
        }
        sums
    }

    /// The sums of the groups of two cells, of four rows each: by slot, the rows of the first cell, then those of the second.
    /// Given are the sums of pairs of lanes, of the first two rows and of the others.
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

    /// The factors of two cells, in the order of [`slots`].
    fn by_slot[const SLOTS: usize](factors: &[[f32; LANES]]) -> [__m256; SLOTS] {
        let mut slots = [_mm256_setzero_ps(); SLOTS];
        if SLOTS == 1 {
            slots[0] = load_floats(&factors[0]);
        } else if SLOTS == 2 {
            let (first, second) = (load_floats(&factors[0]), load_floats(&factors[1]));
            slots[0] = _mm256_permute2f128_ps(first, second, 0x20);
            slots[1] = _mm256_permute2f128_ps(first, second, 0x31);
        } else {
            for half in 0..SLOTS / 2 {
                let (first, second) = (load_floats(&factors[half]), load_floats(&factors[SLOTS / 2 + half]));
                slots[2 * half] = _mm256_permute2f128_ps(first, second, 0x20);
                slots[2 * half + 1] = _mm256_permute2f128_ps(first, second, 0x31);
            }
        }
        slots
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
