//! What a primitive reads and writes, and how close it must come.

use super::{Angles, Fused, GatedDelta, Position, Prim, Quantized, Sample, Tolerance};
use crate::dim::Dim;

/// The tensors that a primitive reads, or `mut` references to them: one list for both.
macro_rules! reads {
    ($prim:expr $(, $mut:tt)?) => {
        match $prim {
            Prim::Map { ins, .. } => ins.into_iter().collect(),
            Prim::Reduce { x, .. } | Prim::ArgReduce { x, .. } | Prim::Softmax { x, .. } => vec![x],
            Prim::Sort { x, .. } | Prim::Cumsum { x, .. } => vec![x],
            Prim::Norm { x, weight, bias, .. } => [x].into_iter().chain(weight).chain(bias).collect(),
            Prim::Rope { x, position, angles, .. } => {
                let position = if let Position::Tensor(view) = position { Some(view) } else { None };
                let periods = if let Angles::Periods(view) = angles { Some(view) } else { None };
                [x].into_iter().chain(position).chain(periods).collect()
            }
            Prim::Attention { q, k, v, mask, .. } => [q, k, v].into_iter().chain(mask).collect(),
            Prim::MatMul { a, b, lhs, rhs, epilogue, .. } => {
                let ins = epilogue.into_iter().flat_map(|fused| & $($mut)? fused.ins);
                [a, b].into_iter().chain(lhs).chain(rhs).chain(ins).collect()
            }
            Prim::QuantMatMul { x, w: Quantized { codes, scales, biases, .. }, lhs, rhs, epilogue, .. } => {
                let ins = epilogue.into_iter().flat_map(|fused| & $($mut)? fused.ins);
                [x, codes].into_iter().chain(scales).chain(biases).chain(lhs).chain(rhs).chain(ins).collect()
            }
            Prim::Dequantize { w: Quantized { codes, scales, biases, .. }, .. } => {
                [codes].into_iter().chain(scales).chain(biases).collect()
            }
            Prim::Conv { x, w, .. } => vec![x, w],
            Prim::Gather { x, axes, .. } => {
                [x].into_iter().chain(axes.into_iter().flat_map(|axis| & $($mut)? axis.index)).collect()
            }
            Prim::Scatter { base, updates, axes, .. } => {
                [base, updates].into_iter().chain(axes.into_iter().flat_map(|axis| & $($mut)? axis.index)).collect()
            }
            Prim::GatedDelta(rule) => {
                let GatedDelta { q, k, v, g, beta, state, .. } = & $($mut)? **rule;
                vec![q, k, v, g, beta, state]
            }
            Prim::RandomBits { .. } => Vec::new(),
            Prim::Sample(views) => {
                let Sample { logits, temperature, top_k, top_p, seed, .. } = & $($mut)? **views;
                [logits, temperature, top_k, top_p].into_iter().chain(seed).collect()
            }
        }
    };
}

impl<T> Prim<T> {
    /// Its name, as plans are printed.
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

    /// The tensor it makes; `GatedDelta` makes a second one.
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

    /// All tensors it makes.
    pub fn writes(&self) -> Vec<&T> {
        match self {
            Prim::GatedDelta(rule) => vec![&rule.out, &rule.state_out],
            _ => vec![self.out()],
        }
    }

    /// The tensors it reads.
    pub fn reads(&self) -> Vec<&T> {
        reads!(self)
    }

    /// The same tensors, to change them.
    pub fn reads_mut(&mut self) -> Vec<&mut T> {
        reads!(self, mut)
    }

    /// The numbers it uses beside those of its tensors.
    pub fn numbers(&self) -> Vec<&Dim> {
        match self {
            Prim::Map { expr, .. } => expr.numbers().collect(),
            Prim::Rope { position: Position::Host(number), .. } => vec![number],
            Prim::RandomBits { seed, .. } => seed.iter().collect(),
            Prim::MatMul { epilogue: Some(fused), .. } | Prim::QuantMatMul { epilogue: Some(fused), .. } => {
                fused.expr.numbers().collect()
            }
            Prim::Rope { position: Position::Tensor(_), .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. } => {
                Vec::new()
            }
            Prim::Softmax { .. } | Prim::Norm { .. } | Prim::Attention { .. } | Prim::MatMul { .. } => Vec::new(),
            Prim::QuantMatMul { .. } | Prim::Dequantize { .. } | Prim::Conv { .. } | Prim::Gather { .. } => Vec::new(),
            Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Vec::new(),
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

impl<T> Quantized<T> {
    /// The same weights over other tensors.
    pub fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Quantized<U> {
        let Self { codes, scales, biases, format } = self;
        Quantized {
            codes: f(codes),
            scales: scales.as_ref().map(&mut *f),
            biases: biases.as_ref().map(&mut *f),
            format: *format,
        }
    }
}

impl<T> Prim<T> {
    /// The same primitive over other tensors: operands first, in the order of [`Prim::reads`], then results.
    pub fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Prim<U> {
        let fused = |epilogue: &super::Epilogue<T>, f: &mut dyn FnMut(&T) -> U| {
            epilogue.as_ref().map(|fused| {
                let Fused { dtype, ins, expr } = &**fused;
                Box::new(Fused { dtype: *dtype, ins: ins.iter().map(f).collect(), expr: expr.clone() })
            })
        };
        let axes = |axes: &[super::Axis<T>], f: &mut dyn FnMut(&T) -> U| {
            let axis = |axis: &super::Axis<T>| super::Axis {
                index: axis.index.as_ref().map(&mut *f),
                coordinate: axis.coordinate,
            };
            axes.iter().map(axis).collect::<Vec<_>>()
        };
        match self {
            Prim::Map { out, ins, expr } => {
                Prim::Map { ins: ins.iter().map(&mut *f).collect(), out: f(out), expr: expr.clone() }
            }
            Prim::Reduce { out, x, axes, fold } => {
                Prim::Reduce { x: f(x), out: f(out), axes: axes.clone(), fold: *fold }
            }
            Prim::ArgReduce { out, x, axis, largest } => {
                Prim::ArgReduce { x: f(x), out: f(out), axis: *axis, largest: *largest }
            }
            Prim::Softmax { out, x, axis } => Prim::Softmax { x: f(x), out: f(out), axis: *axis },
            Prim::Norm { out, x, weight, bias, eps, kind } => Prim::Norm {
                x: f(x),
                weight: weight.as_ref().map(&mut *f),
                bias: bias.as_ref().map(&mut *f),
                out: f(out),
                eps: *eps,
                kind: *kind,
            },
            Prim::Rope { out, x, dims, interleaved, scale, position, angles } => Prim::Rope {
                x: f(x),
                position: match position {
                    Position::Host(number) => Position::Host(number.clone()),
                    Position::Tensor(tensor) => Position::Tensor(f(tensor)),
                },
                angles: match angles {
                    Angles::Base(base) => Angles::Base(*base),
                    Angles::Periods(tensor) => Angles::Periods(f(tensor)),
                },
                out: f(out),
                dims: *dims,
                interleaved: *interleaved,
                scale: *scale,
            },
            Prim::Attention { out, q, k, v, mask, causal, window, scale } => Prim::Attention {
                q: f(q),
                k: f(k),
                v: f(v),
                mask: mask.as_ref().map(&mut *f),
                out: f(out),
                causal: *causal,
                window: *window,
                scale: *scale,
            },
            Prim::MatMul { out, a, b, lhs, rhs, epilogue } => Prim::MatMul {
                a: f(a),
                b: f(b),
                lhs: lhs.as_ref().map(&mut *f),
                rhs: rhs.as_ref().map(&mut *f),
                epilogue: fused(epilogue, f),
                out: f(out),
            },
            Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => Prim::QuantMatMul {
                x: f(x),
                w: w.map(f),
                transpose: *transpose,
                lhs: lhs.as_ref().map(&mut *f),
                rhs: rhs.as_ref().map(&mut *f),
                epilogue: fused(epilogue, f),
                out: f(out),
            },
            Prim::Dequantize { out, w } => Prim::Dequantize { w: w.map(f), out: f(out) },
            Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => Prim::Conv {
                x: f(x),
                w: f(w),
                out: f(out),
                stride: stride.clone(),
                padding: padding.clone(),
                dilation: dilation.clone(),
                groups: *groups,
                transposed: *transposed,
            },
            Prim::Gather { out, x, axes: indices } => Prim::Gather { x: f(x), axes: axes(indices, f), out: f(out) },
            Prim::Scatter { out, base, updates, axes: indices, add } => {
                Prim::Scatter { base: f(base), updates: f(updates), axes: axes(indices, f), out: f(out), add: *add }
            }
            Prim::Sort { out, x, axis, indices } => Prim::Sort { x: f(x), out: f(out), axis: *axis, indices: *indices },
            Prim::Cumsum { out, x, axis, reverse, inclusive } => {
                Prim::Cumsum { x: f(x), out: f(out), axis: *axis, reverse: *reverse, inclusive: *inclusive }
            }
            Prim::GatedDelta(rule) => {
                let GatedDelta { out, state_out, q, k, v, g, beta, state } = &**rule;
                let [q, k, v, g, beta, state] = [q, k, v, g, beta, state].map(&mut *f);
                let [out, state_out] = [out, state_out].map(&mut *f);
                Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state }))
            }
            Prim::RandomBits { out, seed } => Prim::RandomBits { out: f(out), seed: seed.clone() },
            Prim::Sample(sample) => {
                let Sample { out, logits, temperature, top_k, top_p, seed } = &**sample;
                let [logits, temperature, top_k, top_p] = [logits, temperature, top_k, top_p].map(&mut *f);
                let seed = seed.as_ref().map(&mut *f);
                Prim::Sample(Box::new(Sample { out: f(out), logits, temperature, top_k, top_p, seed }))
            }
        }
    }
}
