//! The inner loop of a product of matrices: one tile of sums, held in registers.
//!
//! Both operands come packed: `left[k][row]` and `right[k][column]`, so that each step of `k` reads one short row of each and
//! adds their outer product to the tile. A cell of the tile is a sequence of fused multiply-adds in the order of `k`, whatever
//! the size of the tile: all versions that can fuse give the same bits.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use super::{Isa, Level};

/// The size of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Of the left operand.
    pub rows: usize,
    /// Of the right operand.
    pub columns: usize,
}

/// Of the plain version: what 16 registers of four floats hold, or 32 of them.
const PLAIN_ROWS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };
const PLAIN_COLUMNS: usize = 8;

impl Tile {
    /// What fits into the registers.
    pub fn of(isa: Isa) -> Self {
        match isa.level() {
            Level::Baseline => Self { rows: PLAIN_ROWS, columns: PLAIN_COLUMNS },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self { rows: 6, columns: 16 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self { rows: 12, columns: 32 },
        }
    }
}

/// Adds the product of two panels, `left[k][row]` and `right[k][column]`, to a tile whose rows lie `stride` apart.
pub fn multiply(isa: Isa, left: &[f32], right: &[f32], sums: &mut [f32], stride: usize) {
    match isa.level() {
        Level::Baseline => plain::<PLAIN_ROWS, PLAIN_COLUMNS>(left, right, sums, stride),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe { x86::avx2(left, right, sums, stride) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise.
        Level::Avx512 => unsafe { x86::avx512(left, right, sums, stride) },
    }
}

/// Fused where that is one instruction.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

fn plain<const ROWS: usize, const COLUMNS: usize>(left: &[f32], right: &[f32], sums: &mut [f32], stride: usize) {
    let mut tile = [[0.0; COLUMNS]; ROWS];
    for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
        for (row, left) in tile.iter_mut().zip(left) {
            row.iter_mut().zip(right).for_each(|(cell, right)| *cell = multiply_add(*left, *right, *cell));
        }
    }
    for (row, sums) in tile.iter().zip(sums.chunks_mut(stride)) {
        sums.iter_mut().zip(row).for_each(|(sum, cell)| *sum += cell);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(left: &[f32], right: &[f32], sums: &mut [f32], stride: usize) {
        let mut tile = [[_mm256_setzero_ps(); 2]; 6];
        for (left, right) in left.as_chunks::<6>().0.iter().zip(right.as_chunks::<16>().0) {
            // SAFETY: 16 floats are two registers.
            let right = unsafe { [_mm256_loadu_ps(right.as_ptr()), _mm256_loadu_ps(right.as_ptr().add(8))] };
            for (row, left) in tile.iter_mut().zip(left) {
                let left = _mm256_set1_ps(*left);
                row[0] = _mm256_fmadd_ps(left, right[0], row[0]);
                row[1] = _mm256_fmadd_ps(left, right[1], row[1]);
            }
        }
        for (row, sums) in tile.iter().zip(sums.chunks_mut(stride)) {
            let Some(sums) = sums.first_chunk_mut::<16>() else { return };
            let (low, high) = sums.split_at_mut(8);
            let (low, high) = (low.as_mut_ptr(), high.as_mut_ptr());
            // SAFETY: each is the start of eight floats of the chunk.
            unsafe {
                _mm256_storeu_ps(low, _mm256_add_ps(_mm256_loadu_ps(low), row[0]));
                _mm256_storeu_ps(high, _mm256_add_ps(_mm256_loadu_ps(high), row[1]));
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(left: &[f32], right: &[f32], sums: &mut [f32], stride: usize) {
        let mut tile = [[_mm512_setzero_ps(); 2]; 12];
        for (left, right) in left.as_chunks::<12>().0.iter().zip(right.as_chunks::<32>().0) {
            // SAFETY: 32 floats are two registers.
            let right = unsafe { [_mm512_loadu_ps(right.as_ptr()), _mm512_loadu_ps(right.as_ptr().add(16))] };
            for (row, left) in tile.iter_mut().zip(left) {
                let left = _mm512_set1_ps(*left);
                row[0] = _mm512_fmadd_ps(left, right[0], row[0]);
                row[1] = _mm512_fmadd_ps(left, right[1], row[1]);
            }
        }
        for (row, sums) in tile.iter().zip(sums.chunks_mut(stride)) {
            let Some(sums) = sums.first_chunk_mut::<32>() else { return };
            let (low, high) = sums.split_at_mut(16);
            let (low, high) = (low.as_mut_ptr(), high.as_mut_ptr());
            // SAFETY: each is the start of sixteen floats of the chunk.
            unsafe {
                _mm512_storeu_ps(low, _mm512_add_ps(_mm512_loadu_ps(low), row[0]));
                _mm512_storeu_ps(high, _mm512_add_ps(_mm512_loadu_ps(high), row[1]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_the_sum_of_outer_products_added_to_what_was_there() {
        for isa in Isa::available() {
            let Tile { rows, columns } = Tile::of(isa);
            for depth in [0, 1, 7, 64] {
                let number = |at: usize| (at * 37 % 101) as f32 / 32.0 - 1.5;
                let left: Vec<f32> = (0..depth * rows).map(number).collect();
                let right: Vec<f32> = (0..depth * columns).map(|at| number(at + 17)).collect();
                let stride = columns + 3;
                let mut sums = vec![1.0; rows * stride];
                multiply(isa, &left, &right, &mut sums, stride);
                for row in 0..rows {
                    for column in 0..stride {
                        let products = (0..depth).map(|k| left[k * rows + row] * right[k * columns + column % columns]);
                        let expected = if column < columns { 1.0 + products.sum::<f32>() } else { 1.0 };
                        assert!((sums[row * stride + column] - expected).abs() < 1e-3, "{isa:?}: {row}, {column}");
                    }
                }
            }
        }
    }
}
