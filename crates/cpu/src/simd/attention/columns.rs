//! The softmax of attention for many queries at once: scores lie as `[key][query]`, so that each query has a lane.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

use super::attend::BLOCK;
use crate::simd::Isa;
use crate::simd::lanes::LANES;
use crate::simd::strands::fold;
use ptero_arithmetic::{exp, max};
use std::ops::Range;

/// The most columns.
pub(crate) const COLUMNS: usize = 2 * LANES;
/// Strands of the sum of the weights of a block.
const STRANDS: usize = 16;

/// The state of the softmax of some queries, one element each.
#[derive(Debug)]
pub(crate) struct SoftmaxColumns<'a> {
    /// The largest score.
    pub(crate) largest: &'a mut [f32],
    /// The sum of the weights, which are relative to it.
    pub(crate) sums: &'a mut [f32],
}

impl SoftmaxColumns<'_> {
    #[inline(always)]
    fn columns<const N: usize>(&mut self) -> Option<(&mut [f32; N], &mut [f32; N])> {
        Some((self.largest.first_chunk_mut()?, self.sums.first_chunk_mut()?))
    }
}

/// The number to subtract from scores: the largest, or 0 while all scores are minus infinity.
#[inline(always)]
fn center(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

#[inline(always)]
fn weigh_columns<const N: usize>(scores: &mut [f32], rows: Range<usize>, mut softmax: SoftmaxColumns<'_>) {
    let (scores, Some((largest, sums))) = (scores.as_chunks_mut::<N>().0, softmax.columns::<N>()) else { return };
    let scores = &mut scores[..BLOCK];
    let mut most = [f32::NEG_INFINITY; N];
    for row in &scores[rows.clone()] {
        most.iter_mut().zip(row).for_each(|(most, score)| *most = max(*most, *score));
    }
    *largest = most;
    let center = most.map(center);
    // A strand after the other, so that its sum stays in registers.
    let mut strands = [[0.0; N]; STRANDS];
    for (number, strand) in strands.iter_mut().enumerate() {
        let first = rows.start + (number.wrapping_sub(rows.start)) % STRANDS;
        let mut sum = [0.0; N];
        for row in (first..rows.end).step_by(STRANDS) {
            for ((score, center), sum) in scores[row].iter_mut().zip(&center).zip(&mut sum) {
                *score = exp(*score - center);
                *sum += *score;
            }
        }
        *strand = sum;
    }
    *sums = fold(strands, |mut low, high| {
        low.iter_mut().zip(high).for_each(|(low, high)| *low += high);
        low
    });
}

#[inline(always)]
fn join_columns<const N: usize>(
    mut softmax: SoftmaxColumns<'_>,
    mut other: SoftmaxColumns<'_>,
    factors: &mut [[f32; COLUMNS]; 2],
) {
    let (Some((largest, sums)), Some((other_largest, other_sums))) = (softmax.columns::<N>(), other.columns::<N>())
    else {
        return;
    };
    let [a, b] = factors;
    for column in 0..N {
        let most = max(largest[column], other_largest[column]);
        a[column] = exp(largest[column] - center(most));
        b[column] = exp(other_largest[column] - center(most));
        sums[column] = sums[column] * a[column] + other_sums[column] * b[column];
        largest[column] = most;
    }
}

#[inline(always)]
fn hide_columns<const N: usize>(scores: &mut [f32], first: &[u32], end: &[u32]) {
    let (Some(first), Some(end)) = (first.first_chunk::<N>(), end.first_chunk::<N>()) else { return };
    for (row, key) in scores.as_chunks_mut::<N>().0.iter_mut().zip(0_u32..) {
        for ((score, first), end) in row.iter_mut().zip(first).zip(end) {
            *score = if *first <= key && key < *end { *score } else { f32::NEG_INFINITY };
        }
    }
}

/// Sets every element of column `c` to `a[c]` times itself plus `b[c]` times that of `other`. There are 16 columns or
/// [`COLUMNS`].
pub(crate) fn join(isa: Isa, columns: usize, rows: &mut [f32], other: &[f32], factors: [&[f32]; 2]) {
    let factors = factors.map(|factors| {
        let mut pattern = [1.0; COLUMNS];
        pattern.iter_mut().zip(factors[..columns].iter().cycle()).for_each(|(to, factor)| *to = *factor);
        pattern
    });
    join_pieces(isa, rows, other, &factors);
}

lanes_kernel! {
    // Left to the compiler, this gathers columns.
    fn join_pieces(lanes, rows: &mut [f32], other: &[f32], factors: &[[f32; COLUMNS]; 2]) {
        let [a, b] = factors;
        let (pieces, others) = (rows.as_chunks_mut::<LANES>().0, other.as_chunks::<LANES>().0);
        for (number, (piece, other)) in pieces.iter_mut().zip(others).enumerate() {
            let half = number % 2;
            let (a, b) = (&a.as_chunks().0[half], &b.as_chunks().0[half]);
            let before = lanes.multiply(lanes.load(piece), lanes.load(a));
            let added = lanes.multiply(lanes.load(other), lanes.load(b));
            lanes.store(lanes.add(before, added), piece);
        }
    }
}

/// Rows of `width` elements cut into pieces, `[piece][row][element]`, with zeros after the last element.
#[inline(always)]
fn cut_rows<const N: usize>(rows: &[f32], width: usize, to: &mut [f32]) {
    let count = rows.len() / width;
    for (number, piece) in to.chunks_exact_mut(count * N).enumerate() {
        let start = number * N;
        for (row, cells) in rows.chunks_exact(width).zip(piece.as_chunks_mut::<N>().0) {
            if let Some(from) = row[start..].first_chunk::<N>() {
                *cells = *from;
            } else {
                cells.fill(0.0);
                cells.iter_mut().zip(&row[start..]).for_each(|(cell, x)| *cell = *x);
            }
        }
    }
}

kernel! {
    /// Replaces the scores of a block, one row per position, by weights, relative to the largest of their column; writes the
    /// largest scores and the sums of the weights to `softmax`. Only these rows have scores and get weights.
    pub(crate) fn weigh(columns: usize, scores: &mut [f32], rows: Range<usize>, softmax: SoftmaxColumns<'_>) {
        match columns {
            32 => weigh_columns::<32>(scores, rows, softmax),
            _ => weigh_columns::<16>(scores, rows, softmax),
        }
    }

    /// Joins the softmax of some keys with that of other keys; writes the factors of both mixes to `factors`.
    pub(crate) fn join_softmax(columns: usize, softmax: SoftmaxColumns<'_>, other: SoftmaxColumns<'_>, factors: &mut [[f32; COLUMNS]; 2]) {
        match columns {
            32 => join_columns::<32>(softmax, other, factors),
            _ => join_columns::<16>(softmax, other, factors),
        }
    }

    /// Sets the scores of column `c` to minus infinity, except those from row `first[c]` to row `end[c]`.
    pub(crate) fn hide(columns: usize, scores: &mut [f32], first: &[u32], end: &[u32]) {
        match columns {
            32 => hide_columns::<32>(scores, first, end),
            _ => hide_columns::<16>(scores, first, end),
        }
    }

    /// Sets scores to minus infinity where `allowed` is zero.
    pub(crate) fn forbid(scores: &mut [f32], allowed: &[f32]) {
        for (score, allowed) in scores.iter_mut().zip(allowed) {
            *score = if *allowed != 0.0 { *score } else { f32::NEG_INFINITY };
        }
    }

    /// Returns `true` if all elements are finite.
    pub(crate) fn are_finite(x: &[f32]) -> bool {
        // Zero times anything finite is zero.
        let (chunks, rest) = x.as_chunks::<64>();
        let mut lanes = [0.0; 64];
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += 0.0 * x);
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += 0.0 * x);
        lanes.iter().all(|lane| *lane == 0.0)
    }

    /// Cuts rows of `width` elements into pieces of `length`: `[piece][row][element]`, with zeros after the last element.
    pub(crate) fn cut(rows: &[f32], width: usize, length: usize, to: &mut [f32]) {
        if rows.is_empty() || width == 0 {
            return;
        }
        let needed = rows.len() / width * width.next_multiple_of(length);
        let to = &mut to[..needed];
        match length {
            8 => cut_rows::<8>(rows, width, to),
            _ => cut_rows::<6>(rows, width, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| (at * 37 % 101) as f32 / 16.0 - 3.0).collect()
    }

    /// The sum of the weights of one column, by position.
    fn sum(weights: &[f32]) -> f32 {
        let mut strands = [0.0; STRANDS];
        weights.iter().enumerate().for_each(|(at, weight)| strands[at % STRANDS] += weight);
        let mut width = STRANDS / 2;
        while width > 0 {
            (0..width).for_each(|at| strands[at] += strands[at + width]);
            width /= 2;
        }
        strands[0]
    }

    #[test]
    fn blocks_of_scores_become_the_powers_of_a_softmax() {
        for isa in Isa::available() {
            for columns in [16, 32] {
                let (mut largest, mut sums) = (vec![7.0; columns], vec![7.0; columns]);
                let given = numbers(BLOCK * columns);
                let mut scores = given.clone();
                // The first column sees nothing.
                let (first, end) = ([[0; 1].as_slice(), &[2; 31]].concat(), [[0].as_slice(), &[45; 31]].concat());
                hide(isa, columns, &mut scores[3 * columns..50 * columns], &first, &end);
                weigh(isa, columns, &mut scores, 3..50, SoftmaxColumns { largest: &mut largest, sums: &mut sums });
                assert_eq!((largest[0], sums[0]), (f32::NEG_INFINITY, 0.0));
                for column in 1..columns {
                    let seen = 5..48;
                    let most = seen.clone().map(|key| given[key * columns + column]).fold(f32::NEG_INFINITY, f32::max);
                    let weight =
                        |key| if seen.contains(&key) { exp(given[key * columns + column] - most) } else { 0.0 };
                    let weights: Vec<f32> = (0..BLOCK).map(weight).collect();
                    assert_eq!((largest[column], sums[column]), (most, sum(&weights)));
                    assert!((3..50).all(|key| scores[key * columns + column] == weights[key]));
                }
            }
        }
    }

    #[test]
    fn columns_are_joined_each_by_its_factors() {
        for isa in Isa::available() {
            for columns in [16, 32] {
                let given = numbers(9 * columns);
                let (mut rows, other) = (given[..3 * columns].to_vec(), &given[3 * columns..6 * columns]);
                let (mut largest, mut sums) = (given[7..][..columns].to_vec(), given[9..][..columns].to_vec());
                let (mut other_largest, mut other_sums) =
                    (given[1..][..columns].to_vec(), given[2..][..columns].to_vec());
                (largest[3], other_largest[5]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
                (largest[6], other_largest[6]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
                let before = (largest.clone(), sums.clone());
                let mut factors = [[7.0; COLUMNS]; 2];
                let softmax = SoftmaxColumns { largest: &mut largest, sums: &mut sums };
                let others = SoftmaxColumns { largest: &mut other_largest, sums: &mut other_sums };
                join_softmax(isa, columns, softmax, others, &mut factors);
                join(isa, columns, &mut rows, other, [&factors[0], &factors[1]]);
                for column in 0..columns {
                    let most = before.0[column].max(other_largest[column]);
                    let (a, b) = match column {
                        6 => (0.0, 0.0),
                        _ => (exp(before.0[column] - most), exp(other_largest[column] - most)),
                    };
                    assert_eq!((factors[0][column], factors[1][column], largest[column]), (a, b, most));
                    assert_eq!(sums[column], before.1[column] * a + other_sums[column] * b);
                    for at in (column..3 * columns).step_by(columns) {
                        assert_eq!(rows[at], given[at] * a + other[at] * b);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_cut_into_pieces_and_filled_up_with_zeros() {
        for isa in Isa::available() {
            for (count, width, length) in [(3, 20, 8), (2, 6, 6), (1, 1, 6), (5, 16, 8), (0, 5, 8)] {
                let rows = numbers(count * width);
                let mut to = vec![f32::NAN; count * width.next_multiple_of(length)];
                cut(isa, &rows, width, length, &mut to);
                for (at, cell) in to.iter().enumerate() {
                    let (piece, row, element) = (at / (count * length), at / length % count, at % length);
                    let column = piece * length + element;
                    assert_eq!(*cell, if column < width { rows[row * width + column] } else { 0.0 });
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        for isa in Isa::available() {
            assert!(are_finite(isa, &[]) && are_finite(isa, &[-f32::MAX; 130]));
            for (at, number) in [(0, f32::NAN), (63, f32::INFINITY), (64, f32::NAN), (129, f32::NEG_INFINITY)] {
                let mut numbers = numbers(130);
                numbers[at] = number;
                assert!(!are_finite(isa, &numbers));
            }
        }
    }

    #[test]
    fn what_is_forbidden_has_no_score_whatever_it_was() {
        for isa in Isa::available() {
            let mut scores = [1.0, f32::NAN, f32::INFINITY, 2.0];
            forbid(isa, &mut scores, &[1.0, 0.0, 0.0, 0.5]);
            assert_eq!(scores, [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 2.0]);
        }
    }
}
