//! A few queries of a group, as when one token is decoded: what counts is to read keys and values once.

use super::{Heads, Known, Task};
use crate::element::{self, elements};
use crate::pool::Scratch;
use crate::simd::attention::attend::{self, Ahead, BLOCK};
use crate::simd::attention::columns;
use crate::simd::strip::Strip;
use crate::simd::{Isa, rows};
use crate::window::{Tensor, Window};
use half::{bf16, f16};
use ptero_tensor::DType;
use std::ops::Range;

/// The most queries that are few.
pub(super) const QUERIES: usize = 16;

/// Memory of a task, and what is known of its queries.
struct Few<'s> {
    /// The queries, for `attend`.
    queries: &'s mut [f32],
    /// Keys, turned.
    turned: &'s mut [f32],
    /// Keys or values that cannot be read where they lie.
    copy: &'s mut [f32],
    /// Scores of a block, then weights: `[query][slot]`.
    scores: &'s mut [f32],
    mask: &'s mut [f32],
    /// The mix of a block: `[query][element]`.
    block_mix: &'s mut [f32],
    /// The mix of the run so far.
    mix: &'s mut [f32],
    /// Of a block.
    block_known: [Known; QUERIES],
    /// Of the run so far.
    known: [Known; QUERIES],
}

impl Heads<'_> {
    /// What the keys of a run give for some queries of a group; see [`Heads::join`].
    pub(super) fn few(&self, task: &Task, part: &mut [f32], scratch: &mut Scratch) {
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
        let known = [Known::NONE; QUERIES];
        let mut few = Few { queries, turned, copy, scores, mask, block_mix, mix, block_known: known, known };
        few.pack(self, task);
        let (k, v) = (self.k.window.inner(2, task.group), self.v.window.inner(2, task.group));
        for keys in self.pieces(task.keys.clone(), BLOCK) {
            let next = keys.end..task.keys.end.min(keys.end + BLOCK);
            let block = Task { group: task.group, queries: task.queries.clone(), keys };
            let [keys, next] = [&block.keys, &next].map(|keys| bytes(&self.k, &k, keys));
            let values = bytes(&self.v, &v, &block.keys);
            few.weigh(self, &k, &block, Ahead::new(keys, values));
            few.take(self, &v, &block, Ahead::new(values, next));
            few.join(self);
        }
        let parts = few.mix.chunks_exact(width).zip(&few.known);
        for (part, (mix, known)) in part.chunks_exact_mut(width + 2).zip(parts) {
            let (to, state) = part.split_at_mut(width);
            to.copy_from_slice(mix);
            state.copy_from_slice(&[known.largest, known.sum]);
        }
    }

    /// Rows of keys or values where they lie, or copied.
    fn strips<'b>(
        &'b self,
        tensor: &'b Tensor<'_>,
        rows: &Window,
        range: &Range<usize>,
        copy: &'b mut [f32],
    ) -> Strips<'b> {
        let found = match tensor.dtype {
            DType::F32 => strip(tensor, rows, range).map(Strips::F32),
            DType::F16 => strip(tensor, rows, range).map(Strips::F16),
            DType::Bf16 => strip(tensor, rows, range).map(Strips::Bf16),
            _ => None,
        };
        found.unwrap_or_else(|| {
            let elements = self.block(tensor, rows, range.clone(), copy);
            Strips::F32(Strip { elements, stride: rows.size(1), count: range.len(), length: rows.size(1) })
        })
    }
}

impl Few<'_> {
    fn pack(&mut self, heads: &Heads<'_>, task: &Task) {
        let packed = self.queries.chunks_exact_mut(attend::packed_len(heads.depth).max(1));
        for (query, to) in task.queries.clone().zip(packed) {
            let to = to.get_mut(..heads.depth).unwrap_or_default();
            heads.q.read(heads.isa, heads.row(task.group, query), 0, to);
        }
    }

    /// Computes the weights of a block of keys.
    fn weigh(&mut self, heads: &Heads<'_>, k: &Window, block: &Task, ahead: Ahead<'_>) {
        let (isa, first, keys) = (heads.isa, heads.slot(block.keys.start), &block.keys);
        let strips = heads.strips(&heads.k, k, keys, self.copy);
        strips.scores(isa, block.queries.len(), self.queries, first, ahead, (self.turned, self.scores));
        rows::scale(isa, self.scores, heads.scale);
        let scores = self.scores.as_chunks_mut::<BLOCK>().0;
        for ((query, scores), known) in block.queries.clone().zip(scores).zip(&mut self.block_known) {
            if let Some(mask) = &heads.mask {
                let numbers = self.mask.get_mut(..keys.len()).unwrap_or_default();
                mask.read(isa, heads.row(block.group, query), keys.start, numbers);
                heads.apply(mask, scores.get_mut(first..first + keys.len()).unwrap_or_default(), numbers);
            }
            let (reach, slot) = (heads.reach(query), |key: usize| key.clamp(keys.start, keys.end) - keys.start + first);
            scores.get_mut(..slot(reach.start)).unwrap_or_default().fill(f32::NEG_INFINITY);
            scores.get_mut(slot(reach.end)..).unwrap_or_default().fill(f32::NEG_INFINITY);
            let (largest, sum) = attend::weigh(isa, scores);
            *known = Known { largest, sum };
        }
    }

    /// Mixes the values of a block of keys by their weights.
    fn take(&mut self, heads: &Heads<'_>, v: &Window, block: &Task, ahead: Ahead<'_>) {
        let (isa, at_once, width) = (heads.isa, attend::QUERIES, heads.width);
        let first = heads.slot(block.keys.start);
        self.block_mix.fill(0.0);
        let values = heads.strips(&heads.v, v, &block.keys, self.copy);
        let mixes = self.block_mix.chunks_mut(at_once * width);
        for (number, (weights, mix)) in self.scores.chunks(at_once * BLOCK).zip(mixes).enumerate() {
            let ahead = if number == 0 { ahead } else { Ahead::NONE };
            values.mix(isa, mix.len() / width, weights.get(first..).unwrap_or_default(), ahead, mix);
        }
        if heads.hides(&block.queries, &block.keys) && !columns::are_finite(isa, self.block_mix) {
            let (weights, number) = (&*self.scores, |query: usize| query - block.queries.start);
            let weight = |query, key| weights.get(number(query) * BLOCK + heads.slot(key)).copied().unwrap_or(0.0);
            heads.mix_seen(block, weight, self.block_mix, |query, element| number(query) * width + element);
        }
    }

    /// Joins what a block gave.
    fn join(&mut self, heads: &Heads<'_>) {
        let mixes = self.mix.chunks_exact_mut(heads.width).zip(self.block_mix.chunks_exact(heads.width));
        for ((mix, block_mix), (known, block_known)) in mixes.zip(self.known.iter_mut().zip(&self.block_known)) {
            let [a, b] = known.join(*block_known);
            attend::join(heads.isa, mix, block_mix, a, b);
        }
    }
}

/// Rows of keys or values, of any of the types that they can have.
enum Strips<'a> {
    F32(Strip<'a, f32>),
    F16(Strip<'a, f16>),
    Bf16(Strip<'a, bf16>),
}

impl Strips<'_> {
    fn scores(
        &self,
        isa: Isa,
        count: usize,
        queries: &[f32],
        first: usize,
        ahead: Ahead<'_>,
        memory: (&mut [f32], &mut [f32]),
    ) {
        match *self {
            Self::F32(keys) => attend::scores(isa, count, queries, (keys, first), ahead, memory),
            Self::F16(keys) => attend::scores(isa, count, queries, (keys, first), ahead, memory),
            Self::Bf16(keys) => attend::scores(isa, count, queries, (keys, first), ahead, memory),
        }
    }

    fn mix(&self, isa: Isa, count: usize, weights: &[f32], ahead: Ahead<'_>, mix: &mut [f32]) {
        match *self {
            Self::F32(values) => attend::mix(isa, count, weights, BLOCK, values, ahead, mix),
            Self::F16(values) => attend::mix(isa, count, weights, BLOCK, values, ahead, mix),
            Self::Bf16(values) => attend::mix(isa, count, weights, BLOCK, values, ahead, mix),
        }
    }
}

/// Some rows of a matrix, if their elements lie side by side and are of this type.
fn strip<'b, E: element::Element>(tensor: &Tensor<'b>, rows: &Window, range: &Range<usize>) -> Option<Strip<'b, E>> {
    let (length, stride) = (rows.size(1), usize::try_from(rows.stride(0)).ok()?);
    let (start, last) = (rows.offset + range.start * stride, range.len().checked_sub(1)?);
    let elements = elements(tensor.bytes).get(start..start + last * stride + length)?;
    let is_dense = rows.stride(1) == 1 || length == 1;
    is_dense.then_some(Strip { elements, stride, count: range.len(), length })
}

/// The bytes of such rows, to be fetched.
fn bytes<'b>(tensor: &Tensor<'b>, rows: &Window, range: &Range<usize>) -> Strip<'b, u8> {
    let found = match tensor.dtype {
        DType::F32 => strip::<f32>(tensor, rows, range).map(bytes_of),
        DType::F16 | DType::Bf16 => strip::<u16>(tensor, rows, range).map(bytes_of),
        _ => None,
    };
    found.unwrap_or(Strip::EMPTY)
}

fn bytes_of<E: element::Element>(strip: Strip<'_, E>) -> Strip<'_, u8> {
    let Strip { elements, stride, count, length } = strip;
    let size = size_of::<E>();
    Strip { elements: bytemuck::cast_slice(elements), stride: stride * size, count, length: length * size }
}
