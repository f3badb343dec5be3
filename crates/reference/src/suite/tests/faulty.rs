//! The reference with a fault.

use super::super::draft::Finished;
use crate::Reference;
use ptero_backend::{Backend, Executable, InputValue, Lane, OutputValue, Result, State, Steps};
use ptero_plan::Capabilities;
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Graph, Node, Op, Output, StateId, Type, Value, ViewOp};
use ptero_plan::prim::{Fold, Normalize, Prim};
use ptero_tensor::DType;
use std::any::Any;
use std::sync::Arc;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The first element of the result is a hundredth too large; an integer by one.
    FirstElement,
    /// Operands are read as if they were whole row-major tensors.
    Strides,
    /// The last elements along the last axis of the first operand count as zero.
    LastOperand,
    /// An element beside the view is written.
    Beside,
    /// A parameter has another value.
    Parameter,
    /// Products are summed from the last term on, which is not wrong.
    Backwards,
    /// A product is stored without the function that it should go through.
    Unfused,
    /// Inputs are always those of the first call.
    OldInputs,
    /// A call that fails is reported as successful.
    NeverFails,
    /// A call that fails is reported at another instruction.
    FailsElsewhere,
    /// A scatter writes before it knows that all its indices are good.
    HalfDone,
    /// The content of a state is read after it has changed.
    LateRead,
}

pub(super) struct Faulty {
    wrong: Wrong,
    /// The index of the tested operation.
    tested: usize,
    /// A state that the operation writes in part, and an element that it does not write.
    beside: Option<(StateId, i64)>,
    /// It declares that it gives other bits.
    is_inexact: bool,
}

impl Faulty {
    pub(super) fn new(wrong: Wrong, finished: &Finished) -> Self {
        let beside = finished.shown.iter().find_map(|shown| {
            let state = shown.after?;
            let written = shown.parts.first()?.view.positions(0);
            let sizes = finished.graph.states[state.0 as usize].shape.iter();
            let count: i64 = sizes.map(|size| size.as_fixed().unwrap()).product();
            (0..count).find(|index| !written.contains(&(*index as usize))).map(|index| (state, index))
        });
        Self { wrong, tested: finished.tested[0], beside, is_inexact: false }
    }

    pub(super) fn inexact(self) -> Self {
        Self { is_inexact: true, ..self }
    }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { is_inexact: self.is_inexact, ..Reference.capabilities() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        let mut graph = Graph::clone(&graph);
        let tail = graph.blocks[0].nodes.split_off(self.tested);
        let (node, tail) = tail.split_first().expect("an operation is tested");
        let mut writer = Writer { graph, origin: node.origin };
        match self.wrong {
            Wrong::FirstElement => writer.first_element(&node.op),
            Wrong::Strides => writer.reread(&node.op, |writer, _, value| writer.row_major(value)),
            Wrong::LastOperand => {
                writer.reread(&node.op, |writer, at, value| if at == 0 { writer.without_last(value) } else { value });
            }
            Wrong::Parameter => writer.op(other_parameter(node.op.clone())),
            Wrong::Unfused => writer.op(unfused(node.op.clone())),
            Wrong::Backwards => writer.backwards(&node.op),
            Wrong::HalfDone => writer.half_done(&node.op),
            Wrong::FailsElsewhere => {
                writer.origin = (7, 7);
                writer.op(node.op.clone());
            }
            Wrong::Beside | Wrong::OldInputs | Wrong::NeverFails | Wrong::LateRead => writer.op(node.op.clone()),
        }
        let mut graph = writer.graph;
        graph.blocks[0].nodes.extend_from_slice(tail);
        match self.wrong {
            Wrong::Beside => self.beside.into_iter().for_each(|beside| write_beside(&mut graph, beside)),
            Wrong::LateRead => read_late(&mut graph),
            _ => {}
        }
        Ok(Box::new(Compiled { wrong: self.wrong, inner: Reference.compile(Arc::new(graph))? }))
    }
}

struct Compiled {
    wrong: Wrong,
    inner: Box<dyn Executable>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(FaultyState { wrong: self.wrong, inner: self.inner.state(seed)?, has_run: false }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        for lane in lanes {
            let state: &mut dyn Any = lane.state;
            let session = state.downcast_mut::<FaultyState>().expect("a state of this backend");
            session.has_run = true;
            let mut inner = [Lane { wanted: lane.wanted, ends: lane.ends, ..Lane::new(session.inner.as_mut()) }];
            self.inner.run(&mut inner, steps)?;
            let [inner] = inner;
            lane.fault = inner.fault.filter(|_| self.wrong != Wrong::NeverFails);
        }
        Ok(())
    }
}

struct FaultyState {
    wrong: Wrong,
    inner: Box<dyn State>,
    has_run: bool,
}

impl State for FaultyState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        if self.wrong == Wrong::OldInputs && self.has_run { Ok(()) } else { self.inner.write(input, value) }
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        self.inner.read_into(output, value)
    }

    fn reset(&mut self) -> Result<()> {
        self.inner.reset()
    }
}

/// Writes a block again, with other operations instead of the tested one.
struct Writer {
    graph: Graph,
    origin: (u32, u32),
}

impl Writer {
    fn op(&mut self, op: Op) {
        self.graph.blocks[0].nodes.push(Node { op, origin: self.origin });
    }

    fn value(&mut self, dtype: DType, shape: Vec<Dim>) -> Value {
        self.graph.value(dtype, shape)
    }

    fn view(&mut self, x: Value, shape: Vec<Dim>, how: ViewOp) -> Value {
        let out = self.value(self.graph.ty(x).dtype, shape);
        self.op(Op::View { out, x, how });
        out
    }

    fn map(&mut self, x: Option<Value>, ty: Type, steps: Vec<Step>) -> Value {
        let out = self.value(ty.dtype, ty.shape);
        self.op(Op::Prim(Prim::Map { out, ins: x.into_iter().collect(), expr: Expr { steps } }));
        out
    }

    /// A value with one element, counted in row-major order, replaced by what `new` makes of it.
    fn replace(&mut self, x: Value, at: Dim, new: impl FnOnce(&mut Self, Value) -> Value) -> Value {
        let Type { dtype, shape } = self.graph.ty(x).clone();
        let count = shape.iter().fold(Dim::fixed(1), |count, size| &count * size);
        let flat = self.view(x, vec![count.clone()], ViewOp::Reshape);
        let slice = ViewOp::Slice { axis: 0, start: at.clone(), step: 1 };
        let one = self.view(flat, vec![1.into()], slice);
        let (new, out) = (new(self, one), self.value(dtype, vec![count]));
        self.op(Op::Update { out, base: flat, new, axis: 0, start: at, step: 1 });
        self.view(out, shape, ViewOp::Reshape)
    }

    fn first_element(&mut self, op: &Op) {
        let out = op.outs()[0];
        let Type { dtype, shape } = self.graph.ty(out).clone();
        let right = self.value(dtype, shape);
        let mut op = op.clone();
        set_first_out(&mut op, right);
        self.op(op);
        let wrong = self.replace(right, 0.into(), |writer, one| writer.enlarged(one));
        self.op(Op::View { out, x: wrong, how: ViewOp::Reshape });
    }

    /// A product with its inner axis the other way round.
    fn backwards(&mut self, op: &Op) {
        let from_end = [1, 2];
        self.reread(op, |writer, at, value| {
            let Some(&from_end) = from_end.get(at) else { return value };
            let shape = writer.graph.ty(value).shape.clone();
            let axis = shape.len() - from_end;
            let start = &shape[axis] - &Dim::fixed(1);
            writer.view(value, shape, ViewOp::Slice { axis, start, step: -1 })
        });
    }

    fn enlarged(&mut self, x: Value) -> Value {
        let ty = self.graph.ty(x).clone();
        let dtype = ty.dtype;
        let load = step(Scalar::Load(0), [0; 3], dtype);
        let steps = match dtype {
            DType::Bool => vec![load, step(Scalar::Unary(Unary::Not), [0; 3], dtype)],
            DType::F32 | DType::F16 | DType::Bf16 => {
                // Short floats are off by more, or it would not show.
                let factor = if dtype == DType::Bf16 { 1.04 } else { 1.01 };
                let product = step(Scalar::Binary(Binary::Mul), [0, 1, 0], dtype);
                vec![load, step(Scalar::Float(factor), [0; 3], dtype), product]
            }
            _ => {
                let sum = step(Scalar::Binary(Binary::Add), [0, 1, 0], dtype);
                vec![load, step(Scalar::Int(Dim::fixed(1)), [0; 3], dtype), sum]
            }
        };
        self.map(Some(x), ty, steps)
    }

    fn filled(&mut self, ty: Type, number: i64) -> Value {
        let steps = vec![step(Scalar::Int(Dim::fixed(number)), [0; 3], ty.dtype)];
        self.map(None, ty, steps)
    }

    /// The operation with other values to read, by their index in what it reads.
    fn reread(&mut self, op: &Op, change: impl Fn(&mut Self, usize, Value) -> Value) {
        let mut op = op.clone();
        let mut changed =
            op.ins().into_iter().enumerate().map(|(at, value)| change(self, at, value)).collect::<Vec<_>>();
        match &mut op {
            Op::Prim(prim) => {
                // Operands come first, then what the primitive makes.
                changed.extend(prim.writes().into_iter().copied());
                let mut values = changed.into_iter();
                *prim = prim.clone().map(&mut |_| values.next().expect("a value for each tensor"));
            }
            Op::View { x, .. } | Op::Write { x, .. } => *x = changed[0],
            Op::Concat { parts, .. } => *parts = changed,
            Op::Update { base, new, .. } => [*base, *new] = [changed[0], changed[1]],
            Op::Loop(round) => round.carried.iter_mut().zip(changed).for_each(|(carried, init)| carried.init = init),
            Op::Read { .. } | Op::Host(_) | Op::Check(_) | Op::If { .. } | Op::Foreign(_) => {}
        }
        self.op(op);
    }

    /// The tensor that a value is a view of, as if the view were at its start and in its order. What repeats stays.
    fn row_major(&mut self, value: Value) -> Value {
        let (mut root, mut repeats) = (value, false);
        while let Some((x, how)) = view_of(&self.graph, root) {
            repeats |= match &how {
                ViewOp::Broadcast => true,
                ViewOp::Strided { strides, .. } => strides.iter().any(|stride| stride.is(0)),
                ViewOp::Reshape | ViewOp::Permute(_) | ViewOp::Slice { .. } => false,
            };
            root = x;
        }
        if repeats || root == value {
            return value;
        }
        let shape = self.graph.ty(value).shape.clone();
        let how = ViewOp::Strided { strides: row_major_strides(&shape), offset: 0.into() };
        self.view(root, shape, how)
    }

    /// A value with zeros at the end of its last axis.
    fn without_last(&mut self, x: Value) -> Value {
        let Type { dtype, shape } = self.graph.ty(x).clone();
        let Some((last, outer)) = shape.split_last() else { return x };
        let part = outer.iter().cloned().chain([Dim::fixed(1)]).collect();
        let new = self.filled(Type { dtype, shape: part }, 0);
        let (out, axis, start) = (self.value(dtype, shape.clone()), outer.len(), last - &Dim::fixed(1));
        self.op(Op::Update { out, base: x, new, axis, start, step: 1 });
        out
    }

    /// Changes the state that the base comes from before the scatter, which then does what it should.
    fn half_done(&mut self, op: &Op) {
        let reads = self.graph.blocks[0].nodes.iter().filter_map(|node| match &node.op {
            Op::Read { out, state } => Some((*out, *state)),
            _ => None,
        });
        let mut root = op.ins()[0];
        while let Some((x, _)) = view_of(&self.graph, root) {
            root = x;
        }
        if let Some((whole, state)) = reads.into_iter().find(|(out, _)| *out == root) {
            let ty = Type { dtype: self.graph.ty(whole).dtype, shape: vec![1.into()] };
            let spoilt = self.replace(whole, 0.into(), |writer, _| writer.filled(ty, 77));
            self.op(Op::Write { state, x: spoilt });
        }
        self.op(op.clone());
    }
}

/// What a value is a view of.
fn view_of(graph: &Graph, value: Value) -> Option<(Value, ViewOp)> {
    graph.blocks[0].nodes.iter().find_map(|node| match &node.op {
        Op::View { out, x, how } if *out == value => Some((*x, how.clone())),
        _ => None,
    })
}

/// Writes an element of a state after the operation has written others.
fn write_beside(graph: &mut Graph, (state, index): (StateId, i64)) {
    let nodes = &mut graph.blocks[0].nodes;
    let is_last = |node: &Node| matches!(&node.op, Op::Write { state: written, .. } if *written == state);
    let at = nodes.iter().rposition(is_last).expect("the state is written");
    let tail = nodes.split_off(at + 1);
    let Op::Write { x, .. } = nodes[at].op else { unreachable!("a write") };
    let mut writer = Writer { origin: nodes[at].origin, graph: std::mem::take(graph) };
    let ty = Type { dtype: writer.graph.ty(x).dtype, shape: vec![1.into()] };
    let spoilt = writer.replace(x, index.into(), |writer, _| writer.filled(ty, 77));
    writer.op(Op::Write { state, x: spoilt });
    *graph = writer.graph;
    graph.blocks[0].nodes.extend(tail);
}

/// Shows what states hold at the end where what they held before is asked for.
fn read_late(graph: &mut Graph) {
    let reads = graph.blocks[0].nodes.iter().filter_map(|node| match &node.op {
        Op::Read { out, state } => Some((*out, *state)),
        _ => None,
    });
    let reads: Vec<(Value, StateId)> = reads.collect();
    for output in &mut graph.outputs {
        let Output::Tensor(value) = output else { continue };
        let Some((_, state)) = reads.iter().find(|(out, _)| out == value) else { continue };
        if let Some((last, _)) = reads.iter().rev().find(|(_, other)| other == state) {
            *value = *last;
        }
    }
}

fn row_major_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut stride = Dim::fixed(1);
    let mut strides = Vec::new();
    for size in shape.iter().rev() {
        strides.insert(0, stride.clone());
        stride = &stride * size;
    }
    strides
}

fn step(op: Scalar, args: [u16; 3], dtype: DType) -> Step {
    Step { op, args, dtype }
}

fn set_first_out(op: &mut Op, new: Value) {
    match op {
        Op::Prim(prim) => {
            let mut values: Vec<Value> = prim.reads();
            values.push(new);
            values.extend(prim.writes().into_iter().skip(1).copied());
            let mut values = values.into_iter();
            *prim = prim.clone().map(&mut |_| values.next().expect("a value for each tensor"));
        }
        Op::Concat { out, .. } | Op::Update { out, .. } | Op::View { out, .. } | Op::Read { out, .. } => *out = new,
        Op::If { outs, .. } => outs[0] = new,
        Op::Loop(round) => round.carried[0].out = new,
        Op::Write { .. } | Op::Host(_) | Op::Check(_) | Op::Foreign(_) => unreachable!("it is not tested"),
    }
}

fn unfused(mut op: Op) -> Op {
    if let Op::Prim(Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. }) = &mut op {
        *epilogue = None;
    }
    op
}

fn other_parameter(mut op: Op) -> Op {
    let Op::Prim(prim) = &mut op else { return op };
    match prim {
        Prim::Reduce { fold, .. } => {
            *fold = match *fold {
                Fold::Sum => Fold::Prod,
                Fold::Prod => Fold::Sum,
                Fold::Max => Fold::Min,
                Fold::Min => Fold::Max,
                Fold::Any => Fold::All,
                Fold::All => Fold::Any,
                Fold::Mean => Fold::LogSumExp,
                Fold::Var { ddof } => Fold::Var { ddof: ddof + 1 },
                Fold::LogSumExp => Fold::Mean,
            }
        }
        Prim::ArgReduce { largest, .. } => *largest = !*largest,
        Prim::Norm { kind, .. } => *kind = if *kind == Normalize::Rms { Normalize::Layer } else { Normalize::Rms },
        Prim::Rope { interleaved, .. } => *interleaved = !*interleaved,
        Prim::Attention { causal, window, .. } => match window {
            Some(window) => *window += 1,
            None => *causal = !*causal,
        },
        Prim::Conv { dilation, padding, .. } => {
            let with = if dilation.contains(&2) { dilation } else { padding };
            with.iter_mut().for_each(|value| *value = (*value - 1).max(0));
        }
        Prim::Scatter { add, .. } => *add = !*add,
        Prim::Cumsum { reverse, inclusive, .. } => (*reverse, *inclusive) = (*inclusive, !*reverse),
        Prim::RandomBits { seed, .. } => *seed = seed.take().map_or(Some(Dim::fixed(3)), |_| None),
        Prim::Map { .. } | Prim::Softmax { .. } | Prim::MatMul { .. } | Prim::QuantMatMul { .. } => {}
        Prim::Dequantize { .. } | Prim::Gather { .. } | Prim::Sort { .. } | Prim::GatedDelta(_) => {}
        Prim::Sample(sampler) => std::mem::swap(&mut sampler.temperature, &mut sampler.top_p),
    }
    op
}
