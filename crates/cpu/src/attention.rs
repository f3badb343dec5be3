//! Scaled dot-product attention, without ever holding all scores of a query.
//!
//! `docs/ARITHMETIC.md` defines the bits: keys are taken in blocks of 64 positions, blocks are joined to runs of 256 and runs to
//! the whole, in ascending order. Each gives a part: for each query the largest score, the sum of the weights relative to it, and
//! the mix of values (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). How that is cut into
//! tasks makes no difference.
//!
//! ```text
//! few.rs    a few queries: keys and values are read once, where they lie; about as fast as memory
//! many.rs   many queries: blocks of keys and values are packed, for products of tiles
//! ```
//!
//! A key that a query does not see has the score minus infinity and so the weight zero, which adds nothing to a sum and changes
//! a mix in the sign of zero at most; the end of the definition drops that. But zero times a value that is not finite is NaN;
//! where such a value may be hidden, a mix that is not finite is taken back and made from the seen values alone. In the same
//! way, to join a part in which nothing is seen changes nothing.

mod cut;
mod few;
mod many;

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::attention::attend::BLOCK;
use crate::simd::attention::{attend, columns};
use crate::simd::{Isa, rows};
use crate::window::{Line, Tensor, Window};
use cut::Cut;
use ptero_arithmetic as arithmetic;
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;
use std::ops::Range;

/// Positions of a run.
const RUN: usize = 4 * BLOCK;

/// The parameters of an attention.
pub(crate) struct Attention<'a> {
    pub(crate) q: &'a ViewId,
    pub(crate) k: &'a ViewId,
    pub(crate) v: &'a ViewId,
    pub(crate) mask: Option<&'a ViewId>,
    pub(crate) first: &'a Dim,
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
    // Which run the first key is in makes no difference, only where it is in it.
    let lead = parameters.first.eval(&sources.bound.values).rem_euclid(RUN.cast_signed() as i64);
    let heads = Heads::new(isa, parameters, usize::try_from(lead).unwrap_or(0), (q, k, v), mask)?;
    if target.window.count() > 0 {
        let cut = Cut::new(&heads, workers.pool.threads());
        staging.resize(staging.len().max(cut.floats()), 0.0);
        let parts = staging.get_mut(..cut.floats()).unwrap_or_default();
        workers.chunks(&mut *parts, cut.part(), |task, part, scratch| {
            let task = cut.task(&heads, task);
            if cut.is_few { heads.few(&task, part, scratch) } else { heads.many(&task, part, scratch) }
        });
        let cost = cut.parts * heads.width;
        each_line(&mut workers, isa, target, (3, cost), |number, out: &mut [f32], _| {
            heads.join(cut.rows(&heads, number, parts), out);
        });
    }
    *context.staging = staging;
    Ok(())
}

/// What is known of the scores of a query.
#[derive(Clone, Copy)]
struct Known {
    largest: f32,
    /// Of the weights, which are relative to the largest score.
    sum: f32,
}

impl Known {
    /// Of no keys.
    const NONE: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Joins what other keys gave; returns the factors of both mixes.
    fn join(&mut self, other: Self) -> [f32; 2] {
        let largest = arithmetic::max(self.largest, other.largest);
        let center = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        // It is zero for minus infinity, but takes long: it is made of subnormal numbers.
        let relative = |part: f32| if part == f32::NEG_INFINITY { 0.0 } else { arithmetic::exp(part - center) };
        let (a, b) = (relative(self.largest), relative(other.largest));
        *self = Self { largest, sum: self.sum * a + other.sum * b };
        [a, b]
    }
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
    /// The positions of the first run that come before the first key.
    lead: usize,
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

    /// Returns `true` for a boolean mask.
    fn is_bool(&self) -> bool {
        self.tensor.dtype == DType::Bool
    }
}

impl<'a> Heads<'a> {
    fn new(
        isa: Isa,
        parameters: &Attention<'_>,
        lead: usize,
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
        Ok(Self {
            isa,
            q,
            k,
            v,
            mask,
            causal,
            window,
            scale,
            lead,
            tokens,
            keys,
            groups,
            heads_per_group,
            depth,
            width,
        })
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

    /// Cuts keys at the positions that are multiples of `length`.
    fn pieces(&self, keys: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (lead, end) = (self.lead, keys.end);
        let piece = move |start: usize| start..end.min((lead + start) / length * length + length - lead);
        let first = Some(piece(keys.start)).filter(|piece| !piece.is_empty());
        std::iter::successors(first, move |last| Some(piece(last.end)).filter(|piece| !piece.is_empty()))
    }

    /// Where a key is in its block.
    fn slot(&self, key: usize) -> usize {
        (self.lead + key) % BLOCK
    }

    /// The keys that some of these queries may see.
    fn span(&self, queries: &Range<usize>) -> Range<usize> {
        // What a later token sees neither starts nor ends before what an earlier one does.
        self.reach(queries.start).start..self.reach(queries.end.saturating_sub(1)).end
    }

    /// Those of some keys that some of these queries may see.
    fn seen(&self, queries: &Range<usize>, keys: &Range<usize>) -> Range<usize> {
        let span = self.span(queries);
        span.start.max(keys.start)..span.end.min(keys.end)
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

    /// Makes the mixes of a block from the values that the queries see, one by one; the weights and mixes lie where `weight` and
    /// `cell` say, for a query and a key, and for a query and an element.
    fn mix_seen(
        &self,
        task: &Task,
        weight: impl Fn(usize, usize) -> f32,
        mix: &mut [f32],
        cell: impl Fn(usize, usize) -> usize,
    ) {
        let (starts, row) = self.v.window.lines(3);
        mix.fill(0.0);
        for key in task.keys.clone() {
            let start = starts.offset_of(task.group * self.keys + key);
            for query in task.queries.clone().filter(|&query| self.sees(task.group, query, key)) {
                let weight = weight(query, key);
                for element in 0..self.width {
                    let mut value = [0.0];
                    let at = start.wrapping_add_signed(element.cast_signed() * row.stride);
                    self.v.read(self.isa, at, 0, &mut value);
                    let cell = mix.get_mut(cell(query, element));
                    cell.into_iter().zip(value).for_each(|(cell, value)| *cell = weight.mul_add(value, *cell));
                }
            }
        }
    }

    /// Joins the parts of a query, in ascending order: each the mix, the largest score, and the sum.
    fn join<'p>(&self, parts: impl Iterator<Item = &'p [f32]>, out: &mut [f32]) {
        let mut known = Known::NONE;
        out.fill(0.0);
        for part in parts {
            if let Some((mix, &[largest, sum])) = part.split_at_checked(self.width) {
                let [a, b] = known.join(Known { largest, sum });
                attend::join(self.isa, out, mix, a, b);
            }
        }
        attend::finish(self.isa, out, 1.0 / known.sum);
    }
}
