//! Elementwise functions.

use crate::memory::Memory;
use crate::scalar::{binary_float, binary_int, compare, unary_float, unary_int};
use crate::tensor::{Tensor, coordinates, signed};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::Value;
use ptero_plan::prim::Epilogue;

pub(crate) fn map(memory: &mut Memory<'_>, out: Value, ins: &[Value], expr: &Expr) -> Result<(), Fault> {
    let shape = memory.shape(out)?;
    let numbers = evaluate_all(memory, &shape, None, ins, expr)?;
    memory.store(out, numbers)
}

/// Applies the epilogue of a product: its elements are rounded to their own type and are the first operand of the function.
pub(crate) fn fused(
    memory: &Memory<'_>,
    shape: &[usize],
    numbers: Vec<Number>,
    epilogue: &Epilogue<Value>,
) -> Result<Vec<Number>, Fault> {
    let Some(fused) = epilogue else { return Ok(numbers) };
    let element = Element::new(fused.dtype)?;
    let rounded = numbers.into_iter().map(|number| element.convert(number)).collect();
    evaluate_all(memory, shape, Some(rounded), &fused.ins, &fused.expr)
}

/// The function at all indices of a shape. Numbers that are given are its first operand.
fn evaluate_all(
    memory: &Memory<'_>,
    shape: &[usize],
    first: Option<Vec<Number>>,
    ins: &[Value],
    expr: &Expr,
) -> Result<Vec<Number>, Fault> {
    let tensors: Vec<&Tensor> = ins.iter().map(|value| memory.tensor(*value)).collect::<Result<_, _>>()?;
    if tensors.iter().any(|tensor| tensor.shape() != shape) {
        return Err(Fault::Contract("the operands of a map have the shape of its result"));
    }
    let mut first = first.map(Vec::into_iter);
    let mut streams: Vec<_> = tensors.iter().map(|tensor| tensor.numbers()).collect();
    let mut numbers = Vec::new();
    for at in coordinates(shape) {
        let first = first.as_mut().and_then(Iterator::next);
        let elements: Vec<Number> = first.into_iter().chain(streams.iter_mut().filter_map(Iterator::next)).collect();
        numbers.push(evaluate(expr, &elements, &at, &memory.host)?);
    }
    Ok(numbers)
}

/// The function of the elements at one index.
pub(crate) fn evaluate(expr: &Expr, elements: &[Number], at: &[usize], values: &[i64]) -> Result<Number, Fault> {
    let mut results: Vec<Number> = Vec::with_capacity(expr.steps.len());
    for step in &expr.steps {
        let element = Element::new(step.dtype)?;
        let number = match &step.op {
            Scalar::Load(index) => load(elements, usize::from(*index))?,
            Scalar::Float(value) => Number::Float(*value),
            Scalar::Int(dim) => Number::Int(dim.eval(values)),
            Scalar::Index(axis) => coordinate(at, usize::from(*axis))?,
            Scalar::Cast => arguments::<1>(&results, step)?[0],
            Scalar::Unary(op) => unary(*op, step, element, arguments(&results, step)?)?,
            Scalar::Binary(op) => binary(*op, step, element, arguments(&results, step)?)?,
            Scalar::Compare(op) => {
                let [left, right] = arguments(&results, step)?;
                Number::Int(compare(*op, left.compare(right)).into())
            }
            Scalar::Select => {
                let [condition, yes, no] = arguments(&results, step)?;
                if condition.is_true() { yes } else { no }
            }
        };
        results.push(element.convert(number));
    }
    results.last().copied().ok_or(Fault::Contract("a function has a step"))
}

fn load(elements: &[Number], index: usize) -> Result<Number, Fault> {
    elements.get(index).copied().ok_or(Fault::NoSuch { what: "operand", index, count: elements.len() })
}

fn coordinate(at: &[usize], axis: usize) -> Result<Number, Fault> {
    let index = at.get(axis).ok_or(Fault::NoSuch { what: "axis", index: axis, count: at.len() })?;
    Ok(Number::Int(signed(*index)))
}

/// The results that a step uses.
fn arguments<const N: usize>(results: &[Number], step: &Step) -> Result<[Number; N], Fault> {
    let mut arguments = [Number::Int(0); N];
    for (argument, &index) in arguments.iter_mut().zip(&step.args) {
        let unknown = Fault::NoSuch { what: "earlier step of the function", index: index.into(), count: results.len() };
        *argument = *results.get(usize::from(index)).ok_or(unknown)?;
    }
    Ok(arguments)
}

fn unary(op: Unary, step: &Step, element: Element, [x]: [Number; 1]) -> Result<Number, Fault> {
    let result = if element.is_float() {
        unary_float(op, x.float()).map(Number::Float)
    } else {
        let op = if op == Unary::BitNot && element == Element::Bool { Unary::Not } else { op };
        unary_int(op, x.int()).map(Number::Int)
    };
    result.ok_or(Fault::NoUnary(op, step.dtype))
}

fn binary(op: Binary, step: &Step, element: Element, [a, b]: [Number; 2]) -> Result<Number, Fault> {
    let result = if element.is_float() {
        binary_float(op, a.float(), b.float()).map(Number::Float)
    } else {
        binary_int(op, a.int(), b.int()).map(Number::Int)
    };
    result.ok_or(Fault::NoBinary(op, step.dtype))
}
