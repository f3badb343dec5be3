//! Sorting and running sums along an axis.

use crate::element::Number;
use crate::lines::each_line;
use crate::run::Context;
use crate::window::{Line, Target, Tensor};
use ptero_backend::Fault;
use ptero_plan::prim::View;

pub(crate) fn sort(context: &mut Context<'_>, out: &View, x: &View, axis: usize, indices: bool) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let (outer, line) = x.window.lines(axis);
    let places = |number: usize, scratch: &mut crate::pool::Scratch, take: &mut dyn FnMut(usize)| {
        let ([floats], [ints, order]) = scratch.both([line.length], [line.length, line.length]);
        let start = outer.offset_of(number);
        if x.is_float() {
            x.read(isa, start, line.stride, floats);
            order.iter_mut().zip(floats.iter()).zip(0..).for_each(|((key, x), place)| *key = float_key(*x, place));
            order.sort_unstable();
            order.iter().for_each(|key| take(place(key & 0xFFFF_FFFF)));
        } else {
            x.read(isa, start, line.stride, ints);
            order.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
            let number = |at: i64| ints.get(place(at)).copied();
            order.sort_unstable_by_key(|at| (number(*at), *at));
            order.iter().for_each(|at| take(place(*at)));
        }
    };
    if indices {
        each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [i64], scratch| {
            let mut out = out.iter_mut();
            places(number, scratch, &mut |place| {
                out.next().into_iter().for_each(|out| *out = place.cast_signed() as i64);
            });
        });
    } else if x.is_float() {
        each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [f32], scratch| {
            sorted(&x, line, outer.offset_of(number), isa, out, |take| places(number, scratch, take));
        });
    } else {
        each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [i64], scratch| {
            sorted(&x, line, outer.offset_of(number), isa, out, |take| places(number, scratch, take));
        });
    }
    Ok(())
}

/// A place that was counted in 64 bits.
fn place(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Fills `out` with the elements at the places that `places` gives one after the other.
fn sorted<N: Number>(
    x: &Tensor<'_>,
    line: Line,
    start: usize,
    isa: crate::simd::Isa,
    out: &mut [N],
    places: impl FnOnce(&mut dyn FnMut(usize)),
) {
    let mut out = out.iter_mut();
    places(&mut |place| {
        let at = start.wrapping_add_signed(place.cast_signed() * line.stride);
        out.next().into_iter().for_each(|out| x.read(isa, at, 0, std::slice::from_mut(out)));
    });
}

/// Integers that sort as the floats do, equal ones in their order: the order of the float above, the place below.
fn float_key(x: f32, place: i64) -> i64 {
    // Both zeros are equal; below zero, a larger magnitude is less.
    let bits = (x + 0.0).to_bits().cast_signed();
    let ordered = if bits < 0 { bits ^ i32::MAX } else { bits };
    let ordered = if x.is_nan() { i32::MAX } else { ordered };
    i64::from(ordered) << 32 | place
}

pub(crate) fn cumsum(
    context: &mut Context<'_>,
    out: &View,
    x: &View,
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
