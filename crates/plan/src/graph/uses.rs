//! Who makes a value, and how many read it.

use super::{BlockId, Graph, Input, Node, Op, Output, Value};

/// Who makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The constant of that number.
    Constant(usize),
    /// The input of that number.
    Input(usize),
    /// The loop whose body this is, anew in each round.
    Param(BlockId),
    /// An operation: its block and its index there.
    Node(BlockId, usize),
}

/// Definitions and uses of all values.
#[derive(Debug)]
pub struct Uses {
    defs: Vec<Option<Def>>,
    counts: Vec<u32>,
}

impl Uses {
    /// Looks through all blocks.
    pub fn of(graph: &Graph) -> Self {
        let mut uses = Self { defs: vec![None; graph.values.len()], counts: vec![0; graph.values.len()] };
        for (number, (value, _)) in graph.constants.iter().enumerate() {
            uses.define(*value, Def::Constant(number));
        }
        for (number, input) in graph.inputs.iter().enumerate() {
            if let Input::Tensor(value) = input {
                uses.define(*value, Def::Input(number));
            }
        }
        for (block, id) in graph.blocks.iter().zip(0..) {
            for (index, node) in block.nodes.iter().enumerate() {
                node.op.outs().into_iter().for_each(|out| uses.define(out, Def::Node(BlockId(id), index)));
                graph.reads(&node.op).into_iter().for_each(|value| uses.count_up(value));
                if let Op::Loop(round) = &node.op {
                    round.carried.iter().for_each(|carried| uses.define(carried.param, Def::Param(round.body)));
                }
            }
            block.results.iter().for_each(|value| uses.count_up(*value));
        }
        for output in &graph.outputs {
            if let Output::Tensor(value) = output {
                uses.count_up(*value);
            }
        }
        uses
    }

    fn define(&mut self, value: Value, def: Def) {
        self.defs.get_mut(value.0 as usize).into_iter().for_each(|slot| *slot = Some(def));
    }

    fn count_up(&mut self, value: Value) {
        self.counts.get_mut(value.0 as usize).into_iter().for_each(|count| *count += 1);
    }

    /// Who makes a value; nobody, if a pass took its operation out.
    pub fn def(&self, value: Value) -> Option<Def> {
        self.defs.get(value.0 as usize).copied().flatten()
    }

    /// The operation that makes a value.
    pub fn node<'a>(&self, graph: &'a Graph, value: Value) -> Option<&'a Node> {
        match self.def(value)? {
            Def::Node(block, index) => graph.block(block).nodes.get(index),
            Def::Constant(_) | Def::Input(_) | Def::Param(_) => None,
        }
    }

    /// The same, without where it came from.
    pub fn op<'a>(&self, graph: &'a Graph, value: Value) -> Option<&'a Op> {
        self.node(graph, value).map(|node| &node.op)
    }

    /// How many operations, results of blocks and outputs read a value.
    pub fn count(&self, value: Value) -> u32 {
        self.counts.get(value.0 as usize).copied().unwrap_or(0)
    }
}
