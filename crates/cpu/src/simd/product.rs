//! The inner loop of a product of matrices whose operands are both rows: one tile of cells, each a product of two rows.
//!
//! A cell is 16 strands, fused, as `docs/ARITHMETIC.md` defines it. Both operands come packed in *steps* of 16 elements:
//! `left[step][row][lane]` and `right[step][column][lane]`. What the last step lacks is -0 on the left and +0 on the right: their
//! product is -0, which changes no strand, not even one that is -0 itself.
//!
//! The shape of the tile is that of the registers and changes no bits: AVX-512 holds the strands of a cell in one register; the
//! others take a half or a quarter of the strands at a time, so that more cells fit.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]
#![allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]

use super::lanes::{Job, LANES, Lanes, with_lanes};
use super::{Isa, Level};

/// The number of strands of a cell.
pub(crate) const STRANDS: usize = LANES;
/// What the last step of the left operand is filled up with.
pub(crate) const LEFT_PAD: f32 = -0.0;
/// What the last step of the right operand is filled up with.
pub(crate) const RIGHT_PAD: f32 = 0.0;
/// The most cells that a tile has.
pub(crate) const MOST_CELLS: usize = 24;

/// The size of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Of the left operand.
    pub(crate) rows: usize,
    /// Of the right operand.
    pub(crate) columns: usize,
}

impl Tile {
    /// What fits into the registers.
    pub(crate) fn of(isa: Isa) -> Self {
        match isa.level() {
            Level::Baseline => Self { rows: 4, columns: 4 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self { rows: 3, columns: 4 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self { rows: 4, columns: 6 },
        }
    }

    /// The number of cells.
    pub(crate) fn cells(self) -> usize {
        self.rows * self.columns
    }
}

/// Adds the products of two panels to the strands of a tile, which lie row by row.
pub(crate) fn multiply(isa: Isa, left: &[f32], right: &[f32], tile: &mut [[f32; STRANDS]]) {
    match isa.level() {
        Level::Baseline => plain(left, right, tile),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe { x86::avx2(left, right, tile) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { x86::avx512(left, right, tile) },
    }
}

/// Four strands of all cells at a time: what NEON has registers for.
fn plain(left: &[f32], right: &[f32], tile: &mut [[f32; STRANDS]]) {
    const PART: usize = 4;
    let Some(tile) = tile.first_chunk_mut::<16>() else { return };
    let (left, right) = (left.as_chunks::<{ 4 * STRANDS }>().0, right.as_chunks::<{ 4 * STRANDS }>().0);
    for part in 0..STRANDS / PART {
        let mut sums = [[0.0; PART]; 16];
        for (sums, strands) in sums.iter_mut().zip(&*tile) {
            *sums = strands.as_chunks().0[part];
        }
        for (left, right) in left.iter().zip(right) {
            let (left, right) = (left.as_chunks::<PART>().0, right.as_chunks::<PART>().0);
            for row in 0..4 {
                for column in 0..4 {
                    let (a, b) = (&left[row * 4 + part], &right[column * 4 + part]);
                    let sums = &mut sums[row * 4 + column];
                    for lane in 0..PART {
                        sums[lane] = a[lane].mul_add(b[lane], sums[lane]);
                    }
                }
            }
        }
        for (sums, strands) in sums.iter().zip(tile.iter_mut()) {
            strands.as_chunks_mut().0[part] = *sums;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::STRANDS;
    use std::arch::x86_64::*;

    /// Half of the strands of all cells at a time.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(left: &[f32], right: &[f32], tile: &mut [[f32; STRANDS]]) {
        let Some(tile) = tile.first_chunk_mut::<12>() else { return };
        half::<0>(left, right, tile);
        half::<8>(left, right, tile);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn half<const FIRST: usize>(left: &[f32], right: &[f32], tile: &mut [[f32; STRANDS]; 12]) {
        let mut sums = [_mm256_setzero_ps(); 12];
        for cell in 0..12 {
            // SAFETY: `FIRST` is 0 or 8, and a cell has 16 floats.
            sums[cell] = unsafe { _mm256_loadu_ps(tile[cell].as_ptr().add(FIRST)) };
        }
        let steps = left.as_chunks::<{ 3 * STRANDS }>().0.iter().zip(right.as_chunks::<{ 4 * STRANDS }>().0);
        for (left, right) in steps {
            let mut rows = [_mm256_setzero_ps(); 3];
            for row in 0..3 {
                // SAFETY: a step has three rows of 16 floats.
                rows[row] = unsafe { _mm256_loadu_ps(left.as_ptr().add(row * STRANDS + FIRST)) };
            }
            for column in 0..4 {
                // SAFETY: a step has four columns of 16 floats.
                let right = unsafe { _mm256_loadu_ps(right.as_ptr().add(column * STRANDS + FIRST)) };
                for row in 0..3 {
                    sums[row * 4 + column] = _mm256_fmadd_ps(rows[row], right, sums[row * 4 + column]);
                }
            }
        }
        for cell in 0..12 {
            // SAFETY: as when loading.
            unsafe { _mm256_storeu_ps(tile[cell].as_mut_ptr().add(FIRST), sums[cell]) };
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(left: &[f32], right: &[f32], tile: &mut [[f32; STRANDS]]) {
        let Some(tile) = tile.first_chunk_mut::<24>() else { return };
        let mut sums = [_mm512_setzero_ps(); 24];
        for cell in 0..24 {
            // SAFETY: a cell has 16 floats.
            sums[cell] = unsafe { _mm512_loadu_ps(tile[cell].as_ptr()) };
        }
        let steps = left.as_chunks::<{ 4 * STRANDS }>().0.iter().zip(right.as_chunks::<{ 6 * STRANDS }>().0);
        for (left, right) in steps {
            let mut rows = [_mm512_setzero_ps(); 4];
            for row in 0..4 {
                // SAFETY: a step has four rows of 16 floats.
                rows[row] = unsafe { _mm512_loadu_ps(left.as_ptr().add(row * STRANDS)) };
            }
            for column in 0..6 {
                // SAFETY: a step has six columns of 16 floats.
                let right = unsafe { _mm512_loadu_ps(right.as_ptr().add(column * STRANDS)) };
                for row in 0..4 {
                    sums[row * 6 + column] = _mm512_fmadd_ps(rows[row], right, sums[row * 6 + column]);
                }
            }
        }
        for cell in 0..24 {
            // SAFETY: as when loading.
            unsafe { _mm512_storeu_ps(tile[cell].as_mut_ptr(), sums[cell]) };
        }
    }
}

/// The sums of the strands of cells, halves added to halves. The number of cells is a multiple of four, as that of a tile is.
pub(crate) fn totals(isa: Isa, cells: &[[f32; STRANDS]], out: &mut [f32]) {
    with_lanes(isa, Totals { cells: cells.as_chunks().0, out: out.as_chunks_mut().0 });
}

struct Totals<'a> {
    cells: &'a [[[f32; STRANDS]; 4]],
    out: &'a mut [[f32; 4]],
}

impl Job for Totals<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for ([a, b, c, d], out) in self.cells.iter().zip(self.out) {
            *out = lanes.totals(&[lanes.load(a), lanes.load(b), lanes.load(c), lanes.load(d)]);
        }
    }
}

kernel! {
    /// Adds up strands of rows: `strands[strand][column]`, `width` columns each, become one row, the first. There are at most 16
    /// strands, halves are added to halves, and strands that are missing are +0.
    pub(crate) fn combine(strands: &mut [f32], width: usize) {
        let width = width.max(1);
        let count = strands.len() / width;
        let mut half = STRANDS / 2;
        while half > 0 {
            let (lower, upper) = strands.split_at_mut((half * width).min(strands.len()));
            lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
            half /= 2;
        }
        // A +0 among what is added makes +0 of a sum of -0, wherever it was added, and changes no other sum.
        if count < STRANDS {
            strands.iter_mut().take(width).for_each(|sum| *sum += 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::dot::dot_f32;

    /// Numbers of all sizes, and some whose products vanish with a sign.
    fn number(at: usize) -> f32 {
        let number = (at * 37 % 101) as f32 / 32.0 - 1.5;
        if at.is_multiple_of(3) { number * 1e-30 } else { number }
    }

    #[test]
    fn a_cell_has_the_bits_of_the_product_of_its_rows() {
        for isa in Isa::available() {
            let tile = Tile::of(isa);
            for depth in [0, 1, 15, 16, 17, 40, 64] {
                let steps = usize::div_ceil(depth, STRANDS);
                let rows = |count: usize, seed: usize| -> Vec<Vec<f32>> {
                    (0..count).map(|row| (0..depth).map(|k| number(row * 71 + k + seed)).collect()).collect()
                };
                let packed = |rows: &[Vec<f32>], pad: f32| -> Vec<f32> {
                    let at = |step: usize, row: usize, lane: usize| rows[row].get(step * STRANDS + lane).copied();
                    (0..steps * rows.len() * STRANDS)
                        .map(|i| at(i / STRANDS / rows.len(), i / STRANDS % rows.len(), i % STRANDS).unwrap_or(pad))
                        .collect()
                };
                let (left, right) = (rows(tile.rows, 0), rows(tile.columns, 50));
                let mut cells = vec![[0.0; STRANDS]; tile.cells()];
                multiply(isa, &packed(&left, LEFT_PAD), &packed(&right, RIGHT_PAD), &mut cells);
                let mut sums = vec![7.0; tile.cells()];
                totals(isa, &cells, &mut sums);
                for (cell, sum) in sums.iter().enumerate() {
                    let wanted = dot_f32(isa, &left[cell / tile.columns], &right[cell % tile.columns]);
                    assert_eq!(sum.to_bits(), wanted.to_bits(), "{isa:?} {depth}: cell {cell}");
                }
            }
        }
    }

    #[test]
    fn what_the_last_step_is_filled_up_with_changes_no_strand() {
        for strand in [0.0_f32, -0.0, 1e-45, -3.0, f32::INFINITY] {
            assert_eq!(LEFT_PAD.mul_add(RIGHT_PAD, strand).to_bits(), strand.to_bits());
        }
    }

    #[test]
    fn strands_of_rows_are_combined_as_those_of_a_cell() {
        for isa in Isa::available() {
            for (count, width) in [(16, 5), (3, 7), (1, 1), (9, 20), (4, 16)] {
                for scale in [1.0, -0.0] {
                    let strands: Vec<f32> = (0..count * width).map(|at| number(at) * scale).map(|x| -x.abs()).collect();
                    let mut combined = strands.clone();
                    combine(isa, &mut combined, width);
                    for column in 0..width {
                        let mut cell = [0.0; STRANDS];
                        (0..count).for_each(|strand| cell[strand] = strands[strand * width + column]);
                        let mut wanted = [0.0; 4];
                        totals(isa, &[cell; 4], &mut wanted);
                        assert_eq!(combined[column].to_bits(), wanted[0].to_bits(), "{isa:?} {count} {scale}");
                    }
                }
            }
        }
    }
}
