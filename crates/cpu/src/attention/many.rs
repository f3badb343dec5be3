//! Many queries of a group, as when a prompt is read: what counts is arithmetic, so both products are made of tiles.
//!
//! Scores are computed as keys times queries, so that they lie as `[key][query]`. That is how the second product, of values
//! and weights, wants its right operand, so weights are never moved; and every query has a lane of its own, so the softmax
//! never adds across lanes. Queries come in panels of as many as a tile has columns, each with the keys that it may see.

use super::{Heads, RUN, Task};
use crate::pool::Scratch;
use crate::simd::Tile;
use crate::simd::attention::attend::BLOCK;
use crate::simd::attention::columns::{self, COLUMNS, Known};
use crate::simd::attention::tile;
use crate::simd::matmul::transpose::{AT_ONCE, transpose};
use crate::simd::rows;
use crate::window::Window;
use std::ops::Range;

/// Of a task: a multiple of the columns of every tile. Half as many where there are not enough tasks.
pub(super) const QUERIES: usize = 128;
/// This many tasks are enough.
pub(super) const ENOUGH: usize = 32;

/// Memory of a task, and what is known of its queries.
struct Many<'s> {
    tile: Tile,
    /// Queries: `[panel][element][query]`.
    queries: &'s mut [f32],
    /// Keys of a block: `[tile][element][key]`.
    keys: &'s mut [f32],
    /// Values of a block: `[tile][key][element]`.
    values: &'s mut [f32],
    /// Scores, then weights, of a panel: `[slot][query]`, and room for what a tile has too much.
    scores: &'s mut [f32],
    /// Of a panel: `[key][query]`.
    mask: &'s mut [f32],
    /// The mix of a panel before the block, or of the block alone.
    spare: &'s mut [f32],
    /// Rows on the way from or to other places.
    lines: &'s mut [f32],
    /// Of the run so far.
    run: Part<'s>,
    /// Of all runs so far.
    whole: Part<'s>,
}

/// What some keys give for the queries.
struct Part<'s> {
    /// `[panel][element][query]`.
    mix: &'s mut [f32],
    largest: &'s mut [f32],
    sums: &'s mut [f32],
}

impl Part<'_> {
    /// Forgets everything.
    fn clear(&mut self) {
        self.mix.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
    }

    /// What is known of a panel.
    fn known(&mut self, panel: usize, columns: usize) -> Known<'_> {
        let (largest, sums) = (&mut *self.largest, &mut *self.sums);
        Known { largest: part_mut(largest, panel * columns, columns), sums: part_mut(sums, panel * columns, columns) }
    }
}

impl Heads<'_> {
    /// What the keys of whole runs give for some queries of a group; see [`Heads::join`].
    pub(super) fn many(&self, task: &Task, part: &mut [f32], scratch: &mut Scratch) {
        let tile = tile::tile(self.isa);
        let (count, height) =
            (task.queries.len().next_multiple_of(tile.columns), self.width.next_multiple_of(tile.rows));
        let block = BLOCK.next_multiple_of(tile.rows);
        let [
            queries,
            keys,
            values,
            scores,
            mask,
            spare,
            lines,
            mix,
            largest,
            sums,
            whole_mix,
            whole_largest,
            whole_sums,
        ] = scratch.floats([
            count * self.depth,
            block * self.depth,
            BLOCK * height,
            (BLOCK + tile.rows) * tile.columns,
            BLOCK * tile.columns,
            tile.columns * height,
            BLOCK * self.depth.max(self.width).max(BLOCK),
            count * height,
            count,
            count,
            count * height,
            count,
            count,
        ]);
        let run = Part { mix, largest, sums };
        let whole = Part { mix: whole_mix, largest: whole_largest, sums: whole_sums };
        let mut many = Many { tile, queries, keys, values, scores, mask, spare, lines, run, whole };
        many.pack_queries(self, task);
        if task.keys.is_empty() {
            many.whole.clear();
        }
        for (number, keys) in self.pieces(task.keys.clone(), RUN).enumerate() {
            let run = Task { group: task.group, queries: task.queries.clone(), keys };
            many.take_run(self, &run);
            many.join_run(self, &run, number == 0);
        }
        many.finish(self, part);
    }
}

impl Tile {
    /// Queries in panels of as many as a tile has columns, numbered.
    fn panels(self, queries: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let end = queries.end;
        let panel = move |first: usize| first..end.min(first + self.columns);
        queries.clone().step_by(self.columns).map(panel).enumerate()
    }
}

impl Many<'_> {
    /// Takes the keys of a run, block by block.
    fn take_run(&mut self, heads: &Heads<'_>, run: &Task) {
        let (k, v) = (heads.k.window.inner(2, run.group), heads.v.window.inner(2, run.group));
        self.run.clear();
        for block in heads.pieces(run.keys.clone(), BLOCK) {
            self.pack_block(heads, (&k, &v), &block);
            for (panel, queries) in self.tile.panels(&run.queries) {
                let keys = heads.seen(&queries, &block);
                if !keys.is_empty() {
                    self.take(heads, panel, &Task { group: run.group, queries, keys }, &block);
                }
            }
        }
    }

    /// Joins a run with those before.
    fn join_run(&mut self, heads: &Heads<'_>, run: &Task, is_first: bool) {
        if is_first {
            // To join it with nothing changes it in the sign of zero at most.
            std::mem::swap(&mut self.run, &mut self.whole);
        } else {
            for (panel, queries) in self.tile.panels(&run.queries) {
                if !heads.seen(&queries, &run.keys).is_empty() {
                    self.join(heads, panel);
                }
            }
        }
    }

    /// Joins the run of a panel with those before.
    fn join(&mut self, heads: &Heads<'_>, panel: usize) {
        let (isa, columns) = (heads.isa, self.tile.columns);
        let length = heads.width.next_multiple_of(self.tile.rows) * columns;
        let mut factors = [[1.0; COLUMNS]; 2];
        let (whole, run) = (self.whole.known(panel, columns), self.run.known(panel, columns));
        columns::join_known(isa, columns, whole, run, &mut factors);
        let run = part(self.run.mix, panel * length, length);
        let whole = part_mut(self.whole.mix, panel * length, length);
        columns::join(isa, columns, whole, run, factors.each_ref().map(|factors| &factors[..]));
    }

    fn pack_queries(&mut self, heads: &Heads<'_>, task: &Task) {
        let (columns, depth) = (self.tile.columns, heads.depth);
        self.queries.fill(0.0);
        let at_once = AT_ONCE.min(columns);
        for first in task.queries.clone().step_by(at_once) {
            let numbers = first..task.queries.end.min(first + at_once);
            let lines = self.lines.get_mut(..numbers.len() * depth).unwrap_or_default();
            for (query, line) in numbers.zip(lines.chunks_exact_mut(depth.max(1))) {
                heads.q.read(heads.isa, heads.row(task.group, query), 0, line);
            }
            let at = first - task.queries.start;
            let start = at / columns * columns * depth + at % columns;
            transpose(heads.isa, lines, depth, self.queries.get_mut(start..).unwrap_or_default(), columns);
        }
    }

    fn pack_block(&mut self, heads: &Heads<'_>, (k, v): (&Window, &Window), block: &Range<usize>) {
        let (height, depth) = (self.tile.rows, heads.depth);
        let rows = heads.block(&heads.k, k, block.clone(), self.lines);
        let tiles = self.keys.chunks_exact_mut((height * depth).max(1));
        for (tile, rows) in tiles.zip(rows.chunks((height * depth).max(1))) {
            transpose(heads.isa, rows, depth, tile, height);
        }
        let rows = heads.block(&heads.v, v, block.clone(), self.lines);
        columns::cut(heads.isa, rows, heads.width, height, self.values);
    }

    /// Adds those keys of a block that a panel of queries may see.
    fn take(&mut self, heads: &Heads<'_>, panel: usize, seen: &Task, block: &Range<usize>) {
        let (isa, Tile { rows: height, columns }) = (heads.isa, self.tile);
        let inside = seen.keys.start - block.start..seen.keys.end - block.start;
        let queries = part(self.queries, panel * columns * heads.depth, columns * heads.depth);
        // Tiles count from the first key of the block, scores from its first position.
        let slot = heads.slot(block.start);
        for key in (inside.start / height * height..inside.end).step_by(height) {
            let keys = part(self.keys, key * heads.depth, height * heads.depth);
            let scores = part_mut(self.scores, (slot + key) * columns, height * columns);
            tile::multiply(isa, keys, queries, scores);
        }
        let mut factors = [[1.0; COLUMNS]; 2];
        self.weigh(heads, panel, seen, &mut factors);
        let factors = factors.each_ref().map(|factors| &factors[..]);

        let weights = part(self.scores, (slot + inside.start) * columns, inside.len() * columns);
        let length = heads.width.next_multiple_of(height) * columns;
        let mix = part_mut(self.run.mix, panel * length, length);
        let hides = heads.hides(&seen.queries, &seen.keys);
        if hides {
            self.spare.copy_from_slice(mix);
        }
        let values = self.values.chunks_exact(height * block.len());
        for (values, mix) in values.zip(mix.chunks_exact_mut(height * columns)) {
            tile::join(isa, part(values, inside.start * height, inside.len() * height), weights, mix, factors);
        }
        if hides && !columns::are_finite(isa, mix) {
            mix.copy_from_slice(self.spare);
            let column = |query: usize| query - seen.queries.start;
            let weight =
                |query, key| weights.get((key - seen.keys.start) * columns + column(query)).copied().unwrap_or(0.0);
            heads.mix_seen(seen, weight, self.spare, |query, element| element * columns + column(query));
            columns::join(isa, columns, mix, self.spare, factors);
        }
    }

    /// Makes the scores of a panel weights, and joins what is known of its queries; `factors` become those of both mixes.
    fn weigh(&mut self, heads: &Heads<'_>, panel: usize, seen: &Task, factors: &mut [[f32; COLUMNS]; 2]) {
        let (isa, columns) = (heads.isa, self.tile.columns);
        let slots = heads.slot(seen.keys.start)..heads.slot(seen.keys.start) + seen.keys.len();
        let scores = part_mut(self.scores, slots.start * columns, slots.len() * columns);
        rows::scale(isa, scores, heads.scale);
        if let Some(mask) = &heads.mask {
            let length = seen.keys.len();
            let numbers = part_mut(self.mask, 0, length * columns);
            if seen.queries.len() < columns {
                numbers.fill(0.0);
            }
            let at_once = AT_ONCE.min(columns);
            for first in seen.queries.clone().step_by(at_once) {
                let queries = first..seen.queries.end.min(first + at_once);
                let lines = part_mut(self.lines, 0, queries.len() * length);
                for (query, line) in queries.zip(lines.chunks_exact_mut(length)) {
                    mask.read(isa, heads.row(seen.group, query), seen.keys.start, line);
                }
                let at = first - seen.queries.start;
                transpose(isa, lines, length, numbers.get_mut(at..).unwrap_or_default(), columns);
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
        columns::weigh(isa, columns, self.scores, slots, Known { largest: &mut largest, sums: &mut sums });
        let block = Known { largest: &mut largest, sums: &mut sums };
        columns::join_known(isa, columns, self.run.known(panel, columns), block, factors);
    }

    /// Writes what is known of the queries, row by row.
    fn finish(&mut self, heads: &Heads<'_>, out: &mut [f32]) {
        let (columns, width) = (self.tile.columns, heads.width);
        let length = width.next_multiple_of(self.tile.rows) * columns;
        let panels = out.chunks_mut(columns * (width + 2)).zip(self.whole.mix.chunks_exact(length));
        for (out, mix) in panels {
            let elements = part(mix, 0, width * columns).chunks(AT_ONCE * columns);
            for (first, mix) in (0..).step_by(AT_ONCE).zip(elements) {
                transpose(heads.isa, mix, columns, out.get_mut(first..).unwrap_or_default(), width + 2);
            }
        }
        let known = self.whole.largest.iter().zip(self.whole.sums.iter());
        for (out, (largest, sum)) in out.chunks_exact_mut(width + 2).zip(known) {
            let state = out.split_at_mut(width).1;
            state.copy_from_slice(&[*largest, *sum]);
        }
    }
}

/// An index in a block.
fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn part(floats: &[f32], start: usize, length: usize) -> &[f32] {
    floats.get(start..start + length).unwrap_or_default()
}

fn part_mut(floats: &mut [f32], start: usize, length: usize) -> &mut [f32] {
    floats.get_mut(start..start + length).unwrap_or_default()
}
