//! The softmax of attention for many queries at once: scores lie as `[key][query]`, so that each query has a lane.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

use super::Isa;
use super::lanes::{Job, LANES, Lanes, with_lanes};
use ptero_arithmetic::{exp, max};

/// The most columns that there are.
pub(crate) const COLUMNS: usize = 2 * LANES;

/// What is known of some queries, one element each.
#[derive(Debug)]
pub(crate) struct Softmax<'a> {
    /// The largest score so far.
    pub(crate) largest: &'a mut [f32],
    /// The sum of the powers relative to it.
    pub(crate) sums: &'a mut [f32],
    /// What the last block of scores scaled the sums by.
    pub(crate) shrink: &'a mut [f32],
}

#[inline(always)]
fn weigh_columns<const N: usize>(scores: &mut [f32], softmax: Softmax<'_>) {
    let scores = scores.as_chunks_mut::<N>().0;
    let (Some(largest), Some(sums), Some(shrink)) = (
        softmax.largest.first_chunk_mut::<N>(),
        softmax.sums.first_chunk_mut::<N>(),
        softmax.shrink.first_chunk_mut::<N>(),
    ) else {
        return;
    };
    let mut most = *largest;
    for row in scores.iter() {
        most.iter_mut().zip(row).for_each(|(most, score)| *most = max(*most, *score));
    }
    // While there is nothing but minus infinity, all weights are zero.
    let center = most.map(|most| if most == f32::NEG_INFINITY { 0.0 } else { most });
    for ((shrink, largest), center) in shrink.iter_mut().zip(largest.iter()).zip(&center) {
        *shrink = exp(*largest - center);
    }
    *largest = most;
    let mut total = *sums;
    total.iter_mut().zip(shrink.iter()).for_each(|(total, shrink)| *total *= shrink);
    for row in scores {
        for ((score, center), total) in row.iter_mut().zip(&center).zip(&mut total) {
            *score = exp(*score - center);
            *total += *score;
        }
    }
    *sums = total;
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

/// Every element of column `c` becomes `factors[c]` times itself. The number of columns divides [`COLUMNS`].
pub(crate) fn scale(isa: Isa, columns: usize, rows: &mut [f32], factors: &[f32]) {
    let mut pattern = [1.0; COLUMNS];
    pattern.iter_mut().zip(factors[..columns].iter().cycle()).for_each(|(to, factor)| *to = *factor);
    with_lanes(isa, Scale { rows, pattern });
}

struct Scale<'a> {
    rows: &'a mut [f32],
    pattern: [f32; COLUMNS],
}

// Left to the compiler, this gathers columns.
impl Job for Scale<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let factors = self.pattern.as_chunks::<LANES>().0;
        let (low, high) = (lanes.load(&factors[0]), lanes.load(&factors[1]));
        let (rows, rest) = self.rows.as_chunks_mut::<COLUMNS>();
        for row in rows {
            let (first, second) = row.split_at_mut(LANES);
            if let (Some(first), Some(second)) = (first.first_chunk_mut(), second.first_chunk_mut()) {
                lanes.store(lanes.multiply(lanes.load(first), low), first);
                lanes.store(lanes.multiply(lanes.load(second), high), second);
            }
        }
        rest.iter_mut().zip(self.pattern).for_each(|(x, factor)| *x *= factor);
    }
}

/// Rows of `width` elements cut into pieces, `[piece][row][element]`, with zeros behind the last element.
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
    /// Scores of so many columns become weights: powers relative to the largest score so far.
    pub(crate) fn weigh(columns: usize, scores: &mut [f32], softmax: Softmax<'_>) {
        match columns {
            32 => weigh_columns::<32>(scores, softmax),
            16 => weigh_columns::<16>(scores, softmax),
            _ => weigh_columns::<8>(scores, softmax),
        }
    }

    /// Column `c` keeps the scores from row `first[c]` to row `end[c]`; all others become minus infinity.
    pub(crate) fn hide(columns: usize, scores: &mut [f32], first: &[u32], end: &[u32]) {
        match columns {
            32 => hide_columns::<32>(scores, first, end),
            16 => hide_columns::<16>(scores, first, end),
            _ => hide_columns::<8>(scores, first, end),
        }
    }

    /// Scores where `allowed` is zero become minus infinity.
    pub(crate) fn forbid(scores: &mut [f32], allowed: &[f32]) {
        for (score, allowed) in scores.iter_mut().zip(allowed) {
            *score = if *allowed != 0.0 { *score } else { f32::NEG_INFINITY };
        }
    }

    /// Whether all are finite.
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

    /// Cuts rows of `width` elements into pieces of `length`: `[piece][row][element]`, with zeros behind the last element.
    pub(crate) fn cut(rows: &[f32], width: usize, length: usize, to: &mut [f32]) {
        if rows.is_empty() || width == 0 {
            return;
        }
        let needed = rows.len() / width * width.next_multiple_of(length);
        let to = &mut to[..needed];
        match length {
            12 => cut_rows::<12>(rows, width, to),
            8 => cut_rows::<8>(rows, width, to),
            6 => cut_rows::<6>(rows, width, to),
            _ => cut_rows::<4>(rows, width, to),
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

    #[test]
    fn blocks_of_scores_become_the_powers_of_a_softmax() {
        for isa in Isa::available() {
            for columns in [8, 16, 32] {
                let (mut largest, mut sums) = (vec![f32::NEG_INFINITY; columns], vec![0.0; columns]);
                let mut shrink = vec![0.0; columns];
                let mut scores = numbers(20 * columns);
                // Nothing but minus infinity, then scores of which the first column still has none.
                for (number, scores) in [&mut vec![f32::NEG_INFINITY; 3 * columns], &mut scores].into_iter().enumerate()
                {
                    if number == 1 {
                        hide(
                            isa,
                            columns,
                            scores,
                            &[[0; 1].as_slice(), &[2; 31]].concat(),
                            &[[0].as_slice(), &[15; 31]].concat(),
                        );
                    }
                    let softmax = Softmax { largest: &mut largest, sums: &mut sums, shrink: &mut shrink };
                    weigh(isa, columns, scores, softmax);
                }
                assert_eq!((largest[0], sums[0]), (f32::NEG_INFINITY, 0.0));
                let given = numbers(20 * columns);
                for column in 1..columns {
                    let seen = (2..15).map(|key| given[key * columns + column]);
                    let most = seen.clone().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = seen.map(|score| (score - most).exp()).sum();
                    assert_eq!(largest[column], most);
                    assert!((sums[column] - sum).abs() < 1e-5, "{} for {sum}", sums[column]);
                    assert_eq!((scores[column], scores[15 * columns + column]), (0.0, 0.0));
                }
            }
        }
    }

    #[test]
    fn columns_are_scaled_each_by_its_factor() {
        for isa in Isa::available() {
            for columns in [8, 16, 32] {
                let (factors, mut rows) = (numbers(columns), numbers(5 * columns));
                scale(isa, columns, &mut rows, &factors);
                let expected =
                    numbers(5 * columns).into_iter().zip(factors.iter().cycle()).map(|(x, factor)| x * factor);
                assert_eq!(rows, expected.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn rows_are_cut_into_pieces_and_filled_up_with_zeros() {
        for isa in Isa::available() {
            for (count, width, length) in [(3, 20, 12), (2, 6, 6), (1, 1, 4), (5, 16, 8), (0, 5, 4)] {
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
