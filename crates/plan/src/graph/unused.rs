//! Operations whose results nobody reads go, and what a branch or a loop leaves that nobody reads.

use super::{Block, BlockId, Carried, Graph, Loop, Op, Output, Uses, Value, is_set, set};
use crate::dim::Dim;
use crate::host::HostOp;

/// Takes out what has no effect and is not read: operations, markers of host values, results of branches and loops, constants,
/// and what is in blocks that nothing runs.
pub fn drop_unused(graph: &mut Graph) {
    let mut nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
    let uses = nodes.any(|node| matches!(node.op, Op::Loop(_))).then(|| Uses::of(graph));
    let blocks = vec![Block::default(); graph.blocks.len()];
    let old = std::mem::replace(&mut graph.blocks, blocks);
    let [values, vars] = [graph.values.len(), graph.host.len()].map(|count| vec![false; count]);
    let mut live = Live { graph, uses, values, vars, old, new: Vec::new() };
    for output in &live.graph.outputs {
        match output {
            Output::Tensor(value) => live.value(*value),
            Output::Int(number) => live.number(number),
        }
    }
    live.graph.kept.iter().flat_map(|kept| [&kept.at_start, &kept.at_end]).for_each(|number| live.number(number));
    // From the end to the start, so that those who read come before what they read.
    [Some(live.graph.main), live.graph.init].into_iter().flatten().for_each(|block| live.block(block));
    let Live { new, values, .. } = live;
    new.into_iter().for_each(|(id, block)| *graph.block_mut(id) = block);
    graph.constants.retain(|(value, _)| is_set(&values, value.0));
}

struct Live<'a> {
    graph: &'a Graph,
    /// Of a graph with loops.
    uses: Option<Uses>,
    /// By value, and by host value: whether somebody needs it.
    values: Vec<bool>,
    vars: Vec<bool>,
    /// Blocks that were not reached yet, and those that were.
    old: Vec<Block>,
    new: Vec<(BlockId, Block)>,
}

impl Live<'_> {
    fn number(&mut self, number: &Dim) {
        number.vars().for_each(|var| set(&mut self.vars, var.0, true));
    }

    fn value(&mut self, value: Value) {
        if let Some(flag) = self.values.get_mut(value.0 as usize).filter(|flag| !**flag) {
            *flag = true;
            self.graph.ty(value).shape.iter().for_each(|size| self.number(size));
        }
    }

    /// Goes through a block of whose results some are wanted.
    fn inner(&mut self, id: BlockId, wanted: &[bool]) -> bool {
        let mut wanted = wanted.iter();
        let block = self.old.get_mut(id.0 as usize);
        block.into_iter().for_each(|block| block.results.retain(|_| wanted.next().copied().unwrap_or(false)));
        self.block(id);
        self.new.last().is_some_and(|(_, block)| !block.nodes.is_empty())
    }

    fn block(&mut self, id: BlockId) {
        let mut block = self.old.get_mut(id.0 as usize).map(std::mem::take).unwrap_or_default();
        block.results.iter().for_each(|value| self.value(*value));
        block.nodes.reverse();
        block.nodes.retain_mut(|node| self.is_needed(&mut node.op));
        block.nodes.reverse();
        self.new.push((id, block));
    }

    /// Returns `true` if a loop leaves something that is needed, or has effects.
    fn is_run(&self, round: &Loop) -> bool {
        let mut outs = round.carried.iter().map(|at| at.out).chain(round.stacked.iter().map(|at| at.out));
        let nodes = self.old.get(round.body.0 as usize).into_iter().flat_map(|block| &block.nodes);
        outs.any(|out| is_set(&self.values, out.0)) || nodes.into_iter().any(|node| node.op.has_effect())
    }

    /// Returns `true` if somebody needs an operation; then what it needs itself is needed too.
    fn is_needed(&mut self, op: &mut Op) -> bool {
        let is_live = |live: &Self, value: Value| is_set(&live.values, value.0);
        let is_needed = match op {
            Op::Host(var) => is_set(&self.vars, var.0),
            Op::If { then, otherwise, outs, .. } => {
                let kept: Vec<bool> = outs.iter().map(|out| is_live(self, *out)).collect();
                outs.retain(|out| is_live(self, *out));
                let blocks = [then, otherwise].map(|block| self.inner(*block, &kept));
                kept.contains(&true) || blocks.contains(&true)
            }
            Op::Loop(round) if !self.is_run(round) => false,
            Op::Loop(round) => {
                let is_read = |live: &Self, value| live.uses.as_ref().is_some_and(|uses| uses.count(value) > 0);
                let is_carried = |live: &Self, at: &Carried| is_live(live, at.out) || is_read(live, at.param);
                let carried = round.carried.iter().map(|at| is_carried(self, at));
                let kept: Vec<bool> = carried.chain(round.stacked.iter().map(|at| is_live(self, at.out))).collect();
                round.carried.retain(|at| is_carried(self, at));
                round.stacked.retain(|at| is_live(self, at.out));
                self.inner(round.body, &kept) || kept.contains(&true)
            }
            _ => op.has_effect() || op.outs().iter().any(|out| is_live(self, *out)),
        };
        if is_needed {
            self.graph.reads(op).into_iter().chain(op.outs()).for_each(|value| self.value(value));
            op.numbers().into_iter().for_each(|number| self.number(number));
            let definition = if let Op::Host(var) = op { self.graph.host.get(var.0 as usize) } else { None };
            definition.into_iter().flat_map(HostOp::numbers).for_each(|number| self.number(number));
        }
        is_needed
    }
}
