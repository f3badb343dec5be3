//! The inner loop of a product of whole numbers, two at a time: their sums are exact within a group, and floats from there on.
//!
//! Both operands come packed in pairs of neighbours along the columns of the weights, the first of a pair in the lower half of a
//! word: `left[pair][row]` and `right[pair][column]`. For each group come two factors of each row, its step and what is multiplied
//! with the bias, and two of each column, its scale and its bias. `docs/ARITHMETIC.md`, "QuantMatMul", has the rest.
//!
//! The words are kept where other products keep floats, and are only ever moved.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use super::activation::CELL;
use crate::simd::{Isa, Level, Tile};

/// Of the plain version.
const PLAIN: Tile = Tile { rows: 4, columns: 8 };

/// What fits into the registers.
pub(crate) fn tile(isa: Isa) -> Tile {
    match isa.level() {
        Level::Baseline => PLAIN,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Tile { rows: 4, columns: 16 },
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Tile { rows: 6, columns: 32 },
    }
}

/// A chunk of a panel: its words, and its factors, `[group][kind][row or column]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) words: &'a [f32],
    pub(crate) factors: &'a [f32],
}

/// Adds the product of a chunk to a tile whose rows lie `stride` apart.
pub(crate) fn multiply(isa: Isa, left: Panel<'_>, right: Panel<'_>, group: usize, sums: &mut [f32], stride: usize) {
    match isa.level() {
        Level::Baseline => plain::<{ PLAIN.rows }, { PLAIN.columns }>(left, right, group, sums, stride),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe { x86::avx2(left, right, group, sums, stride) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise.
        Level::Avx512 => unsafe { x86::avx512(left, right, group, sums, stride) },
    }
}

/// The two whole numbers of a word.
#[inline(always)]
fn pair(word: f32) -> [i32; 2] {
    let word = word.to_bits().cast_signed();
    [word << 16 >> 16, word >> 16]
}

fn plain<const ROWS: usize, const COLUMNS: usize>(
    left: Panel<'_>,
    right: Panel<'_>,
    group: usize,
    sums: &mut [f32],
    stride: usize,
) {
    let (mut chunk, mut cell) = ([[0.0; COLUMNS]; ROWS], [[0.0_f32; COLUMNS]; ROWS]);
    let groups = left.words.chunks_exact(ROWS * group / 2).zip(left.factors.chunks_exact(2 * ROWS));
    let columns = right.words.chunks_exact(COLUMNS * group / 2).zip(right.factors.chunks_exact(2 * COLUMNS));
    let slots = CELL / group;
    for (at, ((left, rows), (right, columns))) in groups.zip(columns).enumerate() {
        let mut tile = [[0_i32; COLUMNS]; ROWS];
        for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
            for (row, left) in tile.iter_mut().zip(left) {
                let [low, high] = pair(*left);
                for (sum, right) in row.iter_mut().zip(right) {
                    let [code, next] = pair(*right);
                    *sum += low * code + high * next;
                }
            }
        }
        let ((steps, row_sums), (scales, biases)) = (rows.split_at(ROWS), columns.split_at(COLUMNS));
        for (row, cells) in cell.iter_mut().enumerate() {
            for (column, cell) in cells.iter_mut().enumerate() {
                *cell = (scales[column] * steps[row]).mul_add(tile[row][column] as f32, *cell);
                *cell = biases[column].mul_add(row_sums[row], *cell);
            }
        }
        if at % slots == slots - 1 {
            chunk
                .iter_mut()
                .flatten()
                .zip(cell.iter_mut().flatten())
                .for_each(|(sum, cell)| *sum += std::mem::take(cell));
        }
    }
    for ((chunk, cell), sums) in chunk.iter().zip(&cell).zip(sums.chunks_mut(stride)) {
        sums.iter_mut().zip(chunk.iter().zip(cell)).for_each(|(sum, (chunk, cell))| *sum += chunk + cell);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CELL, Panel};
    use std::arch::x86_64::*;

    /// A version with registers of that many floats and tiles of that many rows and two registers.
    macro_rules! version {
        ($name:ident, $features:literal, $lanes:literal, $rows:literal, $add_products:expr,
         $zero:ident, $integer_zero:ident, $splat:ident, $to_integers:ident, $to_floats:ident, $load:ident, $store:ident,
         $multiply:ident, $multiply_add:ident, $add:ident) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(left: Panel<'_>, right: Panel<'_>, group: usize, sums: &mut [f32], stride: usize) {
                const COLUMNS: usize = 2 * $lanes;
                let (mut chunk, mut cell) = ([[$zero(); 2]; $rows], [[$zero(); 2]; $rows]);
                let groups =
                    left.words.chunks_exact($rows * group / 2).zip(left.factors.as_chunks::<{ 2 * $rows }>().0);
                let columns =
                    right.words.chunks_exact(COLUMNS * group / 2).zip(right.factors.as_chunks::<{ 2 * COLUMNS }>().0);
                let slots = CELL / group;
                for (at, ((left, rows), (right, factors))) in groups.zip(columns).enumerate() {
                    let mut tile = [[$integer_zero(); 2]; $rows];
                    for (left, right) in left.as_chunks::<$rows>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
                        // SAFETY: the array has the size of two registers.
                        let right = unsafe { [$load(right.as_ptr()), $load(right.as_ptr().add($lanes))] };
                        for (row, left) in tile.iter_mut().zip(left) {
                            let left = $to_integers($splat(*left));
                            row[0] = $add_products(row[0], left, $to_integers(right[0]));
                            row[1] = $add_products(row[1], left, $to_integers(right[1]));
                        }
                    }
                    // SAFETY: the array has the size of four registers.
                    let factors = unsafe {
                        let start = factors.as_ptr();
                        [
                            $load(start),
                            $load(start.add($lanes)),
                            $load(start.add(2 * $lanes)),
                            $load(start.add(3 * $lanes)),
                        ]
                    };
                    for row in 0..$rows {
                        let (step, sum) = ($splat(rows[row]), $splat(rows[$rows + row]));
                        for half in 0..2 {
                            let scale = $multiply(factors[half], step);
                            let products = $multiply_add(scale, $to_floats(tile[row][half]), cell[row][half]);
                            cell[row][half] = $multiply_add(factors[2 + half], sum, products);
                        }
                    }
                    if at % slots == slots - 1 {
                        for row in 0..$rows {
                            for half in 0..2 {
                                chunk[row][half] = $add(chunk[row][half], cell[row][half]);
                                cell[row][half] = $zero();
                            }
                        }
                    }
                }
                for (row, sums) in sums.chunks_mut(stride).enumerate().take($rows) {
                    let Some(sums) = sums.first_chunk_mut::<COLUMNS>() else { return };
                    for half in 0..2 {
                        let total = $add(chunk[row][half], cell[row][half]);
                        // SAFETY: both halves of the array have the size of a register.
                        unsafe {
                            let start = sums.as_mut_ptr().add(half * $lanes);
                            $store(start, $add($load(start), total));
                        }
                    }
                }
            }
        };
    }

    version!(
        avx512,
        "avx512f,avx512vnni",
        16,
        6,
        |sum, a, b| _mm512_dpwssd_epi32(sum, a, b),
        _mm512_setzero_ps,
        _mm512_setzero_si512,
        _mm512_set1_ps,
        _mm512_castps_si512,
        _mm512_cvtepi32_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_mul_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
    version!(
        avx2,
        "avx2,fma",
        8,
        4,
        |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
        _mm256_setzero_ps,
        _mm256_setzero_si256,
        _mm256_set1_ps,
        _mm256_castps_si256,
        _mm256_cvtepi32_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_mul_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
}
