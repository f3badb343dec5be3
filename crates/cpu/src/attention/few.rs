//! A few queries of a group, as when one token is decoded: what counts is to read keys and values once.

use super::{Heads, Task};
use crate::element::{self, elements};
use crate::pool::Scratch;
use crate::simd::attend::{self, Ahead, Strip};
use crate::simd::{Isa, columns, rows};
use crate::window::{Tensor, Window};
use half::{bf16, f16};
use ptero_arithmetic as arithmetic;
use ptero_tensor::DType;
use std::ops::Range;

/// So many are few.
pub(super) const QUERIES: usize = 16;
/// Keys that are worth a task.
pub(super) const RANGE: usize = 256;
/// Keys of a block.
const KEYS: usize = 256;

/// Memory of a task, and what is known of its queries.
struct Few<'s> {
    /// The queries, for `attend`.
    packed: &'s mut [f32],
    /// Keys or values that cannot be read where they lie.
    copy: &'s mut [f32],
    /// Scores, then weights: `[query][key]`.
    scores: &'s mut [f32],
    mask: &'s mut [f32],
    /// `[query][element]`.
    mix: &'s mut [f32],
    /// The mix before the block.
    before: &'s mut [f32],
    softmax: [Softmax; QUERIES],
}

/// What is known of a query.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

impl Heads<'_> {
    /// What a range of keys gives for some queries of a group; see [`Heads::join`].
    pub(super) fn few(&self, task: &Task, part: &mut [f32], scratch: &mut Scratch) {
        let (count, width) = (task.queries.len(), self.width);
        let [packed, copy, scores, mask, mix, before] = scratch.floats([
            count * attend::packed_len(self.depth),
            KEYS * self.depth.max(width),
            count * KEYS,
            KEYS,
            count * width,
            count * width,
        ]);
        mix.fill(0.0);
        let softmax = [Softmax { largest: f32::NEG_INFINITY, sum: 0.0 }; QUERIES];
        let mut few = Few { packed, copy, scores, mask, mix, before, softmax };
        few.pack(self, task);
        let (k, v) = (self.k.window.inner(2, task.group), self.v.window.inner(2, task.group));
        for start in task.keys.clone().step_by(KEYS) {
            let block = start..task.keys.end.min(start + KEYS);
            let next = block.end..task.keys.end.min(block.end + KEYS);
            let [keys, next] = [&block, &next].map(|block| bytes(&self.k, &k, block));
            let values = bytes(&self.v, &v, &block);
            few.weigh(self, &k, task, &block, Ahead { rows: keys, next: values });
            few.take(self, &v, task, &block, Ahead { rows: values, next });
        }
        let known = few.mix.chunks_exact(width).zip(&few.softmax);
        for (part, (mix, softmax)) in part.chunks_exact_mut(width + 2).zip(known) {
            let (to, state) = part.split_at_mut(width);
            to.copy_from_slice(mix);
            state.copy_from_slice(&[softmax.largest, softmax.sum]);
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
        let (depth, at_once) = (heads.depth.max(1), attend::QUERIES);
        let queries = &mut *self.copy;
        for (number, packed) in self.packed.chunks_mut(at_once * attend::packed_len(depth)).enumerate() {
            let first = task.queries.start + number * at_once;
            let numbers = first..task.queries.end.min(first + at_once);
            let queries = queries.get_mut(..numbers.len() * depth).unwrap_or_default();
            for (query, to) in numbers.zip(queries.chunks_exact_mut(depth)) {
                heads.q.read(heads.isa, heads.row(task.group, query), 0, to);
            }
            attend::pack(queries, depth, packed);
        }
    }

    /// Computes the weights of a block of keys, and scales what is known of the queries so that they fit.
    fn weigh(&mut self, heads: &Heads<'_>, k: &Window, task: &Task, block: &Range<usize>, ahead: Ahead<'_>) {
        let (isa, at_once, length) = (heads.isa, attend::QUERIES, block.len());
        let scores = self.scores.get_mut(..task.queries.len() * length).unwrap_or_default();
        let keys = heads.strips(&heads.k, k, block, self.copy);
        let packed_len = at_once * attend::packed_len(heads.depth);
        for (number, scores) in scores.chunks_mut(at_once * length).enumerate() {
            let packed = self.packed.get(number * packed_len..).unwrap_or_default();
            let ahead = if number == 0 { ahead } else { Ahead::NONE };
            keys.scores(isa, scores.len() / length, packed, ahead, scores);
        }
        rows::scale(isa, scores, heads.scale);
        let mixes = self.mix.chunks_exact_mut(heads.width);
        let known = self.softmax.iter_mut().zip(mixes);
        for ((query, scores), (softmax, mix)) in task.queries.clone().zip(scores.chunks_exact_mut(length)).zip(known) {
            if let Some(mask) = &heads.mask {
                let numbers = self.mask.get_mut(..length).unwrap_or_default();
                mask.read(isa, heads.row(task.group, query), block.start, numbers);
                heads.apply(mask, scores, numbers);
            }
            let (reach, inside) = (heads.reach(query), |key: usize| key.clamp(block.start, block.end) - block.start);
            scores.get_mut(..inside(reach.start)).unwrap_or_default().fill(f32::NEG_INFINITY);
            scores.get_mut(inside(reach.end)..).unwrap_or_default().fill(f32::NEG_INFINITY);
            softmax.weigh(isa, scores, mix);
        }
    }

    /// Adds the values of a block of keys by their weights.
    fn take(&mut self, heads: &Heads<'_>, v: &Window, task: &Task, block: &Range<usize>, ahead: Ahead<'_>) {
        let (isa, at_once, length, width) = (heads.isa, attend::QUERIES, block.len(), heads.width);
        let hides = heads.hides(&task.queries, block);
        if hides {
            self.before.copy_from_slice(self.mix);
        }
        let values = heads.strips(&heads.v, v, block, self.copy);
        let weights = self.scores.get(..task.queries.len() * length).unwrap_or_default();
        let parts = weights.chunks(at_once * length).zip(self.mix.chunks_mut(at_once * width));
        for (number, (weights, mix)) in parts.enumerate() {
            let ahead = if number == 0 { ahead } else { Ahead::NONE };
            values.mix(isa, weights.len() / length, weights, ahead, mix);
        }
        if hides && !columns::are_finite(isa, self.mix) {
            self.mix.copy_from_slice(self.before);
            let number = |query: usize| query - task.queries.start;
            let weight = |query, key| weights.get(number(query) * length + key - block.start).copied().unwrap_or(0.0);
            heads.mix_seen(task.group, &task.queries, block, weight, self.mix, |query, element| {
                number(query) * width + element
            });
        }
    }
}

impl Softmax {
    /// Scores become weights, relative to the largest so far.
    fn weigh(&mut self, isa: Isa, scores: &mut [f32], mix: &mut [f32]) {
        let largest = arithmetic::max(self.largest, rows::largest(isa, scores));
        // While there is nothing but minus infinity, all weights are zero.
        let center = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        if self.largest != center {
            let shrink = arithmetic::exp(self.largest - center);
            rows::scale(isa, mix, shrink);
            self.sum *= shrink;
        }
        self.sum += rows::powers(isa, scores, center);
        self.largest = largest;
    }
}

/// Rows of keys or values, of any of the types that they can have.
enum Strips<'a> {
    F32(Strip<'a, f32>),
    F16(Strip<'a, f16>),
    Bf16(Strip<'a, bf16>),
}

impl Strips<'_> {
    fn scores(&self, isa: Isa, count: usize, queries: &[f32], ahead: Ahead<'_>, out: &mut [f32]) {
        match *self {
            Self::F32(keys) => attend::scores(isa, count, queries, keys, ahead, out),
            Self::F16(keys) => attend::scores(isa, count, queries, keys, ahead, out),
            Self::Bf16(keys) => attend::scores(isa, count, queries, keys, ahead, out),
        }
    }

    fn mix(&self, isa: Isa, count: usize, weights: &[f32], ahead: Ahead<'_>, mix: &mut [f32]) {
        match *self {
            Self::F32(values) => attend::mix(isa, count, weights, values, ahead, mix),
            Self::F16(values) => attend::mix(isa, count, weights, values, ahead, mix),
            Self::Bf16(values) => attend::mix(isa, count, weights, values, ahead, mix),
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
