//! The order of operations, the lifetimes of values, and which states are changed in place.
#![allow(
    clippy::indexing_slicing,
    reason = "values, blocks and states are numbers of the graph that the lists are made for"
)]

use crate::graph::{BlockId, Def, Graph, Op, Output, Place, StateId, Uses, Value, ViewOp};
use crate::prim::Prim;
use rustc_hash::FxHashMap;

/// Operations are numbered in the order in which they run: first one branch, then the other; a loop once.
pub(super) type Time = usize;

/// When an output is read.
const END: Time = Time::MAX;

/// What is known of a graph before memory is assigned.
pub(super) struct Flow {
    pub(super) uses: Uses,
    /// By block and index: when the operation runs.
    times: Vec<Vec<Time>>,
    /// By result of a view operation: its operand.
    parents: Vec<Option<Value>>,
    /// By value: the root of its chain of views, which shares its memory.
    roots: Vec<Value>,
    /// By value: the last read, not counting views of it and operations that change it.
    last_read: Vec<Time>,
    /// By value: the last operation that changes it, or a copy of it.
    last_changed: Vec<Time>,
    /// By root: the last read and change of all its views.
    class_last: Vec<(Time, Time)>,
    /// Operations that change a state in place, and the writes that this replaces.
    in_place: FxHashMap<Place, StateId>,
    /// By state: when it is written, or changed in place, in order.
    events: Vec<Vec<Time>>,
    /// By state: when it is read.
    state_reads: Vec<Vec<Time>>,
    /// By state: when it is written, in which block, and the value.
    state_writes: Vec<Vec<(Time, BlockId, Value)>>,
    /// By value: `true` for views of a state that changes before their last read.
    must_copy: Vec<bool>,
    /// By state: for each view of it, when its elements were computed and when it is read last.
    residents: Vec<Vec<(Time, Time)>>,
}

impl Flow {
    pub(super) fn of(graph: &Graph) -> Self {
        let count = graph.values.len();
        let mut flow = Self {
            times: graph.blocks.iter().map(|block| vec![0; block.nodes.len()]).collect(),
            uses: Uses::of(graph),
            parents: vec![None; count],
            roots: (0..).map(Value).take(count).collect(),
            last_read: vec![0; count],
            last_changed: vec![0; count],
            class_last: vec![(0, 0); count],
            in_place: FxHashMap::default(),
            events: vec![Vec::new(); graph.states.len()],
            state_reads: vec![Vec::new(); graph.states.len()],
            state_writes: vec![Vec::new(); graph.states.len()],
            must_copy: vec![false; count],
            residents: vec![Vec::new(); graph.states.len()],
        };
        let (loops, depth, pending) = (Vec::new(), vec![0; count], Vec::new());
        let mut walk = Walk { graph, flow: &mut flow, now: 0, loops, depth, pending };
        for block in graph.init.into_iter().chain([graph.main]) {
            walk.block(block);
        }
        walk.now = END;
        graph.outputs.iter().filter_map(Output::tensor).for_each(|value| walk.touch(value, false));
        flow.find_roots();
        flow.find_changes(graph);
        flow.find_copies(graph);
        flow
    }

    /// When an operation runs.
    pub(super) fn time(&self, (block, index): Place) -> Time {
        self.times[block.0 as usize][index]
    }

    /// Finds the root of each chain of views, and when it is used last.
    fn find_roots(&mut self) {
        for index in 0..self.roots.len() {
            let mut root = self.roots[index];
            while let Some(parent) = self.parents[root.0 as usize] {
                root = parent;
            }
            self.roots[index] = root;
            let last = &mut self.class_last[root.0 as usize];
            *last = (last.0.max(self.last_read[index]), last.1.max(self.last_changed[index]));
        }
    }

    /// Finds the operations that change a state in place: those between a read and the next write.
    fn find_changes(&mut self, graph: &Graph) {
        for (block, id) in graph.blocks.iter().zip(0..) {
            for (index, node) in block.nodes.iter().enumerate() {
                let Op::Write { state, x } = node.op else { continue };
                let at = (BlockId(id), index);
                let changes = self.changes(graph, at, state, x).unwrap_or_default();
                let written = self.time(at);
                let times: Vec<Time> = changes.iter().map(|change| self.time(*change)).collect();
                let events = &mut self.events[state.0 as usize];
                if times.is_empty() {
                    events.push(written);
                }
                events.extend(times);
                // After changes in place, the write has nothing to do.
                let done = (!changes.is_empty()).then_some(at);
                self.in_place.extend(changes.into_iter().chain(done).map(|change| (change, state)));
            }
        }
        self.events.iter_mut().for_each(|events| events.sort_unstable());
    }

    /// The operations that compute `x` from what the state held before, read from it or written into it, if nothing else
    /// reads or writes the state in between.
    fn changes(&self, graph: &Graph, write: Place, state: StateId, x: Value) -> Option<Vec<Place>> {
        let (writes, written) = (&self.state_writes[state.0 as usize], self.time(write));
        let held = |value: Value, before: Time| {
            let mut earlier = writes.iter().filter(|(time, ..)| *time < before);
            earlier.find(|(_, block, x)| *block == write.0 && *x == value).map(|(time, ..)| *time)
        };
        let (mut changes, mut value, mut before) = (Vec::new(), x, written);
        let since = loop {
            if let Some(since) = held(value, before) {
                break since;
            }
            let at = self.uses.place(value).filter(|at| at.0 == write.0)?;
            match &graph.block(at.0).nodes[at.1].op {
                Op::View { x, how: ViewOp::Reshape, .. } => value = *x,
                Op::Read { state: read, .. } if *read == state => break self.time(at),
                op => {
                    value = changed(op, value)?;
                    before = self.time(at);
                    changes.push(at);
                }
            }
        };
        let first = changes.iter().map(|at| self.time(*at)).min()?;
        let is_written = writes.iter().any(|(time, ..)| (since + 1..written).contains(time));
        let is_read = self.state_reads[state.0 as usize].iter().any(|time| (first..written).contains(time));
        (!is_written && !is_read).then_some(changes)
    }

    /// Finds views of a state that changes before their last read.
    fn find_copies(&mut self, graph: &Graph) {
        for (index, value) in (0..self.roots.len()).zip((0..).map(Value)) {
            let Some(state) = self.resident(graph, self.roots[index]) else { continue };
            if self.parents[index].is_some_and(|parent| self.is_copied(parent)) {
                continue;
            }
            let root = self.made(self.roots[index]);
            let (read, changed) = (self.last_read[index], self.last_changed[index]);
            let next = self.events[state.0 as usize].iter().find(|time| **time > root);
            // The operation that changes the state may read it.
            let next = next.filter(|next| read >= **next || changed > **next).copied();
            let last = next.map_or(read, |next| self.copy_before(value, next));
            self.residents[state.0 as usize].push((root, last));
        }
    }

    /// Marks a value to be copied before its state changes; for a view that is made later, its operand. Returns when the copy
    /// is made.
    fn copy_before(&mut self, mut value: Value, time: Time) -> Time {
        while self.made(value) > time
            && let Some(parent) = self.parents[value.0 as usize]
        {
            value = parent;
        }
        self.must_copy[value.0 as usize] = true;
        self.made(value)
    }

    /// When a value is computed; 0 if no operation defines it.
    fn made(&self, value: Value) -> Time {
        self.uses.place(value).map_or(0, |at| self.time(at))
    }

    /// Returns `true` if a value, or one that it is a view of, is copied out of its state.
    fn is_copied(&self, value: Value) -> bool {
        let mut shown = std::iter::successors(Some(value), |value| self.parents[value.0 as usize]);
        shown.any(|value| self.must_copy[value.0 as usize])
    }

    /// The state whose memory a root uses.
    fn resident(&self, graph: &Graph, root: Value) -> Option<StateId> {
        let at = self.uses.place(root)?;
        match &graph.block(at.0).nodes[at.1].op {
            Op::Read { state, .. } => Some(*state),
            // The other result of a delta rule has memory of its own.
            Op::Prim(Prim::GatedDelta(rule)) if rule.state_out != root => None,
            _ => self.in_place.get(&at).copied(),
        }
    }

    /// The state that an operation changes in place; for a write, the state that was changed in place before.
    pub(super) fn changes_state(&self, at: Place) -> Option<StateId> {
        self.in_place.get(&at).copied()
    }

    /// Returns `true` if a value must be copied because its state changes before its last read.
    pub(super) fn must_copy(&self, value: Value) -> bool {
        self.must_copy[value.0 as usize]
    }

    /// Returns `true` if an operation may overwrite a value: nothing else uses its memory from there on.
    pub(super) fn ends_at(&self, graph: &Graph, value: Value, at: Place) -> bool {
        let time = self.time(at);
        let root = self.roots[value.0 as usize];
        let (read, changed) = self.class_last[root.0 as usize];
        let is_inside = matches!(self.uses.def(root), Some(Def::Node(block, _) | Def::Param(block)) if block == at.0);
        is_inside && self.resident(graph, root).is_none() && read < time && changed <= time
    }

    /// Returns `true` if a state may be written already by operation `from` instead of by `to`: it is neither read nor changed in
    /// between. Reads by `from` itself count if `strictly`.
    pub(super) fn is_quiet(&self, state: StateId, from: Place, to: Place, strictly: bool) -> bool {
        let (from, to) = (self.time(from), self.time(to));
        let index = state.0 as usize;
        let is_touched =
            self.events[index].iter().chain(&self.state_reads[index]).any(|time| (from..to).contains(time));
        let is_read = |(since, last): &(Time, Time)| *since < to && if strictly { *last >= from } else { *last > from };
        !is_touched && !self.residents[index].iter().any(is_read)
    }
}

/// The operand that an operation changes to compute `out`.
fn changed(op: &Op, out: Value) -> Option<Value> {
    match op {
        Op::Update { base, .. } | Op::Prim(Prim::Scatter { base, .. }) => Some(*base),
        Op::Prim(Prim::GatedDelta(rule)) if rule.state_out == out => Some(rule.state),
        _ => None,
    }
}

struct Walk<'a> {
    graph: &'a Graph,
    flow: &'a mut Flow,
    now: Time,
    /// The enclosing loops.
    loops: Vec<usize>,
    /// By value: the number of loops that enclose its definition.
    depth: Vec<usize>,
    /// By loop: uses of values from outside, which live until it ends; `true` for changes.
    pending: Vec<Vec<(Value, bool)>>,
}

impl Walk<'_> {
    fn block(&mut self, id: BlockId) {
        let graph = self.graph;
        for index in 0..graph.block(id).nodes.len() {
            self.now += 1;
            self.flow.times[id.0 as usize][index] = self.now;
            self.node((id, index));
        }
        self.now += 1;
        for value in &graph.block(id).results {
            self.touch(*value, false);
        }
    }

    fn define(&mut self, value: Value) {
        self.depth[value.0 as usize] = self.loops.len();
    }

    /// Records a use: now, and again when the outermost loop that does not enclose the definition ends.
    fn touch(&mut self, value: Value, is_change: bool) {
        let last = if is_change { &mut self.flow.last_changed } else { &mut self.flow.last_read };
        last[value.0 as usize] = last[value.0 as usize].max(self.now);
        self.touch_later(value, is_change);
    }

    fn node(&mut self, at: Place) {
        let graph = self.graph;
        let op = &graph.block(at.0).nodes[at.1].op;
        match op {
            Op::View { out, x, .. } => {
                self.flow.parents[out.0 as usize] = Some(*x);
                // A view of a value from outside a loop keeps it alive until the loop ends.
                self.touch_later(*x, false);
            }
            Op::Update { base, new, .. } => {
                self.touch(*base, true);
                self.touch(*new, false);
            }
            Op::Prim(prim @ Prim::Scatter { base, .. }) => {
                self.touch(*base, true);
                prim.reads().into_iter().skip(1).for_each(|value| self.touch(value, false));
            }
            Op::Prim(prim @ Prim::GatedDelta(rule)) => {
                self.touch(rule.state, true);
                let operands = prim.reads().into_iter().filter(|value| *value != rule.state);
                operands.for_each(|value| self.touch(value, false));
            }
            Op::Read { state, .. } => self.flow.state_reads[state.0 as usize].push(self.now),
            Op::Write { state, x } => {
                self.flow.state_writes[state.0 as usize].push((self.now, at.0, *x));
                self.touch(*x, false);
            }
            _ => graph.reads(op).into_iter().for_each(|value| self.touch(value, false)),
        }
        if let Op::Loop(round) = op {
            round.carried.iter().for_each(|carried| {
                self.define(carried.param);
                self.depth[carried.param.0 as usize] += 1;
            });
            self.round(round.body);
        } else {
            op.blocks().into_iter().for_each(|block| self.block(block));
        }
        op.outs().into_iter().for_each(|out| self.define(out));
    }

    fn touch_later(&mut self, value: Value, is_change: bool) {
        if let Some(outer) = self.loops.get(self.depth[value.0 as usize]) {
            self.pending[*outer].push((value, is_change));
        }
    }

    fn round(&mut self, body: BlockId) {
        self.pending.push(Vec::new());
        self.loops.push(self.pending.len() - 1);
        self.block(body);
        let id = self.loops.pop().unwrap_or_default();
        self.now += 1;
        for (value, is_change) in std::mem::take(&mut self.pending[id]) {
            self.touch(value, is_change);
        }
    }
}
