//! Cuts an attention into tasks. The cut may depend on the number of threads: the result does not depend on it.

use super::{Heads, RUN, Task, few, many};
use std::ops::Range;

/// This many tasks per thread keep all threads busy to the end, though tasks differ in length.
const PER_THREAD: usize = 4;

/// A task computes a partial result: for some queries of a group, over one run of the keys that they may see, or over all.
pub(super) struct Cut<'a> {
    heads: &'a Heads<'a>,
    /// A group has too few queries for tiles to pay off.
    pub(super) is_few: bool,
    /// Partial results of a query: one per run, or one.
    pub(super) partials: usize,
    /// A task has one run.
    is_by_run: bool,
    /// Queries of a task.
    queries: usize,
    /// Tasks of queries in a group.
    blocks: usize,
    groups: usize,
    /// Floats of a query's partial result: its mix, largest score and sum.
    row: usize,
}

impl<'a> Cut<'a> {
    pub(super) fn new(heads: &'a Heads<'a>, threads: usize) -> Self {
        let (groups, count) = (heads.groups, heads.heads_per_group * heads.tokens);
        let is_few = count <= few::QUERIES;
        let queries = match is_few {
            true => count,
            false if groups * count >= many::ENOUGH.max(PER_THREAD * threads) * many::QUERIES => many::QUERIES,
            false => many::QUERIES / 2,
        };
        let blocks = count.div_ceil(queries.max(1));
        let is_by_run = is_few || groups * blocks < PER_THREAD * threads;
        let mut cut = Self { heads, is_few, partials: 1, is_by_run, queries, blocks, groups, row: heads.width + 2 };
        if is_by_run {
            let runs = |block| runs(heads, &heads.span(&cut.queries(block))).len();
            cut.partials = (0..blocks).map(runs).max().unwrap_or(0).max(1);
        }
        cut
    }

    /// The queries of a block of a group.
    fn queries(&self, block: usize) -> Range<usize> {
        let count = self.heads.heads_per_group * self.heads.tokens;
        block * self.queries..count.min((block + 1) * self.queries)
    }

    /// Floats of a task's partial result.
    pub(super) fn task_floats(&self) -> usize {
        self.queries * self.row
    }

    /// Floats of all partial results.
    pub(super) fn floats(&self) -> usize {
        self.task_floats() * self.partials * self.blocks * self.groups
    }

    pub(super) fn task(&self, task: usize) -> Task {
        let heads = self.heads;
        let (rest, partial) = (task / self.partials, task % self.partials);
        // The last tokens see the most keys: their tasks run first.
        let (group, block) = (rest / self.blocks, self.blocks - 1 - rest % self.blocks);
        let queries = self.queries(block);
        let span = heads.span(&queries);
        if !self.is_by_run {
            return Task { group, queries, keys: span };
        }
        let start = |run: usize| (run * RUN).saturating_sub(heads.lead).clamp(span.start, span.end);
        let run = runs(heads, &span).start + partial;
        Task { group, queries, keys: start(run)..start(run + 1) }
    }

    /// The partial results of a row of the output.
    pub(super) fn partials_of<'p>(&self, number: usize, partials: &'p [f32]) -> impl Iterator<Item = &'p [f32]> {
        let heads = self.heads;
        let (head, token) = (number / heads.tokens, number % heads.tokens);
        let (group, head) = (head / heads.heads_per_group, head % heads.heads_per_group);
        let query = token * heads.heads_per_group + head;
        let block = self.blocks - 1 - query / self.queries;
        let task = (group * self.blocks + block) * self.partials;
        let of_query = query % self.queries * self.row..(query % self.queries + 1) * self.row;
        let tasks = partials.chunks_exact(self.task_floats()).skip(task).take(self.partials);
        tasks.map(move |partial| &partial[of_query.clone()])
    }
}

/// The runs that contain these keys.
fn runs(heads: &Heads<'_>, keys: &Range<usize>) -> Range<usize> {
    (heads.lead + keys.start) / RUN..(heads.lead + keys.end).div_ceil(RUN)
}
