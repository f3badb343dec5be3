//! Emits the steps of a plan, operation by operation.
#![allow(
    clippy::indexing_slicing,
    reason = "values, blocks and states are numbers of the graph that the lists are made for"
)]

use super::flow::Flow;
use crate::dim::Dim;
use crate::error::{Fault, PlanError};
use crate::function::Function;
use crate::graph::{self, BlockId, Graph, Loop, Op, Origin, Place, StateId, Value};
use crate::host::{HostOp, early};
use crate::plan::{Block, Buffer, BufferKind, Input, Output, Plan, PlanStep};
use crate::prim::{Buf, Prim, View, ViewId};
use crate::view::product;
use rustc_hash::FxHashMap;

pub(super) struct Emitter<'a> {
    pub(super) graph: &'a Graph,
    pub(super) flow: &'a Flow,
    /// The plan so far.
    plan: Plan,
    /// The number of each view.
    numbers: FxHashMap<View, ViewId>,
    /// The block that steps are added to.
    block: usize,
    origin: Origin,
    /// By value: its view.
    pub(super) places: Vec<Option<View>>,
    /// By value: the number of its view, once a step uses it.
    ids: Vec<Option<ViewId>>,
    /// The buffers of states.
    states: Vec<Buf>,
    /// By host value: `true` if it is known before anything runs.
    is_early: Vec<bool>,
    /// Results of concatenations whose memory was chosen before they are emitted.
    pub(super) reserved: FxHashMap<Value, View>,
    /// By result of a block: the view where the operation that runs the block needs it.
    pub(super) wanted: FxHashMap<Value, View>,
    /// `true` while the block that runs once is emitted.
    is_init: bool,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(graph: &'a Graph, flow: &'a Flow) -> Self {
        let mut emitter = Self {
            graph,
            flow,
            plan: Plan { host: graph.host.clone(), session_ints: graph.session_ints.clone(), ..Plan::default() },
            numbers: FxHashMap::default(),
            block: 0,
            origin: (0, 0),
            places: vec![None; graph.values.len()],
            ids: vec![None; graph.values.len()],
            states: Vec::new(),
            is_early: early(&graph.host),
            reserved: FxHashMap::default(),
            wanted: FxHashMap::default(),
            is_init: false,
        };
        for (value, bytes) in &graph.constants {
            emitter.border(*value, BufferKind::Constant(bytes.clone()));
        }
        for state in &graph.states {
            let buf = emitter.buffer(state, BufferKind::State);
            emitter.states.push(buf);
        }
        emitter
    }

    pub(super) fn plan(mut self) -> Result<Plan, PlanError> {
        let graph = self.graph;
        self.is_init = true;
        self.plan.init = graph.init.map(|block| self.run_block(block)).transpose()?;
        self.is_init = false;
        let input = |(number, input): (usize, &graph::Input)| match input {
            graph::Input::Int(var) => Input::Int(*var),
            graph::Input::Tensor(value) => {
                let View { buf, dtype, shape, .. } = self.border(*value, BufferKind::Input(number));
                Input::Tensor { buf, dtype, shape }
            }
        };
        self.plan.inputs = graph.inputs.iter().enumerate().map(input).collect();
        self.plan.main = self.run_block(graph.main)?;
        let output = |output: &Output<Value>| match output {
            Output::Tensor(value) => Output::Tensor(self.id(*value)),
            Output::Int(number) => Output::Int(number.clone()),
        };
        self.plan.outputs = graph.outputs.iter().map(output).collect();
        for node in graph.advance() {
            self.plan.advance.steps.push(match node.op {
                Op::Host(var) => PlanStep::Host(var),
                Op::Check(check) => PlanStep::Check(check),
                _ => continue,
            });
            self.plan.advance.origin.push(node.origin);
        }
        Ok(self.plan)
    }

    fn buffer(&mut self, ty: &graph::Type, kind: BufferKind) -> Buf {
        let buffers = &mut self.plan.buffers;
        buffers.push(Buffer { dtype: ty.dtype, elements: product(&ty.shape), kind });
        Buf(u32::try_from(buffers.len() - 1).expect("a plan has fewer than 2^32 buffers"))
    }

    fn border(&mut self, value: Value, kind: BufferKind) -> View {
        let ty = self.graph.ty(value);
        let view = View::row_major(self.buffer(ty, kind), ty);
        self.places[value.0 as usize] = Some(view.clone());
        view
    }

    /// The view of a value.
    pub(super) fn place(&self, value: Value) -> View {
        self.places[value.0 as usize].clone().expect("a verified graph defines values before it reads them")
    }

    /// All of a state.
    pub(super) fn state(&self, state: StateId) -> View {
        View::row_major(self.states[state.0 as usize], &self.graph.states[state.0 as usize])
    }

    pub(super) fn is_early(&self, dim: &Dim) -> bool {
        dim.vars().all(|var| self.is_early[var.0 as usize])
    }

    /// New memory for a value.
    pub(super) fn new_place(&mut self, value: Value) -> View {
        let ty = self.graph.ty(value);
        let kind = if self.is_init { BufferKind::Derived } else { BufferKind::Temporary };
        View::row_major(self.buffer(ty, kind), ty)
    }

    /// The number of the view of a value.
    fn id(&mut self, value: Value) -> ViewId {
        if let Some(id) = self.ids[value.0 as usize] {
            return id;
        }
        let id = self.number(self.place(value));
        self.ids[value.0 as usize] = Some(id);
        id
    }

    fn number(&mut self, view: View) -> ViewId {
        let views = &mut self.plan.views;
        let next = ViewId(u32::try_from(views.len()).expect("a plan has fewer than 2^32 views"));
        *self.numbers.entry(view).or_insert_with_key(|view| {
            views.push(view.clone());
            next
        })
    }

    fn step(&mut self, step: PlanStep) {
        let block = &mut self.plan.blocks[self.block];
        block.steps.push(step);
        block.origin.push(self.origin);
    }

    fn copy_value(&mut self, value: Value, to: View) {
        self.copy(self.place(value), to);
    }

    /// Copies elements, unless both views are the same.
    fn copy(&mut self, from: View, to: View) {
        if from != to {
            let expr = Function::of([from.dtype], |_, [x]| x);
            let (out, ins) = (self.number(to), vec![self.number(from)]);
            self.step(PlanStep::Device(Prim::Map { out, ins, expr }));
        }
    }

    /// Copies the elements of a view to new memory.
    fn copied(&mut self, value: Value, from: View) -> View {
        let to = self.new_place(value);
        self.copy(from, to.clone());
        to
    }

    fn run_block(&mut self, id: BlockId) -> Result<usize, PlanError> {
        let graph = self.graph;
        self.plan.blocks.push(Block::default());
        let (block, outside) = (self.plan.blocks.len() - 1, self.block);
        self.block = block;
        for (index, node) in graph.block(id).nodes.iter().enumerate() {
            self.origin = node.origin;
            self.node((id, index), &node.op)?;
        }
        self.block = outside;
        Ok(block)
    }

    /// Runs `inside` with steps added to the end of a block that has been emitted.
    fn at_end_of(&mut self, block: usize, inside: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.block, block);
        inside(self);
        self.block = outside;
    }

    fn set(&mut self, value: Value, view: View) {
        // A view that outlives a change of its state is copied.
        let view = if self.flow.must_copy(value) { self.copied(value, view) } else { view };
        self.places[value.0 as usize] = Some(view);
    }

    fn node(&mut self, at: Place, op: &Op) -> Result<(), PlanError> {
        match op {
            Op::Prim(prim) => self.prim(at, prim),
            Op::View { out, x, how } => {
                let shape = &self.graph.ty(*out).shape;
                let from = self.place(*x);
                let view = from.apply(shape, how).unwrap_or_else(|| {
                    let whole = self.copied(*x, from);
                    whole.apply(shape, how).expect("a row-major tensor has strides for every view")
                });
                self.set(*out, view);
            }
            Op::Concat { out, parts, axis } => {
                let whole = self.result(at, *out);
                for (part, region) in self.regions(&whole, parts, *axis) {
                    self.copy_value(part, region);
                }
                self.set(*out, whole);
            }
            Op::Update { out, base, new, axis, start, step } => {
                let storage = self.changed(at, *base, *out);
                let length = self.graph.ty(*new).shape[*axis].clone();
                self.copy_value(*new, storage.narrowed(*axis, start, length, *step));
                self.set(*out, storage);
            }
            Op::Read { out, state } => self.set(*out, self.state(*state)),
            Op::Write { .. } if self.flow.changes_state(at).is_some() => {}
            Op::Write { state, x } => {
                let (from, to) = (self.place(*x), self.state(*state));
                // The value may be a view of the state itself in another order.
                let from = if from.buf == to.buf && from != to { self.copied(*x, from) } else { from };
                self.copy(from, to);
            }
            Op::Host(var) => {
                if let HostOp::Item(value) = &self.graph.host[var.0 as usize] {
                    let view = self.id(*value);
                    self.step(PlanStep::Item(*var, view));
                } else if !self.is_early[var.0 as usize] {
                    self.step(PlanStep::Host(*var));
                }
            }
            Op::Check(check) => {
                // Early checks of the main block are made before anything runs.
                let is_made =
                    at.0 == self.graph.main && check.numbers().into_iter().all(|number| self.is_early(number));
                if !is_made {
                    self.step(PlanStep::Check(check.clone()));
                }
            }
            Op::If { condition, then, otherwise, outs } => self.branch(at, condition, [*then, *otherwise], outs)?,
            Op::Loop(round) => self.round(round)?,
            Op::Foreign(_) => {
                let fault = Fault::Unsupported("a kernel that a program brings");
                return Err(PlanError::new(self.origin, "MetalKernel", fault));
            }
        }
        Ok(())
    }

    fn prim(&mut self, at: Place, prim: &Prim<Value>) {
        let outs: Vec<(Value, View)> = match prim {
            Prim::Scatter { out, base, .. } => vec![(*out, self.changed(at, *base, *out))],
            Prim::GatedDelta(rule) => {
                let state = match self.flow.changes_state(at) {
                    Some(state) => self.whole(state, rule.state_out),
                    None => self.new_place(rule.state_out),
                };
                vec![(rule.out, self.result(at, rule.out)), (rule.state_out, state)]
            }
            _ => prim.writes().into_iter().map(|out| (*out, self.result(at, *out))).collect(),
        };
        let ids: Vec<(Value, ViewId)> = outs.iter().map(|(out, view)| (*out, self.number(view.clone()))).collect();
        let find = |value: &Value| ids.iter().find(|(out, _)| out == value).map(|(_, id)| *id);
        let mut prim: Prim = prim.clone().map(&mut |value| find(&value).unwrap_or_else(|| self.id(value)));
        match &mut prim {
            // `base` was copied to the result, or shares its memory.
            Prim::Scatter { out, base, .. } => *base = *out,
            // A state that is changed in place has one view.
            Prim::GatedDelta(rule) if self.plan.view(rule.state).buf == self.plan.view(rule.state_out).buf => {
                rule.state = rule.state_out;
            }
            _ => {}
        }
        self.step(PlanStep::Device(prim));
        outs.into_iter().for_each(|(out, view)| self.set(out, view));
    }

    /// All of a state, in the shape of a value.
    pub(super) fn whole(&self, state: StateId, value: Value) -> View {
        View::row_major(self.states[state.0 as usize], self.graph.ty(value))
    }

    /// Memory that holds `base` and may be changed: its own if `base` is not used later, else a copy.
    fn changed(&mut self, at: Place, base: Value, out: Value) -> View {
        if let Some(state) = self.flow.changes_state(at) {
            return self.whole(state, out);
        }
        let from = self.place(base);
        // A view that repeats elements cannot be written.
        let is_free = from.is_row_major() && self.flow.ends_at(self.graph, base, at);
        if is_free { from } else { self.copied(out, from) }
    }

    fn branch(&mut self, at: Place, condition: &Dim, blocks: [BlockId; 2], outs: &[Value]) -> Result<(), PlanError> {
        let origin = self.origin;
        let views: Vec<View> = outs.iter().map(|out| self.result(at, *out)).collect();
        let mut numbers = [0; 2];
        for (number, id) in numbers.iter_mut().zip(blocks) {
            let results = &self.graph.block(id).results;
            self.wanted = results.iter().copied().zip(views.iter().cloned()).collect();
            *number = self.run_block(id)?;
            self.origin = origin;
            self.at_end_of(*number, |emitter| {
                for (result, view) in results.iter().zip(&views) {
                    emitter.copy_value(*result, view.clone());
                }
            });
        }
        let [then, otherwise] = numbers;
        self.step(PlanStep::If { condition: condition.clone(), then, otherwise });
        outs.iter().zip(views).for_each(|(out, view)| self.set(*out, view));
        Ok(())
    }

    fn round(&mut self, round: &Loop) -> Result<(), PlanError> {
        let origin = self.origin;
        let mut kept = Vec::with_capacity(round.carried.len());
        for carried in &round.carried {
            let place = self.new_place(carried.param);
            self.copy_value(carried.init, place.clone());
            self.set(carried.param, place.clone());
            kept.push(place);
        }
        let wholes: Vec<View> = round.stacked.iter().map(|stacked| self.new_place(stacked.out)).collect();
        let results = &self.graph.block(round.body).results;
        let (next, parts) = results.split_at(kept.len());
        let wholes_of = round.stacked.iter().zip(&wholes);
        let regions: Vec<View> = wholes_of.map(|(to, whole)| whole.at(to.axis, &Dim::var(round.index))).collect();
        self.wanted = parts.iter().copied().zip(regions.iter().cloned()).collect();
        let body = self.run_block(round.body)?;
        self.origin = origin;
        self.at_end_of(body, |emitter| {
            for (part, region) in parts.iter().zip(regions) {
                emitter.copy_value(*part, region);
            }
            emitter.carry_over(next, &kept);
        });
        self.step(PlanStep::Loop { index: round.index, count: round.count.clone(), body });
        for (carried, place) in round.carried.iter().zip(kept) {
            self.set(carried.out, place);
        }
        round.stacked.iter().zip(wholes).for_each(|(stacked, whole)| self.set(stacked.out, whole));
        Ok(())
    }

    /// Copies what a round carries over to where the next one reads it. A value in the memory of another is copied first.
    fn carry_over(&mut self, next: &[Value], kept: &[View]) {
        let mut from = Vec::with_capacity(next.len());
        for (value, own) in next.iter().zip(kept) {
            let place = self.place(*value);
            let is_overwritten = kept.iter().any(|other| other.buf == place.buf) && place != *own;
            from.push(if is_overwritten { self.copied(*value, place) } else { place });
        }
        for (from, own) in from.into_iter().zip(kept) {
            self.copy(from, own.clone());
        }
    }
}
