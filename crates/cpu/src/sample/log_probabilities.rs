//! Log-probabilities of a row (`ptero_sampling::log_probabilities`): a pass that sums masses, then a search among the blocks with
//! the largest logits.
#![allow(clippy::indexing_slicing, reason = "an index that was just compared with the length")]

use super::choose::least;
use super::piece::{Logits, Piece, index};
use super::row::{Row, Stage};
use crate::simd::sample::{self as kernels, BLOCK, Weighting};
use ptero_sampling::categorical::log_probability;
use ptero_sampling::log_probabilities::{LogProbabilities, MOST_LIKELIEST, RowLogProbabilities};
use std::ops::Range;

impl Piece {
    /// Sums the masses of what is kept.
    pub(super) fn sum_kept(&mut self, logits: &Logits<'_>, range: Range<usize>, weighting: &Weighting) {
        let mut mass = 0;
        logits
            .each_run(range, &self.maxima, weighting.low, |_, run| mass += kernels::weigh(logits.isa, run, weighting));
        self.mass = mass;
    }
}

impl Row {
    /// Starts over with a row that has its token. `is_changed` if its logits are not the model's own.
    pub(super) fn want_log_probabilities(&mut self, which: LogProbabilities, is_changed: bool) {
        let is_model = which == LogProbabilities::Model;
        self.stage = if is_model && is_changed { Stage::MaximaOfModel } else { Stage::SumKept };
        self.distribution = if is_model || self.settings.is_greedy() { self.softmax() } else { self.processed() };
    }

    /// After the maxima of the model's own logits.
    pub(super) fn take_largest_of_model(&mut self, pieces: &[Piece]) {
        self.take_largest(pieces);
        self.distribution = self.softmax();
        self.stage = Stage::SumKept;
    }

    /// The softmax of all logits.
    fn softmax(&self) -> Weighting {
        Weighting { temperature: 1.0, low: f32::NEG_INFINITY, near: f32::INFINITY, largest: self.largest }
    }

    /// The softmax of scaled logits that are kept.
    fn processed(&self) -> Weighting {
        let (temperature, smallest) = (self.settings.temperature, self.scores.smallest);
        let near = f32::INFINITY;
        if temperature == f32::INFINITY {
            // All finite logits are 0, and the others are NaN.
            return Weighting { temperature, low: f32::MIN, near, largest: 0.0 };
        }
        let low = least(self.largest, |logit| logit / temperature >= smallest);
        Weighting { temperature, low, near, largest: self.scaled_largest() }
    }

    /// After the masses: finds the likeliest tokens, and computes log-probabilities.
    pub(super) fn rate(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        self.stage = Stage::Done;
        let Weighting { temperature, low, largest, .. } = self.distribution;
        let total = pieces.iter().map(|piece| piece.mass).sum();
        self.low = low.max(self.reached_by_likeliest(logits.len(), pieces));
        self.fill_list(logits, pieces);
        let mut likeliest = [(0, f32::NEG_INFINITY); MOST_LIKELIEST];
        for (token, logit) in self.list.indices().iter().zip(self.list.logits()) {
            offer(&mut likeliest, *token, logit / temperature);
        }
        fill_with_impossible(&mut likeliest, index(logits.len()));
        let share = |score: f32| {
            if score > f32::NEG_INFINITY { log_probability(score, largest, total) } else { f32::NEG_INFINITY }
        };
        let logit = logits.at(self.token as usize);
        let token = if logit >= low { share(logit / temperature) } else { f32::NEG_INFINITY };
        self.log_probabilities =
            RowLogProbabilities { token, likeliest: likeliest.map(|(at, score)| (at, share(score))) };
    }

    /// A bound that the likeliest tokens reach, with all that are equal when scaled.
    fn reached_by_likeliest(&mut self, length: usize, pieces: &[Piece]) -> f32 {
        let temperature = self.distribution.temperature;
        // With fewer blocks, the likeliest may share one; with an infinite temperature, all are equal.
        if length.div_ceil(BLOCK) < MOST_LIKELIEST || temperature == f32::INFINITY {
            return f32::NEG_INFINITY;
        }
        let bound = self.reached_by(pieces, MOST_LIKELIEST);
        least(bound, |logit| logit / temperature >= bound / temperature)
    }
}

/// Inserts a token after those that are as likely, whose index is lower, if it is one of the likeliest. NaN and minus infinity
/// never are.
fn offer(likeliest: &mut [(u32, f32); MOST_LIKELIEST], token: u32, score: f32) {
    let at = likeliest.iter().rposition(|(_, other)| *other >= score || score.is_nan()).map_or(0, |at| at + 1);
    if at < MOST_LIKELIEST {
        likeliest[at..].rotate_right(1);
        likeliest[at] = (token, score);
    }
}

/// Fills up the likeliest with tokens that cannot be drawn, in order.
fn fill_with_impossible(likeliest: &mut [(u32, f32); MOST_LIKELIEST], length: u32) {
    let possible = likeliest.partition_point(|(_, score)| *score > f32::NEG_INFINITY);
    let (possible, rest) = likeliest.split_at_mut(possible);
    let others = (0..length).filter(|token| possible.iter().all(|(other, _)| other != token));
    rest.iter_mut().zip(others).for_each(|((to, _), token)| *to = token);
}
