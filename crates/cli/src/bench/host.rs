//! A device that runs all of a program but its sampler: the logits are read out, and the token is drawn on the host. Everything
//! else is the same, so that what differs in time is where tokens are drawn.

use anyhow::Result;
use bytemuck::Pod;
use half::{bf16, f16};
use ptero_backend::{
    Backend, Executable, Fault, InputValue, Lane, OutputValue, State, StepState, Steps, run_in_turn, run_once,
};
use ptero_cpu::Cpu;
use ptero_cpu::pool::Scratch;
use ptero_cpu::sample::{Elements, LogitRows, sample_rows};
use ptero_engine::Settings;
use ptero_plan::Capabilities;
use ptero_plan::graph::{Graph, Input, Op, Output, Uses, Value};
use ptero_plan::prim::{Prim, Sample};
use ptero_pte::DType;
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::{Keys, sample_row};
use ptero_sampling::threefry;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Who draws on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawer {
    /// What programs on the CPU use: vectorised, on the threads of the host.
    Fast,
    /// The contract written down, which the engine draws with where a program returns logits.
    Reference,
}

/// The device.
pub(super) struct HostSampled {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) host: Cpu,
    pub(super) drawer: Drawer,
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
        Ok(Box::new(HostExecutable { inner, ports, host: self.host.clone(), drawer: self.drawer }))
    }
}

/// Where the sampler's tensors enter and leave.
#[derive(Clone, Copy, Debug)]
struct Ports {
    output: usize,
    temperature: usize,
    top_k: usize,
    top_p: usize,
    seed: usize,
}

/// The graph without its sampler: it gives the logits in place of the token.
fn without_sampler(graph: &Graph) -> Result<(Graph, Ports), Fault> {
    let mut graph = graph.clone();
    let main = graph.main;
    let nodes = &mut graph.block_mut(main).nodes;
    let at = nodes.iter().position(|node| matches!(node.op, Op::Prim(Prim::Sample(_)))).ok_or(NO_SAMPLER)?;
    let Op::Prim(Prim::Sample(sample)) = nodes.remove(at).op else { return Err(NO_SAMPLER) };
    let Sample { out, logits, temperature, top_k, top_p, seed } = *sample;
    let uses = Uses::of(&graph);
    // The token may be seen in another shape or type on its way out.
    let shown = |mut value: Value| loop {
        match uses.node(&graph, value).map(|node| &node.op) {
            Some(Op::View { x, .. }) => value = *x,
            Some(Op::Prim(Prim::Map { ins, .. })) => match ins.as_slice() {
                [x] => value = *x,
                _ => return value,
            },
            _ => return value,
        }
    };
    let is_token = |output: &Output| matches!(output, Output::Tensor(value) if shown(*value) == out);
    let output = graph.outputs.iter().position(is_token).ok_or(NOT_LAST)?;
    let input = |value: Value| {
        let root = shown(value);
        let is_it = |input: &Input| matches!(input, Input::Tensor(own) if *own == root);
        graph.inputs.iter().position(is_it).ok_or(NOT_INPUTS)
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

const NO_SAMPLER: Fault = Fault::Contract("the program's head is one step that can be moved to the host");
const NOT_LAST: Fault = Fault::Contract("the token that is drawn is an output, and nothing else reads it");
const NOT_INPUTS: Fault = Fault::Contract("temperature, top-k, top-p and a seed are inputs");
const NOT_LOGITS: Fault = Fault::Contract("logits are floats");

struct HostExecutable {
    inner: Arc<dyn Executable>,
    ports: Ports,
    host: Cpu,
    drawer: Drawer,
}

impl Executable for HostExecutable {
    fn state(&self, seed: u64) -> ptero_backend::Result<Box<dyn State>> {
        Ok(Box::new(HostState {
            state: self.inner.state(seed)?,
            inner: Arc::clone(&self.inner),
            ports: self.ports,
            host: self.host.clone(),
            drawer: self.drawer,
            scratch: Scratch::default(),
            settings: Settings::GREEDY,
            seed: 0,
            logits: OutputValue::Int(0),
            row: Vec::new(),
            token: 0,
        }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> ptero_backend::Result<()> {
        run_in_turn::<HostState>(lanes, steps)
    }
}

struct HostState {
    state: Box<dyn State>,
    inner: Arc<dyn Executable>,
    ports: Ports,
    host: Cpu,
    drawer: Drawer,
    scratch: Scratch,
    settings: Settings,
    seed: i64,
    logits: OutputValue,
    /// The logits as numbers, where they have to be copied.
    row: Vec<f32>,
    token: i64,
}

impl State for HostState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> ptero_backend::Result<()> {
        if let InputValue::Tensor { bytes, .. } = value {
            let float = || bytes.first_chunk().map_or(0.0, |raw| f32::from_le_bytes(*raw));
            let int = || bytes.first_chunk().map_or(0, |raw| i64::from_le_bytes(*raw));
            match input {
                _ if input == self.ports.temperature => self.settings.temperature = float(),
                _ if input == self.ports.top_k => self.settings.top_k = int(),
                _ if input == self.ports.top_p => self.settings.top_p = float(),
                _ if input == self.ports.seed => self.seed = int(),
                _ => {}
            }
        }
        self.state.write(input, value)
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> ptero_backend::Result<()> {
        if output != self.ports.output {
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
        run_once(self.inner.as_ref(), self.state.as_mut(), stop)?;
        self.state.read_into(self.ports.output, &mut self.logits)?;
        let OutputValue::Tensor { dtype, bytes, .. } = &self.logits else { return Err(NOT_LOGITS.into()) };
        match self.drawer {
            Drawer::Fast => {
                let logits = elements(*dtype, bytes, &mut self.row)?;
                let count = bytes.len() / usize::try_from(dtype.bytes()).unwrap_or(1).max(1);
                let (rows, mut token) = (LogitRows::contiguous(logits, count), [0]);
                let mut workers = self.host.workers(&mut self.scratch);
                let keys = Keys::Shared(seed_key(self.seed));
                sample_rows(&mut workers, self.host.isa(), &rows, &[self.settings], keys, &mut token);
                self.token = token.map(i64::from)[0];
            }
            Drawer::Reference => {
                copy(*dtype, bytes, &mut self.row)?;
                let (key, count) = (seed_key(self.seed), self.row.len());
                let token = sample_row(&self.row, &self.settings, |at| threefry::word(key, count, at));
                self.token = i64::try_from(token).unwrap_or(i64::MAX);
            }
        }
        Ok(())
    }

    fn token(&self, _: usize) -> ptero_backend::Result<i64> {
        Ok(self.token)
    }
}

/// The logits where they lie, or copied where they do not lie as their type must.
fn elements<'a>(dtype: DType, bytes: &'a [u8], row: &'a mut Vec<f32>) -> Result<Elements<'a>, Fault> {
    let in_place = match dtype {
        DType::F32 => cast(bytes).map(Elements::F32),
        DType::F16 => cast(bytes).map(Elements::F16),
        DType::Bf16 => cast(bytes).map(Elements::Bf16),
        _ => None,
    };
    match in_place {
        Some(elements) => Ok(elements),
        None => copy(dtype, bytes, row).map(|()| Elements::F32(row)),
    }
}

fn cast<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    bytemuck::try_cast_slice(bytes).ok()
}

fn copy(dtype: DType, bytes: &[u8], row: &mut Vec<f32>) -> Result<(), Fault> {
    row.clear();
    match dtype {
        DType::F32 => row.extend(bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw))),
        DType::F16 => row.extend(bytes.as_chunks().0.iter().map(|raw| f16::from_le_bytes(*raw).to_f32())),
        DType::Bf16 => row.extend(bytes.as_chunks().0.iter().map(|raw| bf16::from_le_bytes(*raw).to_f32())),
        _ => return Err(NOT_LOGITS),
    }
    Ok(())
}
