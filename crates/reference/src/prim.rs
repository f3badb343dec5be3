//! Runs single primitives.

use crate::attention::{Attention, attention};
use crate::conv::conv;
use crate::gated_delta::gated_delta;
use crate::index::{cumsum, gather, scatter, sort};
use crate::map::map;
use crate::matmul::{dequantize, matmul, quant_matmul};
use crate::memory::Memory;
use crate::norm::{Rope, norm, rope, softmax};
use crate::random::random_bits;
use crate::reduce::{arg_reduce, reduce};
use crate::sample::sample;
use ptero_backend::{Conv, Fault};
use ptero_plan::graph::Value;
use ptero_plan::prim::Prim;

/// Runs a primitive.
pub(crate) fn prim(memory: &mut Memory<'_>, prim: &Prim<Value>) -> Result<(), Fault> {
    // A result without memory must not be computed: it may be of any size.
    let rooms = prim.writes().into_iter().map(|out| memory.room(*out)).collect::<Result<Vec<_>, _>>()?;
    let draws = matches!(prim, Prim::RandomBits { .. } | Prim::Sample(_));
    // An empty result needs no computation, however long its other axes are; but a draw takes a key.
    if !draws && rooms.iter().all(Vec::is_empty) {
        return prim.writes().into_iter().try_for_each(|out| memory.store(*out, Vec::new()));
    }
    drop(rooms);
    match prim {
        Prim::Map { out, ins, expr } => map(memory, *out, ins, expr),
        Prim::Reduce { out, x, axes, fold } => reduce(memory, *out, *x, axes, *fold),
        Prim::ArgReduce { out, x, axis, largest } => arg_reduce(memory, *out, *x, *axis, *largest),
        Prim::Softmax { out, x, axis } => softmax(memory, *out, *x, *axis),
        Prim::Norm { out, x, weight, bias, eps, kind } => norm(memory, *out, *x, (*weight, *bias), *eps, *kind),
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(memory, *out, *x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { out, q, k, v, mask, first, causal, window, scale } => {
            let (q, k, v, mask, causal, window, scale) = (*q, *k, *v, *mask, *causal, *window, *scale);
            attention(memory, *out, &Attention { q, k, v, mask, first, causal, window, scale })
        }
        Prim::MatMul { out, a, b, lhs, rhs, epilogue } => matmul(memory, *out, (*a, *b), (lhs, rhs), epilogue),
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => {
            quant_matmul(memory, *out, (*x, w, *transpose), (lhs, rhs), epilogue)
        }
        Prim::Dequantize { out, w } => dequantize(memory, *out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            conv(memory, *out, *x, *w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::Gather { out, x, axes } => gather(memory, *out, *x, axes),
        Prim::Scatter { out, base, updates, axes, add } => scatter(memory, *out, (*base, *updates), axes, *add),
        Prim::Sort { out, x, axis, indices } => sort(memory, *out, *x, *axis, *indices),
        Prim::Cumsum { out, x, axis, reverse, inclusive } => cumsum(memory, *out, *x, *axis, (*reverse, *inclusive)),
        Prim::GatedDelta(rule) => gated_delta(memory, rule),
        Prim::RandomBits { out, seed } => random_bits(memory, *out, seed.as_ref()),
        Prim::Sample(sampler) => sample(memory, sampler),
    }
}
