//! Elementwise functions.

use super::memory::Memory;
use super::number::{Element, Number};
use super::scalar::{binary_float, binary_int, compare, unary_float, unary_int};
use super::tensor::{Tensor, evaluate_shape, places, signed};
use crate::error::Fault;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::prim::View;

pub(super) fn map(memory: &mut Memory, out: &View, ins: &[View], expr: &Expr) -> Result<(), Fault> {
    let shape = evaluate_shape(out, &memory.values)?;
    let tensors: Vec<Tensor<'_>> = ins.iter().map(|view| memory.tensor(view)).collect::<Result<_, _>>()?;
    if tensors.iter().any(|tensor| tensor.shape() != shape) {
        return Err(Fault::Contract("the operands of a map have the shape of its result"));
    }
    let mut streams: Vec<_> = tensors.iter().map(Tensor::numbers).collect();
    let mut numbers = Vec::new();
    for place in places(&shape) {
        let elements: Vec<Number> = streams.iter_mut().filter_map(Iterator::next).collect();
        numbers.push(evaluate(expr, &elements, &place, &memory.values)?);
    }
    drop(streams);
    memory.store(out, numbers)
}

/// What is wrong with a function whatever it is applied to: it is tried on zeros.
pub(super) fn check(out: &View, ins: &[View], expr: &Expr) -> Result<(), Fault> {
    let zero = |dtype| Ok(Element::new(dtype)?.convert(Number::Int(0)));
    let elements: Vec<Number> = ins.iter().map(|view| zero(view.dtype)).collect::<Result<_, Fault>>()?;
    evaluate(expr, &elements, &vec![0; out.shape.len()], &[])?;
    if expr.steps.last().is_none_or(|step| step.dtype != out.dtype) {
        return Err(Fault::Contract("the last step of a function has the type of its result"));
    }
    Ok(())
}

/// The function of the elements at one place.
fn evaluate(expr: &Expr, elements: &[Number], place: &[usize], values: &[i64]) -> Result<Number, Fault> {
    let mut results: Vec<Number> = Vec::with_capacity(expr.steps.len());
    for step in &expr.steps {
        let element = Element::new(step.dtype)?;
        let number = match &step.op {
            Scalar::Load(index) => load(elements, usize::from(*index))?,
            Scalar::Float(value) => Number::Float(*value),
            Scalar::Int(dim) => Number::Int(dim.eval(values)),
            Scalar::Index(axis) => coordinate(place, usize::from(*axis))?,
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

fn coordinate(place: &[usize], axis: usize) -> Result<Number, Fault> {
    let at = place.get(axis).ok_or(Fault::NoSuch { what: "axis", index: axis, count: place.len() })?;
    Ok(Number::Int(signed(*at)))
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
