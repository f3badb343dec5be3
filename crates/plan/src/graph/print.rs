//! Graphs as text: one line per operation, with the instruction it came from.

use super::{BlockId, Graph, Input, Node, Op, Output, Value, ViewOp};
use crate::error::Shape;
use crate::host::early;
use crate::print::{list, show_prim};
use std::fmt;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// A value with its type.
struct Typed<'a>(&'a Graph, Value);

impl fmt::Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = self.0.ty(self.1);
        write!(f, "{} {}{}", self.1, ty.dtype, Shape(ty.shape.clone()))
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (value, bytes) in &self.constants {
            writeln!(f, "constant {}, {} bytes", Typed(self, *value), bytes.len())?;
        }
        for (index, state) in self.states.iter().enumerate() {
            writeln!(f, "state s{index} {}{}", state.dtype, Shape(state.shape.clone()))?;
        }
        for (index, input) in self.inputs.iter().enumerate() {
            match input {
                Input::Tensor(value) => writeln!(f, "input {index}: {}", Typed(self, *value))?,
                Input::Int(var) => writeln!(f, "input {index}: h{}", var.0)?,
            }
        }
        // The others are printed where they become known.
        let is_early = early(&self.host);
        for (index, (op, _)) in self.host.iter().zip(is_early).enumerate().filter(|(_, (_, is_early))| *is_early) {
            writeln!(f, "h{index} = {op}")?;
        }
        for (index, int) in self.session_ints.iter().enumerate() {
            writeln!(f, "session int k{index}: {} at the start of a call, {} at its end", int.at_start, int.at_end)?;
        }
        let first = self.init.into_iter().map(|block| (block, "block, runs once at load"));
        for (block, title) in first.chain([(self.main, "block, runs at every call")]) {
            writeln!(f, "{title}")?;
            self.show_block(f, block, 1)?;
        }
        for (index, output) in self.outputs.iter().enumerate() {
            match output {
                Output::Tensor(value) => writeln!(f, "output {index}: {}", Typed(self, *value))?,
                Output::Int(value) => writeln!(f, "output {index}: {value}")?,
            }
        }
        Ok(())
    }
}

impl Graph {
    fn show_block(&self, f: &mut fmt::Formatter<'_>, block: BlockId, depth: usize) -> fmt::Result {
        let block = self.block(block);
        for node in &block.nodes {
            self.show_node(f, node, depth)?;
        }
        match block.results.as_slice() {
            [] => Ok(()),
            results => writeln!(f, "  {:8} {:indent$}-> {}", "", "", list(results), indent = 2 * depth - 2),
        }
    }

    fn show_node(&self, f: &mut fmt::Formatter<'_>, node: &Node, depth: usize) -> fmt::Result {
        let Node { op, origin: (chain, index) } = node;
        write!(f, "  {:8} {:indent$}", format!("{chain}.{index}"), "", indent = 2 * depth - 2)?;
        let outs = op.outs();
        if !outs.is_empty() {
            write!(f, "{} = ", list(outs.iter().map(|out| Typed(self, *out))))?;
        }
        match op {
            Op::Prim(prim) => writeln!(f, "{}", show_prim(prim, &Value::to_string)),
            Op::View { x, how, .. } => match how {
                ViewOp::Reshape => writeln!(f, "reshape({x})"),
                ViewOp::Permute(order) => writeln!(f, "permute({x}) {order:?}"),
                ViewOp::Broadcast => writeln!(f, "broadcast({x})"),
                ViewOp::Slice { axis, start, step } => writeln!(f, "slice({x}) axis {axis} from {start} step {step}"),
                ViewOp::Strided { strides, offset } => {
                    writeln!(f, "strided({x}) {} from {offset}", Shape(strides.clone()))
                }
            },
            Op::Concat { parts, axis, .. } => writeln!(f, "concat({}) axis {axis}", list(parts)),
            Op::Update { base, new, axis, start, step, .. } => {
                writeln!(f, "update({base}, {new}) axis {axis} from {start} step {step}")
            }
            Op::Read { state, .. } => writeln!(f, "read(s{})", state.0),
            Op::Write { state, x } => writeln!(f, "write(s{}, {x})", state.0),
            Op::Host(var) => writeln!(f, "h{} = {}", var.0, list(self.host.get(var.0 as usize))),
            Op::Check(check) => writeln!(f, "{check}"),
            Op::If { condition, then, otherwise, .. } => {
                writeln!(f, "if {condition}")?;
                self.show_block(f, *then, depth + 1)?;
                writeln!(f, "  {:8} {:indent$}else", "", "", indent = 2 * depth - 2)?;
                self.show_block(f, *otherwise, depth + 1)
            }
            Op::Loop(round) => {
                let carried = round.carried.iter().map(|carried| format!("{} = {}", carried.param, carried.init));
                writeln!(f, "for h{} below {}, carrying ({})", round.index.0, round.count, list(carried))?;
                self.show_block(f, round.body, depth + 1)
            }
            Op::Foreign(foreign) => {
                writeln!(f, "foreign `{}`({})", foreign.kernel.name.escape_debug(), list(&foreign.ins))
            }
        }
    }
}
