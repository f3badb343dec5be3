//! The operations around the one under test: views of its operands, and writes of its results.

use super::{CaseOutput, Draft, MAIN, MadeElements, Target};
use crate::suite::ops;
use crate::suite::views::{RandomView, ViewAxis, dims};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{BlockId, Op, StateId, Value, ViewOp};

impl Draft {
    /// A view of a value.
    pub(in crate::suite) fn view(&mut self, x: Value, shape: Vec<Dim>, how: ViewOp) -> Value {
        ops::view(&mut self.graph, MAIN, x, shape, how)
    }

    pub(super) fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Value {
        if self.graph.ty(x).shape == shape { x } else { self.view(x, shape, ViewOp::Reshape) }
    }

    pub(super) fn read(&mut self, state: StateId) -> Value {
        ops::read(&mut self.graph, MAIN, state)
    }

    /// A copy that a device computes.
    pub(super) fn copy(&mut self, x: Value) -> Value {
        self.copy_in(MAIN, x)
    }

    pub(super) fn copy_in(&mut self, block: BlockId, x: Value) -> Value {
        ops::map(&mut self.graph, block, [x], |_, [x]| x)
    }

    /// A view of a whole tensor: by strides at once, or step by step.
    pub(super) fn look(&mut self, whole: Value, view: &RandomView) -> Value {
        if view.is_whole() {
            return whole;
        }
        let mut shape = vec![Dim::fixed(0); view.axes.len()];
        view.axes.iter().for_each(|laid| shape[laid.axis] = laid.size.dim.clone());
        if self.rng.one_in(3) {
            let (strides, offset) = view.strides();
            return self.view(whole, shape, ViewOp::Strided { strides: dims(&strides), offset: offset.dim });
        }
        let mut value = whole;
        for (axis, laid) in view.axes.iter().enumerate() {
            if !laid.repeats && (laid.is_flipped || !laid.is_whole()) {
                value = self.slice(value, axis, laid, &laid.first().dim, laid.signed_step());
            }
        }
        value = self.permute(value, view.order());
        if self.graph.ty(value).shape == shape { value } else { self.view(value, shape, ViewOp::Broadcast) }
    }

    fn slice(&mut self, x: Value, axis: usize, laid: &ViewAxis, start: &Dim, step: i64) -> Value {
        let mut shape = self.graph.ty(x).shape.clone();
        shape[axis] = laid.size.dim.clone();
        self.view(x, shape, ViewOp::Slice { axis, start: start.clone(), step })
    }

    fn permute(&mut self, x: Value, order: Vec<usize>) -> Value {
        if order.iter().copied().eq(0..order.len()) {
            return x;
        }
        let shape = order.iter().map(|&axis| self.graph.ty(x).shape[axis].clone()).collect();
        self.view(x, shape, ViewOp::Permute(order))
    }

    /// Writes a result to its destination.
    pub(super) fn deliver(&mut self, target: &Target, made_by: (usize, usize)) {
        let Target { out, base, view } = target;
        let part = MadeElements { made_by, view: view.clone() };
        // A view of half of a tensor has one more axis.
        let mut shape = vec![Dim::fixed(1); view.axes.len()];
        view.axes.iter().for_each(|laid| shape[laid.axis] = laid.size.dim.clone());
        let mut new = self.reshape(*out, shape);
        new = self.permute(new, view.axes.iter().map(|laid| laid.axis).collect());
        for (axis, laid) in view.axes.iter().enumerate().filter(|(_, laid)| laid.is_flipped) {
            new = self.slice(new, axis, laid, &laid.size.plus(-1).dim, -1);
        }
        let Some(base) = base else {
            return self.show(new, CaseOutput { parts: vec![part], ..CaseOutput::default() });
        };
        let partial: Vec<usize> = (0..view.axes.len()).filter(|&axis| !view.axes[axis].is_whole()).collect();
        let updated = self.update(base.whole, new, view, &partial);
        let Some(state) = base.state else {
            return self.show(updated, CaseOutput { parts: vec![part], ..CaseOutput::default() });
        };
        self.op(Op::Write { state, x: updated });
        let before = base.is_old.then_some(state);
        // The old content of the state stays readable, directly and in a copy.
        if self.rng.one_in(3) {
            let copied = self.copy(base.whole);
            self.show(copied, CaseOutput { before, ..CaseOutput::default() });
        }
        if self.rng.one_in(3) {
            self.show(base.whole, CaseOutput { before, ..CaseOutput::default() });
        }
        let shown = &mut self.states[state.0 as usize];
        shown.before = before;
        shown.parts.push(part);
    }

    /// `whole` with `new` in part of these axes; along the others, `new` covers all of `whole`.
    fn update(&mut self, whole: Value, new: Value, view: &RandomView, axes: &[usize]) -> Value {
        let Some((&axis, rest)) = axes.split_first() else { return new };
        let laid = &view.axes[axis];
        let part = if rest.is_empty() {
            new
        } else {
            let old = self.slice(whole, axis, laid, &laid.start.dim, laid.step);
            self.update(old, new, view, rest)
        };
        let out = ops::like(&mut self.graph, whole);
        let (start, step) = (laid.start.dim.clone(), laid.step);
        self.op(Op::Update { out, base: whole, new: part, axis, start, step });
        out
    }
}
