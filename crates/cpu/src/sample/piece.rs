//! The work on a piece of a row, which is a task.
#![allow(clippy::indexing_slicing, reason = "pieces lie inside their row; `reserve` allocates digits, bins and lists")]

use super::noise::{Best, NoisyScores, SharedScore, rank};
use super::overlay::Overlay;
use crate::simd::Isa;
use crate::simd::numeric::convert::widen;
use crate::simd::sample::compress::{self, reaching};
use crate::simd::sample::{self as kernels, BINS, BLOCK, Weighting};
use half::{bf16, f16};
use ptero_sampling::log_probabilities::LogProbabilities;
use ptero_sampling::noise::Stream;
use std::ops::Range;

/// Elements of a piece.
pub(super) const PIECE: usize = 8192;
/// Elements that are processed together; they stay in the L1 cache.
const STRIP: usize = 1024;
/// The high bits of a rank that are a digit.
const DIGIT_BITS: u32 = 11;
pub(super) const DIGITS: usize = 1 << DIGIT_BITS;

/// Logits as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// Bfloats.
    Bf16(&'a [bf16]),
}

/// A row of logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logits<'a> {
    pub(super) isa: Isa,
    pub(super) elements: Elements<'a>,
    pub(super) length: usize,
    /// What changes them, if anything does.
    pub(super) overlay: Option<&'a Overlay>,
}

impl<'a> Elements<'a> {
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(all) => Self::F32(&all[range]),
            Self::F16(all) => Self::F16(&all[range]),
            Self::Bf16(all) => Self::Bf16(&all[range]),
        }
    }

    pub(super) fn float(self, at: usize) -> f32 {
        match self {
            Self::F32(all) => all[at],
            Self::F16(all) => all[at].to_f32(),
            Self::Bf16(all) => all[at].to_f32(),
        }
    }
}

/// Memory for converting a strip of logits to floats.
pub(super) type Room = [f32; STRIP];

impl<'a> Logits<'a> {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Those that log-probabilities are of.
    pub(super) fn of(&self, which: LogProbabilities) -> Self {
        Self { overlay: self.overlay.filter(|_| which == LogProbabilities::Processed), ..*self }
    }

    /// At most a strip of them as floats: in place if possible, else copied.
    pub(super) fn floats(&self, range: Range<usize>, room: &'a mut Room) -> &'a [f32] {
        if let Some(overlay) = self.overlay.filter(|overlay| overlay.changes(&range)) {
            return self.changed(overlay, range, room);
        }
        let (room, _) = room.split_at_mut(range.len().min(STRIP));
        match self.elements.part(range) {
            Elements::F32(floats) => return floats,
            Elements::F16(halves) => widen(self.isa, halves, room),
            Elements::Bf16(halves) => widen(self.isa, halves, room),
        }
        room
    }

    #[inline(never)]
    fn changed(&self, overlay: &Overlay, range: Range<usize>, room: &'a mut Room) -> &'a [f32] {
        let (room, _) = room.split_at_mut(range.len().min(STRIP));
        let start = range.start;
        match self.elements.part(range) {
            Elements::F32(floats) => room.copy_from_slice(floats),
            Elements::F16(halves) => widen(self.isa, halves, room),
            Elements::Bf16(halves) => widen(self.isa, halves, room),
        }
        overlay.apply(self.isa, start, room);
        room
    }

    pub(super) fn at(&self, index: usize) -> f32 {
        self.floats(index..index + 1, &mut [0.0; STRIP])[0]
    }

    /// Calls `each` with the start and the logits of every strip of a range.
    pub(super) fn strips(&self, range: Range<usize>, mut each: impl FnMut(usize, &[f32])) {
        let mut room = [0.0; STRIP];
        let end = range.end;
        for start in range.step_by(STRIP) {
            each(start, self.floats(start..end.min(start + STRIP), &mut room));
        }
    }

    /// Lists the logits of a range that are at least `low`, and their indices. `maxima` are those of its blocks.
    pub(super) fn list(&self, range: Range<usize>, maxima: &[f32], low: f32, list: &mut List) {
        self.each_run(range, maxima, low, |start, run| list.length += self.reaching(run, low, start, list));
    }

    /// Calls `each` with the start and the logits of runs of blocks whose maxima are at least `low`.
    pub(super) fn each_run(&self, range: Range<usize>, maxima: &[f32], low: f32, mut each: impl FnMut(usize, &[f32])) {
        let mut room = [0.0; STRIP];
        let mut blocks = range.clone().step_by(BLOCK).zip(maxima).peekable();
        while let Some((start, most)) = blocks.next() {
            if *most >= low {
                // Adjacent blocks are searched together.
                let mut end = start + BLOCK;
                while end - start < STRIP && blocks.next_if(|(_, most)| **most >= low).is_some() {
                    end += BLOCK;
                }
                each(start, self.floats(start..end.min(range.end), &mut room));
            }
        }
    }

    fn reaching(&self, floats: &[f32], low: f32, start: usize, list: &mut List) -> usize {
        let (_, indices) = list.indices.split_at_mut(list.length);
        let (_, logits) = list.logits.split_at_mut(list.length);
        reaching(self.isa, floats, low, index(start), indices, logits)
    }
}

/// Converts an index of a token, or a counter of a stream.
#[allow(clippy::cast_possible_truncation, reason = "rows are short, and counters have 32 bits")]
pub(super) fn index(at: usize) -> u32 {
    at as u32
}

/// Tokens and their logits.
#[derive(Debug, Default)]
pub(super) struct List {
    indices: Vec<u32>,
    logits: Vec<f32>,
    length: usize,
}

impl List {
    /// Empties the list and allocates memory for `room` tokens.
    pub(super) fn reset(&mut self, room: usize) {
        self.length = 0;
        if self.indices.len() < room + compress::LANES {
            self.indices = vec![0; room + compress::LANES];
            self.logits = vec![0.0; room + compress::LANES];
        }
    }

    pub(super) fn indices(&self) -> &[u32] {
        &self.indices[..self.length]
    }

    pub(super) fn logits(&self) -> &[f32] {
        &self.logits[..self.length]
    }
}

/// The results of the passes over a piece of a row.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// The maxima of its blocks.
    pub(super) maxima: Vec<f32>,
    /// Tokens that may be kept.
    pub(super) list: List,
    /// The number of logits by digit.
    pub(super) counts: Vec<u32>,
    /// The mass of what top-k keeps.
    pub(super) mass: u64,
    /// Masses by bin; logits too far from the largest have none.
    pub(super) masses: Vec<u64>,
    pub(super) best: Best,
}

impl Piece {
    /// Allocates all memory that a piece of a row of this length may need.
    pub(super) fn reserve(&mut self, length: usize) {
        let length = length.min(PIECE);
        self.list.reset(length);
        self.maxima.clear();
        self.maxima.reserve(length.div_ceil(BLOCK));
        self.counts.resize(DIGITS, 0);
        self.masses.resize(BINS + 1, 0);
    }

    /// Computes the maxima of blocks; penalties and biases are left to [`Overlay::correct_maxima`].
    pub(super) fn take_maxima(&mut self, logits: &Logits<'_>, range: Range<usize>) {
        self.maxima.resize(range.len().div_ceil(BLOCK), 0.0);
        if let Some(mask) = logits.overlay.and_then(|overlay| overlay.mask_of(&range)) {
            return self.take_allowed_maxima(logits, range, mask);
        }
        match logits.elements.part(range) {
            Elements::F32(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
            Elements::F16(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
            Elements::Bf16(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
        }
    }

    #[inline(never)]
    fn take_allowed_maxima(&mut self, logits: &Logits<'_>, range: Range<usize>, mask: &[i32]) {
        match logits.elements.part(range) {
            Elements::F32(all) => kernels::allowed_maxima(logits.isa, all, mask, &mut self.maxima),
            Elements::F16(all) => kernels::allowed_maxima(logits.isa, all, mask, &mut self.maxima),
            Elements::Bf16(all) => kernels::allowed_maxima(logits.isa, all, mask, &mut self.maxima),
        }
    }

    pub(super) fn count_digits(&mut self, logits: &Logits<'_>, range: Range<usize>) {
        self.counts.fill(0);
        let counts = &mut self.counts;
        logits.strips(range, |_, strip| {
            for x in strip.iter().filter(|x| !x.is_nan()) {
                counts[digit(*x)] += 1;
            }
        });
    }

    /// Sums masses; those of logits that are at least `near` also by bins.
    pub(super) fn weigh(&mut self, logits: &Logits<'_>, range: Range<usize>, weigh: &Weighting) {
        let (mut scaled, mut powers, mut bins) = ([0.0; STRIP], [0.0; STRIP], [0; STRIP]);
        let isa = logits.isa;
        self.mass = 0;
        self.masses.fill(0);
        logits.strips(range, |_, strip| {
            self.mass += kernels::weigh(isa, strip, weigh);
            self.list.reset(STRIP);
            let found = logits.reaching(strip, weigh.near, 0, &mut self.list);
            let (near, _) = self.list.logits.split_at(found);
            let ((scaled, _), (powers, _)) = (scaled.split_at_mut(found), powers.split_at_mut(found));
            kernels::scale(isa, near, weigh.temperature, scaled);
            kernels::place(isa, scaled, weigh.largest, powers, &mut bins);
            for (power, bin) in powers.iter().zip(&bins) {
                self.masses[*bin as usize] += kernels::mass_of(*power);
            }
        });
    }

    pub(super) fn fill_list(&mut self, logits: &Logits<'_>, range: Range<usize>, low: f32) {
        self.list.reset(range.len());
        logits.list(range, &self.maxima, low, &mut self.list);
    }

    /// Draws from the list.
    pub(super) fn draw_list(&mut self, isa: Isa, scores: &NoisyScores, score: &SharedScore) {
        self.best = Best::at_least(score.get());
        scores.draw_from_list(isa, self.list.indices(), self.list.logits(), &mut self.best);
        score.raise(self.best.score);
    }

    /// Draws from all tokens of its share. With a stream of the row's own, both words of a pair are used, so that the share is not
    /// the range itself.
    pub(super) fn draw_all(
        &mut self,
        logits: &Logits<'_>,
        range: Range<usize>,
        scores: &NoisyScores,
        score: &SharedScore,
    ) {
        self.best = Best::at_least(score.get());
        if scores.exact_tail {
            self.draw_range(logits, range, scores);
            return score.raise(self.best.score);
        }
        let Stream { count, start, .. } = scores.stream;
        let (half, upper) = (count / 2, count.div_ceil(2));
        let (from, to) = (start + range.start, start + range.end);
        if count == logits.len() {
            let pairs = range.start / 2..half.min(range.start / 2 + PIECE / 2);
            self.draw_pairs(logits, pairs, scores, [true; 2]);
            if range.start == 0 && half < upper {
                self.draw_one(logits, half, scores);
            }
        } else {
            if from < half {
                self.draw_pairs(logits, from..to.min(half), scores, [true, false]);
            }
            if half < upper && (from..to).contains(&half) {
                self.draw_one(logits, half - start, scores);
            }
            if to > upper {
                self.draw_pairs(logits, from.max(upper) - upper..to - upper, scores, [false, true]);
            }
        }
        score.raise(self.best.score);
    }

    /// Draws from all tokens of the range, with words that are not shared between tokens.
    fn draw_range(&mut self, logits: &Logits<'_>, range: Range<usize>, scores: &NoisyScores) {
        let mut indices = [0; STRIP];
        logits.strips(range, |start, strip| {
            let (indices, _) = indices.split_at_mut(strip.len());
            indices.iter_mut().zip(index(start)..).for_each(|(to, at)| *to = at);
            scores.draw_from_list(logits.isa, indices, strip, &mut self.best);
        });
    }

    /// Draws with the words of some pairs of counters: the lower ones, the upper ones, or both.
    fn draw_pairs(&mut self, logits: &Logits<'_>, pairs: Range<usize>, scores: &NoisyScores, halves: [bool; 2]) {
        let Stream { count, start, .. } = scores.stream;
        let (mut low_room, mut high_room) = ([0.0; STRIP], [0.0; STRIP]);
        let [has_low, has_high] = halves;
        let upper = count.div_ceil(2);
        let end = pairs.end;
        for pair in pairs.step_by(STRIP) {
            let length = STRIP.min(end - pair);
            let (low, high) = (pair.wrapping_sub(start), (pair + upper).wrapping_sub(start));
            let low_run = if has_low { logits.floats(low..low + length, &mut low_room) } else { &[] };
            let high_run = if has_high { logits.floats(high..high + length, &mut high_room) } else { &[] };
            let counters = [pair, pair + upper].map(index);
            scores.draw_from_pairs(logits.isa, counters, [low, high].map(index), [low_run, high_run], &mut self.best);
        }
    }

    fn draw_one(&mut self, logits: &Logits<'_>, at: usize, scores: &NoisyScores) {
        let mut room = [0.0; STRIP];
        for logit in logits.floats(at..at + 1, &mut room) {
            if logit / scores.temperature >= scores.smallest {
                self.best.offer(scores.score(*logit, at), index(at));
            }
        }
    }
}

/// The high bits of the rank of a float.
pub(super) fn digit(x: f32) -> usize {
    (rank(x) >> (32 - DIGIT_BITS)) as usize
}
