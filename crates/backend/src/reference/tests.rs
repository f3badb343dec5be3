//! Small plans with results worked out by hand.

mod attention;
mod conv;
mod gated_delta;
mod index;
mod map;
mod matmul;
mod norm;
mod plan;
mod random;
mod reduce;
mod sample;
mod session;

use super::Reference;
use super::number::{Element, Number};
use crate::{Backend, Executable, InputValue, OutputValue, State};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::expr::{Binary, Expr, Scalar, Step};
use ptero_plan::plan::{Block, Buffer, BufferKind, HostOp, Input, Output, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View};
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;

/// A plan in the making: one main block, to which steps are added.
struct Builder {
    plan: Plan,
}

impl Builder {
    fn new() -> Self {
        Self { plan: Plan::of(Vec::new()) }
    }

    /// A buffer of the shape's size, seen whole.
    fn buffer(&mut self, dtype: DType, shape: &[Dim], kind: BufferKind) -> View {
        let elements = shape.iter().fold(Dim::fixed(1), |count, size| &count * size);
        self.plan.buffers.push(Buffer { dtype, elements, kind });
        contiguous(Buf(u32::try_from(self.plan.buffers.len() - 1).unwrap()), dtype, shape)
    }

    /// A constant of any type; numbers are converted to it.
    fn constant(&mut self, dtype: DType, shape: &[i64], values: &[f64]) -> View {
        assert_eq!(shape.iter().product::<i64>(), i64::try_from(values.len()).unwrap(), "a value per element");
        self.buffer(dtype, &dims(shape), BufferKind::Constant(Bytes::from(encode(dtype, values))))
    }

    fn temporary(&mut self, dtype: DType, shape: &[i64]) -> View {
        self.buffer(dtype, &dims(shape), BufferKind::Temporary)
    }

    fn state(&mut self, dtype: DType, shape: &[i64]) -> View {
        self.buffer(dtype, &dims(shape), BufferKind::State)
    }

    fn input(&mut self, dtype: DType, shape: &[Dim]) -> View {
        let view = self.buffer(dtype, shape, BufferKind::Input(self.plan.inputs.len()));
        self.plan.inputs.push(Input::Tensor { buf: view.buf, dtype, shape: shape.to_vec() });
        view
    }

    fn var(&mut self) -> Var {
        self.plan.vars += 1;
        Var(self.plan.vars - 1)
    }

    fn int_input(&mut self) -> Dim {
        let var = self.var();
        self.plan.inputs.push(Input::Int(var));
        Dim::var(var)
    }

    fn add_block(&mut self, steps: Vec<PlanStep>) -> usize {
        self.plan.blocks.push(Block { steps, origin: Vec::new() });
        self.plan.blocks.len() - 1
    }

    /// Adds a step to the main block, as if from instruction 3.n.
    fn step(&mut self, step: PlanStep) {
        let main = &mut self.plan.blocks[0];
        main.origin.push((3, u32::try_from(main.steps.len()).unwrap()));
        main.steps.push(step);
    }

    fn host(&mut self, op: HostOp) -> Dim {
        let out = self.var();
        self.step(PlanStep::Host { out, op });
        Dim::var(out)
    }

    fn device(&mut self, prim: Prim) {
        self.step(PlanStep::Device(prim));
    }

    fn output(&mut self, view: &View) {
        self.plan.outputs.push(Output::Tensor(view.clone()));
    }

    fn compile(self) -> crate::Result<Box<dyn Executable>> {
        Reference.compile(Arc::new(self.plan))
    }

    fn compile_error(self) -> String {
        self.compile().err().expect("the plan is refused").to_string()
    }

    fn start(self) -> Box<dyn State> {
        self.compile().unwrap().state(0).unwrap()
    }

    /// Runs a plan without inputs and reads a view.
    fn read(mut self, view: &View) -> Vec<f64> {
        self.output(view);
        let mut state = self.start();
        state.run().unwrap();
        numbers(state.as_ref(), 0)
    }

    /// Runs a plan without inputs that fails.
    fn run_error(self) -> String {
        self.start().run().unwrap_err().to_string()
    }

    /// Adds the step that writes a new temporary, runs, and reads that.
    fn result(mut self, dtype: DType, shape: &[i64], prim: impl FnOnce(View) -> Prim) -> Vec<f64> {
        let out = self.temporary(dtype, shape);
        self.device(prim(out.clone()));
        self.read(&out)
    }
}

/// The step that copies.
fn copy(from: &View, to: &View) -> Prim {
    let load = Step { op: Scalar::Load(0), args: [0; 3], dtype: from.dtype };
    Prim::Map { out: to.clone(), ins: vec![from.clone()], expr: Expr { steps: vec![load] } }
}

/// The step that adds `from` to `to`.
fn add(from: &View, to: &View) -> Prim {
    let load = |index| Step { op: Scalar::Load(index), args: [0; 3], dtype: to.dtype };
    let sum = Step { op: Scalar::Binary(Binary::Add), args: [0, 1, 0], dtype: to.dtype };
    let ins = vec![to.clone(), from.clone()];
    Prim::Map { out: to.clone(), ins, expr: Expr { steps: vec![load(0), load(1), sum] } }
}

/// The step that fills a view with an integer.
fn fill(to: &View, value: &Dim) -> Prim {
    let int = Step { op: Scalar::Int(value.clone()), args: [0; 3], dtype: to.dtype };
    Prim::Map { out: to.clone(), ins: Vec::new(), expr: Expr { steps: vec![int] } }
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::fixed(size)).collect()
}

fn contiguous(buf: Buf, dtype: DType, shape: &[Dim]) -> View {
    let mut strides = Vec::new();
    let mut stride = Dim::fixed(1);
    for size in shape.iter().rev() {
        strides.insert(0, stride.clone());
        stride = &stride * size;
    }
    View { buf, dtype, shape: shape.to_vec(), strides, offset: Dim::fixed(0) }
}

/// Another window on the buffer of a view.
fn window(view: &View, shape: &[i64], strides: &[i64], offset: i64) -> View {
    View { shape: dims(shape), strides: dims(strides), offset: offset.into(), ..view.clone() }
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
