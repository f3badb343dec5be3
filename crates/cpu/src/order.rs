//! Sorting and running sums along an axis.
#![allow(clippy::indexing_slicing, reason = "a key holds the index of an element of its line")]

mod radix;

use crate::element::{Number, from_ordered, ordered};
use crate::lines::each_line;
use crate::pool::{Scratch, Workers};
use crate::run::Context;
use crate::view::{Target, TensorLines};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;

pub(crate) fn sort(context: &mut Context<'_>, x: &ViewId, axis: usize, indices: bool) -> Result<(), Fault> {
    let (target, sources, mut workers) = context.open()?;
    let x = sources.shaped(x, &target.view.shape)?.lines(axis);
    let is_float = x.tensor.is_float();
    // Sorting costs more than reading.
    let cost = (axis, 4 * x.line.length);
    if indices {
        each_line(&mut workers, target, cost, |number, out: &mut [i64], scratch| {
            let keys = if is_float { sort_floats(&x, number, scratch).1 } else { sort_ints(&x, number, scratch).1 };
            out.iter_mut().zip(keys).for_each(|(out, key)| *out = key & INDEX);
        });
    } else if is_float {
        each_line(&mut workers, target, cost, |number, out: &mut [f32], scratch| {
            let (floats, keys) = sort_floats(&x, number, scratch);
            let float = |key: i64| float_of(key).unwrap_or_else(|| floats[index_of(key)]);
            out.iter_mut().zip(keys).for_each(|(out, key)| *out = float(*key));
        });
    } else {
        each_line(&mut workers, target, cost, |number, out: &mut [i64], scratch| {
            let (ints, keys) = sort_ints(&x, number, scratch);
            out.iter_mut().zip(keys).for_each(|(out, key)| *out = ints[index_of(*key)]);
        });
    }
    Ok(())
}

/// The half of a key that holds the index of its element in the line.
const INDEX: i64 = 0xFFFF_FFFF;

fn index_of(key: i64) -> usize {
    usize::try_from(key & INDEX).unwrap_or(usize::MAX)
}

/// Reads a line of floats; also returns its sorted keys.
fn sort_floats<'s>(x: &TensorLines<'_>, number: usize, scratch: &'s mut Scratch) -> (&'s [f32], &'s [i64]) {
    let length = x.line.length;
    let ([floats], [keys, spare]) = (scratch.floats.pieces([length]), scratch.ints.pieces([length; 2]));
    x.read(number, 0, floats);
    keys.iter_mut().zip(&*floats).zip(0..).for_each(|((key, x), index)| *key = key_of(*x) << 32 | index);
    (floats, radix::sort(keys, spare))
}

/// Reads a line of integers; also returns its sorted keys. Keys of 64-bit integers hold only the index.
fn sort_ints<'s>(x: &TensorLines<'_>, number: usize, scratch: &'s mut Scratch) -> (&'s [i64], &'s [i64]) {
    let [ints, keys, spare] = scratch.ints([x.line.length; 3]);
    x.read(number, 0, ints);
    if x.tensor.dtype == DType::I64 {
        keys.iter_mut().zip(0..).for_each(|(key, index)| *key = index);
        keys.sort_unstable_by_key(|key| (ints[index_of(*key)], *key));
        return (ints, keys);
    }
    // All other types fit 32 bits with a sign once `u32` is shifted.
    let shift = if x.tensor.dtype == DType::U32 { i64::from(i32::MIN) } else { 0 };
    keys.iter_mut().zip(&*ints).zip(0..).for_each(|((key, x), index)| *key = (x + shift) << 32 | index);
    (ints, radix::sort(keys, spare))
}

/// An integer that sorts as the float does: NaN is the largest.
fn key_of(x: f32) -> i64 {
    if x.is_nan() { i32::MAX.into() } else { ordered(x) }
}

/// The float of a key, unless several floats have it.
fn float_of(key: i64) -> Option<f32> {
    let ordered = key >> 32;
    (ordered != 0 && ordered != i32::MAX.into()).then(|| from_ordered(ordered))
}

pub(crate) fn cumsum(context: &mut Context<'_>, x: &ViewId, axis: usize, order: (bool, bool)) -> Result<(), Fault> {
    let (target, sources, mut workers) = context.open()?;
    let x = sources.shaped(x, &target.view.shape)?.lines(axis);
    if x.tensor.is_float() {
        running_sums::<f32>(&mut workers, target, (&x, axis), |a, b| a + b, order);
    } else {
        running_sums(&mut workers, target, (&x, axis), i64::wrapping_add, order);
    }
    Ok(())
}

fn running_sums<N: Number>(
    workers: &mut Workers<'_>,
    target: Target<'_>,
    (x, axis): (&TensorLines<'_>, usize),
    plus: impl Fn(N, N) -> N + Sync,
    (reverse, inclusive): (bool, bool),
) {
    each_line(workers, target, (axis, x.line.length), |number, out: &mut [N], _| {
        x.read(number, 0, out);
        let mut sum = N::default();
        for at in 0..out.len() {
            let at = if reverse { out.len() - 1 - at } else { at };
            let before = sum;
            sum = plus(sum, out[at]);
            out[at] = if inclusive { sum } else { before };
        }
    });
}
