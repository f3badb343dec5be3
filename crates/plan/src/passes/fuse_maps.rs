//! Fuses an elementwise function into the only other elementwise function that reads its result. Each scalar step
//! keeps the type it rounds to, so the result is the same to the bit.

use super::Notes;
use crate::expr::{Expr, Scalar, Step};
use crate::graph::{BlockId, Def, Graph, Node, Op, Uses, Value};
use crate::prim::Prim;

/// Above this many scalar steps, a function is not fused any further.
pub(super) const MOST_STEPS: usize = 64;
/// Above this many inputs, fusing stops paying off.
pub(super) const MOST_INPUTS: usize = 16;

pub(super) fn run(graph: &mut Graph, notes: &mut Notes) -> bool {
    let uses = Uses::of(graph);
    let mut counts: Vec<u32> = (0..).map(Value).take(graph.values.len()).map(|value| uses.count(value)).collect();
    let count = |counts: &mut [u32], op: &Op, by: i32| {
        let values = op.ins().into_iter().map(|value| value.0 as usize);
        values.for_each(|at| counts.get_mut(at).into_iter().for_each(|count| *count = count.saturating_add_signed(by)));
    };
    for (id, block) in (0..).map(BlockId).zip(&mut graph.blocks) {
        // A function that was fused leaves `None`.
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut block.nodes).into_iter().map(Some).collect();
        for at in 0..nodes.len() {
            let Some(mut node) = nodes.get_mut(at).and_then(Option::take) else { continue };
            let mut declined = Vec::new();
            while let Some((value, from)) = producer(&nodes, &uses, &counts, (id, &node.op), &declined)
                && let Some(slot) = nodes.get_mut(from)
                && let Some(inner) = slot.take()
            {
                let fused = fused(&inner.op, &node.op, value);
                let what = fused.as_ref().err().copied().unwrap_or("fused into the function that reads it");
                notes.add(inner.origin, what);
                if let Ok(fused) = fused {
                    for (op, by) in [(&inner.op, -1), (&node.op, -1), (&fused, 1)] {
                        count(&mut counts, op, by);
                    }
                    node.op = fused;
                } else {
                    declined.push(value);
                    *slot = Some(inner);
                }
            }
            let Some(slot) = nodes.get_mut(at) else { continue };
            *slot = Some(node);
        }
        block.nodes = nodes.into_iter().flatten().collect();
    }
    false
}

fn map(op: &Op) -> Option<(Value, &[Value], &Expr)> {
    if let Op::Prim(Prim::Map { out, ins, expr }) = op { Some((*out, ins, expr)) } else { None }
}

/// An operand that a function of the same block computes and only this operation reads, and the index of that function.
fn producer(
    nodes: &[Option<Node>],
    uses: &Uses,
    counts: &[u32],
    (block, op): (BlockId, &Op),
    declined: &[Value],
) -> Option<(Value, usize)> {
    let (_, ins, _) = map(op)?;
    ins.iter().find_map(|value| {
        let Some(Def::Node(home, from)) = uses.def(*value) else { return None };
        let here = ins.iter().filter(|other| *other == value).count();
        let is_alone = counts.get(value.0 as usize).is_some_and(|count| *count as usize == here);
        let is_map = matches!(nodes.get(from), Some(Some(node)) if map(&node.op).is_some());
        (home == block && is_alone && is_map && !declined.contains(value)).then_some((*value, from))
    })
}

/// A function with one input replaced by the function that computes it.
fn fused(inner: &Op, outer: &Op, value: Value) -> Result<Op, &'static str> {
    let (Some((_, inner_ins, inner)), Some((out, ins, expr))) = (map(inner), map(outer)) else {
        return Err("not fused: not an elementwise function");
    };
    let mut all: Vec<Value> = Vec::new();
    let mut number = |value: &Value| {
        let known = all.iter().position(|other| other == value);
        all.extend(known.is_none().then_some(*value));
        Some(known.unwrap_or(all.len() - 1))
    };
    let inner_numbers: Vec<Option<usize>> = inner_ins.iter().map(&mut number).collect();
    let numbers = ins.iter().map(|other| if *other == value { None } else { number(other) }).collect::<Vec<_>>();
    if inner.steps.len() + expr.steps.len() > MOST_STEPS {
        return Err("not fused: the function would be too long");
    }
    if all.len() > MOST_INPUTS {
        return Err("not fused: the function would have too many inputs");
    }
    let inner = renumbered(Vec::new(), inner, &inner_numbers);
    Ok(Op::Prim(Prim::Map { out, ins: all, expr: renumbered(inner.steps, expr, &numbers) }))
}

/// Appends a function to the steps of another, with its inputs renumbered; an input without a number becomes the result of those
/// steps.
pub(super) fn renumbered(mut steps: Vec<Step>, expr: &Expr, numbers: &[Option<usize>]) -> Expr {
    let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let (result, mut places) = (small(steps.len().saturating_sub(1)), Vec::with_capacity(expr.steps.len()));
    for Step { op, args, dtype } in &expr.steps {
        let op = match op {
            Scalar::Load(input) => numbers.get(usize::from(*input)).and_then(|at| Some(Scalar::Load(small((*at)?)))),
            _ => Some(op.clone()),
        };
        places.push(if op.is_some() { small(steps.len()) } else { result });
        let args = args.map(|arg| places.get(usize::from(arg)).copied().unwrap_or(arg));
        steps.extend(op.map(|op| Step { op, args, dtype: *dtype }));
    }
    // The last step must be the result, also if the function returns an input.
    steps.truncate(places.last().map_or(0, |last| usize::from(*last) + 1));
    Expr { steps }
}
