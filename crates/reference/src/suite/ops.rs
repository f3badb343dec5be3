//! Adds operations to a graph.

use ptero_plan::dim::Dim;
use ptero_plan::function::{Function, Term};
use ptero_plan::graph::{Block, BlockId, Graph, Node, Op, StateId, Type, Value, ViewOp};
use ptero_plan::prim::Prim;

/// A new block, to which operations can be added.
pub(super) fn new_block(graph: &mut Graph) -> BlockId {
    graph.blocks.push(Block::default());
    BlockId(graph.blocks.len() as u32 - 1)
}

/// Adds an operation to the end of a block.
pub(super) fn push(graph: &mut Graph, block: BlockId, op: Op) {
    let nodes = &mut graph.block_mut(block).nodes;
    let origin = (block.0, nodes.len() as u32);
    nodes.push(Node { op, origin });
}

/// A new value of the type of another.
pub(super) fn like(graph: &mut Graph, value: Value) -> Value {
    let Type { dtype, shape } = graph.ty(value).clone();
    graph.value(dtype, shape)
}

pub(super) fn view(graph: &mut Graph, block: BlockId, x: Value, shape: Vec<Dim>, how: ViewOp) -> Value {
    let out = graph.value(graph.ty(x).dtype, shape);
    push(graph, block, Op::View { out, x, how });
    out
}

pub(super) fn read(graph: &mut Graph, block: BlockId, state: StateId) -> Value {
    let Type { dtype, shape } = graph.states[state.0 as usize].clone();
    let out = graph.value(dtype, shape);
    push(graph, block, Op::Read { out, state });
    out
}

/// A function of values of one type, which its result has, too.
pub(super) fn map<const N: usize>(
    graph: &mut Graph,
    block: BlockId,
    ins: [Value; N],
    f: impl FnOnce(&Function, [Term; N]) -> Term,
) -> Value {
    let out = like(graph, ins[0]);
    let expr = Function::of(ins.map(|value| graph.ty(value).dtype), f);
    push(graph, block, Op::Prim(Prim::Map { out, ins: ins.to_vec(), expr }));
    out
}
