//! Reductions: many elements to one.

use crate::memory::Memory;
use crate::tensor::{Tensor, signed};
use ptero_arithmetic::{exp, ln, max, min};
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::Fold;

const EMPTY: Fault = Fault::Contract("nothing has no largest or smallest element");

pub(crate) fn reduce(memory: &mut Memory<'_>, out: Value, x: Value, axes: &[usize], fold: Fold) -> Result<(), Fault> {
    let tensor = memory.tensor(x)?;
    memory.expect_shape(out, &without(tensor, axes))?;
    // Elements are combined in the order of the tensor, whatever the order of the axes.
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    let x = tensor.with_last(&axes)?;
    let is_float = x.element.is_float();
    let groups = x.inner(axes.len()).map(|group| group.numbers().collect::<Vec<Number>>());
    let numbers = groups.map(|group| combine(fold, &group, is_float)).collect::<Result<Vec<_>, _>>()?;
    memory.store(out, numbers)
}

/// The sizes that are left when these axes are combined.
fn without(tensor: &Tensor, axes: &[usize]) -> Vec<usize> {
    let sizes = tensor.shape().iter().enumerate();
    sizes.map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect()
}

fn combine(fold: Fold, group: &[Number], is_float: bool) -> Result<Number, Fault> {
    let floats = || group.iter().map(|number| number.float());
    let ints = || group.iter().map(|number| number.int());
    Ok(match fold {
        Fold::Sum if is_float => Number::Float(sum(floats())),
        Fold::Sum => Number::Int(ints().fold(0, i64::wrapping_add)),
        Fold::Prod if is_float => Number::Float(strands(floats(), 1.0, |product, x| product * x)),
        Fold::Prod => Number::Int(ints().fold(1, i64::wrapping_mul)),
        Fold::Max | Fold::Min if group.is_empty() => return Err(EMPTY),
        Fold::Max if is_float => Number::Float(largest(floats())),
        Fold::Min if is_float => Number::Float(strands(floats(), f32::INFINITY, min)),
        Fold::Max => *group.get(extreme(group, true)?).ok_or(EMPTY)?,
        Fold::Min => *group.get(extreme(group, false)?).ok_or(EMPTY)?,
        Fold::Any => Number::Int(group.iter().any(|number| number.is_true()).into()),
        Fold::All => Number::Int(group.iter().all(|number| number.is_true()).into()),
        Fold::Mean => Number::Float(mean(floats(), group.len())),
        Fold::Var { ddof } => Number::Float(variance(floats, group.len(), ddof)),
        Fold::LogSumExp => Number::Float(log_sum_exp(floats)),
    })
}

/// The index of the first largest (or smallest) number; that of the first NaN, if there is one.
fn extreme(numbers: &[Number], largest: bool) -> Result<usize, Fault> {
    let beats = |x: Number, best: Number| match (x.is_nan(), best.is_nan()) {
        (_, true) => false,
        (true, false) => true,
        (false, false) => {
            if largest {
                x.order(best).is_gt()
            } else {
                x.order(best).is_lt()
            }
        }
    };
    let (mut index, mut best) = (0, *numbers.first().ok_or(EMPTY)?);
    for (at, &number) in numbers.iter().enumerate() {
        if beats(number, best) {
            (index, best) = (at, number);
        }
    }
    Ok(index)
}

/// Combines floats as in `docs/ARITHMETIC.md`: in 64 strands, each float with the one 64 positions before it, and then the upper
/// half of the strands with the lower half, until one is left.
#[allow(clippy::indexing_slicing, reason = "indices are below 64")]
fn strands(floats: impl Iterator<Item = f32>, start: f32, combine: fn(f32, f32) -> f32) -> f32 {
    let mut strands = [start; 64];
    for (index, x) in floats.enumerate() {
        strands[index % 64] = combine(strands[index % 64], x);
    }
    for width in [32, 16, 8, 4, 2, 1] {
        for strand in 0..width {
            strands[strand] = combine(strands[strand], strands[strand + width]);
        }
    }
    strands[0]
}

/// The sum, in strands.
pub(crate) fn sum(floats: impl Iterator<Item = f32>) -> f32 {
    strands(floats, 0.0, |sum, x| sum + x)
}

/// The largest, in strands; NaN if there is one.
pub(crate) fn largest(floats: impl Iterator<Item = f32>) -> f32 {
    strands(floats, f32::NEG_INFINITY, max)
}

pub(crate) fn mean(floats: impl Iterator<Item = f32>, count: usize) -> f32 {
    sum(floats) / float(count)
}

pub(crate) fn variance<I: Iterator<Item = f32>>(floats: impl Fn() -> I, count: usize, ddof: i32) -> f32 {
    let mean = mean(floats(), count);
    let squares = sum(floats().map(|x| (x - mean) * (x - mean)));
    // With fewer elements than `ddof`, the divisor is zero, not negative.
    squares / Number::Int((signed(count) - i64::from(ddof)).max(0)).float()
}

fn log_sum_exp<I: Iterator<Item = f32>>(floats: impl Fn() -> I) -> f32 {
    let largest = largest(floats());
    if largest.is_infinite() {
        return largest;
    }
    largest + ln(sum(floats().map(|x| exp(x - largest))))
}

fn float(count: usize) -> f32 {
    Number::Int(signed(count)).float()
}

pub(crate) fn arg_reduce(
    memory: &mut Memory<'_>,
    out: Value,
    x: Value,
    axis: usize,
    largest: bool,
) -> Result<(), Fault> {
    let tensor = memory.tensor(x)?;
    memory.expect_shape(out, &without(tensor, &[axis]))?;
    let lines = tensor.lines(axis)?.map(|line| line.numbers().collect::<Vec<Number>>());
    let indices = lines.map(|line| Ok(Number::Int(signed(extreme(&line, largest)?)))).collect::<Result<_, Fault>>()?;
    memory.store(out, indices)
}
