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

use super::activation::{CELL, CHUNK, ROWS, Sums};
use super::integer::{Activations, FourRows, WeightRows, cell_sums};
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

pub(super) mod flat;

vnni! {
    vbmi;

    /// Writes the products of all rows; see `Integers::products`.
    pub(super) fn products[const M: usize](weights: &mut WeightRows<'_>) {
        match *weights.packing() {
            Packing::Affine { bits, .. } if weights.x.layout.group == CELL => affine::<M, 1>(weights, bits),
            Packing::Affine { bits, .. } => affine::<M, 2>(weights, bits),
            Packing::E2m1 { .. } if weights.x.layout.group == CELL / 2 => e2m1::<M, 2>(weights),
            Packing::E2m1 { .. } => e2m1::<M, 4>(weights),
            Packing::Gguf(GgufType::Q4K) => rows::<M, 2, 1, 144>(weights, |block, part| [q4k(block, part, 16)]),
            Packing::Gguf(GgufType::Q5K) => rows::<M, 2, 1, 176>(weights, |block, part| [q5k(block, part)]),
            Packing::Gguf(GgufType::Q6K) => rows::<M, 4, 1, 210>(weights, |block, part| [q6k(block, part)]),
            Packing::E4m3 { .. } => {}
        }
    }

    fn affine[const M: usize, const SLOTS: usize](weights: &mut WeightRows<'_>, bits: u8) {
        match bits {
            2 => rows::<M, SLOTS, 4, 64>(weights, |codes, _| fields(load(codes, 0), 2)),
            4 => rows::<M, SLOTS, 2, 128>(weights, |codes, part| fields(load(codes, part * REGISTER), 4)),
            8 => rows::<M, SLOTS, 1, 256>(weights, |codes, part| [load(codes, part * REGISTER)]),
            3 => stream::<M, SLOTS, 3, 96>(weights),
            5 => stream::<M, SLOTS, 5, 160>(weights),
            _ => stream::<M, SLOTS, 6, 192>(weights),
        }
    }

    /// Codes that run across byte borders: eight are as many bytes as a code has bits.
    fn stream[const M: usize, const SLOTS: usize, const BITS: usize, const BYTES: usize](weights: &mut WeightRows<'_>) {
        const { assert!(BYTES == 32 * BITS) };
        // The bytes that hold each eight codes, and where in them each begins.
        let (mut bytes, mut shifts) = ([0_u8; REGISTER], [0_u8; REGISTER]);
        for at in 0..REGISTER {
            #[allow(clippy::cast_possible_truncation, reason = "below 64")]
            let (byte, shift) = ((at / 8 * BITS + at % 8) as u8, (at % 8 * BITS) as u8);
            (bytes[at], shifts[at]) = (byte, shift);
        }
        let (bytes, shifts, mask) = (load(&bytes, 0), load(&shifts, 0), _mm512_set1_epi8((1 << BITS) - 1));
        rows::<M, SLOTS, 1, BYTES>(weights, |codes, part| {
            let codes = &codes[part * 8 * BITS..][..8 * BITS];
            // SAFETY: the mask has a bit for each byte of the slice and no others, and what it leaves out is not read.
            let codes = unsafe { _mm512_maskz_loadu_epi8((1 << (8 * BITS)) - 1, codes.as_ptr().cast()) };
            let words = _mm512_permutexvar_epi8(bytes, codes);
            [_mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, words), mask)]
        });
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    fn e2m1[const M: usize, const SLOTS: usize](weights: &mut WeightRows<'_>) {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let values = _mm512_broadcast_i32x4(values);
        rows::<M, SLOTS, 2, 128>(weights, |codes, part| {
            let [even, odd] = fields(load(codes, part * REGISTER), 4);
            [_mm512_shuffle_epi8(values, even), _mm512_shuffle_epi8(values, odd)]
        });
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
    fn q4k[const N: usize](block: &[u8; N], part: usize, start: usize) -> __m512i {
        let codes = _mm512_srlv_epi16(load_twice(block, start + 32 * part), halves(0, 4));
        _mm512_and_si512(codes, _mm512_set1_epi8(15))
    }

    /// Same as [`q4k`], with a fifth bit.
    fn q5k(block: &[u8; 176], part: usize) -> __m512i {
        let bits = halves(0x0101 << (2 * part), 0x0202 << (2 * part));
        let has_fifth = _mm512_test_epi8_mask(load_twice(block, 16), bits);
        let codes = q4k(block, part, 48);
        _mm512_mask_add_epi8(codes, has_fifth, codes, _mm512_set1_epi8(16))
    }

    /// A part of a block of six bits: two runs of 32, with low bits from 64 bytes and high bits from 32.
    fn q6k(block: &[u8; 210], part: usize) -> __m512i {
        let (half, is_upper) = (part / 2, part % 2 == 1);
        let low = load(block, REGISTER * half);
        let low = if is_upper { _mm512_srli_epi16(low, 4) } else { low };
        let shifts = if is_upper { halves(4, 6) } else { halves(0, 2) };
        let high = _mm512_srlv_epi16(load_twice(block, 128 + 32 * half), shifts);
        let high = _mm512_slli_epi16(_mm512_and_si512(high, _mm512_set1_epi8(3)), 4);
        _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high)
    }

    /// The products of all rows, four at a time; see [`four`].
    fn rows[const M: usize, const SLOTS: usize, const VECTORS: usize, const BYTES: usize](
        weights: &mut WeightRows<'_>,
        part: impl Fn(&[u8; BYTES], usize) -> [__m512i; VECTORS],
    ) {
        let x = weights.x;
        for at in (0..weights.count()).step_by(ROWS) {
            let totals = four::<M, SLOTS, VECTORS, BYTES>(&weights.four(at), x, &part);
            weights.store(at, &totals);
        }
    }

    /// The products of four rows in chunks of `BYTES`, the last of which may be shorter, and parts of `VECTORS` registers of
    /// codes; a cell has `SLOTS` groups.
    fn four[const M: usize, const SLOTS: usize, const VECTORS: usize, const BYTES: usize](
        rows: &FourRows<'_>,
        x: &Activations<'_>,
        part: &impl Fn(&[u8; BYTES], usize) -> [__m512i; VECTORS],
    ) -> [[f32; ROWS]; M] {
        let register = Avx512::new();
        let has_offset = matches!(x.layout.sums, Sums::Offset(_));
        let [(a, rest_a), (b, rest_b), (c, rest_c), (d, rest_d)] = rows.codes.map(|codes| codes.as_chunks::<BYTES>());
        assert!(b.len() == a.len() && c.len() == a.len() && d.len() == a.len(), "rows have the same length");
        // The last chunk, if it is not whole.
        let mut rests = [[0; BYTES]; ROWS];
        if !rest_a.is_empty() {
            for (to, rest) in rests.iter_mut().zip([rest_a, rest_b, rest_c, rest_d]) {
                to[..rest.len()].copy_from_slice(rest);
            }
        }
        let table = x.floats.as_chunks::<LANES>().0.chunks_exact(M * (WORDS + 2 * SLOTS));
        let scales = rows.scales.as_chunks::<LANES>().0.chunks_exact(SLOTS);
        let biases = rows.biases.as_chunks::<LANES>().0.chunks_exact(SLOTS);
        let mut results = [_mm_setzero_ps(); M];
        for (number, (x, (scales, biases))) in table.zip(scales.zip(biases)).enumerate() {
            let mut blocks = [&rests[0], &rests[1], &rests[2], &rests[3]];
            if number < a.len() {
                // SAFETY: the number is below that of the chunks of any row.
                blocks = unsafe {
                    [a.get_unchecked(number), b.get_unchecked(number), c.get_unchecked(number), d.get_unchecked(number)]
                };
            }
            rows.prefetch(number, BYTES * ROWS);
            let mut sums = [[[_mm512_setzero_si512(); 2]; 4]; M];
            for set in 0..4 / VECTORS {
                // Nothing is left of a last chunk that is not whole.
                if number * CHUNK + set * VECTORS * CELL >= rows.columns {
                    break;
                }
                let mut unpacked = [[_mm512_setzero_si512(); VECTORS]; ROWS];
                for row in 0..ROWS {
                    unpacked[row] = part(blocks[row], set);
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
            let (scales, biases) = (by_slot::<SLOTS>(scales), by_slot::<SLOTS>(biases));
            for m in 0..M {
                let x = &x[m * (WORDS + 2 * SLOTS) + WORDS..][..2 * SLOTS];
                let cells = cell_sums(register, x, slots::<SLOTS, VECTORS>(&sums[m]), [scales, biases], has_offset);
                let low = _mm_add_ps(_mm512_castps512_ps128(cells), _mm512_extractf32x4_ps(cells, 1));
                let chunk = _mm_add_ps(low, _mm512_extractf32x4_ps(cells, 2));
                results[m] = _mm_add_ps(results[m], _mm_add_ps(chunk, _mm512_extractf32x4_ps(cells, 3)));
            }
        }
        let mut totals = [[0.0; ROWS]; M];
        for (m, totals) in totals.iter_mut().enumerate() {
            // SAFETY: the array has the size of the register.
            unsafe { _mm_storeu_ps(totals.as_mut_ptr(), results[m]) };
        }
        totals
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

    /// The factors of a chunk, in the order of the sums of [`slots`].
    fn by_slot[const SLOTS: usize](factors: &[[f32; LANES]]) -> [__m512; SLOTS] {
        let mut slots = [_mm512_setzero_ps(); SLOTS];
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
        slots
    }

    /// 64 bytes from `start` on.
    fn load[const N: usize](bytes: &[u8; N], start: usize) -> __m512i {
        let bytes = &bytes[start..start + REGISTER];
        // SAFETY: the slice has the size of the register.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    /// The same 32 bytes in both halves.
    fn load_twice[const N: usize](block: &[u8; N], start: usize) -> __m512i {
        let bytes = &block[start..start + REGISTER / 2];
        // SAFETY: the slice has the size of half a register.
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
