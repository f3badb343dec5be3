//! Functions of elements of any type, and the loops that the kernels of [`super::float`] and [`super::int`] are made of.

use ptero_plan::expr::Compare;

#[inline(always)]
pub(super) fn each<T: Copy>(x: &[T], out: &mut [T], function: impl Fn(T) -> T) {
    x.iter().zip(out).for_each(|(x, out)| *out = function(*x));
}

#[inline(always)]
pub(super) fn pairs<T: Copy, U>(a: &[T], b: &[T], out: &mut [U], function: impl Fn(T, T) -> U) {
    a.iter().zip(b).zip(out).for_each(|((a, b), out)| *out = function(*a, *b));
}

kernel! {
    /// Writes 1 for each pair of elements that compares so, and 0 for the others.
    pub(crate) fn compare[T: Copy + PartialOrd](op: Compare, a: &[T], b: &[T], out: &mut [i64]) {
        match op {
            Compare::Less => pairs(a, b, out, |a, b| (a < b).into()),
            Compare::LessEqual => pairs(a, b, out, |a, b| (a <= b).into()),
            Compare::Greater => pairs(a, b, out, |a, b| (a > b).into()),
            Compare::GreaterEqual => pairs(a, b, out, |a, b| (a >= b).into()),
            Compare::Equal => pairs(a, b, out, |a, b| (a == b).into()),
            Compare::NotEqual => pairs(a, b, out, |a, b| (a != b).into()),
        }
    }

    /// Writes the element of `yes` where the condition is not zero, else that of `no`.
    pub(crate) fn select[T: Copy](condition: &[i64], yes: &[T], no: &[T], out: &mut [T]) {
        let choices = condition.iter().zip(yes).zip(no).zip(out);
        choices.for_each(|(((condition, yes), no), out)| *out = if *condition != 0 { *yes } else { *no });
    }
}
