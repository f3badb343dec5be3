//! Sorting and running sums along an axis.

mod radix;

use crate::lines::each_line;
use crate::pool::Scratch;
use crate::run::Context;
use crate::simd::Isa;
use crate::window::{Line, Target, Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;

pub(crate) fn sort(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    axis: usize,
    indices: bool,
) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let (outer, line) = x.window.lines(axis);
    let lines = Unsorted { isa, x, outer, line };
    // Sorting costs more than reading.
    let cost = (axis, 4 * line.length);
    match (indices, lines.x.is_float()) {
        (true, true) => each_line(&mut workers, isa, target, cost, |number, out: &mut [i64], scratch| {
            let (_, order) = lines.floats(number, scratch);
            out.iter_mut().zip(order).for_each(|(out, key)| *out = key & PLACE);
        }),
        (true, false) => each_line(&mut workers, isa, target, cost, |number, out: &mut [i64], scratch| {
            let (_, order) = lines.ints(number, scratch);
            out.iter_mut().zip(order).for_each(|(out, key)| *out = key & PLACE);
        }),
        (false, true) => each_line(&mut workers, isa, target, cost, |number, out: &mut [f32], scratch| {
            let (floats, order) = lines.floats(number, scratch);
            let float = |key: i64| unkeyed(key).or_else(|| floats.get(place(key)).copied());
            out.iter_mut().zip(order).for_each(|(out, key)| *out = float(*key).unwrap_or(0.0));
        }),
        (false, false) => each_line(&mut workers, isa, target, cost, |number, out: &mut [i64], scratch| {
            let (ints, order) = lines.ints(number, scratch);
            out.iter_mut().zip(order).for_each(|(out, key)| *out = ints.get(place(*key)).copied().unwrap_or(0));
        }),
    }
    Ok(())
}

/// The half of a key that says where its element came from.
const PLACE: i64 = 0xFFFF_FFFF;

/// Where the element of a key came from.
fn place(key: i64) -> usize {
    usize::try_from(key & PLACE).unwrap_or(usize::MAX)
}

/// Lines to be sorted.
struct Unsorted<'a> {
    isa: Isa,
    x: Tensor<'a>,
    outer: Window,
    line: Line,
}

impl Unsorted<'_> {
    /// A line of floats, and its keys, sorted.
    fn floats<'s>(&self, number: usize, scratch: &'s mut Scratch) -> (&'s [f32], &'s [i64]) {
        let ([floats], [keys, spare]) = scratch.both([self.line.length], [self.line.length; 2]);
        self.x.read(self.isa, self.outer.offset_of(number), self.line.stride, floats);
        keys.iter_mut().zip(&*floats).zip(0..).for_each(|((key, x), place)| *key = key_of(*x) << 32 | place);
        (floats, radix::sort(keys, spare))
    }

    /// A line of integers, and its keys, sorted; of keys of 64-bit integers, only the places.
    fn ints<'s>(&self, number: usize, scratch: &'s mut Scratch) -> (&'s [i64], &'s [i64]) {
        let [ints, keys, spare] = scratch.ints([self.line.length; 3]);
        self.x.read(self.isa, self.outer.offset_of(number), self.line.stride, ints);
        if self.x.dtype == DType::I64 {
            keys.iter_mut().zip(0..).for_each(|(key, place)| *key = place);
            keys.sort_unstable_by_key(|key| (ints.get(place(*key)), *key));
            return (ints, keys);
        }
        // All others fit 32 bits with their sign, once `u32` is moved.
        let first = if self.x.dtype == DType::U32 { i64::from(i32::MIN) } else { 0 };
        keys.iter_mut().zip(&*ints).zip(0..).for_each(|((key, x), place)| *key = (x + first) << 32 | place);
        (ints, radix::sort(keys, spare))
    }
}

/// An integer that sorts as the float does, and has zeros below where it has.
fn key_of(x: f32) -> i64 {
    let bits = x.to_bits().cast_signed();
    // So both zeros are equal, and below them a larger magnitude is less.
    let ordered = if bits < 0 { -(bits & i32::MAX) } else { bits };
    (if x.is_nan() { i32::MAX } else { ordered }).into()
}

/// The float of a key, unless there are several.
fn unkeyed(key: i64) -> Option<f32> {
    let ordered = i32::try_from(key >> 32).ok()?;
    let x = f32::from_bits(ordered.unsigned_abs());
    (ordered != 0 && ordered != i32::MAX).then_some(if ordered < 0 { -x } else { x })
}

pub(crate) fn cumsum(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    axis: usize,
    (reverse, inclusive): (bool, bool),
) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers): (Target<'_>, _, _) = context.open(out)?;
    let x = sources.tensor(x)?;
    let (outer, line) = x.window.lines(axis);
    if x.is_float() {
        each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [f32], _| {
            x.read(isa, outer.offset_of(number), line.stride, out);
            run(out, 0.0, |a, b| a + b, reverse, inclusive);
        });
    } else {
        each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [i64], _| {
            x.read(isa, outer.offset_of(number), line.stride, out);
            run(out, 0, i64::wrapping_add, reverse, inclusive);
        });
    }
    Ok(())
}

/// Running sums in place.
fn run<N: Copy>(line: &mut [N], zero: N, plus: impl Fn(N, N) -> N, reverse: bool, inclusive: bool) {
    let mut sum = zero;
    let mut step = |number: &mut N| {
        let before = sum;
        sum = plus(sum, *number);
        *number = if inclusive { sum } else { before };
    };
    if reverse {
        line.iter_mut().rev().for_each(&mut step);
    } else {
        line.iter_mut().for_each(&mut step);
    }
}
