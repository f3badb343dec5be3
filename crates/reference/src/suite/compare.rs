//! Compares outputs, and describes differences.

use super::data::{decode, is_float};
use ptero_backend::{Error, OutputValue, Place};
use ptero_plan::graph::{Graph, Output};
use ptero_plan::prim::Tolerance;
use ptero_tensor::DType;
use std::fmt;
use std::sync::Arc;

/// The tolerance of an element, and the slack that its computation adds: see [`allowed`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) tolerance: Tolerance,
    pub(super) slack: f64,
    /// Its index in the result, in row-major order.
    pub(super) number: usize,
}

/// By element of an output; `None` for elements that the tested operation did not make.
pub(super) type Rules = Vec<Option<Rule>>;

/// An element that differs.
#[derive(Debug)]
pub(super) struct Element {
    index: usize,
    expected: f64,
    found: f64,
    /// `None` for elements that the tested operation does not make.
    pub(super) rule: Option<Rule>,
    off: f64,
    allowed: f64,
}

/// Compares the elements of a tensor, each by its rule; those without one must have the same bits.
pub(super) fn tensors(rules: &[Option<Rule>], dtype: DType, expected: &[u8], found: &[u8]) -> Result<(), Element> {
    let width = dtype.bytes() as usize;
    let numbers = decode(dtype, expected).into_iter().zip(decode(dtype, found));
    let bytes = expected.chunks_exact(width).zip(found.chunks_exact(width));
    for (index, ((wanted, got), (expected, found))) in numbers.zip(bytes).enumerate() {
        if expected == found || wanted.is_nan() && got.is_nan() {
            continue;
        }
        let rule = rules[index];
        let (off, allowed) = rule.map_or((f64::NAN, 0.0), |rule| distance(rule, dtype, wanted, got));
        // NaN is at no distance from anything.
        if off <= allowed || allowed.is_infinite() {
            continue;
        }
        return Err(Element { index, expected: wanted, found: got, rule, off, allowed });
    }
    Ok(())
}

/// The distance of two numbers whose bits differ, and the allowed distance.
fn distance(rule: Rule, dtype: DType, expected: f64, found: f64) -> (f64, f64) {
    // Another device may round to the largest number instead of infinity: infinity counts as the number after it.
    let after_largest = if dtype == DType::F16 { 65536.0 } else { 2.0_f64.powi(128) };
    let number = |x: f64| if x.is_infinite() { after_largest.copysign(x) } else { x };
    let (expected, found) = (number(expected), number(found));
    ((expected - found).abs(), allowed(rule, dtype, expected.abs().max(found.abs())))
}

/// The largest allowed difference of two numbers of about that magnitude.
///
/// A relative tolerance is a fraction of the slack: the sum of the magnitudes of the terms of the element, unless its primitive says
/// otherwise. A short float adds a unit in the last place, because two close numbers may round to neighbours. A tolerance in units in
/// the last place adds the slack: the change of the result when inexact steps before the last one change. Both add the smallest
/// normal number, below which devices may flush to zero. Integers have no tolerance but the slack.
pub(super) fn allowed(rule: Rule, dtype: DType, magnitude: f64) -> f64 {
    let flushed = if is_float(dtype) { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
    match rule.tolerance {
        Tolerance::Exact => -1.0,
        // The sum may overflow in one order of summation and not in another.
        Tolerance::Relative(_) if rule.slack > f64::from(f32::MAX) => f64::INFINITY,
        Tolerance::Relative(_) if !is_float(dtype) => -1.0,
        Tolerance::Relative(_) if rule.slack == 0.0 => 0.0,
        Tolerance::Relative(part) => {
            let rounding = if dtype == DType::F32 { 0.0 } else { unit(dtype, magnitude) };
            f64::from(part) * rule.slack + rounding + flushed
        }
        Tolerance::Ulps(_) if !is_float(dtype) => rule.slack,
        Tolerance::Ulps(count) => f64::from(count) * unit(dtype, magnitude) + rule.slack + flushed,
    }
}

/// The unit in the last place of numbers of that magnitude.
pub(super) fn unit(dtype: DType, magnitude: f64) -> f64 {
    let (digits, least) = match dtype {
        DType::F16 => (10, -24),
        DType::Bf16 => (7, -133),
        _ => (23, -149),
    };
    let exponent = if magnitude > 0.0 { magnitude.log2().floor() as i32 } else { least };
    2.0_f64.powi((exponent - digits).max(least))
}

/// Returns `true` if two faults are of one kind and come from one instruction. Their other details may differ: a device may find
/// another element first.
pub(super) fn are_alike(expected: &Error, found: &Error) -> bool {
    let origin = |error: &Error| match error.place() {
        Some(Place::Step { origin, .. }) => Some(origin),
        _ => None,
    };
    expected.fault().kind() == found.fault().kind() && origin(expected) == origin(found)
}

/// A case on which a backend and the reference differ.
pub struct Failure {
    pub(super) primitive: &'static str,
    pub(super) seed: u64,
    pub(super) number: u64,
    pub(super) backend: &'static str,
    pub(super) graph: Arc<Graph>,
    pub(super) difference: Difference,
}

pub(super) enum Difference {
    /// Only one fails, or they fail differently.
    Fault { call: usize, expected: Option<Error>, found: Option<Error> },
    /// An element.
    Element { call: usize, output: usize, values: Vec<i64>, element: Element },
    /// Anything else, in words.
    Other(String),
}

impl Difference {
    /// The reference does not run the graph: the case is wrong.
    pub(super) fn reference(error: Error) -> Box<Self> {
        Box::new(Self::Other(format!("the reference itself fails: {error}")))
    }

    /// The backend does not take the graph.
    pub(super) fn refused(error: Error) -> Box<Self> {
        Box::new(Self::Other(format!("does not take the graph: {error}")))
    }
}

impl std::error::Error for Failure {}

/// The same as `Display`, so that `unwrap` shows it.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { primitive, seed, number, backend, graph, difference } = self;
        writeln!(f, "`{primitive}`, case {number} of seed {seed}, on `{backend}`")?;
        match difference {
            Difference::Fault { call, expected, found } => {
                let text = |error: &Option<Error>| error.as_ref().map_or("success".to_owned(), Error::to_string);
                writeln!(f, "call {call}: {} where the reference has {}", text(found), text(expected))?;
            }
            Difference::Other(text) => writeln!(f, "{text}")?,
            Difference::Element { call, output, values, element } => {
                let value = match graph.outputs.get(*output) {
                    Some(Output::Tensor(value)) => value.to_string(),
                    Some(Output::Int(_)) | None => "?".to_owned(),
                };
                writeln!(f, "call {call}, host values {values:?}, output {output} ({value}): {element}")?;
            }
        }
        write!(f, "{graph}")
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, expected, found, rule, off, allowed } = self;
        write!(f, "element {index} is {found:?} where the reference has {expected:?}")?;
        match rule {
            None => f.write_str("; the tested operation does not make it"),
            Some(Rule { tolerance: Tolerance::Exact, number, .. }) => {
                write!(f, "; it is number {number} of the result and must be exact")
            }
            Some(Rule { tolerance, slack, number }) => write!(
                f,
                "; it is number {number} of the result and off by {off:e}, allowed is {allowed:e} ({tolerance:?}, slack {slack:e})"
            ),
        }
    }
}

/// The type and shape of an output.
pub(super) fn type_of(output: &OutputValue) -> String {
    match output {
        OutputValue::Tensor { dtype, shape, bytes } => format!("{dtype}{shape:?} of {} bytes", bytes.len()),
        OutputValue::Int(value) => format!("the integer {value}"),
    }
}
