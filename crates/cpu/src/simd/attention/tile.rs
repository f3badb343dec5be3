//! The inner loops of attention for many queries: tiles of sums, held in registers.
//!
//! Operands come packed, `left[k][row]` and `right[k][column]`. A cell starts at zero and is a chain of fused multiply-adds in
//! the order of `k`, which is what `docs/ARITHMETIC.md` defines for scores and for the mix of a block.
#![allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use crate::simd::lanes::{LANES, Lanes};
use crate::simd::{Isa, Tile};

/// The largest tile that fits into the registers, with AVX-512 of those whose rows divide a block of 64 keys.
pub(crate) fn tile(isa: Isa) -> Tile {
    let small = Tile { rows: 6, columns: LANES };
    isa.pick([small, small, Tile { rows: 8, columns: 2 * LANES }])
}

/// Sets `out[row][column]` to the product of the panels.
pub(crate) fn multiply(isa: Isa, left: &[f32], right: &[f32], out: &mut [f32]) {
    match tile(isa).columns {
        LANES => multiply_tile::<6, 1>(isa, left, right, out),
        _ => multiply_tile::<8, 2>(isa, left, right, out),
    }
}

/// Sets `mix[row][column]` to `mix * a[column] + product * b[column]`: two products and their sum, each rounded.
pub(crate) fn join(isa: Isa, left: &[f32], right: &[f32], mix: &mut [f32], factors: [&[f32]; 2]) {
    match tile(isa).columns {
        LANES => join_tile::<6, 1>(isa, left, right, mix, factors),
        _ => join_tile::<8, 2>(isa, left, right, mix, factors),
    }
}

// Registers pass through no closures: those would be compiled without the instructions.

#[inline(always)]
fn product<L: Lanes, const ROWS: usize, const N: usize>(
    lanes: L,
    left: &[f32],
    right: &[f32],
) -> [[L::Floats; N]; ROWS] {
    let mut tile = [[lanes.splat(0.0); N]; ROWS];
    let right = right.as_chunks::<LANES>().0.as_chunks::<N>().0;
    for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right) {
        let mut loaded = [lanes.splat(0.0); N];
        for at in 0..N {
            loaded[at] = lanes.load(&right[at]);
        }
        for row in 0..ROWS {
            let left = lanes.splat(left[row]);
            for at in 0..N {
                tile[row][at] = lanes.multiply_add(left, loaded[at], tile[row][at]);
            }
        }
    }
    tile
}

lanes_kernel! {
    fn multiply_tile[const ROWS: usize, const N: usize][ROWS, N](lanes, left: &[f32], right: &[f32], out: &mut [f32]) {
        let tile = product::<L, ROWS, N>(lanes, left, right);
        let out = out.as_chunks_mut::<LANES>().0.as_chunks_mut::<N>().0;
        for (row, out) in tile.iter().zip(out) {
            for at in 0..N {
                lanes.store(row[at], &mut out[at]);
            }
        }
    }

    fn join_tile[const ROWS: usize, const N: usize][ROWS, N](
        lanes,
        left: &[f32],
        right: &[f32],
        mix: &mut [f32],
        factors: [&[f32]; 2],
    ) {
        let tile = product::<L, ROWS, N>(lanes, left, right);
        let [a, b] = factors;
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        let (Some(a), Some(b)) = (a.first_chunk::<N>(), b.first_chunk::<N>()) else { return };
        let mix = mix.as_chunks_mut::<LANES>().0.as_chunks_mut::<N>().0;
        for (row, mix) in tile.iter().zip(mix) {
            for at in 0..N {
                let before = lanes.multiply(lanes.load(&mix[at]), lanes.load(&a[at]));
                let added = lanes.multiply(row[at], lanes.load(&b[at]));
                lanes.store(lanes.add(before, added), &mut mix[at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(at: usize) -> f32 {
        (at * 37 % 101) as f32 / 31.0 - 1.5
    }

    fn check<const ROWS: usize, const N: usize>(isa: Isa) {
        let columns = N * LANES;
        for depth in [0, 1, 7, 64] {
            let left: Vec<f32> = (0..depth * ROWS).map(number).collect();
            let right: Vec<f32> = (0..depth * columns).map(|at| number(at + 17)).collect();
            let cell = |row: usize, column: usize| {
                let factors = (0..depth).map(|k| (left[k * ROWS + row], right[k * columns + column]));
                factors.fold(0.0_f32, |sum, (left, right)| left.mul_add(right, sum))
            };
            let mut out = vec![7.0; ROWS * columns];
            multiply_tile::<ROWS, N>(isa, &left, &right, &mut out);
            let mut mix: Vec<f32> = (0..ROWS * columns).map(|at| number(at + 5)).collect();
            let [a, b] = [3, 4].map(|seed| (0..columns).map(|at| number(at + seed)).collect::<Vec<f32>>());
            join_tile::<ROWS, N>(isa, &left, &right, &mut mix, [&a, &b]);
            for at in 0..ROWS * columns {
                let (row, column) = (at / columns, at % columns);
                assert_eq!(out[at].to_bits(), cell(row, column).to_bits(), "{isa:?}: {row}, {column}");
                let joined = number(at + 5) * a[column] + cell(row, column) * b[column];
                assert_eq!(mix[at].to_bits(), joined.to_bits(), "{isa:?}: {row}, {column}");
            }
        }
    }

    #[test]
    fn a_cell_is_a_chain_of_fused_multiply_adds() {
        for isa in Isa::available() {
            // On any machine, also the tile of an instruction set that it lacks.
            check::<6, 1>(isa);
            check::<8, 2>(isa);
        }
    }
}
