//! Scaled dot-product attention that never stores all scores of a query.
//!
//! `docs/ARITHMETIC.md` defines the bits: keys are processed in blocks of 64 positions, blocks are joined to runs of 256 and runs
//! to the whole, in ascending order. Each of these gives a partial result: for each query the largest score, the sum of the
//! weights relative to it, and the weighted sum ("mix") of values (Milakov and Gimelshein, "Online normalizer calculation for
//! softmax", 2018). The result does not depend on how this is cut into tasks.
//!
//! ```text
//! few.rs    few queries: keys and values are read once, in place; limited by the bandwidth of memory
//! many.rs   many queries: blocks of keys and values are packed, for products of tiles
//! ```
//!
//! A masked key has the score minus infinity and so the weight zero, which adds nothing to a sum and changes at most the sign of
//! a zero in a mix; the last step of the definition drops that sign. But zero times a value that is not finite is NaN: where such
//! a value may be masked, a mix that is not finite is recomputed from the visible values alone. Joining a partial result without
//! visible keys changes nothing either.
#![allow(clippy::indexing_slicing, reason = "scratch memory and offsets are computed from the same sizes")]

mod cut;
mod few;
mod many;

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::attention::attend::BLOCK;
use crate::simd::attention::{attend, columns};
use crate::simd::{Isa, rows};
use crate::view::{BoundView, Tensor, TensorLines, ensure_shape};
use cut::Cut;
use ptero_arithmetic as arithmetic;
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;
use std::ops::Range;

/// Keys of a run.
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

pub(crate) fn attention(context: &mut Context<'_>, parameters: &Attention<'_>) -> Result<(), Fault> {
    let mut staging = std::mem::take(&mut context.resources.staging);
    let (target, sources, mut workers) = context.open()?;
    let (q, k, v) = (sources.tensor(parameters.q)?, sources.tensor(parameters.k)?, sources.tensor(parameters.v)?);
    let mask = sources.optional(parameters.mask)?;
    // Only the offset of the first key in its run matters.
    let lead = parameters.first.eval(&sources.bound.values).rem_euclid(RUN.cast_signed() as i64);
    let heads = Heads::new(parameters, usize::try_from(lead).unwrap_or(0), (q, k, v), mask, &target.view)?;
    if target.view.count() > 0 {
        let cut = Cut::new(&heads, workers.pool.threads());
        staging.resize(staging.len().max(cut.floats()), 0.0);
        let partials = staging.split_at_mut(cut.floats()).0;
        workers.chunks(&mut *partials, cut.task_floats(), |task, partial, scratch| {
            let task = cut.task(task);
            if cut.is_few { heads.few(&task, partial, scratch) } else { heads.many(&task, partial, scratch) }
        });
        let cost = cut.partials * heads.width;
        each_line(&mut workers, target, (3, cost), |number, out: &mut [f32], _| {
            heads.join(cut.partials_of(number, partials), out);
        });
    }
    context.resources.staging = staging;
    Ok(())
}

/// The softmax state of a query.
#[derive(Clone, Copy)]
struct Softmax {
    /// The largest score.
    largest: f32,
    /// The sum of the weights, relative to the largest score.
    sum: f32,
}

impl Softmax {
    /// The state without keys.
    const NONE: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Joins the state of other keys; returns the factors of both mixes.
    fn join(&mut self, other: Self) -> [f32; 2] {
        let largest = arithmetic::max(self.largest, other.largest);
        let center = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        // `exp` returns zero for minus infinity too, but slowly, by way of subnormal numbers.
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

/// Queries, keys, values and masks.
struct Heads<'a> {
    isa: Isa,
    parameters: &'a Attention<'a>,
    q: TensorLines<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    mask: Option<TensorLines<'a>>,
    /// The positions of the first run that come before the first key.
    lead: usize,
    tokens: usize,
    keys: usize,
    /// Groups of all batches.
    groups: usize,
    heads_per_group: usize,
    /// Elements of queries and keys.
    depth: usize,
    /// Elements of values.
    width: usize,
}

fn is_bool(mask: &TensorLines<'_>) -> bool {
    mask.tensor.dtype == DType::Bool
}

impl<'a> Heads<'a> {
    fn new(
        parameters: &'a Attention<'a>,
        lead: usize,
        (q, k, v): (Tensor<'a>, Tensor<'a>, Tensor<'a>),
        mask: Option<Tensor<'a>>,
        out: &BoundView,
    ) -> Result<Self, Fault> {
        let (tokens, keys) = (q.view.size(2), k.view.size(2));
        let heads_per_group = q.view.size(1).checked_div(k.view.size(1)).unwrap_or(0);
        if heads_per_group * k.view.size(1) != q.view.size(1) {
            return Err(Fault::Contract("the heads of queries are a multiple of those of keys"));
        }
        let span = [q.view.size(0), q.view.size(1), tokens, keys];
        if mask.as_ref().is_some_and(|mask| mask.view.shape.as_slice() != span) {
            return Err(Fault::Contract("a mask has an element for each query and key"));
        }
        let (isa, depth, width, groups) = (q.isa, q.view.size(3), v.view.size(3), k.view.outer_count(2));
        ensure_shape(&k.view, &[q.view.size(0), k.view.size(1), keys, depth])?;
        ensure_shape(&v.view, &[q.view.size(0), k.view.size(1), keys, width])?;
        ensure_shape(out, &[q.view.size(0), q.view.size(1), tokens, width])?;
        let (q, mask) = (q.lines(3), mask.map(|mask| mask.lines(3)));
        Ok(Self { isa, parameters, q, k, v, mask, lead, tokens, keys, groups, heads_per_group, depth, width })
    }

    /// The row of a query in the output. Queries of a group are ordered by token, then by head, so that neighbours see almost the
    /// same keys.
    fn row(&self, group: usize, query: usize) -> usize {
        let head = group * self.heads_per_group + query % self.heads_per_group;
        head * self.tokens + query / self.heads_per_group
    }

    /// The keys that causality and the window allow a query to see.
    fn reach(&self, query: usize) -> Range<usize> {
        // Queries are at the last positions of the keys: `own` is the key at the query's position.
        let token = query / self.heads_per_group;
        let own = self.keys.cast_signed() - self.tokens.cast_signed() + token.cast_signed();
        let end =
            if self.parameters.causal { (own + 1).clamp(0, self.keys.cast_signed()) } else { self.keys.cast_signed() };
        let first = self.parameters.window.map_or(0, |window| {
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

    /// The position of a key in its block.
    fn slot(&self, key: usize) -> usize {
        (self.lead + key) % BLOCK
    }

    /// The keys that any of these queries may see.
    fn span(&self, queries: &Range<usize>) -> Range<usize> {
        // The range of a later token starts and ends no earlier than that of an earlier one.
        self.reach(queries.start).start..self.reach(queries.end.saturating_sub(1)).end
    }

    /// The part of `keys` that any of these queries may see.
    fn seen(&self, queries: &Range<usize>, keys: &Range<usize>) -> Range<usize> {
        let span = self.span(queries);
        span.start.max(keys.start)..span.end.min(keys.end)
    }

    /// Returns `true` if a query sees a key.
    fn sees(&self, group: usize, query: usize, key: usize) -> bool {
        let is_allowed = |mask: &TensorLines<'_>| {
            let mut allowed = [1.0];
            if is_bool(mask) {
                mask.read(self.row(group, query), key, &mut allowed);
            }
            allowed != [0.0]
        };
        self.reach(query).contains(&key) && self.mask.as_ref().is_none_or(is_allowed)
    }

    /// Returns `true` if some of these keys may be hidden from some of these queries.
    fn hides(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let (first, last) = (self.reach(queries.start), self.reach(queries.end.saturating_sub(1)));
        let is_whole = last.start <= keys.start && keys.end <= first.end;
        !is_whole || self.mask.as_ref().is_some_and(is_bool)
    }

    /// Applies a mask to scores.
    fn apply(&self, mask: &TensorLines<'_>, scores: &mut [f32], numbers: &[f32]) {
        if is_bool(mask) {
            columns::forbid(self.isa, scores, numbers);
        } else {
            rows::accumulate(self.isa, rows::Accumulate::Sum, numbers, scores);
        }
    }

    /// Computes the mixes of a block from the visible values only, one by one. `weight` returns the weight of a query and a key,
    /// `cell` the index in `mix` of a query and an element.
    fn mix_seen(
        &self,
        task: &Task,
        weight: impl Fn(usize, usize) -> f32,
        mix: &mut [f32],
        cell: impl Fn(usize, usize) -> usize,
    ) {
        let values = self.v.clone().lines(3);
        mix.fill(0.0);
        for key in task.keys.clone() {
            for query in task.queries.clone().filter(|&query| self.sees(task.group, query, key)) {
                let weight = weight(query, key);
                for element in 0..self.width {
                    let mut value = 0.0;
                    values.read(task.group * self.keys + key, element, std::slice::from_mut(&mut value));
                    let cell = &mut mix[cell(query, element)];
                    *cell = f32::mul_add(weight, value, *cell);
                }
            }
        }
    }

    /// Joins the partial results of a query, in ascending order: each a mix, the largest score, and the sum.
    fn join<'p>(&self, partials: impl Iterator<Item = &'p [f32]>, out: &mut [f32]) {
        let mut softmax = Softmax::NONE;
        out.fill(0.0);
        for partial in partials {
            if let Some((mix, &[largest, sum])) = partial.split_at_checked(self.width) {
                let [a, b] = softmax.join(Softmax { largest, sum });
                attend::join(self.isa, out, mix, a, b);
            }
        }
        attend::finish(self.isa, out, 1.0 / softmax.sum);
    }
}

/// Rows of keys or values as contiguous floats: in place if possible, else copied.
fn float_rows<'b>(tensor: &Tensor<'b>, rows: &BoundView, range: &Range<usize>, copy: &'b mut [f32]) -> &'b [f32] {
    let (length, stride) = (rows.size(1), rows.stride(1));
    let start = |row: usize| rows.offset.wrapping_add_signed(row.cast_signed() * rows.stride(0));
    let is_dense = (stride == 1 || length == 1) && (rows.stride(0) == length.cast_signed() || range.len() == 1);
    if is_dense && let Some(floats) = tensor.floats(start(range.start), range.len() * length) {
        return floats;
    }
    for (row, copy) in range.clone().zip(copy.chunks_exact_mut(length.max(1))) {
        tensor.read(start(row), stride, copy);
    }
    &copy[..range.len() * length]
}
