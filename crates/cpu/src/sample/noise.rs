//! Noise, computed only for tokens that may win.
//!
//! A token's score is its scaled logit plus the noise of its random word, and noise never falls as the word grows. So among tokens
//! whose logits do not exceed a bound, only those whose word reaches another bound can beat the best score so far: words are
//! compared directly, and noise is computed for very few tokens. With an exact tail a token has two words; then the bits of the first
//! are inverted before they are compared, since noise rises as they fall, and the second is computed with the noise.
#![allow(clippy::indexing_slicing, reason = "halves of a pair; indices of a list as long as its logits")]

use super::piece::index;
use crate::simd::{Isa, sample as kernels};
use ptero_sampling::noise::{Stream, exact_gumbel, gumbel};
use ptero_sampling::threefry;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The best score and its token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub(super) score: f32,
    pub(super) index: u32,
}

impl Best {
    pub(super) const NONE: Self = Self { score: f32::NEG_INFINITY, index: u32::MAX };

    /// A score without a token: only scores that reach it are taken.
    pub(super) fn at_least(score: f32) -> Self {
        Self { score, index: u32::MAX }
    }

    /// Takes the score if it is larger, or equal with a lower index. NaN is never taken.
    pub(super) fn offer(&mut self, score: f32, index: u32) {
        if score > self.score || score == self.score && index < self.index {
            *self = Self { score, index };
        }
    }

    /// The token; 0 if there is none.
    pub(super) fn token(self) -> u32 {
        if self.index == u32::MAX { 0 } else { self.index }
    }
}

impl Default for Best {
    fn default() -> Self {
        Self::NONE
    }
}

/// Steps of the table per unit of noise.
const STEPS: f32 = 16.0;
/// The noise at which the table starts: nearly all noise is above.
const FIRST: f32 = -4.0;
/// The length of the tables, which extend beyond the largest noise with an exact tail.
const LENGTH: u16 = 49 * 16;

/// Words by the noise they reach.
pub(super) struct Words {
    /// The largest noise.
    pub(super) largest: f32,
    /// For each step the first word whose noise is not below it.
    first: [u32; LENGTH as usize],
}

impl Words {
    /// The table of noise that never falls as the word grows.
    fn new(noise: fn(u32) -> f32) -> Self {
        let mut first = [0; LENGTH as usize];
        for (first, step) in first.iter_mut().zip(0_u16..) {
            let wanted = FIRST + f32::from(step) / STEPS;
            let (mut below, mut reaching) = (0, u32::MAX);
            while below < reaching {
                let middle = below + (reaching - below) / 2;
                if noise(middle) >= wanted { reaching = middle } else { below = middle + 1 }
            }
            *first = reaching;
        }
        Self { largest: noise(u32::MAX), first }
    }

    /// A word below which no scaled logit up to `scaled` reaches the score `best`; `None` if no word does.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates at both ends, which is meant"
    )]
    fn least(&self, scaled: f32, best: f32) -> Option<u32> {
        if scaled + self.largest < best {
            return None;
        }
        // More than the rounding errors of the difference and of the sum.
        let margin = 8.0 * f32::EPSILON * (scaled.abs() + best.abs() + 32.0);
        let noise = best - scaled - margin;
        let step = ((noise - FIRST) * STEPS) as usize;
        // The difference of infinities is NaN, for which the comparison is false.
        Some(if noise > FIRST { self.first[step.min(self.first.len() - 1)] } else { 0 })
    }
}

static WORDS: LazyLock<Words> = LazyLock::new(|| Words::new(gumbel));

/// The inverted first words of noise with an exact tail, with the second word that gives the largest noise.
static TAIL_WORDS: LazyLock<Words> = LazyLock::new(|| Words::new(|word| exact_gumbel([!word, 0])));

/// Tokens whose random words are computed together.
pub(super) const CHUNK: usize = 256;

/// Tokens of a chunk whose words are compared together.
const FEW: usize = 32;

/// The scores of the tokens of a row: scaled logits plus noise. This holds what they are computed from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NoisyScores {
    pub(super) stream: Stream,
    pub(super) temperature: f32,
    pub(super) exact_tail: bool,
    /// The smallest scaled logit that is kept.
    pub(super) smallest: f32,
}

impl NoisyScores {
    /// The words of its noise.
    pub(super) fn words(&self) -> &'static Words {
        if self.exact_tail { &TAIL_WORDS } else { &WORDS }
    }

    pub(super) fn score(&self, logit: f32, index: usize) -> f32 {
        logit / self.temperature + self.stream.noise(index, self.exact_tail)
    }

    /// Computes the words of some tokens; returns the largest, or an upper bound of it.
    fn words_at(&self, isa: Isa, indices: &[u32], out: &mut [u32]) -> u32 {
        let Stream { key, count, start } = self.stream;
        if self.exact_tail {
            return kernels::inverted_words_at(isa, key, index(count), index(start), indices, out);
        }
        if let (Ok(count), Ok(start)) = (u32::try_from(count), u32::try_from(start)) {
            return kernels::words_at(isa, key, count, start, indices, out);
        }
        out.iter_mut().zip(indices).for_each(|(out, at)| *out = threefry::word(key, count, start + *at as usize));
        u32::MAX
    }

    /// Draws from a list of tokens and their logits, except those below the smallest kept one.
    pub(super) fn draw_from_list(&self, isa: Isa, indices: &[u32], logits: &[f32], best: &mut Best) {
        let (mut words, table) = ([0; CHUNK], self.words());
        for (indices, logits) in indices.chunks(CHUNK).zip(logits.chunks(CHUNK)) {
            let scaled = kernels::largest(isa, logits) / self.temperature;
            let Some(least) = table.least(scaled, best.score) else { continue };
            let (words, _) = words.split_at_mut(indices.len());
            if self.words_at(isa, indices, words) >= least {
                self.offer_reaching(isa, logits, words, least, |at| indices[at], best);
            }
        }
    }

    /// Draws from two runs of tokens whose words are pairs; `first` are the first tokens of both. One of the runs may be empty. Not
    /// for noise with an exact tail.
    pub(super) fn draw_from_pairs(
        &self,
        isa: Isa,
        counters: [u32; 2],
        first: [u32; 2],
        runs: [&[f32]; 2],
        best: &mut Best,
    ) {
        let mut words = [[0; CHUNK]; 2];
        let length = runs.iter().map(|run| run.len()).max().unwrap_or(0);
        for (at, start) in (0..length).step_by(CHUNK).zip((0_u32..).step_by(CHUNK)) {
            let parts = runs.map(|run| &run[at.min(run.len())..run.len().min(at + CHUNK)]);
            let bounds = parts.map(|part| match part {
                [] => None,
                _ => WORDS.least(kernels::largest(isa, part) / self.temperature, best.score),
            });
            if bounds == [None; 2] {
                continue;
            }
            let count = CHUNK.min(length - at);
            let [low, high] = words.each_mut().map(|words| words.split_at_mut(count).0);
            let most = kernels::word_pairs(isa, self.stream.key, counters.map(|c| c.wrapping_add(start)), low, high);
            for half in 0..2 {
                let (part, words, first) = (parts[half], &words[half], first[half].wrapping_add(start));
                if let Some(least) = bounds[half].filter(|least| most[half] >= *least) {
                    self.offer_reaching(isa, part, words, least, |at| first.wrapping_add(index(at)), best);
                }
            }
        }
    }

    /// Offers the scores of tokens whose word is at least `least`.
    fn offer_reaching(
        &self,
        isa: Isa,
        logits: &[f32],
        words: &[u32],
        least: u32,
        token: impl Fn(usize) -> u32,
        best: &mut Best,
    ) {
        for ((logits, words), start) in logits.chunks(FEW).zip(words.chunks(FEW)).zip((0..).step_by(FEW)) {
            if kernels::most(isa, words) < least {
                continue;
            }
            for ((logit, word), at) in logits.iter().zip(words).zip(start..).filter(|((_, word), _)| **word >= least) {
                let scaled = logit / self.temperature;
                if scaled >= self.smallest {
                    let token = token(at);
                    let noise = if self.exact_tail { self.stream.noise(token as usize, true) } else { gumbel(*word) };
                    best.offer(scaled + noise, token);
                }
            }
        }
    }
}

/// A score shared by the pieces of a row, so that each may skip tokens that another piece has beaten. It does not change the
/// result.
#[derive(Debug, Default)]
pub(super) struct SharedScore(AtomicU32);

impl SharedScore {
    pub(super) fn set(&self, score: f32) {
        self.0.store(rank(score), Ordering::Relaxed);
    }

    pub(super) fn raise(&self, score: f32) {
        self.0.fetch_max(rank(score), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> f32 {
        let rank = self.0.load(Ordering::Relaxed);
        f32::from_bits(if rank >> 31 > 0 { rank ^ 1 << 31 } else { !rank })
    }
}

/// An integer with the order of the floats; minus zero is below zero.
pub(super) fn rank(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 > 0 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The noise of a word.
    type Noise = fn(u32) -> f32;

    #[test]
    fn no_word_below_the_bound_reaches_the_best_score() {
        let tables: [(&Words, Noise); 2] = [(&WORDS, gumbel), (&TAIL_WORDS, |word| exact_gumbel([!word, 0]))];
        for (words, noise) in tables {
            for step in 0..if cfg!(miri) { 20 } else { 20_000_u32 } {
                let random = |salt: u32| f32::from_bits(step.wrapping_mul(salt) >> 9 | 0x3f80_0000) - 1.5;
                let size = [1.0, 20.0, 1e3, 1e7][step as usize % 4];
                let (scaled, best) = (size * random(0x9E37_79B9), size * random(0x85EB_CA6B));
                let best = if step % 3 > 0 { scaled + 50.0 * random(0xC2B2_AE35) + 20.0 } else { best };
                match words.least(scaled, best) {
                    None => assert!(scaled + noise(u32::MAX) < best),
                    Some(0) => {}
                    Some(word) => assert!(scaled + noise(word - 1) < best, "{scaled} {best}"),
                }
            }
            assert_eq!(words.least(f32::INFINITY, f32::INFINITY), Some(0));
            assert_eq!(words.least(f32::NEG_INFINITY, f32::NEG_INFINITY), Some(0));
            assert_eq!(words.least(1.0, f32::NEG_INFINITY), Some(0));
            assert_eq!(words.least(1.0, f32::INFINITY), None);
        }
    }
}
