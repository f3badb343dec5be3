//! Chooses the memory of a result: new memory, or directly where its only user needs it.

use super::emit::Emitter;
use crate::dim::Dim;
use crate::graph::{Op, Place, StateId, Value, ViewOp};
use crate::prim::{Prim, View};

impl Emitter<'_> {
    /// The view that an operation writes its result to.
    pub(super) fn result(&mut self, at: Place, out: Value) -> View {
        if let Some(view) = self.reserved.remove(&out) {
            return view;
        }
        self.target(at, out, at).unwrap_or_else(|| self.laid_out(at, out))
    }

    /// The view where the only user of a result needs it, if the result can be written there directly. Its first elements are
    /// written by the operation `since`.
    fn target(&mut self, at: Place, out: Value, since: Place) -> Option<View> {
        let (block, index) = at;
        let op = &self.graph.block(block).nodes.get(index)?.op;
        // Other primitives write contiguous rows faster than strided ones.
        let is_free = matches!(op, Op::Prim(Prim::Map { .. } | Prim::Rope { .. }) | Op::Concat { .. });
        if !is_free || self.flow.uses.count(out) != 1 || self.flow.must_copy(out) {
            return None;
        }
        if let Some(view) = self.wanted.get(&out).filter(|view| self.is_known(view)) {
            return Some(view.clone());
        }
        let user = self.flow.uses.only_user(out).filter(|user| user.0 == block)?;
        match &self.graph.block(block).nodes.get(user.1)?.op {
            Op::Concat { out: whole, parts, axis } => {
                let (whole, parts, axis) = (*whole, parts.clone(), *axis);
                let view = self.reserve(user, whole, since)?;
                let mut regions = self.regions(&view, &parts, axis).into_iter();
                regions.find(|(part, _)| *part == out).map(|(_, region)| region)
            }
            Op::Write { state, .. } => {
                let whole = self.state(*state);
                self.is_safe(since, user, *state, op).then_some(whole)
            }
            Op::Update { out: updated, new, axis, start, step, .. } if *new == out => {
                let state = self.flow.changes_state(user)?;
                let whole = self.whole(state, *updated);
                let length = self.graph.ty(out).shape.get(*axis)?.clone();
                let region = whole.narrowed(*axis, start, length, *step);
                (self.is_early(start) && self.is_safe(since, user, state, op)).then_some(region)
            }
            _ => None,
        }
    }

    /// New memory for a result. If its only user permutes the axes, it is stored in that order, so that the permuted view is
    /// row-major.
    fn laid_out(&mut self, at: Place, out: Value) -> View {
        let (block, index) = at;
        let nodes = &self.graph.block(block).nodes;
        let is_attention = matches!(nodes.get(index).map(|node| &node.op), Some(Op::Prim(Prim::Attention { .. })));
        let user = self.flow.uses.only_user(out).filter(|user| is_attention && user.0 == block);
        match user.and_then(|user| nodes.get(user.1)).map(|node| &node.op) {
            Some(Op::View { out: seen, how: ViewOp::Permute(order), .. }) => {
                let mut back: Vec<usize> = (0..order.len()).collect();
                back.sort_by_key(|axis| order.get(*axis));
                self.new_place(*seen).permuted(&back)
            }
            _ => self.new_place(out),
        }
    }

    /// Memory for a concatenation that is emitted later.
    fn reserve(&mut self, at: Place, whole: Value, since: Place) -> Option<View> {
        if let Some(view) = self.reserved.get(&whole) {
            return Some(view.clone());
        }
        if !self.graph.ty(whole).shape.iter().all(|size| self.is_early(size)) {
            return None;
        }
        let view = self.target(at, whole, since).unwrap_or_else(|| self.new_place(whole));
        self.reserved.insert(whole, view.clone());
        Some(view)
    }

    /// Returns `true` if a state may be written by the operation `since` instead of by `write`. An elementwise function may read
    /// the elements that it replaces.
    fn is_safe(&self, since: Place, write: Place, state: StateId, op: &Op) -> bool {
        let whole = self.state(state);
        let is_same = |value: &Value| {
            let place = self.places.get(value.0 as usize).and_then(Option::as_ref);
            place.is_some_and(|place| place.buf != whole.buf || *place == whole)
        };
        let reads_same = matches!(op, Op::Prim(Prim::Map { ins, .. }) if ins.iter().all(is_same));
        self.flow.is_quiet(state, since, write, !reads_same)
    }

    /// Returns `true` if sizes and strides of a view are known before anything runs.
    fn is_known(&self, view: &View) -> bool {
        view.shape.iter().chain(&view.strides).all(|dim| self.is_early(dim))
    }

    /// The parts of a concatenation, each with its region of the whole.
    pub(super) fn regions(&self, whole: &View, parts: &[Value], axis: usize) -> Vec<(Value, View)> {
        let mut start = Dim::fixed(0);
        let mut regions = Vec::with_capacity(parts.len());
        for part in parts {
            let size = self.graph.ty(*part).shape.get(axis).cloned().unwrap_or_else(|| Dim::fixed(1));
            let next = &start + &size;
            regions.push((*part, whole.narrowed(axis, &start, size, 1)));
            start = next;
        }
        regions
    }
}
