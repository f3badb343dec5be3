//! In which order things happen, how long values live, and which states are changed in place.
#![allow(
    clippy::indexing_slicing,
    reason = "values, blocks and states are numbers of the graph that the lists are made for"
)]

use crate::graph::{BlockId, Graph, Op, Output, StateId, Value, ViewOp};
use crate::prim::Prim;
use rustc_hash::FxHashMap;

/// A point in time: operations are numbered in the order in which they run, a branch after the other, a loop once.
pub(super) type Time = usize;

/// When an output is read.
const END: Time = Time::MAX;

/// An operation: its block and its index there.
pub(super) type At = (BlockId, usize);

/// What is known of a graph before anything gets its place.
pub(super) struct Flow {
    /// When each operation runs, by block.
    times: Vec<Vec<Time>>,
    /// Who makes each value.
    pub(super) defs: Vec<Option<At>>,
    /// Of a view operation's result, the value that it shows.
    parents: Vec<Option<Value>>,
    /// The value at the root of a chain of views: what it shows lies where the root lies.
    roots: Vec<Value>,
    /// By value: when it is read last, not counting views of it and operations that change it.
    last_read: Vec<Time>,
    /// By value: when an operation changes a copy of it last.
    last_changed: Vec<Time>,
    /// By root: the last of all of its views.
    class_last: Vec<(Time, Time)>,
    /// How often each value is used by anything.
    pub(super) counts: Vec<u32>,
    /// Who uses a value, if it is one operation.
    pub(super) users: Vec<Option<At>>,
    /// Operations that change a state in place, and the writes that are done with it.
    in_place: FxHashMap<At, StateId>,
    /// By state: when it is written, or changed in place, in order.
    events: Vec<Vec<Time>>,
    /// By state: when it is read.
    state_reads: Vec<Vec<Time>>,
    /// By state: when it is written, where, and what.
    state_writes: Vec<Vec<(Time, BlockId, Value)>>,
    /// Of a value that a loop carries, the body that it is a parameter of.
    params: FxHashMap<Value, BlockId>,
    /// Values that show a state which changes before they are read for the last time.
    must_copy: Vec<bool>,
    /// By state: the values that show it, by when what they show came to be there and when they are read last.
    residents: Vec<Vec<(Time, Time)>>,
}

impl Flow {
    pub(super) fn of(graph: &Graph) -> Self {
        let count = graph.values.len();
        let mut flow = Self {
            times: graph.blocks.iter().map(|block| vec![0; block.nodes.len()]).collect(),
            defs: vec![None; count],
            parents: vec![None; count],
            roots: (0..).map(Value).take(count).collect(),
            last_read: vec![0; count],
            last_changed: vec![0; count],
            class_last: vec![(0, 0); count],
            counts: vec![0; count],
            users: vec![None; count],
            in_place: FxHashMap::default(),
            events: vec![Vec::new(); graph.states.len()],
            state_reads: vec![Vec::new(); graph.states.len()],
            state_writes: vec![Vec::new(); graph.states.len()],
            params: FxHashMap::default(),
            must_copy: vec![false; count],
            residents: vec![Vec::new(); graph.states.len()],
        };
        let (loops, depth, pending) = (Vec::new(), vec![0; count], Vec::new());
        let mut walk = Walk { graph, flow: &mut flow, now: 0, loops, depth, pending };
        for block in graph.init.into_iter().chain([graph.main]) {
            walk.block(block);
        }
        walk.now = END;
        for output in &graph.outputs {
            if let Output::Tensor(value) = output {
                walk.read(*value, None);
            }
        }
        flow.find_roots();
        flow.find_changes(graph);
        flow.find_copies(graph);
        flow
    }

    /// When an operation runs.
    pub(super) fn time(&self, (block, index): At) -> Time {
        self.times[block.0 as usize][index]
    }

    fn used(&mut self, value: Value, user: Option<At>) {
        let index = value.0 as usize;
        self.counts[index] += 1;
        self.users[index] = if self.counts[index] == 1 { user } else { None };
    }

    /// Views come after what they show, so one walk in order of values finds all roots.
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

    /// Which operations change a state in place: those between reading it and writing it again.
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
                // Once the state has been changed in place, there is nothing left to write.
                let done = (!changes.is_empty()).then_some(at);
                self.in_place.extend(changes.into_iter().chain(done).map(|change| (change, state)));
            }
        }
        self.events.iter_mut().for_each(|events| events.sort_unstable());
    }

    /// The operations from `x` back to what the state held before, if nothing else sees the state meanwhile: to where it was
    /// read, or to what was written into it.
    fn changes(&self, graph: &Graph, write: At, state: StateId, x: Value) -> Option<Vec<At>> {
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
            let at = self.defs[value.0 as usize].filter(|at| at.0 == write.0)?;
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

    /// Which values show a state that changes before they are read for the last time.
    fn find_copies(&mut self, graph: &Graph) {
        for index in 0..self.roots.len() {
            let Some(state) = self.resident(graph, self.roots[index]) else { continue };
            if self.parents[index].is_some_and(|parent| self.is_copied(parent)) {
                continue;
            }
            let root = self.defs[self.roots[index].0 as usize].map_or(0, |at| self.time(at));
            let (read, changed) = (self.last_read[index], self.last_changed[index]);
            let next = self.events[state.0 as usize].iter().find(|time| **time > root);
            // What changes the state itself may see what it changes.
            match next.filter(|next| read >= **next || changed > **next).copied() {
                Some(next) => {
                    let copied = self.copy_before(index, next);
                    self.residents[state.0 as usize].push((root, copied));
                }
                None => self.residents[state.0 as usize].push((root, read)),
            }
        }
    }

    /// Has a value copied away from its state before the state changes: the value, or, if it is a view that is made later,
    /// what it shows. Returns when that is.
    fn copy_before(&mut self, mut index: usize, time: Time) -> Time {
        while self.defs[index].is_some_and(|at| self.time(at) > time) {
            let Some(parent) = self.parents[index] else { break };
            index = parent.0 as usize;
        }
        self.must_copy[index] = true;
        self.defs[index].map_or(0, |at| self.time(at))
    }

    /// Whether a value, or one that it shows, is copied away from its state.
    fn is_copied(&self, value: Value) -> bool {
        let mut shown = std::iter::successors(Some(value), |value| self.parents[value.0 as usize]);
        shown.any(|value| self.must_copy[value.0 as usize])
    }

    /// The state that a root lies in.
    fn resident(&self, graph: &Graph, root: Value) -> Option<StateId> {
        let at = self.defs[root.0 as usize]?;
        match &graph.block(at.0).nodes[at.1].op {
            Op::Read { state, .. } => Some(*state),
            // The other result of a delta rule lies elsewhere.
            Op::Prim(Prim::GatedDelta(rule)) if rule.state_out != root => None,
            _ => self.in_place.get(&at).copied(),
        }
    }

    /// The state that an operation changes in place, or of a write, the state that has been changed so.
    pub(super) fn changes_state(&self, at: At) -> Option<StateId> {
        self.in_place.get(&at).copied()
    }

    /// Whether a value needs memory of its own, because the state that it shows changes too early.
    pub(super) fn must_copy(&self, value: Value) -> bool {
        self.must_copy[value.0 as usize]
    }

    /// Whether nobody but one operation reads what a value shows from that operation on: it may be overwritten.
    pub(super) fn ends_at(&self, graph: &Graph, value: Value, at: At) -> bool {
        let time = self.time(at);
        let root = self.roots[value.0 as usize];
        let (read, changed) = self.class_last[root.0 as usize];
        let made = self.defs[root.0 as usize].map(|def| def.0).or_else(|| self.params.get(&root).copied());
        made == Some(at.0) && self.resident(graph, root).is_none() && read < time && changed <= time
    }

    /// Whether a state may be written to from one operation on instead of at another: nobody reads or changes it between the
    /// two. What the first operation itself reads counts if `strictly`.
    pub(super) fn is_quiet(&self, state: StateId, from: At, to: At, strictly: bool) -> bool {
        let (from, to) = (self.time(from), self.time(to));
        let index = state.0 as usize;
        let is_touched =
            self.events[index].iter().chain(&self.state_reads[index]).any(|time| (from..to).contains(time));
        let is_read = |(since, last): &(Time, Time)| *since < to && if strictly { *last >= from } else { *last > from };
        !is_touched && !self.residents[index].iter().any(is_read)
    }
}

/// The value that an operation changes to make this one.
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
    /// The loops around the walk.
    loops: Vec<usize>,
    /// By value: how many loops are around its definition.
    depth: Vec<usize>,
    /// By loop: what it reads of values from outside, which live until it ends.
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
            self.read(*value, None);
        }
    }

    fn define(&mut self, value: Value, at: Option<At>) {
        self.flow.defs[value.0 as usize] = at;
        self.depth[value.0 as usize] = self.loops.len();
    }

    /// Takes note of a use: now, or when the outermost loop ends that the value is defined outside of.
    fn touch(&mut self, value: Value, is_change: bool) {
        let last = if is_change { &mut self.flow.last_changed } else { &mut self.flow.last_read };
        last[value.0 as usize] = last[value.0 as usize].max(self.now);
        self.touch_later(value, is_change);
    }

    fn read(&mut self, value: Value, user: Option<At>) {
        self.touch(value, false);
        self.flow.used(value, user);
    }

    fn node(&mut self, at: At) {
        let graph = self.graph;
        let op = &graph.block(at.0).nodes[at.1].op;
        match op {
            Op::View { out, x, .. } => {
                self.flow.parents[out.0 as usize] = Some(*x);
                self.flow.used(*x, Some(at));
                // A view of a value from outside is used where the view is: what it shows lives until the loop ends.
                self.touch_later(*x, false);
            }
            Op::Update { base, new, .. } => {
                self.change(*base, at);
                self.read(*new, Some(at));
            }
            Op::Prim(prim @ Prim::Scatter { base, .. }) => {
                self.change(*base, at);
                prim.reads().into_iter().skip(1).for_each(|value| self.read(*value, Some(at)));
            }
            Op::Prim(prim @ Prim::GatedDelta(rule)) => {
                self.change(rule.state, at);
                let operands = prim.reads().into_iter().filter(|value| **value != rule.state);
                operands.for_each(|value| self.read(*value, Some(at)));
            }
            Op::Read { state, .. } => self.flow.state_reads[state.0 as usize].push(self.now),
            Op::Write { state, x } => {
                self.flow.state_writes[state.0 as usize].push((self.now, at.0, *x));
                self.read(*x, Some(at));
            }
            _ => graph.reads(op).into_iter().for_each(|value| self.read(value, Some(at))),
        }
        if let Op::Loop(round) = op {
            round.carried.iter().for_each(|carried| {
                self.define(carried.param, None);
                self.flow.params.insert(carried.param, round.body);
                self.depth[carried.param.0 as usize] += 1;
            });
            self.round(round.body);
        } else {
            op.blocks().into_iter().for_each(|block| self.block(block));
        }
        op.outs().into_iter().for_each(|out| self.define(out, Some(at)));
    }

    fn change(&mut self, value: Value, at: At) {
        self.touch(value, true);
        self.flow.used(value, Some(at));
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
