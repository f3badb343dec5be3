//! A device that runs a program without its sampler: the logits are read out and sampled on the host. Everything else is the
//! same, so times differ only by where tokens are sampled.

use anyhow::Result;
use ptero_backend::{
    Backend, Executable, Fault, InputValue, Lane, OutputValue, RunningLanes, State, StepState, Steps, run_once,
    run_steps,
};
use ptero_cpu::Cpu;
use ptero_cpu::pool::Scratch;
use ptero_cpu::sample::{Drawn, Elements, LogitRows, Parameters, sample_rows};
use ptero_engine::Settings;
use ptero_plan::Capabilities;
use ptero_plan::graph::{Graph, Input, Op, Output, Uses, Value};
use ptero_plan::prim::{Prim, Sample};
use ptero_pte::DType;
use ptero_sampling::noise::{Stream, seed_key};
use ptero_sampling::reference::{Keys, sample_row};
use ptero_tensor::decode_floats;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A sampler on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostSampler {
    /// The sampler of the CPU device: vectorised, on the threads of the host.
    Fast,
    /// The plain code that defines the result; the engine uses it for programs that return logits.
    Reference,
}

/// The device.
pub(super) struct HostSampled {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) host: Cpu,
    pub(super) sampler: HostSampler,
}

impl Backend for HostSampled {
    fn name(&self) -> &'static str {
        "host-sampled"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { burst: 1, ..self.inner.capabilities() }
    }

    fn compile(&self, graph: Arc<Graph>) -> ptero_backend::Result<Box<dyn Executable>> {
        let (graph, ports) = without_sampler(&graph)?;
        let inner = Arc::from(self.inner.compile(Arc::new(graph))?);
        Ok(Box::new(HostExecutable { inner, ports, host: self.host.clone(), sampler: self.sampler }))
    }
}

/// The indices of the sampler's inputs and of its output.
#[derive(Clone, Copy, Debug)]
struct Ports {
    output: usize,
    temperature: usize,
    top_k: usize,
    top_p: usize,
    seed: usize,
}

/// Removes the sampler from a graph, which then returns the logits instead of the token.
fn without_sampler(graph: &Graph) -> Result<(Graph, Ports), Fault> {
    let mut graph = graph.clone();
    let main = graph.main;
    let nodes = &mut graph.block_mut(main).nodes;
    let at = nodes.iter().position(|node| matches!(node.op, Op::Prim(Prim::Sample(_)))).ok_or(NO_SAMPLER)?;
    let Op::Prim(Prim::Sample(sample)) = nodes.remove(at).op else { return Err(NO_SAMPLER) };
    let Sample { out, logits, temperature, top_k, top_p, seed, adjust: None, log_probabilities: None, .. } = *sample
    else {
        return Err(NO_SAMPLER);
    };
    let uses = Uses::of(&graph);
    // Inputs and the token may be reshaped or converted on their way.
    let root = |mut value: Value| loop {
        match uses.node(&graph, value).map(|node| &node.op) {
            Some(Op::View { x, .. }) => value = *x,
            Some(Op::Prim(Prim::Map { ins, .. })) => match ins.as_slice() {
                [x] => value = *x,
                _ => return value,
            },
            _ => return value,
        }
    };
    let is_token = |output: &Output| matches!(output, Output::Tensor(value) if root(*value) == out);
    let output = graph.outputs.iter().position(is_token).ok_or(NOT_LAST)?;
    let input = |value: Value| {
        let value = root(value);
        let is_value = |input: &Input| matches!(input, Input::Tensor(own) if *own == value);
        graph.inputs.iter().position(is_value).ok_or(NOT_INPUTS)
    };
    let ports = Ports {
        output,
        temperature: input(temperature)?,
        top_k: input(top_k)?,
        top_p: input(top_p)?,
        seed: input(seed.ok_or(NOT_INPUTS)?)?,
    };
    graph.outputs.get_mut(output).into_iter().for_each(|output| *output = Output::Tensor(logits));
    ptero_plan::passes::drop_unused(&mut graph);
    Ok((graph, ports))
}

const NO_SAMPLER: Fault = Fault::Contract("the sampling head is one step that can move to the host");
const NOT_LAST: Fault = Fault::Contract("the sampled token is an output, and nothing else reads it");
const NOT_INPUTS: Fault = Fault::Contract("temperature, top-k, top-p and a seed are inputs");
const NOT_LOGITS: Fault = Fault::Contract("logits are floats");

#[derive(Clone)]
struct HostExecutable {
    inner: Arc<dyn Executable>,
    ports: Ports,
    host: Cpu,
    sampler: HostSampler,
}

impl Executable for HostExecutable {
    fn state(&self, seed: u64) -> ptero_backend::Result<Box<dyn State>> {
        Ok(Box::new(HostState {
            state: self.inner.state(seed)?,
            executable: self.clone(),
            scratch: Scratch::default(),
            settings: Settings::GREEDY,
            seed: 0,
            logits: OutputValue::Int(0),
            row: Vec::new(),
            token: 0,
        }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> ptero_backend::Result<()> {
        run_steps::<HostState>(lanes, steps, &RunningLanes::default())
    }
}

struct HostState {
    state: Box<dyn State>,
    executable: HostExecutable,
    scratch: Scratch,
    settings: Settings,
    seed: i64,
    logits: OutputValue,
    /// The logits in f32, if they have to be copied.
    row: Vec<f32>,
    token: i64,
}

impl State for HostState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> ptero_backend::Result<()> {
        if let InputValue::Tensor { bytes, .. } = value {
            let float = || bytes.first_chunk().map_or(0.0, |raw| f32::from_le_bytes(*raw));
            let int = || bytes.first_chunk().map_or(0, |raw| i64::from_le_bytes(*raw));
            let ports = self.executable.ports;
            match input {
                _ if input == ports.temperature => self.settings.temperature = float(),
                _ if input == ports.top_k => self.settings.top_k = int(),
                _ if input == ports.top_p => self.settings.top_p = float(),
                _ if input == ports.seed => self.seed = int(),
                _ => {}
            }
        }
        self.state.write(input, value)
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> ptero_backend::Result<()> {
        if output != self.executable.ports.output {
            return self.state.read_into(output, value);
        }
        let (mut shape, mut bytes) = value.take_memory();
        shape.push(1);
        bytes.extend_from_slice(&self.token.to_le_bytes());
        *value = OutputValue::Tensor { dtype: DType::I64, shape, bytes };
        Ok(())
    }

    fn reset(&mut self) -> ptero_backend::Result<()> {
        self.state.reset()
    }
}

impl StepState for HostState {
    fn step(&mut self, stop: &AtomicBool) -> ptero_backend::Result<()> {
        let HostExecutable { inner, ports, host, sampler } = &self.executable;
        run_once(inner.as_ref(), self.state.as_mut(), stop)?;
        self.state.read_into(ports.output, &mut self.logits)?;
        let OutputValue::Tensor { dtype, bytes, .. } = &self.logits else { return Err(NOT_LOGITS.into()) };
        match sampler {
            HostSampler::Fast => {
                let logits = elements(*dtype, bytes, &mut self.row)?;
                let count = bytes.len() / dtype.size();
                let (rows, mut drawn) = (LogitRows::contiguous(logits, count), [Drawn::NONE]);
                let mut workers = host.workers(&mut self.scratch);
                let keys = Keys::Shared(seed_key(self.seed));
                let settings = [self.settings];
                sample_rows(&mut workers, host.isa(), &rows, &Parameters::new(&settings, keys), &mut drawn);
                self.token = i64::from(drawn[0].token);
            }
            HostSampler::Reference => {
                copy(*dtype, bytes, &mut self.row)?;
                let stream = Stream::of_row(seed_key(self.seed), self.row.len());
                let token = sample_row(&self.row, &self.settings, &stream);
                self.token = i64::try_from(token).unwrap_or(i64::MAX);
            }
        }
        Ok(())
    }

    fn token(&self, _: usize) -> ptero_backend::Result<i64> {
        Ok(self.token)
    }
}

/// Returns the logits in place, or a copy if they are not aligned.
fn elements<'a>(dtype: DType, bytes: &'a [u8], row: &'a mut Vec<f32>) -> Result<Elements<'a>, Fault> {
    let in_place = match dtype {
        DType::F32 => bytemuck::try_cast_slice(bytes).map(Elements::F32),
        DType::F16 => bytemuck::try_cast_slice(bytes).map(Elements::F16),
        DType::Bf16 => bytemuck::try_cast_slice(bytes).map(Elements::Bf16),
        _ => return Err(NOT_LOGITS),
    };
    in_place.or_else(|_| copy(dtype, bytes, row).map(|()| Elements::F32(row)))
}

/// Copies the logits to `row`.
fn copy(dtype: DType, bytes: &[u8], row: &mut Vec<f32>) -> Result<(), Fault> {
    row.resize(bytes.len() / dtype.size(), 0.0);
    if decode_floats(dtype, bytes, row) { Ok(()) } else { Err(NOT_LOGITS) }
}
