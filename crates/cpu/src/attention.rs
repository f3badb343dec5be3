//! Scaled dot-product attention, without ever holding all scores of a query.
//!
//! A task has some queries that use one group of keys, neighbouring tokens and heads, and a range of those keys, which it goes
//! through in blocks. For each query it keeps the largest score so far, the sum of the powers relative to it, and the mix of
//! values so far; when a block brings a larger score, the latter two are scaled down (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", 2018). What the ranges of keys give is put together in their order.
//!
//! ```text
//! few.rs    a few queries: keys and values are read once, where they lie; as fast as memory, or so
//! many.rs   many queries: blocks of keys and values are packed, for products of tiles
//! ```
//!
//! A key that a query does not see has the score minus infinity and so the weight zero. Zero times a value that is not finite is
//! not zero; where such a value may be hidden, a mix that is not finite is taken back and made from the seen values alone.

mod cut;
mod few;
mod many;

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::dot::axpy_f32;
use crate::simd::{Isa, columns, rows};
use crate::window::{Line, Tensor, Window};
use cut::Cut;
use ptero_arithmetic as arithmetic;
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;
use std::ops::Range;

/// The parameters of an attention.
pub(crate) struct Attention<'a> {
    pub(crate) q: &'a ViewId,
    pub(crate) k: &'a ViewId,
    pub(crate) v: &'a ViewId,
    pub(crate) mask: Option<&'a ViewId>,
    pub(crate) causal: bool,
    pub(crate) window: Option<i64>,
    pub(crate) scale: f32,
}

pub(crate) fn attention(context: &mut Context<'_>, out: &ViewId, parameters: &Attention<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    let mut staging = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(out)?;
    let (q, k, v) = (sources.tensor(parameters.q)?, sources.tensor(parameters.k)?, sources.tensor(parameters.v)?);
    let mask = sources.optional(parameters.mask)?;
    let heads = Heads::new(isa, parameters, (q, k, v), mask)?;
    if target.window.count() > 0 {
        let cut = Cut::new(&heads);
        staging.resize(staging.len().max(cut.floats()), 0.0);
        let parts = staging.get_mut(..cut.floats()).unwrap_or_default();
        workers.chunks(&mut *parts, cut.part(), |task, part, scratch| {
            let task = cut.task(&heads, task);
            if cut.is_few { heads.few(&task, part, scratch) } else { heads.many(&task, part, scratch) }
        });
        let cost = cut.ranges * heads.width;
        each_line(&mut workers, isa, target, (3, cost), |number, out: &mut [f32], _| {
            heads.join(cut.rows(&heads, number, parts), out);
        });
    }
    *context.staging = staging;
    Ok(())
}

/// Some queries of a group and some of its keys.
struct Task {
    group: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

/// Queries, keys and values, and who sees whom.
struct Heads<'a> {
    isa: Isa,
    q: Rows<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    mask: Option<Rows<'a>>,
    causal: bool,
    window: Option<i64>,
    scale: f32,
    tokens: usize,
    keys: usize,
    /// Of all batches.
    groups: usize,
    heads_per_group: usize,
    /// Elements of queries and keys.
    depth: usize,
    /// Elements of values.
    width: usize,
}

/// A tensor of four axes as rows.
struct Rows<'a> {
    tensor: Tensor<'a>,
    starts: Window,
    row: Line,
}

impl<'a> Rows<'a> {
    fn new(tensor: Tensor<'a>) -> Self {
        let (starts, row) = tensor.window.lines(3);
        Self { tensor, starts, row }
    }

    /// Of a row, the elements from `first` on.
    fn read(&self, isa: Isa, number: usize, first: usize, to: &mut [f32]) {
        let start = self.starts.offset_of(number).wrapping_add_signed(first.cast_signed() * self.row.stride);
        self.tensor.read(isa, start, self.row.stride, to);
    }

    /// Whether it says whether, rather than how much.
    fn is_bool(&self) -> bool {
        self.tensor.dtype == DType::Bool
    }
}

impl<'a> Heads<'a> {
    fn new(
        isa: Isa,
        parameters: &Attention<'_>,
        (q, k, v): (Tensor<'a>, Tensor<'a>, Tensor<'a>),
        mask: Option<Tensor<'a>>,
    ) -> Result<Self, Fault> {
        let (tokens, keys) = (q.window.size(2), k.window.size(2));
        let heads_per_group = q.window.size(1).checked_div(k.window.size(1)).unwrap_or(0);
        if heads_per_group * k.window.size(1) != q.window.size(1) {
            return Err(Fault::Contract("the heads of queries are a multiple of those of keys"));
        }
        let span = [q.window.size(0), q.window.size(1), tokens, keys];
        if mask.as_ref().is_some_and(|mask| mask.window.shape.as_slice() != span) {
            return Err(Fault::Contract("a mask has an element for each query and key"));
        }
        let &Attention { causal, window, scale, .. } = parameters;
        let (depth, width, groups) = (q.window.size(3), v.window.size(3), k.window.outer_count(2));
        let (q, mask) = (Rows::new(q), mask.map(Rows::new));
        Ok(Self { isa, q, k, v, mask, causal, window, scale, tokens, keys, groups, heads_per_group, depth, width })
    }

    /// The number of a query's row in the order of the output. Inside a group, queries are counted by token and then by head,
    /// so that neighbours see almost the same keys.
    fn row(&self, group: usize, query: usize) -> usize {
        let head = group * self.heads_per_group + query % self.heads_per_group;
        head * self.tokens + query / self.heads_per_group
    }

    /// The keys that a query may see, masks aside.
    fn reach(&self, query: usize) -> Range<usize> {
        // Queries are the last of the keys: this is the key at the query's own place.
        let token = query / self.heads_per_group;
        let own = self.keys.cast_signed() - self.tokens.cast_signed() + token.cast_signed();
        let end = if self.causal { (own + 1).clamp(0, self.keys.cast_signed()) } else { self.keys.cast_signed() };
        let first = self.window.map_or(0, |window| {
            let first = (own as i64).saturating_sub(window).saturating_add(1);
            isize::try_from(first.max(0)).unwrap_or(isize::MAX)
        });
        first.min(end).cast_unsigned()..end.cast_unsigned()
    }

    /// The keys that some of these queries may see.
    fn span(&self, queries: &Range<usize>) -> Range<usize> {
        // What a later token sees neither starts nor ends before what an earlier one does.
        self.reach(queries.start).start..self.reach(queries.end.saturating_sub(1)).end
    }

    /// Whether a query sees a key.
    fn sees(&self, group: usize, query: usize, key: usize) -> bool {
        let is_allowed = |mask: &Rows<'_>| {
            let mut allowed = [1.0];
            if mask.is_bool() {
                mask.read(self.isa, self.row(group, query), key, &mut allowed);
            }
            allowed != [0.0]
        };
        self.reach(query).contains(&key) && self.mask.as_ref().is_none_or(is_allowed)
    }

    /// Whether there may be a query that does not see all of these keys.
    fn hides(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let (first, last) = (self.reach(queries.start), self.reach(queries.end.saturating_sub(1)));
        let is_whole = last.start <= keys.start && keys.end <= first.end;
        !is_whole || self.mask.as_ref().is_some_and(Rows::is_bool)
    }

    /// Applies a mask to scores.
    fn apply(&self, mask: &Rows<'_>, scores: &mut [f32], numbers: &[f32]) {
        if mask.is_bool() {
            columns::forbid(self.isa, scores, numbers);
        } else {
            rows::accumulate(self.isa, rows::Accumulate::Sum, numbers, scores);
        }
    }

    /// Rows of keys or values as floats, side by side: where they lie, or copied.
    fn block<'b>(
        &'b self,
        tensor: &'b Tensor<'a>,
        rows: &Window,
        range: Range<usize>,
        copy: &'b mut [f32],
    ) -> &'b [f32] {
        let (length, stride) = (rows.size(1), rows.stride(1));
        let start = |row: usize| rows.offset.wrapping_add_signed(row.cast_signed() * rows.stride(0));
        let is_dense = (stride == 1 || length == 1) && (rows.stride(0) == length.cast_signed() || range.len() == 1);
        if is_dense && let Some(floats) = tensor.floats(start(range.start), range.len() * length) {
            return floats;
        }
        for (row, copy) in range.clone().zip(copy.chunks_exact_mut(length.max(1))) {
            tensor.read(self.isa, start(row), stride, copy);
        }
        copy.get(..range.len() * length).unwrap_or_default()
    }

    /// Adds the values of keys to the mixes of queries one by one, those that the query sees; the weights and mixes lie where
    /// `weight` and `cell` say, for a query and a key, and for a query and an element.
    fn mix_seen(
        &self,
        group: usize,
        queries: &Range<usize>,
        keys: &Range<usize>,
        weight: impl Fn(usize, usize) -> f32,
        mix: &mut [f32],
        cell: impl Fn(usize, usize) -> usize,
    ) {
        let (starts, row) = self.v.window.lines(3);
        for key in keys.clone() {
            let start = starts.offset_of(group * self.keys + key);
            for query in queries.clone().filter(|&query| self.sees(group, query, key)) {
                for element in 0..self.width {
                    let mut value = [0.0];
                    let at = start.wrapping_add_signed(element.cast_signed() * row.stride);
                    self.v.read(self.isa, at, 0, &mut value);
                    let cell = mix.get_mut(cell(query, element));
                    cell.into_iter().zip(value).for_each(|(cell, value)| *cell += weight(query, key) * value);
                }
            }
        }
    }

    /// Puts together what the ranges of keys gave for a query: each the mix, the largest score, and the sum.
    fn join<'p>(&self, parts: impl Iterator<Item = &'p [f32]> + Clone, out: &mut [f32]) {
        let parts = parts.filter_map(|part| match part.split_at_checked(self.width) {
            Some((mix, &[largest, sum])) => Some((mix, largest, sum)),
            _ => None,
        });
        let largest = parts.clone().fold(f32::NEG_INFINITY, |most, (_, largest, _)| arithmetic::max(most, largest));
        let mut total = 0.0;
        out.fill(0.0);
        for (mix, part_largest, sum) in parts {
            // Where there is nothing but minus infinity, the sums are zero.
            let factor = if part_largest == largest { 1.0 } else { arithmetic::exp(part_largest - largest) };
            total += factor * sum;
            axpy_f32(self.isa, factor, mix, out);
        }
        rows::scale(self.isa, out, 1.0 / total);
    }
}
