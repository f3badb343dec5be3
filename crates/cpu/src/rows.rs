//! Primitives that work on rows: softmax, norms, rotary embeddings.
#![allow(clippy::indexing_slicing, reason = "`Turns` has an entry for each start and token")]

use crate::element::Number;
use crate::lines::each_line;
use crate::memory::Sources;
use crate::run::Context;
use crate::simd::rows;
use crate::view::ensure_shape;
use ptero_arithmetic::{power, sin_cos};
use ptero_backend::Fault;
use ptero_plan::prim::{Angles, Normalize, Position, ViewId};
use smallvec::SmallVec;

pub(crate) fn softmax(context: &mut Context<'_>, x: &ViewId, axis: usize) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open()?;
    let x = sources.shaped(x, &target.view.shape)?.lines(axis);
    each_line(&mut workers, target, (axis, x.line.length), |number, out: &mut [f32], scratch| {
        let x = x.floats(number, f32::piece(scratch, x.line.length));
        let sum = rows::powers_of(isa, x, rows::largest(isa, x), out);
        rows::scale(isa, out, 1.0 / sum);
    });
    Ok(())
}

pub(crate) fn norm(
    context: &mut Context<'_>,
    x: &ViewId,
    (weight, bias): (Option<&ViewId>, Option<&ViewId>),
    eps: f32,
    kind: Normalize,
) -> Result<(), Fault> {
    let isa = context.isa;
    let mut factors = std::mem::take(&mut context.resources.staging);
    let (target, sources, mut workers) = context.open()?;
    let (x, weight, bias) =
        (sources.shaped(x, &target.view.shape)?, sources.optional(weight)?, sources.optional(bias)?);
    let axis = x.view.shape.len().saturating_sub(1);
    [&weight, &bias].into_iter().flatten().try_for_each(|factor| ensure_shape(&factor.view, &[x.view.size(axis)]))?;
    let (x, weight, bias) = (x.lines(axis), weight.map(|weight| weight.lines(0)), bias.map(|bias| bias.lines(0)));
    let length = x.line.length;
    // Weights in other types are widened once, not once per row.
    factors.resize(factors.len().max(2 * length), 0.0);
    let (first, rest) = factors.split_at_mut(length);
    let second = rest.split_at_mut(length).0;
    let weight = weight.as_ref().map(|weight| weight.floats(0, first));
    let bias = bias.as_ref().map(|bias| bias.floats(0, second));
    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a mean must")]
    let count = length as f32;
    each_line(&mut workers, target, (axis, length), |number, out: &mut [f32], scratch| {
        let x = x.floats(number, f32::piece(scratch, length));
        let (center, spread) = match kind {
            Normalize::Rms => (0.0, rows::squares(isa, x, 0.0) / count),
            Normalize::Layer => {
                let mean = rows::sum(isa, x) / count;
                (mean, rows::squares(isa, x, mean) / count)
            }
        };
        rows::normalize(isa, x, center, 1.0 / (spread + eps).sqrt(), weight, bias, out);
    });
    context.resources.staging = factors;
    Ok(())
}

/// The parameters of a rotary embedding.
pub(crate) struct Rope<'a> {
    pub(crate) dims: usize,
    pub(crate) interleaved: bool,
    pub(crate) scale: f32,
    pub(crate) position: &'a Position,
    pub(crate) angles: &'a Angles,
}

pub(crate) fn rope(context: &mut Context<'_>, x: &ViewId, rope: &Rope<'_>) -> Result<(), Fault> {
    let mut turns = std::mem::take(&mut context.resources.turns);
    let (target, sources, mut workers) = context.open()?;
    let x = sources.shaped(x, &target.view.shape)?;
    let rank = x.view.shape.len();
    let (tokens, batches) = (x.view.size(rank.saturating_sub(2)), if rank > 2 { x.view.size(0) } else { 1 });
    let starts = match rope.position {
        Position::Host(_) => 1,
        Position::Tensor(view) => sources.tensor(view)?.view.count(),
    };
    if starts != 1 && starts != batches {
        return Err(Fault::Contract("there is one position, or one for each batch"));
    }
    if rope.dims > x.view.size(rank.saturating_sub(1)) {
        return Err(Fault::Contract("no more elements are rotated than there are"));
    }
    turns.fill(rope.turn_key(&sources, starts, tokens)?);
    let x = x.lines(rank.saturating_sub(1));
    let per_batch = x.starts.count().checked_div(batches).unwrap_or(0);
    let half = rope.dims / 2;
    each_line(&mut workers, target, (rank.saturating_sub(1), x.line.length), |number, out: &mut [f32], _| {
        x.read(number, 0, out);
        let start = if starts == 1 { 0 } else { number.checked_div(per_batch).unwrap_or(0) };
        let entry = start * tokens + number % tokens;
        let (cosines, sines) = turns.table[entry * 2 * half..(entry + 1) * 2 * half].split_at(half);
        let turned = out.split_at_mut(2 * half).0;
        let turn = |a: &mut f32, b: &mut f32, cos: f32, sin: f32| (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
        if rope.interleaved {
            let pairs = turned.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines);
            pairs.for_each(|(([a, b], cos), sin)| turn(a, b, *cos, *sin));
        } else {
            let (first, second) = turned.split_at_mut(half);
            let pairs = first.iter_mut().zip(second).zip(cosines).zip(sines);
            pairs.for_each(|(((a, b), cos), sin)| turn(a, b, *cos, *sin));
        }
    });
    context.resources.turns = turns;
    Ok(())
}

impl Rope<'_> {
    /// The parameters that determine its cosines and sines.
    fn turn_key(&self, sources: &Sources<'_>, starts: usize, tokens: usize) -> Result<TurnKey, Fault> {
        let half = self.dims / 2;
        let (mut base, mut periods) = (None, SmallVec::new());
        match self.angles {
            Angles::Base(own) => base = Some(*own),
            Angles::Periods(view) => {
                let tensor = sources.shaped(view, &[half])?;
                periods.resize(half, 0.0);
                tensor.read(tensor.view.offset, tensor.view.stride(0), &mut periods);
            }
        }
        let first = |start: usize| match self.position {
            Position::Host(dim) => Ok(dim.eval(&sources.bound.values)),
            Position::Tensor(view) => Ok(sources.tensor(view)?.number(start)),
        };
        let starts = (0..starts).map(first).collect::<Result<_, Fault>>()?;
        Ok(TurnKey { dims: self.dims, base, periods, scale: self.scale, starts, tokens })
    }
}

/// Cosines and sines of positions, cached between steps: all layers of a model use the same ones.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    key: Option<TurnKey>,
    /// For every start and token, the cosines and then the sines of all pairs.
    table: Vec<f32>,
}

/// The parameters that determine cosines and sines.
#[derive(Debug, PartialEq)]
struct TurnKey {
    dims: usize,
    base: Option<f32>,
    /// Empty if there is a base.
    periods: SmallVec<[f32; 128]>,
    scale: f32,
    /// The positions of first tokens.
    starts: SmallVec<[i64; 8]>,
    tokens: usize,
}

impl Turns {
    #[allow(clippy::cast_precision_loss, reason = "positions and pairs are rounded to floats, as the contract says")]
    fn fill(&mut self, key: TurnKey) {
        if self.key.as_ref() == Some(&key) {
            return;
        }
        self.table.clear();
        let rate = |base: f32, pair: usize| power(base, -2.0 * pair as f32 / key.dims as f32);
        let rates: SmallVec<[f32; 128]> = match key.base {
            Some(base) => (0..key.dims / 2).map(|pair| rate(base, pair)).collect(),
            None => key.periods.clone(),
        };
        for (start, token) in key.starts.iter().flat_map(|start| (0..key.tokens).map(move |token| (start, token))) {
            let position = start.wrapping_add(token.cast_signed() as i64) as f32 * key.scale;
            let angle = |rate: &f32| if key.base.is_some() { position * rate } else { position / rate };
            let at = self.table.len();
            self.table.resize(at + 2 * rates.len(), 0.0);
            let (_, entry) = self.table.split_at_mut(at);
            let (cosines, sines) = entry.split_at_mut(rates.len());
            for ((cosine, sine), rate) in cosines.iter_mut().zip(sines).zip(&rates) {
                (*sine, *cosine) = sin_cos(angle(rate));
            }
        }
        self.key = Some(key);
    }
}
