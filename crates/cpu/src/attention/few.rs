//! Few queries of a group, as in decoding: reading keys and values once is what takes time.

use super::{Heads, Softmax, Task, float_rows};
use crate::element::{Element, elements, with_float};
use crate::pool::Scratch;
use crate::simd::attention::attend::{self, Ahead, BLOCK};
use crate::simd::attention::columns;
use crate::simd::rows;
use crate::simd::strip::Strip;
use crate::view::{BoundView, Tensor};
use std::ops::Range;

/// Up to this many queries are computed this way.
pub(super) const QUERIES: usize = 16;

/// Memory of a task, and the state of its queries.
struct Few<'s> {
    /// The queries, packed for `attend`.
    queries: &'s mut [f32],
    /// Keys, transposed.
    turned: &'s mut [f32],
    /// Keys or values that cannot be read in place.
    copy: &'s mut [f32],
    /// Scores of a block, then weights: `[query][slot]`.
    scores: &'s mut [f32],
    mask: &'s mut [f32],
    /// The mix of a block: `[query][element]`.
    block_mix: &'s mut [f32],
    /// The mix of the run so far.
    mix: &'s mut [f32],
    block_softmax: [Softmax; QUERIES],
    /// The state of the run so far.
    softmax: [Softmax; QUERIES],
}

impl Heads<'_> {
    /// Computes the partial result of some queries over one run; see [`Heads::join`].
    pub(super) fn few(&self, task: &Task, partial: &mut [f32], scratch: &mut Scratch) {
        let (count, width) = (task.queries.len(), self.width);
        let [queries, turned, copy, scores, mask, block_mix, mix] = scratch.floats([
            count * attend::packed_len(self.depth),
            attend::turned_len(self.depth),
            BLOCK * self.depth.max(width),
            count * BLOCK,
            BLOCK,
            count * width,
            count * width,
        ]);
        mix.fill(0.0);
        let softmax = [Softmax::NONE; QUERIES];
        let mut few = Few { queries, turned, copy, scores, mask, block_mix, mix, block_softmax: softmax, softmax };
        few.pack(self, task);
        let (k, v) = (self.k.view.inner(2, task.group), self.v.view.inner(2, task.group));
        for keys in self.pieces(task.keys.clone(), BLOCK) {
            let next = keys.end..task.keys.end.min(keys.end + BLOCK);
            let block = Task { group: task.group, queries: task.queries.clone(), keys };
            let [keys, next] = [&block.keys, &next].map(|keys| bytes(&self.k, &k, keys));
            let values = bytes(&self.v, &v, &block.keys);
            few.weigh(self, &k, &block, Ahead::new(keys, values));
            few.mix(self, &v, &block, Ahead::new(values, next));
            few.join(self);
        }
        let results = few.mix.chunks_exact(width).zip(&few.softmax);
        for (to, (mix, softmax)) in partial.chunks_exact_mut(width + 2).zip(results) {
            to[..width].copy_from_slice(mix);
            to[width..].copy_from_slice(&[softmax.largest, softmax.sum]);
        }
    }
}

/// Evaluates `$use` with the rows of keys or values: in place if possible, else converted to floats in `$copy`.
macro_rules! with_strip {
    ($tensor:expr, $rows:expr, $range:expr, $copy:expr, |$strip:ident| $use:expr) => {
        with_float!($tensor.dtype, E => if let Some($strip) = strip::<E>($tensor, $rows, $range) {
            $use
        } else {
            let $strip = float_strip($tensor, $rows, $range, $copy);
            $use
        }, else {
            let $strip = float_strip($tensor, $rows, $range, $copy);
            $use
        })
    };
}

impl Few<'_> {
    fn pack(&mut self, heads: &Heads<'_>, task: &Task) {
        let packed = self.queries.chunks_exact_mut(attend::packed_len(heads.depth).max(1));
        for (query, to) in task.queries.clone().zip(packed) {
            heads.q.read(heads.row(task.group, query), 0, &mut to[..heads.depth]);
        }
    }

    /// Computes the weights of a block of keys.
    fn weigh(&mut self, heads: &Heads<'_>, k: &BoundView, block: &Task, ahead: Ahead<'_>) {
        let (isa, first, keys) = (heads.isa, heads.slot(block.keys.start), &block.keys);
        let (count, queries, memory) = (block.queries.len(), &*self.queries, (&mut *self.turned, &mut *self.scores));
        with_strip!(&heads.k, k, keys, self.copy, |strip| {
            attend::scores(isa, count, queries, (strip, first), ahead, memory);
        });
        rows::scale(isa, self.scores, heads.parameters.scale);
        let scores = self.scores.as_chunks_mut::<BLOCK>().0;
        for ((query, scores), softmax) in block.queries.clone().zip(scores).zip(&mut self.block_softmax) {
            if let Some(mask) = &heads.mask {
                let numbers = &mut self.mask[..keys.len()];
                mask.read(heads.row(block.group, query), keys.start, numbers);
                heads.apply(mask, &mut scores[first..first + keys.len()], numbers);
            }
            let (reach, slot) = (heads.reach(query), |key: usize| key.clamp(keys.start, keys.end) - keys.start + first);
            scores[..slot(reach.start)].fill(f32::NEG_INFINITY);
            scores[slot(reach.end)..].fill(f32::NEG_INFINITY);
            let (largest, sum) = attend::weigh(isa, scores);
            *softmax = Softmax { largest, sum };
        }
    }

    /// Mixes the values of a block of keys by their weights.
    fn mix(&mut self, heads: &Heads<'_>, v: &BoundView, block: &Task, ahead: Ahead<'_>) {
        let (isa, at_once, width) = (heads.isa, attend::QUERIES, heads.width);
        let first = heads.slot(block.keys.start);
        self.block_mix.fill(0.0);
        let (scores, mixes) = (&*self.scores, self.block_mix.chunks_mut(at_once * width));
        with_strip!(&heads.v, v, &block.keys, self.copy, |values| {
            for (number, (weights, mix)) in scores.chunks(at_once * BLOCK).zip(mixes).enumerate() {
                let ahead = if number == 0 { ahead } else { Ahead::NONE };
                attend::mix(isa, mix.len() / width, &weights[first..], BLOCK, values, ahead, mix);
            }
        });
        if heads.hides(&block.queries, &block.keys) && !columns::are_finite(isa, self.block_mix) {
            let number = |query: usize| query - block.queries.start;
            let weight = |query, key| scores[number(query) * BLOCK + heads.slot(key)];
            heads.mix_seen(block, weight, self.block_mix, |query, element| number(query) * width + element);
        }
    }

    /// Joins the block with the run so far.
    fn join(&mut self, heads: &Heads<'_>) {
        let mixes = self.mix.chunks_exact_mut(heads.width).zip(self.block_mix.chunks_exact(heads.width));
        for ((mix, block_mix), (softmax, block)) in mixes.zip(self.softmax.iter_mut().zip(&self.block_softmax)) {
            let [a, b] = softmax.join(*block);
            attend::join(heads.isa, mix, block_mix, a, b);
        }
    }
}

/// Rows of keys or values, converted to floats.
fn float_strip<'b>(tensor: &Tensor<'b>, rows: &BoundView, range: &Range<usize>, copy: &'b mut [f32]) -> Strip<'b, f32> {
    let elements = float_rows(tensor, rows, range, copy);
    Strip { elements, stride: rows.size(1), count: range.len(), length: rows.size(1) }
}

/// Some rows of a matrix in place, if each is contiguous.
fn strip<'b, E: Element>(tensor: &Tensor<'b>, rows: &BoundView, range: &Range<usize>) -> Option<Strip<'b, E>> {
    let (length, stride) = (rows.size(1), usize::try_from(rows.stride(0)).ok()?);
    let (start, last) = (rows.offset + range.start * stride, range.len().checked_sub(1)?);
    let is_dense = rows.stride(1) == 1 || length <= 1;
    is_dense.then(|| {
        let elements = &elements(tensor.bytes)[start..start + last * stride + length];
        Strip { elements, stride, count: range.len(), length }
    })
}

/// The bytes of such rows, to be prefetched.
fn bytes<'b>(tensor: &Tensor<'b>, rows: &BoundView, range: &Range<usize>) -> Strip<'b, u8> {
    with_float!(tensor.dtype, E => strip::<E>(tensor, rows, range).map(bytes_of), else None).unwrap_or(Strip::EMPTY)
}

fn bytes_of<E: Element>(strip: Strip<'_, E>) -> Strip<'_, u8> {
    let Strip { elements, stride, count, length } = strip;
    let size = size_of::<E>();
    Strip { elements: bytemuck::cast_slice(elements), stride: stride * size, count, length: length * size }
}
