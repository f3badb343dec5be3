//! What works on rows: softmax, norms, rotary embeddings.

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::rows;
use crate::window::Tensor;
use ptero_arithmetic::{power, sin_cos};
use ptero_backend::Fault;
use ptero_plan::prim::{Angles, Normalize, Position, ViewId};
use smallvec::SmallVec;

pub(crate) fn softmax(context: &mut Context<'_>, out: &ViewId, x: &ViewId, axis: usize) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let (outer, line) = x.window.lines(axis);
    each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [f32], scratch| {
        let [copy] = scratch.floats([line.length]);
        let x = x.line(isa, outer.offset_of(number), line, copy);
        let sum = rows::powers_of(isa, x, rows::largest(isa, x), out);
        rows::scale(isa, out, 1.0 / sum);
    });
    Ok(())
}

pub(crate) fn norm(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    (weight, bias): (Option<&ViewId>, Option<&ViewId>),
    eps: f32,
    kind: Normalize,
) -> Result<(), Fault> {
    let isa = context.isa;
    let mut factors = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(out)?;
    let (x, weight, bias) = (sources.tensor(x)?, sources.optional(weight)?, sources.optional(bias)?);
    let axis = x.window.shape.len().saturating_sub(1);
    let (outer, line) = x.window.lines(axis);
    // Weights in other types are widened once, not once per row.
    factors.resize(2 * line.length, 0.0);
    let (first, second) = factors.split_at_mut(line.length);
    let whole = |factor: &Option<Tensor<'_>>| factor.as_ref().map(|factor| factor.window.lines(0).1);
    let weight = weight.as_ref().zip(whole(&weight)).map(|(w, line)| w.line(isa, w.window.offset, line, first));
    let bias = bias.as_ref().zip(whole(&bias)).map(|(b, line)| b.line(isa, b.window.offset, line, second));
    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a mean must")]
    let count = line.length as f32;
    each_line(&mut workers, isa, target, (axis, line.length), |number, out: &mut [f32], scratch| {
        let [copy] = scratch.floats([line.length]);
        let x = x.line(isa, outer.offset_of(number), line, copy);
        let (center, spread) = match kind {
            Normalize::Rms => (0.0, rows::squares(isa, x, 0.0) / count),
            Normalize::Layer => {
                let mean = rows::sum(isa, x) / count;
                (mean, rows::squares(isa, x, mean) / count)
            }
        };
        rows::normalize(isa, x, center, 1.0 / (spread + eps).sqrt(), weight, bias, out);
    });
    *context.staging = factors;
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

pub(crate) fn rope(context: &mut Context<'_>, out: &ViewId, x: &ViewId, rope: &Rope<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    let mut turns = std::mem::take(context.turns);
    let (target, sources, mut workers) = context.open(out)?;
    let x = sources.tensor(x)?;
    let rank = x.window.shape.len();
    let (tokens, batches) = (x.window.size(rank.saturating_sub(2)), if rank > 2 { x.window.size(0) } else { 1 });
    let starts = match rope.position {
        Position::Host(_) => 1,
        Position::Tensor(view) => sources.tensor(view)?.window.count(),
    };
    if starts != 1 && starts != batches {
        return Err(Fault::Contract("there is one position, or one for each batch"));
    }
    turns.fill(rope.of(&sources, isa, starts, tokens)?);
    let (outer, line) = x.window.lines(rank.saturating_sub(1));
    let per_batch = outer.count().checked_div(batches).unwrap_or(0);
    let half = rope.dims / 2;
    each_line(&mut workers, isa, target, (rank.saturating_sub(1), line.length), |number, out: &mut [f32], _| {
        x.read(isa, outer.offset_of(number), line.stride, out);
        let start = if starts == 1 { 0 } else { number.checked_div(per_batch).unwrap_or(0) };
        let entry = start * tokens + number % tokens;
        let turn = turns.table.get(entry * rope.dims..entry * rope.dims + 2 * half).unwrap_or_default();
        let (cosines, sines) = turn.split_at(half);
        let turned = out.get_mut(..2 * half).unwrap_or_default();
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
    *context.turns = turns;
    Ok(())
}

impl Rope<'_> {
    /// What its turns are made of.
    fn of(
        &self,
        sources: &crate::memory::Sources<'_>,
        isa: crate::simd::Isa,
        starts: usize,
        tokens: usize,
    ) -> Result<TurnsOf, Fault> {
        let half = self.dims / 2;
        let (mut base, mut periods) = (None, SmallVec::new());
        match self.angles {
            Angles::Base(own) => base = Some(*own),
            Angles::Periods(view) => {
                let tensor = sources.tensor(view)?;
                periods.resize(half.min(tensor.window.count()), 0.0);
                tensor.read(isa, tensor.window.offset, tensor.window.stride(0), &mut periods);
            }
        }
        let first = |start: usize| match self.position {
            Position::Host(dim) => Ok(dim.eval(&sources.bound.values)),
            Position::Tensor(view) => Ok(sources.tensor(view)?.int(isa, start)),
        };
        let starts = (0..starts).map(first).collect::<Result<_, Fault>>()?;
        Ok(TurnsOf { dims: self.dims, base, periods, scale: self.scale, starts, tokens })
    }
}

/// Cosines and sines of positions, kept from one step to the next: all layers of a model turn by the same ones.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    of: Option<TurnsOf>,
    /// For every start and token, the cosines and then the sines of all pairs.
    table: Vec<f32>,
}

/// What turns are made of.
#[derive(Debug, PartialEq)]
struct TurnsOf {
    dims: usize,
    base: Option<f32>,
    /// Unless there is a base.
    periods: SmallVec<[f32; 128]>,
    scale: f32,
    /// The positions of first tokens.
    starts: SmallVec<[i64; 8]>,
    tokens: usize,
}

impl Turns {
    #[allow(clippy::cast_precision_loss, reason = "positions and pairs are rounded to floats, as the contract says")]
    fn fill(&mut self, of: TurnsOf) {
        if self.of.as_ref() == Some(&of) {
            return;
        }
        self.table.clear();
        let rate = |base: f32, pair: usize| power(base, -2.0 * pair as f32 / of.dims as f32);
        let rates: SmallVec<[f32; 128]> = match of.base {
            Some(base) => (0..of.dims / 2).map(|pair| rate(base, pair)).collect(),
            None => of.periods.clone(),
        };
        for (start, token) in of.starts.iter().flat_map(|start| (0..of.tokens).map(move |token| (start, token))) {
            let position = start.wrapping_add(token.cast_signed() as i64) as f32 * of.scale;
            let angle = |rate: &f32| if of.base.is_some() { position * rate } else { position / rate };
            let at = self.table.len();
            self.table.resize(at + 2 * rates.len(), 0.0);
            let (_, entry) = self.table.split_at_mut(at);
            let (cosines, sines) = entry.split_at_mut(rates.len());
            for ((cosine, sine), rate) in cosines.iter_mut().zip(sines).zip(&rates) {
                (*sine, *cosine) = sin_cos(angle(rate));
            }
        }
        self.of = Some(of);
    }
}
