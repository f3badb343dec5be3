//! What is done with a piece of a row: a task.

use super::noise::{Best, Draw, Shared, Stream, rank};
use crate::simd::Isa;
use crate::simd::numeric::convert::widen;
use crate::simd::sample::compress::{self, reaching};
use crate::simd::sample::{self as kernels, BINS, BLOCK, Weigh};
use half::{bf16, f16};
use std::ops::Range;

/// Elements of a piece.
pub(super) const PIECE: usize = 8192;
/// Elements that are looked at together; they stay in the first cache.
const STRIP: usize = 1024;
/// Digits of a rank: so many high bits.
const DIGIT_BITS: u32 = 11;

/// Logits as they lie in memory.
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
}

impl<'a> Elements<'a> {
    /// A part of them; of what is beyond the end, nothing.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(all) => Self::F32(all.get(range).unwrap_or_default()),
            Self::F16(all) => Self::F16(all.get(range).unwrap_or_default()),
            Self::Bf16(all) => Self::Bf16(all.get(range).unwrap_or_default()),
        }
    }

    /// How many there are.
    pub(super) fn len(self) -> usize {
        match self {
            Self::F32(all) => all.len(),
            Self::F16(all) => all.len(),
            Self::Bf16(all) => all.len(),
        }
    }
}

/// Where logits that are not in single precision are widened to.
pub(super) type Room = [f32; STRIP];

impl<'a> Logits<'a> {
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Not more than a strip of them, as floats: where they lie, or widened.
    pub(super) fn floats<'b>(&self, range: Range<usize>, room: &'b mut Room) -> &'b [f32]
    where
        'a: 'b,
    {
        let (room, _) = room.split_at_mut(range.len().min(STRIP));
        match self.elements.part(range) {
            Elements::F32(floats) => return floats,
            Elements::F16(halves) => widen(self.isa, halves, room),
            Elements::Bf16(halves) => widen(self.isa, halves, room),
        }
        room
    }

    /// Calls for every strip of a range, with its place.
    pub(super) fn strips(&self, range: Range<usize>, mut each: impl FnMut(usize, &[f32])) {
        let mut room = [0.0; STRIP];
        let end = range.end;
        for start in range.step_by(STRIP) {
            each(start, self.floats(start..end.min(start + STRIP), &mut room));
        }
    }

    /// Lists those that are at least `low`, and their indices, of a range whose blocks have these maxima.
    pub(super) fn list(&self, range: Range<usize>, maxima: &[f32], low: f32, list: &mut List) {
        let mut room = [0.0; STRIP];
        let mut blocks = range.clone().step_by(BLOCK).zip(maxima).peekable();
        while let Some((start, most)) = blocks.next() {
            if *most >= low {
                // Neighbours are looked at together.
                let mut end = start + BLOCK;
                while end - start < STRIP && blocks.next_if(|(_, most)| **most >= low).is_some() {
                    end += BLOCK;
                }
                let floats = self.floats(start..end.min(range.end), &mut room);
                list.length += self.reaching(floats, low, start, list);
            }
        }
    }

    fn reaching(&self, floats: &[f32], low: f32, start: usize, list: &mut List) -> usize {
        let (_, indices) = list.indices.split_at_mut(list.length);
        let (_, logits) = list.logits.split_at_mut(list.length);
        reaching(self.isa, floats, low, index(start), indices, logits)
    }
}

/// An index as tokens have it, or a counter as streams have it.
#[allow(clippy::cast_possible_truncation, reason = "rows are short, and counters have 32 bits")]
pub(super) fn index(place: usize) -> u32 {
    place as u32
}

/// Tokens and their logits.
#[derive(Debug, Default)]
pub(super) struct List {
    indices: Vec<u32>,
    logits: Vec<f32>,
    length: usize,
}

impl List {
    /// Empty, with room for so many.
    pub(super) fn reset(&mut self, room: usize) {
        self.length = 0;
        if self.indices.len() < room + compress::LANES {
            self.indices = vec![0; room + compress::LANES];
            self.logits = vec![0.0; room + compress::LANES];
        }
    }

    pub(super) fn indices(&self) -> &[u32] {
        self.indices.get(..self.length).unwrap_or_default()
    }

    pub(super) fn logits(&self) -> &[f32] {
        self.logits.get(..self.length).unwrap_or_default()
    }
}

/// What is known of a piece of a row.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Of its blocks.
    pub(super) maxima: Vec<f32>,
    /// Tokens that may be kept.
    pub(super) list: List,
    /// How many logits have a digit.
    pub(super) counts: Vec<u32>,
    /// The mass of what top-k keeps.
    pub(super) mass: u64,
    /// The masses of its bins; of what is too far from the largest to matter, nothing.
    pub(super) masses: Vec<u64>,
    pub(super) best: Best,
}

impl Piece {
    /// Takes all the memory that a piece of a row of this length may need.
    pub(super) fn reserve(&mut self, length: usize) {
        let length = length.min(PIECE);
        self.list.reset(length);
        self.maxima.clear();
        self.maxima.reserve(length.div_ceil(BLOCK));
        self.counts.resize(1 << DIGIT_BITS, 0);
        self.masses.resize(BINS + 1, 0);
    }

    pub(super) fn take_maxima(&mut self, logits: &Logits<'_>, range: Range<usize>) {
        self.maxima.resize(range.len().div_ceil(BLOCK), 0.0);
        match logits.elements.part(range) {
            Elements::F32(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
            Elements::F16(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
            Elements::Bf16(all) => kernels::maxima(logits.isa, all, &mut self.maxima),
        }
    }

    pub(super) fn count_digits(&mut self, logits: &Logits<'_>, range: Range<usize>) {
        self.counts.fill(0);
        let counts = &mut self.counts;
        logits.strips(range, |_, strip| {
            for x in strip.iter().filter(|x| !x.is_nan()) {
                if let Some(count) = counts.get_mut(digit(*x)) {
                    *count += 1;
                }
            }
        });
    }

    /// Sums masses; those of logits from `near` on also by bins.
    pub(super) fn weigh(&mut self, logits: &Logits<'_>, range: Range<usize>, weigh: &Weigh) {
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
                if let Some(sum) = self.masses.get_mut(*bin as usize) {
                    *sum += kernels::mass_of(*power);
                }
            }
        });
    }

    pub(super) fn fill_list(&mut self, logits: &Logits<'_>, range: Range<usize>, low: f32) {
        self.list.reset(range.len());
        logits.list(range, &self.maxima, low, &mut self.list);
    }

    /// Draws from the list.
    pub(super) fn draw_list(&mut self, isa: Isa, draw: &Draw, score: &Shared) {
        self.best = Best::at_least(score.get());
        draw.list(isa, self.list.indices(), self.list.logits(), &mut self.best);
        score.raise(self.best.score);
    }

    /// Draws from all of them, or rather from its share: of a stream of the row's own, both words of a pair are used together.
    pub(super) fn draw_all(&mut self, logits: &Logits<'_>, range: Range<usize>, draw: &Draw, score: &Shared) {
        self.best = Best::at_least(score.get());
        self.draw_share(logits, range, draw);
        score.raise(self.best.score);
    }

    fn draw_share(&mut self, logits: &Logits<'_>, range: Range<usize>, draw: &Draw) {
        let Stream { count, start, .. } = draw.stream;
        let (half, upper) = (count / 2, count.div_ceil(2));
        if count == logits.len() {
            let pairs = range.start / 2..half.min(range.start / 2 + PIECE / 2);
            self.draw_pairs(logits, pairs, draw, [true; 2]);
            if range.start == 0 && half < upper {
                self.draw_one(logits, half, draw);
            }
            return;
        }
        let (from, to) = (start + range.start, start + range.end);
        if from < half {
            self.draw_pairs(logits, from..to.min(half), draw, [true, false]);
        }
        if half < upper && (from..to).contains(&half) {
            self.draw_one(logits, half - start, draw);
        }
        if to > upper {
            self.draw_pairs(logits, from.max(upper) - upper..to - upper, draw, [false, true]);
        }
    }

    /// Draws with the words of some pairs of counters, the lower, the upper or both.
    fn draw_pairs(&mut self, logits: &Logits<'_>, pairs: Range<usize>, draw: &Draw, halves: [bool; 2]) {
        let Stream { count, start, .. } = draw.stream;
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
            draw.pairs(logits.isa, counters, [low, high].map(index), [low_run, high_run], &mut self.best);
        }
    }

    fn draw_one(&mut self, logits: &Logits<'_>, place: usize, draw: &Draw) {
        let mut room = [0.0; STRIP];
        for logit in logits.floats(place..place + 1, &mut room) {
            if logit / draw.temperature >= draw.smallest {
                self.best.offer(draw.score(*logit, place), index(place));
            }
        }
    }
}

/// The high bits of a number that is in the order of the floats.
pub(super) fn digit(x: f32) -> usize {
    (rank(x) >> (32 - DIGIT_BITS)) as usize
}
