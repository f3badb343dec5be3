//! Scaled dot-product attention, without ever holding all scores of a query.
//!
//! A task has some queries that use one group of keys: neighbouring heads and tokens. It goes through the keys in blocks. For each
//! query it keeps the largest score so far, the sum of the powers relative to it, and the mix of values so far; when a block
//! brings a larger score, the latter two are scaled down (Milakov and Gimelshein, "Online normalizer calculation for softmax",
//! 2018).

use crate::lines::each_line;
use crate::pool::Scratch;
use crate::run::Context;
use crate::simd::{Isa, attend, float, rows};
use crate::window::{Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::View;
use ptero_tensor::DType;
use std::ops::Range;

/// Queries of a task.
const ROWS: usize = 16;
/// Keys of a block.
const KEYS: usize = 128;

/// The parameters of an attention.
pub(crate) struct Attention<'a> {
    pub(crate) q: &'a View,
    pub(crate) k: &'a View,
    pub(crate) v: &'a View,
    pub(crate) mask: Option<&'a View>,
    pub(crate) causal: bool,
    pub(crate) window: Option<i64>,
    pub(crate) scale: f32,
}

pub(crate) fn attention(context: &mut Context<'_>, out: &View, parameters: &Attention<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    let mut results = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(out)?;
    let (q, k, v) = (sources.tensor(parameters.q)?, sources.tensor(parameters.k)?, sources.tensor(parameters.v)?);
    let mask = sources.optional(parameters.mask)?;
    let heads = Heads::new(isa, parameters, (q, k, v), mask)?;
    // Groups follow each other in the output's own order, and so do their queries.
    let width = heads.v.window.size(3);
    results.resize(target.window.count(), 0.0);
    let rows_per_task = heads.queries_per_group.clamp(1, ROWS);
    workers.chunks(&mut results, rows_per_task * width, |task, out, scratch| {
        heads.run(task * rows_per_task, out, scratch);
    });
    each_line(&mut workers, isa, target, (3, width), |number, out: &mut [f32], _| {
        out.copy_from_slice(results.get(number * width..(number + 1) * width).unwrap_or_default());
    });
    *context.staging = results;
    Ok(())
}

/// Queries, keys and values, and who sees whom.
struct Heads<'a> {
    isa: Isa,
    q: Tensor<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    mask: Option<Tensor<'a>>,
    causal: bool,
    window: Option<i64>,
    scale: f32,
    tokens: usize,
    keys: usize,
    queries_per_group: usize,
}

/// What is known of a query so far.
#[derive(Clone, Copy)]
struct Query {
    /// The keys that it may see.
    first: usize,
    end: usize,
    largest: f32,
    sum: f32,
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
        let queries_per_group = heads_per_group * tokens;
        Ok(Self { isa, q, k, v, mask, causal, window, scale, tokens, keys, queries_per_group })
    }

    /// The queries from number `first` on, in the order of the output, as many as `out` has rows.
    fn run(&self, first: usize, out: &mut [f32], scratch: &mut Scratch) {
        let width = self.v.window.size(3).max(1);
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            // A task may reach into the next group.
            let left_in_group = self.queries_per_group - at % self.queries_per_group;
            let (out, after) = rest.split_at_mut((left_in_group * width).min(rest.len()));
            self.group(at, out, scratch);
            at += out.len() / width;
            rest = after;
        }
    }

    /// Queries of one group.
    fn group(&self, first: usize, out: &mut [f32], scratch: &mut Scratch) {
        let (depth, width) = (self.q.window.size(3), self.v.window.size(3));
        let count = out.len() / width;
        let mut queries = [Query { first: 0, end: 0, largest: f32::NEG_INFINITY, sum: 0.0 }; ROWS];
        let sizes = [count * depth, KEYS * depth, KEYS * width, KEYS, KEYS];
        let [q, keys, values, scores, bias] = scratch.floats(sizes);
        for ((number, query), q) in (first..first + count).zip(&mut queries).zip(q.chunks_exact_mut(depth.max(1))) {
            (query.first, query.end) = self.reach(number % self.tokens);
            let (outer, line) = self.q.window.lines(3);
            self.q.read(self.isa, outer.offset_of(number), line.stride, q);
        }
        out.fill(0.0);
        let queries = queries.get_mut(..count).unwrap_or_default();
        let from = queries.iter().map(|query| query.first).min().unwrap_or(0);
        let end = queries.iter().map(|query| query.end).max().unwrap_or(0);
        let group = first / self.queries_per_group;
        let (k, v) = (self.k.window.inner(2, group), self.v.window.inner(2, group));
        for block in (from..end).step_by(KEYS) {
            let block = block..end.min(block + KEYS);
            let keys = self.block(&self.k, &k, block.clone(), keys);
            let values = self.block(&self.v, &v, block.clone(), values);
            for (row, (query, mix)) in queries.iter_mut().zip(out.chunks_exact_mut(width)).enumerate() {
                let q = q.get(row * depth..(row + 1) * depth).unwrap_or_default();
                let seen = query.first.max(block.start)..query.end.min(block.end);
                if seen.is_empty() {
                    continue;
                }
                let inside = seen.start - block.start..seen.end - block.start;
                let scores = scores.get_mut(..seen.len()).unwrap_or_default();
                let keys = keys.get(inside.start * depth..inside.end * depth).unwrap_or_default();
                let values = values.get(inside.start * width..inside.end * width).unwrap_or_default();
                attend::scores(self.isa, q, keys, scores);
                rows::scale(self.isa, scores, self.scale);
                self.add_mask(first + row, seen, scores, bias);
                query.take(self.isa, scores, values, mix);
            }
        }
        for (query, mix) in queries.iter().zip(out.chunks_exact_mut(width)) {
            rows::scale(self.isa, mix, 1.0 / query.sum);
        }
    }

    /// The keys that the query of a token may see, masks aside.
    fn reach(&self, token: usize) -> (usize, usize) {
        // Queries are the last of the keys: this is the key at the query's own place.
        let own = self.keys.cast_signed() - self.tokens.cast_signed() + token.cast_signed();
        let end = if self.causal { (own + 1).clamp(0, self.keys.cast_signed()) } else { self.keys.cast_signed() };
        let first = self.window.map_or(0, |window| {
            let first = (own as i64).saturating_sub(window).saturating_add(1);
            isize::try_from(first.max(0)).unwrap_or(isize::MAX)
        });
        (first.min(end).cast_unsigned(), end.cast_unsigned())
    }

    /// Some rows of keys or values, side by side: where they lie, or copied.
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

    fn add_mask(&self, number: usize, seen: Range<usize>, scores: &mut [f32], bias: &mut [f32]) {
        let Some(mask) = &self.mask else { return };
        let (outer, line) = mask.window.lines(3);
        let start = outer.offset_of(number).wrapping_add_signed(seen.start.cast_signed() * line.stride);
        let bias = bias.get_mut(..seen.len()).unwrap_or_default();
        mask.read(self.isa, start, line.stride, bias);
        let is_allowed = mask.dtype == DType::Bool;
        for (score, bias) in scores.iter_mut().zip(bias.iter()) {
            *score = match (is_allowed, *bias != 0.0) {
                (true, true) => *score,
                (true, false) => HIDDEN,
                (false, _) => *score + bias,
            };
        }
    }
}

/// The score of a key that a mask hides. It is told from minus infinity, which a score can be, by its bits.
const HIDDEN: f32 = f32::NEG_INFINITY;

impl Query {
    /// Adds the values of a block by their scores.
    fn take(&mut self, isa: Isa, scores: &mut [f32], values: &[f32], mix: &mut [f32]) {
        let largest = float::max(self.largest, rows::largest(isa, scores));
        // Nothing to see so far.
        if largest == f32::NEG_INFINITY {
            return;
        }
        let shrink = float::exp(self.largest - largest);
        if shrink != 1.0 {
            rows::scale(isa, mix, shrink);
            self.sum *= shrink;
        }
        self.sum += rows::powers(isa, scores, largest);
        self.largest = largest;
        attend::mix(isa, scores, values, mix);
    }
}
