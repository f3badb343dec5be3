//! Many queries of a group, as in prefill: arithmetic is what takes time, so both products are computed in tiles.
//!
//! Scores are computed as keys times queries, in the layout `[key][query]`. The second product, of values and weights, needs its
//! right operand in this layout, so weights are never moved; and every query has a lane of its own, so the softmax never adds
//! across lanes. Queries are processed in panels as wide as a tile, each with the keys that it may see.

use super::{Heads, RUN, Task, float_rows};
use crate::pool::Scratch;
use crate::simd::Tile;
use crate::simd::attention::attend::BLOCK;
use crate::simd::attention::columns::{self, COLUMNS, SoftmaxColumns};
use crate::simd::attention::tile;
use crate::simd::matmul::transpose::{AT_ONCE, transpose};
use crate::simd::rows;
use crate::view::BoundView;
use std::ops::Range;

/// Queries of a task: a multiple of the columns of every tile. Tasks have half as many if there would be fewer than [`ENOUGH`], or
/// too few for the threads.
pub(super) const QUERIES: usize = 128;
/// See [`QUERIES`].
pub(super) const ENOUGH: usize = 32;

/// Memory of a task, and the state of its queries.
struct Many<'s> {
    tile: Tile,
    /// Queries: `[panel][element][query]`.
    queries: &'s mut [f32],
    /// Keys of a block: `[tile][element][key]`.
    keys: &'s mut [f32],
    /// Values of a block: `[tile][key][element]`.
    values: &'s mut [f32],
    /// Scores, then weights, of a panel: `[slot][query]`, padded by the rows of a tile.
    scores: &'s mut [f32],
    /// The mask of a panel: `[key][query]`.
    mask: &'s mut [f32],
    /// The mix of a panel before the block, or of the block alone.
    spare: &'s mut [f32],
    /// Rows before they are transposed.
    lines: &'s mut [f32],
    /// The state of the run so far.
    run: MixState<'s>,
    /// The state of all runs so far.
    whole: MixState<'s>,
}

/// The state of the queries after some keys.
struct MixState<'s> {
    /// `[panel][element][query]`.
    mix: &'s mut [f32],
    largest: &'s mut [f32],
    sums: &'s mut [f32],
}

impl<'s> MixState<'s> {
    /// Splits memory of `count * (height + 2)` floats.
    fn new(memory: &'s mut [f32], count: usize) -> Self {
        let (rest, sums) = memory.split_at_mut(memory.len() - count);
        let (mix, largest) = rest.split_at_mut(rest.len() - count);
        Self { mix, largest, sums }
    }

    /// Sets the state without keys.
    fn clear(&mut self) {
        self.mix.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
    }

    /// The softmax state of a panel.
    fn softmax(&mut self, panel: usize, columns: usize) -> SoftmaxColumns<'_> {
        let range = panel * columns..(panel + 1) * columns;
        SoftmaxColumns { largest: &mut self.largest[range.clone()], sums: &mut self.sums[range] }
    }
}

impl Heads<'_> {
    /// Computes the partial result of some queries over whole runs; see [`Heads::join`].
    pub(super) fn many(&self, task: &Task, partial: &mut [f32], scratch: &mut Scratch) {
        let tile = tile::tile(self.isa);
        let (count, height) =
            (task.queries.len().next_multiple_of(tile.columns), self.width.next_multiple_of(tile.rows));
        let [queries, keys, values, scores, mask, spare, lines, run, whole] = scratch.floats([
            count * self.depth,
            BLOCK.next_multiple_of(tile.rows) * self.depth,
            BLOCK * height,
            (BLOCK + tile.rows) * tile.columns,
            BLOCK * tile.columns,
            tile.columns * height,
            BLOCK * self.depth.max(self.width).max(BLOCK),
            count * (height + 2),
            count * (height + 2),
        ]);
        let (run, whole) = (MixState::new(run, count), MixState::new(whole, count));
        let mut many = Many { tile, queries, keys, values, scores, mask, spare, lines, run, whole };
        many.pack_queries(self, task);
        if task.keys.is_empty() {
            many.whole.clear();
        }
        for (number, keys) in self.pieces(task.keys.clone(), RUN).enumerate() {
            let run = Task { group: task.group, queries: task.queries.clone(), keys };
            many.add_run(self, &run);
            many.join_run(self, &run, number == 0);
        }
        many.finish(self, partial);
    }
}

impl Tile {
    /// Splits queries into numbered panels as wide as a tile.
    fn panels(self, queries: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let end = queries.end;
        let panel = move |first: usize| first..end.min(first + self.columns);
        queries.clone().step_by(self.columns).map(panel).enumerate()
    }
}

impl Many<'_> {
    /// Processes the keys of a run, block by block.
    fn add_run(&mut self, heads: &Heads<'_>, run: &Task) {
        let (k, v) = (heads.k.view.inner(2, run.group), heads.v.view.inner(2, run.group));
        self.run.clear();
        for block in heads.pieces(run.keys.clone(), BLOCK) {
            self.pack_block(heads, (&k, &v), &block);
            for (panel, queries) in self.tile.panels(&run.queries) {
                let keys = heads.seen(&queries, &block);
                if !keys.is_empty() {
                    self.add_keys(heads, panel, &Task { group: run.group, queries, keys }, &block);
                }
            }
        }
    }

    /// Joins a run with those before.
    fn join_run(&mut self, heads: &Heads<'_>, run: &Task, is_first: bool) {
        if is_first {
            // Joining it with an empty state would change at most the sign of a zero.
            return std::mem::swap(&mut self.run, &mut self.whole);
        }
        for (panel, queries) in self.tile.panels(&run.queries) {
            if !heads.seen(&queries, &run.keys).is_empty() {
                self.join(heads, panel);
            }
        }
    }

    /// Joins the run of a panel with those before.
    fn join(&mut self, heads: &Heads<'_>, panel: usize) {
        let (isa, columns) = (heads.isa, self.tile.columns);
        let length = heads.width.next_multiple_of(self.tile.rows) * columns;
        let mut factors = [[1.0; COLUMNS]; 2];
        let (whole, run) = (self.whole.softmax(panel, columns), self.run.softmax(panel, columns));
        columns::join_softmax(isa, columns, whole, run, &mut factors);
        let range = panel * length..(panel + 1) * length;
        let (whole, run) = (&mut self.whole.mix[range.clone()], &self.run.mix[range]);
        columns::join(isa, columns, whole, run, factors.each_ref().map(|factors| &factors[..]));
    }

    fn pack_queries(&mut self, heads: &Heads<'_>, task: &Task) {
        let (columns, depth) = (self.tile.columns, heads.depth);
        self.queries.fill(0.0);
        let at_once = AT_ONCE.min(columns);
        for first in task.queries.clone().step_by(at_once) {
            let numbers = first..task.queries.end.min(first + at_once);
            let lines = &mut self.lines[..numbers.len() * depth];
            for (query, line) in numbers.zip(lines.chunks_exact_mut(depth.max(1))) {
                heads.q.read(heads.row(task.group, query), 0, line);
            }
            let at = first - task.queries.start;
            let start = at / columns * columns * depth + at % columns;
            transpose(heads.isa, lines, depth, &mut self.queries[start..], columns);
        }
    }

    fn pack_block(&mut self, heads: &Heads<'_>, (k, v): (&BoundView, &BoundView), block: &Range<usize>) {
        let (height, depth) = (self.tile.rows, heads.depth);
        let rows = float_rows(&heads.k, k, block, self.lines);
        let tiles = self.keys.chunks_exact_mut((height * depth).max(1));
        for (tile, rows) in tiles.zip(rows.chunks((height * depth).max(1))) {
            transpose(heads.isa, rows, depth, tile, height);
        }
        let rows = float_rows(&heads.v, v, block, self.lines);
        columns::cut(heads.isa, rows, heads.width, height, self.values);
    }

    /// Processes the keys of a block that a panel of queries may see.
    fn add_keys(&mut self, heads: &Heads<'_>, panel: usize, seen: &Task, block: &Range<usize>) {
        let (isa, Tile { rows: height, columns }) = (heads.isa, self.tile);
        let inside = seen.keys.start - block.start..seen.keys.end - block.start;
        let queries = &self.queries[panel * columns * heads.depth..(panel + 1) * columns * heads.depth];
        // Tiles start at the first key of the block, scores at its first position.
        let slot = heads.slot(block.start);
        for key in (inside.start / height * height..inside.end).step_by(height) {
            let keys = &self.keys[key * heads.depth..(key + height) * heads.depth];
            let scores = &mut self.scores[(slot + key) * columns..(slot + key + height) * columns];
            tile::multiply(isa, keys, queries, scores);
        }
        let mut factors = [[1.0; COLUMNS]; 2];
        self.weigh(heads, panel, seen, &mut factors);
        let factors = factors.each_ref().map(|factors| &factors[..]);

        let weights = &self.scores[(slot + inside.start) * columns..(slot + inside.end) * columns];
        let length = heads.width.next_multiple_of(height) * columns;
        let mix = &mut self.run.mix[panel * length..(panel + 1) * length];
        let hides = heads.hides(&seen.queries, &seen.keys);
        if hides {
            self.spare.copy_from_slice(mix);
        }
        let values = self.values.chunks_exact(height * block.len());
        for (values, mix) in values.zip(mix.chunks_exact_mut(height * columns)) {
            tile::join(isa, &values[inside.start * height..inside.end * height], weights, mix, factors);
        }
        if hides && !columns::are_finite(isa, mix) {
            mix.copy_from_slice(self.spare);
            let column = |query: usize| query - seen.queries.start;
            let weight = |query, key| weights[(key - seen.keys.start) * columns + column(query)];
            heads.mix_seen(seen, weight, self.spare, |query, element| element * columns + column(query));
            columns::join(isa, columns, mix, self.spare, factors);
        }
    }

    /// Turns the scores of a panel into weights and updates its softmax state; `factors` become those of both mixes.
    fn weigh(&mut self, heads: &Heads<'_>, panel: usize, seen: &Task, factors: &mut [[f32; COLUMNS]; 2]) {
        let (isa, columns) = (heads.isa, self.tile.columns);
        let slots = heads.slot(seen.keys.start)..heads.slot(seen.keys.start) + seen.keys.len();
        let scores = &mut self.scores[slots.start * columns..slots.end * columns];
        rows::scale(isa, scores, heads.parameters.scale);
        if let Some(mask) = &heads.mask {
            let length = seen.keys.len();
            let numbers = &mut self.mask[..length * columns];
            if seen.queries.len() < columns {
                numbers.fill(0.0);
            }
            let at_once = AT_ONCE.min(columns);
            for first in seen.queries.clone().step_by(at_once) {
                let queries = first..seen.queries.end.min(first + at_once);
                let lines = &mut self.lines[..queries.len() * length];
                for (query, line) in queries.zip(lines.chunks_exact_mut(length)) {
                    mask.read(heads.row(seen.group, query), seen.keys.start, line);
                }
                let at = first - seen.queries.start;
                transpose(isa, lines, length, &mut numbers[at..], columns);
            }
            heads.apply(mask, scores, numbers);
        }
        let (first, last) = (heads.reach(seen.queries.start), heads.reach(seen.queries.end - 1));
        if last.start > seen.keys.start || first.end < seen.keys.end {
            let (mut from, mut end) = ([0; COLUMNS], [0; COLUMNS]);
            for (query, (from, end)) in seen.queries.clone().zip(from.iter_mut().zip(&mut end)) {
                let reach = heads.reach(query);
                let inside = |key: usize| key.clamp(seen.keys.start, seen.keys.end) - seen.keys.start;
                (*from, *end) = (narrow(inside(reach.start)), narrow(inside(reach.end)));
            }
            columns::hide(isa, columns, scores, &from, &end);
        }
        let (mut largest, mut sums) = ([0.0; COLUMNS], [0.0; COLUMNS]);
        columns::weigh(isa, columns, self.scores, slots, SoftmaxColumns { largest: &mut largest, sums: &mut sums });
        let block = SoftmaxColumns { largest: &mut largest, sums: &mut sums };
        columns::join_softmax(isa, columns, self.run.softmax(panel, columns), block, factors);
    }

    /// Writes the partial result, query by query.
    fn finish(&mut self, heads: &Heads<'_>, out: &mut [f32]) {
        let (columns, width) = (self.tile.columns, heads.width);
        let length = width.next_multiple_of(self.tile.rows) * columns;
        let panels = out.chunks_mut(columns * (width + 2)).zip(self.whole.mix.chunks_exact(length));
        for (out, mix) in panels {
            for (first, mix) in (0..).step_by(AT_ONCE).zip(mix[..width * columns].chunks(AT_ONCE * columns)) {
                transpose(heads.isa, mix, columns, &mut out[first..], width + 2);
            }
        }
        let states = self.whole.largest.iter().zip(self.whole.sums.iter());
        for (out, (largest, sum)) in out.chunks_exact_mut(width + 2).zip(states) {
            out[width..].copy_from_slice(&[*largest, *sum]);
        }
    }
}

/// An index in a block.
fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
