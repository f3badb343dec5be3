//! Tokens of rows of logits, without sorting, in one or two passes.
//!
//! All rows go through the same passes, each pass a task per piece of a row; between them a row looks at what was found. The
//! first pass takes the maxima of blocks. It is the only one for the largest logit, and for a small `k`: the k-th largest of the
//! maxima is a bound that few blocks reach, and those alone are looked into. A nucleus of all tokens takes a pass that sums masses, by
//! distance from the largest, then one that lists what reaches the bin where the nucleus ends; only that bin is resolved. Noise
//! is left to those that can win (`noise.rs`).
//!
//! Sums are of whole numbers and the best score is the best in any order, so no result depends on how many threads there are.

use super::Call;
use super::noise::Stream;
use super::piece::{Elements, Logits, PIECE, Piece};
use super::row::{Row, Stage};
use crate::pool::{Scratch, Workers};
use crate::simd::Isa;
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use std::ops::Range;

/// Rows are worked on together up to so many elements; that bounds the memory that is kept.
const TOGETHER: usize = 1 << 21;
/// So many elements are not worth waking anyone for.
const ALONE: usize = 2 * PIECE;

/// Rows of logits, each in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Where they lie.
    pub elements: Elements<'a>,
    /// The first element of the first row.
    pub first: usize,
    /// From the first element of a row to that of the next.
    pub stride: usize,
    /// The elements of a row.
    pub vocabulary: usize,
}

impl<'a> Rows<'a> {
    /// Rows one after the other.
    pub fn contiguous(elements: Elements<'a>, vocabulary: usize) -> Self {
        Self { elements, first: 0, stride: vocabulary, vocabulary }
    }

    fn row(&self, isa: Isa, number: usize) -> Logits<'a> {
        let start = self.first + number * self.stride;
        Logits { isa, elements: self.elements.part(start..start + self.vocabulary) }
    }
}

/// What is kept from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(super) call: Call,
    rows: Vec<Row>,
    pieces: Vec<Piece>,
}

/// The tokens of as many rows as `out` has elements: what `ptero_sampling::reference::sample` gives, to the bit. `settings` has
/// one element for all rows, or one for each.
///
/// # Panics
/// If a row has no elements, or there are too few settings or keys.
pub fn sample_rows(
    workers: &mut Workers<'_>,
    isa: Isa,
    rows: &Rows<'_>,
    settings: &[Settings],
    keys: Keys<'_>,
    out: &mut [u32],
) {
    let mut buffers = std::mem::take(&mut workers.scratch.sample);
    let together = (TOGETHER / rows.vocabulary.max(1)).max(1);
    let all = out.len();
    for (group, out) in out.chunks_mut(together).enumerate() {
        let first = group * together;
        buffers.prepare(rows.vocabulary, all, first..first + out.len(), settings, keys);
        let mut pass = Pass { workers, isa, rows, first, count: out.len(), buffers: &mut buffers };
        pass.run();
        out.iter_mut().zip(&buffers.rows).for_each(|(token, row)| *token = row.token);
    }
    workers.scratch.sample = buffers;
}

impl Buffers {
    #[allow(clippy::indexing_slicing, reason = "documented to panic")]
    fn prepare(&mut self, vocabulary: usize, all: usize, range: Range<usize>, settings: &[Settings], keys: Keys<'_>) {
        let pieces = range.len() * vocabulary.div_ceil(PIECE);
        self.rows.resize_with(self.rows.len().max(range.len()), Row::new);
        self.pieces.resize_with(self.pieces.len().max(pieces), Piece::default);
        self.pieces.iter_mut().take(pieces).for_each(|piece| piece.reserve(vocabulary));
        for (row, number) in self.rows.iter_mut().zip(range) {
            row.reserve(vocabulary);
            row.settings = if let [same] = settings { *same } else { settings[number] };
            row.draw.stream = match keys {
                Keys::Shared(key) => Stream { key, count: all * vocabulary, start: number * vocabulary },
                Keys::PerRow(keys) => Stream { key: keys[number], count: vocabulary, start: 0 },
            };
        }
    }
}

/// Rows that go through the passes together.
struct Pass<'a, 'b> {
    workers: &'a mut Workers<'b>,
    isa: Isa,
    rows: &'a Rows<'a>,
    /// The number of the first of them.
    first: usize,
    /// How many.
    count: usize,
    buffers: &'a mut Buffers,
}

impl Pass<'_, '_> {
    fn run(&mut self) {
        let isa = self.isa;
        self.pieces(None, |_, piece, logits, range| piece.take_maxima(logits, range));
        self.settle(None, |row, logits, pieces| row.start(logits, pieces));
        if self.has(Stage::Count) {
            self.pieces(Some(Stage::Count), |_, piece, logits, range| piece.count_digits(logits, range));
            self.settle(Some(Stage::Count), |row, logits, pieces| row.counted(logits, pieces));
        }
        while self.has(Stage::Weigh) {
            self.pieces(Some(Stage::Weigh), |row, piece, logits, range| piece.weigh(logits, range, &row.weigh()));
            self.settle(Some(Stage::Weigh), |row, _, pieces| row.weighed(pieces));
        }
        if self.has(Stage::List) {
            self.pieces(Some(Stage::List), |row, piece, logits, range| piece.fill_list(logits, range, row.low));
            self.settle(Some(Stage::List), |row, logits, pieces| row.listed(logits, pieces));
            self.pieces(Some(Stage::List), |row, piece, _, _| piece.draw_list(isa, &row.draw, &row.score));
            self.settle(Some(Stage::List), |row, _, pieces| row.drawn(pieces));
        }
        if self.has(Stage::Draw) {
            self.pieces(Some(Stage::Draw), |row, piece, logits, range| {
                piece.draw_all(logits, range, &row.draw, &row.score);
            });
            self.settle(Some(Stage::Draw), |row, _, pieces| row.drawn(pieces));
        }
    }

    fn has(&self, stage: Stage) -> bool {
        self.buffers.rows.iter().take(self.count).any(|row| row.stage == stage)
    }

    /// Works on every piece of the rows at a stage, or of all.
    fn pieces(&mut self, stage: Option<Stage>, work: impl Fn(&Row, &mut Piece, &Logits<'_>, Range<usize>) + Sync) {
        let vocabulary = self.rows.vocabulary;
        let per_row = vocabulary.div_ceil(PIECE);
        let (rows, isa, first) = (self.rows, self.isa, self.first);
        let states = &self.buffers.rows;
        let task = |task: usize, piece: &mut Piece| {
            let number = task / per_row;
            let Some(row) = states.get(number).filter(|row| stage.is_none_or(|stage| row.stage == stage)) else {
                return;
            };
            let start = task % per_row * PIECE;
            work(row, piece, &rows.row(isa, first + number), start..vocabulary.min(start + PIECE));
        };
        let (pieces, _) = self.buffers.pieces.split_at_mut(self.count * per_row);
        if self.count * vocabulary <= ALONE {
            pieces.iter_mut().enumerate().for_each(|(number, piece)| task(number, piece));
        } else {
            let each = |number: usize, pieces: &mut [Piece], _: &mut Scratch| {
                pieces.iter_mut().for_each(|piece| task(number, piece));
            };
            self.workers.chunks(pieces, 1, each);
        }
    }

    /// Lets the rows at a stage, or all, look at what was found.
    fn settle(&mut self, stage: Option<Stage>, work: impl Fn(&mut Row, &Logits<'_>, &[Piece]) + Sync) {
        let vocabulary = self.rows.vocabulary;
        let per_row = vocabulary.div_ceil(PIECE);
        let (rows, isa, first) = (self.rows, self.isa, self.first);
        let task = |number: usize, row: &mut Row, pieces: &[Piece]| {
            if stage.is_none_or(|stage| row.stage == stage) {
                work(row, &rows.row(isa, first + number), pieces);
            }
        };
        let (states, _) = self.buffers.rows.split_at_mut(self.count);
        let pieces = &mut self.buffers.pieces;
        if self.count * vocabulary <= ALONE {
            let all = states.iter_mut().zip(pieces.chunks(per_row)).enumerate();
            all.for_each(|(number, (row, pieces))| task(number, row, pieces));
        } else {
            let each = |number: usize, states: &mut [Row], pieces: &mut [Piece], _: &mut Scratch| {
                states.iter_mut().for_each(|row| task(number, row, pieces));
            };
            self.workers.chunk_pairs((states, 1), (pieces, per_row), each);
        }
    }
}
