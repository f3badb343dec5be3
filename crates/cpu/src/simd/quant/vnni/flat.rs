//! Products of `FlatWeights`: a lane is a cell. Factors are widened as they are needed, and the cells of rows are added
//! afterwards. Sixteen rows are as many blocks of sixteen cells as a row has cells, so they end with a whole block.
#![allow(
    clippy::indexing_slicing,
    reason = "of slices of constant length; and one check for each block of sixteen cells"
)]

use super::{REGISTER, fields, load, load_floats, one_or_two, quarters, transposed};
use crate::simd::quant::flat::{FlatFactors, FlatTable, FlatWeights, LANES};
use crate::simd::{CACHE_LINE, prefetch_far};
use std::arch::x86_64::*;

/// Bytes of codes that are prefetched ahead of those in use.
const AHEAD: usize = 8192;

/// By slot, the lanes of two registers that hold the sums of sixteen cells, as [`four_bits`] computes them: four groups come from
/// a register of codes, and have a quarter each.
const BY_CELL: [[u32; LANES]; 2] = {
    let (mut lanes, mut group) = ([[0; LANES]; 2], 0_u32);
    while group < 32 {
        lanes[group as usize % 2][group as usize / 2] = group / 16 * 16 + group % 4 * 4 + group / 4 % 4;
        group += 1;
    }
    lanes
};

vnni! {
    vbmi;

    /// Writes the products of all rows; see `FlatWeights::products`.
    pub(crate) fn products(weights: &FlatWeights<'_>, x: FlatTable<'_>, cells: &mut [f32], sums: &mut [f32]) {
        match (weights.layout.vectors, weights.layout.slots) {
            (2, 2) => rows::<2, 512>(weights, x, cells, sums, |codes, x| four_bits(codes, x)),
            (2, _) => rows::<1, 512>(weights, x, cells, sums, |codes, x| four_bits(codes, x)),
            (_, 2) => rows::<2, 1024>(weights, x, cells, sums, |codes, x| eight_bits(codes, x)),
            _ => rows::<1, 1024>(weights, x, cells, sums, |codes, x| eight_bits(codes, x)),
        }
    }

    /// Sixteen rows at a time, in blocks of `BYTES` of codes, whose products `block` adds up by slot.
    fn rows[const SLOTS: usize, const BYTES: usize](
        weights: &FlatWeights<'_>,
        x: FlatTable<'_>,
        cells: &mut [f32],
        sums: &mut [f32],
        block: impl Fn(&[u8; BYTES], &[[f32; LANES]]) -> [__m512i; SLOTS],
    ) {
        let (layout, (blocks, last)) = (weights.layout, weights.codes.as_chunks::<BYTES>());
        let mut rest = [0; BYTES];
        rest[..last.len()].copy_from_slice(last);
        let (period, sets) = (layout.period(), LANES / layout.vectors);
        let mut number = 0;
        for sums in sums.chunks_mut(LANES) {
            // Where in the table a block begins.
            let (mut set, mut cell) = (0, 0);
            for to in cells.as_chunks_mut::<LANES>().0.iter_mut().take((sums.len() * layout.cells).div_ceil(LANES)) {
                let codes = if number < blocks.len() { &blocks[number] } else { &rest };
                prefetch(codes.as_ptr(), AHEAD, BYTES);
                let products = block(codes, &x.registers[2 * layout.vectors * set..][..2 * LANES]);
                let scales = widened::<SLOTS>(weights.scales, number, AHEAD / BYTES);
                let mut biases = [_mm512_setzero_ps(); SLOTS];
                if let Some(factors) = weights.biases {
                    biases = widened::<SLOTS>(factors, number, AHEAD / BYTES);
                }
                let mut total = _mm512_setzero_ps();
                for slot in 0..SLOTS {
                    let start = 2 * slot * layout.steps() + cell;
                    let (step, sum) = (floats(x.factors, start), floats(x.factors, start + layout.steps()));
                    let scale = _mm512_mul_ps(scales[slot], step);
                    total = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products[slot]), total);
                    total = _mm512_fmadd_ps(biases[slot], sum, total);
                }
                // SAFETY: the array has the size of the register.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), total) };
                number += 1;
                (set, cell) = (wrapped(set + sets, period), wrapped(cell + LANES, layout.cells));
            }
            add_cells(cells, layout.cells, sums);
        }
    }

    /// The factors of a block, by slot. Those `ahead` blocks after it are prefetched.
    fn widened[const SLOTS: usize](factors: FlatFactors<'_>, number: usize, ahead: usize) -> [__m512; SLOTS] {
        let bits = &factors.bits[LANES * SLOTS * number..];
        let count = bits.len().min(LANES * SLOTS);
        prefetch(bits.as_ptr().cast(), 2 * LANES * SLOTS * ahead, CACHE_LINE);
        // SAFETY: the mask has a bit for each factor that is there, and no others.
        let bits = unsafe { _mm512_maskz_loadu_epi16(u32::MAX >> (32 - count), bits.as_ptr().cast()) };
        // The factors of two slots take turns.
        let words = if SLOTS == 1 { _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)) } else { bits };
        let mut slots = [_mm512_setzero_ps(); SLOTS];
        for (slot, floats) in slots.iter_mut().enumerate() {
            let upper = if slot == 0 { _mm512_slli_epi32(words, 16) } else { words };
            *floats = match factors.is_bfloat {
                true => _mm512_castsi512_ps(_mm512_and_si512(upper, _mm512_set1_epi32(-0x1_0000))),
                false => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16))),
            };
        }
        slots
    }

    /// The sums of the products of sixteen cells with codes of four bits.
    fn four_bits[const SLOTS: usize](codes: &[u8; 512], x: &[[f32; LANES]]) -> [__m512i; SLOTS] {
        let mut halves = [_mm512_setzero_si512(); 2];
        for (half, sums) in halves.iter_mut().enumerate() {
            let mut pairs = [_mm512_setzero_si512(); 2];
            for (pair, sums) in pairs.iter_mut().enumerate() {
                let (mut high, mut low) = ([_mm512_setzero_si512(); 2], [_mm512_setzero_si512(); 2]);
                for at in 0..2 {
                    let set = 4 * half + 2 * pair + at;
                    let codes: [_; 2] = fields(load(codes, REGISTER * set), 4);
                    for vector in 0..2 {
                        high[at] = _mm512_dpbusd_epi32(high[at], codes[vector], words(&x[4 * set + 2 * vector]));
                        low[at] = _mm512_dpbusd_epi32(low[at], codes[vector], words(&x[4 * set + 2 * vector + 1]));
                    }
                }
                // Sums of eight products are below 2^14.
                let (high, low) = (_mm512_packs_epi32(high[0], high[1]), _mm512_packs_epi32(low[0], low[1]));
                let high = _mm512_madd_epi16(high, _mm512_set1_epi16(256));
                *sums = _mm512_dpwssd_epi32(high, low, _mm512_set1_epi16(1));
            }
            *sums = add_neighbours(pairs[0], pairs[1]);
        }
        let mut slots = [_mm512_setzero_si512(); 2];
        for slot in 0..2 {
            // SAFETY: the array has the size of the register.
            let lanes = unsafe { _mm512_loadu_si512(BY_CELL[slot].as_ptr().cast()) };
            slots[slot] = _mm512_permutex2var_epi32(halves[0], lanes, halves[1]);
        }
        one_or_two(slots[0], slots[1])
    }

    /// Same as [`four_bits`], with codes of eight bits.
    fn eight_bits[const SLOTS: usize](codes: &[u8; 1024], x: &[[f32; LANES]]) -> [__m512i; SLOTS] {
        let mut fours = [_mm512_setzero_si512(); 4];
        for (four, sums) in fours.iter_mut().enumerate() {
            let mut cells = [_mm512_setzero_si512(); 4];
            for (at, sums) in cells.iter_mut().enumerate() {
                let cell = 4 * four + at;
                *sums = super::lanes(&[load(codes, REGISTER * cell)], &x[2 * cell..][..2]);
            }
            let [a, b, c, d] = cells;
            *sums = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));
        }
        let [a, b, c, d] = quarters(fours);
        one_or_two(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d))
    }

    /// The sums of neighbouring lanes: in each quarter those of `a`, then those of `b`.
    fn add_neighbours(a: __m512i, b: __m512i) -> __m512i {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        let (even, odd) = (_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
        _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
    }

    /// Adds the cells of one to sixteen rows, each of `count` cells.
    fn add_cells(cells: &[f32], count: usize, sums: &mut [f32]) {
        let mut results = _mm512_setzero_ps();
        for first in (0..count).step_by(LANES) {
            let length = (count - first).min(LANES);
            let mut chunks = [_mm512_setzero_si512(); 4];
            for (four, chunk) in chunks.iter_mut().enumerate() {
                let mut rows = [_mm512_setzero_si512(); 4];
                for (at, register) in rows.iter_mut().enumerate() {
                    let row = &cells[(4 * four + at) * count + first..][..length];
                    // SAFETY: the mask has a bit for each element of the slice, and no others.
                    let row = unsafe { _mm512_maskz_loadu_ps(u16::MAX >> (LANES - length), row.as_ptr()) };
                    *register = _mm512_castps_si512(row);
                }
                let [a, b, c, d] = transposed(&rows);
                let two = _mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
                let three = _mm512_add_ps(two, _mm512_castsi512_ps(c));
                *chunk = _mm512_castps_si512(_mm512_add_ps(three, _mm512_castsi512_ps(d)));
            }
            // A chunk that a row does not have is zero, and so are cells.
            for chunk in quarters(chunks) {
                results = _mm512_add_ps(results, _mm512_castsi512_ps(chunk));
            }
        }
        // SAFETY: the mask has a bit for each element of the slice, and no others.
        unsafe { _mm512_mask_storeu_ps(sums.as_mut_ptr(), u16::MAX >> (LANES - sums.len()), results) };
    }

    fn words(floats: &[f32; LANES]) -> __m512i {
        _mm512_castps_si512(load_floats(floats))
    }

    /// Sixteen floats from `start` on.
    fn floats(floats: &[f32], start: usize) -> __m512 {
        let floats = &floats[start..start + LANES];
        // SAFETY: the slice has the size of the register.
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }
}

/// The remainder of a number that seldom is as large as the divisor.
#[inline(always)]
fn wrapped(number: usize, divisor: usize) -> usize {
    if number < divisor { number } else { number % divisor }
}

/// Asks for bytes that come `ahead` after others.
#[inline(always)]
fn prefetch(used: *const u8, ahead: usize, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        prefetch_far(used.wrapping_add(ahead + at));
    }
}
