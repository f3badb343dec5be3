//! What is decided about a row between the passes over its pieces.

use super::choose::{least, partition, smallest_kept};
use super::noise::{self, Best, Draw, Shared};
use super::piece::{List, Logits, PIECE, Piece, digit, index};
use crate::simd::sample::{self as kernels, BINS, BINS_PER_UNIT, BLOCK, Weigh, bin};
use ptero_sampling::mass::limit;
use ptero_sampling::settings::Settings;
use std::ops::Range;

/// Rows up to this are not worth passes of their own.
const SHORT: usize = 1024;
/// So many times more groups of blocks than logits that are looked for make a good bound.
const GROUPS: usize = 4;
/// How many of the largest logits, or some more, are drawn from first.
const LIKELY: usize = 16;
/// Nothing further below the largest than this has mass.
const DEEPEST: f32 = 28.0;
/// Blocks that are looked into to guess.
const SAMPLES: usize = 16;

/// What has to be done with a row next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing: it has its token.
    Done,
    /// Count digits, to find the k-th largest of many.
    Count,
    /// Weigh what top-k keeps.
    Weigh,
    /// List what may be kept, then draw from the list.
    List,
    /// Draw from all.
    Draw,
}

/// A row under way.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) settings: Settings,
    pub(super) stage: Stage,
    pub(super) token: u32,
    pub(super) draw: Draw,
    best: Best,
    /// That of the best, while pieces are drawn from.
    pub(super) score: Shared,
    /// The largest logit.
    largest: f32,
    /// The least logit that is listed; of one that is weighed, the least that top-k keeps.
    pub(super) low: f32,
    /// How far below the largest, when scaled, what is near it ends.
    depth: f32,
    /// Where the nucleus ends, if that is not settled yet.
    edge: Option<Edge>,
    list: List,
    numbers: Vec<f32>,
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
            draw: Draw::default(),
            best: Best::NONE,
            score: Shared::default(),
            largest: 0.0,
            low: 0.0,
            depth: 0.0,
            edge: None,
            list: List::default(),
            numbers: Vec::new(),
        }
    }

    /// Takes all the memory that a row of this length may need.
    pub(super) fn reserve(&mut self, length: usize) {
        self.list.reset(length);
        self.numbers.clear();
        self.numbers.reserve(length);
    }

    fn scaled_largest(&self) -> f32 {
        self.largest / self.settings.temperature
    }

    /// After the maxima: finds the token, or what must be known to find it.
    pub(super) fn start(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let settings = self.settings;
        self.stage = Stage::Done;
        (self.edge, self.best, self.low) = (None, Best::NONE, f32::NEG_INFINITY);
        self.draw.temperature = settings.temperature;
        self.draw.smallest = f32::NEG_INFINITY;
        self.largest = maxima(pieces).fold(f32::NEG_INFINITY, f32::max);
        let place = first(logits, pieces, self.largest);
        self.token = index(place);
        if settings.temperature == f32::INFINITY {
            self.token = only_noise(logits, &self.draw);
            return;
        }
        // With minus infinity for the largest, all scores are that, whatever is kept.
        if settings.is_greedy() || self.largest == f32::NEG_INFINITY {
            return;
        }
        self.best.offer(self.draw.score(self.largest, place), self.token);
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

    /// A bound that at least `count` logits reach, and not many more: the maxima of so many groups of blocks do.
    fn reached_by(&mut self, pieces: &[Piece], count: usize) -> f32 {
        self.numbers.clear();
        self.numbers.extend(maxima(pieces));
        let mut groups = self.numbers.as_mut_slice();
        while groups.len() / 2 >= GROUPS * count {
            // Where their number is odd, the last is left out, which can only lower the bound.
            let (low, high) = groups.split_at_mut(groups.len() / 2);
            low.iter_mut().zip(high).for_each(|(low, high)| *low = low.max(*high));
            groups = low;
        }
        partition(groups, count.min(groups.len()))
    }

    /// The least logit that is not below this one when scaled.
    fn least_equal(&self, logit: f32) -> f32 {
        let temperature = self.settings.temperature;
        let scaled = logit / temperature;
        least(logit, |logit| logit / temperature >= scaled)
    }

    /// Lists from `low` on, and finds the token in the list.
    fn finish(&mut self, logits: &Logits<'_>, pieces: &[Piece], count: usize) {
        self.fill_list(logits, pieces);
        let isa = logits.isa;
        let (temperature, largest) = (self.settings.temperature, self.scaled_largest());
        let length = self.list.logits().len();
        self.numbers.resize(length, 0.0);
        kernels::scale(isa, self.list.logits(), temperature, &mut self.numbers);
        let count = count.min(length);
        let least = partition(&mut self.numbers, count);
        self.draw.smallest = least;
        if !keeps_all(self.settings.top_p) {
            let (kept, rest) = self.numbers.split_at_mut(count);
            let ties = rest.iter().filter(|scaled| **scaled == least).count() as u64;
            let total = kernels::total(isa, kept, largest) + ties * kernels::total(isa, &[least], largest);
            self.draw.smallest = smallest_kept(isa, kept, largest, 0, limit(self.settings.top_p, total));
        }
        self.draw.list(isa, self.list.indices(), self.list.logits(), &mut self.best);
        self.token = self.best.token();
    }

    fn fill_list(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        self.list.reset(logits.len());
        for (piece, range) in pieces.iter().zip(ranges(logits.len())) {
            logits.list(range, &piece.maxima, self.low, &mut self.list);
        }
    }

    /// After the digits: the k-th largest.
    pub(super) fn counted(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let count = self.settings.kept_of(logits.len());
        let of_digit = |digit: &usize| pieces.iter().filter_map(|piece| piece.counts.get(*digit)).sum::<u32>() as usize;
        let digits = pieces.first().map_or(0, |piece| piece.counts.len());
        let mut seen = 0;
        let reaches = |digit: &usize| {
            seen += of_digit(digit);
            seen >= count
        };
        // Where there are fewer numbers than are kept, all are.
        if let Some(found) = (0..digits).rev().find(reaches) {
            self.low = least(f32::INFINITY, |logit| digit(logit) >= found);
            self.fill_list(logits, pieces);
            self.numbers.clear();
            self.numbers.extend(self.list.logits());
            let bound = partition(&mut self.numbers, count);
            self.low = self.least_equal(bound);
            self.draw.smallest = bound / self.settings.temperature;
        }
        self.keep_all(logits, pieces);
    }

    /// Nothing from `low` on is taken away by top-k.
    fn keep_all(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        if !keeps_all(self.settings.top_p) {
            self.stage = Stage::Weigh;
            self.look_near(logits, pieces);
            return;
        }
        self.draw_likely(logits, pieces);
        // What cannot win even with the largest noise need not be drawn.
        let (best, temperature) = (self.best.score, self.settings.temperature);
        let can_win = |logit: f32| logit / temperature + noise::most() >= best;
        let low = if can_win(self.largest) { least(self.largest, can_win) } else { f32::NEG_INFINITY };
        self.low = self.low.max(low);
        let mut count = 0;
        look_around(logits, |block| count += kernels::count(logits.isa, block, self.low));
        let has_few = 3 * count < SAMPLES * BLOCK;
        self.stage = if has_few { Stage::List } else { Stage::Draw };
        self.score.set(best);
    }

    /// Draws from some of the largest, for a score that many others cannot reach.
    fn draw_likely(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let low = self.low;
        self.low = self.reached_by(pieces, LIKELY);
        // With many equals it would be as much work as all of them.
        if self.low > low && self.low < self.largest {
            self.fill_list(logits, pieces);
            self.draw.list(logits.isa, self.list.indices(), self.list.logits(), &mut self.best);
        }
        self.low = low;
    }

    /// Guesses how far down the nucleus may reach: the maxima of all blocks show what is likely, some blocks show the rest.
    fn look_near(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let (temperature, low) = (self.settings.temperature, self.low);
        let mut tail = Tail { logits, temperature, low, largest: self.scaled_largest(), masses: [0.0; BINS + 1] };
        self.numbers.clear();
        self.numbers.extend(maxima(pieces));
        tail.add(&self.numbers, 1.0);
        // There is more than the maxima, so top-p takes away no less than this.
        let taken = (1.0 - f64::from(self.settings.top_p.max(0.0))) * tail.masses.iter().sum::<f64>();
        let share = float(logits.len() as u64) / float((SAMPLES * BLOCK) as u64);
        look_around(logits, |block| tail.add(block, share));
        let mut sum = 0.0;
        let guess = tail.masses.iter().rposition(|mass| {
            sum += mass;
            // A guess may be too low by as much again.
            sum > taken / 2.0
        });
        let bins = u16::try_from(guess.map_or(0, |bin| bin + 1)).unwrap_or(u16::MAX);
        self.depth = DEEPEST.min(f32::from(bins) / BINS_PER_UNIT);
    }

    /// How its pieces are to be weighed.
    pub(super) fn weigh(&self) -> Weigh {
        let (largest, temperature, depth) = (self.scaled_largest(), self.settings.temperature, self.depth);
        let near = least(self.largest, |logit| {
            let scaled = logit / temperature;
            scaled == largest || scaled - largest >= -depth
        });
        Weigh { temperature, low: self.low, near: near.max(self.low), largest }
    }

    /// After the masses: in which bin the nucleus ends.
    pub(super) fn weighed(&mut self, pieces: &[Piece]) {
        let total = pieces.iter().map(|piece| piece.mass).sum();
        let limit = limit(self.settings.top_p, total);
        let of_bin = |bin: usize| pieces.iter().filter_map(|piece| piece.masses.get(bin)).sum::<u64>();
        let (mut before, mut found) = (0, 0);
        while found < BINS {
            let mass = of_bin(found);
            if before + mass > limit {
                break;
            }
            (before, found) = (before + mass, found + 1);
        }
        // It reaches further: once more, as far as anything has mass.
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

    /// After the lists: where in its bin the nucleus ends.
    pub(super) fn listed(&mut self, logits: &Logits<'_>, pieces: &[Piece]) {
        let Some(Edge { bin: edge, before, limit }) = self.edge else { return };
        let (largest, temperature) = (self.scaled_largest(), self.settings.temperature);
        let is_above = |logit: f32| bin(logit / temperature, largest) < edge;
        let above = (edge > 0).then(|| least(self.largest, is_above));
        self.numbers.clear();
        for piece in pieces {
            let logits = piece.list.logits().iter().filter(|logit| above.is_none_or(|above| **logit < above));
            self.numbers.extend(logits.map(|logit| logit / temperature));
        }
        self.draw.smallest = smallest_kept(logits.isa, &mut self.numbers, largest, before, limit);
        self.score.set(self.best.score);
    }

    /// After the draws: the winner.
    pub(super) fn drawn(&mut self, pieces: &[Piece]) {
        pieces.iter().for_each(|piece| self.best.merge(piece.best));
        self.token = self.best.token();
    }
}

/// Whether top-p takes nothing away.
fn keeps_all(top_p: f32) -> bool {
    top_p >= 1.0
}

/// The ranges of the pieces of a row.
pub(super) fn ranges(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(PIECE).map(move |start| start..length.min(start + PIECE))
}

fn maxima(pieces: &[Piece]) -> impl Iterator<Item = f32> {
    pieces.iter().flat_map(|piece| piece.maxima.iter().copied())
}

/// The place of the first logit that equals the largest; 0 if there is none.
fn first(logits: &Logits<'_>, pieces: &[Piece], largest: f32) -> usize {
    let mut room = [0.0; 1024];
    let blocks = maxima(pieces).zip((0..logits.len()).step_by(BLOCK)).filter(|(most, _)| *most == largest);
    let mut places = blocks.filter_map(|(_, start)| {
        let block = logits.floats(start..logits.len().min(start + BLOCK), &mut room);
        block.iter().position(|logit| *logit == largest).map(|at| start + at)
    });
    places.next().unwrap_or(0)
}

/// Masses by distance, estimated.
struct Tail<'a> {
    logits: &'a Logits<'a>,
    temperature: f32,
    low: f32,
    largest: f32,
    masses: [f64; BINS + 1],
}

impl Tail<'_> {
    /// Adds logits that stand for so many each.
    fn add(&mut self, logits: &[f32], share: f64) {
        let (mut scaled, mut powers, mut bins) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
        for logits in logits.chunks(BLOCK) {
            let (scaled, _) = scaled.split_at_mut(logits.len());
            kernels::scale(self.logits.isa, logits, self.temperature, scaled);
            kernels::place(self.logits.isa, scaled, self.largest, &mut powers, &mut bins);
            let placed = logits.iter().zip(powers.iter().zip(bins)).filter(|(logit, _)| **logit >= self.low);
            for (_, (power, bin)) in placed {
                if let Some(sum) = self.masses.get_mut(bin as usize) {
                    *sum += share * f64::from(*power);
                }
            }
        }
    }
}

/// Looks into some blocks here and there.
fn look_around(logits: &Logits<'_>, mut each: impl FnMut(&[f32])) {
    let mut room = [0.0; 1024];
    let blocks = logits.len() / BLOCK;
    for number in 0..SAMPLES {
        let start = number * blocks / SAMPLES * BLOCK;
        each(logits.floats(start..start + BLOCK, &mut room));
    }
}

#[allow(clippy::cast_precision_loss, reason = "an estimate")]
fn float(number: u64) -> f64 {
    number as f64
}

/// With an infinite temperature, which nobody may ask for, all finite logits are equal, and infinite ones are no numbers: all
/// that are left are kept, and the noise decides.
fn only_noise(logits: &Logits<'_>, draw: &Draw) -> u32 {
    let mut best = Best::NONE;
    logits.strips(0..logits.len(), |start, strip| {
        for (logit, place) in strip.iter().zip(start..) {
            best.offer(draw.score(*logit, place), index(place));
        }
    });
    best.token()
}
