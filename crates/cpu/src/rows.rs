//! What works on rows: softmax, norms, rotary embeddings.

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::rows;
use crate::window::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::{Angles, Normalize, Position, View};

pub(crate) fn softmax(context: &mut Context<'_>, out: &View, x: &View, axis: usize) -> Result<(), Fault> {
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
    out: &View,
    x: &View,
    (weight, bias): (Option<&View>, Option<&View>),
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

pub(crate) fn rope(context: &mut Context<'_>, out: &View, x: &View, rope: &Rope<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    let mut table = std::mem::take(context.staging);
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
    // Cosines and sines of every position, which all heads share.
    rope.fill(&sources, isa, starts, tokens, &mut table)?;
    let (outer, line) = x.window.lines(rank.saturating_sub(1));
    let per_batch = outer.count().checked_div(batches).unwrap_or(0);
    let half = rope.dims / 2;
    each_line(&mut workers, isa, target, (rank.saturating_sub(1), line.length), |number, out: &mut [f32], _| {
        x.read(isa, outer.offset_of(number), line.stride, out);
        let start = if starts == 1 { 0 } else { number.checked_div(per_batch).unwrap_or(0) };
        let entry = start * tokens + number % tokens;
        let turns = table.get(entry * rope.dims..entry * rope.dims + 2 * half).unwrap_or_default();
        let (cosines, sines) = turns.split_at(half);
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
    *context.staging = table;
    Ok(())
}

impl Rope<'_> {
    /// For every start and token, the cosines and then the sines of all pairs.
    #[allow(clippy::cast_precision_loss, reason = "positions and pairs are rounded to floats, as the contract says")]
    fn fill(
        &self,
        sources: &crate::memory::Sources<'_>,
        isa: crate::simd::Isa,
        starts: usize,
        tokens: usize,
        table: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let half = self.dims / 2;
        table.clear();
        let rates: smallvec::SmallVec<[f32; 128]> = match self.angles {
            Angles::Base(base) => (0..half).map(|pair| base.powf(-2.0 * pair as f32 / self.dims as f32)).collect(),
            Angles::Periods(view) => {
                let periods = sources.tensor(view)?;
                let mut rates = smallvec::SmallVec::from_elem(0.0, half.min(periods.window.count()));
                periods.read(isa, periods.window.offset, periods.window.stride(0), &mut rates);
                rates
            }
        };
        for start in 0..starts {
            let first = match self.position {
                Position::Host(dim) => dim.eval(sources.values),
                Position::Tensor(view) => sources.tensor(view)?.int(isa, start),
            };
            for token in 0..tokens {
                let position = first.wrapping_add(token.cast_signed() as i64) as f32 * self.scale;
                let angle = |rate: &f32| match self.angles {
                    Angles::Base(_) => position * rate,
                    Angles::Periods(_) => position / rate,
                };
                table.extend(rates.iter().map(|rate| angle(rate).cos()));
                table.extend(rates.iter().map(|rate| angle(rate).sin()));
            }
        }
        Ok(())
    }
}
