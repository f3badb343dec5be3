//! Few rows of activations times quantized weights in integers, as in `vnni`, for machines with AVX2: codes and activations are
//! numbers of 16 bits, whose products one instruction adds in pairs, exactly. (Products of bytes would need two such for the
//! two bytes of an activation, and overflow for codes of eight bits.)
//!
//! A chunk is 64 columns in 8 lanes of 8 neighbours, its codes four registers in one of two orders: `Order::Fours` for codes
//! that unpack from numbers of 16 bits with four in each, `Order::Twos` for codes in bytes and those that run across bytes.
#![allow(unsafe_code, reason = "loads of registers")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{Sums, WORD_LANES, WORDS};
use super::integer::Activations;
use crate::quant::{Packing, Scales, Weights};
use half::{bf16, f16};
use ptero_tensor::GgufType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes that are fetched ahead of those in use.
const AHEAD: usize = 2048;
/// Bytes of a line of the cache.
const CACHE_LINE: usize = 64;
/// Registers of a chunk of a row of activations: integers, units, sums.
const REGISTERS: usize = WORDS / 16 + 2;

/// A function for machines with AVX2.
macro_rules! avx2 {
    ($( $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$attribute])*
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
}

/// What the activations of 64 columns are multiplied with.
struct Chunk {
    codes: [__m256i; 4],
    /// Factors of the codes, per lane.
    scales: __m256,
    /// What the sums of activations are multiplied with, per lane; nothing if products start from the sums, see `Sums::Offset`.
    constants: Option<__m256>,
}

/// How the scales of a row are spread over the lanes of its chunks.
#[derive(Clone, Copy)]
struct Spread {
    /// Scales of a chunk: 1, 2 or 4.
    count: usize,
    /// As a power of two, chunks that share a scale.
    shift: u32,
    /// The scale of each lane.
    index: __m256i,
    /// The bytes of four bfloats that make the upper half of each lane.
    upper: __m256i,
}

impl Spread {
    /// The scales of a chunk, and some after them: those of another row are multiplied with activations that are zero, and if
    /// that is not a number, floats do the row again.
    #[inline(always)]
    fn part<T: Copy + Default>(&self, scales: &[T], number: usize) -> [T; 4] {
        let start = (number * self.count) >> self.shift;
        match scales.get(start..start + 4).and_then(<[T]>::first_chunk) {
            Some(part) => *part,
            None => padded(scales.get(start..).unwrap_or_default()),
        }
    }
}

/// As many elements as there are, and zeros.
#[cold]
fn padded<T: Copy + Default, const N: usize>(rest: &[T]) -> [T; N] {
    let mut whole = [T::default(); N];
    whole.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    whole
}

/// A row of weights, and what it is multiplied with.
#[derive(Clone, Copy)]
struct Line<'a> {
    row: usize,
    codes: &'a [u8],
    x: &'a Activations<'a>,
    spread: Spread,
}

avx2! {
    /// Writes the products of some rows of the weights; see `Integers::products`.
    pub(super) fn products[const M: usize](
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        sums: &mut [f32],
        stride: usize,
    ) {
        let spread = spread(weights);
        for (at, row) in rows.enumerate() {
            let line = Line { row, codes: weights.codes.row(row, weights.row_bytes()), x, spread };
            let totals = line_products::<M>(weights, line);
            for (m, total) in totals.into_iter().enumerate() {
                if let Some(sum) = sums.get_mut(m * stride + at) {
                    let four = _mm_add_ps(_mm256_castps256_ps128(total), _mm256_extractf128_ps(total, 1));
                    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                    *sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
                }
            }
        }
    }

    fn spread(weights: &Weights<'_>) -> Spread {
        let group = match weights.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } | Packing::E4m3 { group, .. } => group,
            Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => 32,
            Packing::Gguf(GgufType::Q6K) => 16,
        };
        // A power of two, as the group is.
        let lanes = group / (WORDS / WORD_LANES);
        let numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let index = _mm256_srl_epi32(numbers, _mm_cvtsi32_si128(lanes.ilog2().cast_signed()));
        let places = _mm256_mullo_epi32(index, _mm256_set1_epi32(0x0202_0000));
        Spread {
            count: (WORD_LANES / lanes).max(1),
            shift: (lanes / WORD_LANES).checked_ilog2().unwrap_or(0),
            index,
            upper: _mm256_add_epi32(places, _mm256_set1_epi32(0x0100_8080)),
        }
    }

    /// The products of one row, in lanes.
    #[inline]
    fn line_products[const M: usize](weights: &Weights<'_>, line: Line<'_>) -> [__m256; M] {
        match &weights.packing {
            Packing::Affine { bits, scales, biases: Some(biases), .. } => affine::<M>(line, *bits, scales, biases),
            Packing::E2m1 { scales, .. } => e2m1::<M>(line, scales),
            Packing::Gguf(GgufType::Q4K) => {
                chunk_products::<M, 144, 4, true, _>(line, |block, _| minima_scales(block), |block, scales, part| {
                    with_minima(block, 16, scales, part, line.spread.index)
                })
            }
            Packing::Gguf(GgufType::Q5K) => {
                chunk_products::<M, 176, 4, true, _>(line, |block, _| minima_scales(block), |block, scales, part| {
                    with_minima(block, 48, scales, part, line.spread.index)
                })
            }
            Packing::Gguf(GgufType::Q6K) => {
                chunk_products::<M, 210, 4, true, _>(line, |block, _| q6k_scales(block), |block, scales, part| {
                    q6k(block, scales, part, line.spread.index)
                })
            }
            Packing::Affine { .. } | Packing::E4m3 { .. } => [_mm256_setzero_ps(); M],
        }
    }

    #[inline]
    fn affine[const M: usize](line: Line<'_>, bits: u8, scales: &Scales<'_>, biases: &Scales<'_>) -> [__m256; M] {
        spread_affine!(line, scales, biases, |spread| affine_of::<M>(line, bits, spread), [_mm256_setzero_ps(); M])
    }

    /// With scales and biases from `spread`.
    #[inline]
    fn affine_of[const M: usize](line: Line<'_>, bits: u8, spread: impl Fn(usize) -> (__m256, __m256)) -> [__m256; M] {
        match bits {
            2 => {
                let mask = _mm256_set1_epi16(3);
                chunk_products::<M, 16, 1, false, _>(line, |_, number| spread(number), |codes, (scales, constants), _| {
                    let codes = _mm256_cvtepu8_epi16(load_half(codes, 0));
                    let codes = [
                        _mm256_and_si256(codes, mask),
                        _mm256_and_si256(_mm256_srli_epi16(codes, 2), mask),
                        _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask),
                        _mm256_srli_epi16(codes, 6),
                    ];
                    Chunk { codes, scales, constants: Some(constants) }
                })
            }
            4 => {
                let mask = _mm256_set1_epi16(15);
                chunk_products::<M, 32, 1, false, _>(line, |_, number| spread(number), |codes, (scales, constants), _| {
                    let codes = load(codes);
                    let codes = [
                        _mm256_and_si256(codes, mask),
                        _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask),
                        _mm256_and_si256(_mm256_srli_epi16(codes, 8), mask),
                        _mm256_srli_epi16(codes, 12),
                    ];
                    Chunk { codes, scales, constants: Some(constants) }
                })
            }
            8 => chunk_products::<M, 64, 1, true, _>(line, |_, number| spread(number), |codes, (scales, constants), _| {
                let codes = twos([both(codes, [0, 32]), both(codes, [16, 48])]);
                Chunk { codes, scales, constants: Some(constants) }
            }),
            3 => stream::<M, 3, 24>(line, spread),
            5 => stream::<M, 5, 40>(line, spread),
            _ => stream::<M, 6, 48>(line, spread),
        }
    }

    /// Codes that run across byte borders: two neighbours lie within two bytes, and a factor moves them to the upper end.
    /// Sixteen are `2 * BITS` bytes, of `BYTES` for 64; what would be read beyond these is read from their last sixteen.
    #[inline]
    fn stream[const M: usize, const BITS: usize, const BYTES: usize](
        line: Line<'_>,
        spread: impl Fn(usize) -> (__m256, __m256),
    ) -> [__m256; M] {
        let starts: [usize; 4] = const {
            assert!(BYTES == 8 * BITS);
            [0, 2 * BITS, if 4 * BITS < BYTES - 16 { 4 * BITS } else { BYTES - 16 }, BYTES - 16]
        };
        let (mut places, mut factors) = ([[0_u8; 32]; 2], [0_u16; 16]);
        for at in 0..16 {
            let first_bit = at % 8 * 2 * BITS;
            factors[at] = 1 << (16 - 2 * BITS - first_bit % 8);
            for (number, places) in places.iter_mut().enumerate() {
                let sixteen = at / 8 * 2 + number;
                #[allow(clippy::cast_possible_truncation, reason = "below sixteen")]
                let place = (2 * BITS * sixteen - starts[sixteen] + first_bit / 8) as u8;
                // The byte after the last does not count: the factor moves it out.
                (places[2 * at], places[2 * at + 1]) = (place, (place + 1) % 16);
            }
        }
        let places = [load(&places[0]), load(&places[1])];
        let factors = load(&bytemuck::cast::<[u16; 16], [u8; 32]>(factors));
        let mask = _mm256_set1_epi16((1 << BITS) - 1);
        let (upper, lower) = (_mm_cvtsi32_si128(small(16 - BITS)), _mm_cvtsi32_si128(small(16 - 2 * BITS)));
        chunk_products::<M, BYTES, 1, true, _>(line, |_, number| spread(number), |codes, (scales, constants), _| {
            let first = _mm256_shuffle_epi8(both(codes, [starts[0], starts[2]]), places[0]);
            let second = _mm256_shuffle_epi8(both(codes, [starts[1], starts[3]]), places[1]);
            let (first, second) = (_mm256_mullo_epi16(first, factors), _mm256_mullo_epi16(second, factors));
            let codes = [
                _mm256_and_si256(_mm256_srl_epi16(first, lower), mask),
                _mm256_srl_epi16(first, upper),
                _mm256_and_si256(_mm256_srl_epi16(second, lower), mask),
                _mm256_srl_epi16(second, upper),
            ];
            Chunk { codes, scales, constants: Some(constants) }
        })
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    #[inline]
    fn e2m1[const M: usize](line: Line<'_>, scales: &Scales<'_>) -> [__m256; M] {
        let values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        let (values, mask) = (_mm256_broadcastsi128_si256(values), _mm256_set1_epi8(15));
        let chunk = |codes: &[u8; 32], scales: __m256, _: usize| {
            let codes = load(codes);
            let even = _mm256_shuffle_epi8(values, _mm256_and_si256(codes, mask));
            let odd = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask));
            let bytes = _mm256_set1_epi16(0xFF);
            let codes = [
                _mm256_and_si256(even, bytes),
                _mm256_and_si256(odd, bytes),
                _mm256_srli_epi16(even, 8),
                _mm256_srli_epi16(odd, 8),
            ];
            Chunk { codes, scales: _mm256_mul_ps(scales, _mm256_set1_ps(0.5)), constants: None }
        };
        match scales {
            Scales::E8m0(scales) => {
                let scales = scales.from(line.row);
                chunk_products::<M, 32, 1, false, _>(line, |_, number| spread_e8m0(scales, number, line.spread), chunk)
            }
            Scales::E4m3(scales) => {
                let scales = scales.from(line.row);
                chunk_products::<M, 32, 1, false, _>(line, |_, number| spread_e4m3(scales, number, line.spread), chunk)
            }
            _ => [_mm256_setzero_ps(); M],
        }
    }

    /// Scales, and minima below zero, of the eight groups of a block.
    #[inline]
    fn minima_scales[const N: usize](block: &[u8; N]) -> (__m256, __m256) {
        let raw = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let [factors, first, second, third] = [raw(0), raw(4), raw(8), raw(12)];
        let pair = |low: u32, high: u32| {
            let upper = (high & 0x0F0F_0F0F) | (low >> 6 & 0x0303_0303) << 4;
            let bytes = _mm_cvtsi64_si128((u64::from(low & 0x3F3F_3F3F) | u64::from(upper) << 32).cast_signed());
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        };
        let factors = _mm_cvtph_ps(_mm_cvtsi32_si128(factors.cast_signed()));
        let minus = _mm_xor_ps(_mm_movehdup_ps(factors), _mm_set1_ps(-0.0));
        (
            _mm256_mul_ps(pair(first, third), _mm256_broadcastss_ps(factors)),
            _mm256_mul_ps(pair(second, third >> 4), _mm256_broadcastss_ps(minus)),
        )
    }

    /// A part of a block with minima, whose codes begin at `start`: the low and the high halves of 32 bytes, and where these
    /// begin after 48 bytes, a fifth bit from the 32 bytes before.
    #[inline]
    fn with_minima[const N: usize](block: &[u8; N], start: usize, scales: (__m256, __m256), part: usize, index: __m256i) -> Chunk {
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
        let index = _mm256_add_epi32(index, _mm256_set1_epi32(small(2 * part)));
        Chunk {
            codes: twos([half(0), half(16)]),
            scales: _mm256_permutevar8x32_ps(scales.0, index),
            constants: Some(_mm256_permutevar8x32_ps(scales.1, index)),
        }
    }

    /// The scales of the sixteen groups of a block of six bits.
    #[inline]
    fn q6k_scales(block: &[u8; 210]) -> [__m256; 2] {
        let factor = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([block[208], block[209], 0, 0])));
        let (scales, factor) = (load_half(block, 192), _mm256_broadcastss_ps(factor));
        let widened = |scales: __m128i| _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)), factor);
        [widened(scales), widened(_mm_unpackhi_epi64(scales, scales))]
    }

    /// A part of such a block: two runs of 32, with low bits from 64 bytes and high bits from 32.
    #[inline]
    fn q6k(block: &[u8; 210], scales: [__m256; 2], part: usize, index: __m256i) -> Chunk {
        let (half, upper) = (part / 2, part % 2);
        let (low_shift, high_shifts) = (halves(small(4 * upper), small(4 * upper)), halves(small(4 * upper), small(4 * upper + 2)));
        let quarter = |at: usize| {
            let low = both(block, [64 * half + at, 64 * half + 32 + at]);
            let low = _mm256_and_si256(_mm256_srlv_epi32(low, low_shift), _mm256_set1_epi8(15));
            let high = _mm256_srlv_epi32(twice(block, 128 + 32 * half + at), high_shifts);
            _mm256_or_si256(low, _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4))
        };
        let index = _mm256_add_epi32(index, _mm256_set1_epi32(small(4 * upper)));
        let scales = _mm256_permutevar8x32_ps(scales[half], index);
        Chunk { codes: twos([quarter(0), quarter(16)]), scales, constants: None }
    }

    /// The products of a row that comes in blocks of `BYTES`, the last of which may be shorter, and `PARTS` chunks each,
    /// in the order of twos or of fours; `head` is what the chunks of a block share.
    #[inline]
    fn chunk_products[const M: usize, const BYTES: usize, const PARTS: usize, const TWOS: bool, Head: Copy](
        line: Line<'_>,
        head: impl Fn(&[u8; BYTES], usize) -> Head,
        chunk: impl Fn(&[u8; BYTES], Head, usize) -> Chunk,
    ) -> [__m256; M] {
        let (mut totals, mut constant_totals) = ([_mm256_setzero_ps(); M], [_mm256_setzero_ps(); M]);
        let x = line.x.floats.as_chunks::<WORD_LANES>().0.as_chunks::<REGISTERS>().0.as_chunks::<M>().0;
        let (blocks, rest) = line.codes.as_chunks::<BYTES>();
        let rest = if rest.is_empty() { [0; BYTES] } else { padded(rest) };
        for (number, x) in x.as_chunks::<PARTS>().0.iter().enumerate() {
            let block = blocks.get(number).unwrap_or(&rest);
            let ahead = block.as_ptr().wrapping_add(AHEAD);
            for at in (0..BYTES).step_by(CACHE_LINE) {
                _mm_prefetch(ahead.wrapping_add(at).cast(), _MM_HINT_T0);
            }
            let head = head(block, number);
            for (part, x) in x.iter().enumerate() {
                let Chunk { codes, scales, constants } = chunk(block, head, part);
                debug_assert_eq!(constants.is_some(), line.x.layout.sums == Sums::Floats);
                for (m, x) in x.iter().enumerate() {
                    let mut pairs = [_mm256_setzero_si256(); 4];
                    for (v, pair) in pairs.iter_mut().enumerate() {
                        *pair = _mm256_madd_epi16(codes[v], _mm256_castps_si256(load_floats(&x[v])));
                    }
                    let (first, second) = (_mm256_add_epi32(pairs[0], pairs[1]), _mm256_add_epi32(pairs[2], pairs[3]));
                    let whole = if TWOS { _mm256_hadd_epi32(first, second) } else { _mm256_add_epi32(first, second) };
                    let whole = match constants {
                        Some(_) => whole,
                        None => _mm256_add_epi32(whole, _mm256_castps_si256(load_floats(&x[5]))),
                    };
                    let scales = _mm256_mul_ps(scales, load_floats(&x[4]));
                    totals[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scales, totals[m]);
                    if let Some(constants) = constants {
                        constant_totals[m] = _mm256_fmadd_ps(constants, load_floats(&x[5]), constant_totals[m]);
                    }
                }
            }
        }
        for (total, constant_total) in totals.iter_mut().zip(constant_totals) {
            *total = _mm256_add_ps(*total, constant_total);
        }
        totals
    }

    /// Codes in bytes, the first and the third sixteen in the first register, as numbers of 16 bits in the order of twos.
    #[inline]
    fn twos(codes: [__m256i; 2]) -> [__m256i; 4] {
        let ([first, second], mask) = (codes, _mm256_set1_epi16(0xFF));
        [
            _mm256_and_si256(first, mask),
            _mm256_srli_epi16(first, 8),
            _mm256_and_si256(second, mask),
            _mm256_srli_epi16(second, 8),
        ]
    }

    #[inline]
    fn load(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array has the size of the register.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// Sixteen bytes from some place on.
    #[inline]
    fn load_half[const N: usize](bytes: &[u8; N], start: usize) -> __m128i {
        let bytes = &bytes[start..start + 16];
        // SAFETY: the slice has the size of the register.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// Sixteen bytes from each of two places.
    #[inline]
    fn both[const N: usize](bytes: &[u8; N], [low, high]: [usize; 2]) -> __m256i {
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(bytes, low)), load_half(bytes, high), 1)
    }

    /// The same sixteen bytes in both halves.
    #[inline]
    fn twice[const N: usize](block: &[u8; N], start: usize) -> __m256i {
        _mm256_broadcastsi128_si256(load_half(block, start))
    }

    /// A number for the lanes of each half of a register.
    #[inline]
    fn halves(low: i32, high: i32) -> __m256i {
        _mm256_setr_epi32(low, low, low, low, high, high, high, high)
    }

    #[inline]
    fn load_floats(floats: &[f32; WORD_LANES]) -> __m256 {
        // SAFETY: the array has the size of the register.
        unsafe { _mm256_loadu_ps(floats.as_ptr()) }
    }

    /// Each of four scales in its lanes.
    #[inline]
    fn spread_floats(scales: __m128, spread: Spread) -> __m256 {
        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scales), spread.index)
    }

    #[inline]
    fn spread_f32(scales: &[f32], number: usize, spread: Spread) -> __m256 {
        let part = spread.part(scales, number);
        // SAFETY: the array has the size of the register.
        spread_floats(unsafe { _mm_loadu_ps(part.as_ptr()) }, spread)
    }

    #[inline]
    fn spread_f16(scales: &[f16], number: usize, spread: Spread) -> __m256 {
        let part = bytemuck::cast::<[u16; 4], i64>(spread.part(scales, number).map(f16::to_bits));
        spread_floats(_mm_cvtph_ps(_mm_cvtsi64_si128(part)), spread)
    }

    /// Bfloats are the upper halves of floats.
    #[inline]
    fn spread_bf16(scales: &[bf16], number: usize, spread: Spread) -> __m256 {
        let part = bytemuck::cast::<[u16; 4], i64>(spread.part(scales, number).map(bf16::to_bits));
        _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_set1_epi64x(part), spread.upper))
    }

    #[inline]
    fn spread_e8m0(scales: &[u8], number: usize, spread: Spread) -> __m256 {
        let codes = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(spread.part(scales, number))));
        let smallest = _mm_and_si128(_mm_cmpeq_epi32(codes, _mm_setzero_si128()), _mm_set1_epi32(1 << 22));
        spread_floats(_mm_castsi128_ps(_mm_or_si128(_mm_slli_epi32(codes, 23), smallest)), spread)
    }

    /// As floats of half precision, whose exponent counts from another zero.
    #[inline]
    fn spread_e4m3(scales: &[u8], number: usize, spread: Spread) -> __m256 {
        let codes = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(i32::from_le_bytes(spread.part(scales, number))));
        let (mask, none) = (_mm_set1_epi16(0x7F), _mm_set1_epi16(0x7E00));
        let magnitudes = _mm_and_si128(codes, mask);
        let signs = _mm_slli_epi16(_mm_andnot_si128(mask, codes), 8);
        let halves = _mm_or_si128(_mm_slli_epi16(magnitudes, 7), signs);
        let halves = _mm_or_si128(halves, _mm_and_si128(_mm_cmpeq_epi16(magnitudes, mask), none));
        spread_floats(_mm_mul_ps(_mm_cvtph_ps(halves), _mm_set1_ps(256.0)), spread)
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below sixteen")]
fn small(number: usize) -> i32 {
    number as i32
}
