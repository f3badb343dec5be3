//! The operations around the one that is tested: views of what it reads, and where its results go.

use super::{Draft, MAIN, Part, Shown, Target};
use crate::suite::layout::{LaidAxis, Layout, dims};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Expr, Scalar, Step};
use ptero_plan::graph::{BlockId, Node, Op, StateId, Type, Value, ViewOp};
use ptero_plan::prim::Prim;

impl Draft {
    /// A value that shows another.
    fn view(&mut self, x: Value, shape: Vec<Dim>, how: ViewOp) -> Value {
        let out = self.graph.value(self.graph.ty(x).dtype, shape);
        self.op(Op::View { out, x, how });
        out
    }

    pub(super) fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Value {
        if self.graph.ty(x).shape == shape { x } else { self.view(x, shape, ViewOp::Reshape) }
    }

    pub(super) fn read(&mut self, state: StateId) -> Value {
        let Type { dtype, shape } = self.graph.states[state.0 as usize].clone();
        let out = self.graph.value(dtype, shape);
        self.op(Op::Read { out, state });
        out
    }

    /// A copy that a device computes.
    pub(super) fn copy(&mut self, x: Value) -> Value {
        self.copy_in(MAIN, x)
    }

    pub(super) fn copy_in(&mut self, block: BlockId, x: Value) -> Value {
        let Type { dtype, shape } = self.graph.ty(x).clone();
        let out = self.graph.value(dtype, shape);
        let nodes = &mut self.graph.block_mut(block).nodes;
        let origin = (block.0, nodes.len() as u32);
        nodes.push(Node { op: Op::Prim(copy(x, out, dtype)), origin });
        out
    }

    /// The window of a layout on a whole tensor: by strides at once, or view by view.
    pub(super) fn look(&mut self, whole: Value, layout: &Layout) -> Value {
        if layout.is_whole() {
            return whole;
        }
        let mut shape = vec![Dim::fixed(0); layout.axes.len()];
        layout.axes.iter().for_each(|laid| shape[laid.axis] = laid.size.dim.clone());
        if self.rng.one_in(3) {
            let (strides, offset) = layout.strides();
            return self.view(whole, shape, ViewOp::Strided { strides: dims(&strides), offset: offset.dim });
        }
        let mut value = whole;
        for (axis, laid) in layout.axes.iter().enumerate() {
            if !laid.repeats && (laid.is_flipped || !laid.is_whole()) {
                value = self.slice(value, axis, laid, &laid.first().dim, laid.signed_step());
            }
        }
        value = self.permute(value, layout.order());
        if self.graph.ty(value).shape == shape { value } else { self.view(value, shape, ViewOp::Broadcast) }
    }

    fn slice(&mut self, x: Value, axis: usize, laid: &LaidAxis, start: &Dim, step: i64) -> Value {
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

    /// Sends a result where it goes.
    pub(super) fn deliver(&mut self, target: &Target, made_by: (usize, usize)) {
        let Target { out, base, layout } = target;
        let part = Part { made_by, layout: layout.clone() };
        // Half of a tensor has an axis more.
        let mut shape = vec![Dim::fixed(1); layout.axes.len()];
        layout.axes.iter().for_each(|laid| shape[laid.axis] = laid.size.dim.clone());
        let mut new = self.reshape(*out, shape);
        new = self.permute(new, layout.axes.iter().map(|laid| laid.axis).collect());
        for (axis, laid) in layout.axes.iter().enumerate().filter(|(_, laid)| laid.is_flipped) {
            new = self.slice(new, axis, laid, &laid.size.plus(-1).dim, -1);
        }
        let Some(base) = base else {
            return self.show(new, Shown { parts: vec![part], ..Shown::default() });
        };
        let windowed: Vec<usize> = (0..layout.axes.len()).filter(|&axis| !layout.axes[axis].is_whole()).collect();
        let updated = self.update(base.whole, new, layout, &windowed);
        let Some(state) = base.state else {
            return self.show(updated, Shown { parts: vec![part], ..Shown::default() });
        };
        self.op(Op::Write { state, x: updated });
        let before = base.is_old.then_some(state);
        // What the state held stays readable, as it is and for what comes after.
        if self.rng.one_in(3) {
            let copied = self.copy(base.whole);
            self.show(copied, Shown { before, ..Shown::default() });
        }
        if self.rng.one_in(3) {
            self.show(base.whole, Shown { before, ..Shown::default() });
        }
        let shown = &mut self.states[state.0 as usize];
        shown.before = before;
        shown.parts.push(part);
    }

    /// `whole` with `new` in a window along these axes; along the others it is whole.
    fn update(&mut self, whole: Value, new: Value, layout: &Layout, axes: &[usize]) -> Value {
        let Some((&axis, rest)) = axes.split_first() else { return new };
        let laid = &layout.axes[axis];
        let part = if rest.is_empty() {
            new
        } else {
            let old = self.slice(whole, axis, laid, &laid.start.dim, laid.step);
            self.update(old, new, layout, rest)
        };
        let Type { dtype, shape } = self.graph.ty(whole).clone();
        let out = self.graph.value(dtype, shape);
        let (start, step) = (laid.start.dim.clone(), laid.step);
        self.op(Op::Update { out, base: whole, new: part, axis, start, step });
        out
    }
}

/// The primitive that copies.
pub(super) fn copy(x: Value, out: Value, dtype: ptero_tensor::DType) -> Prim<Value> {
    let load = Step { op: Scalar::Load(0), args: [0; 3], dtype };
    Prim::Map { out, ins: vec![x], expr: Expr { steps: vec![load] } }
}
