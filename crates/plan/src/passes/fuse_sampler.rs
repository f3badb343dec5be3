//! Fuses the sampling head that exporters write, a branch on the temperature with two sorts and scalars read by the host, into one
//! [`Prim::Sample`].
//!
//! The tokens are the same, with these exceptions (`docs/SEMANTICS.md`, "Sampling"): at the border of a nucleus, where the
//! separate operations depend on the rounding of sums; logits that are NaN, which never win; and invalid values of `top_k` and
//! `top_p`.

mod pattern;

use super::{Notes, operations, replace};
use crate::graph::{BlockId, Graph, Node, Op, Origin, Uses, ViewOp};
use crate::prim::{Prim, Sample};
use pattern::{Parameter, Sampler};
use ptero_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) fn run(graph: &mut Graph, notes: &mut Notes) -> bool {
    let bits = operations(graph, |op| matches!(op, Op::Prim(Prim::RandomBits { .. })));
    if bits.is_empty() {
        return false;
    }
    let draws: FxHashSet<BlockId> = bits.iter().map(|((block, _), _)| *block).collect();
    let branches = operations(graph, |op| matches!(op, Op::If { then, .. } if draws.contains(then)));
    let (uses, mut edits, mut first) = (Uses::of(graph), FxHashMap::default(), FxHashSet::default());
    for (place, node) in branches {
        first.extend(node.op.blocks().first().copied());
        match pattern::find(graph, &uses, &node) {
            Ok(sampler) => {
                notes.add(node.origin, "the branches that draw a token became one operation");
                edits.insert(place, sample(graph, node.origin, sampler));
            }
            Err((at, why)) => notes.add(at, why),
        }
    }
    for (_, node) in bits.iter().filter(|((block, _), _)| !first.contains(block)) {
        notes.add(node.origin, "not fused: random bits outside a branch on the temperature");
    }
    replace(graph, edits)
}

/// The operations that replace the branch.
fn sample(graph: &mut Graph, origin: Origin, (out, parameters, seed): Sampler) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut value = |parameter: Parameter| match parameter {
        Parameter::Tensor(tensor) => tensor.to_value(graph, &mut nodes, origin),
        Parameter::Float(value) => graph.constant(DType::F32, Vec::new(), value.to_le_bytes().to_vec().into()),
        Parameter::Int(value) => graph.constant(DType::I64, Vec::new(), value.to_le_bytes().to_vec().into()),
    };
    let ([logits, temperature, top_k, top_p], seed) = (parameters.map(&mut value), seed.map(value));
    let rows = graph.ty(logits).shape.iter().take(1).cloned().collect();
    let tokens = if graph.ty(out).shape == rows { out } else { graph.value(graph.ty(out).dtype, rows) };
    let min_p = graph.constant(DType::F32, Vec::new(), 0.0_f32.to_le_bytes().to_vec().into());
    let (adjust, log_probabilities) = (None, None);
    let sample = Sample { out: tokens, logits, temperature, top_k, top_p, min_p, seed, adjust, log_probabilities };
    nodes.push(Node { op: Op::Prim(Prim::Sample(Box::new(sample))), origin });
    let shown = Op::View { out, x: tokens, how: ViewOp::Reshape };
    nodes.extend((tokens != out).then_some(Node { op: shown, origin }));
    nodes
}
