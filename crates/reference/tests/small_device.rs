//! A whole device, as `docs/ADDING.md` walks through it: values are `Vec<f32>`, and a dozen programs give what the reference gives.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are small")]

use ptero_backend::{
    Backend, Executable, Fault, InputTypes, InputValue, Inputs, Lane, OutputValue, Place, Result, RunningLanes, State,
    StepState, Steps, check_graph, run_steps,
};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Unary};
use ptero_plan::graph::{Graph, Input, Node, Op, Output, Value, ViewOp};
use ptero_plan::prim::{Fold, Prim};
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

mod common;
mod programs;

struct Small;

impl Backend for Small {
    fn name(&self) -> &'static str {
        "small"
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        Ok(Box::new(Compiled(graph)))
    }
}

struct Compiled(Arc<Graph>);

impl Executable for Compiled {
    fn state(&self, _: u64) -> Result<Box<dyn State>> {
        let (graph, types) = (Arc::clone(&self.0), Arc::new(InputTypes::of(&self.0)));
        let zeros = |shape: &[Dim]| vec![0.0; shape.iter().map(|size| size.as_fixed().unwrap_or(0) as usize).product()];
        let states = graph.states.iter().map(|state| zeros(&state.shape)).collect();
        let values = vec![Vec::new(); graph.values.len()];
        Ok(Box::new(SmallState { graph, inputs: Inputs::new(types), states, values, host: Vec::new() }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        run_steps::<SmallState>(lanes, steps, &RunningLanes::default())
    }
}

struct SmallState {
    graph: Arc<Graph>,
    inputs: Inputs,
    states: Vec<Vec<f32>>,
    /// By number; elements in row-major order.
    values: Vec<Vec<f32>>,
    host: Vec<i64>,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

impl StepState for SmallState {
    fn step(&mut self, _: &AtomicBool) -> Result<()> {
        let graph = Arc::clone(&self.graph);
        self.host = vec![0; graph.host.len()];
        self.inputs.start(&mut self.host)?;
        graph.constants.iter().for_each(|(value, bytes)| self.values[value.0 as usize] = floats(bytes));
        // What the host can do first, then the block; early host values and checks are not met again.
        for node in graph.advance().iter().chain(&graph.block(graph.main).nodes) {
            let place = Place::Step { origin: node.origin, name: "operation" };
            self.node(&graph, node).map_err(|fault| fault.at(place))?;
        }
        Ok(())
    }
}

impl SmallState {
    fn shape(&self, value: Value) -> Vec<usize> {
        self.graph.ty(value).shape.iter().map(|size| size.eval(&self.host) as usize).collect()
    }

    fn node(&mut self, graph: &Graph, node: &Node) -> Result<(), Fault> {
        let of = |value: &Value| self.values[value.0 as usize].clone();
        let (out, result) = match &node.op {
            Op::Prim(prim) => (*prim.out(), self.prim(prim)?),
            Op::View { out, x, how } => (*out, self.view(*out, *x, how)?),
            Op::Read { out, state } => (*out, self.states[state.0 as usize].clone()),
            Op::Write { state, x } => {
                self.states[state.0 as usize] = of(x);
                return Ok(());
            }
            Op::Host(var) => {
                self.host[var.0 as usize] = graph.host[var.0 as usize].eval(&self.host, &self.inputs).unwrap_or(0);
                return Ok(());
            }
            Op::Check(check) => return Ok(check.hold(&self.host)?),
            other => return Err(Fault::Device(format!("{other:?} is not what this device can do"))),
        };
        self.values[out.0 as usize] = result;
        Ok(())
    }

    fn prim(&self, prim: &Prim<Value>) -> Result<Vec<f32>, Fault> {
        let of = |value: &Value| &self.values[value.0 as usize];
        Ok(match prim {
            Prim::Map { out, ins, expr } => {
                let count = self.shape(*out).iter().product();
                (0..count).map(|at| evaluate(expr, &ins.iter().map(|x| of(x)[at]).collect::<Vec<_>>())).collect()
            }
            // Of whole rows.
            Prim::Reduce { x, axes, fold: Fold::Sum, .. } if axes.as_slice() == [self.shape(*x).len() - 1] => {
                of(x).chunks(self.shape(*x)[axes[0]]).map(|row| row.iter().sum()).collect()
            }
            Prim::MatMul { a, b, lhs: None, rhs: None, .. } if self.shape(*a).len() == 2 => {
                let ([k, n], (a, b)) = (<[usize; 2]>::try_from(self.shape(*b)).unwrap(), (of(a), of(b)));
                let cell = |row: &[f32], column: usize| (0..k).map(|at| row[at] * b[at * n + column]).sum();
                a.chunks(k).flat_map(|row| (0..n).map(move |column| cell(row, column)).collect::<Vec<f32>>()).collect()
            }
            other => return Err(Fault::Device(format!("`{}` is not what this device can do", other.name()))),
        })
    }

    /// For each element of the result, the element of the operand that it is.
    fn view(&self, out: Value, x: Value, how: &ViewOp) -> Result<Vec<f32>, Fault> {
        let (from, to, values) = (self.shape(x), self.shape(out), &self.values[x.0 as usize]);
        let strides: Vec<usize> = (0..from.len()).map(|axis| from[axis + 1..].iter().product()).collect();
        let strides = match how {
            ViewOp::Reshape => return Ok(values.clone()),
            ViewOp::Permute(order) => order.iter().map(|axis| strides[*axis]).collect(),
            ViewOp::Broadcast => {
                let own = from.iter().zip(strides).map(|(size, stride)| if *size == 1 { 0 } else { stride });
                vec![0; to.len() - from.len()].into_iter().chain(own).collect::<Vec<usize>>()
            }
            other => return Err(Fault::Device(format!("{other:?} is not what this device can do"))),
        };
        let offset = |mut number: usize| {
            let axes = to.iter().zip(&strides).rev();
            axes.fold(0, |offset, (size, stride)| {
                let at = number % size;
                number /= size;
                offset + at * stride
            })
        };
        Ok((0..to.iter().product()).map(|number| values[offset(number)]).collect())
    }
}

fn evaluate(expr: &Expr, inputs: &[f32]) -> f32 {
    let mut results: Vec<f32> = Vec::new();
    for step in &expr.steps {
        let [a, b, _] = step.args.map(|arg| results.get(usize::from(arg)).copied().unwrap_or(0.0));
        results.push(match &step.op {
            Scalar::Load(input) => inputs[usize::from(*input)],
            Scalar::Float(value) => *value,
            Scalar::Unary(Unary::Neg) => -a,
            Scalar::Unary(Unary::Square) => a * a,
            Scalar::Binary(Binary::Add) => a + b,
            Scalar::Binary(Binary::Sub) => a - b,
            Scalar::Binary(Binary::Mul) => a * b,
            other => panic!("{other:?} is not what this device can do"),
        });
    }
    results.last().copied().unwrap_or(0.0)
}

impl State for SmallState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        if let (Some(bytes), Input::Tensor(value)) = (self.inputs.accept(input, value)?, &self.graph.inputs[input]) {
            self.values[value.0 as usize] = floats(bytes);
        }
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        let Output::Tensor(found) = self.graph.outputs[output] else { return Err(Fault::NotRun.into()) };
        let shape = self.shape(found).iter().map(|size| *size as u64).collect();
        let bytes = self.values[found.0 as usize].iter().flat_map(|number| number.to_le_bytes()).collect();
        *value = OutputValue::Tensor { dtype: DType::F32, shape, bytes };
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.states.iter_mut().for_each(|state| state.fill(0.0));
        Ok(())
    }
}

#[test]
fn a_dozen_programs_give_what_the_reference_gives() {
    programs::compare(&Small);
}
