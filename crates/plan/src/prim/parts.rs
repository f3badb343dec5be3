//! What a primitive reads and writes, and how close it must come.

use super::{Angles, GatedDelta, Position, Prim, Quantized, Sample, Tolerance, View};
use crate::dim::Dim;
use crate::expr::{Scalar, Step};

/// The views that a primitive reads, or `mut` references to them: one list for both.
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
            Prim::MatMul { a, b, lhs, rhs, .. } => [a, b].into_iter().chain(lhs).chain(rhs).collect(),
            Prim::QuantMatMul { x, w: Quantized { codes, scales, biases, .. }, lhs, rhs, .. } => {
                [x, codes].into_iter().chain(scales).chain(biases).chain(lhs).chain(rhs).collect()
            }
            Prim::Dequantize { w: Quantized { codes, scales, biases, .. }, .. } => {
                [codes].into_iter().chain(scales).chain(biases).collect()
            }
            Prim::Conv { x, w, .. } => vec![x, w],
            Prim::Gather { x: read, axes, .. } | Prim::Scatter { updates: read, axes, .. } => {
                [read].into_iter().chain(axes.into_iter().flat_map(|axis| & $($mut)? axis.index)).collect()
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

impl Prim {
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

    /// The view it writes; `GatedDelta` writes a second one.
    pub fn out(&self) -> &View {
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

    /// All views it writes.
    pub fn writes(&self) -> Vec<&View> {
        match self {
            Prim::GatedDelta(rule) => vec![&rule.out, &rule.state_out],
            _ => vec![self.out()],
        }
    }

    /// The views it reads. `Scatter` also keeps what it does not write of `out`.
    pub fn reads(&self) -> Vec<&View> {
        reads!(self)
    }

    /// The same views, to change them.
    pub fn reads_mut(&mut self) -> Vec<&mut View> {
        reads!(self, mut)
    }

    /// The numbers it uses beside those of its views.
    pub fn numbers<'a>(&'a self) -> Vec<&'a Dim> {
        match self {
            Prim::Map { expr, .. } => {
                let number = |step: &'a Step| if let Scalar::Int(number) = &step.op { Some(number) } else { None };
                expr.steps.iter().filter_map(number).collect()
            }
            Prim::Rope { position: Position::Host(number), .. } => vec![number],
            Prim::RandomBits { seed, .. } => seed.iter().collect(),
            Prim::Rope { position: Position::Tensor(_), .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. } => {
                Vec::new()
            }
            Prim::Softmax { .. } | Prim::Norm { .. } | Prim::Attention { .. } | Prim::MatMul { .. } => Vec::new(),
            Prim::QuantMatMul { .. } | Prim::Dequantize { .. } | Prim::Conv { .. } | Prim::Gather { .. } => Vec::new(),
            Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Vec::new(),
            Prim::GatedDelta(_) | Prim::Sample(_) => Vec::new(),
        }
    }

    /// Whether it reads of a buffer that it writes to.
    pub fn reads_own_buffer(&self) -> bool {
        let writes = self.writes();
        self.reads().iter().any(|read| writes.iter().any(|written| written.buf == read.buf))
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
