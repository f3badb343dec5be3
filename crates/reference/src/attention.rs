//! Scaled dot-product attention.

use crate::matmul::{STRANDS, combined};
use crate::memory::Memory;
use crate::tensor::{Tensor, signed};
use ptero_arithmetic::{exp, max};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::dim::Dim;
use ptero_plan::graph::Value;

/// The number of positions in a block.
const BLOCK: usize = 64;
/// The number of positions in a run.
const RUN: usize = 4 * BLOCK;

/// The parameters of an attention.
pub(crate) struct Attention<'a> {
    pub(crate) q: Value,
    pub(crate) k: Value,
    pub(crate) v: Value,
    pub(crate) mask: Option<Value>,
    pub(crate) first: &'a Dim,
    pub(crate) causal: bool,
    pub(crate) window: Option<i64>,
    pub(crate) scale: f32,
}

pub(crate) fn attention(memory: &mut Memory<'_>, out: Value, attention: &Attention<'_>) -> Result<(), Fault> {
    let (q, k, v) = (memory.tensor(attention.q)?, memory.tensor(attention.k)?, memory.tensor(attention.v)?);
    let mask = memory.optional(attention.mask)?;
    let ([batch, heads, queries, _], [groups, keys, _], [width]) = (q.last_sizes()?, k.last_sizes()?, v.last_sizes()?);
    memory.expect_shape(out, &[batch, heads, queries, width])?;
    if mask.is_some_and(|mask| mask.shape() != [batch, heads, queries, keys]) {
        return Err(Fault::Contract("a mask has an element for each query and key"));
    }
    let heads_per_group = heads.checked_div(groups).filter(|&heads| heads > 0).unwrap_or(1);
    let mut masks = mask.map(|mask| mask.inner(2));
    let first = first_position(attention.first.eval(&memory.host));

    let mut numbers = Vec::new();
    for (index, head) in q.inner(2).enumerate() {
        // Heads of one batch follow each other, and so do groups; `index / heads_per_group` counts through both.
        let group = index / heads_per_group;
        let (Some(key), Some(value)) = (k.nth(2, group), v.nth(2, group)) else {
            return Err(Fault::Contract("the heads of queries are a multiple of those of keys"));
        };
        let (key_rows, value_rows) = (key.rows(), value.rows());
        let mask = masks.as_mut().and_then(Iterator::next);
        for (at, query) in head.rows().iter().enumerate() {
            // The queries are at the last positions: this is the index of the key at the query's own position.
            let own_key = signed(keys) - signed(queries) + signed(at);
            let mut seen = Vec::new();
            for (index, (key, value)) in key_rows.iter().zip(&value_rows).enumerate() {
                let bias = bias(mask.as_ref(), at, index).filter(|_| attention.reaches(own_key, signed(index)));
                if let Some(bias) = bias {
                    let score = product(query, key) * attention.scale + bias;
                    seen.push(Key { position: first + index, score, value });
                }
            }
            numbers.extend(mix(&seen, width).into_iter().map(Number::Float));
        }
    }
    memory.store(out, numbers)
}

/// The position of the first key, counted from the start of its run: the number of the run makes no difference.
fn first_position(number: i64) -> usize {
    usize::try_from(number.rem_euclid(signed(RUN))).unwrap_or(0)
}

impl Attention<'_> {
    /// Returns `true` if a query at the position of `own_key` sees `key`, masks aside.
    fn reaches(&self, own_key: i64, key: i64) -> bool {
        let is_past = !self.causal || key <= own_key;
        is_past && self.window.is_none_or(|window| key > own_key.saturating_sub(window))
    }
}

/// The bias that a mask adds, or `None` where it masks the key.
fn bias(mask: Option<&Tensor>, query: usize, key: usize) -> Option<f32> {
    let Some(mask) = mask else { return Some(0.0) };
    let number = mask.at(&[query, key]);
    if mask.element == Element::Bool { number.is_true().then_some(0.0) } else { Some(number.float()) }
}

/// A sum of fused multiply-adds, in ascending order.
fn product(query: &[f32], key: &[f32]) -> f32 {
    query.iter().zip(key).fold(0.0, |sum, (q, k)| q.mul_add(*k, sum))
}

/// A key that a query sees.
struct Key<'a> {
    position: usize,
    score: f32,
    value: &'a [f32],
}

/// The values of the keys that a query sees, weighted by the softmax of their scores.
fn mix(seen: &[Key<'_>], width: usize) -> Vec<f32> {
    let mut whole = PartialSoftmax::new(width);
    for keys in seen.chunk_by(|a, b| a.position / RUN == b.position / RUN) {
        let mut run = PartialSoftmax::new(width);
        for keys in keys.chunk_by(|a, b| a.position / BLOCK == b.position / BLOCK) {
            run.join(&PartialSoftmax::of_block(keys, width));
        }
        whole.join(&run);
    }
    let factor = 1.0 / whole.sum;
    whole.mix.into_iter().map(|mix| mix * factor + 0.0).collect()
}

/// The softmax over some keys, not yet divided by its sum.
struct PartialSoftmax {
    /// The largest score.
    largest: f32,
    /// The sum of the weights, relative to the largest score.
    sum: f32,
    /// The weighted sum of the values.
    mix: Vec<f32>,
}

impl PartialSoftmax {
    fn new(width: usize) -> Self {
        Self { largest: f32::NEG_INFINITY, sum: 0.0, mix: vec![0.0; width] }
    }

    #[allow(clippy::indexing_slicing, reason = "indices are below 16")]
    fn of_block(keys: &[Key<'_>], width: usize) -> Self {
        let largest = keys.iter().fold(f32::NEG_INFINITY, |largest, key| max(largest, key.score));
        let (mut strands, mut mix) = ([0.0; STRANDS], vec![0.0; width]);
        for key in keys {
            let weight = relative(key.score, largest);
            strands[key.position % STRANDS] += weight;
            mix.iter_mut().zip(key.value).for_each(|(mix, value)| *mix = weight.mul_add(*value, *mix));
        }
        Self { largest, sum: combined(strands), mix }
    }

    fn join(&mut self, other: &Self) {
        let largest = max(self.largest, other.largest);
        let (a, b) = (relative(self.largest, largest), relative(other.largest, largest));
        self.sum = self.sum * a + other.sum * b;
        self.mix.iter_mut().zip(&other.mix).for_each(|(mix, other)| *mix = *mix * a + other * b);
        self.largest = largest;
    }
}

/// `exp(score - largest)`, or `exp(score)` if all scores are minus infinity.
fn relative(score: f32, largest: f32) -> f32 {
    exp(score - if largest == f32::NEG_INFINITY { 0.0 } else { largest })
}
