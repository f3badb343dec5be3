//! Scaled dot-product attention.

use crate::matmul::dot;
use crate::memory::Memory;
use crate::tensor::{Tensor, signed};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::graph::Value;

/// The parameters of an attention.
pub(crate) struct Attention {
    pub(crate) q: Value,
    pub(crate) k: Value,
    pub(crate) v: Value,
    pub(crate) mask: Option<Value>,
    pub(crate) causal: bool,
    pub(crate) window: Option<i64>,
    pub(crate) scale: f32,
}

pub(crate) fn attention(memory: &mut Memory<'_>, out: Value, attention: &Attention) -> Result<(), Fault> {
    let (q, k, v) = (memory.tensor(attention.q)?, memory.tensor(attention.k)?, memory.tensor(attention.v)?);
    let mask = memory.optional(attention.mask)?;
    let ([batch, heads, queries, _], [groups, keys, _], [width]) = (q.last_sizes()?, k.last_sizes()?, v.last_sizes()?);
    memory.expect_shape(out, &[batch, heads, queries, width])?;
    if mask.as_ref().is_some_and(|mask| mask.shape() != [batch, heads, queries, keys]) {
        return Err(Fault::Contract("a mask has an element for each query and key"));
    }
    let heads_per_group = heads.checked_div(groups).filter(|&heads| heads > 0).unwrap_or(1);
    let mut masks = mask.map(|mask| mask.inner(2));

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
            // Queries are the last of the keys: query `at` stands where this key stands.
            let own_key = signed(keys) - signed(queries) + signed(at);
            let scores = key_rows.iter().enumerate().map(|(key_at, key)| {
                let bias =
                    if attention.reaches(own_key, signed(key_at)) { bias(mask.as_ref(), at, key_at) } else { None };
                Some(dot(query, key) * attention.scale + bias?)
            });
            numbers.extend(mix(&scores.collect::<Vec<_>>(), &value_rows, width).into_iter().map(Number::Float));
        }
    }
    drop(masks);
    memory.store(out, &[batch, heads, queries, width], numbers)
}

impl Attention {
    /// Whether a query that stands at `own_key` sees `key`, masks aside.
    fn reaches(&self, own_key: i64, key: i64) -> bool {
        let is_past = !self.causal || key <= own_key;
        is_past && self.window.is_none_or(|window| key > own_key.saturating_sub(window))
    }
}

/// What a mask adds, or `None` where it forbids.
fn bias(mask: Option<&Tensor<'_>>, query: usize, key: usize) -> Option<f32> {
    let Some(mask) = mask else { return Some(0.0) };
    let number = mask.at(&[query, key]);
    if mask.element == Element::Bool { number.is_true().then_some(0.0) } else { Some(number.float()) }
}

/// The rows of values, weighted by the softmax of the scores. Rows without a score are not looked at.
fn mix(scores: &[Option<f32>], values: &[Vec<f32>], width: usize) -> Vec<f32> {
    let largest = scores.iter().flatten().copied().fold(f32::NEG_INFINITY, ptero_arithmetic::max);
    let mut sum = 0.0;
    let mut mixed = vec![0.0; width];
    for (score, row) in scores.iter().zip(values) {
        let Some(score) = score else { continue };
        let weight = (score - largest).exp();
        sum += weight;
        mixed.iter_mut().zip(row).for_each(|(total, value)| *total += weight * value);
    }
    mixed.into_iter().map(|total| total / sum).collect()
}
