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

use crate::simd::lanes::{Job, LANES, Lanes, with_lanes};
use crate::simd::{Isa, Level, Tile};

/// The number of strands of a cell.
pub(crate) const STRANDS: usize = LANES;
/// The strands of a cell.
pub(crate) type Strands = [f32; STRANDS];
/// What the last step of the left operand is filled up with.
pub(crate) const LEFT_PAD: f32 = -0.0;
/// What the last step of the right operand is filled up with.
pub(crate) const RIGHT_PAD: f32 = 0.0;
/// The most cells that a tile has.
pub(crate) const MOST_CELLS: usize = 24;

/// What fits into the registers.
pub(crate) fn tile(isa: Isa) -> Tile {
    match isa.level() {
        Level::Baseline => Tile { rows: 4, columns: 4 },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Tile { rows: 3, columns: 4 },
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Tile { rows: 4, columns: 6 },
    }
}

/// A part of the products of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    /// A panel of the left operand.
    pub(crate) left: &'a [f32],
    /// A panel of the right operand.
    pub(crate) right: &'a [f32],
    /// The panel of the left operand that comes next: it is fetched where a tile would otherwise wait for it.
    pub(crate) next: &'a [f32],
    /// Whether strands start at +0, whatever is there.
    pub(crate) is_first: bool,
    /// Whether the products end with it: the sums of strands are then wanted, and the strands are not.
    pub(crate) is_last: bool,
}

/// Adds the products of two panels to the strands of a tile, which lie row by row; `sums` gets the sums of the last part.
pub(crate) fn multiply(isa: Isa, part: Part<'_>, strands: &mut [Strands], sums: &mut [f32]) {
    match isa.level() {
        Level::Baseline => plain(part, strands, sums),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe {
            match (part.is_first, part.is_last) {
                (true, true) => x86::avx2::<true, true>(part, strands, sums),
                (true, false) => x86::avx2::<true, false>(part, strands, sums),
                (false, true) => x86::avx2::<false, true>(part, strands, sums),
                (false, false) => x86::avx2::<false, false>(part, strands, sums),
            }
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe {
            match (part.is_first, part.is_last) {
                (true, true) => x86::avx512::<true, true>(part, strands, sums),
                (true, false) => x86::avx512::<true, false>(part, strands, sums),
                (false, true) => x86::avx512::<false, true>(part, strands, sums),
                (false, false) => x86::avx512::<false, false>(part, strands, sums),
            }
        },
    }
}

/// Four strands of all cells at a time: what NEON has registers for.
fn plain(part: Part<'_>, strands: &mut [Strands], sums: &mut [f32]) {
    const SIDE: usize = 4;
    const LANES: usize = 4;
    let Some(strands) = strands.first_chunk_mut::<{ SIDE * SIDE }>() else { return };
    if part.is_first {
        *strands = [[0.0; STRANDS]; SIDE * SIDE];
    }
    let left = part.left.as_chunks::<{ SIDE * STRANDS }>().0;
    let right = part.right.as_chunks::<{ SIDE * STRANDS }>().0;
    for quarter in 0..STRANDS / LANES {
        let mut tile = [[0.0; LANES]; SIDE * SIDE];
        for (cell, strands) in tile.iter_mut().zip(&*strands) {
            *cell = strands.as_chunks().0[quarter];
        }
        for (left, right) in left.iter().zip(right) {
            let (left, right) = (left.as_chunks::<LANES>().0, right.as_chunks::<LANES>().0);
            for cell in 0..SIDE * SIDE {
                let (a, b) = (left[cell / SIDE * SIDE + quarter], right[cell % SIDE * SIDE + quarter]);
                for lane in 0..LANES {
                    tile[cell][lane] = a[lane].mul_add(b[lane], tile[cell][lane]);
                }
            }
        }
        for (cell, strands) in tile.iter().zip(strands.iter_mut()) {
            strands.as_chunks_mut().0[quarter] = *cell;
        }
    }
    if part.is_last {
        sums.iter_mut().zip(strands).for_each(|(sum, strands)| *sum = total(strands));
    }
}

/// The sum of strands, halves added to halves.
fn total(strands: &Strands) -> f32 {
    let (mut strands, mut half) = (*strands, STRANDS / 2);
    while half > 0 {
        let (low, high) = strands.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        half /= 2;
    }
    strands[0]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Part, STRANDS, Strands};
    use crate::simd::lanes::{totals_of_eight, totals_of_sixteen};
    use std::arch::x86_64::*;

    /// Half of the strands of all cells at a time.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2<const IS_FIRST: bool, const IS_LAST: bool>(
        part: Part<'_>,
        strands: &mut [Strands],
        sums: &mut [f32],
    ) {
        let Some(strands) = strands.first_chunk_mut::<12>() else { return };
        let low = half::<0, IS_FIRST>(part, strands);
        if !IS_LAST {
            store::<0>(low, strands);
        }
        let high = half::<8, IS_FIRST>(part, strands);
        if !IS_LAST {
            return store::<8>(high, strands);
        }
        let mut tile = low;
        for cell in 0..12 {
            tile[cell] = _mm256_add_ps(low[cell], high[cell]);
        }
        for (at, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate().take(3) {
            *sums = totals_of_eight(tile[4 * at], tile[4 * at + 1], tile[4 * at + 2], tile[4 * at + 3]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn half<const FIRST: usize, const IS_FIRST: bool>(part: Part<'_>, strands: &[Strands; 12]) -> [__m256; 12] {
        let mut tile = [_mm256_setzero_ps(); 12];
        if !IS_FIRST {
            for cell in 0..12 {
                // SAFETY: `FIRST` is 0 or 8, and a cell has 16 floats.
                tile[cell] = unsafe { _mm256_loadu_ps(strands[cell].as_ptr().add(FIRST)) };
            }
        }
        let (left, right) = (part.left.as_chunks::<{ 3 * STRANDS }>().0, part.right.as_chunks::<{ 4 * STRANDS }>().0);
        for (step, (left, right)) in left.iter().zip(right).enumerate() {
            // The first half reads every line of its panels from the second cache, as fast as that can be; the second half has time.
            if FIRST > 0 {
                for row in 0..3 {
                    let line = part.next.as_ptr().wrapping_add((step * 3 + row) * STRANDS);
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                }
            }
            let mut rows = [_mm256_setzero_ps(); 3];
            for row in 0..3 {
                // SAFETY: a step has three rows of 16 floats.
                rows[row] = unsafe { _mm256_loadu_ps(left.as_ptr().add(row * STRANDS + FIRST)) };
            }
            for column in 0..4 {
                // SAFETY: a step has four columns of 16 floats.
                let right = unsafe { _mm256_loadu_ps(right.as_ptr().add(column * STRANDS + FIRST)) };
                for row in 0..3 {
                    tile[row * 4 + column] = _mm256_fmadd_ps(rows[row], right, tile[row * 4 + column]);
                }
            }
        }
        tile
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn store<const FIRST: usize>(tile: [__m256; 12], strands: &mut [Strands; 12]) {
        for cell in 0..12 {
            // SAFETY: `FIRST` is 0 or 8, and a cell has 16 floats.
            unsafe { _mm256_storeu_ps(strands[cell].as_mut_ptr().add(FIRST), tile[cell]) };
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512<const IS_FIRST: bool, const IS_LAST: bool>(
        part: Part<'_>,
        strands: &mut [Strands],
        sums: &mut [f32],
    ) {
        let Some(strands) = strands.first_chunk_mut::<24>() else { return };
        let mut tile = [_mm512_setzero_ps(); 24];
        if !IS_FIRST {
            for cell in 0..24 {
                // SAFETY: a cell has 16 floats.
                tile[cell] = unsafe { _mm512_loadu_ps(strands[cell].as_ptr()) };
            }
        }
        let (left, right) = (part.left.as_chunks::<{ 4 * STRANDS }>().0, part.right.as_chunks::<{ 6 * STRANDS }>().0);
        for (left, right) in left.iter().zip(right) {
            let mut rows = [_mm512_setzero_ps(); 4];
            for row in 0..4 {
                // SAFETY: a step has four rows of 16 floats.
                rows[row] = unsafe { _mm512_loadu_ps(left.as_ptr().add(row * STRANDS)) };
            }
            for column in 0..6 {
                // SAFETY: a step has six columns of 16 floats.
                let right = unsafe { _mm512_loadu_ps(right.as_ptr().add(column * STRANDS)) };
                for row in 0..4 {
                    tile[row * 6 + column] = _mm512_fmadd_ps(rows[row], right, tile[row * 6 + column]);
                }
            }
        }
        if IS_LAST {
            for (at, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate().take(6) {
                *sums = totals_of_sixteen(tile[4 * at], tile[4 * at + 1], tile[4 * at + 2], tile[4 * at + 3]);
            }
            return;
        }
        for cell in 0..24 {
            // SAFETY: a cell has 16 floats.
            unsafe { _mm512_storeu_ps(strands[cell].as_mut_ptr(), tile[cell]) };
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

/// For each column, the product of what `lines` hold there, as a row, and what the lines of `filters` do, which are `stride` apart.
/// There are at most 16 lines, each as long as `out`, so that each is a strand.
pub(crate) fn depthwise(isa: Isa, lines: &[&[f32]], filters: &[f32], stride: usize, out: &mut [f32]) {
    let whole = out.len() / LANES * LANES;
    let (pieces, rest) = out.split_at_mut(whole);
    with_lanes(isa, Depthwise { lines, filters, stride, out: pieces.as_chunks_mut().0 });
    for (column, out) in (whole..).zip(rest) {
        let mut strands = [0.0; STRANDS];
        for (tap, (strand, line)) in strands.iter_mut().zip(lines).enumerate() {
            *strand = line[column].mul_add(filters[tap * stride + column], 0.0);
        }
        *out = total(&strands);
    }
}

struct Depthwise<'a> {
    lines: &'a [&'a [f32]],
    filters: &'a [f32],
    stride: usize,
    out: &'a mut [[f32; LANES]],
}

impl Job for Depthwise<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (zero, one) = (lanes.splat(0.0), lanes.splat(1.0));
        let used = self.lines.len().min(STRANDS);
        for (piece, out) in self.out.iter_mut().enumerate() {
            let mut strands = [zero; STRANDS];
            for (tap, line) in self.lines.iter().enumerate().take(used) {
                let (x, w) = (&line[piece * LANES..], &self.filters[tap * self.stride + piece * LANES..]);
                if let (Some(x), Some(w)) = (x.first_chunk(), w.first_chunk()) {
                    strands[tap] = lanes.multiply_add(lanes.load(x), lanes.load(w), zero);
                }
            }
            let mut half = STRANDS / 2;
            while half > 0 {
                for at in 0..half.min(used.saturating_sub(half)) {
                    // A multiplication with one is exact: this is an addition.
                    strands[at] = lanes.multiply_add(strands[at + half], one, strands[at]);
                }
                half /= 2;
            }
            // As in `combine`, missing strands are +0.
            let sums = if used < STRANDS { lanes.multiply_add(zero, one, strands[0]) } else { strands[0] };
            lanes.store(sums, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::matmul::dot::dot_f32;
    use std::ops::Range;

    /// Numbers of all sizes, and some whose products vanish with a sign.
    fn number(at: usize) -> f32 {
        let number = (at * 37 % 101) as f32 / 32.0 - 1.5;
        if at.is_multiple_of(3) { number * 1e-30 } else { number }
    }

    #[test]
    fn a_cell_has_the_bits_of_the_product_of_its_rows() {
        for isa in Isa::available() {
            let tile = tile(isa);
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
                let (packed_left, packed_right) = (packed(&left, LEFT_PAD), packed(&right, RIGHT_PAD));
                let mut strands = vec![[7.0; STRANDS]; tile.cells()];
                let mut sums = vec![7.0; tile.cells()];
                let mut parts = |first: Range<usize>, is_first, is_last| {
                    let left = &packed_left[first.start * tile.rows * STRANDS..first.end * tile.rows * STRANDS];
                    let right = &packed_right[first.start * tile.columns * STRANDS..first.end * tile.columns * STRANDS];
                    let part = Part { left, right, next: left, is_first, is_last };
                    multiply(isa, part, &mut strands, &mut sums);
                };
                if steps < 3 {
                    parts(0..steps, true, true);
                } else {
                    parts(0..1, true, false);
                    parts(1..steps - 1, false, false);
                    parts(steps - 1..steps, false, true);
                }
                for (cell, sum) in sums.iter().enumerate() {
                    let wanted = dot_f32(isa, &left[cell / tile.columns], &right[cell % tile.columns]);
                    assert_eq!(sum.to_bits(), wanted.to_bits(), "{isa:?} {depth}: cell {cell}");
                }
            }
        }
    }

    #[test]
    fn channels_side_by_side_have_the_bits_of_products_of_rows() {
        for isa in Isa::available() {
            for (taps, width) in [(1, 3), (4, 16), (9, 40), (16, 33)] {
                let x: Vec<f32> = (0..taps * width).map(number).collect();
                let filters: Vec<f32> = (0..taps * (width + 2)).map(|at| -number(at + 7)).collect();
                let lines: Vec<&[f32]> = x.chunks_exact(width).collect();
                let mut out = vec![7.0; width];
                depthwise(isa, &lines, &filters, width + 2, &mut out);
                for (column, found) in out.iter().enumerate() {
                    let of = |floats: &[f32], stride: usize| -> Vec<f32> {
                        (0..taps).map(|tap| floats[tap * stride + column]).collect()
                    };
                    let wanted = dot_f32(isa, &of(&x, width), &of(&filters, width + 2));
                    assert_eq!(found.to_bits(), wanted.to_bits(), "{isa:?} {taps}: {column}");
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
                        assert_eq!(combined[column].to_bits(), total(&cell).to_bits(), "{isa:?} {count} {scale}");
                    }
                }
            }
        }
    }
}
