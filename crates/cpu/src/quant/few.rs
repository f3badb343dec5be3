//! Few rows times the transpose of quantized weights: bound by reading the weights, so each is read once.
//!
//! Where the machine and the format allow it, the products are of integers; see `simd::activation`. A row in single precision
//! is then the sum of two such rows, itself and what rounding it took away. Elsewhere, and for rows
//! that integers cannot hold, weights are decoded and multiplied as floats. So is again every product that was not finite,
//! since what a scale that is infinite or not a number makes of it depends on each single weight.

use super::Weights;
use crate::finish::{Finish, Sums};
use crate::gemm::Left;
use crate::pool::Workers;
use crate::simd::Isa;
use crate::simd::activation::{Layout, Order, quantize, residual};
use crate::simd::dot::dot_f32;
use crate::simd::element::Float;
use crate::simd::integer::{Activations, Integers, MOST};
use std::ops::Range;

/// The most batches of integers.
const BATCHES: usize = 16;
/// Tasks of a large product: enough to share among threads, few enough that each reads long runs.
const TASKS: usize = 64;
/// The fewest and the most bytes of codes of a task.
const TASK_BYTES: [usize; 2] = [16 << 10, 256 << 10];

/// Whether so many rows are few: measured against unpacking the weights into panels.
pub(super) fn is_few(isa: Isa, m: usize, left: &impl Left, weights: &Weights<'_>) -> bool {
    let layout = Integers::of(isa).and_then(|integers| integers.layout(weights));
    let most = layout.map_or(4, |layout| match layout.order {
        Order::Bytes { vectors: 1 } => 24,
        Order::Twos => 48,
        Order::Bytes { .. } | Order::Fours => BATCHES * MOST,
    });
    m <= if layout.is_some() && left.is_single() { most / 2 } else { most }
}

/// Writes the product, rounded once, in row-major order to `out`.
pub(super) fn product<T: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    m: usize,
    left: &impl Left,
    weights: &Weights<'_>,
    out: &mut [T],
    finish: &impl Finish,
) {
    let k = weights.columns;
    let plan = Integers::of(isa).and_then(|integers| Some((integers, integers.layout(weights)?)));
    // Rows of integers per row.
    let parts = if plan.is_some() && left.is_single() { 2 } else { 1 };
    let plan = plan.filter(|_| m * parts <= BATCHES * MOST);
    let parts = if plan.is_some() { parts } else { 1 };
    let length = plan.map_or(0, |(_, layout)| layout.floats(k));
    workers.prepared(|shared, workers| {
        let [x, integers] = shared.floats([m * parts * k, m * parts * length]);
        for (row, x) in x.chunks_exact_mut((parts * k).max(1)).enumerate() {
            let (x, rest) = x.split_at_mut(k);
            left.row(isa, row, 0..k, x);
            if parts == 2 {
                residual(isa, x, rest);
            }
        }
        let mut rest = Room { x, integers };
        let batches: [Batch<'_>; BATCHES] = std::array::from_fn(|number| match plan {
            Some(plan) => {
                let rows = MOST.min((m * parts).saturating_sub(number * MOST));
                Batch { parts, ..rest.batch(isa, [k, length], rows, Some(plan)) }
            }
            None => rest.batch(isa, [k, length], if number == 0 { m } else { 0 }, None),
        });
        let width = workers.stripe_width(weights.rows, 8, most_columns(weights));
        workers.stripes(out, weights.rows, width, |_, stripe, scratch| {
            let (width, columns) = (stripe.width(), stripe.start()..stripe.start() + stripe.width());
            let mut registers = std::mem::take(&mut scratch.registers);
            finish.begin(isa, &mut registers);
            let [results, decoded] = scratch.floats([m * parts * width, k]);
            let mut rest = &mut *results;
            for batch in batches.iter().filter(|batch| batch.rows > 0) {
                let results = split(&mut rest, batch.rows * width);
                batch.product(isa, weights, columns.clone(), results, decoded);
            }
            for results in results.chunks_exact_mut(parts * width) {
                let (results, rest) = results.split_at_mut(width);
                results.iter_mut().zip(rest).for_each(|(result, rest)| *result += *rest);
            }
            finish.store(isa, 0, Sums { floats: results, stride: parts * width }, stripe, &mut registers);
            scratch.registers = registers;
        });
    });
}

/// The most columns of the result, which are rows of the weights, of a task.
fn most_columns(weights: &Weights<'_>) -> usize {
    let (row_bytes, [least, most]) = (weights.row_bytes().max(1), TASK_BYTES);
    ((weights.rows * row_bytes / TASKS).clamp(least, most) / row_bytes).next_multiple_of(8)
}

/// The rows of the left operand that are not yet in a batch, and memory for them as integers.
struct Room<'a> {
    x: &'a mut [f32],
    integers: &'a mut [f32],
}

impl<'a> Room<'a> {
    /// The next rows, as integers if that is planned and possible.
    fn batch(&mut self, isa: Isa, [k, length]: [usize; 2], rows: usize, plan: Option<(Integers, Layout)>) -> Batch<'a> {
        let (x, to) = (&*split(&mut self.x, rows * k), split(&mut self.integers, rows * length));
        let integers = plan.and_then(|(integers, layout)| {
            let layout = Layout { rows, ..layout };
            let fits = x.chunks_exact(k.max(1)).enumerate().all(|(row, x)| quantize(isa, x, layout, row, to));
            fits.then_some((integers, Activations { layout, floats: to }))
        });
        Batch { rows, parts: 1, floats: x, integers }
    }
}

fn split<'a, T>(rest: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let (part, after) = std::mem::take(rest).split_at_mut(length);
    *rest = after;
    part
}

/// Some rows of the left operand.
#[derive(Clone, Copy)]
struct Batch<'a> {
    rows: usize,
    /// So many of them make one: as floats, the first of them is the whole.
    parts: usize,
    /// `[rows, k]`.
    floats: &'a [f32],
    /// Unless they cannot be held so.
    integers: Option<(Integers, Activations<'a>)>,
}

impl Batch<'_> {
    /// Writes the products with some rows of the weights, `[rows, columns.len()]`; `decoded` is room for one of those.
    fn product(
        &self,
        isa: Isa,
        weights: &Weights<'_>,
        columns: Range<usize>,
        results: &mut [f32],
        decoded: &mut [f32],
    ) {
        let width = columns.len();
        let Some((integers, x)) = self.integers else {
            return columns.enumerate().for_each(|(at, row)| {
                self.dots(isa, weights, row, results.iter_mut().skip(at).step_by(width), decoded);
            });
        };
        integers.products(weights, columns.clone(), &x, results, width);
        if results.iter().all(|result| result.is_finite()) {
            return;
        }
        for (at, row) in columns.enumerate() {
            if results.iter().skip(at).step_by(width).any(|result| !result.is_finite()) {
                self.dots(isa, weights, row, results.iter_mut().skip(at).step_by(width), decoded);
            }
        }
    }

    /// Writes the products with one row of the weights, as floats, one for each row.
    fn dots<'a>(
        &self,
        isa: Isa,
        weights: &Weights<'_>,
        row: usize,
        results: impl Iterator<Item = &'a mut f32>,
        decoded: &mut [f32],
    ) {
        weights.decode(isa, row, 0, decoded);
        for (number, result) in results.enumerate() {
            let x = self.floats.get(number * decoded.len()..).unwrap_or_default();
            let x = x.split_at_checked(decoded.len()).unwrap_or_default().0;
            *result = if number % self.parts == 0 { dot_f32(isa, x, decoded) } else { 0.0 };
        }
    }
}
