//! Where each value is defined and how often it is used.

use super::{BlockId, Graph, Node, Op, Output, Value};

/// Where a value that is no input is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The constant of that number.
    Constant(usize),
    /// A parameter of the body of a loop.
    Param(BlockId),
    /// The operation at an index of a block.
    Node(BlockId, usize),
}

/// An operation: its block and its index there.
pub(crate) type Place = (BlockId, usize);

/// Definitions and uses of all values.
#[derive(Debug)]
pub struct Uses {
    defs: Vec<Option<Def>>,
    counts: Vec<u32>,
    /// The last operation that uses each value.
    users: Vec<Option<Place>>,
}

#[allow(clippy::indexing_slicing, reason = "the numbers of values come from the graph that the lists are for")]
impl Uses {
    /// Looks through all blocks.
    pub fn of(graph: &Graph) -> Self {
        let count = graph.values.len();
        let mut uses = Self { defs: vec![None; count], counts: vec![0; count], users: vec![None; count] };
        for (number, (value, _)) in graph.constants.iter().enumerate() {
            uses.define(*value, Def::Constant(number));
        }
        for (block, id) in graph.blocks.iter().zip((0..).map(BlockId)) {
            for (index, node) in block.nodes.iter().enumerate() {
                node.op.outs().into_iter().for_each(|out| uses.define(out, Def::Node(id, index)));
                graph.reads(&node.op).into_iter().for_each(|value| uses.add(value, Some((id, index))));
                if let Op::Loop(round) = &node.op {
                    round.carried.iter().for_each(|carried| uses.define(carried.param, Def::Param(round.body)));
                }
            }
            block.results.iter().for_each(|value| uses.add(*value, None));
        }
        graph.outputs.iter().filter_map(Output::tensor).for_each(|value| uses.add(value, None));
        uses
    }

    fn define(&mut self, value: Value, def: Def) {
        self.defs[value.0 as usize] = Some(def);
    }

    fn add(&mut self, value: Value, user: Option<Place>) {
        self.counts[value.0 as usize] += 1;
        self.users[value.0 as usize] = user;
    }

    /// Where a value is defined; `None` for an input, or if a pass removed its operation.
    pub fn def(&self, value: Value) -> Option<Def> {
        self.defs.get(value.0 as usize).copied().flatten()
    }

    /// The operation that defines a value.
    pub(crate) fn place(&self, value: Value) -> Option<Place> {
        if let Def::Node(block, index) = self.def(value)? { Some((block, index)) } else { None }
    }

    /// The operation that uses a value, if it is the only use.
    pub(crate) fn only_user(&self, value: Value) -> Option<Place> {
        self.users[value.0 as usize].filter(|_| self.count(value) == 1)
    }

    /// The operation that defines a value.
    pub fn node<'a>(&self, graph: &'a Graph, value: Value) -> Option<&'a Node> {
        let (block, index) = self.place(value)?;
        graph.block(block).nodes.get(index)
    }

    /// The operation that defines a value, without its instruction.
    pub fn op<'a>(&self, graph: &'a Graph, value: Value) -> Option<&'a Op> {
        self.node(graph, value).map(|node| &node.op)
    }

    /// The number of uses of a value by operations, results of blocks and outputs.
    pub fn count(&self, value: Value) -> u32 {
        self.counts.get(value.0 as usize).copied().unwrap_or(0)
    }
}
