//! How an attention is cut into tasks. That may depend on the number of threads: the result does not depend on it.

use super::{Heads, RUN, Task, few, many};
use std::ops::Range;

/// This many tasks per thread keep all threads busy to the end, though tasks are not equally long.
const PER_THREAD: usize = 4;

/// A task has some queries of a group, and a run of the keys that they may see or all runs; its part is what they give.
pub(super) struct Cut {
    /// Whether the queries of a group are so few that tiles are not worth it.
    pub(super) is_few: bool,
    /// Parts of a query: one per run, or one.
    pub(super) parts: usize,
    /// Whether a task has one run.
    is_by_run: bool,
    /// Queries of a task.
    queries: usize,
    /// Tasks of queries in a group.
    blocks: usize,
    groups: usize,
    /// Floats of a query: its mix, largest score and sum.
    row: usize,
}

impl Cut {
    pub(super) fn new(heads: &Heads<'_>, threads: usize) -> Self {
        let (groups, count) = (heads.groups, heads.heads_per_group * heads.tokens);
        let is_few = count <= few::QUERIES;
        let queries = match is_few {
            true => count,
            false if groups * count >= many::ENOUGH * many::QUERIES => many::QUERIES,
            false => many::QUERIES / 2,
        };
        let blocks = count.div_ceil(queries.max(1));
        let is_by_run = is_few || groups * blocks < PER_THREAD * threads;
        let mut cut = Self { is_few, parts: 1, is_by_run, queries, blocks, groups, row: heads.width + 2 };
        if is_by_run {
            let runs = |block| runs(heads, &heads.span(&cut.queries(heads, block))).len();
            cut.parts = (0..blocks).map(runs).max().unwrap_or(0).max(1);
        }
        cut
    }

    /// The queries of a group that are those of a task.
    fn queries(&self, heads: &Heads<'_>, block: usize) -> Range<usize> {
        let count = heads.heads_per_group * heads.tokens;
        block * self.queries..count.min((block + 1) * self.queries)
    }

    /// Floats of a task's part.
    pub(super) fn part(&self) -> usize {
        self.queries * self.row
    }

    /// Floats of all parts.
    pub(super) fn floats(&self) -> usize {
        self.part() * self.parts * self.blocks * self.groups
    }

    pub(super) fn task(&self, heads: &Heads<'_>, task: usize) -> Task {
        let (rest, part) = (task / self.parts, task % self.parts);
        // The last tokens see most: their tasks come first.
        let (group, block) = (rest / self.blocks, self.blocks - 1 - rest % self.blocks);
        let queries = self.queries(heads, block);
        let span = heads.span(&queries);
        if !self.is_by_run {
            return Task { group, queries, keys: span };
        }
        let start = |run: usize| (run * RUN).saturating_sub(heads.lead).clamp(span.start, span.end);
        let run = runs(heads, &span).start + part;
        Task { group, queries, keys: start(run)..start(run + 1) }
    }

    /// What the tasks gave for a row of the output.
    pub(super) fn rows<'p>(
        &self,
        heads: &Heads<'_>,
        number: usize,
        parts: &'p [f32],
    ) -> impl Iterator<Item = &'p [f32]> + use<'p> {
        let (head, token) = (number / heads.tokens, number % heads.tokens);
        let (group, query) =
            (head / heads.heads_per_group, token * heads.heads_per_group + head % heads.heads_per_group);
        let block = self.blocks - 1 - query / self.queries;
        let first = (group * self.blocks + block) * self.parts * self.part() + query % self.queries * self.row;
        let (part, row) = (self.part(), self.row);
        (0..self.parts).filter_map(move |number| parts.get(first + number * part..first + number * part + row))
    }
}

/// The runs in which these keys are.
fn runs(heads: &Heads<'_>, keys: &Range<usize>) -> Range<usize> {
    (heads.lead + keys.start) / RUN..(heads.lead + keys.end).div_ceil(RUN)
}
