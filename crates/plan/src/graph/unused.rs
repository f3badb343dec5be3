//! Removes operations, and results of branches and loops, that are not used.

use super::{Block, BlockId, Carried, Graph, Op, Output, Uses, Value, is_set, set};
use crate::dim::Dim;
use crate::host::HostOp;

/// Removes what has no effect and is not read: operations, markers of host values, results of branches and loops, constants, and
/// the content of blocks that nothing runs.
pub fn drop_unused(graph: &mut Graph) {
    let mut nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
    let uses = nodes.any(|node| matches!(node.op, Op::Loop(_))).then(|| Uses::of(graph));
    let counts = [graph.values.len(), graph.host.len(), graph.blocks.len()];
    let [values, vars, blocks] = counts.map(|count| vec![false; count]);
    let mut live = Live { uses, values, vars, blocks };
    for output in &graph.outputs {
        match output {
            Output::Tensor(value) => live.value(graph, *value),
            Output::Int(number) => live.number(number),
        }
    }
    graph.session_ints.iter().flat_map(|int| [&int.at_start, &int.at_end]).for_each(|number| live.number(number));
    // Backwards, so that uses come before definitions.
    for block in [Some(graph.main), graph.init].into_iter().flatten() {
        live.block(graph, block, &vec![true; graph.block(block).results.len()]);
    }
    let unrun = graph.blocks.iter_mut().zip(&live.blocks).filter(|(_, is_run)| !**is_run);
    unrun.for_each(|(block, _)| *block = Block::default());
    graph.constants.retain(|(value, _)| is_set(&live.values, value.0));
}

struct Live {
    /// Only for a graph with loops.
    uses: Option<Uses>,
    /// By value, and by host value: `true` if it is needed.
    values: Vec<bool>,
    vars: Vec<bool>,
    /// By block: `true` if something runs it.
    blocks: Vec<bool>,
}

impl Live {
    fn number(&mut self, number: &Dim) {
        number.vars().for_each(|var| set(&mut self.vars, var.0, true));
    }

    fn value(&mut self, graph: &Graph, value: Value) {
        if !is_set(&self.values, value.0) {
            set(&mut self.values, value.0, true);
            graph.ty(value).shape.iter().for_each(|size| self.number(size));
        }
    }

    /// Removes the results of a block that are not wanted, and unused operations. Returns `true` if operations are left.
    fn block(&mut self, graph: &mut Graph, id: BlockId, wanted: &[bool]) -> bool {
        set(&mut self.blocks, id.0, true);
        let (mut block, mut wanted) = (std::mem::take(graph.block_mut(id)), wanted.iter());
        block.results.retain(|_| wanted.next() == Some(&true));
        block.results.iter().for_each(|value| self.value(graph, *value));
        block.nodes.reverse();
        block.nodes.retain_mut(|node| self.is_needed(graph, &mut node.op));
        block.nodes.reverse();
        let is_left = !block.nodes.is_empty();
        *graph.block_mut(id) = block;
        is_left
    }

    /// Returns `true` if an operation is needed, and then marks what it needs itself.
    fn is_needed(&mut self, graph: &mut Graph, op: &mut Op) -> bool {
        let is_live = |live: &Self, value: Value| is_set(&live.values, value.0);
        let is_read = op.outs().iter().any(|out| is_live(self, *out));
        let has_effect = |block: BlockId| graph.block(block).nodes.iter().any(|node| node.op.has_effect());
        let is_needed = match op {
            Op::Host(var) => is_set(&self.vars, var.0),
            Op::If { then, otherwise, outs, .. } => {
                let kept: Vec<bool> = outs.iter().map(|out| is_live(self, *out)).collect();
                outs.retain(|out| is_live(self, *out));
                let blocks = [then, otherwise].map(|block| self.block(graph, *block, &kept));
                kept.contains(&true) || blocks.contains(&true)
            }
            Op::Loop(round) if !is_read && !has_effect(round.body) => false,
            Op::Loop(round) => {
                let is_used = |live: &Self, value| live.uses.as_ref().is_some_and(|uses| uses.count(value) > 0);
                let is_carried = |live: &Self, at: &Carried| is_live(live, at.out) || is_used(live, at.param);
                let carried = round.carried.iter().map(|at| is_carried(self, at));
                let kept: Vec<bool> = carried.chain(round.stacked.iter().map(|at| is_live(self, at.out))).collect();
                round.carried.retain(|at| is_carried(self, at));
                round.stacked.retain(|at| is_live(self, at.out));
                self.block(graph, round.body, &kept) || kept.contains(&true)
            }
            _ => is_read || op.has_effect(),
        };
        if is_needed {
            graph.reads(op).into_iter().chain(op.outs()).for_each(|value| self.value(graph, value));
            op.numbers().into_iter().for_each(|number| self.number(number));
            let definition = if let Op::Host(var) = op { graph.host.get(var.0 as usize) } else { None };
            definition.into_iter().flat_map(HostOp::numbers).for_each(|number| self.number(number));
        }
        is_needed
    }
}
