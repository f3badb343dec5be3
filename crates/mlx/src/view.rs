//! Views, and operations that join and replace elements without computing.

use crate::frame::{Frame, axis as number, device, small};
use ptero_backend::{Fault, NumberFault};
use ptero_plan::graph::{Value, ViewOp};
use smallvec::SmallVec;

const NO_AXIS: Fault = Fault::Contract("the axis exists");

pub(crate) fn view(frame: &mut Frame<'_>, out: Value, x: Value, how: &ViewOp) -> Result<(), Fault> {
    let shape = frame.shape(out)?;
    match how {
        ViewOp::Reshape => frame.arrays().reshape(out.0, x.0, &shape),
        ViewOp::Permute(order) => {
            let order: SmallVec<[i32; 6]> = order.iter().copied().map(number).collect();
            frame.arrays().permute(out.0, x.0, &order)
        }
        ViewOp::Broadcast => frame.arrays().broadcast(out.0, x.0, &shape),
        ViewOp::Slice { axis, start, step } => {
            let (count, size) = (*shape.get(*axis).ok_or(NO_AXIS)?, *frame.shape(x)?.get(*axis).ok_or(NO_AXIS)?);
            let start = frame.eval(start);
            inside(start, count, *step, size)?;
            let (start, step) = (if count == 0 { 0 } else { small(start)? }, if count < 2 { 1 } else { small(*step)? });
            frame.arrays().slice(out.0, x.0, number(*axis), start, count, step)
        }
        ViewOp::Strided { strides, offset } => {
            let strides: SmallVec<[i64; 6]> = strides.iter().map(|stride| frame.eval(stride)).collect();
            let offset = frame.eval(offset);
            strided_inside(&shape, &strides, offset, &frame.shape(x)?)?;
            if shape.contains(&0) {
                let kind = frame.kind(out)?;
                frame.arrays().zeros(out.0, &shape, kind)
            } else {
                frame.arrays().strided(out.0, x.0, &shape, &strides, offset)
            }
        }
    }
    .map_err(device)
}

/// Refuses a slice that leaves its operand.
fn inside(start: i64, count: i32, step: i64, size: i32) -> Result<(), Fault> {
    let last = i128::from(start) + i128::from(step) * i128::from(count - 1);
    let (first, size) = (i128::from(start), i128::from(size));
    if count == 0 || (0..size).contains(&first) && (0..size).contains(&last) {
        return Ok(());
    }
    let count = usize::try_from(size).unwrap_or(0);
    Err(NumberFault::OutsideBuffer { first: first.min(last), last: first.max(last), count }.into())
}

fn strided_inside(shape: &[i32], strides: &[i64], offset: i64, operand: &[i32]) -> Result<(), Fault> {
    if shape.contains(&0) {
        return Ok(());
    }
    let count = operand.iter().fold(1_i128, |count, size| count * i128::from(*size));
    let (mut first, mut last) = (i128::from(offset), i128::from(offset));
    for (size, stride) in shape.iter().zip(strides) {
        let reach = i128::from(size - 1) * i128::from(*stride);
        (first, last) = (first + reach.min(0), last + reach.max(0));
    }
    if first >= 0 && last < count {
        return Ok(());
    }
    Err(NumberFault::OutsideBuffer { first, last, count: usize::try_from(count).unwrap_or(0) }.into())
}

pub(crate) fn concat(frame: &mut Frame<'_>, out: Value, parts: &[Value], axis: usize) -> Result<(), Fault> {
    let shape = frame.shape(out)?;
    let slots: SmallVec<[u32; 8]> = parts.iter().map(|part| part.0).collect();
    if slots.is_empty() {
        let kind = frame.kind(out)?;
        return frame.arrays().zeros(out.0, &shape, kind).map_err(device);
    }
    frame.arrays().concat(out.0, &slots, number(axis)).map_err(device)?;
    expect(frame, out, &shape, "what is joined makes up the whole")
}

/// Refuses a result that has another shape than it says.
pub(crate) fn expect(frame: &mut Frame<'_>, out: Value, shape: &[i32], what: &'static str) -> Result<(), Fault> {
    if frame.values.has_shape(out.0, shape).map_err(device)? { Ok(()) } else { Err(Fault::Contract(what)) }
}

pub(crate) fn update(
    frame: &mut Frame<'_>,
    out: Value,
    base: Value,
    new: Value,
    (axis, start, step): (usize, i64, i64),
) -> Result<(), Fault> {
    let (whole, part) = (frame.shape(base)?, frame.shape(new)?);
    let (size, count) = (*whole.get(axis).ok_or(NO_AXIS)?, *part.get(axis).ok_or(NO_AXIS)?);
    inside(start, count, step, size)?;
    let (start, step) = (if count == 0 { 0 } else { small(start)? }, if count < 2 { 1 } else { small(step)? });
    frame.arrays().update(out.0, base.0, new.0, number(axis), start, step).map_err(device)
}
