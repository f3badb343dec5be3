//! What moves elements: gather, scatter, sort; and running sums.

use super::memory::Memory;
use super::number::Number;
use super::tensor::{evaluate_shape, places, signed};
use crate::error::Fault;
use ptero_plan::prim::{Axis, View};

pub(super) fn gather(memory: &mut Memory, out: &View, x: &View, axes: &[Axis]) -> Result<(), Fault> {
    let shape = evaluate_shape(out, &memory.values)?;
    let x = memory.tensor(x)?;
    let sources = targets(memory, axes, &shape, x.shape())?;
    let numbers = sources.into_iter().map(|place| x.at(&place)).collect();
    memory.store(out, numbers)
}

pub(super) fn scatter(memory: &mut Memory, out: &View, updates: &View, axes: &[Axis], add: bool) -> Result<(), Fault> {
    let out_shape = evaluate_shape(out, &memory.values)?;
    let updates = memory.tensor(updates)?;
    // All places are known to exist before the first is written.
    let places = targets(memory, axes, updates.shape(), &out_shape)?;
    let updates: Vec<Number> = updates.numbers().collect();
    let (element, window, bytes) = memory.target(out)?;
    for (place, update) in places.into_iter().zip(updates) {
        let offset = window.offset_of(&place);
        let number = if add { plus(element.load(bytes, offset), update) } else { update };
        element.store(bytes, offset, number);
    }
    Ok(())
}

/// For each place of `shape`, in row-major order, the place that `axes` name in a tensor of `sizes`.
fn targets(memory: &Memory, axes: &[Axis], shape: &[usize], sizes: &[usize]) -> Result<Vec<Vec<usize>>, Fault> {
    if axes.len() != sizes.len() {
        return Err(Fault::Contract("there is an index for each axis"));
    }
    let mut indices = Vec::with_capacity(axes.len());
    for axis in axes {
        let tensor = memory.optional(axis.index.as_ref())?;
        if tensor.as_ref().is_some_and(|tensor| tensor.shape() != shape) {
            return Err(Fault::Contract("indices have the shape of what they are for"));
        }
        indices.push(tensor.map(|tensor| tensor.numbers()));
    }
    let mut targets = Vec::new();
    for place in places(shape) {
        let per_axis = axes.iter().zip(&mut indices).zip(sizes);
        let target = per_axis.map(|((axis, indices), &size)| {
            let index = indices.as_mut().and_then(Iterator::next).map_or(0, Number::int);
            let coordinate = axis.coordinate.and_then(|axis| place.get(axis)).copied().unwrap_or(0);
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

pub(super) fn sort(memory: &mut Memory, out: &View, x: &View, axis: usize, indices: bool) -> Result<(), Fault> {
    let mut numbers = Vec::new();
    for line in memory.tensor(x)?.lines(axis)? {
        let mut sorted: Vec<(i64, Number)> = (0..).zip(line.numbers()).collect();
        sorted.sort_by(|(_, left), (_, right)| left.order(*right));
        numbers.extend(sorted.into_iter().map(|(place, number)| if indices { Number::Int(place) } else { number }));
    }
    memory.store_with_last(out, &[axis], numbers)
}

pub(super) fn cumsum(
    memory: &mut Memory,
    out: &View,
    x: &View,
    axis: usize,
    (reverse, inclusive): (bool, bool),
) -> Result<(), Fault> {
    let mut numbers = Vec::new();
    let x = memory.tensor(x)?;
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
