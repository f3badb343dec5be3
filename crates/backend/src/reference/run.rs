//! Runs single steps.

use super::attention::{Attention, attention};
use super::conv::{Conv, conv};
use super::gated_delta::gated_delta;
use super::index::{cumsum, gather, scatter, sort};
use super::map::map;
use super::matmul::{dequantize, matmul, quant_matmul};
use super::memory::Memory;
use super::norm::{Rope, norm, rope, softmax};
use super::random::random_bits;
use super::reduce::{arg_reduce, reduce};
use super::sample::sample;
use crate::drive::Steps;
use crate::error::Fault;
use ptero_plan::prim::{Prim, View};

impl Steps for Memory {
    fn device(&mut self, prim: &Prim, _: (usize, usize)) -> Result<(), Fault> {
        device(self, prim)
    }

    fn item(&mut self, view: &View) -> Result<i64, Fault> {
        item(self, view)
    }

    fn values(&mut self) -> &mut [i64] {
        &mut self.values
    }
}

fn device(memory: &mut Memory, prim: &Prim) -> Result<(), Fault> {
    // What has no room must not be computed: it may be as large as a plan can say.
    for view in prim.writes() {
        memory.target(view)?;
    }
    match prim {
        Prim::Map { out, ins, expr } => map(memory, out, ins, expr),
        Prim::Reduce { out, x, axes, fold } => reduce(memory, out, x, axes, *fold),
        Prim::ArgReduce { out, x, axis, largest } => arg_reduce(memory, out, x, *axis, *largest),
        Prim::Softmax { out, x, axis } => softmax(memory, out, x, *axis),
        Prim::Norm { out, x, weight, bias, eps, kind } => {
            norm(memory, out, x, (weight.as_ref(), bias.as_ref()), *eps, *kind)
        }
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(memory, out, x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { out, q, k, v, mask, causal, window, scale } => {
            let (mask, causal, window, scale) = (mask.as_ref(), *causal, *window, *scale);
            attention(memory, out, &Attention { q, k, v, mask, causal, window, scale })
        }
        Prim::MatMul { out, a, b, lhs, rhs } => matmul(memory, out, a, b, (lhs, rhs)),
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs } => quant_matmul(memory, out, x, w, *transpose, (lhs, rhs)),
        Prim::Dequantize { out, w } => dequantize(memory, out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            conv(memory, out, x, w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::Gather { out, x, axes } => gather(memory, out, x, axes),
        Prim::Scatter { out, updates, axes, add } => scatter(memory, out, updates, axes, *add),
        Prim::Sort { out, x, axis, indices } => sort(memory, out, x, *axis, *indices),
        Prim::Cumsum { out, x, axis, reverse, inclusive } => cumsum(memory, out, x, *axis, (*reverse, *inclusive)),
        Prim::GatedDelta(rule) => gated_delta(memory, rule),
        Prim::RandomBits { out, seed } => random_bits(memory, out, seed.as_ref()),
        Prim::Sample(views) => sample(memory, views),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
fn item(memory: &Memory, view: &View) -> Result<i64, Fault> {
    let mut numbers = memory.tensor(view)?.numbers();
    match (numbers.next(), numbers.next()) {
        (Some(number), None) => Ok(i64::from(number.int() as i32)),
        (None, _) | (_, Some(_)) => Err(Fault::Contract("an item is the only element of its tensor")),
    }
}
