//! What can be wrong with a primitive beside the ranks of its tensors, whatever their sizes.

use super::element;
use crate::error::Fault;
use crate::number::Element;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Graph, Value};
use ptero_plan::prim::{Prim, QuantFormat, Quantized, Sample};
use ptero_tensor::DType;

pub(super) fn check(graph: &Graph, prim: &Prim<Value>) -> Result<(), Fault> {
    match prim {
        Prim::Map { out, ins, expr } => function(expr, ins.len(), graph.ty(*out).rank()),
        Prim::MatMul { out, epilogue: Some(fused), .. } => {
            Element::new(fused.dtype)?;
            function(&fused.expr, fused.ins.len() + 1, graph.ty(*out).rank())
        }
        Prim::QuantMatMul { out, w, epilogue, .. } => {
            weights(graph, w)?;
            let Some(fused) = epilogue else { return Ok(()) };
            Element::new(fused.dtype)?;
            function(&fused.expr, fused.ins.len() + 1, graph.ty(*out).rank())
        }
        Prim::Dequantize { w, .. } => weights(graph, w),
        Prim::Conv { stride, groups, .. } => {
            let is_positive = stride.iter().all(|&stride| stride >= 1) && *groups >= 1;
            ensure(is_positive, "strides and groups of a convolution are positive")
        }
        Prim::Sample(sample) => sampler(graph, sample),
        Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Softmax { .. } | Prim::Norm { .. } => Ok(()),
        Prim::Rope { .. } | Prim::Attention { .. } | Prim::GatedDelta(_) => Ok(()),
        Prim::MatMul { epilogue: None, .. } => Ok(()),
        Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Ok(()),
        Prim::RandomBits { .. } => Ok(()),
    }
}

fn ensure(holds: bool, what: &'static str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::Contract(what)) }
}

/// A function of `operands` elements at an index of `rank` coordinates.
fn function(expr: &Expr, operands: usize, rank: usize) -> Result<(), Fault> {
    for (index, step) in expr.steps.iter().enumerate() {
        let element = Element::new(step.dtype)?;
        for &arg in step.args.iter().take(arity(&step.op)) {
            below(arg.into(), index, "earlier step of the function")?;
        }
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

/// The number of steps that an operation uses.
fn arity(op: &Scalar) -> usize {
    match op {
        Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => 0,
        Scalar::Cast | Scalar::Unary(_) => 1,
        Scalar::Binary(_) | Scalar::Compare(_) => 2,
        Scalar::Select => 3,
    }
}

/// Functions exist for floats, for integers (of which bools are the smallest), or for both.
fn exists(step: &Step, element: Element) -> Result<(), Fault> {
    let (for_floats, for_integers, missing) = match &step.op {
        Scalar::Unary(op) => (has_float_unary(*op), has_integer_unary(*op), Fault::NoUnary(*op, step.dtype)),
        Scalar::Binary(op) => (has_float_binary(*op), has_integer_binary(*op), Fault::NoBinary(*op, step.dtype)),
        Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => return Ok(()),
        Scalar::Cast | Scalar::Compare(_) | Scalar::Select => return Ok(()),
    };
    let exists = if element.is_float() { for_floats } else { for_integers };
    if exists { Ok(()) } else { Err(missing) }
}

fn has_float_unary(op: Unary) -> bool {
    !matches!(op, Unary::Not | Unary::BitNot)
}

fn has_integer_unary(op: Unary) -> bool {
    matches!(op, Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Not | Unary::BitNot)
}

fn has_float_binary(op: Binary) -> bool {
    !matches!(op, Binary::And | Binary::Or | Binary::BitAnd | Binary::BitOr | Binary::BitXor)
}

fn has_integer_binary(op: Binary) -> bool {
    !matches!(op, Binary::Div | Binary::Atan2 | Binary::LogAddExp)
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
    let is = |value: Value, elements: &[Element]| Ok::<bool, Fault>(elements.contains(&element(graph, value)?));
    let seeds = [Element::I32, Element::I64, Element::U32];
    let is_right = is(sample.out, &[Element::U32, Element::I64])?
        && element(graph, sample.logits)?.is_float()
        && is(sample.temperature, &[Element::F32])?
        && is(sample.top_k, &[Element::I32, Element::I64])?
        && is(sample.top_p, &[Element::F32])?
        && sample.seed.map_or(Ok(true), |seed| is(seed, &seeds))?;
    ensure(is_right, "the tensors of a sampler have the types it takes")
}
