//! Builds the blocks of a graph.

use crate::bridge::ffi::Values;
use crate::foreign::foreign;
use crate::frame::{Frame, axis as number, device};
use crate::prim::prim;
use crate::view::{concat, expect, update, view};
use ptero_backend::{Fault, Inputs, Result, place_of};
use ptero_plan::dim::Var;
use ptero_plan::graph::{BlockId, Loop, Node, Op, Value};
use ptero_plan::host::HostOp;
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

/// What building a call reads beside its frame.
pub(crate) struct Builder<'a> {
    pub(crate) inputs: &'a Inputs,
    pub(crate) stop: &'a AtomicBool,
}

impl Builder<'_> {
    /// Runs what the host does before anything else.
    pub(crate) fn advance(&self, frame: &mut Frame<'_>, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            match &node.op {
                Op::Host(var) => {
                    let op = frame.compiled.graph.host.get(var.0 as usize);
                    let number = op.and_then(|op| op.eval(&frame.host, self.inputs)).unwrap_or(0);
                    frame.set(*var, number);
                }
                Op::Check(check) => {
                    check.hold(&frame.host).map_err(Fault::from).map_err(|fault| fault.at(place_of(node)))?;
                }
                Op::Prim(_) | Op::View { .. } | Op::Concat { .. } | Op::Update { .. } | Op::Read { .. } => {}
                Op::Write { .. } | Op::If { .. } | Op::Loop(_) | Op::Foreign(_) => {}
            }
        }
        Ok(())
    }

    /// Builds a block and the blocks it calls. Blocks exist and calls end, because the graph was verified.
    pub(crate) fn block(&self, frame: &mut Frame<'_>, block: BlockId) -> Result<()> {
        let graph = &*frame.compiled.graph;
        for node in &graph.block(block).nodes {
            frame.place = place_of(node);
            let place = frame.place;
            let here = |fault: Fault| fault.at(place);
            match &node.op {
                Op::If { condition, then, otherwise, outs } => {
                    let chosen = if frame.eval(condition) != 0 { *then } else { *otherwise };
                    self.block(frame, chosen)?;
                    for (out, result) in outs.iter().zip(&graph.block(chosen).results) {
                        frame.arrays().alias(out.0, result.0).map_err(device).map_err(here)?;
                    }
                }
                Op::Loop(round) => self.rounds(frame, node, round)?,
                Op::Host(var) => self.host(frame, *var, here)?,
                Op::View { out, .. } if frame.compiled.is_fixed(*out) => {}
                op => self.op(frame, op).map_err(here)?,
            }
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Fault> {
        if self.stop.load(Ordering::Relaxed) { Err(Fault::Cancelled) } else { Ok(()) }
    }

    /// An operation that runs no block.
    fn op(&self, frame: &mut Frame<'_>, op: &Op) -> Result<(), Fault> {
        match op {
            Op::Prim(primitive) => prim(frame, primitive),
            Op::View { out, x, how } => view(frame, *out, *x, how),
            Op::Concat { out, parts, axis } => concat(frame, *out, parts, *axis),
            Op::Update { out, base, new, axis, start, step } => {
                let start = frame.eval(start);
                update(frame, *out, *base, *new, (*axis, start, *step))
            }
            Op::Read { out, state } => {
                let slot = frame.state(*state);
                frame.arrays().alias(out.0, slot).map_err(device)
            }
            Op::Write { state, x } => {
                let slot = frame.state(*state);
                if let Some(written) = frame.written.get_mut(state.0 as usize) {
                    *written = true;
                }
                frame.arrays().alias(slot, x.0).map_err(device)
            }
            Op::Check(check) => check.hold(&frame.host).map_err(Fault::from),
            Op::Foreign(kernel) => foreign(frame, kernel),
            Op::Host(_) | Op::If { .. } | Op::Loop(_) => Err(Fault::Contract("an operation runs no block here")),
        }
    }

    fn host(&self, frame: &mut Frame<'_>, var: Var, here: impl Fn(Fault) -> ptero_backend::Error) -> Result<()> {
        if frame.compiled.is_early.get(var.0 as usize) == Some(&true) {
            return Ok(());
        }
        let number = match frame.compiled.graph.host.get(var.0 as usize) {
            Some(HostOp::Item(_)) if frame.folded.contains(&var) => None,
            Some(HostOp::Item(value)) => {
                // What an index outside its axis led to must not decide anything.
                frame.settle()?;
                Some(item(frame.arrays(), *value).map_err(here)?)
            }
            Some(op) => op.eval(&frame.host, self.inputs),
            None => None,
        };
        if let Some(number) = number {
            frame.set(var, number);
        }
        Ok(())
    }

    fn rounds(&self, frame: &mut Frame<'_>, node: &Node, round: &Loop) -> Result<()> {
        let graph = &*frame.compiled.graph;
        let here = |fault: Fault| fault.at(place_of(node));
        let (body, mark) = (graph.block(round.body), frame.mark());
        let count = frame.eval(&round.count);
        // The sizes of what is collected are known before any round, and may be refused.
        let shapes = round.stacked.iter().map(|stacked| frame.shape(stacked.out));
        let shapes = shapes.collect::<Result<Vec<_>, Fault>>().map_err(here)?;
        let mut carried: SmallVec<[u32; 8]> = round.carried.iter().map(|_| frame.temporary()).collect();
        for (slot, carried) in round.carried.iter().zip(&carried) {
            frame.arrays().alias(*carried, slot.init.0).map_err(device).map_err(here)?;
        }
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); round.stacked.len()];
        for index in 0..count {
            self.check_stop().map_err(here)?;
            for (slot, carried) in round.carried.iter().zip(&carried) {
                frame.arrays().alias(slot.param.0, *carried).map_err(device).map_err(here)?;
            }
            frame.set(round.index, index);
            self.block(frame, round.body)?;
            for (at, result) in body.results.iter().enumerate() {
                let slot = match carried.get_mut(at) {
                    Some(slot) => *slot,
                    None => {
                        let slot = frame.temporary();
                        parts.get_mut(at - round.carried.len()).into_iter().for_each(|parts| parts.push(slot));
                        slot
                    }
                };
                frame.arrays().alias(slot, result.0).map_err(device).map_err(here)?;
            }
        }
        for (slot, carried) in round.carried.iter().zip(&carried) {
            frame.arrays().alias(slot.out.0, *carried).map_err(device).map_err(here)?;
        }
        for ((slot, parts), shape) in round.stacked.iter().zip(parts).zip(shapes) {
            let kind = frame.kind(slot.out).map_err(here)?;
            if parts.is_empty() {
                frame.arrays().zeros(slot.out.0, &shape, kind).map_err(device).map_err(here)?;
                continue;
            }
            frame.arrays().stack(slot.out.0, &parts, number(slot.axis)).map_err(device).map_err(here)?;
            expect(frame, slot.out, &shape, "a loop collects a part of each round").map_err(here)?;
        }
        frame.release(mark);
        Ok(())
    }
}

/// The one element of an array, cut to 32 bits. Waits for the device.
#[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
fn item(values: Pin<&mut Values>, value: Value) -> Result<i64, Fault> {
    values.item(value.0).map(|number| i64::from(number as i32)).map_err(device)
}
