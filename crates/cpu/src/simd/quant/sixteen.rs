//! Rows of activations times sixteen rows of quantized weights, each of which has a lane: sums need no lanes of others.
//!
//! A word of 32 bits has the codes of neighbours: words of sixteen rows are transposed, and then shifted and masked, which leaves
//! four codes of every row in a register. It stays there while AVX-512 VNNI multiplies it with four activations of one row after
//! another, in the order of `Order::Bytes`. `docs/ARITHMETIC.md`, "QuantMatMul", has the rest.
//!
//! Its plain twin is `codes::product`.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays by constants, and of slices whose lengths are checked")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::activation::{CHUNK, Order, ROWS, Sums, TableLayout};
use super::factors::ShortFactors;
use crate::quant::{Packing, Weights};
use crate::simd::{Isa, Level};
use std::ops::Range;

/// Rows of weights that are multiplied together.
pub(crate) const SIXTEEN: usize = 16;

/// Multiplies sixteen rows of weights at a time; having one is the proof that the machine has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sixteen<'a> {
    isa: Isa,
    weights: &'a Weights<'a>,
    bits: u8,
    scales: ShortFactors<'a>,
    biases: Option<ShortFactors<'a>>,
    /// The layout of two rows of activations.
    pub(crate) layout: TableLayout,
}

impl<'a> Sixteen<'a> {
    /// Returns `None` for weights or machines that it does not support. Activations have groups of `group`.
    pub(crate) fn of(isa: Isa, weights: &'a Weights<'a>, group: usize) -> Option<Self> {
        let Packing::Affine { bits, .. } = weights.packing else { return None };
        let (scales, biases) = ShortFactors::of(weights, group)?;
        let is_supported =
            has_instructions(isa) && matches!(bits, 2 | 4 | 8) && matches!(group, 32 | 64) && weights.columns > 0;
        let order = Order::Bytes { vectors: 8 / usize::from(bits) };
        let sums = if biases.is_some() { Sums::Biased } else { Sums::Plain };
        let layout = TableLayout { order, sums, group, rows: 2 };
        is_supported.then_some(Self { isa, weights, bits, scales, biases, layout })
    }

    /// Floats of two rows of a table of activations.
    pub(crate) fn pair_floats(&self) -> usize {
        2 * self.layout.floats(self.weights.columns)
    }

    /// Floats of memory for this many pairs of rows.
    pub(crate) fn memory(&self, pairs: usize) -> usize {
        2 * SIXTEEN * (pairs + self.padded_groups())
    }

    /// Groups up to a whole chunk.
    fn padded_groups(&self) -> usize {
        self.weights.columns.next_multiple_of(CHUNK) / self.layout.group
    }

    /// Adds the products of some rows of the weights with pairs of rows of activations to `sums`, which lie `stride` apart and
    /// have room for whole sixteens of columns. `memory` has what [`Sixteen::memory`] says.
    pub(crate) fn products(
        &self,
        columns: Range<usize>,
        table: &[f32],
        memory: &mut [f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let pairs = table.len() / self.pair_floats();
        let (chunks, factors) = memory.split_at_mut(2 * SIXTEEN * pairs);
        // What is beyond the last group stays zero, and so do biases that do not exist.
        factors.fill(0.0);
        let (scales, biases) = factors.split_at_mut(SIXTEEN * self.padded_groups());
        for (number, first) in columns.clone().step_by(SIXTEEN).enumerate() {
            // The last row is repeated.
            let numbers: [usize; SIXTEEN] = std::array::from_fn(|at| (first + at).min(columns.end - 1));
            self.widen(&self.scales, numbers, scales);
            self.scales.prefetch(first + SIXTEEN..first + 2 * SIXTEEN);
            if let Some(factors) = &self.biases {
                self.widen(factors, numbers, biases);
                factors.prefetch(first + SIXTEEN..first + 2 * SIXTEEN);
            }
            let codes = numbers.map(|row| self.weights.codes.row(row, self.weights.row_bytes()));
            #[cfg(target_arch = "x86_64")]
            {
                let products = match (self.bits, self.layout.group) {
                    (2, 32) => x86::products::<2, 2>,
                    (4, 32) => x86::products::<4, 2>,
                    (8, 32) => x86::products::<8, 2>,
                    (2, _) => x86::products::<2, 1>,
                    (4, _) => x86::products::<4, 1>,
                    _ => x86::products::<8, 1>,
                };
                let weights = SixteenRows { codes, scales, biases };
                let (x, sums) = ((table, self.pair_floats()), &mut sums[number * SIXTEEN..]);
                // SAFETY: such a value exists only on machines with these instructions.
                unsafe { products(&weights, x, chunks.as_chunks_mut().0.as_chunks_mut().0, (sums, stride)) };
            }
        }
    }

    /// Writes scales or biases as `[group][row]`.
    fn widen(&self, factors: &ShortFactors<'_>, rows: [usize; SIXTEEN], to: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if factors.has_eight() {
            // SAFETY: such a value exists only on machines with these instructions.
            return unsafe { factors.widen_sixteen(rows, to) };
        }
        for (at, rows) in rows.as_chunks::<ROWS>().0.iter().enumerate() {
            factors.widen(self.isa, *rows, factors.groups(), &mut to[ROWS * at..], SIXTEEN);
        }
    }
}

fn has_instructions(isa: Isa) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => true,
        _ => false,
    }
}

/// Sixteen rows of weights.
struct SixteenRows<'a> {
    /// All of the same length.
    codes: [&'a [u8]; SIXTEEN],
    /// `[group][row]`, with zeros up to a whole chunk.
    scales: &'a [f32],
    biases: &'a [f32],
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{SIXTEEN, SixteenRows};
    use crate::simd::quant::activation::{CELL, CHUNK};
    use crate::simd::{CACHE_LINE, prefetch_at};
    use std::arch::x86_64::*;

    /// Registers of codes of a cell.
    const CODES: usize = CELL / 4;
    /// Floats of the integers of a chunk.
    const INTEGERS: usize = CHUNK / 2;
    /// Bytes of a row that are transposed at once: four words.
    const BYTES: usize = 16;

    vnni! {
        /// Adds the products of pairs of rows of activations, which have `pair_floats` each, to rows of sums, `stride` apart.
        pub(super) fn products[const BITS: usize, const SLOTS: usize](
            weights: &SixteenRows<'_>,
            (table, pair_floats): (&[f32], usize),
            chunks: &mut [[[f32; SIXTEEN]; 2]],
            (sums, stride): (&mut [f32], usize),
        ) {
            let (cell_bytes, block) = (CELL * BITS / 8, 2 * (INTEGERS + 2 * SLOTS * 16));
            let (length, pairs) = (weights.codes[0].len(), table.len() / pair_floats);
            // Not by `map`: what takes a function is not compiled for these instructions, so it is not inlined.
            let mut rows = [std::ptr::null(); SIXTEEN];
            for (row, codes) in rows.iter_mut().zip(weights.codes) {
                assert!(codes.len() == length, "rows have the same length");
                *row = codes.as_ptr();
            }
            // What follows these rows is read next.
            let ahead = rows[0].wrapping_add(SIXTEEN * length);
            let scales = weights.scales.as_chunks::<SIXTEEN>().0.as_chunks::<SLOTS>().0;
            let biases = weights.biases.as_chunks::<SIXTEEN>().0.as_chunks::<SLOTS>().0;
            chunks.fill([[0.0; SIXTEEN]; 2]);
            let mut last = [[0; 64]; SIXTEEN];
            for (number, start) in (0..length).step_by(cell_bytes).enumerate() {
                for at in (0..SIXTEEN * cell_bytes).step_by(CACHE_LINE) {
                    prefetch_at(ahead.wrapping_add(SIXTEEN * start + at));
                }
                let mut offset = start;
                if start + cell_bytes > length {
                    for row in 0..SIXTEEN {
                        last[row][..length - start].copy_from_slice(&weights.codes[row][start..]);
                        rows[row] = last[row].as_ptr();
                    }
                    offset = 0;
                }
                // SAFETY: the bytes of a cell follow in each row; those of the last one were copied if there are fewer.
                let codes = unsafe { unpack::<BITS>(&rows, offset) };
                let blocks = &table[number / 4 * block..];
                for (pair, chunks) in chunks.iter_mut().enumerate().take(pairs) {
                    let x = &blocks[pair * pair_floats..][..block];
                    cell::<BITS, SLOTS>(&codes, x, number % 4, [&scales[number], &biases[number]], chunks);
                }
                if number % 4 == 3 || start + cell_bytes >= length {
                    for (row, chunk) in chunks.as_flattened_mut().iter_mut().enumerate() {
                        let Some(sums) = sums[row * stride..].first_chunk_mut::<SIXTEEN>() else { return };
                        store(_mm512_add_ps(load(sums), load(chunk)), sums);
                        *chunk = [0.0; SIXTEEN];
                    }
                }
            }
        }

        /// Adds the products of cell number `number` of a chunk with two rows of activations.
        fn cell[const BITS: usize, const SLOTS: usize](
            codes: &[__m512i; CODES],
            block: &[f32],
            number: usize,
            [scales, biases]: [&[[f32; SIXTEEN]; SLOTS]; 2],
            chunks: &mut [[f32; SIXTEEN]; 2],
        ) {
            // A register of the table has a word of each of sixteen; a cell has this many.
            let (vectors, words) = (8 / BITS, 2 * BITS);
            let first = number * words / 16 * 32 * vectors + number * words % 16;
            let (mut x, mut factors) = ([&[][..]; 2], [&[][..]; 2]);
            for row in 0..2 {
                let block = &block[row * block.len() / 2..];
                x[row] = &block[first..][..16 * (2 * vectors - 1) + words];
                factors[row] = &block[INTEGERS + 4 * number..][..16 * (2 * SLOTS - 1) + 1];
            }
            let mut cells = [_mm512_setzero_ps(); 2];
            let mut products = half::<BITS, 0>(codes, x, [[_mm512_setzero_si512(); 2]; 2]);
            if SLOTS == 2 {
                add_group(products, factors, 0, [&scales[0], &biases[0]], &mut cells);
                products = [[_mm512_setzero_si512(); 2]; 2];
            }
            products = half::<BITS, 1>(codes, x, products);
            add_group(products, factors, SLOTS - 1, [&scales[SLOTS - 1], &biases[SLOTS - 1]], &mut cells);
            for row in 0..2 {
                store(_mm512_add_ps(load(&chunks[row]), cells[row]), &mut chunks[row]);
            }
        }

        /// Adds the products of half a cell with two rows of activations to sums, of each row those of the high bytes and of the low
        /// ones. With more codes at once, the compiler would not unroll the loop, and keep codes in memory.
        #[allow(clippy::needless_range_loop, reason = "as a loop of a constant range, it is unrolled")]
        fn half[const BITS: usize, const HALF: usize](
            codes: &[__m512i; CODES],
            x: [&[f32]; 2],
            mut sums: [[__m512i; 2]; 2],
        ) -> [[__m512i; 2]; 2] {
            let vectors = 8 / BITS;
            for at in HALF * CODES / 2..(HALF + 1) * CODES / 2 {
                let at_x = at % vectors * 32 + at / vectors;
                for row in 0..2 {
                    sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], codes[at], splat(x[row][at_x]));
                    sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], codes[at], splat(x[row][at_x + 16]));
                }
            }
            sums
        }

        /// Adds the floats of a group to the cells of two rows, whose steps and sums `factors` has.
        fn add_group(
            products: [[__m512i; 2]; 2],
            factors: [&[f32]; 2],
            slot: usize,
            [scale, bias]: [&[f32; SIXTEEN]; 2],
            cells: &mut [__m512; 2],
        ) {
            for row in 0..2 {
                let [high, low] = products[row];
                let sums = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
                let (step, sum) = (factors[row][32 * slot], factors[row][32 * slot + 16]);
                let scale = _mm512_mul_ps(load(scale), _mm512_set1_ps(step));
                cells[row] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums), cells[row]);
                cells[row] = _mm512_fmadd_ps(load(bias), _mm512_set1_ps(sum), cells[row]);
            }
        }

        fn splat(bits: f32) -> __m512i {
            _mm512_castps_si512(_mm512_set1_ps(bits))
        }

        fn load(floats: &[f32; SIXTEEN]) -> __m512 {
            // SAFETY: the array has the size of the register.
            unsafe { _mm512_loadu_ps(floats.as_ptr()) }
        }

        fn store(floats: __m512, to: &mut [f32; SIXTEEN]) {
            // SAFETY: the array has the size of the register.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) };
        }
    }

    /// The codes of a cell of sixteen rows, from byte `start` on.
    ///
    /// # Safety
    ///
    /// `8 * BITS` bytes from there on can be read in each row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
    unsafe fn unpack<const BITS: usize>(rows: &[*const u8; SIXTEEN], start: usize) -> [__m512i; CODES] {
        #[allow(clippy::cast_possible_wrap, reason = "at most eight")]
        let width = _mm_set_epi64x(0, BITS as i64);
        let mask = _mm512_set1_epi8(if BITS == 8 { -1 } else { (1 << BITS) - 1 });
        let mut codes = [_mm512_setzero_si512(); CODES];
        for part in 0..8 * BITS / BYTES {
            // SAFETY: the caller's.
            let words = unsafe { words(rows, start + part * BYTES) };
            for at in 0..4 {
                let mut rest = words[at];
                for vector in 0..8 / BITS {
                    codes[(4 * part + at) * (8 / BITS) + vector] = _mm512_and_si512(rest, mask);
                    rest = _mm512_srl_epi32(rest, width);
                }
            }
        }
        codes
    }

    /// Four words of sixteen rows, from byte `start` on: word by word, all rows.
    ///
    /// # Safety
    ///
    /// 16 bytes from there on can be read in each row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
    pub(in crate::simd::quant) unsafe fn words(rows: &[*const u8; SIXTEEN], start: usize) -> [__m512i; 4] {
        let mut quarters = [_mm512_setzero_si512(); 4];
        for (at, quarter) in quarters.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let load = |row: usize| unsafe { _mm_loadu_si128(rows[row].add(start).cast()) };
            let register = _mm512_castsi128_si512(load(at));
            let register = _mm512_inserti32x4(register, load(at + 4), 1);
            let register = _mm512_inserti32x4(register, load(at + 8), 2);
            *quarter = _mm512_inserti32x4(register, load(at + 12), 3);
        }
        let [a, b, c, d] = quarters;
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (other_low, other_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(low, other_low),
            _mm512_unpackhi_epi64(low, other_low),
            _mm512_unpacklo_epi64(high, other_high),
            _mm512_unpackhi_epi64(high, other_high),
        ]
    }
}
