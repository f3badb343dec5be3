//! How an attention is cut into tasks: by the sizes alone, so that the result does not depend on the number of threads.

use super::{Heads, Task, few, many};

/// So many tasks are enough for any machine.
const TASKS: usize = 128;

/// A task has some queries of a group and a range of the keys that they may see.
pub(super) struct Cut {
    /// Whether the queries of a group are so few that tiles are not worth it.
    pub(super) is_few: bool,
    /// Ranges of keys.
    pub(super) ranges: usize,
    /// Keys of a range.
    keys: usize,
    /// Queries of a task.
    queries: usize,
    /// Tasks of queries in a group.
    blocks: usize,
    groups: usize,
    /// Floats of a query: its mix, largest score and sum.
    row: usize,
}

impl Cut {
    pub(super) fn new(heads: &Heads<'_>) -> Self {
        let (groups, count) = (heads.groups, heads.heads_per_group * heads.tokens);
        let is_few = count <= few::QUERIES;
        let (queries, least) = match is_few {
            true => (count, few::RANGE),
            false if groups * count >= many::ENOUGH * many::QUERIES => (many::QUERIES, many::RANGE),
            false => (many::QUERIES / 2, many::RANGE),
        };
        let blocks = count.div_ceil(queries.max(1));
        let length = |block: usize| heads.span(&(block * queries..count.min((block + 1) * queries))).len();
        let longest = (0..blocks).map(length).max().unwrap_or(0);
        let wanted = TASKS.div_ceil((groups * blocks).max(1));
        let keys = longest.div_ceil(wanted).next_multiple_of(least).max(least);
        let ranges = longest.div_ceil(keys).max(1);
        Self { is_few, ranges, keys, queries, blocks, groups, row: heads.width + 2 }
    }

    /// Floats of a task's part.
    pub(super) fn part(&self) -> usize {
        self.queries * self.row
    }

    /// Floats of all parts.
    pub(super) fn floats(&self) -> usize {
        self.part() * self.ranges * self.blocks * self.groups
    }

    pub(super) fn task(&self, heads: &Heads<'_>, task: usize) -> Task {
        let (rest, range) = (task / self.ranges, task % self.ranges);
        // The last tokens see most: their tasks come first.
        let (group, block) = (rest / self.blocks, self.blocks - 1 - rest % self.blocks);
        let count = heads.heads_per_group * heads.tokens;
        let queries = block * self.queries..count.min((block + 1) * self.queries);
        let span = heads.span(&queries);
        let start = |range: usize| span.end.min(span.start + range * self.keys);
        Task { group, queries, keys: start(range)..start(range + 1) }
    }

    /// What the tasks gave for a row of the output.
    pub(super) fn rows<'p>(
        &self,
        heads: &Heads<'_>,
        number: usize,
        parts: &'p [f32],
    ) -> impl Iterator<Item = &'p [f32]> + Clone + use<'p> {
        let (head, token) = (number / heads.tokens, number % heads.tokens);
        let (group, query) =
            (head / heads.heads_per_group, token * heads.heads_per_group + head % heads.heads_per_group);
        let block = self.blocks - 1 - query / self.queries;
        let first = (group * self.blocks + block) * self.ranges * self.part() + query % self.queries * self.row;
        let (part, row) = (self.part(), self.row);
        (0..self.ranges).filter_map(move |range| parts.get(first + range * part..first + range * part + row))
    }
}
