//! The contract, written to be read: one token per row of logits.
//!
//! 1. Temperature 0 takes the largest logit, the first of equals.
//! 2. Otherwise logits are divided by the temperature.
//! 3. Top-k keeps what is at least the k-th largest.
//! 4. Top-p keeps, from the largest down, until the mass above a logit exceeds its share of what top-k kept.
//! 5. Min-p keeps what is likely enough beside the largest.
//! 6. Noise is added to what is left.
//! 7. The largest sum wins, the first of equals.
//!
//! Before all that, [`crate::adjust`] may change the logits.
//! Logits that are NaN are never kept, and a row of nothing else gives token 0.
#![allow(
    clippy::indexing_slicing,
    reason = "indices come from the very slices they index, but for those `sample` documents"
)]

use crate::mass::{limit, mass};
use crate::noise::Stream;
use crate::settings::Settings;
use crate::threefry::Key;
use ptero_arithmetic::exp;

/// Where the random words of a call come from.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// One key draws for all rows together: the words of row 1 follow those of row 0.
    Shared(Key),
    /// A key per row, each drawn as if it were alone, so that a row does not depend on its neighbours.
    PerRow(&'a [Key]),
}

impl Keys<'_> {
    /// The random words of a row, of a call with `rows` rows.
    ///
    /// # Panics
    /// If there are too few keys.
    pub fn stream(&self, row: usize, rows: usize, vocabulary: usize) -> Stream {
        match *self {
            Keys::Shared(key) => Stream { key, count: rows * vocabulary, start: row * vocabulary },
            Keys::PerRow(keys) => Stream::of_row(keys[row], vocabulary),
        }
    }
}

/// The tokens of rows of `vocabulary` logits each. `settings` has one element for all rows, or one for each.
///
/// # Panics
/// If `vocabulary` is 0 or does not divide the logits, or there are too few settings or keys.
pub fn sample(logits: &[f32], vocabulary: usize, settings: &[Settings], keys: Keys<'_>) -> Vec<u32> {
    assert!(logits.len().is_multiple_of(vocabulary), "{} logits are not rows of {vocabulary}", logits.len());
    let rows = logits.chunks_exact(vocabulary).enumerate();
    rows.map(|(at, row)| {
        let settings = if let [same] = settings { same } else { &settings[at] };
        let token = sample_row(row, settings, &keys.stream(at, logits.len() / vocabulary, vocabulary));
        u32::try_from(token).expect("a token is an index into a vocabulary")
    })
    .collect()
}

/// The token of one row.
pub fn sample_row(logits: &[f32], settings: &Settings, stream: &Stream) -> usize {
    draw(logits, settings, |index| stream.noise(index, settings.exact_tail))
}

fn draw(logits: &[f32], settings: &Settings, noise: impl Fn(usize) -> f32) -> usize {
    if settings.is_greedy() {
        return first_largest(logits.iter().copied().enumerate());
    }
    let scaled: Vec<f32> = logits.iter().map(|logit| logit / settings.temperature).collect();
    let kept = kept(&scaled, settings);
    first_largest(kept.map(|index| (index, scaled[index] + noise(index))))
}

/// The indices of what top-k, top-p and min-p leave of a row, in order.
pub fn kept<'a>(scaled: &'a [f32], settings: &Settings) -> impl Iterator<Item = usize> + 'a {
    let [_, _, smallest] = smallest_after_each(scaled, settings);
    scaled.iter().enumerate().filter(move |(_, scaled)| **scaled >= smallest).map(|(index, _)| index)
}

/// The smallest scaled logit of a row that is left after top-k, then after top-p, then after min-p.
pub(crate) fn smallest_after_each(scaled: &[f32], settings: &Settings) -> [f32; 3] {
    let mut descending: Vec<f32> = scaled.iter().copied().filter(|scaled| !scaled.is_nan()).collect();
    // Not `total_cmp`: the two zeros are equal.
    descending.sort_unstable_by(|a, b| b.partial_cmp(a).expect("numbers have an order"));
    let top_k = cut_top_k(&descending, settings.kept_of(scaled.len()));
    let top_p = cut_top_p(top_k, settings.top_p);
    let min_p = cut_min_p(top_p, settings.min_p);
    [top_k, top_p, min_p].map(|left| left.last().copied().unwrap_or(f32::INFINITY))
}

/// The `count` largest, and what equals the last of them.
fn cut_top_k(descending: &[f32], count: usize) -> &[f32] {
    match descending.get(count - 1) {
        Some(&smallest) => &descending[..descending.partition_point(|&scaled| scaled >= smallest)],
        None => descending,
    }
}

/// Those with no more mass before them than `top_p` allows. Equals have the same mass before them.
fn cut_top_p(descending: &[f32], top_p: f32) -> &[f32] {
    let Some(&largest) = descending.first() else { return descending };
    let limit = limit(top_p, descending.iter().map(|&scaled| mass(scaled, largest)).sum());
    let (mut before, mut end) = (0, 0);
    for equals in descending.chunk_by(|a, b| a == b) {
        if before > limit {
            break;
        }
        before += equals.iter().map(|&scaled| mass(scaled, largest)).sum::<u64>();
        end += equals.len();
    }
    &descending[..end]
}

/// Those whose probability, relative to that of the largest, is not below `min_p`.
fn cut_min_p(descending: &[f32], min_p: f32) -> &[f32] {
    let Some(&largest) = descending.first() else { return descending };
    &descending[..descending.partition_point(|&scaled| is_likely(scaled, largest, min_p))]
}

/// Returns `true` if min-p keeps a scaled logit. It never keeps one and drops a larger one.
pub fn is_likely(scaled: f32, largest: f32, min_p: f32) -> bool {
    // The difference of infinities is NaN, and the largest is always kept.
    let ratio = exp(scaled - largest);
    // Not `min`, and not `>=`: a `min_p` of NaN keeps all.
    let is_unlikely = ratio < if min_p > 1.0 { 1.0 } else { min_p };
    !is_unlikely
}

/// The index of the largest number, the first of equals; 0 if there is none.
fn first_largest(numbers: impl Iterator<Item = (usize, f32)>) -> usize {
    let numbers = numbers.filter(|(_, number)| !number.is_nan());
    numbers.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests;
