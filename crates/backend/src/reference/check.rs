//! What a plan must be for the reference to run it. All refusals that do not depend on a call happen here.

use super::conv::Conv;
use super::number::Element;
use super::sample;
use super::{map, quant, random};
use crate::drive::place;
use crate::error::{Error, Fault, Place, Result};
use ptero_plan::dim::Var;
use ptero_plan::plan::{Buffer, BufferKind, HostOp, Input, Output, Plan, PlanStep};
use ptero_plan::prim::{Prim, View};

/// How deep blocks may call each other; calls are calls of Rust functions.
const DEPTH_LIMIT: usize = 256;

/// When a block runs, and so which buffers it may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Init,
    Call,
}

/// Refuses a plan that is not what a plan must be, or asks for something that no device does.
pub fn check(plan: &Plan) -> Result<()> {
    for (index, buffer) in plan.buffers.iter().enumerate() {
        check_buffer(buffer).map_err(|fault| fault.at(Place::Buffer(index)))?;
    }
    for (index, input) in plan.inputs.iter().enumerate() {
        check_input(plan, input).map_err(|fault| fault.at(Place::Input(index)))?;
    }
    if let Some(init) = plan.init {
        Walk::new(plan, Phase::Init).height(init, 0)?;
    }
    Walk::new(plan, Phase::Call).height(plan.main, 0)?;
    for (index, output) in plan.outputs.iter().enumerate() {
        if let Output::Tensor(view) = output {
            check_view(plan, view, Phase::Call, false).map_err(|fault| fault.at(Place::Output(index)))?;
        }
    }
    Ok(())
}

fn check_buffer(buffer: &Buffer) -> Result<(), Fault> {
    match (&buffer.kind, buffer.elements.as_fixed()) {
        (BufferKind::State | BufferKind::Derived, None) => Err(Fault::NotFixed(buffer.elements.clone())),
        (BufferKind::State | BufferKind::Derived, Some(_)) => Ok(()),
        (BufferKind::Constant(_) | BufferKind::Input(_) | BufferKind::Temporary, _) => Ok(()),
    }
}

fn check_input(plan: &Plan, input: &Input) -> Result<(), Fault> {
    match input {
        Input::Int(var) => check_var(plan, *var),
        Input::Tensor { buf, dtype, shape } => {
            Element::new(*dtype)?;
            let buffer = find(&plan.buffers, "buffer", buf.0 as usize)?;
            if buffer.dtype != *dtype {
                return Err(Fault::ViewType { found: *dtype, wanted: buffer.dtype });
            }
            if !matches!(buffer.kind, BufferKind::Input(_)) {
                return Err(Fault::Contract("the buffer of an input is there for it"));
            }
            for dim in shape.iter().filter(|dim| dim.as_fixed().is_none()) {
                check_var(plan, dim.as_var().ok_or(Fault::Contract("a size of an input is a number or a value"))?)?;
            }
            Ok(())
        }
    }
}

fn find<'a, T>(items: &'a [T], what: &'static str, index: usize) -> Result<&'a T, Fault> {
    items.get(index).ok_or(Fault::NoSuch { what, index, count: items.len() })
}

fn check_var(plan: &Plan, var: Var) -> Result<(), Fault> {
    if var.0 < plan.vars {
        return Ok(());
    }
    Err(Fault::NoSuch { what: "host value", index: var.0 as usize, count: plan.vars as usize })
}

fn check_view(plan: &Plan, view: &View, phase: Phase, is_written: bool) -> Result<(), Fault> {
    let buffer = find(&plan.buffers, "buffer", view.buf.0 as usize)?;
    Element::new(view.dtype)?;
    if view.dtype != buffer.dtype {
        return Err(Fault::ViewType { found: view.dtype, wanted: buffer.dtype });
    }
    let (kind, is_readable, is_writable) = match buffer.kind {
        BufferKind::Constant(_) => ("constant", true, false),
        BufferKind::Derived => ("derived", true, phase == Phase::Init),
        BufferKind::Input(_) => ("an input", phase == Phase::Call, false),
        BufferKind::State => ("state", phase == Phase::Call, phase == Phase::Call),
        BufferKind::Temporary => ("temporary", true, true),
    };
    let (is_allowed, access) = if is_written { (is_writable, "written") } else { (is_readable, "read") };
    if is_allowed { Ok(()) } else { Err(Fault::Forbidden { buffer: view.buf.0, kind, access }) }
}

/// Visits each block that a phase can reach, once.
struct Walk<'a> {
    plan: &'a Plan,
    phase: Phase,
    blocks: Vec<Visit>,
}

/// How far the walk is with a block.
#[derive(Clone, Copy)]
enum Visit {
    Ahead,
    Within,
    /// Done; so deep are the calls of the block.
    Done(usize),
}

impl<'a> Walk<'a> {
    fn new(plan: &'a Plan, phase: Phase) -> Self {
        Self { plan, phase, blocks: vec![Visit::Ahead; plan.blocks.len()] }
    }

    /// How deep the calls of a block are that is itself called `depth` deep.
    fn height(&mut self, index: usize, depth: usize) -> Result<usize> {
        let block = find(&self.plan.blocks, "block", index)?;
        let height = match self.blocks.get(index) {
            Some(Visit::Within) => return Err(Fault::Recursive(index).into()),
            Some(Visit::Done(height)) => *height,
            Some(Visit::Ahead) | None => 0,
        };
        if depth + height > DEPTH_LIMIT {
            return Err(Fault::TooDeep { limit: DEPTH_LIMIT }.into());
        }
        if height > 0 {
            return Ok(height);
        }
        self.mark(index, Visit::Within);
        let mut height = 1;
        for (at, step) in block.steps.iter().enumerate() {
            let here = |fault: Fault| -> Error { fault.at(place(index, block, at, step)) };
            self.check_step(step).map_err(here)?;
            let called = match step {
                PlanStep::If { then, otherwise, .. } => [Some(*then), Some(*otherwise)],
                PlanStep::Loop { body, .. } => [Some(*body), None],
                PlanStep::Device(_) | PlanStep::Host { .. } | PlanStep::Check(_) => [None, None],
            };
            for block in called.into_iter().flatten() {
                height = height.max(1 + self.height(block, depth + 1)?);
            }
        }
        self.mark(index, Visit::Done(height));
        Ok(height)
    }

    fn mark(&mut self, index: usize, visit: Visit) {
        if let Some(slot) = self.blocks.get_mut(index) {
            *slot = visit;
        }
    }

    fn check_step(&self, step: &PlanStep) -> Result<(), Fault> {
        match step {
            PlanStep::Device(prim) => {
                prim.reads().into_iter().try_for_each(|view| check_view(self.plan, view, self.phase, false))?;
                prim.writes().into_iter().try_for_each(|view| check_view(self.plan, view, self.phase, true))?;
                check_parameters(prim)
            }
            PlanStep::Host { out, op: HostOp::Item(view) } => {
                check_view(self.plan, view, self.phase, false)?;
                if Element::new(view.dtype)?.is_float() {
                    return Err(Fault::Contract("an item is an integer or a bool"));
                }
                check_var(self.plan, *out)
            }
            PlanStep::Host { out, .. } => check_var(self.plan, *out),
            PlanStep::Loop { index, .. } => check_var(self.plan, *index),
            PlanStep::Check(_) | PlanStep::If { .. } => Ok(()),
        }
    }
}

/// What can be wrong with a primitive beside its views.
fn check_parameters(prim: &Prim) -> Result<(), Fault> {
    match prim {
        Prim::Map { out, ins, expr } => map::check(out, ins, expr),
        Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. } => quant::check(w),
        Prim::Conv { out, stride, padding, dilation, groups, transposed, .. } => {
            Conv { stride, padding, dilation, groups: *groups, transposed: *transposed }.check(out)
        }
        Prim::RandomBits { out, .. } => random::check(out),
        Prim::Sample(views) => sample::check(views),
        Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Softmax { .. } | Prim::Norm { .. } => Ok(()),
        Prim::Rope { .. } | Prim::Attention { .. } | Prim::MatMul { .. } | Prim::GatedDelta(_) => Ok(()),
        Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Ok(()),
    }
}
