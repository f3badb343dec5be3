//! Fuses the gated delta rule that exporters write as a loop over tokens into one [`Prim::GatedDelta`].
//!
//! The loop rounds each product and sum to the type of its operands, and the state after each token to its own type. The
//! primitive computes in `f32` and rounds results and the last state once, as upstream's own kernel for the same rule does
//! (`docs/SEMANTICS.md`, "Gated delta rule").

mod pattern;

use super::matcher::{Matcher, Traced};
use super::{Notes, Place, operations, replace};
use crate::dim::Dim;
use crate::expr::Scalar;
use crate::graph::{Graph, Node, Op, Origin, Type, Uses, Value, ViewOp};
use crate::prim::{GatedDelta, Prim, View};
use pattern::{DeltaLoop, StateFlow};
use ptero_tensor::DType::{Bf16, F16, F32};
use rustc_hash::FxHashMap;

/// The most operations between the rule and the conversion of its state.
const MOST_BETWEEN: usize = 64;

pub(super) fn run(graph: &mut Graph, notes: &mut Notes) -> bool {
    let loops = operations(graph, |op| matches!(op, Op::Loop(_)));
    if loops.is_empty() {
        return false;
    }
    let (uses, mut edits) = (Uses::of(graph), FxHashMap::default());
    for ((block, index), node) in loops {
        let Op::Loop(round) = &node.op else { continue };
        let body = Matcher { graph, uses: &uses, block: round.body, looks_outside: false, at: node.origin };
        match pattern::find(body, round).map(|found| with_originals(&body, found)) {
            Ok(mut found) => {
                notes.add(node.origin, "the loop became one operation");
                if let Some((at, rounded)) = rounded(&body, &found.state, (block, index)) {
                    found.state = rounded;
                    edits.insert((block, at), Vec::new());
                }
                edits.insert((block, index), rule(graph, found, node.origin));
            }
            Err((at, why)) => notes.add(at, why),
        }
    }
    replace(graph, edits)
}

/// The rule on its operands before they were converted and repeated.
fn with_originals(body: &Matcher<'_>, mut found: DeltaLoop) -> DeltaLoop {
    let [q, k, v, g, beta] = found.operands;
    let fewer = [&q, &k].map(|operand| original(body, operand, true));
    let heads = fewer.each_ref().map(|operand| operand.view.shape.get(2));
    // Queries and keys must have the same number of heads.
    let [q, k] = if heads[0] == heads[1] { fewer } else { [q, k] };
    let [v, g, beta] = [v, g, beta].map(|operand| original(body, &operand, false));
    if let StateFlow::Carried { init, .. } = &mut found.state {
        *init = original(body, init, false);
    }
    DeltaLoop { operands: [q, k, v, g, beta], ..found }
}

/// The converted state, if it is only used converted, and the index of the conversion: the rule can round it itself.
fn rounded(body: &Matcher<'_>, state: &StateFlow, (block, index): Place) -> Option<(usize, StateFlow)> {
    let StateFlow::Carried { init, out } = state else { return None };
    let reads = |node: &Node| node.op.ins().contains(out);
    let nodes = body.graph.block(block).nodes.iter().enumerate();
    let (at, node) = nodes.skip(index + 1).take(MOST_BETWEEN).find(|(_, node)| reads(node))?;
    let [cast] = node.op.outs().try_into().ok()?;
    let tensor = Traced::all_of(body.graph, cast);
    let is_cast = body.peek::<1>(&tensor, Scalar::Cast, Some(F32)).is_some() && matches!(tensor.view.dtype, F16 | Bf16);
    (is_cast && body.uses.count(*out) == 1).then(|| (at, StateFlow::Carried { init: init.clone(), out: cast }))
}

/// An operand before lossless conversions, which the primitive does itself; with `is_grouped`, before heads were repeated.
fn original(body: &Matcher<'_>, operand: &Traced, is_grouped: bool) -> Traced {
    let outside = Matcher { looks_outside: true, ..*body };
    let mut operand = operand.clone();
    let _ = is_grouped && merge_heads(&mut operand);
    while operand.is_same(&Traced::all_of(body.graph, operand.root)) {
        let tensor = outside.trace(operand.root);
        let narrow = body.widened(&Traced::all_of(body.graph, tensor.root));
        // The same elements before the conversion.
        let narrow =
            narrow.map(|Traced { root, view }| Traced { root, view: View { dtype: view.dtype, ..tensor.view } });
        let fewer = || unrepeated(&outside, operand.root).filter(|_| is_grouped);
        operand = match narrow.or_else(fewer) {
            Some(before) => before,
            None => break,
        };
    }
    operand
}

/// Merges heads that are all the same.
fn merge_heads(Traced { view, .. }: &mut Traced) -> bool {
    let is_one = view.strides.get(2).is_some_and(|stride| stride.is(0));
    view.shape.get_mut(2).filter(|_| is_one).into_iter().for_each(|heads| *heads = Dim::fixed(1));
    is_one
}

/// Heads before each was repeated.
fn unrepeated(outside: &Matcher<'_>, value: Value) -> Option<Traced> {
    let Op::View { x, .. } = &outside.uses.node(outside.graph, value)?.op else { return None };
    let (mut heads, wide) = (outside.trace(value), outside.trace(*x));
    let is_repeat = match (outside.graph.ty(value).shape.as_slice(), wide.view.shape.as_slice()) {
        ([b, t, _, d], [wide_b, wide_t, _, _, wide_d]) => [b, t, d] == [wide_b, wide_t, wide_d],
        _ => false,
    };
    if merge_heads(&mut heads) { Some(heads) } else { wide.without(3).filter(|_| is_repeat) }
}

/// The operations that replace a loop.
fn rule(graph: &mut Graph, found: DeltaLoop, origin: Origin) -> Vec<Node> {
    let DeltaLoop { checks: mut nodes, operands, out, axis, state: flow } = found;
    let [q, k, v, g, beta] = operands.map(|operand| operand.to_value(graph, &mut nodes, origin));
    let (state, state_out) = match &flow {
        StateFlow::Carried { init, out } => (init.to_value(graph, &mut nodes, origin), *out),
        StateFlow::State { state, held } => {
            let ty = graph.ty(*held).clone();
            let [held, next] = [(); 2].map(|()| graph.value(ty.dtype, ty.shape.clone()));
            nodes.push(Node { op: Op::Read { out: held, state: *state }, origin });
            (held, next)
        }
    };
    // Tokens are the second axis of the result, whichever axis the loop stacked them along.
    let (mut order, Type { dtype, mut shape }) = (vec![0, 2, 3], graph.ty(out).clone());
    order.insert(axis, 1);
    let tokens = shape.remove(axis);
    shape.insert(1, tokens);
    let result = if axis == 1 { out } else { graph.value(dtype, shape) };
    let rule = GatedDelta { out: result, state_out, q, k, v, g, beta, state };
    let shown = Op::View { out, x: result, how: ViewOp::Permute(order) };
    let write = if let StateFlow::State { state, .. } = flow { Some(Op::Write { state, x: state_out }) } else { None };
    let ops = [Op::Prim(Prim::GatedDelta(Box::new(rule)))].into_iter().chain((axis != 1).then_some(shown)).chain(write);
    nodes.extend(ops.map(|op| Node { op, origin }));
    nodes
}
