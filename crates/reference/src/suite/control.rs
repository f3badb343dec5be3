//! Cases of branches and loops.

use super::data::{ALL, Datum, INTEGERS, each, moderate};
use super::draft::Draft;
use super::ops;
use super::views::{CALLS, Size, dims};
use ptero_plan::dim::Dim;
use ptero_plan::expr::Binary;
use ptero_plan::graph::{BlockId, Carried, Graph, Loop, Op, Stacked, StateId, Value, ViewOp};
use ptero_plan::host::HostOp;
use ptero_tensor::DType;

/// The sum of two values; of one value and itself, too.
fn add(graph: &mut Graph, block: BlockId, a: Value, b: Value) -> Value {
    // The sum of bools is the larger one.
    let op = if graph.ty(a).dtype == DType::Bool { Binary::Or } else { Binary::Add };
    ops::map(graph, block, [a, b], |f, [a, b]| f.binary(op, a, b))
}

/// Adds to a state what it has the shape of.
fn add_to_state(graph: &mut Graph, block: BlockId, state: StateId, x: Value) {
    let old = ops::read(graph, block, state);
    let new = add(graph, block, old, x);
    ops::push(graph, block, Op::Write { state, x: new });
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
    let graph = &mut draft.graph;
    let (then, otherwise) = (ops::new_block(graph), ops::new_block(graph));
    let sum = add(graph, then, x, y);
    if let Some(state) = kept {
        add_to_state(graph, then, state, sum);
    }
    graph.block_mut(then).results = vec![sum, x];
    let twice = add(graph, otherwise, y, y);
    let flat = ops::view(graph, otherwise, twice, dims(&shape), ViewOp::Reshape);
    graph.block_mut(otherwise).results = vec![y, flat];
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
    let graph = &mut draft.graph;
    let body = ops::new_block(graph);
    let how = ViewOp::Slice { axis: 0, start: Dim::var(index), step: 1 };
    let row = ops::view(graph, body, x, vec![1.into(), width.dim.clone()], how);
    let row = ops::view(graph, body, row, vec![width.dim.clone()], ViewOp::Reshape);
    let sum = add(graph, body, param, row);
    if let Some(state) = kept {
        add_to_state(graph, body, state, sum);
    }
    graph.block_mut(body).results = vec![sum, sum];
    let (carried, stacked) = (vec![Carried { init, param, out: last }], vec![Stacked { out: all, axis }]);
    draft.test_op(Op::Loop(Box::new(Loop { index, count: count.dim, body, carried, stacked })));
}
