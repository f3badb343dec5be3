//! Few rows of activations times quantized weights, without decoding these: codes and activations are integers, whose products
//! AVX-512 VNNI sums exactly, four bytes to a lane; a multiplication per lane by the scales of weights and activations makes
//! them floats. What is added to a weight whatever its code (a bias, a minimum) is multiplied with the sum of the lane's
//! activations instead; the middle of the codes is taken off in integers.
//!
//! Its plain twin is `Weights::decode` and a dot product of floats: the tests of `quant` compare both with sums of doubles.
//!
//! Functions here avoid adapters of iterators that take closures: a closure has the instructions of the function around it, the
//! adapter has not, so that neither is inlined.
#![allow(unsafe_code, reason = "loads of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{LANES, Layout, Order, REGISTER, Sums};
use super::integer::Activations;
use crate::quant::{Packing, Scales, Weights};
use half::{bf16, f16};
use ptero_tensor::GgufType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes that are fetched ahead of those in use.
const AHEAD: usize = 2048;

/// The place of the first zero behind sixteen elements.
const LANES_I32: i32 = 16;

/// A function for machines with AVX-512, VNNI, and permutations of bytes.
macro_rules! vnni {
    ($( $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$attribute])*
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
}

/// What the activations of `64 * V` columns are multiplied with.
struct Chunk<const V: usize> {
    codes: [__m512i; V],
    /// Factors of the codes, per lane.
    scales: __m512,
    /// What the sums of activations are multiplied with, per lane; nothing if products start from the sums, see `Sums::Offset`.
    constants: Option<__m512>,
}

/// How the scales of a row are spread over the lanes of its chunks.
#[derive(Clone, Copy)]
struct Spread {
    /// Scales of a chunk: at least one.
    count: usize,
    /// As a power of two, chunks that share a scale.
    shift: u32,
    /// The scale of each lane.
    index: __m512i,
    /// Likewise for the upper halves of lanes, and none for the lower ones.
    upper: __m512i,
}

impl Spread {
    /// The scales of a chunk, and some after them: sixteen in all, unless there are fewer. In the last chunk of a row lanes
    /// without activations may get scales of the next row. These are multiplied with zero; if that is not a number, floats
    /// do the row again.
    #[inline(always)]
    fn part<'a, T>(&self, scales: &'a [T], number: usize) -> Result<&'a [T; LANES], &'a [T]> {
        let rest = scales.get((number * self.count) >> self.shift..).unwrap_or_default();
        rest.first_chunk().ok_or(rest)
    }
}

/// A row of weights, and what it is multiplied with.
#[derive(Clone, Copy)]
struct Line<'a> {
    row: usize,
    codes: &'a [u8],
    x: &'a Activations<'a>,
    spread: Spread,
}

vnni! {
    /// Writes the products of some rows of the weights; see `Integers::products`.
    pub(super) fn products[const M: usize](
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        sums: &mut [f32],
        stride: usize,
    ) {
        let Order::Bytes { vectors } = x.layout.order else { return };
        let spread = spread(weights, vectors);
        for (at, row) in rows.enumerate() {
            let line = Line { row, codes: weights.codes.row(row, weights.row_bytes()), x, spread };
            let totals = line_products::<M>(weights, line);
            for (m, total) in totals.into_iter().enumerate() {
                if let Some(sum) = sums.get_mut(m * stride + at) {
                    *sum = _mm512_reduce_add_ps(total);
                }
            }
        }
    }

    fn spread(weights: &Weights<'_>, vectors: usize) -> Spread {
        let group = match weights.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } | Packing::E4m3 { group, .. } => group,
            Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => 32,
            Packing::Gguf(GgufType::Q6K) => 16,
        };
        // A power of two, as the group is.
        let lanes = group / (4 * vectors);
        let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let index = _mm512_srl_epi32(numbers, _mm_cvtsi32_si128(lanes.ilog2().cast_signed()));
        Spread {
            count: (LANES / lanes).max(1),
            shift: (lanes / LANES).checked_ilog2().unwrap_or(0),
            index,
            upper: _mm512_or_si512(_mm512_slli_epi32(index, 16), _mm512_set1_epi32(LANES_I32)),
        }
    }

    /// The products of one row, in lanes.
    #[inline]
    fn line_products[const M: usize](weights: &Weights<'_>, line: Line<'_>) -> [__m512; M] {
        match &weights.packing {
            Packing::Affine { bits, scales, biases: Some(biases), .. } => affine::<M>(line, *bits, scales, biases),
            Packing::E2m1 { scales, .. } => e2m1::<M>(line, scales),
            Packing::Gguf(GgufType::Q4K) => {
                chunk_products::<M, 1, 4, _>(line, 144, |block| q4k_scales(block), |block, scales, _, part| {
                    q4k(block, *scales, part, 16, line.spread.index)
                })
            }
            Packing::Gguf(GgufType::Q5K) => {
                chunk_products::<M, 1, 4, _>(line, 176, |block| q4k_scales(block), |block, scales, _, part| {
                    q5k(block, *scales, part, line.spread.index)
                })
            }
            Packing::Gguf(GgufType::Q6K) => {
                chunk_products::<M, 1, 4, _>(line, 210, |block| q6k_scales(block), |block, scales, _, part| {
                    q6k(block, *scales, part, line.spread.index)
                })
            }
            Packing::Affine { .. } | Packing::E4m3 { .. } => [_mm512_setzero_ps(); M],
        }
    }

    #[inline]
    fn affine[const M: usize](line: Line<'_>, bits: u8, scales: &Scales<'_>, biases: &Scales<'_>) -> [__m512; M] {
        spread_affine!(line, scales, biases, |spread| affine_of::<M>(line, bits, spread), [_mm512_setzero_ps(); M])
    }

    /// With scales and biases from `spread`.
    #[inline]
    fn affine_of[const M: usize](line: Line<'_>, bits: u8, spread: impl Fn(usize) -> (__m512, __m512)) -> [__m512; M] {
        match bits {
            2 => {
                let mask = _mm512_set1_epi8(3);
                chunk_products::<M, 4, 1, _>(line, REGISTER, |_| (), |codes, (), number, _| {
                    let (codes, (scales, constants)) = (load(codes), spread(number));
                    let codes = [
                        _mm512_and_si512(codes, mask),
                        _mm512_and_si512(_mm512_srli_epi16(codes, 2), mask),
                        _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask),
                        _mm512_and_si512(_mm512_srli_epi16(codes, 6), mask),
                    ];
                    Chunk { codes, scales, constants: Some(constants) }
                })
            }
            4 => {
                let mask = _mm512_set1_epi8(15);
                chunk_products::<M, 2, 1, _>(line, REGISTER, |_| (), |codes, (), number, _| {
                    let (codes, (scales, constants)) = (load(codes), spread(number));
                    let high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
                    Chunk { codes: [_mm512_and_si512(codes, mask), high], scales, constants: Some(constants) }
                })
            }
            8 => chunk_products::<M, 1, 1, _>(line, REGISTER, |_| (), |codes, (), number, _| {
                let (scales, constants) = spread(number);
                Chunk { codes: [load(codes)], scales, constants: Some(constants) }
            }),
            // Codes that run across byte borders: eight are as many bytes as a code has bits.
            bits => {
                let (bytes, shifts) = stream(bits);
                let mask = _mm512_set1_epi8((1 << bits) - 1);
                chunk_products::<M, 1, 1, _>(line, 8 * usize::from(bits), |_| (), |codes, (), number, _| {
                    let (scales, constants) = spread(number);
                    let words = _mm512_permutexvar_epi8(bytes, load(codes));
                    let codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, words), mask);
                    Chunk { codes: [codes], scales, constants: Some(constants) }
                })
            }
        }
    }

    /// The bytes that hold each eight codes, and where in them each begins.
    #[inline]
    fn stream(bits: u8) -> (__m512i, __m512i) {
        let (mut bytes, mut shifts) = ([0_u8; REGISTER], [0_u8; REGISTER]);
        for (at, (byte, shift)) in (0_u8..).zip(bytes.iter_mut().zip(&mut shifts)) {
            (*byte, *shift) = (at / 8 * bits + at % 8, at % 8 * bits);
        }
        (load(&bytes), load(&shifts))
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    #[inline]
    fn e2m1[const M: usize](line: Line<'_>, scales: &Scales<'_>) -> [__m512; M] {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let (values, mask) = (_mm512_broadcast_i32x4(values), _mm512_set1_epi8(15));
        let chunk = |codes: &[u8], scales: __m512| {
            let codes = load(codes);
            let low = _mm512_shuffle_epi8(values, _mm512_and_si512(codes, mask));
            let high = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask));
            Chunk { codes: [low, high], scales: _mm512_mul_ps(scales, _mm512_set1_ps(0.5)), constants: None }
        };
        match scales {
            Scales::E8m0(scales) => {
                let scales = scales.from(line.row);
                chunk_products::<M, 2, 1, _>(line, REGISTER, |_| (), |codes, (), number, _| {
                    chunk(codes, spread_e8m0(scales, number, line.spread))
                })
            }
            Scales::E4m3(scales) => {
                let scales = scales.from(line.row);
                chunk_products::<M, 2, 1, _>(line, REGISTER, |_| (), |codes, (), number, _| {
                    chunk(codes, spread_e4m3(scales, number, line.spread))
                })
            }
            _ => [_mm512_setzero_ps(); M],
        }
    }

    /// Scales of the eight groups of a block with minima, and what is added to their weights.
    #[inline]
    fn q4k_scales(block: &[u8]) -> [__m512; 2] {
        let raw = |at: usize| block.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |raw| u32::from_le_bytes(*raw));
        let (factors, [first, second, third]) = (raw(0), [raw(4), raw(8), raw(12)]);
        let pair = |low: u32, high: u32, upper: u32| {
            let upper = (high & 0x0F0F_0F0F) | (upper >> 6 & 0x0303_0303) << 4;
            let bytes = _mm_cvtsi64_si128((u64::from(low & 0x3F3F_3F3F) | u64::from(upper) << 32).cast_signed());
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        };
        let factors = _mm_cvtph_ps(_mm_cvtsi32_si128(factors.cast_signed()));
        let minus = _mm_xor_ps(_mm_movehdup_ps(factors), _mm_set1_ps(-0.0));
        [
            _mm512_mul_ps(pair(first, third, first), _mm512_broadcastss_ps(factors)),
            _mm512_mul_ps(pair(second, third >> 4, second), _mm512_broadcastss_ps(minus)),
        ]
    }

    /// A part of a block with minima, whose codes begin at `start`: the low and the high halves of 32 bytes.
    #[inline]
    fn q4k(block: &[u8], [scales, constants]: [__m512; 2], part: usize, start: usize, index: __m512i) -> Chunk<1> {
        let index = _mm512_add_epi32(index, _mm512_set1_epi32(2 * small(part)));
        let codes = _mm512_srlv_epi16(load_twice(block, start + 32 * part), halves(0, 4));
        Chunk {
            codes: [_mm512_and_si512(codes, _mm512_set1_epi8(15))],
            scales: _mm512_permutexvar_ps(index, scales),
            constants: Some(_mm512_permutexvar_ps(index, constants)),
        }
    }

    /// Likewise with a fifth bit.
    #[inline]
    fn q5k(block: &[u8], scales: [__m512; 2], part: usize, index: __m512i) -> Chunk<1> {
        let Chunk { codes: [codes], scales, constants } = q4k(block, scales, part, 48, index);
        let bits = halves(0x0101 << (2 * part), 0x0202 << (2 * part));
        let has_fifth = _mm512_test_epi8_mask(load_twice(block, 16), bits);
        let codes = _mm512_mask_add_epi8(codes, has_fifth, codes, _mm512_set1_epi8(16));
        Chunk { codes: [codes], scales, constants }
    }

    /// Scales of the sixteen groups of a block of six bits.
    #[inline]
    fn q6k_scales(block: &[u8]) -> __m512 {
        let tail = block.get(192..).and_then(<[u8]>::first_chunk::<18>).copied().unwrap_or_default();
        let [.., low_byte, high_byte] = tail;
        let factor = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([low_byte, high_byte, 0, 0])));
        // SAFETY: the first sixteen of eighteen bytes.
        let scales = _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(tail.as_ptr().cast()) });
        _mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_broadcastss_ps(factor))
    }

    /// A part of a block of six bits: two runs of 32, with low bits from 64 bytes and high bits from 32.
    #[inline]
    fn q6k(block: &[u8], scales: __m512, part: usize, index: __m512i) -> Chunk<1> {
        let (half, is_upper) = (part / 2, part % 2 == 1);
        let low = load(block.get(64 * half..64 * half + 64).unwrap_or_default());
        let low = if is_upper { _mm512_srli_epi16(low, 4) } else { low };
        let shifts = if is_upper { halves(4, 6) } else { halves(0, 2) };
        let high = _mm512_srlv_epi16(load_twice(block, 128 + 32 * half), shifts);
        let high = _mm512_slli_epi16(_mm512_and_si512(high, _mm512_set1_epi8(3)), 4);
        let scales = _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(4 * small(part))), scales);
        Chunk {
            codes: [_mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high)],
            scales,
            constants: None,
        }
    }

    /// The products of a row that comes in blocks of so many bytes, the last of which may be shorter, and `PARTS` chunks each,
    /// with what `prepare` reads once for all of them.
    #[inline]
    fn chunk_products[const M: usize, const V: usize, const PARTS: usize, S](
        line: Line<'_>,
        block_bytes: usize,
        prepare: impl Fn(&[u8]) -> S,
        chunk: impl Fn(&[u8], &S, usize, usize) -> Chunk<V>,
    ) -> [__m512; M] {
        let (mut totals, mut constant_totals) = ([_mm512_setzero_ps(); M], [_mm512_setzero_ps(); M]);
        let registers = const { Layout::registers(V) };
        let x = line.x.floats.as_chunks::<LANES>().0.chunks_exact(PARTS * M * registers);
        for (number, (block, x)) in line.codes.chunks(block_bytes).zip(x).enumerate() {
            let ahead = block.as_ptr().wrapping_add(AHEAD);
            for at in (0..block_bytes).step_by(REGISTER) {
                _mm_prefetch(ahead.wrapping_add(at).cast(), _MM_HINT_T0);
            }
            let prepared = prepare(block);
            for (part, x) in x.chunks_exact(M * registers).enumerate() {
                let Chunk { codes, scales, constants } = chunk(block, &prepared, number * PARTS + part, part);
                debug_assert_eq!(constants.is_some(), line.x.layout.sums == Sums::Floats);
                for (m, x) in x.chunks_exact(registers).enumerate() {
                    let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                    if constants.is_none() {
                        low = _mm512_castps_si512(load_floats(&x[2 * V + 1]));
                    }
                    for (v, codes) in codes.iter().enumerate() {
                        high = _mm512_dpbusd_epi32(high, *codes, _mm512_castps_si512(load_floats(&x[2 * v])));
                        low = _mm512_dpbusd_epi32(low, *codes, _mm512_castps_si512(load_floats(&x[2 * v + 1])));
                    }
                    let whole = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
                    let scales = _mm512_mul_ps(scales, load_floats(&x[2 * V]));
                    totals[m] = _mm512_fmadd_ps(whole, scales, totals[m]);
                    if let Some(constants) = constants {
                        constant_totals[m] = _mm512_fmadd_ps(constants, load_floats(&x[2 * V + 1]), constant_totals[m]);
                    }
                }
            }
        }
        for (total, constant_total) in totals.iter_mut().zip(constant_totals) {
            *total = _mm512_add_ps(*total, constant_total);
        }
        totals
    }

    /// Up to 64 bytes, and zeros after them.
    #[inline]
    fn load(bytes: &[u8]) -> __m512i {
        match bytes.first_chunk::<REGISTER>() {
            // SAFETY: the chunk has the size of the register.
            Some(bytes) => unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) },
            // SAFETY: the mask has a bit for each byte of the slice and no others, and what it leaves out is not read.
            None => unsafe { _mm512_maskz_loadu_epi8((1 << bytes.len()) - 1, bytes.as_ptr().cast()) },
        }
    }

    /// The same 32 bytes in both halves.
    #[inline]
    fn load_twice(block: &[u8], start: usize) -> __m512i {
        let bytes: &[u8; 32] = block.get(start..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 32]);
        // SAFETY: the array has the size of half a register.
        _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }

    #[inline]
    fn load_floats(floats: &[f32; LANES]) -> __m512 {
        // SAFETY: the array has the size of the register.
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }

    /// A number for each half of a register.
    #[inline]
    fn halves(low: i16, high: i16) -> __m512i {
        _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1)
    }

    /// Sixteen elements of two bytes, or fewer.
    #[inline]
    fn load_halves[T](part: Result<&[T; LANES], &[T]>) -> __m256i {
        const { assert!(size_of::<T>() == 2) };
        match part {
            // SAFETY: the array has the size of the register.
            Ok(part) => unsafe { _mm256_loadu_si256(part.as_ptr().cast()) },
            // SAFETY: the mask has a bit for each element of the slice and no others, and what it leaves out is not read.
            Err(part) => unsafe { _mm256_maskz_loadu_epi16((1 << part.len()) - 1, part.as_ptr().cast()) },
        }
    }

    /// Sixteen bytes, or fewer.
    #[inline]
    fn load_bytes(part: Result<&[u8; LANES], &[u8]>) -> __m128i {
        match part {
            // SAFETY: the array has the size of the register.
            Ok(part) => unsafe { _mm_loadu_si128(part.as_ptr().cast()) },
            // SAFETY: the mask has a bit for each byte of the slice and no others, and what it leaves out is not read.
            Err(part) => unsafe { _mm_maskz_loadu_epi8((1 << part.len()) - 1, part.as_ptr().cast()) },
        }
    }

    #[inline]
    fn spread_f32(scales: &[f32], number: usize, spread: Spread) -> __m512 {
        let part = match spread.part(scales, number) {
            Ok(part) => load_floats(part),
            // SAFETY: the mask has a bit for each element of the slice and no others, and what it leaves out is not read.
            Err(part) => unsafe { _mm512_maskz_loadu_ps((1 << part.len()) - 1, part.as_ptr()) },
        };
        _mm512_permutexvar_ps(spread.index, part)
    }

    #[inline]
    fn spread_f16(scales: &[f16], number: usize, spread: Spread) -> __m512 {
        let part = load_halves(spread.part(scales, number));
        _mm512_cvtph_ps(_mm256_permutexvar_epi16(_mm512_cvtepi32_epi16(spread.index), part))
    }

    /// Bfloats are the upper halves of floats.
    #[inline]
    fn spread_bf16(scales: &[bf16], number: usize, spread: Spread) -> __m512 {
        let part = _mm512_zextsi256_si512(load_halves(spread.part(scales, number)));
        _mm512_castsi512_ps(_mm512_permutexvar_epi16(spread.upper, part))
    }

    #[inline]
    fn spread_e8m0(scales: &[u8], number: usize, spread: Spread) -> __m512 {
        let codes = _mm512_cvtepu8_epi32(load_bytes(spread.part(scales, number)));
        let (zeros, smallest) = (_mm512_testn_epi32_mask(codes, codes), _mm512_set1_epi32(1 << 22));
        let scales = _mm512_mask_mov_epi32(_mm512_slli_epi32(codes, 23), zeros, smallest);
        _mm512_permutexvar_ps(spread.index, _mm512_castsi512_ps(scales))
    }

    /// As floats of half precision, whose exponent counts from another zero.
    #[inline]
    fn spread_e4m3(scales: &[u8], number: usize, spread: Spread) -> __m512 {
        let codes = _mm256_cvtepu8_epi16(load_bytes(spread.part(scales, number)));
        let magnitudes = _mm256_and_si256(codes, _mm256_set1_epi16(0x7F));
        let signs = _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7F), codes), 8);
        let halves = _mm256_or_si256(_mm256_slli_epi16(magnitudes, 7), signs);
        let none = _mm256_cmpeq_epi16_mask(magnitudes, _mm256_set1_epi16(0x7F));
        let halves = _mm256_mask_mov_epi16(halves, none, _mm256_set1_epi16(0x7E00));
        let scales = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0));
        _mm512_permutexvar_ps(spread.index, scales)
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below four")]
fn small(part: usize) -> i32 {
    part as i32
}
