//! Fuses an elementwise function into the matrix product that only it reads: bias, residual, activation, gate times up. The
//! product is rounded to its own type first, so the result is the same to the bit.

use super::fuse_maps::{MOST_INPUTS, MOST_STEPS, renumbered};
use super::{Notes, Place, replace};
use crate::expr::{Scalar, Step};
use crate::graph::{BlockId, Def, Graph, Node, Op, Uses, Value};
use crate::prim::{Fused, Prim};
use rustc_hash::FxHashMap;

pub(super) fn run(graph: &mut Graph, notes: &mut Notes) -> bool {
    let (uses, mut edits) = (Uses::of(graph), FxHashMap::default());
    for (id, block) in (0..).map(BlockId).zip(&graph.blocks) {
        for (at, node) in block.nodes.iter().enumerate() {
            if let Op::Prim(map @ Prim::Map { ins, .. }) = &node.op
                && let Some((from, product)) = last_product(graph, &uses, &edits, id, ins)
            {
                let fused = fused(graph, &uses, product, map);
                let what = fused.as_ref().err().copied().unwrap_or("the function that reads it became its epilogue");
                notes.add(product.origin, what);
                if let Ok(fused) = fused {
                    edits.extend([((id, from), Vec::new()), ((id, at), vec![fused])]);
                }
            }
        }
    }
    replace(graph, edits);
    false
}

/// Of the values that are products of a block, the last one, and its index there.
fn last_product<'a>(
    graph: &'a Graph,
    uses: &Uses,
    edits: &'a FxHashMap<Place, Vec<Node>>,
    block: BlockId,
    values: &[Value],
) -> Option<(usize, &'a Node)> {
    let product = |value: &Value| {
        let Some(Def::Node(home, index)) = uses.def(*value) else { return None };
        // A product that was fused has replaced its function.
        let new = edits.get(&(home, index)).and_then(|nodes| nodes.first());
        let node = new.or_else(|| graph.block(home).nodes.get(index)).filter(|_| home == block)?;
        matches!(node.op, Op::Prim(Prim::MatMul { .. } | Prim::QuantMatMul { .. })).then_some((index, node))
    };
    values.iter().filter_map(product).max_by_key(|(index, _)| *index)
}

/// A product with the function that reads it as its epilogue.
fn fused(graph: &Graph, uses: &Uses, product: &Node, map: &Prim<Value>) -> Result<Node, &'static str> {
    let mut fused = product.clone();
    let Prim::Map { out: result, ins, expr } = map else { return Err("not fused: not an elementwise function") };
    let Op::Prim(Prim::MatMul { out, epilogue, .. } | Prim::QuantMatMul { out, epilogue, .. }) = &mut fused.op else {
        return Err("not fused: not a product");
    };
    let uses_index = |step: &Step| matches!(step.op, Scalar::Index(_));
    let others: Vec<Value> = ins.iter().copied().filter(|value| value != out).collect();
    let checks = [
        (uses.count(*out) as usize + others.len() == ins.len(), "not fused: the product is read elsewhere too"),
        (epilogue.is_none(), "not fused: the product has an epilogue already"),
        (!expr.steps.iter().any(uses_index), "not fused: the function depends on the index of an element"),
        (expr.steps.len() <= MOST_STEPS, "not fused: the function is too long"),
        (ins.len() <= MOST_INPUTS, "not fused: the function has too many inputs"),
    ];
    checks.into_iter().try_for_each(|(holds, why)| if holds { Ok(()) } else { Err(why) })?;
    let number = |at: usize| 1 + ins.iter().take(at).filter(|value| *value != out).count();
    let numbers = (0..).zip(ins).map(|(at, value)| Some(if value == out { 0 } else { number(at) })).collect::<Vec<_>>();
    let expr = renumbered(Vec::new(), expr, &numbers);
    *epilogue = Some(Box::new(Fused { dtype: graph.ty(*out).dtype, ins: others, expr }));
    *out = *result;
    Ok(fused)
}
