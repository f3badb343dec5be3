//! Checks primitives, beyond the ranks of their tensors and whatever their sizes.

use super::element;
use crate::error::Fault;
use crate::number::Element;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Graph, Value};
use ptero_plan::prim::{Epilogue, Prim, QuantFormat, Quantized, Sample};
use ptero_tensor::DType;

pub(super) fn check(graph: &Graph, prim: &Prim<Value>) -> Result<(), Fault> {
    match prim {
        Prim::Map { out, ins, expr } => function(expr, ins.len(), graph.ty(*out).rank()),
        Prim::MatMul { out, epilogue, .. } => fused(graph, *out, epilogue),
        Prim::QuantMatMul { out, w, epilogue, .. } => {
            weights(graph, w)?;
            fused(graph, *out, epilogue)
        }
        Prim::Dequantize { w, .. } => weights(graph, w),
        Prim::Conv { stride, groups, .. } => {
            let is_positive = stride.iter().all(|&stride| stride >= 1) && *groups >= 1;
            ensure(is_positive, "strides and groups of a convolution are positive")
        }
        Prim::Sample(sample) => sampler(graph, sample),
        Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Softmax { .. } | Prim::Norm { .. } => Ok(()),
        Prim::Rope { .. } | Prim::Attention { .. } | Prim::GatedDelta(_) => Ok(()),
        Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Ok(()),
        Prim::RandomBits { .. } => Ok(()),
    }
}

fn ensure(holds: bool, what: &'static str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::Contract(what)) }
}

fn fused(graph: &Graph, out: Value, epilogue: &Epilogue<Value>) -> Result<(), Fault> {
    let Some(fused) = epilogue else { return Ok(()) };
    Element::new(fused.dtype)?;
    function(&fused.expr, fused.ins.len() + 1, graph.ty(out).rank())
}

/// A function of `operands` elements at an index of `rank` coordinates.
fn function(expr: &Expr, operands: usize, rank: usize) -> Result<(), Fault> {
    for (index, step) in expr.steps.iter().enumerate() {
        let element = Element::new(step.dtype)?;
        let mut args = step.args.iter().take(step.op.arity());
        args.try_for_each(|arg| below((*arg).into(), index, "earlier step of the function"))?;
        exists(step, element)?;
        match &step.op {
            Scalar::Load(operand) => below((*operand).into(), operands, "operand")?,
            Scalar::Index(axis) => below((*axis).into(), rank, "axis")?,
            Scalar::Float(_) | Scalar::Int(_) | Scalar::Cast | Scalar::Unary(_) => {}
            Scalar::Binary(_) | Scalar::Compare(_) | Scalar::Select => {}
        }
    }
    Ok(())
}

fn below(index: usize, count: usize, what: &'static str) -> Result<(), Fault> {
    if index < count { Ok(()) } else { Err(Fault::NoSuch { what, index, count }) }
}

/// Checks that a scalar operation exists for the type: some exist only for floats, some only for integers and bools.
fn exists(step: &Step, element: Element) -> Result<(), Fault> {
    let (exists, missing) = match (&step.op, element.is_float()) {
        (Scalar::Unary(op), true) => (!matches!(op, Unary::Not | Unary::BitNot), Fault::NoUnary(*op, step.dtype)),
        (Scalar::Unary(op), false) => {
            use Unary::{Abs, BitNot, Neg, Not, Sign, Square};
            (matches!(op, Neg | Abs | Sign | Square | Not | BitNot), Fault::NoUnary(*op, step.dtype))
        }
        (Scalar::Binary(op), true) => {
            use Binary::{And, BitAnd, BitOr, BitXor, Or};
            (!matches!(op, And | Or | BitAnd | BitOr | BitXor), Fault::NoBinary(*op, step.dtype))
        }
        (Scalar::Binary(op), false) => {
            (!matches!(op, Binary::Div | Binary::Atan2 | Binary::LogAddExp), Fault::NoBinary(*op, step.dtype))
        }
        (Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_), _) => return Ok(()),
        (Scalar::Cast | Scalar::Compare(_) | Scalar::Select, _) => return Ok(()),
    };
    if exists { Ok(()) } else { Err(missing) }
}

fn weights(graph: &Graph, w: &Quantized<Value>) -> Result<(), Fault> {
    let (is_sound, wanted) = match w.format {
        QuantFormat::Words { bits, group, .. } => {
            ((1..=8).contains(&bits) && group > 0 && w.scales.is_some(), DType::U32)
        }
        QuantFormat::Gguf(_) => (true, DType::U8),
    };
    let found = graph.ty(w.codes).dtype;
    if found != wanted {
        return Err(Fault::WrongDType { found, wanted });
    }
    ensure(is_sound, "codes have 1 to 8 bits, groups elements, and words scales")
}

fn sampler(graph: &Graph, sample: &Sample<Value>) -> Result<(), Fault> {
    let is = |value: Value, dtypes: &[DType]| dtypes.contains(&graph.ty(value).dtype);
    let is_right = is(sample.out, &[DType::U32, DType::I64])
        && element(graph, sample.logits)?.is_float()
        && is(sample.temperature, &[DType::F32])
        && is(sample.top_k, &[DType::I32, DType::I64])
        && is(sample.top_p, &[DType::F32])
        && is(sample.min_p, &[DType::F32])
        && sample.seed.is_none_or(|seed| is(seed, &[DType::I32, DType::I64, DType::U32]))
        && sample.exact_tail.is_none_or(|exact_tail| is(exact_tail, &[DType::I64]))
        && sample.adjust.as_ref().is_none_or(|adjust| {
            let floats = [adjust.repetition, adjust.presence, adjust.frequency, adjust.bias_values];
            [adjust.history, adjust.bias_tokens, adjust.mask].into_iter().all(|value| is(value, &[DType::I32]))
                && [adjust.last, adjust.prompt_end].into_iter().all(|value| is(value, &[DType::I64]))
                && floats.into_iter().all(|value| is(value, &[DType::F32]))
        })
        && sample.log_probabilities.as_ref().is_none_or(|more| {
            [more.which, more.likeliest].into_iter().all(|value| is(value, &[DType::I64]))
                && [more.token, more.of_likeliest].into_iter().all(|value| is(value, &[DType::F32]))
        });
    ensure(is_right, "the tensors of a sampler have the types it takes")
}
