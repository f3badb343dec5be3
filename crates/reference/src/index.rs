//! Gather, scatter, sort and running sums.

use crate::memory::Memory;
use crate::tensor::{coordinates, signed};
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::Axis;

pub(crate) fn gather(memory: &mut Memory<'_>, out: Value, x: Value, axes: &[Axis<Value>]) -> Result<(), Fault> {
    let shape = memory.shape(out)?;
    let x = memory.tensor(x)?;
    let sources = targets(memory, axes, &shape, x.shape())?;
    let numbers = sources.into_iter().map(|source| x.at(&source)).collect();
    memory.store(out, numbers)
}

pub(crate) fn scatter(
    memory: &mut Memory<'_>,
    out: Value,
    (base, updates): (Value, Value),
    axes: &[Axis<Value>],
    add: bool,
) -> Result<(), Fault> {
    let (base, updates) = (memory.tensor(base)?, memory.tensor(updates)?);
    let targets = targets(memory, axes, updates.shape(), base.shape())?;
    let element = base.element;
    let updated = base.edited(|bytes, layout| {
        for (target, update) in targets.into_iter().zip(updates.numbers()) {
            let offset = layout.offset_of(&target);
            let number = if add { plus(element.load(bytes, offset), update) } else { update };
            element.store(bytes, offset, number);
        }
        Ok(())
    })?;
    memory.define(out, updated)
}

/// For each element of `shape`, in row-major order, the coordinates that `axes` give in a tensor of `sizes`.
fn targets(
    memory: &Memory<'_>,
    axes: &[Axis<Value>],
    shape: &[usize],
    sizes: &[usize],
) -> Result<Vec<Vec<usize>>, Fault> {
    if axes.len() != sizes.len() {
        return Err(Fault::Contract("there is an index for each axis"));
    }
    let mut indices = Vec::with_capacity(axes.len());
    for axis in axes {
        let tensor = memory.optional(axis.index)?;
        if tensor.is_some_and(|tensor| tensor.shape() != shape) {
            return Err(Fault::Contract("indices have the shape of what they are for"));
        }
        indices.push(tensor.map(|tensor| tensor.numbers()));
    }
    let mut targets = Vec::new();
    for at in coordinates(shape) {
        let per_axis = axes.iter().zip(&mut indices).zip(sizes);
        let target = per_axis.map(|((axis, indices), &size)| {
            let index = indices.as_mut().and_then(Iterator::next).map_or(0, Number::int);
            let coordinate = axis.coordinate.and_then(|axis| at.get(axis)).copied().unwrap_or(0);
            resolve(index, coordinate, size)
        });
        targets.push(target.collect::<Result<_, _>>()?);
    }
    Ok(targets)
}

/// The index, counted from the end if it is negative, plus the coordinate.
fn resolve(index: i64, coordinate: usize, size: usize) -> Result<usize, Fault> {
    let from_start = if index < 0 { index.checked_add(signed(size)) } else { Some(index) };
    let start = from_start.and_then(|start| usize::try_from(start).ok());
    let sum = start.and_then(|start| start.checked_add(coordinate)).filter(|&sum| sum < size);
    sum.ok_or(Fault::IndexOutside { index: index.saturating_add(signed(coordinate)), size })
}

pub(crate) fn sort(memory: &mut Memory<'_>, out: Value, x: Value, axis: usize, indices: bool) -> Result<(), Fault> {
    let mut numbers = Vec::new();
    let x = memory.tensor(x)?;
    memory.expect_shape(out, x.shape())?;
    for line in x.lines(axis)? {
        let mut sorted: Vec<(i64, Number)> = (0..).zip(line.numbers()).collect();
        sorted.sort_by(|(_, left), (_, right)| left.order(*right));
        numbers.extend(sorted.into_iter().map(|(index, number)| if indices { Number::Int(index) } else { number }));
    }
    memory.store_with_last(out, &[axis], numbers)
}

pub(crate) fn cumsum(
    memory: &mut Memory<'_>,
    out: Value,
    x: Value,
    axis: usize,
    (reverse, inclusive): (bool, bool),
) -> Result<(), Fault> {
    let mut numbers = Vec::new();
    let x = memory.tensor(x)?;
    memory.expect_shape(out, x.shape())?;
    let zero = if x.element.is_float() { Number::Float(0.0) } else { Number::Int(0) };
    for line in x.lines(axis)? {
        let mut line: Vec<Number> = line.numbers().collect();
        if reverse {
            line.reverse();
        }
        let mut sum = zero;
        for number in &mut line {
            let before = sum;
            sum = plus(sum, *number);
            *number = if inclusive { sum } else { before };
        }
        if reverse {
            line.reverse();
        }
        numbers.extend(line);
    }
    memory.store_with_last(out, &[axis], numbers)
}

fn plus(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Number::Int(a.wrapping_add(b)),
        (a, b) => Number::Float(a.float() + b.float()),
    }
}
