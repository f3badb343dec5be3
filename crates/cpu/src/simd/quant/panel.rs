//! The inner loop of a product of integers, two at a time: sums are exact within a group, and floats from there on.
//!
//! Both operands come packed in pairs of neighbours along the columns of the weights, the first of a pair in the lower half of
//! a word: `left[pair][row]` and `right[pair][column]`. For each group come two factors of each row, its step and what is
//! multiplied with the bias, and two of each column, its scale and its bias. `docs/ARITHMETIC.md`, "QuantMatMul", has the rest.
//!
//! The words are stored as floats, and only ever moved as such.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]

use super::activation::CELL;
use crate::simd::lanes::{Plain, Register};
use crate::simd::{Isa, Tile};

/// Columns of a tile: two registers.
pub(crate) fn columns(isa: Isa) -> usize {
    isa.pick([8, 16, 32])
}

/// The tile for this many rows. The registers hold four rows, and six where there are twice as many: whichever leaves fewer
/// of them empty.
pub(crate) fn tile(isa: Isa, rows: usize) -> Tile {
    // Reading a column takes about as long as multiplying it with a row.
    let cost = |height: &usize| rows.div_ceil(*height) * (height + 1);
    let heights: &[usize] = isa.pick([&[4], &[4], &[6, 4]]);
    Tile { rows: heights.iter().copied().min_by_key(cost).unwrap_or(4), columns: columns(isa) }
}

/// A chunk of a panel: its words, and its factors, `[group][kind][row or column]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) words: &'a [f32],
    pub(crate) factors: &'a [f32],
}

/// Adds the product of a chunk to a tile of some rows, which lie `stride` apart.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "all tiles have four rows"))]
pub(crate) fn multiply(
    isa: Isa,
    rows: usize,
    [left, right]: [Panel<'_>; 2],
    group: usize,
    sums: &mut [f32],
    stride: usize,
) {
    by_level!(
        isa,
        multiply_groups::<_, 4, 8>(Plain, left, right, group, sums, stride),
        avx2(rows, left, right, group, sums, stride),
        avx512(rows, left, right, group, sums, stride)
    );
}

/// [`multiply`] with the registers of an instruction set. It must be inlined, so that it is compiled for the instruction set.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn multiply_rows<R: Register, const MOST: usize, const COLUMNS: usize>(
    register: R,
    rows: usize,
    left: Panel<'_>,
    right: Panel<'_>,
    group: usize,
    sums: &mut [f32],
    stride: usize,
) {
    match rows {
        4 => multiply_groups::<R, 4, COLUMNS>(register, left, right, group, sums, stride),
        _ => multiply_groups::<R, MOST, COLUMNS>(register, left, right, group, sums, stride),
    }
}

/// A tile with groups of 16, 32 or 64. It must be inlined, too.
#[inline(always)]
fn multiply_groups<R: Register, const ROWS: usize, const COLUMNS: usize>(
    register: R,
    left: Panel<'_>,
    right: Panel<'_>,
    group: usize,
    sums: &mut [f32],
    stride: usize,
) {
    match CELL / group {
        1 => multiply_tile::<R, ROWS, COLUMNS, 1>(register, left, right, sums, stride),
        2 => multiply_tile::<R, ROWS, COLUMNS, 2>(register, left, right, sums, stride),
        _ => multiply_tile::<R, ROWS, COLUMNS, 4>(register, left, right, sums, stride),
    }
}

/// A tile two registers wide, with `SLOTS` groups to a cell: where that is one, all sums are in registers. It must be inlined, too.
#[inline(always)]
fn multiply_tile<R: Register, const ROWS: usize, const COLUMNS: usize, const SLOTS: usize>(
    register: R,
    left: Panel<'_>,
    right: Panel<'_>,
    sums: &mut [f32],
    stride: usize,
) {
    let (zero, pairs) = (register.splat(0.0), CELL / SLOTS / 2);
    let rows = left.words.chunks_exact(ROWS * pairs).zip(left.factors.as_chunks::<ROWS>().0.as_chunks::<2>().0);
    let columns = right.factors.as_chunks::<COLUMNS>().0.as_chunks::<2>().0;
    let columns = right.words.chunks_exact(COLUMNS * pairs).zip(columns);
    let (mut groups, mut chunk) = (rows.zip(columns), [[zero; 2]; ROWS]);
    let mut group = groups.next();
    while group.is_some() {
        let mut cell = [[zero; 2]; ROWS];
        for _ in 0..SLOTS {
            // The last cell may have fewer.
            let Some(((left, [steps, row_sums]), (right, [scales, biases]))) = group else { break };
            let mut tile = [[register.bits(zero); 2]; ROWS];
            for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
                let right = [register.load(right), register.load(&right[R::LANES..])];
                for (row, left) in tile.iter_mut().zip(left) {
                    let left = register.bits(register.splat(*left));
                    row[0] = register.add_products(row[0], left, register.bits(right[0]));
                    row[1] = register.add_products(row[1], left, register.bits(right[1]));
                }
            }
            for half in 0..2 {
                let scale = register.load(&scales[half * R::LANES..]);
                let bias = register.load(&biases[half * R::LANES..]);
                for row in 0..ROWS {
                    let scale = register.multiply(scale, register.splat(steps[row]));
                    let products = register.multiply_add(scale, register.to_floats(tile[row][half]), cell[row][half]);
                    cell[row][half] = register.multiply_add(bias, register.splat(row_sums[row]), products);
                }
            }
            group = groups.next();
        }
        for row in 0..ROWS {
            for half in 0..2 {
                chunk[row][half] = register.add(chunk[row][half], cell[row][half]);
            }
        }
    }
    for (row, sums) in sums.chunks_mut(stride).enumerate().take(ROWS) {
        let Some(sums) = sums.first_chunk_mut::<COLUMNS>() else { return };
        for half in 0..2 {
            let sums = &mut sums[half * R::LANES..];
            register.store(register.add(register.load(sums), chunk[row][half]), sums);
        }
    }
}

register_versions! {
    fn multiply_rows(rows: usize, left: Panel<'_>, right: Panel<'_>, group: usize, sums: &mut [f32], stride: usize),
    [4, 16], [6, 32]
}
