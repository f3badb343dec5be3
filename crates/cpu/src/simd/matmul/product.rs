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

use crate::simd::lanes::{LANES, Plain, Register};
use crate::simd::strands::total;
use crate::simd::{Isa, Tile, prefetch_at};

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

/// The tile that fits into the registers.
pub(crate) fn tile(isa: Isa) -> Tile {
    isa.pick([Tile { rows: 4, columns: 4 }, Tile { rows: 3, columns: 4 }, Tile { rows: 4, columns: 6 }])
}

/// A panel of each operand, whose products are added to the strands of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelPair<'a> {
    /// A panel of the left operand.
    pub(crate) left: &'a [f32],
    /// A panel of the right operand.
    pub(crate) right: &'a [f32],
    /// The panel of the left operand that comes next: it is fetched where a tile would otherwise wait for it.
    pub(crate) next: &'a [f32],
    /// `true` if the strands start at +0, whatever they hold.
    pub(crate) is_first: bool,
    /// `true` if the products end here: the sums of strands are then wanted, and the strands are not.
    pub(crate) is_last: bool,
}

/// Adds the products of two panels to the strands of a tile, row by row; `sums` gets the sums of strands after the last pair.
pub(crate) fn multiply(isa: Isa, panels: PanelPair<'_>, strands: &mut [Strands], sums: &mut [f32]) {
    by_level!(
        isa,
        multiply_tile::<_, 4, 4, 16>(Plain, panels, strands, sums),
        avx2(panels, strands, sums),
        avx512(panels, strands, sums)
    );
}

/// [`multiply`] with the registers of an instruction set; it must be inlined, so that it is compiled for that.
#[inline(always)]
fn multiply_tile<R: Register, const ROWS: usize, const COLUMNS: usize, const CELLS: usize>(
    register: R,
    panels: PanelPair<'_>,
    strands: &mut [Strands],
    sums: &mut [f32],
) {
    let Some(strands) = strands.first_chunk_mut::<CELLS>() else { return };
    let mut tile = some_strands::<R, 0, ROWS, COLUMNS, CELLS>(register, panels, strands);
    if R::LANES == 8 {
        store(register, tile, strands, 0);
        tile = some_strands::<R, 8, ROWS, COLUMNS, CELLS>(register, panels, strands);
    } else if R::LANES == 4 {
        store(register, tile, strands, 0);
        store(register, some_strands::<R, 4, ROWS, COLUMNS, CELLS>(register, panels, strands), strands, 4);
        store(register, some_strands::<R, 8, ROWS, COLUMNS, CELLS>(register, panels, strands), strands, 8);
        tile = some_strands::<R, 12, ROWS, COLUMNS, CELLS>(register, panels, strands);
    }
    if !panels.is_last {
        return store(register, tile, strands, STRANDS - R::LANES);
    }
    // Halves are added to halves: first those that are whole registers.
    for cell in 0..CELLS {
        let load = |first: usize| register.load(&strands[cell][first..]);
        if R::LANES == 8 {
            tile[cell] = register.add(load(0), tile[cell]);
        } else if R::LANES == 4 {
            tile[cell] = register.add(register.add(load(0), load(8)), register.add(load(4), tile[cell]));
        }
    }
    for (at, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate().take(CELLS / 4) {
        *sums = register.totals([tile[4 * at], tile[4 * at + 1], tile[4 * at + 2], tile[4 * at + 3]]);
    }
}

/// The strands of all cells from `FIRST` on, a register of each.
#[inline(always)]
fn some_strands<R: Register, const FIRST: usize, const ROWS: usize, const COLUMNS: usize, const CELLS: usize>(
    register: R,
    panels: PanelPair<'_>,
    strands: &[Strands; CELLS],
) -> [R::Floats; CELLS] {
    let mut tile = [register.splat(0.0); CELLS];
    if !panels.is_first {
        for cell in 0..CELLS {
            tile[cell] = register.load(&strands[cell][FIRST..]);
        }
    }
    let left = panels.left.as_chunks::<STRANDS>().0.as_chunks::<ROWS>().0;
    let right = panels.right.as_chunks::<STRANDS>().0.as_chunks::<COLUMNS>().0;
    for (step, (left, right)) in left.iter().zip(right).enumerate() {
        // The first half reads every line of its panels from the second cache, as fast as that can be; the second half has time.
        if R::LANES == 8 && FIRST > 0 {
            for row in 0..ROWS {
                prefetch_at(panels.next.as_ptr().wrapping_add((step * ROWS + row) * STRANDS));
            }
        }
        let mut rows = [register.splat(0.0); ROWS];
        for row in 0..ROWS {
            rows[row] = register.load(&left[row][FIRST..]);
        }
        for column in 0..COLUMNS {
            let right = register.load(&right[column][FIRST..]);
            for row in 0..ROWS {
                tile[row * COLUMNS + column] = register.multiply_add(rows[row], right, tile[row * COLUMNS + column]);
            }
        }
    }
    tile
}

/// Stores strands of all cells, from number `first` on.
#[inline(always)]
fn store<R: Register, const CELLS: usize>(
    register: R,
    tile: [R::Floats; CELLS],
    strands: &mut [Strands; CELLS],
    first: usize,
) {
    for cell in 0..CELLS {
        register.store(tile[cell], &mut strands[cell][first..]);
    }
}

register_versions! {
    fn multiply_tile(panels: PanelPair<'_>, strands: &mut [Strands], sums: &mut [f32]), [3, 4, 12], [4, 6, 24]
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

/// For each column, the product of the elements of `lines`, as a row, and those of the lines of `filters`, which are `stride` apart.
/// There are at most 16 lines, each as long as `out`, so that each is a strand.
pub(crate) fn depthwise(isa: Isa, lines: &[&[f32]], filters: &[f32], stride: usize, out: &mut [f32]) {
    let whole = out.len() / LANES * LANES;
    let (pieces, rest) = out.split_at_mut(whole);
    depthwise_pieces(isa, lines, filters, stride, pieces.as_chunks_mut().0);
    for (column, out) in (whole..).zip(rest) {
        let mut strands = [0.0; STRANDS];
        for (tap, (strand, line)) in strands.iter_mut().zip(lines).enumerate() {
            *strand = line[column].mul_add(filters[tap * stride + column], 0.0);
        }
        *out = total(strands);
    }
}

lanes_kernel! {
    fn depthwise_pieces(lanes, lines: &[&[f32]], filters: &[f32], stride: usize, out: &mut [[f32; LANES]]) {
        let (zero, one) = (lanes.splat(0.0), lanes.splat(1.0));
        let used = lines.len().min(STRANDS);
        for (piece, out) in out.iter_mut().enumerate() {
            let mut strands = [zero; STRANDS];
            for (tap, line) in lines.iter().enumerate().take(used) {
                let (x, w) = (&line[piece * LANES..], &filters[tap * stride + piece * LANES..]);
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
                    let panels = PanelPair { left, right, next: left, is_first, is_last };
                    multiply(isa, panels, &mut strands, &mut sums);
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
                        assert_eq!(combined[column].to_bits(), total(cell).to_bits(), "{isa:?} {count} {scale}");
                    }
                }
            }
        }
    }
}
