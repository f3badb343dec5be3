//! The device: compiled graphs, and their states.

use crate::block::Runner;
use crate::memory::Memory;
use crate::tensor::{Tensor, evaluate_shape, zeros};
use ptero_backend::number::Element;
use ptero_backend::{
    Backend, Change, Executable, Fault, InputTypes, InputValue, Inputs, Lane, OutputValue, Place, Result, RunningLanes,
    State, StepState, Steps, check_graph, check_lanes, check_steps, run_steps,
};
use ptero_plan::Capabilities;
use ptero_plan::graph::{Graph, Input, Node, Op, Output, Type};
use ptero_plan::host::early;
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The backend that all others are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { epilogues: true, ..Capabilities::default() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        let mut values = vec![None; graph.values.len()];
        for (value, bytes) in &graph.constants {
            let ty = graph.ty(*value);
            // A constant of a type that is not computed with has no uses.
            let Ok(element) = Element::new(ty.dtype) else { continue };
            if let Some(slot) = values.get_mut(value.0 as usize) {
                *slot = Some(Tensor::contiguous(element, evaluate_shape(ty, &[])?, bytes.clone())?);
            }
        }
        let mut compiled = Compiled {
            inputs: Arc::new(InputTypes::of(&graph)),
            advance: graph.advance(),
            is_early: early(&graph.host),
            host: vec![0; graph.host.len()],
            values,
            graph,
        };
        compiled.init()?;
        Ok(Box::new(Shared(Arc::new(compiled))))
    }
}

/// A graph and what all its sessions share.
#[derive(Debug)]
struct Compiled {
    graph: Arc<Graph>,
    inputs: Arc<InputTypes>,
    /// The operations of the host that run before anything else.
    advance: Vec<Node>,
    /// By host value: `true` if it is known before anything runs.
    is_early: Vec<bool>,
    /// The host values of the init block.
    host: Vec<i64>,
    /// The constants, and the values of the init block.
    values: Vec<Option<Tensor>>,
}

impl Compiled {
    /// Runs the init block, before there are inputs and states.
    fn init(&mut self) -> Result<()> {
        let Some(init) = self.graph.init else { return Ok(()) };
        let (inputs, stop) = (Inputs::new(Arc::clone(&self.inputs)), AtomicBool::new(false));
        let runner = Runner { inputs: &inputs, is_early: &self.is_early, stop: &stop };
        let mut memory = Memory {
            graph: &self.graph,
            values: std::mem::take(&mut self.values),
            host: std::mem::take(&mut self.host),
            states: &mut [],
            keys: &mut KeySequence::new(0),
        };
        // Checks compare the inputs of a call.
        let values = self.advance.iter().filter(|node| matches!(node.op, Op::Host(_)));
        let values: Vec<Node> = values.cloned().collect();
        runner.advance(&mut memory, &values)?;
        runner.block(&mut memory, init)?;
        (self.values, self.host) = (memory.values, memory.host);
        Ok(())
    }

    /// The state tensors of a new session.
    fn states(&self) -> Result<Vec<Tensor>> {
        let zeroed = |(index, ty): (usize, &Type)| {
            let tensor = || {
                let (element, shape) = (Element::new(ty.dtype)?, evaluate_shape(ty, &[])?);
                let bytes = zeros(shape.iter().product::<usize>() * element.bytes())?;
                Tensor::contiguous(element, shape, Bytes::from(bytes))
            };
            tensor().map_err(|fault: Fault| fault.at(Place::State(index)))
        };
        self.graph.states.iter().enumerate().map(zeroed).collect()
    }
}

struct Shared(Arc<Compiled>);

impl Executable for Shared {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let compiled = Arc::clone(&self.0);
        let (states, inputs) = (compiled.states()?, Inputs::new(Arc::clone(&compiled.inputs)));
        let given = vec![Bytes::default(); compiled.graph.inputs.len()];
        Ok(Box::new(ReferenceState { states, inputs, given, keys: KeySequence::new(seed), outputs: None, compiled }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        check_steps(&self.0.graph, steps)?;
        check_lanes(lanes, |state: &ReferenceState| Arc::ptr_eq(&state.compiled, &self.0))?;
        run_steps::<ReferenceState>(lanes, steps, &RunningLanes::default())
    }
}

/// The state of a session.
struct ReferenceState {
    compiled: Arc<Compiled>,
    states: Vec<Tensor>,
    inputs: Inputs,
    /// The bytes of each input that is a tensor.
    given: Vec<Bytes>,
    keys: KeySequence,
    /// The outputs of the last step, if it succeeded.
    outputs: Option<Vec<Produced>>,
}

/// An output of the last step.
enum Produced {
    Tensor(DType, Tensor),
    Int(i64),
}

impl ReferenceState {
    fn run(&mut self, stop: &AtomicBool) -> Result<Vec<Produced>> {
        let compiled = Arc::clone(&self.compiled);
        let graph = &*compiled.graph;
        let mut host = vec![0; graph.host.len()];
        self.inputs.start(&mut host)?;
        let later = host.iter_mut().zip(&compiled.host).zip(&compiled.is_early).filter(|(_, is_early)| !**is_early);
        later.for_each(|((number, at_init), _)| *number = *at_init);
        let mut memory =
            Memory { graph, values: compiled.values.clone(), host, states: &mut self.states, keys: &mut self.keys };
        let runner = Runner { inputs: &self.inputs, is_early: &compiled.is_early, stop };
        runner.advance(&mut memory, &compiled.advance)?;
        for (index, (input, bytes)) in graph.inputs.iter().zip(&self.given).enumerate() {
            let Input::Tensor(value) = input else { continue };
            let tensor = || Tensor::contiguous(memory.element(*value)?, memory.shape(*value)?, bytes.clone());
            let defined = tensor().and_then(|tensor| memory.define(*value, tensor));
            defined.map_err(|fault| fault.at(Place::Input(index)))?;
        }
        let [at_start, at_end] = [true, false].map(|is_start| -> Vec<i64> {
            let numbers = graph.session_ints.iter().map(|int| if is_start { &int.at_start } else { &int.at_end });
            numbers.map(|number| number.eval(&memory.host)).collect()
        });
        self.inputs.session_ints_mut().copy_from_slice(&at_start);
        let runner = Runner { inputs: &self.inputs, is_early: &compiled.is_early, stop };
        runner.block(&mut memory, graph.main)?;
        let output = |(index, output): (usize, &Output)| match output {
            Output::Int(number) => Ok(Produced::Int(number.eval(&memory.host))),
            Output::Tensor(value) => {
                let tensor = memory.tensor(*value).map_err(|fault| fault.at(Place::Output(index)))?;
                Ok(Produced::Tensor(graph.ty(*value).dtype, tensor.clone()))
            }
        };
        let outputs = graph.outputs.iter().enumerate().map(output).collect::<Result<_>>()?;
        self.inputs.session_ints_mut().copy_from_slice(&at_end);
        Ok(outputs)
    }

    fn output(&self, output: usize) -> Result<&Produced> {
        let count = self.compiled.graph.outputs.len();
        if output >= count {
            return Err(Fault::NoSuch { what: "output", index: output, count }.into());
        }
        let outputs = self.outputs.as_ref().and_then(|outputs| outputs.get(output));
        outputs.ok_or_else(|| Fault::NotRun.at(Place::Output(output)))
    }
}

impl StepState for ReferenceState {
    fn step(&mut self, stop: &AtomicBool) -> Result<()> {
        self.outputs = None;
        self.outputs = Some(self.run(stop)?);
        Ok(())
    }

    fn token(&self, output: usize) -> Result<i64> {
        let token = match self.output(output)? {
            Produced::Tensor(_, tensor) => tensor.numbers().map(|number| number.int()).collect(),
            Produced::Int(_) => Vec::new(),
        };
        match token.as_slice() {
            [token] => Ok(*token),
            _ => Err(Fault::Contract("a token is one element").at(Place::Output(output))),
        }
    }

    fn set(&mut self, input: usize, change: Change) -> Result<()> {
        let count = self.given.len();
        let given = self.given.get_mut(input).ok_or(Fault::NoSuch { what: "input", index: input, count })?;
        let (next, width) = self.inputs.change(input, change, given)?;
        *given = Bytes::from(next.iter().copied().take(width).collect::<Vec<u8>>());
        Ok(())
    }
}

impl State for ReferenceState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        let bytes = self.inputs.accept(input, value)?;
        if let (Some(slot), Some(bytes)) = (self.given.get_mut(input), bytes) {
            *slot = Bytes::from(bytes.to_vec());
        }
        self.outputs = None;
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        match self.output(output)? {
            Produced::Int(number) => *value = OutputValue::Int(*number),
            Produced::Tensor(dtype, tensor) => {
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(tensor.shape().iter().map(|&size| size as u64));
                bytes.resize(tensor.layout.count() * tensor.element.bytes(), 0);
                for (index, number) in tensor.numbers().enumerate() {
                    tensor.element.store(&mut bytes, index, number);
                }
                *value = OutputValue::tensor(*dtype, shape, bytes);
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.states = self.compiled.states()?;
        self.inputs.session_ints_mut().fill(0);
        self.outputs = None;
        Ok(())
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let (compiled, states) = (Arc::clone(&self.compiled), self.states.clone());
        let (inputs, given) = (self.inputs.clone(), self.given.clone());
        Ok(Box::new(ReferenceState { compiled, states, inputs, given, keys: KeySequence::new(seed), outputs: None }))
    }
}
