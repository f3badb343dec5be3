//! Few rows of activations times four rows of quantized weights, without decoding these: codes and activations are integers,
//! whose products AVX-512 VNNI sums exactly, four bytes to a lane. Lanes of the same group are then added, which leaves a lane
//! for each of four rows and four cells, and floats begin: `docs/ARITHMETIC.md`, "QuantMatMul". The middle of signed codes
//! is subtracted in integers.
//!
//! Its plain twin is `codes::product`.
//!
//! Functions here avoid iterator adapters that take closures: a closure has the target features of the function around it, the
//! adapter has not, so that neither is inlined.
#![allow(unsafe_code, reason = "loads of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{CELL, ROWS, Sums};
use super::integer::{Factors, FourRows, MOST, Short, cell_sums};
use crate::quant::Packing;
use crate::simd::lanes::x86::Avx512;
use ptero_tensor::GgufType;
use std::arch::x86_64::*;

/// Bytes of a register, and codes of an unpacked one.
const REGISTER: usize = 64;
/// Floats of a register.
const LANES: usize = 16;
/// Registers of the integers of a chunk.
const WORDS: usize = 8;

/// The index of the factor of a slot, cell and row among those of four rows, eight words each.
const TWO_SLOTS: [u16; 32] = indices(2, 0);
const ONE_SLOT: [u16; 32] = indices(1, 0);
/// The indices where two cells share a factor.
const SHARED: [u16; 32] = indices(1, 1);

const fn indices(slots: u16, shift: u32) -> [u16; 32] {
    let (mut indices, mut at) = ([0; 32], 0_u16);
    while at < 32 {
        let (slot, cell, row) = (at / 16 % slots, at / 4 % 4, at % 4);
        indices[at as usize] = 8 * row + ((slots * cell + slot) >> shift);
        at += 1;
    }
    indices
}

/// A function for machines with AVX-512, VNNI, and permutations of bytes.
macro_rules! vnni {
    ($( $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$attribute])*
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
}

vnni! {
    /// Writes the products of four rows; see `Integers::products`.
    pub(super) fn products[const M: usize](lines: &FourRows<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        match lines.packing {
            Packing::Affine { bits, .. } if lines.x.layout.group == CELL => affine::<M, 1>(lines, *bits, totals),
            Packing::Affine { bits, .. } => affine::<M, 2>(lines, *bits, totals),
            Packing::E2m1 { .. } if lines.x.layout.group == CELL / 2 => e2m1::<M, 2>(lines, totals),
            Packing::E2m1 { .. } => e2m1::<M, 4>(lines, totals),
            Packing::Gguf(GgufType::Q4K) => four::<M, 2, 1>(lines, 144, |block, part| [q4k(block, part, 16)], totals),
            Packing::Gguf(GgufType::Q5K) => four::<M, 2, 1>(lines, 176, |block, part| [q5k(block, part)], totals),
            Packing::Gguf(GgufType::Q6K) => four::<M, 4, 1>(lines, 210, |block, part| [q6k(block, part)], totals),
            Packing::E4m3 { .. } => {}
        }
    }

    fn affine[const M: usize, const SLOTS: usize](lines: &FourRows<'_>, bits: u8, totals: &mut [[f32; ROWS]; MOST]) {
        match bits {
            2 => four::<M, SLOTS, 4>(lines, 64, |codes, _| fields(load(codes, 0), 2), totals),
            4 => four::<M, SLOTS, 2>(lines, 128, |codes, part| fields(load(codes, part * REGISTER), 4), totals),
            8 => four::<M, SLOTS, 1>(lines, 256, |codes, part| [load(codes, part * REGISTER)], totals),
            // Codes that run across byte borders: eight are as many bytes as a code has bits.
            bits => {
                let (bytes, shifts) = stream(bits);
                let mask = _mm512_set1_epi8((1 << bits) - 1);
                let width = usize::from(bits);
                four::<M, SLOTS, 1>(lines, 32 * width, |codes, part| {
                    let words = _mm512_permutexvar_epi8(bytes, load(codes, part * 8 * width));
                    [_mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, words), mask)]
                }, totals);
            }
        }
    }

    /// The bytes that hold each eight codes, and where in them each begins.
    fn stream(bits: u8) -> (__m512i, __m512i) {
        let (mut bytes, mut shifts) = ([0_u8; REGISTER], [0_u8; REGISTER]);
        for (at, (byte, shift)) in (0_u8..).zip(bytes.iter_mut().zip(&mut shifts)) {
            (*byte, *shift) = (at / 8 * bits + at % 8, at % 8 * bits);
        }
        (load(&bytes, 0), load(&shifts, 0))
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    fn e2m1[const M: usize, const SLOTS: usize](lines: &FourRows<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let values = _mm512_broadcast_i32x4(values);
        four::<M, SLOTS, 2>(lines, 128, |codes, part| {
            let [even, odd] = fields(load(codes, part * REGISTER), 4);
            [_mm512_shuffle_epi8(values, even), _mm512_shuffle_epi8(values, odd)]
        }, totals);
    }

    /// The codes that bytes hold, `VECTORS` in each, lowest first.
    fn fields[const VECTORS: usize](codes: __m512i, bits: i32) -> [__m512i; VECTORS] {
        let (mut fields, mut shift, mask) = ([codes; VECTORS], 0, _mm512_set1_epi8((1 << bits) - 1));
        for field in &mut fields {
            *field = _mm512_and_si512(_mm512_srl_epi16(codes, _mm_cvtsi32_si128(shift)), mask);
            shift += bits;
        }
        fields
    }

    /// A part of a block with minima, whose codes begin at `start`: the low and the high halves of 32 bytes.
    fn q4k(block: &[u8], part: usize, start: usize) -> __m512i {
        let codes = _mm512_srlv_epi16(load_twice(block, start + 32 * part), halves(0, 4));
        _mm512_and_si512(codes, _mm512_set1_epi8(15))
    }

    /// Same as [`q4k`], with a fifth bit.
    fn q5k(block: &[u8], part: usize) -> __m512i {
        let bits = halves(0x0101 << (2 * part), 0x0202 << (2 * part));
        let has_fifth = _mm512_test_epi8_mask(load_twice(block, 16), bits);
        let codes = q4k(block, part, 48);
        _mm512_mask_add_epi8(codes, has_fifth, codes, _mm512_set1_epi8(16))
    }

    /// A part of a block of six bits: two runs of 32, with low bits from 64 bytes and high bits from 32.
    fn q6k(block: &[u8], part: usize) -> __m512i {
        let (half, is_upper) = (part / 2, part % 2 == 1);
        let low = load(block, REGISTER * half);
        let low = if is_upper { _mm512_srli_epi16(low, 4) } else { low };
        let shifts = if is_upper { halves(4, 6) } else { halves(0, 2) };
        let high = _mm512_srlv_epi16(load_twice(block, 128 + 32 * half), shifts);
        let high = _mm512_slli_epi16(_mm512_and_si512(high, _mm512_set1_epi8(3)), 4);
        _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high)
    }

    /// The products of four rows in chunks of `bytes` bytes, the last of which may be shorter, and parts of `VECTORS`
    /// registers of codes; a cell has `SLOTS` groups.
    fn four[const M: usize, const SLOTS: usize, const VECTORS: usize](
        lines: &FourRows<'_>,
        bytes: usize,
        part: impl Fn(&[u8], usize) -> [__m512i; VECTORS],
        totals: &mut [[f32; ROWS]; MOST],
    ) {
        let (codes, x, register) = (&lines.codes, lines.x, Avx512::new());
        let has_offset = matches!(x.layout.sums, Sums::Offset(_));
        let table = x.floats.as_chunks::<LANES>().0.chunks_exact(M * (WORDS + 2 * SLOTS));
        let mut results = [_mm_setzero_ps(); M];
        for (number, x) in table.enumerate() {
            lines.prefetch(number, bytes * ROWS);
            let mut sums = [[[_mm512_setzero_si512(); 2]; 4]; M];
            let left = codes[0].len().saturating_sub(number * bytes);
            for set in 0..4 / VECTORS {
                // Nothing is left of a last chunk that is not whole.
                if set * VECTORS * bytes >= 4 * left {
                    break;
                }
                let mut unpacked = [[_mm512_setzero_si512(); VECTORS]; ROWS];
                for row in 0..ROWS {
                    unpacked[row] = part(codes[row].get(number * bytes..).unwrap_or_default(), set);
                }
                for m in 0..M {
                    let x = &x[m * (WORDS + 2 * SLOTS) + 2 * VECTORS * set..][..2 * VECTORS];
                    let mut whole = [_mm512_setzero_si512(); ROWS];
                    for row in 0..ROWS {
                        whole[row] = lanes(&unpacked[row], x);
                    }
                    let [a, b, c, d] = transposed(&whole);
                    sums[m][set] = [_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)];
                }
            }
            let (scales, biases) = (by_slot::<SLOTS>(&lines.scales, number), by_slot::<SLOTS>(&lines.biases, number));
            for m in 0..M {
                let x = &x[m * (WORDS + 2 * SLOTS) + WORDS..][..2 * SLOTS];
                let cells = cell_sums(register, x, slots::<SLOTS, VECTORS>(&sums[m]), [scales, biases], has_offset);
                let low = _mm_add_ps(_mm512_castps512_ps128(cells), _mm512_extractf32x4_ps(cells, 1));
                let chunk = _mm_add_ps(low, _mm512_extractf32x4_ps(cells, 2));
                results[m] = _mm_add_ps(results[m], _mm_add_ps(chunk, _mm512_extractf32x4_ps(cells, 3)));
            }
        }
        for m in 0..M {
            // SAFETY: the array has the size of the register.
            unsafe { _mm_storeu_ps(totals[m].as_mut_ptr(), results[m]) };
        }
    }

    /// The products of `64 * VECTORS` columns in sixteen lanes of neighbours.
    fn lanes[const VECTORS: usize](codes: &[__m512i; VECTORS], x: &[[f32; LANES]]) -> __m512i {
        let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for at in 0..VECTORS {
            high = _mm512_dpbusd_epi32(high, codes[at], _mm512_castps_si512(load_floats(&x[2 * at])));
            low = _mm512_dpbusd_epi32(low, codes[at], _mm512_castps_si512(load_floats(&x[2 * at + 1])));
        }
        _mm512_add_epi32(_mm512_slli_epi32(high, 8), low)
    }

    /// The sums of the groups of a chunk, of four rows: by slot, a quarter of a register for each cell, and in it a lane for
    /// each row. Given are, for each part of the chunk, the sums of the first two lanes of each quarter and of the others.
    fn slots[const SLOTS: usize, const VECTORS: usize](parts: &[[__m512i; 2]; 4]) -> [__m512i; SLOTS] {
        let [[a, b], [c, d], ..] = *parts;
        if VECTORS == 4 {
            // A quarter is a cell.
            return one_or_two(a, b);
        }
        let mut slots = [_mm512_setzero_si512(); SLOTS];
        if VECTORS == 2 && SLOTS == 4 {
            // A quarter is 32 columns, half of its lanes a group.
            slots[0] = _mm512_shuffle_i32x4(a, c, 0x88);
            slots[1] = _mm512_shuffle_i32x4(b, d, 0x88);
            slots[2] = _mm512_shuffle_i32x4(a, c, 0xDD);
            slots[3] = _mm512_shuffle_i32x4(b, d, 0xDD);
        } else if VECTORS == 2 {
            let (first, second) = (_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
            let (even, odd) = (_mm512_shuffle_i32x4(first, second, 0x88), _mm512_shuffle_i32x4(first, second, 0xDD));
            return one_or_two(even, odd);
        } else {
            // A quarter is 16 columns, a part a cell.
            let mut cells = [_mm512_setzero_si512(); 4];
            for at in 0..4 {
                cells[at] = _mm512_add_epi32(parts[at][0], parts[at][1]);
            }
            let [a, b, c, d] = quarters(cells);
            if SLOTS < 4 {
                return one_or_two(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
            }
            (slots[0], slots[1], slots[2], slots[3]) = (a, b, c, d);
        }
        slots
    }

    /// The sums of the halves of cells, by slot: a half is a group, or a cell is.
    fn one_or_two[const SLOTS: usize](first: __m512i, second: __m512i) -> [__m512i; SLOTS] {
        let mut slots = [first; SLOTS];
        if SLOTS == 2 {
            slots[1] = second;
        } else {
            slots[0] = _mm512_add_epi32(first, second);
        }
        slots
    }

    /// In each quarter of a register, four lanes of four rows become four rows of one lane.
    fn transposed(rows: &[__m512i; ROWS]) -> [__m512i; 4] {
        let [a, b, c, d] = *rows;
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (other_low, other_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(low, other_low),
            _mm512_unpackhi_epi64(low, other_low),
            _mm512_unpacklo_epi64(high, other_high),
            _mm512_unpackhi_epi64(high, other_high),
        ]
    }

    /// The first quarters of four registers, then the second ones, and so on.
    fn quarters(cells: [__m512i; 4]) -> [__m512i; 4] {
        let [a, b, c, d] = cells;
        let (even, odd) = (_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
        let (other_even, other_odd) = (_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xDD));
        [
            _mm512_shuffle_i32x4(even, other_even, 0x88),
            _mm512_shuffle_i32x4(odd, other_odd, 0x88),
            _mm512_shuffle_i32x4(even, other_even, 0xDD),
            _mm512_shuffle_i32x4(odd, other_odd, 0xDD),
        ]
    }

    /// The factors of chunk `number`, in the order of the sums of [`slots`].
    fn by_slot[const SLOTS: usize](factors: &Factors<'_>, number: usize) -> [__m512; SLOTS] {
        let mut slots = [_mm512_setzero_ps(); SLOTS];
        match factors {
            Factors::Transposed(factors) => {
                let factors = factors[SLOTS * LANES * number..][..SLOTS * LANES].as_chunks::<LANES>().0;
                if SLOTS == 1 {
                    slots[0] = load_floats(&factors[0]);
                } else if SLOTS == 2 {
                    let (first, second) = (load_floats(&factors[0]), load_floats(&factors[1]));
                    slots[0] = _mm512_shuffle_f32x4(first, second, 0x88);
                    slots[1] = _mm512_shuffle_f32x4(first, second, 0xDD);
                } else {
                    let mut cells = [_mm512_setzero_si512(); 4];
                    for at in 0..SLOTS {
                        cells[at] = _mm512_castps_si512(load_floats(&factors[at]));
                    }
                    let quarters = quarters(cells);
                    for at in 0..SLOTS {
                        slots[at] = _mm512_castsi512_ps(quarters[at]);
                    }
                }
            }
            Factors::Short(short) => {
                let words = short_factors::<SLOTS>(short, number);
                slots[0] = widened(_mm512_castsi512_si256(words), short.is_bfloat);
                if SLOTS == 2 {
                    slots[1] = widened(_mm512_extracti64x4_epi64(words, 1), short.is_bfloat);
                }
            }
        }
        slots
    }

    fn widened(bits: __m256i, is_bfloat: bool) -> __m512 {
        match is_bfloat {
            true => _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)),
            false => _mm512_cvtph_ps(bits),
        }
    }

    /// Short factors of a chunk: a half of the register for each slot, and in it four rows of each cell.
    fn short_factors[const SLOTS: usize](short: &Short<'_>, number: usize) -> __m512i {
        // All four rows go into one register, eight words each.
        let is_shared = short.is_shared;
        let most = if is_shared { 2 } else { 4 * SLOTS };
        #[allow(clippy::cast_possible_truncation, reason = "of at most eight bits")]
        let mask = ((1_u32 << short.after(most * number).min(most)) - 1) as u8;
        let mut parts = [_mm_setzero_si128(); ROWS];
        for (part, row) in parts.iter_mut().zip(short.rows) {
            let start = row.as_ptr().wrapping_add(most * number);
            // SAFETY: the mask has a bit for each element that the row has from there on and no others, and what it leaves out is
            // not read.
            *part = unsafe { _mm_maskz_loadu_epi16(mask, start.cast()) };
        }
        let low = _mm256_inserti128_si256(_mm256_castsi128_si256(parts[0]), parts[1], 1);
        let high = _mm256_inserti128_si256(_mm256_castsi128_si256(parts[2]), parts[3], 1);
        let words = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        let indices = if SLOTS == 2 { &TWO_SLOTS } else if is_shared { &SHARED } else { &ONE_SLOT };
        // SAFETY: the array has the size of the register.
        let indices = unsafe { _mm512_loadu_si512(indices.as_ptr().cast()) };
        _mm512_permutexvar_epi16(indices, words)
    }

    /// Up to 64 bytes from `start` on, and zeros after them.
    fn load(bytes: &[u8], start: usize) -> __m512i {
        let bytes = bytes.get(start..).unwrap_or_default();
        match bytes.first_chunk::<REGISTER>() {
            // SAFETY: the chunk has the size of the register.
            Some(bytes) => unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) },
            // SAFETY: the mask has a bit for each byte of the slice and no others, and what it leaves out is not read.
            None => unsafe { _mm512_maskz_loadu_epi8((1 << bytes.len()) - 1, bytes.as_ptr().cast()) },
        }
    }

    /// The same 32 bytes in both halves.
    fn load_twice(block: &[u8], start: usize) -> __m512i {
        let bytes: &[u8; 32] = block.get(start..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 32]);
        // SAFETY: the array has the size of half a register.
        _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }

    fn load_floats(floats: &[f32; LANES]) -> __m512 {
        // SAFETY: the array has the size of the register.
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }

    /// A number for each half of a register.
    fn halves(low: i16, high: i16) -> __m512i {
        _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1)
    }
}
