//! The decisions about a row between the passes over its pieces.
#![allow(clippy::indexing_slicing, reason = "`place` returns bins up to `BINS`; `reserve` allocates digits and bins")]

use super::choose::{least, partition, smallest_kept};
use super::noise::{Best, NoisyScores, SharedScore};
use super::piece::{DIGITS, List, Logits, PIECE, Piece, digit, index};
use crate::simd::sample::{self as kernels, BINS, BINS_PER_UNIT, BLOCK, Weighting, bin};
use ptero_sampling::log_probabilities::RowLogProbabilities;
use ptero_sampling::mass::limit;
use ptero_sampling::reference::is_likely;
use ptero_sampling::settings::Settings;

/// Rows up to this length are finished right after the first pass.
const SHORT: usize = 1024;
/// With this many groups of blocks per wanted logit, the maxima of groups give a good bound.
const GROUPS: usize = 4;
/// About this many of the largest logits are drawn from first.
const LIKELY: usize = 16;
/// Scaled logits this far below the largest have no mass.
const DEEPEST: f32 = 28.0;
/// Blocks that are sampled for estimates.
const SAMPLES: usize = 16;

/// The next pass of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Compute the maxima of blocks.
    Start,
    /// None: the row has its token.
    Done,
    /// Count digits, to find the k-th largest of many.
    Count,
    /// Sum the masses of what top-k keeps.
    Weigh,
    /// List what may be kept.
    List,
    /// Draw from the list.
    DrawList,
    /// Draw from all tokens.
    Draw,
    /// Compute the maxima of blocks again, of the model's own logits.
    MaximaOfModel,
    /// Sum the masses of what log-probabilities are of.
    SumKept,
}

/// The state of a row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) settings: Settings,
    pub(super) stage: Stage,
    pub(super) token: u32,
    pub(super) scores: NoisyScores,
    best: Best,
    /// The best score so far, shared by the pieces that are drawn from.
    pub(super) score: SharedScore,
    /// The largest logit.
    pub(super) largest: f32,
    /// The least logit that min-p keeps.
    likely: f32,
    /// The least logit that is listed; at stage `Weigh`, the least that top-k keeps.
    pub(super) low: f32,
    /// Scaled logits down to this far below the largest are summed by bins.
    depth: f32,
    /// The bin in which the nucleus ends, if it is not resolved yet.
    edge: Option<Edge>,
    pub(super) list: List,
    numbers: Vec<f32>,
    /// What log-probabilities are of.
    pub(super) distribution: Weighting,
    pub(super) log_probabilities: RowLogProbabilities,
}

/// The bin in which the nucleus ends.
#[derive(Clone, Copy, Debug)]
struct Edge {
    bin: u32,
    /// The mass of the bins above it.
    before: u64,
    limit: u64,
}

impl Row {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::GREEDY,
            stage: Stage::Done,
            token: 0,
            scores: NoisyScores::default(),
            best: Best::NONE,
            score: SharedScore::default(),
            largest: 0.0,
            likely: 0.0,
            low: 0.0,
            depth: 0.0,
            edge: None,
            list: List::default(),
            numbers: Vec::new(),
            distribution: Weighting::default(),
            log_probabilities: RowLogProbabilities::NONE,
        }
    }

    /// Allocates all memory that a row of this length may need.
    pub(super) fn reserve(&mut self, length: usize) {
        self.list.reset(length);
        self.numbers.clear();
        self.numbers.reserve(length);
    }

    pub(super) fn scaled_largest(&self) -> f32 {
        self.largest / self.settings.temperature
    }

    pub(super) fn take_largest(&mut self, pieces: &[Piece]) {
        self.largest = maxima(pieces).fold(f32::NEG_INFINITY, f32::max);
    }

    /// After the maxima: finds the token, or sets the next stage.
    pub(super) fn start(&mut self, logits: &Logits<'_>, pieces: &mut [Piece]) {
        if let Some(overlay) = logits.overlay {
            overlay.correct_maxima(logits, pieces);
        }
        let settings = self.settings;
        self.stage = Stage::Done;
        (self.edge, self.best, self.low) = (None, Best::NONE, f32::NEG_INFINITY);
        (self.scores.temperature, self.scores.exact_tail) = (settings.temperature, settings.exact_tail);
        self.scores.smallest = f32::NEG_INFINITY;
        self.take_largest(pieces);
        let at = first(logits, pieces, self.largest);
        self.token = index(at);
        if settings.temperature == f32::INFINITY {
            self.token = only_noise(logits, &self.scores);
            return;
        }
        // If the largest logit is minus infinity, so are all scores.
        if settings.is_greedy() || self.largest == f32::NEG_INFINITY {
            return;
        }
        self.likely = self.least_likely();
        self.best.offer(self.scores.score(self.largest, at), self.token);
        let (count, length) = (settings.kept_of(logits.len()), logits.len());
        if length <= SHORT {
            self.finish(logits, pieces, count);
        } else if count < length {
            let blocks = length.div_ceil(BLOCK);
            if 4 * count > 3 * blocks {
                self.stage = Stage::Count;
                return;
            }
            let bound = self.reached_by(pieces, count);
            self.low = self.least_equal(bound);
            self.finish(logits, pieces, count);
        } else {
            self.keep_all(logits, pieces);
        }
    }

    /// The least logit that min-p keeps.
    fn least_likely(&self) -> f32 {
        let (temperature, min_p, largest) = (self.settings.temperature, self.settings.min_p, self.scaled_largest());
        if min_p > 0.0 {
            least(self.largest, |logit| is_likely(logit / temperature, largest, min_p))
        } else {
            f32::NEG_INFINITY
        }
    }

    /// Keeps only what is at least this large when scaled, and what min-p keeps.
    fn keep_from(&mut self, smallest: f32) {
        self.scores.smallest = smallest.max(self.likely / self.settings.temperature);
    }

    /// A bound that at least `count` logits reach, and not many more: the `count`-th largest maximum of groups of blocks.
    pub(super) fn reached_by(&mut self, pieces: &[Piece], count: usize) -> f32 {
        self.numbers.clear();
        self.numbers.extend(maxima(pieces));
        let mut groups = self.numbers.as_mut_slice();
        while groups.len() / 2 >= GROUPS * count {
            // If their number is odd, the last is left out, which can only lower the bound.
            let (low, high) = groups.split_at_mut(groups.len() / 2);
            low.iter_mut().zip(high).for_each(|(low, high)| *low = low.max(*high));
            groups = low;
        }
        partition(groups, count.min(groups.len()))
    }

    /// The least logit that equals this one when scaled.
    fn least_equal(&self, logit: f32) -> f32 {
        let temperature = self.settings.temperature;
        let scaled = logit / temperature;
        least(logit, |logit| logit / temperature >= scaled)
    }

    /// Lists logits that are at least `low`, and finds the token in the list.
    fn finish(&mut self, logits: &Logits<'_>, pieces: &[Piece], count: usize) {
        self.fill_list(logits, pieces);
        let isa = logits.isa;
        let (temperature, largest) = (self.settings.temperature, self.scaled_largest());
        let length = self.list.logits().len();
        self.numbers.resize(length, 0.0);
        kernels::scale(isa, self.list.logits(), temperature, &mut self.numbers);
        let count = count.min(length);
        let least = partition(&mut self.numbers, count);
        let mut smallest = least;
        if self.settings.top_p < 1.0 || self.settings.top_p.is_nan() {
            let (kept, rest) = self.numbers.split_at_mut(count);
            let ties = rest.iter().filter(|scaled| **scaled == least).count() as u64;
            let total = kernels::total(isa, kept, largest) + ties * kernels::total(isa, &[least], largest);
            smallest = smallest_kept(isa, kept, largest, 0, limit(self.settings.top_p, total));
        }
        self.keep_from(smallest);
        self.scores.draw_from_list(isa, self.list.indices(), self.list.logits(), &mut self.best);
        self.token = self.best.token();
    }

    pub(super) fn fill_list(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        self.list.reset(logits.len());
        for (piece, start) in pieces.iter().zip((0..).step_by(PIECE)) {
            logits.list(start..logits.len().min(start + PIECE), &piece.maxima, self.low, &mut self.list);
        }
    }

    /// After the digits: finds the k-th largest logit.
    pub(super) fn counted(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let count = self.settings.kept_of(logits.len());
        let of_digit = |digit: &usize| pieces.iter().map(|piece| piece.counts[*digit]).sum::<u32>() as usize;
        let mut seen = 0;
        let reaches = |digit: &usize| {
            seen += of_digit(digit);
            seen >= count
        };
        // If there are no more than `count` logits, all are kept.
        if let Some(found) = (0..DIGITS).rev().find(reaches) {
            self.low = least(f32::INFINITY, |logit| digit(logit) >= found);
            self.fill_list(logits, pieces);
            self.numbers.clear();
            self.numbers.extend(self.list.logits());
            let bound = partition(&mut self.numbers, count);
            self.low = self.least_equal(bound);
            self.scores.smallest = bound / self.settings.temperature;
        }
        self.keep_all(logits, pieces);
    }

    /// Continues without top-k, which keeps everything that is at least `low`.
    fn keep_all(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        if self.settings.top_p < 1.0 || self.settings.top_p.is_nan() {
            self.stage = Stage::Weigh;
            self.estimate_depth(logits, pieces);
            return;
        }
        self.keep_from(self.scores.smallest);
        self.low = self.low.max(self.likely);
        self.draw_likely(logits, pieces);
        // Tokens that cannot win even with the largest noise need not be drawn.
        let (best, temperature, largest) = (self.best.score, self.settings.temperature, self.scores.words().largest);
        let can_win = |logit: f32| logit / temperature + largest >= best;
        let low = if can_win(self.largest) { least(self.largest, can_win) } else { f32::NEG_INFINITY };
        self.low = self.low.max(low);
        let mut count = 0;
        sample_blocks(logits, |block| count += kernels::count(logits.isa, block, self.low));
        let has_few = 3 * count < SAMPLES * BLOCK;
        self.stage = if has_few { Stage::List } else { Stage::Draw };
        self.score.set(best);
    }

    /// Draws from some of the largest logits, for a score that many others cannot reach.
    fn draw_likely(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let low = self.low;
        self.low = self.reached_by(pieces, LIKELY);
        // With many equal logits this would be as much work as drawing from all.
        if self.low > low && self.low < self.largest {
            self.fill_list(logits, pieces);
            self.scores.draw_from_list(logits.isa, self.list.indices(), self.list.logits(), &mut self.best);
        }
        self.low = low;
    }

    /// Estimates how far below the largest logit the nucleus reaches, from the maxima of all blocks and from sampled blocks.
    fn estimate_depth(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let (temperature, low) = (self.settings.temperature, self.low);
        let mut estimate =
            MassEstimate { logits, temperature, low, largest: self.scaled_largest(), masses: [0.0; BINS + 1] };
        self.numbers.clear();
        self.numbers.extend(maxima(pieces));
        estimate.add(&self.numbers, 1.0);
        // The total mass is at least that of the maxima, so top-p removes at least this much.
        let taken = (1.0 - f64::from(self.settings.top_p.max(0.0))) * estimate.masses.iter().sum::<f64>();
        let share = f64::from(index(logits.len())) / f64::from(index(SAMPLES * BLOCK));
        sample_blocks(logits, |block| estimate.add(block, share));
        let mut sum = 0.0;
        let guess = estimate.masses.iter().rposition(|mass| {
            sum += mass;
            // The estimate may be too low by a factor of two.
            sum > taken / 2.0
        });
        let bins = u16::try_from(guess.map_or(0, |bin| bin + 1)).unwrap_or(u16::MAX);
        self.depth = DEEPEST.min(f32::from(bins) / BINS_PER_UNIT);
    }

    /// The parameters of the pass that sums masses.
    pub(super) fn weigh(&self) -> Weighting {
        let (largest, temperature, depth) = (self.scaled_largest(), self.settings.temperature, self.depth);
        let near = least(self.largest, |logit| {
            let scaled = logit / temperature;
            scaled == largest || scaled - largest >= -depth
        });
        Weighting { temperature, low: self.low, near: near.max(self.low), largest }
    }

    /// After the masses: finds the bin in which the nucleus ends.
    pub(super) fn weighed(&mut self, pieces: &[Piece]) {
        let total = pieces.iter().map(|piece| piece.mass).sum();
        let limit = limit(self.settings.top_p, total);
        let of_bin = |bin: usize| pieces.iter().map(|piece| piece.masses[bin]).sum::<u64>();
        let (mut before, mut found) = (0, 0);
        while found < BINS {
            let mass = of_bin(found);
            if before + mass > limit {
                break;
            }
            (before, found) = (before + mass, found + 1);
        }
        // The nucleus reaches further: sum again, as deep as there is mass.
        if found == BINS && self.depth < DEEPEST {
            self.depth = DEEPEST;
            return;
        }
        let (largest, temperature) = (self.scaled_largest(), self.settings.temperature);
        let found = index(found);
        let reaches = |logit: f32| bin(logit / temperature, largest) <= found;
        self.low = self.low.max(least(self.largest, reaches));
        self.edge = Some(Edge { bin: found, before, limit });
        self.stage = Stage::List;
    }

    /// After the lists: finds where in its bin the nucleus ends.
    pub(super) fn listed(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        self.stage = Stage::DrawList;
        let Some(Edge { bin: edge, before, limit }) = self.edge else { return };
        let (largest, temperature) = (self.scaled_largest(), self.settings.temperature);
        let is_above = |logit: f32| bin(logit / temperature, largest) < edge;
        let above = (edge > 0).then(|| least(self.largest, is_above));
        self.numbers.clear();
        for piece in pieces {
            let logits = piece.list.logits().iter().filter(|logit| above.is_none_or(|above| **logit < above));
            self.numbers.extend(logits.map(|logit| logit / temperature));
        }
        let smallest = smallest_kept(logits.isa, &mut self.numbers, largest, before, limit);
        self.keep_from(smallest);
        self.score.set(self.best.score);
    }

    /// After the draws: takes the winner.
    pub(super) fn drawn(&mut self, pieces: &[Piece]) {
        self.stage = Stage::Done;
        pieces.iter().for_each(|piece| self.best.offer(piece.best.score, piece.best.index));
        self.token = self.best.token();
    }
}

fn maxima(pieces: &[Piece]) -> impl Iterator<Item = f32> {
    pieces.iter().flat_map(|piece| piece.maxima.iter().copied())
}

/// The index of the first logit that equals the largest; 0 if there is none.
fn first(logits: &Logits<'_>, pieces: &[Piece], largest: f32) -> usize {
    let mut room = [0.0; 1024];
    let blocks = maxima(pieces).zip((0..logits.len()).step_by(BLOCK)).filter(|(most, _)| *most == largest);
    let mut indices = blocks.filter_map(|(_, start)| {
        let block = logits.floats(start..logits.len().min(start + BLOCK), &mut room);
        block.iter().position(|logit| *logit == largest).map(|at| start + at)
    });
    indices.next().unwrap_or(0)
}

/// Estimated masses by distance from the largest logit.
struct MassEstimate<'a> {
    logits: &'a Logits<'a>,
    temperature: f32,
    low: f32,
    largest: f32,
    masses: [f64; BINS + 1],
}

impl MassEstimate<'_> {
    /// Adds logits, each of which stands for `share` logits.
    fn add(&mut self, logits: &[f32], share: f64) {
        let (mut scaled, mut powers, mut bins) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
        for logits in logits.chunks(BLOCK) {
            let (scaled, _) = scaled.split_at_mut(logits.len());
            kernels::scale(self.logits.isa, logits, self.temperature, scaled);
            kernels::place(self.logits.isa, scaled, self.largest, &mut powers, &mut bins);
            let placed = logits.iter().zip(powers.iter().zip(bins)).filter(|(logit, _)| **logit >= self.low);
            for (_, (power, bin)) in placed {
                self.masses[bin as usize] += share * f64::from(*power);
            }
        }
    }
}

/// Visits [`SAMPLES`] blocks at equal distances.
fn sample_blocks(logits: &Logits<'_>, mut each: impl FnMut(&[f32])) {
    let mut room = [0.0; 1024];
    let blocks = logits.len() / BLOCK;
    for number in 0..SAMPLES {
        let start = number * blocks / SAMPLES * BLOCK;
        each(logits.floats(start..start + BLOCK, &mut room));
    }
}

/// With an infinite temperature, which settings refuse, all finite logits are equal and infinite ones are NaN: all others are
/// kept, and the noise decides.
fn only_noise(logits: &Logits<'_>, scores: &NoisyScores) -> u32 {
    let mut best = Best::NONE;
    logits.strips(0..logits.len(), |start, strip| {
        for (logit, at) in strip.iter().zip(start..) {
            best.offer(scores.score(*logit, at), index(at));
        }
    });
    best.token()
}
