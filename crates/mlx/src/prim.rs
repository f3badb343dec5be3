//! Runs single primitives.

use crate::frame::{Frame, NONE, axis as number, device, small};
use crate::gather::{gather, scatter};
use crate::kind::{fold, kind};
use crate::map::{fused, map};
use crate::quant::{dequantize, quant_matmul};
use crate::sample::sample;
use ptero_backend::{Conv, Fault};
use ptero_plan::dim::Dim;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Angles, Choice, Epilogue, Normalize, Position, Prim};
use ptero_sampling::threefry;
use smallvec::SmallVec;

/// The slot of a value that may be absent.
pub(crate) fn slot(value: Option<Value>) -> u32 {
    value.map_or(NONE, |value| value.0)
}

pub(crate) fn prim(frame: &mut Frame<'_>, prim: &Prim<Value>) -> Result<(), Fault> {
    let draws = matches!(prim, Prim::RandomBits { .. } | Prim::Sample(_));
    if !draws && is_empty(frame, prim)? {
        return Ok(());
    }
    match prim {
        Prim::Map { out, ins, expr } => map(frame, *out, ins, expr),
        Prim::Reduce { out, x, axes, fold: how } => {
            let axes: SmallVec<[i32; 6]> = axes.iter().copied().map(number).collect();
            let ((op, ddof), kind) = (fold(*how), frame.kind(*out)?);
            frame.arrays().reduce(out.0, x.0, &axes, op, ddof, kind).map_err(device)
        }
        Prim::ArgReduce { out, x, axis, largest } => {
            frame.arrays().arg_reduce(out.0, x.0, number(*axis), *largest).map_err(device)
        }
        Prim::Softmax { out, x, axis } => {
            let kind = frame.kind(*out)?;
            frame.arrays().softmax(out.0, x.0, number(*axis), kind).map_err(device)
        }
        Prim::Norm { out, x, weight, bias, eps, kind: how } => {
            let (kind, is_rms) = (frame.kind(*out)?, *how == Normalize::Rms);
            let [weight, bias] = [weight, bias].map(|value| value.map_or(NONE, |value| frame.compiled.widened(value)));
            frame.arrays().norm(out.0, x.0, weight, bias, *eps, is_rms, kind).map_err(device)
        }
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(frame, (*out, *x), *dims, *interleaved, *scale, (position, angles))
        }
        Prim::Attention { out, q, k, v, mask, first: _, causal, window, scale } => {
            let (kind, mask, window) = (frame.kind(*out)?, slot(*mask), window.map_or(-1, |window| window.max(0)));
            frame.arrays().attention(out.0, q.0, k.0, v.0, mask, *causal, window, *scale, kind).map_err(device)
        }
        Prim::MatMul { out, a, b, lhs, rhs, epilogue } => matmul(frame, *out, (*a, *b), (*lhs, *rhs), epilogue),
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => {
            quant_matmul(frame, *out, (*x, w, *transpose), (*lhs, *rhs), epilogue)
        }
        Prim::Dequantize { out, w } => dequantize(frame, *out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            let conv = Conv { stride, padding, dilation, groups: *groups, transposed: *transposed };
            convolve(frame, *out, *x, *w, &conv)
        }
        Prim::Gather { out, x, axes } => gather(frame, *out, *x, axes),
        Prim::Scatter { out, base, updates, axes, add } => scatter(frame, *out, (*base, *updates), axes, *add),
        Prim::Sort { out, x, axis, indices } => {
            frame.arrays().sort(out.0, x.0, number(*axis), *indices).map_err(device)
        }
        Prim::Cumsum { out, x, axis, reverse, inclusive } => {
            let kind = frame.kind(*out)?;
            frame.arrays().cumsum(out.0, x.0, number(*axis), *reverse, *inclusive, kind).map_err(device)
        }
        Prim::GatedDelta(rule) => {
            let operands = [rule.q, rule.k, rule.v, rule.g, rule.beta, rule.state].map(|value| value.0);
            let kinds = (frame.kind(rule.out)?, frame.kind(rule.state_out)?);
            frame.arrays().gated_delta(rule.out.0, rule.state_out.0, &operands, kinds.0, kinds.1).map_err(device)
        }
        Prim::RandomBits { out, seed } => random_bits(frame, *out, seed.as_ref()),
        Prim::Sample(sampler) => sample(frame, sampler),
    }
}

/// Empty results need no computation. Returns `true` if all are empty, and defines them.
fn is_empty(frame: &mut Frame<'_>, prim: &Prim<Value>) -> Result<bool, Fault> {
    if !frame.shape(*prim.out())?.contains(&0) {
        return Ok(false);
    }
    let outs: SmallVec<[Value; 4]> = prim.writes().into_iter().copied().collect();
    for out in &outs {
        if !frame.shape(*out)?.contains(&0) {
            return Ok(false);
        }
    }
    for out in outs {
        let (shape, kind) = (frame.shape(out)?, frame.kind(out)?);
        frame.arrays().zeros(out.0, &shape, kind).map_err(device)?;
    }
    Ok(true)
}

fn rope(
    frame: &mut Frame<'_>,
    (out, x): (Value, Value),
    dims: usize,
    interleaved: bool,
    scale: f32,
    (position, angles): (&Position<Value>, &Angles<Value>),
) -> Result<(), Fault> {
    let kind = frame.kind(out)?;
    let (first, position) = match position {
        Position::Host(dim) => (frame.eval(dim), NONE),
        Position::Tensor(value) => (0, value.0),
    };
    let (base, periods) = match angles {
        Angles::Base(base) => (*base, NONE),
        Angles::Periods(value) => (0.0, value.0),
    };
    if dims == 0 {
        return frame.arrays().alias(out.0, x.0).map_err(device);
    }
    let dims = number(dims);
    frame.arrays().rope(out.0, x.0, dims, interleaved, scale, first, position, base, periods, kind).map_err(device)
}

/// The number of matrices in a stack.
fn matrices(shape: &[i32]) -> i32 {
    shape.iter().rev().skip(2).product()
}

/// The slot of chosen matrices, each checked to exist.
pub(crate) fn choice(frame: &mut Frame<'_>, choice: Choice<Value>, stack: &[i32]) -> Result<u32, Fault> {
    let Some(choice) = choice else { return Ok(NONE) };
    let size = matrices(stack);
    if size == 0 {
        return Err(Fault::IndexOutside { index: 0, size: 0 });
    }
    frame.checked(choice.0, NONE, size, false)
}

/// The type of a product before its epilogue.
pub(crate) fn product_kind(
    frame: &Frame<'_>,
    out: Value,
    epilogue: &Epilogue<Value>,
) -> Result<crate::bridge::ffi::Kind, Fault> {
    epilogue.as_ref().map_or_else(|| frame.kind(out), |fused| kind(fused.dtype))
}

fn matmul(
    frame: &mut Frame<'_>,
    out: Value,
    (a, b): (Value, Value),
    (lhs, rhs): (Choice<Value>, Choice<Value>),
    epilogue: &Epilogue<Value>,
) -> Result<(), Fault> {
    let mark = frame.mark();
    let lhs = if lhs.is_some() { choice(frame, lhs, &frame.shape(a)?)? } else { NONE };
    let rhs = if rhs.is_some() { choice(frame, rhs, &frame.shape(b)?)? } else { NONE };
    let (kind, product) = (product_kind(frame, out, epilogue)?, frame.temporary());
    frame.arrays().matmul(product, a.0, b.0, lhs, rhs, kind).map_err(device)?;
    fused(frame, out, product, epilogue)?;
    frame.release(mark);
    Ok(())
}

fn convolve(frame: &mut Frame<'_>, out: Value, x: Value, w: Value, conv: &Conv<'_>) -> Result<(), Fault> {
    let (shape, kind) = (frame.shape(out)?, frame.kind(out)?);
    let sizes = |sizes: &[i32]| sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect::<Vec<usize>>();
    conv.filters_per_group(&sizes(&frame.shape(x)?), &sizes(&frame.shape(w)?), &sizes(&shape))?;
    let list = |numbers: &[i64]| numbers.iter().copied().map(small).collect::<Result<SmallVec<[i32; 4]>, Fault>>();
    let (stride, padding, dilation) = (list(conv.stride)?, list(conv.padding)?, list(conv.dilation)?);
    let (groups, transposed) = (small(conv.groups)?, conv.transposed);
    if frame.shape(x)?.contains(&0) || frame.shape(w)?.contains(&0) {
        return frame.arrays().zeros(out.0, &shape, kind).map_err(device);
    }
    let arrays = frame.arrays();
    arrays.conv(out.0, x.0, w.0, &shape, &stride, &padding, &dilation, groups, transposed, kind).map_err(device)
}

#[allow(clippy::cast_sign_loss, reason = "the seed's 64 bits are the key")]
fn random_bits(frame: &mut Frame<'_>, out: Value, seed: Option<&Dim>) -> Result<(), Fault> {
    let (shape, kind) = (frame.shape(out)?, frame.kind(out)?);
    let [high, low] = match seed {
        Some(seed) => threefry::key(frame.eval(seed) as u64),
        None => frame.keys.next_key(),
    };
    if shape.contains(&0) {
        return frame.arrays().zeros(out.0, &shape, kind).map_err(device);
    }
    frame.arrays().random_bits(out.0, &shape, high, low, kind).map_err(device)
}
