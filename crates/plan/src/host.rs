//! Integers that the host computes: sizes, positions, and what is computed from them. They form a graph of their own, in which
//! every value ([`crate::dim::Var`]) has one definition. This module alone defines what an operation computes, for numbers and for
//! intervals.

use crate::bound::LIMIT_BYTES;
use crate::dim::Dim;
use crate::graph::Value;

/// How the host gets an integer.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum HostOp {
    /// The caller gives it: the size of an input, or an input that is an integer. `most` is the largest value that the program
    /// declares, if it does.
    Given { most: Option<i64> },
    /// Element `at`, in row-major order, of an input that is an integer tensor, cut to 32 bits and sign-extended. Known before
    /// anything runs.
    Element { input: usize, at: Dim },
    /// The one element of an integer or bool tensor that the device computes, cut to 32 bits and sign-extended. The host waits
    /// for the device to read it.
    Item(Value),
    /// Counts the rounds of a loop, from zero up to but excluding `count`.
    Index { count: Dim },
    /// An integer that the session keeps between calls, zero at first ([`crate::graph::SessionInt`], by number).
    SessionInt(usize),
    /// An operation on two integers.
    Binary(HostBinary, Dim, Dim),
    /// The second if the first is not zero, else the third: the result of a branch.
    Chosen(Dim, Dim, Dim),
}

/// Operations on two integers. All are total, and none overflows: results saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostBinary {
    /// Rounded down; division by zero gives 0, and a separate check refuses the call.
    FloorDiv,
    /// The remainder of `FloorDiv`, with the sign of the divisor; 0 if the divisor is zero.
    Mod,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// The first as a position along an axis of the second's size: from the end if negative, then between 0 and the size.
    Clamp,
    /// The same for a slice that goes backwards: between -1 and the size less one.
    ClampBackward,
}

impl HostBinary {
    /// Its name, as graphs and plans are printed.
    pub fn name(self) -> &'static str {
        match self {
            HostBinary::FloorDiv => "floor_div",
            HostBinary::Mod => "mod",
            HostBinary::Min => "min",
            HostBinary::Max => "max",
            HostBinary::Clamp => "clamp",
            HostBinary::ClampBackward => "clamp_backward",
        }
    }

    /// The result of two numbers.
    pub fn apply(self, a: i64, b: i64) -> i64 {
        let from_start = |at: i64, size: i64| if at < 0 { at.saturating_add(size) } else { at };
        match self {
            HostBinary::FloorDiv => floor_div(a, b).unwrap_or(0),
            HostBinary::Mod => floor_mod(a, b).unwrap_or(0),
            HostBinary::Min => a.min(b),
            HostBinary::Max => a.max(b),
            HostBinary::Clamp => from_start(a, b).min(b).max(0),
            HostBinary::ClampBackward => from_start(a, b).min(b.saturating_sub(1)).max(-1),
        }
    }

    /// An interval that holds every result of two numbers from these intervals.
    pub(crate) fn interval(self, a: Interval, b: Interval) -> Interval {
        match self {
            HostBinary::FloorDiv if b.low == b.high && b.low > 0 => {
                Interval::new(a.low.div_euclid(b.low), a.high.div_euclid(b.low))
            }
            // A quotient is at most one further from zero than its dividend.
            HostBinary::FloorDiv => {
                let most = a.low.saturating_abs().max(a.high.saturating_abs()).saturating_add(1);
                Interval::new(-most, most)
            }
            HostBinary::Mod => Interval::new(b.low.saturating_add(1).min(0), b.high.saturating_sub(1).max(0)),
            HostBinary::Min => Interval::new(a.low.min(b.low), a.high.min(b.high)),
            HostBinary::Max => Interval::new(a.low.max(b.low), a.high.max(b.high)),
            HostBinary::Clamp => Interval::new(0, b.high.max(0)),
            HostBinary::ClampBackward => Interval::new(-1, b.high.saturating_sub(1).max(-1)),
        }
    }
}

/// The quotient, rounded down; `None` if `b` is zero.
pub fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = if b == 0 { None } else { Some(a.checked_div(b).unwrap_or(i64::MAX)) }?;
    Some(if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// The remainder of [`floor_div`], with the sign of the divisor; `None` if `b` is zero.
pub fn floor_mod(a: i64, b: i64) -> Option<i64> {
    if b == 0 {
        return None;
    }
    let rest = a.wrapping_rem(b);
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

impl HostOp {
    /// Returns `true` if it is known before anything runs, given `early` for the values before it.
    pub(crate) fn is_early(&self, early: &[bool]) -> bool {
        let follows = |dim: &Dim| dim.vars().all(|var| early.get(var.0 as usize) == Some(&true));
        match self {
            HostOp::Given { .. } | HostOp::SessionInt(_) => true,
            HostOp::Item(_) | HostOp::Index { .. } | HostOp::Chosen(..) => false,
            HostOp::Element { .. } | HostOp::Binary(..) => self.numbers().into_iter().all(follows),
        }
    }

    /// The numbers it is computed from.
    pub fn numbers(&self) -> Vec<&Dim> {
        match self {
            HostOp::Given { .. } | HostOp::Item(_) | HostOp::SessionInt(_) => Vec::new(),
            HostOp::Element { at: number, .. } | HostOp::Index { count: number } => vec![number],
            HostOp::Binary(_, a, b) => vec![a, b],
            HostOp::Chosen(condition, then, otherwise) => vec![condition, then, otherwise],
        }
    }
}

/// What host values are computed from: the tensors that the caller gave, and the integers that the session keeps.
pub trait HostInputs {
    /// An element of an input, cut to 32 bits and sign-extended; 0 if it does not exist.
    fn element(&self, input: usize, at: i64) -> i64;

    /// An integer that the session keeps; 0 without a session.
    fn session_int(&self, number: usize) -> i64 {
        let _ = number;
        0
    }
}

/// No inputs are known yet.
impl HostInputs for () {
    fn element(&self, _: usize, _: i64) -> i64 {
        0
    }
}

impl HostOp {
    /// The number, computed from those before it. `None` for what is set elsewhere: given by the caller, read from the device, or
    /// counted by a loop.
    pub fn eval(&self, values: &[i64], inputs: &impl HostInputs) -> Option<i64> {
        match self {
            HostOp::Given { .. } | HostOp::Item(_) | HostOp::Index { .. } => None,
            HostOp::Element { input, at } => Some(inputs.element(*input, at.eval(values))),
            HostOp::SessionInt(number) => Some(inputs.session_int(*number)),
            HostOp::Binary(op, a, b) => Some(op.apply(a.eval(values), b.eval(values))),
            HostOp::Chosen(condition, then, otherwise) => {
                Some(if condition.eval(values) != 0 { then } else { otherwise }.eval(values))
            }
        }
    }
}

/// For each value, `true` if it is known before anything runs: it depends only on what the caller gives, not on what the device
/// computes or a loop counts.
pub fn early(host: &[HostOp]) -> Vec<bool> {
    let mut early = Vec::with_capacity(host.len());
    for op in host {
        early.push(op.is_early(&early));
    }
    early
}

/// The least and the greatest value of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// Any integer that enters a call.
const ANY: Interval = Interval { low: i32::MIN as i64, high: i32::MAX as i64 };

impl Interval {
    pub(crate) fn new(low: i64, high: i64) -> Self {
        Self { low, high }
    }

    /// The interval of a polynomial, from those of its values. Terms count as independent, so it may be wider than needed.
    pub(crate) fn of(dim: &Dim, bounds: &[Interval]) -> Self {
        dim.fold(Interval::new(0, 0), |sum, vars, factor| {
            let term = vars.iter().fold(Interval::new(factor, factor), |product, var| {
                product.times(bounds.get(var.0 as usize).copied().unwrap_or(ANY))
            });
            Interval::new(sum.low.saturating_add(term.low), sum.high.saturating_add(term.high))
        })
        .unwrap_or(ANY)
    }

    fn times(self, other: Self) -> Self {
        let corners = [self.low, self.high].map(|a| [other.low, other.high].map(|b| a.saturating_mul(b)));
        let [[a, b], [c, d]] = corners;
        Self::new(a.min(b).min(c).min(d), a.max(b).max(c).max(d))
    }
}

/// The interval of each value.
pub(crate) fn intervals(host: &[HostOp]) -> Vec<Interval> {
    let mut bounds: Vec<Interval> = Vec::with_capacity(host.len());
    for op in host {
        let of = |dim: &Dim| Interval::of(dim, &bounds);
        bounds.push(match op {
            HostOp::Given { most: Some(most) } => Interval::new(0, *most),
            HostOp::Given { most: None } | HostOp::Element { .. } | HostOp::Item(_) | HostOp::SessionInt(_) => ANY,
            HostOp::Index { count } => Interval::new(0, of(count).high.saturating_sub(1).max(0)),
            HostOp::Binary(op, a, b) => op.interval(of(a), of(b)),
            HostOp::Chosen(_, then, otherwise) => {
                let (then, otherwise) = (of(then), of(otherwise));
                Interval::new(then.low.min(otherwise.low), then.high.max(otherwise.high))
            }
        });
    }
    bounds
}

/// What is wrong with the numbers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum NumberFault {
    #[error("size {0} is negative")]
    NegativeSize(i64),
    #[error("over {} bytes in one buffer", LIMIT_BYTES)]
    TooLarge,
    #[error("a view from element {first} to {last} of a buffer of {count} elements")]
    OutsideBuffer { first: i128, last: i128, count: usize },
    #[error("{what}: {left} and {right} differ")]
    Differ { what: &'static str, left: i64, right: i64 },
    #[error("{what} is {value}, outside {low} to {high}")]
    NotWithin { what: &'static str, value: i64, low: i64, high: i64 },
    #[error("an integer divided by zero")]
    DividedByZero,
}

/// A condition on host values that the rest of a call relies on.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum Check {
    /// Both must be equal. The text names them in messages.
    Equal(Dim, Dim, &'static str),
    /// `low <= value <= high`. `what` names the value in messages.
    Within { value: Dim, low: Dim, high: Dim, what: &'static str },
    /// A divisor must not be zero.
    NotZero(Dim),
}

impl Check {
    /// Checks that it holds for these host values.
    ///
    /// # Errors
    /// The condition that does not hold, with its numbers.
    pub fn hold(&self, values: &[i64]) -> Result<(), NumberFault> {
        match self {
            Check::Equal(left, right, what) => {
                let (left, right) = (left.eval(values), right.eval(values));
                if left == right { Ok(()) } else { Err(NumberFault::Differ { what, left, right }) }
            }
            Check::Within { value, low, high, what } => {
                let [value, low, high] = [value, low, high].map(|number| number.eval(values));
                let is_within = (low..=high).contains(&value);
                if is_within { Ok(()) } else { Err(NumberFault::NotWithin { what, value, low, high }) }
            }
            Check::NotZero(value) if value.eval(values) == 0 => Err(NumberFault::DividedByZero),
            Check::NotZero(_) => Ok(()),
        }
    }

    /// The numbers it compares.
    pub fn numbers(&self) -> Vec<&Dim> {
        match self {
            Check::Equal(a, b, _) => vec![a, b],
            Check::Within { value, low, high, .. } => vec![value, low, high],
            Check::NotZero(value) => vec![value],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Var;

    const OPS: [HostBinary; 6] = [
        HostBinary::FloorDiv,
        HostBinary::Mod,
        HostBinary::Min,
        HostBinary::Max,
        HostBinary::Clamp,
        HostBinary::ClampBackward,
    ];

    #[test]
    fn a_polynomial_lies_between_its_corners() {
        let bounds = [Interval::new(0, 8), Interval::new(-2, 3)];
        let (a, b) = (Dim::var(Var(0)), Dim::var(Var(1)));
        assert_eq!(Interval::of(&(&(&a * &b) - &Dim::fixed(1)), &bounds), Interval::new(-17, 23));
        assert_eq!(Interval::of(&(&b * &b), &bounds), Interval::new(-6, 9));
        let huge = &(&a * &Dim::fixed(i64::MAX)) * &a;
        assert_eq!(Interval::of(&huge, &bounds).high, i64::MAX);
    }

    #[test]
    fn every_result_lies_in_the_interval_of_its_operands() {
        for op in OPS {
            for (low_a, low_b) in (-5..6).flat_map(|a| (-5..6).map(move |b| (a, b))) {
                for (wide_a, wide_b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
                    let (a, b) = (Interval::new(low_a, low_a + wide_a), Interval::new(low_b, low_b + wide_b));
                    let all = op.interval(a, b);
                    for (x, y) in (a.low..=a.high).flat_map(|x| (b.low..=b.high).map(move |y| (x, y))) {
                        let result = op.apply(x, y);
                        assert!((all.low..=all.high).contains(&result), "{op:?} {x} {y}: {result} not in {all:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn positions_count_from_the_end_as_in_python() {
        assert_eq!(HostBinary::Clamp.apply(-3, 8), 5);
        assert_eq!(HostBinary::Clamp.apply(-30, 8), 0);
        assert_eq!(HostBinary::Clamp.apply(30, 8), 8);
        assert_eq!(HostBinary::ClampBackward.apply(-30, 8), -1);
        assert_eq!(HostBinary::ClampBackward.apply(30, 8), 7);
        assert_eq!(HostBinary::FloorDiv.apply(-7, 2), -4);
        assert_eq!(HostBinary::Mod.apply(-7, 2), 1);
        assert_eq!(HostBinary::FloorDiv.apply(i64::MIN, -1), i64::MAX);
        assert_eq!(HostBinary::Mod.apply(3, 0), 0);
    }
}
