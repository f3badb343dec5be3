//! Elementwise functions: an array per step.

use crate::bridge::ffi::Kind;
use crate::frame::{Frame, Sizes, device};
use crate::kind::{binary, compare, kind, unary};
use ptero_backend::Fault;
use ptero_plan::expr::{Expr, Scalar, Step};
use ptero_plan::graph::Value;
use ptero_plan::prim::Epilogue;
use smallvec::SmallVec;

pub(crate) fn map(frame: &mut Frame<'_>, out: Value, ins: &[Value], expr: &Expr) -> Result<(), Fault> {
    let shape = frame.shape(out)?;
    let operands: SmallVec<[u32; 8]> = ins.iter().map(|value| value.0).collect();
    evaluate(frame, out, &shape, &operands, expr)
}

/// Applies the epilogue of a product, which is rounded to its own type before.
pub(crate) fn fused(frame: &mut Frame<'_>, out: Value, product: u32, epilogue: &Epilogue<Value>) -> Result<(), Fault> {
    let Some(fused) = epilogue else { return frame.arrays().alias(out.0, product).map_err(device) };
    let shape = frame.shape(out)?;
    let operands: SmallVec<[u32; 8]> = std::iter::once(product).chain(fused.ins.iter().map(|value| value.0)).collect();
    evaluate(frame, out, &shape, &operands, &fused.expr)
}

fn evaluate(frame: &mut Frame<'_>, out: Value, shape: &Sizes, operands: &[u32], expr: &Expr) -> Result<(), Fault> {
    let mark = frame.mark();
    let mut results: SmallVec<[u32; 16]> = SmallVec::new();
    for operand in operands {
        if !frame.values.has_shape(*operand, shape).map_err(device)? {
            return Err(Fault::Contract("the operands of a map have the shape of its result"));
        }
    }
    for step in &expr.steps {
        let slot = step_result(frame, shape, operands, &results, step)?;
        results.push(slot);
    }
    let last = *results.last().ok_or(Fault::Contract("a function has a step"))?;
    // A function of constants and indices has fewer elements than its result.
    if frame.values.has_shape(last, shape).map_err(device)? {
        frame.arrays().alias(out.0, last).map_err(device)?;
    } else {
        frame.arrays().broadcast(out.0, last, shape).map_err(device)?;
    }
    frame.release(mark);
    Ok(())
}

fn step_result(
    frame: &mut Frame<'_>,
    shape: &Sizes,
    operands: &[u32],
    results: &[u32],
    step: &Step,
) -> Result<u32, Fault> {
    if let Scalar::Load(index) = step.op {
        let unknown = Fault::NoSuch { what: "operand", index: index.into(), count: operands.len() };
        return operands.get(usize::from(index)).copied().ok_or(unknown);
    }
    let mut args = [0; 3];
    for (arg, index) in args.iter_mut().zip(step.args).take(step.op.arity()) {
        let unknown = Fault::NoSuch { what: "earlier step of the function", index: index.into(), count: results.len() };
        *arg = *results.get(usize::from(index)).ok_or(unknown)?;
    }
    let ([a, b, c], own) = (args, kind(step.dtype)?);
    let slot = frame.temporary();
    match &step.op {
        Scalar::Load(_) => Ok(()),
        Scalar::Float(value) => frame.arrays().number(slot, (*value).into(), own),
        Scalar::Int(dim) => {
            let number = frame.eval(dim);
            frame.arrays().integer(slot, number, own)
        }
        Scalar::Index(axis) => frame.arrays().index(slot, shape, (*axis).into(), own),
        Scalar::Cast => frame.arrays().cast(slot, a, own),
        Scalar::Unary(op) => frame.arrays().unary(slot, unary(*op), a),
        Scalar::Binary(op) => frame.arrays().binary(slot, binary(*op), a, b),
        Scalar::Compare(op) => {
            frame.arrays().compare(slot, compare(*op), a, b).and_then(|()| as_kind(frame, slot, own))
        }
        Scalar::Select => frame.arrays().select(slot, a, b, c),
    }
    .map_err(device)?;
    Ok(slot)
}

/// Comparisons give bools; nearly always that is what is wanted.
fn as_kind(frame: &mut Frame<'_>, slot: u32, own: Kind) -> Result<(), cxx::Exception> {
    if own == Kind::Bool { Ok(()) } else { frame.arrays().cast(slot, slot, own) }
}
