//! Fuses the sampling heads that exporters write into one [`Prim::Sample`]: a branch on the temperature with two sorts and scalars
//! read by the host; in full heads, also counts of tokens, penalties, biases and a mask before it, and log-probabilities after it.
//!
//! What changes logits is fused on its own: if that is not recognised, the changed logits are drawn from.
//! The tokens are the same, with these exceptions (`docs/SEMANTICS.md`, "Sampling"): at the border of a nucleus, where the
//! separate operations depend on the rounding of sums; logits that are NaN, which never win; and invalid values of `top_k` and
//! `top_p`. Log-probabilities differ by the rounding of sums, and of
//! a row without any finite logit they are minus infinity, not NaN.

mod adjust;
mod filters;
mod log_probabilities;
mod noise;
mod pattern;

use super::matcher::Traced;
use super::{Notes, operations, replace};
use crate::graph::{BlockId, Graph, Node, Op, Origin, Uses, Value, ViewOp};
use crate::prim::{Adjust, LogProbabilities, Prim, Sample};
use pattern::{Parameter, Sampler};
use ptero_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) fn run(graph: &mut Graph, notes: &mut Notes) -> bool {
    let bits = operations(graph, |op| matches!(op, Op::Prim(Prim::RandomBits { .. })));
    if bits.is_empty() {
        return false;
    }
    // Where noise is chosen, both arms draw, and the draw is the block that has the branch.
    let arms: FxHashSet<BlockId> = bits.iter().map(|((block, _), _)| *block).collect();
    let is_choice =
        |op: &Op| matches!(op, Op::If { then, otherwise, .. } if arms.contains(then) && arms.contains(otherwise));
    let choices = operations(graph, is_choice);
    let homes = choices.iter().flat_map(|((block, _), node)| node.op.blocks().into_iter().map(|arm| (arm, *block)));
    let homes: FxHashMap<BlockId, BlockId> = homes.collect();
    let home = |block: BlockId| homes.get(&block).copied().unwrap_or(block);
    let draws: FxHashSet<BlockId> = arms.iter().map(|block| home(*block)).collect();
    let branches = operations(graph, |op| matches!(op, Op::If { then, .. } if draws.contains(then)));
    let (uses, mut edits, mut first) = (Uses::of(graph), FxHashMap::default(), FxHashSet::default());
    for (place, node) in branches {
        first.extend(node.op.blocks().first().copied());
        match pattern::find(graph, &uses, place, &node) {
            Ok(sampler) => {
                notes.add(node.origin, done(&sampler));
                sampler.why_not_adjusted.into_iter().for_each(|(at, why)| notes.add(at, why));
                // What this branch computed is computed with the token.
                edits.extend(sampler.log_probabilities.as_ref().map(|found| (found.place, Vec::new())));
                edits.insert(place, sample(graph, node.origin, sampler));
            }
            Err((at, why)) => notes.add(at, why),
        }
    }
    for (_, node) in bits.iter().filter(|((block, _), _)| !first.contains(&home(*block))) {
        notes.add(node.origin, "not fused: random bits outside a branch on the temperature");
    }
    replace(graph, edits)
}

fn done(sampler: &Sampler) -> &'static str {
    match (&sampler.adjust, &sampler.log_probabilities) {
        (None, None) => "the branches that draw a token became one operation",
        (Some(_), None) => "the branches that draw a token, and what changes logits before, became one operation",
        (_, Some(_)) => "the branches that draw a token, and log-probabilities, became one operation",
    }
}

/// The operations that replace the branch.
fn sample(graph: &mut Graph, origin: Origin, sampler: Sampler) -> Vec<Node> {
    let mut nodes = Vec::new();
    let Sampler { token, logits, temperature, top_k, top_p, min_p, seed, exact_tail, adjust, .. } = sampler;
    let log_probabilities = sampler.log_probabilities;
    let mut value = |parameter: Parameter| match parameter {
        Parameter::Tensor(tensor) => tensor.to_value(graph, &mut nodes, origin),
        Parameter::Float(value) => graph.constant(DType::F32, Vec::new(), value.to_le_bytes().to_vec().into()),
        Parameter::Int(value) => graph.constant(DType::I64, Vec::new(), value.to_le_bytes().to_vec().into()),
    };
    let [logits, temperature, top_k, top_p, min_p] =
        [Parameter::Tensor(logits), temperature, top_k, top_p, min_p].map(&mut value);
    let seed = seed.map(&mut value);
    let exact_tail = exact_tail.map(|tensor| value(Parameter::Tensor(tensor)));
    let adjust = adjust.map(|adjust| adjust_of(adjust, |tensor| value(Parameter::Tensor(tensor))));
    let log_probabilities = log_probabilities.map(|found| {
        let [token, likeliest, of_likeliest] = found.outs;
        LogProbabilities { which: value(Parameter::Tensor(found.which)), token, likeliest, of_likeliest }
    });
    let rows = graph.ty(logits).shape.iter().take(1).cloned().collect();
    let out = if graph.ty(token).shape == rows { token } else { graph.value(graph.ty(token).dtype, rows) };
    let sample = Sample { out, logits, temperature, top_k, top_p, min_p, seed, exact_tail, adjust, log_probabilities };
    nodes.push(Node { op: Op::Prim(Prim::Sample(Box::new(sample))), origin });
    let shown = Op::View { out: token, x: out, how: ViewOp::Reshape };
    nodes.extend((out != token).then_some(Node { op: shown, origin }));
    nodes
}

fn adjust_of(found: Adjust<Traced>, mut value: impl FnMut(Traced) -> Value) -> Adjust<Value> {
    Adjust {
        history: value(found.history),
        last: value(found.last),
        prompt_end: value(found.prompt_end),
        repetition: value(found.repetition),
        presence: value(found.presence),
        frequency: value(found.frequency),
        bias_tokens: value(found.bias_tokens),
        bias_values: value(found.bias_values),
        mask: value(found.mask),
    }
}
