//! Many queries of a group, as when a prompt is read: what counts is arithmetic, so both products are made of tiles.
//!
//! Scores are computed as keys times queries, so that they lie as `[key][query]`. That is how the second product, of values
//! and weights, wants its right operand, so weights are never moved; and every query has a lane of its own, so the softmax
//! never adds across lanes. Queries come in panels of as many as a tile has columns, each with the keys that it may see.

use super::{Heads, Task};
use crate::pool::Scratch;
use crate::simd::columns::{self, COLUMNS, Softmax};
use crate::simd::gemm::{Tile, multiply};
use crate::simd::rows;
use crate::simd::transpose::{AT_ONCE, transpose};
use crate::window::Window;
use std::ops::Range;

/// Of a task: a multiple of the columns of every tile. Half as many where there are not enough tasks.
pub(super) const QUERIES: usize = 128;
/// So many tasks are enough.
pub(super) const ENOUGH: usize = 32;
/// Keys that are worth a task.
pub(super) const RANGE: usize = 5 * KEYS;
/// Keys of a block: a multiple of the rows of every tile.
const KEYS: usize = 96;

/// Memory of a task, and what is known of its queries.
struct Many<'s> {
    tile: Tile,
    /// Queries: `[panel][element][query]`.
    queries: &'s mut [f32],
    /// Keys of a block: `[tile][element][key]`.
    keys: &'s mut [f32],
    /// Values of a block: `[tile][key][element]`.
    values: &'s mut [f32],
    /// Scores, then weights, of a panel: `[key][query]`.
    scores: &'s mut [f32],
    /// Likewise.
    mask: &'s mut [f32],
    /// `[panel][element][query]`.
    mix: &'s mut [f32],
    /// The mix of a panel before the block.
    before: &'s mut [f32],
    /// Rows on the way from or to other places.
    lines: &'s mut [f32],
    largest: &'s mut [f32],
    sums: &'s mut [f32],
}

impl Heads<'_> {
    /// What a range of keys gives for some queries of a group; see [`Heads::join`].
    pub(super) fn many(&self, task: &Task, part: &mut [f32], scratch: &mut Scratch) {
        let tile = Tile::of(self.isa);
        let (count, height) =
            (task.queries.len().next_multiple_of(tile.columns), self.width.next_multiple_of(tile.rows));
        let [queries, keys, values, scores, mask, mix, before, lines, largest, sums] = scratch.floats([
            count * self.depth,
            KEYS * self.depth,
            KEYS * height,
            KEYS * tile.columns,
            KEYS * tile.columns,
            count * height,
            tile.columns * height,
            KEYS.max(AT_ONCE) * self.depth.max(self.width).max(KEYS),
            count,
            count,
        ]);
        mix.fill(0.0);
        largest.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        let mut many = Many { tile, queries, keys, values, scores, mask, mix, before, lines, largest, sums };
        many.pack_queries(self, task);
        let (k, v) = (self.k.window.inner(2, task.group), self.v.window.inner(2, task.group));
        for start in task.keys.clone().step_by(KEYS) {
            let block = start..task.keys.end.min(start + KEYS);
            many.pack_block(self, (&k, &v), &block);
            for (panel, first) in task.queries.clone().step_by(tile.columns).enumerate() {
                let queries = first..task.queries.end.min(first + tile.columns);
                let span = self.span(&queries);
                let seen = span.start.max(block.start)..span.end.min(block.end);
                if !seen.is_empty() {
                    many.take(self, panel, &Task { group: task.group, queries, keys: seen }, &block);
                }
            }
        }
        many.finish(self, part);
    }
}

impl Many<'_> {
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
        let tiles = inside.start / height * height..inside.end.next_multiple_of(height);
        let queries = part(self.queries, panel * columns * heads.depth, columns * heads.depth);
        part_mut(self.scores, tiles.start * columns, tiles.len() * columns).fill(0.0);
        for key in tiles.step_by(height) {
            let keys = part(self.keys, key * heads.depth, height * heads.depth);
            multiply(isa, keys, queries, part_mut(self.scores, key * columns, height * columns), columns);
        }
        self.weigh(heads, panel, seen, &inside);

        let scores = part(self.scores, inside.start * columns, inside.len() * columns);
        let length = heads.width.next_multiple_of(height) * columns;
        let mix = part_mut(self.mix, panel * length, length);
        let hides = heads.hides(&seen.queries, &seen.keys);
        if hides {
            self.before.copy_from_slice(mix);
        }
        let values = self.values.chunks_exact(height * block.len());
        for (values, mix) in values.zip(mix.chunks_exact_mut(height * columns)) {
            multiply(isa, part(values, inside.start * height, inside.len() * height), scores, mix, columns);
        }
        if hides && !columns::are_finite(isa, mix) {
            mix.copy_from_slice(self.before);
            let column = |query: usize| query - seen.queries.start;
            let weight =
                |query, key| scores.get((key - seen.keys.start) * columns + column(query)).copied().unwrap_or(0.0);
            heads.mix_seen(seen.group, &seen.queries, &seen.keys, weight, mix, |query, element| {
                element * columns + column(query)
            });
        }
    }

    /// Makes the scores of a panel weights, and scales what is known of its queries so that they fit.
    fn weigh(&mut self, heads: &Heads<'_>, panel: usize, seen: &Task, inside: &Range<usize>) {
        let (isa, columns) = (heads.isa, self.tile.columns);
        let scores = part_mut(self.scores, inside.start * columns, inside.len() * columns);
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
        let mut shrink = [1.0; COLUMNS];
        let largest = part_mut(self.largest, panel * columns, columns);
        let sums = part_mut(self.sums, panel * columns, columns);
        columns::weigh(isa, columns, scores, Softmax { largest, sums, shrink: &mut shrink });
        if shrink.iter().any(|shrink| *shrink != 1.0) {
            let length = heads.width.next_multiple_of(self.tile.rows) * columns;
            columns::scale(isa, columns, part_mut(self.mix, panel * length, length), &shrink);
        }
    }

    /// Writes what is known of the queries, row by row.
    fn finish(&mut self, heads: &Heads<'_>, out: &mut [f32]) {
        let (columns, width) = (self.tile.columns, heads.width);
        let length = width.next_multiple_of(self.tile.rows) * columns;
        let panels = out.chunks_mut(columns * (width + 2)).zip(self.mix.chunks_exact(length));
        for (out, mix) in panels {
            let elements = part(mix, 0, width * columns).chunks(AT_ONCE * columns);
            for (first, mix) in (0..).step_by(AT_ONCE).zip(elements) {
                transpose(heads.isa, mix, columns, out.get_mut(first..).unwrap_or_default(), width + 2);
            }
        }
        let known = self.largest.iter().zip(self.sums.iter());
        for (out, (largest, sum)) in out.chunks_exact_mut(width + 2).zip(known) {
            let state = out.split_at_mut(width).1;
            state.copy_from_slice(&[*largest, *sum]);
        }
    }
}

/// A place in a block.
fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn part(floats: &[f32], start: usize, length: usize) -> &[f32] {
    floats.get(start..start + length).unwrap_or_default()
}

fn part_mut(floats: &mut [f32], start: usize, length: usize) -> &mut [f32] {
    floats.get_mut(start..start + length).unwrap_or_default()
}
