//! Softmax, norms and rotary embeddings.

use crate::memory::Memory;
use crate::reduce::{largest, mean, sum, variance};
use crate::tensor::signed;
use ptero_arithmetic::{cos, exp, power, sin};
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Angles, Normalize, Position};

pub(crate) fn softmax(memory: &mut Memory<'_>, out: Value, x: Value, axis: usize) -> Result<(), Fault> {
    let x = memory.tensor(x)?;
    memory.expect_shape(out, x.shape())?;
    let numbers = x.lines(axis)?.flat_map(|line| softmax_of(&line.floats())).map(Number::Float).collect();
    memory.store_with_last(out, &[axis], numbers)
}

/// `exp(x - largest)`, times one over the sum of these.
fn softmax_of(line: &[f32]) -> Vec<f32> {
    let largest = largest(line.iter().copied());
    let powers: Vec<f32> = line.iter().map(|x| exp(x - largest)).collect();
    let factor = 1.0 / sum(powers.iter().copied());
    powers.into_iter().map(|power| power * factor).collect()
}

pub(crate) fn norm(
    memory: &mut Memory<'_>,
    out: Value,
    x: Value,
    affine: (Option<Value>, Option<Value>),
    eps: f32,
    kind: Normalize,
) -> Result<(), Fault> {
    let x = memory.tensor(x)?;
    memory.expect_shape(out, x.shape())?;
    let [size] = x.last_sizes()?;
    let weight = memory.optional(affine.0)?.map_or(vec![1.0; size], |weight| weight.floats());
    // Adding minus zero changes no number.
    let bias = memory.optional(affine.1)?.map_or(vec![-0.0; size], |bias| bias.floats());
    let mut numbers = Vec::new();
    for row in x.inner(1).map(|row| row.floats()) {
        let (center, spread) = match kind {
            Normalize::Rms => (0.0, mean(row.iter().map(|x| x * x), size)),
            Normalize::Layer => (mean(row.iter().copied(), size), variance(|| row.iter().copied(), size, 0)),
        };
        let factor = 1.0 / (spread + eps).sqrt();
        let scaled = row.iter().zip(&weight).zip(&bias);
        numbers.extend(scaled.map(|((x, weight), bias)| Number::Float((x - center) * factor * weight + bias)));
    }
    memory.store(out, numbers)
}

/// The parameters of a rotary embedding.
pub(crate) struct Rope<'a> {
    pub(crate) dims: usize,
    pub(crate) interleaved: bool,
    pub(crate) scale: f32,
    pub(crate) position: &'a Position<Value>,
    pub(crate) angles: &'a Angles<Value>,
}

pub(crate) fn rope(memory: &mut Memory<'_>, out: Value, x: Value, rope: &Rope<'_>) -> Result<(), Fault> {
    let x = memory.tensor(x)?;
    memory.expect_shape(out, x.shape())?;
    let [width] = x.last_sizes()?;
    if rope.dims > width {
        return Err(Fault::Contract("no more elements are rotated than there are"));
    }
    let starts = start_positions(memory, rope.position)?;
    let rates = rates(memory, rope)?;
    let rank = x.shape().len();
    let mut numbers = Vec::new();
    for (index, batch) in x.inner(if rank > 2 { rank - 1 } else { rank }).enumerate() {
        let which = if starts.len() == 1 { 0 } else { index };
        let start = *starts.get(which).ok_or(Fault::Contract("there is one position, or one for each batch"))?;
        for sequence in batch.inner(2) {
            for (mut row, at) in sequence.rows().into_iter().zip(0..) {
                let position = Number::Int(start.wrapping_add(at)).float() * rope.scale;
                rope.rotate(&mut row, position, &rates);
                numbers.extend(row.into_iter().map(Number::Float));
            }
        }
    }
    memory.store(out, numbers)
}

fn start_positions(memory: &Memory<'_>, position: &Position<Value>) -> Result<Vec<i64>, Fault> {
    Ok(match position {
        Position::Host(dim) => vec![dim.eval(&memory.host)],
        Position::Tensor(value) => memory.tensor(*value)?.numbers().map(Number::int).collect(),
    })
}

/// For each pair, the factor (`Base`) or divisor (`Periods`) of the scaled position that gives its angle.
fn rates(memory: &Memory<'_>, rope: &Rope<'_>) -> Result<Vec<f32>, Fault> {
    let float = |count: usize| Number::Int(signed(count)).float();
    Ok(match rope.angles {
        Angles::Base(base) => {
            (0..rope.dims / 2).map(|pair| power(*base, -2.0 * float(pair) / float(rope.dims))).collect()
        }
        Angles::Periods(value) => memory.tensor(*value)?.floats(),
    })
}

impl Rope<'_> {
    fn rotate(&self, row: &mut [f32], position: f32, rates: &[f32]) {
        let half = self.dims / 2;
        for (pair, rate) in (0..half).zip(rates) {
            let angle = match self.angles {
                Angles::Base(_) => position * rate,
                Angles::Periods(_) => position / rate,
            };
            let (first, second) = if self.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
            if let Ok([a, b]) = row.get_disjoint_mut([first, second]) {
                (*a, *b) = (*a * cos(angle) - *b * sin(angle), *a * sin(angle) + *b * cos(angle));
            }
        }
    }
}
