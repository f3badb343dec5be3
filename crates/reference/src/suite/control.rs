//! Cases of branches and loops.

use super::data::{ALL, Datum, INTEGERS, each, moderate};
use super::draft::Draft;
use super::views::{CALLS, Size, dims};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Step};
use ptero_plan::graph::{Block, BlockId, Carried, Graph, Loop, Node, Op, Stacked, StateId, Type, Value, ViewOp};
use ptero_plan::host::HostOp;
use ptero_plan::prim::Prim;
use ptero_tensor::DType;

/// A block that is being built.
struct Body<'a> {
    graph: &'a mut Graph,
    block: Block,
}

impl<'a> Body<'a> {
    fn new(graph: &'a mut Graph) -> Self {
        Self { graph, block: Block::default() }
    }

    fn op(&mut self, op: Op) {
        let origin = (self.graph.blocks.len() as u32, self.block.nodes.len() as u32);
        self.block.nodes.push(Node { op, origin });
    }

    fn like(&mut self, value: Value) -> Value {
        let Type { dtype, shape } = self.graph.ty(value).clone();
        self.graph.value(dtype, shape)
    }

    /// The sum of two values; of one value and itself, too.
    fn add(&mut self, a: Value, b: Value) -> Value {
        let (out, dtype) = (self.like(a), self.graph.ty(a).dtype);
        let load = |index| Step { op: Scalar::Load(index), args: [0; 3], dtype };
        // The sum of bools is the larger one.
        let op = if dtype == DType::Bool { Binary::Or } else { Binary::Add };
        let sum = Step { op: Scalar::Binary(op), args: [0, 1, 0], dtype };
        let expr = Expr { steps: vec![load(0), load(1), sum] };
        self.op(Op::Prim(Prim::Map { out, ins: vec![a, b], expr }));
        out
    }

    fn view(&mut self, x: Value, shape: Vec<Dim>, how: ViewOp) -> Value {
        let out = self.graph.value(self.graph.ty(x).dtype, shape);
        self.op(Op::View { out, x, how });
        out
    }

    /// Adds to a state what it has the shape of.
    fn add_to_state(&mut self, state: StateId, x: Value) {
        let old = self.like(x);
        self.op(Op::Read { out: old, state });
        let new = self.add(old, x);
        self.op(Op::Write { state, x: new });
    }

    fn finish(mut self, results: Vec<Value>) -> BlockId {
        self.block.results = results;
        self.graph.blocks.push(self.block);
        BlockId(self.graph.blocks.len() as u32 - 1)
    }
}

/// A branch on an integer that is given, or that is read from a tensor.
pub(super) fn if_case(draft: &mut Draft) {
    let rank = draft.rank(0);
    let shape = draft.shape(rank, 600);
    let dtype = draft.rng.pick(&ALL);
    let (x, y) = (draft.operand(dtype, &shape, &moderate(dtype)), draft.operand(dtype, &shape, &moderate(dtype)));
    let condition = if draft.rng.one_in(2) {
        let choices: [i64; CALLS] = std::array::from_fn(|_| draft.rng.pick(&[0, 1, -3]));
        draft.var(choices).dim
    } else {
        let kind = draft.rng.pick(&INTEGERS);
        let item = draft.operand(kind, &[Size::fixed(1)], &each(|rng| Datum::Int(rng.within(0, 1))));
        Dim::var(draft.known(HostOp::Item(item)))
    };
    // One branch changes a state, which the other leaves alone.
    let kept = (shape.iter().all(Size::is_fixed) && draft.rng.one_in(2)).then(|| draft.state(dtype, &shape));
    let out = draft.target(dtype, &shape);
    let other = draft.target(dtype, &shape);
    let mut then = Body::new(&mut draft.graph);
    let sum = then.add(x, y);
    if let Some(state) = kept {
        then.add_to_state(state, sum);
    }
    let then = then.finish(vec![sum, x]);
    let mut otherwise = Body::new(&mut draft.graph);
    let twice = otherwise.add(y, y);
    let flat = otherwise.view(twice, dims(&shape), ViewOp::Reshape);
    let otherwise = otherwise.finish(vec![y, flat]);
    draft.test_op(Op::If { condition, then, otherwise, outs: vec![out, other] });
}

/// A loop over the rows of a tensor, which carries their sum and collects what it was after each.
pub(super) fn loop_case(draft: &mut Draft) {
    let (count, width) = (draft.size_or_zero(&[1, 2, 3, 5]), draft.size(&[1, 2, 7, 33]));
    let dtype = draft.rng.pick(&[DType::F32, DType::F32, DType::I32, DType::I64, DType::F16]);
    let x = draft.operand(dtype, &[count.clone(), width.clone()], &moderate(dtype));
    let init = draft.operand(dtype, std::slice::from_ref(&width), &moderate(dtype));
    let kept = (width.is_fixed() && draft.rng.one_in(2)).then(|| draft.state(dtype, std::slice::from_ref(&width)));
    let axis = draft.rng.below(2);
    let rows = if axis == 0 { [count.clone(), width.clone()] } else { [width.clone(), count.clone()] };
    let (last, all) = (draft.target(dtype, std::slice::from_ref(&width)), draft.target(dtype, &rows));
    let index = draft.known_later(HostOp::Index { count: count.dim.clone() });
    let param = draft.graph.value(dtype, vec![width.dim.clone()]);
    let mut body = Body::new(&mut draft.graph);
    let how = ViewOp::Slice { axis: 0, start: Dim::var(index), step: 1 };
    let row = body.view(x, vec![1.into(), width.dim.clone()], how);
    let row = body.view(row, vec![width.dim.clone()], ViewOp::Reshape);
    let sum = body.add(param, row);
    if let Some(state) = kept {
        body.add_to_state(state, sum);
    }
    let body = body.finish(vec![sum, sum]);
    let (carried, stacked) = (vec![Carried { init, param, out: last }], vec![Stacked { out: all, axis }]);
    draft.test_op(Op::Loop(Box::new(Loop { index, count: count.dim, body, carried, stacked })));
}
