//! The inner loop of a product of bfloats with codes, two at a time: their products are exact, and the sums are floats.
//!
//! Both operands come packed in pairs of neighbours along `k`, the first of a pair in the lower half of a word:
//! `left[pair][row]` and `right[pair][column]`. Codes that share a scale are a group. With the sum of the group's codes times
//! activations goes its scale, and with the sum of its activations what is added to each weight whatever its code.
//! Codes are whole numbers of up to eight bits, or floats of as many: bfloats hold all of them.
//!
//! The words are kept where other products keep floats, and are only ever moved.
#![allow(unsafe_code, reason = "loads and stores of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::Isa;

/// Rows of a tile: sums of the group and of all groups fit into the registers.
pub(crate) const ROWS: usize = 6;
/// Columns of a tile.
pub(crate) const COLUMNS: usize = 32;
/// Sums of groups run in so many lanes.
const LANES: usize = 16;

/// The instructions; having one is the proof that the machine has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bfloats(());

/// Some rows of activations: words, and the sums of groups, `[group][row]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left<'a> {
    pub(crate) words: &'a [f32],
    pub(crate) sums: &'a [f32],
}

/// Some columns of codes: words, and the factors of groups, `[group][column]` for codes and then for sums of activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right<'a> {
    pub(crate) words: &'a [f32],
    pub(crate) factors: &'a [f32],
}

impl Bfloats {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        (isa.level() == super::Level::Avx512 && is_x86_feature_detected!("avx512bf16")).then_some(Self(()))
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of(_: Isa) -> Option<Self> {
        None
    }

    /// Adds the product to a tile whose rows lie `stride` apart; groups are of so many pairs.
    pub(crate) fn multiply(self, left: Left<'_>, right: Right<'_>, pairs: usize, sums: &mut [f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Bfloats` exists only on a machine that has these instructions.
        unsafe {
            x86::multiply(left, right, pairs, sums, stride);
        }
    }
}

kernel! {
    /// Pairs of neighbours, which are bfloats, as words.
    pub(crate) fn pair(x: &[f32], to: &mut [f32]) {
        for ([low, high], to) in x.as_chunks::<2>().0.iter().zip(to) {
            *to = f32::from_bits(low.to_bits() >> 16 | high.to_bits() & 0xFFFF_0000);
        }
    }

    /// The sum of each group, of a multiple of sixteen, written so many places apart.
    pub(crate) fn group_sums(x: &[f32], group: usize, to: &mut [f32], stride: usize) {
        for (x, to) in x.chunks_exact(group).zip(to.iter_mut().step_by(stride)) {
            let mut lanes = [0.0; LANES];
            for x in x.as_chunks::<LANES>().0 {
                for at in 0..LANES {
                    lanes[at] += x[at];
                }
            }
            let mut width = LANES / 2;
            while width > 0 {
                for at in 0..width {
                    lanes[at] += lanes[at + width];
                }
                width /= 2;
            }
            *to = lanes[0];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{COLUMNS, Left, ROWS, Right};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn multiply(left: Left<'_>, right: Right<'_>, pairs: usize, sums: &mut [f32], stride: usize) {
        let mut totals = [[_mm512_setzero_ps(); 2]; ROWS];
        let left_groups = left.words.chunks_exact(ROWS * pairs).zip(left.sums.as_chunks::<ROWS>().0);
        let right_groups =
            right.words.chunks_exact(COLUMNS * pairs).zip(right.factors.as_chunks::<{ 2 * COLUMNS }>().0);
        for ((left, left_sums), (right, factors)) in left_groups.zip(right_groups) {
            let mut tile = [[_mm512_setzero_ps(); 2]; ROWS];
            for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
                let right = load(right).map(|right| bfloats(right));
                for (row, left) in tile.iter_mut().zip(left) {
                    let left = bfloats(_mm512_set1_ps(*left));
                    row[0] = _mm512_dpbf16_ps(row[0], left, right[0]);
                    row[1] = _mm512_dpbf16_ps(row[1], left, right[1]);
                }
            }
            let (scales, constants) = factors.split_at(COLUMNS);
            let (Some(scales), Some(constants)) = (scales.first_chunk(), constants.first_chunk()) else { return };
            let (scales, constants) = (load(scales), load(constants));
            for ((total, row), left_sum) in totals.iter_mut().zip(tile).zip(left_sums) {
                let left_sum = _mm512_set1_ps(*left_sum);
                for half in 0..2 {
                    total[half] = _mm512_fmadd_ps(row[half], scales[half], total[half]);
                    total[half] = _mm512_fmadd_ps(left_sum, constants[half], total[half]);
                }
            }
        }
        for (row, sums) in totals.iter().zip(sums.chunks_mut(stride)) {
            let Some(sums) = sums.first_chunk_mut::<COLUMNS>() else { return };
            let before = load(sums);
            let (low, high) = sums.split_at_mut(COLUMNS / 2);
            // SAFETY: each is the start of sixteen floats of the chunk.
            unsafe {
                _mm512_storeu_ps(low.as_mut_ptr(), _mm512_add_ps(before[0], row[0]));
                _mm512_storeu_ps(high.as_mut_ptr(), _mm512_add_ps(before[1], row[1]));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(floats: &[f32; COLUMNS]) -> [__m512; 2] {
        // SAFETY: 32 floats are two registers.
        unsafe { [_mm512_loadu_ps(floats.as_ptr()), _mm512_loadu_ps(floats.as_ptr().add(16))] }
    }

    /// The same register, seen as bfloats.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bfloats(words: __m512) -> __m512bh {
        // SAFETY: both are 64 bytes of which all values are allowed.
        unsafe { std::mem::transmute::<__m512, __m512bh>(words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_the_sum_of_scaled_groups_added_to_what_was_there() {
        let Some(bfloats) = Isa::available().into_iter().find_map(Bfloats::of) else { return };
        for (groups, group) in [(0, 16), (1, 16), (3, 32), (2, 128)] {
            let (k, stride) = (groups * group, COLUMNS + 3);
            let number = |at: usize| (at * 37 % 101) as f32 - 50.0;
            let line = |first: usize| (0..k).map(|at| number(at + first)).collect::<Vec<f32>>();
            // By column: all whole numbers of eight bits, with a sign or without one, the outermost first.
            let code = |at: usize| [-128.0, 127.0, 255.0].get(at).copied().unwrap_or((at * 37 % 384) as f32 - 128.0);
            let codes = |column: usize| (0..k).map(|at| code(at + 99 * column)).collect::<Vec<f32>>();
            let (mut left, mut left_sums) = (vec![0.0; ROWS * k / 2], vec![0.0; ROWS * groups]);
            let (mut right, mut factors) = (vec![0.0; COLUMNS * k / 2], vec![0.0; 2 * COLUMNS * groups]);
            let mut words = vec![0.0; k / 2];
            for row in 0..ROWS {
                pair(Isa::best(), &line(row), &mut words);
                words.iter().enumerate().for_each(|(at, word)| left[at * ROWS + row] = *word);
                group_sums(Isa::best(), &line(row), group, &mut left_sums[row.min(ROWS * groups)..], ROWS);
            }
            for column in 0..COLUMNS {
                pair(Isa::best(), &codes(column), &mut words);
                words.iter().enumerate().for_each(|(at, word)| right[at * COLUMNS + column] = *word);
            }
            factors.iter_mut().enumerate().for_each(|(at, factor)| *factor = number(at) / 64.0);
            let mut sums = vec![1.0; ROWS * stride];
            let (left, right) = (Left { words: &left, sums: &left_sums }, Right { words: &right, factors: &factors });
            bfloats.multiply(left, right, group / 2, &mut sums, stride);
            for (row, column) in (0..ROWS).flat_map(|row| (0..stride).map(move |column| (row, column))) {
                let (x, codes) = (line(row), codes(column));
                let factor = |at: usize, kind: usize| f64::from(factors[(at / group * 2 + kind) * COLUMNS + column]);
                let parts = (0..if column < COLUMNS { k } else { 0 }).flat_map(|at| {
                    let weight = [factor(at, 0) * f64::from(codes[at]), factor(at, 1)];
                    weight.map(|weight| f64::from(x[at]) * weight)
                });
                // Of each group the sums are exact; what is rounded is what groups add up to.
                let (expected, size) = parts.fold((1.0, 1.0), |sums, part| (sums.0 + part, sums.1 + part.abs()));
                let found = f64::from(sums[row * stride + column]);
                assert!(
                    (found - expected).abs() < 1e-6 * size,
                    "{groups} of {group}: {row}, {column}: {found} for {expected}"
                );
            }
        }
    }
}
