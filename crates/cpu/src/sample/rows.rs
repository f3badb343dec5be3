//! Samples a token for each row of logits, without sorting, in one or two passes.
//!
//! All rows go through the same passes; a pass runs a task per piece of a row, then each row evaluates what its pieces found. The
//! first pass computes the maxima of blocks. It is the only one for greedy sampling and for a small `k`: the k-th largest of the
//! maxima is a bound that few blocks reach, and only those are searched. A nucleus of all tokens takes a pass that sums masses by
//! distance from the largest logit, then one that lists what reaches the bin where the nucleus ends; only that bin is resolved.
//! Noise is computed only for tokens that can win (`noise.rs`).
//!
//! Masses are integers and the best score does not depend on the order, so no result depends on the number of threads.
#![allow(clippy::indexing_slicing, reason = "`prepare` allocates rows and pieces; too few keys panic")]

use super::Call;
use super::overlay::Overlay;
use super::piece::{Elements, Logits, PIECE, Piece};
use super::row::{Row, Stage};
use crate::pool::Workers;
use crate::simd::Isa;
use ptero_sampling::adjust::Adjustments;
use ptero_sampling::log_probabilities::{LogProbabilities, RowLogProbabilities};
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use std::ops::Range;

/// Rows are processed together up to this many elements, which bounds the memory that is kept.
const TOGETHER: usize = 1 << 21;
/// Up to this many elements, one thread does all the work.
const ALONE: usize = 2 * PIECE;

/// Rows of logits, each contiguous.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows<'a> {
    /// The elements of all rows.
    pub elements: Elements<'a>,
    /// The first element of the first row.
    pub first: usize,
    /// The distance between rows.
    pub stride: usize,
    /// The elements of a row.
    pub vocabulary: usize,
}

impl<'a> LogitRows<'a> {
    /// Rows one after another.
    pub fn contiguous(elements: Elements<'a>, vocabulary: usize) -> Self {
        Self { elements, first: 0, stride: vocabulary, vocabulary }
    }

    fn row(&self, number: usize) -> Elements<'a> {
        let start = self.first + number * self.stride;
        self.elements.part(start..start + self.vocabulary)
    }
}

/// What is asked of the sampler.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// One element for all rows, or one for each.
    pub settings: &'a [Settings],
    /// Where random words come from.
    pub keys: Keys<'a>,
    /// What changes the logits: one element for each row, or none.
    pub adjustments: &'a [Adjustments<'a>],
    /// Which log-probabilities are wanted.
    pub log_probabilities: LogProbabilities,
}

impl<'a> Parameters<'a> {
    /// Tokens alone, drawn from logits as they are.
    pub fn new(settings: &'a [Settings], keys: Keys<'a>) -> Self {
        Self { settings, keys, adjustments: &[], log_probabilities: LogProbabilities::None }
    }
}

/// What the sampler finds for a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Its log-probabilities; zeros if none are wanted.
    pub log_probabilities: RowLogProbabilities,
}

impl Drawn {
    /// Nothing yet.
    pub const NONE: Self = Self { token: 0, log_probabilities: RowLogProbabilities::NONE };
}

/// Memory that is kept from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(super) call: Call,
    rows: Vec<Row>,
    overlays: Vec<Overlay>,
    pieces: Vec<Piece>,
}

/// Samples as many rows as `out` has elements: returns the tokens of `ptero_sampling::reference::sample`, of logits that
/// `ptero_sampling::adjust` changed, and their log-probabilities, to the bit.
///
/// # Panics
/// If a row has no elements, or there are too few settings or keys.
pub fn sample_rows(
    workers: &mut Workers<'_>,
    isa: Isa,
    rows: &LogitRows<'_>,
    parameters: &Parameters<'_>,
    out: &mut [Drawn],
) {
    let mut buffers = std::mem::take(&mut workers.scratch.sample);
    let together = (TOGETHER / rows.vocabulary.max(1)).max(1);
    let all = out.len();
    for (group, out) in out.chunks_mut(together).enumerate() {
        let first = group * together;
        buffers.prepare(rows, all, first..first + out.len(), parameters);
        let mut passes = Passes { workers, isa, rows, first, count: out.len(), buffers: &mut buffers };
        passes.run();
        if parameters.log_probabilities != LogProbabilities::None {
            passes.find_log_probabilities(parameters.log_probabilities);
        }
        for (drawn, row) in out.iter_mut().zip(&buffers.rows) {
            *drawn = Drawn { token: row.token, log_probabilities: row.log_probabilities.clone() };
        }
    }
    workers.scratch.sample = buffers;
}

impl Buffers {
    /// Allocates memory for what may change the logits of the only row, so that no later call has to.
    pub(super) fn reserve_changes(&mut self, events: usize, vocabulary: usize) {
        self.overlays.resize_with(self.overlays.len().max(1), Overlay::default);
        self.overlays.iter_mut().take(1).for_each(|overlay| overlay.reserve(events, vocabulary));
    }

    fn prepare(&mut self, rows: &LogitRows<'_>, all: usize, range: Range<usize>, parameters: &Parameters<'_>) {
        let vocabulary = rows.vocabulary;
        let pieces = range.len() * vocabulary.div_ceil(PIECE);
        self.rows.resize_with(self.rows.len().max(range.len()), Row::new);
        self.overlays.resize_with(self.rows.len().max(self.overlays.len()), Overlay::default);
        self.pieces.resize_with(self.pieces.len().max(pieces), Piece::default);
        self.pieces.iter_mut().take(pieces).for_each(|piece| piece.reserve(vocabulary));
        for ((row, overlay), number) in self.rows.iter_mut().zip(&mut self.overlays).zip(range) {
            row.reserve(vocabulary);
            row.stage = Stage::Start;
            row.log_probabilities = RowLogProbabilities::NONE;
            row.settings = if let [same] = parameters.settings { *same } else { parameters.settings[number] };
            row.scores.stream = parameters.keys.stream(number, all, vocabulary);
            let adjustments = parameters.adjustments.get(number).unwrap_or(&Adjustments::NONE);
            overlay.set(rows.row(number), vocabulary, adjustments);
        }
    }
}

/// Rows that go through the passes together.
struct Passes<'a, 'b> {
    workers: &'a mut Workers<'b>,
    isa: Isa,
    rows: &'a LogitRows<'a>,
    /// The number of the first row.
    first: usize,
    count: usize,
    buffers: &'a mut Buffers,
}

impl Passes<'_, '_> {
    fn run(&mut self) {
        let isa = self.isa;
        self.pass(Stage::Start, |_, piece, logits, range| piece.take_maxima(logits, range), Row::start);
        self.pass(
            Stage::Count,
            |_, piece, logits, range| piece.count_digits(logits, range),
            |row, logits, pieces| row.counted(logits, pieces),
        );
        let weigh = |row: &Row, piece: &mut Piece, logits: &Logits<'_>, range| piece.weigh(logits, range, &row.weigh());
        while self.pass(Stage::Weigh, weigh, |row, _, pieces| row.weighed(pieces)) {}
        self.pass(
            Stage::List,
            |row, piece, logits, range| piece.fill_list(logits, range, row.low),
            |row, logits, pieces| row.listed(logits, pieces),
        );
        let draw_list = |row: &Row, piece: &mut Piece, _: &Logits<'_>, _| piece.draw_list(isa, &row.scores, &row.score);
        self.pass(Stage::DrawList, draw_list, |row, _, pieces| row.drawn(pieces));
        let draw = |row: &Row, piece: &mut Piece, logits: &Logits<'_>, range| {
            piece.draw_all(logits, range, &row.scores, &row.score);
        };
        self.pass(Stage::Draw, draw, |row, _, pieces| row.drawn(pieces));
    }

    /// After the tokens are found.
    fn find_log_probabilities(&mut self, which: LogProbabilities) {
        let Buffers { rows, overlays, .. } = &mut *self.buffers;
        for (row, overlay) in rows.iter_mut().zip(overlays).take(self.count) {
            row.want_log_probabilities(which, overlay.changes_any());
        }
        let maxima =
            |_: &Row, piece: &mut Piece, logits: &Logits<'_>, range| piece.take_maxima(&logits.of(which), range);
        self.pass(Stage::MaximaOfModel, maxima, |row, _, pieces| row.take_largest_of_model(pieces));
        let sum = |row: &Row, piece: &mut Piece, logits: &Logits<'_>, range| {
            piece.sum_kept(&logits.of(which), range, &row.distribution);
        };
        self.pass(Stage::SumKept, sum, |row, logits, pieces| row.rate(&logits.of(which), pieces));
    }

    /// Calls `visit` for every piece of the rows at a stage, then `settle` for these rows. Returns `false` if there are none.
    fn pass(
        &mut self,
        stage: Stage,
        visit: impl Fn(&Row, &mut Piece, &Logits<'_>, Range<usize>) + Sync,
        settle: impl Fn(&mut Row, &Logits<'_>, &mut [Piece]) + Sync,
    ) -> bool {
        let Self { rows, isa, first, count, .. } = *self;
        let (vocabulary, per_row) = (rows.vocabulary, rows.vocabulary.div_ceil(PIECE));
        let states = &mut self.buffers.rows[..count];
        let pieces = &mut self.buffers.pieces[..count * per_row];
        let overlays = &self.buffers.overlays;
        let logits = |number: usize| Logits {
            isa,
            elements: rows.row(first + number),
            length: vocabulary,
            overlay: Some(&overlays[number]).filter(|overlay| overlay.changes_any()),
        };
        if !states.iter().any(|row| row.stage == stage) {
            return false;
        }
        let is_small = count * vocabulary <= ALONE;
        let (rows_at_once, pieces_at_once) = if is_small { (count, pieces.len()) } else { (1, 1) };
        self.workers.chunks(&mut *pieces, pieces_at_once, |task, pieces, _| {
            for (index, piece) in (task * pieces_at_once..).zip(pieces) {
                let (number, start) = (index / per_row, index % per_row * PIECE);
                if states[number].stage == stage {
                    let range = start..vocabulary.min(start + PIECE);
                    visit(&states[number], piece, &logits(number), range);
                }
            }
        });
        let chunks = ((states, rows_at_once), (pieces, rows_at_once * per_row));
        self.workers.chunk_pairs(chunks.0, chunks.1, |task, states, pieces, _| {
            let numbered = (task * rows_at_once..).zip(states).zip(pieces.chunks_mut(per_row));
            for ((number, row), pieces) in numbered.filter(|((_, row), _)| row.stage == stage) {
                settle(row, &logits(number), pieces);
            }
        });
        true
    }
}
