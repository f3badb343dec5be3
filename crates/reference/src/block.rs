//! Runs the blocks of a graph.

use crate::memory::Memory;
use crate::prim::prim;
use crate::tensor::{StridedLayout, Tensor, signed};
use crate::view::{concat, stack, update, view};
use ptero_backend::{Fault, Inputs, Result, place_of};
use ptero_plan::dim::Var;
use ptero_plan::graph::{Block, BlockId, Loop, Node, Op, Value};
use ptero_plan::host::HostOp;
use ptero_tensor::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a run reads beside its memory.
pub(crate) struct Runner<'a> {
    pub(crate) inputs: &'a Inputs,
    /// By host value: `true` if it is known before anything runs. Such a value is not computed again, because the integers that
    /// the session keeps change when a call starts.
    pub(crate) is_early: &'a [bool],
    pub(crate) stop: &'a AtomicBool,
}

impl Runner<'_> {
    /// Runs what the host does before anything else.
    pub(crate) fn advance(&self, memory: &mut Memory<'_>, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            match &node.op {
                Op::Host(var) => {
                    let op = memory.graph.host.get(var.0 as usize);
                    let number = op.and_then(|op| op.eval(&memory.host, self.inputs)).unwrap_or(0);
                    memory.set(*var, number);
                }
                Op::Check(check) => {
                    check.hold(&memory.host).map_err(Fault::from).map_err(|fault| fault.at(place_of(node)))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs a block and the blocks it calls. Blocks exist and calls end, because the graph was verified.
    pub(crate) fn block(&self, memory: &mut Memory<'_>, block: BlockId) -> Result<()> {
        let graph = memory.graph;
        for node in &graph.block(block).nodes {
            let here = |fault: Fault| fault.at(place_of(node));
            self.check_stop().map_err(here)?;
            match &node.op {
                Op::If { condition, then, otherwise, outs } => {
                    let chosen = if condition.eval(&memory.host) != 0 { *then } else { *otherwise };
                    self.block(memory, chosen)?;
                    let results = results(memory, graph.block(chosen)).map_err(here)?;
                    let mut outs = outs.iter().zip(results);
                    outs.try_for_each(|(out, tensor)| memory.define(*out, tensor)).map_err(here)?;
                }
                Op::Loop(round) => self.rounds(memory, node, round)?,
                op => self.op(memory, op).map_err(here)?,
            }
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Fault> {
        if self.stop.load(Ordering::Relaxed) { Err(Fault::Cancelled) } else { Ok(()) }
    }

    /// An operation that runs no block.
    fn op(&self, memory: &mut Memory<'_>, op: &Op) -> Result<(), Fault> {
        match op {
            Op::Prim(primitive) => prim(memory, primitive),
            Op::View { out, x, how } => view(memory, *out, *x, how),
            Op::Concat { out, parts, axis } => concat(memory, *out, parts, *axis),
            Op::Update { out, base, new, axis, start, step } => {
                update(memory, *out, *base, *new, (*axis, start.eval(&memory.host), *step))
            }
            Op::Read { out, state } => {
                let tensor = memory.state(*state)?.clone();
                memory.define(*out, tensor)
            }
            Op::Write { state, x } => {
                // A state is stored in row-major order, so that it holds no more than its own bytes.
                let tensor = memory.tensor(*x)?.compact()?;
                *memory.state(*state)? = tensor;
                Ok(())
            }
            Op::Host(var) => self.host(memory, *var),
            Op::Check(check) => check.hold(&memory.host).map_err(Fault::from),
            Op::Foreign(foreign) => {
                let [source_hash, header_hash] = foreign.hashes;
                Err(Fault::Foreign { name: foreign.kernel.name.clone(), source_hash, header_hash })
            }
            Op::If { .. } | Op::Loop(_) => Err(Fault::Contract("an operation runs no block here")),
        }
    }

    fn host(&self, memory: &mut Memory<'_>, var: Var) -> Result<(), Fault> {
        if self.is_early.get(var.0 as usize) == Some(&true) {
            return Ok(());
        }
        let number = match memory.graph.host.get(var.0 as usize) {
            Some(HostOp::Item(value)) => Some(item(memory, *value)?),
            Some(op) => op.eval(&memory.host, self.inputs),
            None => None,
        };
        if let Some(number) = number {
            memory.set(var, number);
        }
        Ok(())
    }

    fn rounds(&self, memory: &mut Memory<'_>, node: &Node, round: &Loop) -> Result<()> {
        let graph = memory.graph;
        let here = |fault: Fault| fault.at(place_of(node));
        let body = graph.block(round.body);
        let carried = round.carried.iter().map(|carried| memory.tensor(carried.init).cloned());
        let mut carried = carried.collect::<Result<Vec<Tensor>, Fault>>().map_err(here)?;
        let stacked = round.stacked.iter().map(|stacked| {
            let layout = StridedLayout::row_major(memory.shape(stacked.out)?);
            Ok((layout, memory.element(stacked.out)?, memory.room(stacked.out)?))
        });
        let mut stacked = stacked.collect::<Result<Vec<_>, Fault>>().map_err(here)?;
        let count = round.count.eval(&memory.host);
        for index in 0..count {
            self.check_stop().map_err(here)?;
            for (slot, tensor) in round.carried.iter().zip(carried) {
                memory.define(slot.param, tensor).map_err(here)?;
            }
            memory.set(round.index, index);
            self.block(memory, round.body)?;
            carried = results(memory, body).map_err(here)?;
            let parts = carried.split_off(round.carried.len().min(carried.len()));
            for ((slot, (layout, _, bytes)), part) in round.stacked.iter().zip(&mut stacked).zip(parts) {
                stack(layout, bytes, slot.axis, index, &part).map_err(here)?;
            }
        }
        for (slot, tensor) in round.carried.iter().zip(carried) {
            memory.define(slot.out, tensor).map_err(here)?;
        }
        for (slot, (layout, element, bytes)) in round.stacked.iter().zip(stacked) {
            if layout.shape.get(slot.axis).copied().map(signed) != Some(count.max(0)) {
                return Err(here(Fault::Contract("a loop collects a part of each round")));
            }
            memory.define(slot.out, Tensor { element, layout, bytes: Bytes::from(bytes) }).map_err(here)?;
        }
        Ok(())
    }
}

fn results(memory: &Memory<'_>, block: &Block) -> Result<Vec<Tensor>, Fault> {
    block.results.iter().map(|value| memory.tensor(*value).cloned()).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
fn item(memory: &Memory<'_>, value: Value) -> Result<i64, Fault> {
    let mut numbers = memory.tensor(value)?.numbers();
    match (numbers.next(), numbers.next()) {
        (Some(number), None) => Ok(i64::from(number.int() as i32)),
        (None, _) | (_, Some(_)) => Err(Fault::Contract("an item is the only element of its tensor")),
    }
}
