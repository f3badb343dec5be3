//! Small graphs with results worked out by hand.

mod attention;
mod conv;
mod gated_delta;
mod graph;
mod index;
mod map;
mod matmul;
mod norm;
mod random;
mod reduce;
mod sample;
mod session;
mod view;

use super::Reference;
use ptero_backend::number::{Element, Number};
use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, run_once};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Step};
use ptero_plan::graph::{Block, BlockId, Graph, Input, Node, Op, Output, StateId, Type, Value, ViewOp};
use ptero_plan::host::HostOp;
use ptero_plan::prim::Prim;
use ptero_tensor::{Bytes, DType};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A graph that is being built: one main block, to which operations are added.
struct Builder {
    graph: Graph,
    /// How many operations of the main block are of instructions 3.n.
    count: u32,
}

impl Builder {
    fn new() -> Self {
        Self { graph: Graph { blocks: vec![Block::default()], ..Graph::default() }, count: 0 }
    }

    /// A value that an operation will make.
    fn value(&mut self, dtype: DType, shape: &[i64]) -> Value {
        self.graph.value(dtype, dims(shape))
    }

    /// A constant of any type; numbers are converted to it.
    fn constant(&mut self, dtype: DType, shape: &[i64], values: &[f64]) -> Value {
        assert_eq!(shape.iter().product::<i64>(), i64::try_from(values.len()).unwrap(), "a value per element");
        self.graph.constant(dtype, dims(shape), Bytes::from(encode(dtype, values)))
    }

    fn state(&mut self, dtype: DType, shape: &[i64]) -> StateId {
        self.graph.states.push(Type { dtype, shape: dims(shape) });
        StateId(u32::try_from(self.graph.states.len() - 1).unwrap())
    }

    fn input(&mut self, dtype: DType, shape: &[Dim]) -> Value {
        let value = self.graph.value(dtype, shape.to_vec());
        self.graph.inputs.push(Input::Tensor(value));
        value
    }

    /// A size that an input gives.
    fn given(&mut self) -> Dim {
        Dim::var(self.graph.var(HostOp::Given { most: None }))
    }

    fn int_input(&mut self) -> Dim {
        let size = self.given();
        self.graph.inputs.push(Input::Int(size.as_var().unwrap()));
        size
    }

    /// A block beside the main one; its operations are of instructions 4.n.
    fn block(&mut self, ops: Vec<Op>, results: &[Value]) -> BlockId {
        let nodes = (0..).zip(ops).map(|(index, op)| Node { op, origin: (4, index) }).collect();
        self.graph.blocks.push(Block { nodes, results: results.to_vec() });
        BlockId(u32::try_from(self.graph.blocks.len() - 1).unwrap())
    }

    /// Adds an operation to the main block, as if from instruction 3.n.
    fn op(&mut self, op: Op) {
        self.graph.blocks[0].nodes.push(Node { op, origin: (3, self.count) });
        self.count += 1;
    }

    /// Adds an operation that has no number among those of 3.n.
    fn beside(&mut self, op: Op) {
        self.graph.blocks[0].nodes.push(Node { op, origin: (2, 0) });
    }

    fn host(&mut self, op: HostOp) -> Dim {
        let var = self.graph.var(op);
        self.op(Op::Host(var));
        Dim::var(var)
    }

    fn device(&mut self, prim: Prim<Value>) {
        self.op(Op::Prim(prim));
    }

    /// What a state holds now.
    fn load(&mut self, state: StateId) -> Value {
        let Type { dtype, shape } = self.graph.states[state.0 as usize].clone();
        let out = self.graph.value(dtype, shape);
        self.beside(Op::Read { out, state });
        out
    }

    fn store(&mut self, state: StateId, x: Value) {
        self.beside(Op::Write { state, x });
    }

    /// Some elements of a value.
    fn strided(&mut self, x: Value, shape: &[i64], strides: &[i64], offset: i64) -> Value {
        let out = self.graph.value(self.graph.ty(x).dtype, dims(shape));
        let how = ViewOp::Strided { strides: dims(strides), offset: offset.into() };
        self.beside(Op::View { out, x, how });
        out
    }

    /// A value that repeats.
    fn broadcast(&mut self, x: Value, shape: &[i64]) -> Value {
        let out = self.graph.value(self.graph.ty(x).dtype, dims(shape));
        self.beside(Op::View { out, x, how: ViewOp::Broadcast });
        out
    }

    /// The sum of two values of one type.
    fn add(&mut self, a: Value, b: Value) -> Value {
        let Type { dtype, shape } = self.graph.ty(a).clone();
        let out = self.graph.value(dtype, shape);
        let load = |index| Step { op: Scalar::Load(index), args: [0; 3], dtype };
        let sum = Step { op: Scalar::Binary(Binary::Add), args: [0, 1, 0], dtype };
        self.device(Prim::Map { out, ins: vec![a, b], expr: Expr { steps: vec![load(0), load(1), sum] } });
        out
    }

    fn output(&mut self, value: Value) {
        self.graph.outputs.push(Output::Tensor(value));
    }

    fn compile(self) -> ptero_backend::Result<Box<dyn Executable>> {
        Reference.compile(Arc::new(self.graph))
    }

    fn compile_error(self) -> String {
        self.compile().err().expect("the graph is refused").to_string()
    }

    fn start(self) -> RunningGraph {
        self.seeded(0)
    }

    fn seeded(self, seed: u64) -> RunningGraph {
        RunningGraph::new(&Arc::from(self.compile().unwrap()), seed)
    }

    /// Runs a graph without inputs and reads a value.
    fn read(mut self, value: Value) -> Vec<f64> {
        self.output(value);
        let mut state = self.start();
        state.run().unwrap();
        numbers(&*state, 0)
    }

    /// Runs a graph without inputs that fails.
    fn run_error(self) -> String {
        self.start().run().unwrap_err().to_string()
    }

    /// Adds the primitive that makes a new value, runs, and reads that.
    fn result(mut self, dtype: DType, shape: &[i64], prim: impl FnOnce(Value) -> Prim<Value>) -> Vec<f64> {
        let out = self.value(dtype, shape);
        self.device(prim(out));
        self.read(out)
    }
}

/// A state with what runs it.
struct RunningGraph {
    executable: Arc<dyn Executable>,
    state: Box<dyn State>,
}

impl RunningGraph {
    fn new(executable: &Arc<dyn Executable>, seed: u64) -> Self {
        Self { executable: Arc::clone(executable), state: executable.state(seed).unwrap() }
    }

    fn run(&mut self) -> ptero_backend::Result<()> {
        run_once(&*self.executable, &mut *self.state, &AtomicBool::new(false))
    }
}

impl Deref for RunningGraph {
    type Target = dyn State;

    fn deref(&self) -> &(dyn State + 'static) {
        &*self.state
    }
}

impl DerefMut for RunningGraph {
    fn deref_mut(&mut self) -> &mut (dyn State + 'static) {
        &mut *self.state
    }
}

/// Makes a value of an integer, everywhere the same.
fn fill(out: Value, dtype: DType, number: &Dim) -> Op {
    let int = Step { op: Scalar::Int(number.clone()), args: [0; 3], dtype };
    Op::Prim(Prim::Map { out, ins: Vec::new(), expr: Expr { steps: vec![int] } })
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::fixed(size)).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "test values are small")]
fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let element = Element::new(dtype).unwrap();
    let mut bytes = vec![0; values.len() * element.bytes()];
    for (place, &value) in values.iter().enumerate() {
        let number = if element.is_float() { Number::Float(value as f32) } else { Number::Int(value as i64) };
        element.store(&mut bytes, place, number);
    }
    bytes
}

#[allow(clippy::cast_precision_loss, reason = "test values are small")]
fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let element = Element::new(dtype).unwrap();
    let numbers = (0..bytes.len() / element.bytes()).map(|place| element.load(bytes, place));
    numbers.map(|number| if let Number::Int(value) = number { value as f64 } else { number.float().into() }).collect()
}

fn numbers(state: &dyn State, output: usize) -> Vec<f64> {
    match state.read(output).unwrap() {
        OutputValue::Tensor { dtype, bytes, .. } => decode(dtype, &bytes),
        OutputValue::Int(value) => panic!("{value} is not a tensor"),
    }
}

fn write(state: &mut dyn State, input: usize, dtype: DType, shape: &[u64], values: &[f64]) {
    state.write(input, InputValue::Tensor { dtype, shape, bytes: &encode(dtype, values) }).unwrap();
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance || a == b || a.is_nan() && b.is_nan();
    let all_close = found.len() == expected.len() && found.iter().zip(expected).all(is_close);
    assert!(all_close, "\n   found {found:?}\nexpected {expected:?}");
}

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
