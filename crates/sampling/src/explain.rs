//! Why a token was drawn: its rivals, which filter dropped each of them, and the noise that decided between those that were left.
//!
//! Everything is computed by the functions of the contract, so the winner is the token that [`crate::reference`] draws.

use crate::adjust::Adjustments;
use crate::categorical::log_probability;
use crate::mass::mass;
use crate::noise::Stream;
use crate::reference::{sample_row, smallest_after_each};
use crate::settings::Settings;

/// How many of the tokens that came closest to winning are always part of an explanation.
pub const CLOSEST: usize = 3;

/// Why a token of a row was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The token that is drawn.
    pub winner: usize,
    /// The number of tokens that can be drawn before top-k, and what top-k, top-p and min-p leave of them. If the most likely token
    /// is taken, nothing is filtered.
    pub left: [usize; 4],
    /// From the likeliest down, as the model sees it: the first of all, the winner, those that came closest to it, and those that
    /// were asked for.
    pub candidates: Vec<Candidate>,
}

/// A token that was drawn, or might have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: usize,
    /// 0 for the likeliest token, as the model sees it.
    pub rank: usize,
    /// The model's logit.
    pub logit: f32,
    /// The logit after penalties, biases and mask.
    pub adjusted: f32,
    /// The logarithm of the probability that the model gives it.
    pub log_probability: f32,
    /// The probability of drawing it.
    pub probability: f32,
    /// What dropped it.
    pub dropped_by: Option<Filter>,
    /// Its noise; `None` if the most likely token is taken.
    pub noise: Option<f32>,
    /// What is compared: the adjusted logit divided by the temperature, plus noise. Of the tokens that are left, the largest wins.
    pub score: f32,
}

/// What keeps a token from being drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Its logit is minus infinity or NaN: a mask excludes it, or the model does.
    Excluded,
    /// There are enough likelier ones.
    TopK,
    /// Likelier ones have enough of the probability.
    TopP,
    /// It is too unlikely beside the likeliest one.
    MinP,
}

/// Explains the draw of a row: the `count` likeliest tokens, and those in `also`. Tokens outside the row are left out.
pub fn explain(
    logits: &[f32],
    adjustments: &Adjustments<'_>,
    settings: &Settings,
    stream: &Stream,
    count: usize,
    also: &[usize],
) -> Explanation {
    let mut adjusted = logits.to_vec();
    adjustments.apply(&mut adjusted);
    let row = Row::new(adjusted, settings, stream);
    let shares = Shares::of(logits.iter().copied());
    let winner = sample_row(&row.adjusted, settings, stream);
    let mut order: Vec<(usize, f32)> = logits.iter().copied().map(or_minus_infinity).enumerate().collect();
    // Stable, so that of equals the lower index comes first; not `total_cmp`: the two zeros are equal.
    order.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
    let shown: Vec<usize> = row.closest().into_iter().chain([winner]).chain(also.iter().copied()).collect();
    let candidates = order.iter().zip(0..).filter(|((token, _), rank)| *rank < count || shown.contains(token));
    let candidates =
        candidates.map(|(&(token, logit), rank)| row.candidate(token, rank, logit, shares.log(logit), winner));
    let candidates = candidates.collect();
    Explanation { winner, left: row.left(), candidates }
}

/// A row on its way to a token.
struct Row<'a> {
    adjusted: Vec<f32>,
    scaled: Vec<f32>,
    /// The smallest scaled logit that is left after top-k, top-p and min-p.
    smallest: [f32; 3],
    /// Those of what is left.
    shares: Shares,
    is_greedy: bool,
    exact_tail: bool,
    stream: &'a Stream,
}

impl<'a> Row<'a> {
    fn new(adjusted: Vec<f32>, settings: &Settings, stream: &'a Stream) -> Self {
        let is_greedy = settings.is_greedy();
        let divisor = if is_greedy { 1.0 } else { settings.temperature };
        let scaled: Vec<f32> = adjusted.iter().map(|logit| logit / divisor).collect();
        let none = [f32::NEG_INFINITY; 3];
        let smallest = if is_greedy { none } else { smallest_after_each(&scaled, settings) };
        let [_, _, last] = smallest;
        let shares = Shares::of(scaled.iter().copied().filter(|scaled| *scaled >= last));
        Self { adjusted, scaled, smallest, shares, is_greedy, exact_tail: settings.exact_tail, stream }
    }

    fn dropped_by(&self, scaled: f32) -> Option<Filter> {
        let [top_k, top_p, min_p] = self.smallest;
        if or_minus_infinity(scaled) == f32::NEG_INFINITY {
            return Some(Filter::Excluded);
        }
        let filters = [(top_k, Filter::TopK), (top_p, Filter::TopP), (min_p, Filter::MinP)];
        filters.into_iter().find(|(smallest, _)| scaled < *smallest).map(|(_, filter)| filter)
    }

    /// Counts what is left before top-k and after each filter.
    fn left(&self) -> [usize; 4] {
        let dropped: Vec<_> = self.scaled.iter().map(|scaled| self.dropped_by(*scaled)).collect();
        let count = |filter| dropped.iter().filter(|by| **by == Some(filter)).count();
        let possible = dropped.len() - count(Filter::Excluded);
        let top_k = possible - count(Filter::TopK);
        let top_p = top_k - count(Filter::TopP);
        [possible, top_k, top_p, top_p - count(Filter::MinP)]
    }

    fn noise(&self, token: usize) -> Option<f32> {
        (!self.is_greedy).then(|| self.stream.noise(token, self.exact_tail))
    }

    /// Returns the tokens with the largest scores of what is left, the winner among them.
    fn closest(&self) -> Vec<usize> {
        let left = self.scaled.iter().enumerate().filter(|(_, scaled)| self.dropped_by(**scaled).is_none());
        let mut best: Vec<(usize, f32)> = Vec::new();
        for (token, scaled) in left {
            let score = scaled + self.noise(token).unwrap_or(0.0);
            let at = best.partition_point(|(_, other)| *other >= score);
            if at <= CLOSEST {
                best.insert(at, (token, score));
                best.truncate(CLOSEST + 1);
            }
        }
        best.into_iter().map(|(token, _)| token).collect()
    }

    fn candidate(&self, token: usize, rank: usize, logit: f32, log_probability: f32, winner: usize) -> Candidate {
        let of = |row: &[f32]| row.get(token).copied().unwrap_or(f32::NEG_INFINITY);
        let (adjusted, scaled) = (of(&self.adjusted), of(&self.scaled));
        let (dropped_by, noise) = (self.dropped_by(scaled), self.noise(token));
        let probability = match dropped_by {
            _ if self.is_greedy => f32::from(u8::from(token == winner)),
            Some(_) => 0.0,
            None => self.shares.probability(scaled),
        };
        let score = scaled + noise.unwrap_or(0.0);
        Candidate { token, rank, logit, adjusted, log_probability, probability, dropped_by, noise, score }
    }
}

/// What a softmax needs to know of a row.
struct Shares {
    largest: f32,
    total: u64,
}

impl Shares {
    fn of(scores: impl Iterator<Item = f32> + Clone) -> Self {
        let scores = scores.map(or_minus_infinity);
        let largest = scores.clone().fold(f32::NEG_INFINITY, f32::max);
        Self { largest, total: scores.map(|score| mass(score, largest)).sum() }
    }

    fn log(&self, score: f32) -> f32 {
        match score {
            f32::NEG_INFINITY => score,
            _ => log_probability(score, self.largest, self.total),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a share is shown, not compared")]
    fn probability(&self, score: f32) -> f32 {
        mass(score, self.largest) as f32 / self.total as f32
    }
}

fn or_minus_infinity(number: f32) -> f32 {
    if number.is_nan() { f32::NEG_INFINITY } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_probabilities::RowLogProbabilities;
    use crate::noise::seed_key;
    use crate::settings::Penalties;
    use crate::threefry;

    const INF: f32 = f32::INFINITY;

    fn random_row(seed: u32, length: u32) -> Vec<f32> {
        (0..length).map(|at| (threefry::threefry2x32([seed, 3], [at, 0])[0] as f32 / u32::MAX as f32).ln()).collect()
    }

    #[test]
    fn the_winner_has_the_largest_score_of_what_is_left_and_is_what_the_contract_draws() {
        let history: Vec<i32> = (0..40).collect();
        for seed in 0..300_u32 {
            let logits = random_row(seed, 200);
            let settings = Settings {
                temperature: [0.0, 0.7, 1.0, 2.5][seed as usize % 4],
                top_k: [i64::MAX, 5, 40][seed as usize % 3],
                top_p: [1.0, 0.9, 0.3][seed as usize / 3 % 3],
                min_p: [0.0, 0.2][seed as usize / 9 % 2],
                exact_tail: seed % 5 == 0,
            };
            let penalties = Penalties { repetition: 1.0 + (seed % 3) as f32, presence: 0.1, frequency: 0.2 };
            let biases = [(7, 1.5), (90, -50.0)];
            let adjustments =
                Adjustments { penalties, history: &history, prompt_end: 20, biases: &biases, mask: &[-1, -1, 5, -1] };
            let stream = Stream::of_row(seed_key(seed.into()), logits.len());
            let found = explain(&logits, &adjustments, &settings, &stream, 12, &[150]);
            let mut adjusted = logits.clone();
            adjustments.apply(&mut adjusted);
            assert_eq!(found.winner, sample_row(&adjusted, &settings, &stream), "{seed}");
            let kept = found.candidates.iter().filter(|candidate| candidate.dropped_by.is_none());
            let best = kept.clone().max_by(|a, b| a.score.total_cmp(&b.score)).unwrap();
            assert_eq!(best.token, found.winner, "{seed}");
            assert!(found.candidates.iter().any(|candidate| candidate.token == 150));
            assert!(found.left.is_sorted_by(|a, b| a >= b) && found.left[3] >= 1, "{:?}", found.left);
            let model = RowLogProbabilities::of_model(&logits, found.winner);
            assert_eq!(
                found.candidates.iter().find(|one| one.token == found.winner).unwrap().log_probability,
                model.token
            );
            let drawn = RowLogProbabilities::of_processed(&adjusted, &settings, found.winner);
            if !settings.is_greedy() {
                assert!((best.probability.ln() - drawn.token).abs() < 1e-4, "{seed}");
                let scaled: Vec<f32> = adjusted.iter().map(|logit| logit / settings.temperature).collect();
                let kept = crate::reference::kept(&scaled, &settings).filter(|token| scaled[*token] > -INF);
                assert_eq!(found.left[3], kept.count(), "{seed}");
            }
        }
    }

    #[test]
    fn each_filter_is_named_for_what_it_drops() {
        let logits = [4.0, 3.0, 2.0, 1.0, 0.0, f32::NAN];
        let settings = Settings { top_k: 4, top_p: 0.95, min_p: 0.3, ..Settings::PLAIN };
        let stream = Stream::of_row(seed_key(1), logits.len());
        let adjustments = Adjustments { mask: &[0b11_1111], ..Adjustments::NONE };
        let found = explain(&logits, &adjustments, &settings, &stream, 6, &[]);
        let by: Vec<_> = found.candidates.iter().map(|candidate| candidate.dropped_by).collect();
        let [top_k, top_p, min_p] = [Filter::TopK, Filter::TopP, Filter::MinP].map(Some);
        assert_eq!(by, [None, None, min_p, top_p, top_k, Some(Filter::Excluded)]);
        assert_eq!(found.left, [5, 4, 3, 2]);
        let sum: f32 = found.candidates.iter().map(|candidate| candidate.probability).sum();
        assert!((sum - 1.0).abs() < 1e-5);
    }

    #[test]
    fn rows_of_nothing_are_explained_too() {
        for logits in [[f32::NAN, -INF], [INF, INF], [f32::NAN; 2]] {
            for settings in [Settings::GREEDY, Settings::PLAIN] {
                let stream = Stream::of_row(seed_key(1), logits.len());
                let found = explain(&logits, &Adjustments::NONE, &settings, &stream, 3, &[9]);
                assert_eq!(found.winner, sample_row(&logits, &settings, &stream), "{logits:?} {settings:?}");
                assert_eq!(found.candidates.len(), logits.len(), "{logits:?} {settings:?}");
            }
        }
    }
}
