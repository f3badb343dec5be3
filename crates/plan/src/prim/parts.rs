//! What a primitive reads and writes, and its tolerance.

use super::{Adjust, Angles, Axis, Fused, GatedDelta, LogProbabilities, Position, Prim, Quantized, Sample, Tolerance};
use crate::dim::Dim;

impl<T> Prim<T> {
    /// Its name, as in printed graphs and plans.
    pub fn name(&self) -> &'static str {
        match self {
            Prim::Map { .. } => "map",
            Prim::Reduce { .. } => "reduce",
            Prim::ArgReduce { .. } => "arg-reduce",
            Prim::Softmax { .. } => "softmax",
            Prim::Norm { .. } => "norm",
            Prim::Rope { .. } => "rope",
            Prim::Attention { .. } => "attention",
            Prim::MatMul { .. } => "matmul",
            Prim::QuantMatMul { .. } => "quant-matmul",
            Prim::Dequantize { .. } => "dequantize",
            Prim::Conv { .. } => "conv",
            Prim::Gather { .. } => "gather",
            Prim::Scatter { .. } => "scatter",
            Prim::Sort { .. } => "sort",
            Prim::Cumsum { .. } => "cumsum",
            Prim::GatedDelta(_) => "gated-delta",
            Prim::RandomBits { .. } => "random-bits",
            Prim::Sample(_) => "sample",
        }
    }

    /// Its result; `GatedDelta` and `Sample` may have more.
    pub fn out(&self) -> &T {
        match self {
            Prim::Map { out, .. } | Prim::Reduce { out, .. } | Prim::ArgReduce { out, .. } => out,
            Prim::Softmax { out, .. } | Prim::Norm { out, .. } | Prim::Rope { out, .. } => out,
            Prim::Attention { out, .. } | Prim::MatMul { out, .. } | Prim::QuantMatMul { out, .. } => out,
            Prim::Dequantize { out, .. } | Prim::Conv { out, .. } | Prim::Gather { out, .. } => out,
            Prim::Scatter { out, .. } | Prim::Sort { out, .. } | Prim::Cumsum { out, .. } => out,
            Prim::RandomBits { out, .. } => out,
            Prim::GatedDelta(rule) => &rule.out,
            Prim::Sample(views) => &views.out,
        }
    }

    /// All its results.
    pub fn writes(&self) -> Vec<&T> {
        match self {
            Prim::GatedDelta(rule) => vec![&rule.out, &rule.state_out],
            Prim::Sample(sample) => {
                let more = sample.log_probabilities.as_ref();
                let more = more.map(|more| [&more.token, &more.likeliest, &more.of_likeliest]);
                std::iter::once(&sample.out).chain(more.into_iter().flatten()).collect()
            }
            _ => vec![self.out()],
        }
    }

    /// The numbers it uses apart from those of its tensors.
    pub fn numbers(&self) -> Vec<&Dim> {
        match self {
            Prim::Map { expr, .. } => expr.numbers().collect(),
            Prim::Rope { position: Position::Host(number), .. } => vec![number],
            Prim::Attention { first, .. } => vec![first],
            Prim::RandomBits { seed, .. } => seed.iter().collect(),
            Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. } => {
                epilogue.iter().flat_map(|fused| fused.expr.numbers()).collect()
            }
            Prim::Rope { .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Softmax { .. } => Vec::new(),
            Prim::Norm { .. } | Prim::Dequantize { .. } | Prim::Conv { .. } => Vec::new(),
            Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Vec::new(),
            Prim::GatedDelta(_) | Prim::Sample(_) => Vec::new(),
        }
    }

    /// How close a backend must come to the reference.
    pub fn tolerance(&self) -> Tolerance {
        match self {
            Prim::ArgReduce { .. } | Prim::Gather { .. } | Prim::Scatter { .. } => Tolerance::Exact,
            Prim::Sort { .. } | Prim::RandomBits { .. } | Prim::Dequantize { .. } => Tolerance::Exact,
            Prim::Sample(_) => Tolerance::Exact,
            Prim::Map { .. } => Tolerance::Ulps(2),
            Prim::Reduce { .. } | Prim::Cumsum { .. } | Prim::Softmax { .. } | Prim::Norm { .. } => {
                Tolerance::Relative(1e-5)
            }
            Prim::Rope { .. } | Prim::Attention { .. } | Prim::MatMul { .. } => Tolerance::Relative(1e-4),
            Prim::QuantMatMul { .. } | Prim::Conv { .. } | Prim::GatedDelta(_) => Tolerance::Relative(1e-4),
        }
    }
}

impl<T: Copy> Prim<T> {
    /// The tensors it reads: all that [`Prim::map`] visits before the results.
    pub fn reads(&self) -> Vec<T> {
        if let Prim::Map { ins, .. } = self {
            return ins.clone();
        }
        let mut all = Vec::new();
        let _ = self.clone().map(&mut |tensor| all.push(tensor));
        all.truncate(all.len() - self.writes().len());
        all
    }
}

impl<T> Quantized<T> {
    fn map<U>(self, f: &mut impl FnMut(T) -> U) -> Quantized<U> {
        let Self { codes, scales, biases, format } = self;
        Quantized { codes: f(codes), scales: scales.map(&mut *f), biases: biases.map(&mut *f), format }
    }
}

impl<T> Adjust<T> {
    /// The tensors, in the order of the fields.
    fn map<U>(self, f: &mut impl FnMut(T) -> U) -> Adjust<U> {
        let Self { history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask } = self;
        let [history, last, prompt_end] = [history, last, prompt_end].map(&mut *f);
        let [repetition, presence, frequency] = [repetition, presence, frequency].map(&mut *f);
        let [bias_tokens, bias_values, mask] = [bias_tokens, bias_values, mask].map(f);
        Adjust { history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask }
    }
}

impl<T> Axis<T> {
    fn map<U>(self, f: &mut impl FnMut(T) -> U) -> Axis<U> {
        Axis { index: self.index.map(f), coordinate: self.coordinate }
    }
}

impl<T> Fused<T> {
    fn map<U>(self, f: &mut impl FnMut(T) -> U) -> Box<Fused<U>> {
        Box::new(Fused { dtype: self.dtype, ins: self.ins.into_iter().map(f).collect(), expr: self.expr })
    }
}

impl<T> Prim<T> {
    /// The same primitive over other tensors. Visits the operands, then the results.
    pub fn map<U>(self, f: &mut impl FnMut(T) -> U) -> Prim<U> {
        match self {
            Prim::Map { out, ins, expr } => {
                Prim::Map { ins: ins.into_iter().map(&mut *f).collect(), out: f(out), expr }
            }
            Prim::Reduce { out, x, axes, fold } => Prim::Reduce { x: f(x), out: f(out), axes, fold },
            Prim::ArgReduce { out, x, axis, largest } => Prim::ArgReduce { x: f(x), out: f(out), axis, largest },
            Prim::Softmax { out, x, axis } => Prim::Softmax { x: f(x), out: f(out), axis },
            Prim::Norm { out, x, weight, bias, eps, kind } => {
                Prim::Norm { x: f(x), weight: weight.map(&mut *f), bias: bias.map(&mut *f), out: f(out), eps, kind }
            }
            Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
                let x = f(x);
                let position = match position {
                    Position::Host(number) => Position::Host(number),
                    Position::Tensor(tensor) => Position::Tensor(f(tensor)),
                };
                let angles = match angles {
                    Angles::Base(base) => Angles::Base(base),
                    Angles::Periods(tensor) => Angles::Periods(f(tensor)),
                };
                Prim::Rope { out: f(out), x, dims, interleaved, scale, position, angles }
            }
            Prim::Attention { out, q, k, v, mask, first, causal, window, scale } => {
                let ([q, k, v], mask) = ([q, k, v].map(&mut *f), mask.map(&mut *f));
                Prim::Attention { out: f(out), q, k, v, mask, first, causal, window, scale }
            }
            Prim::MatMul { out, a, b, lhs, rhs, epilogue } => {
                let ([a, b], lhs, rhs) = ([a, b].map(&mut *f), lhs.map(&mut *f), rhs.map(&mut *f));
                Prim::MatMul { a, b, lhs, rhs, epilogue: epilogue.map(|fused| fused.map(f)), out: f(out) }
            }
            Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => {
                let (x, w, lhs, rhs) = (f(x), w.map(f), lhs.map(&mut *f), rhs.map(&mut *f));
                let epilogue = epilogue.map(|fused| fused.map(f));
                Prim::QuantMatMul { out: f(out), x, w, transpose, lhs, rhs, epilogue }
            }
            Prim::Dequantize { out, w } => Prim::Dequantize { w: w.map(f), out: f(out) },
            Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
                let [x, w, out] = [x, w, out].map(f);
                Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed }
            }
            Prim::Gather { out, x, axes } => {
                Prim::Gather { x: f(x), axes: axes.into_iter().map(|axis| axis.map(f)).collect(), out: f(out) }
            }
            Prim::Scatter { out, base, updates, axes, add } => {
                let [base, updates] = [base, updates].map(&mut *f);
                let axes = axes.into_iter().map(|axis| axis.map(f)).collect();
                Prim::Scatter { out: f(out), base, updates, axes, add }
            }
            Prim::Sort { out, x, axis, indices } => Prim::Sort { x: f(x), out: f(out), axis, indices },
            Prim::Cumsum { out, x, axis, reverse, inclusive } => {
                Prim::Cumsum { x: f(x), out: f(out), axis, reverse, inclusive }
            }
            Prim::GatedDelta(rule) => {
                let GatedDelta { out, state_out, q, k, v, g, beta, state } = *rule;
                let [q, k, v, g, beta, state, out, state_out] = [q, k, v, g, beta, state, out, state_out].map(f);
                Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state }))
            }
            Prim::RandomBits { out, seed } => Prim::RandomBits { out: f(out), seed },
            Prim::Sample(sample) => {
                let Sample {
                    out,
                    logits,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed,
                    exact_tail,
                    adjust,
                    log_probabilities,
                } = *sample;
                let [logits, temperature, top_k, top_p, min_p] =
                    [logits, temperature, top_k, top_p, min_p].map(&mut *f);
                let [seed, exact_tail] = [seed, exact_tail].map(|tensor| tensor.map(&mut *f));
                let adjust = adjust.map(|adjust| adjust.map(f));
                // What is read comes before all results.
                let which = log_probabilities.map(|more| {
                    let LogProbabilities { which, token, likeliest, of_likeliest } = more;
                    (f(which), [token, likeliest, of_likeliest])
                });
                let out = f(out);
                let log_probabilities = which.map(|(which, results)| {
                    let [token, likeliest, of_likeliest] = results.map(&mut *f);
                    LogProbabilities { which, token, likeliest, of_likeliest }
                });
                let sample = Sample {
                    out,
                    logits,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed,
                    exact_tail,
                    adjust,
                    log_probabilities,
                };
                Prim::Sample(Box::new(sample))
            }
        }
    }
}
