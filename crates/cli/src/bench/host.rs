//! A device that runs all of a program but its sampler: the logits are read out, and the token is drawn on the host. Everything
//! else is the same, so that what differs in time is where tokens are drawn.

use anyhow::Result;
use bytemuck::Pod;
use half::{bf16, f16};
use ptero_backend::{Backend, Executable, Fault, InputValue, OutputValue, State};
use ptero_cpu::Cpu;
use ptero_cpu::pool::Scratch;
use ptero_cpu::sample::{Elements, Rows, sample_rows};
use ptero_engine::Settings;
use ptero_plan::plan::{Input, Output, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, Sample};
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

    fn compile(&self, plan: Arc<Plan>) -> ptero_backend::Result<Box<dyn Executable>> {
        let (plan, ports) = without_sampler(&plan)?;
        let inner = self.inner.compile(Arc::new(plan))?;
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

/// The plan without its sampler: it gives the logits in place of the token.
fn without_sampler(plan: &Plan) -> Result<(Plan, Ports), Fault> {
    let mut plan = plan.clone();
    let is_sampler = |step: &PlanStep| matches!(step, PlanStep::Device(Prim::Sample(_)));
    let block = plan.blocks.get_mut(plan.main).ok_or(NO_SAMPLER)?;
    let at = block.steps.iter().position(is_sampler).ok_or(NO_SAMPLER)?;
    let PlanStep::Device(Prim::Sample(sample)) = block.steps.remove(at) else { return Err(NO_SAMPLER) };
    block.origin.remove(at);
    let Sample { out, logits, temperature, top_k, top_p, seed } = *sample;
    let is_token = |output: &Output| matches!(output, Output::Tensor(view) if view.buf == out.buf);
    let output = plan.outputs.iter().position(is_token).ok_or(NOT_LAST)?;
    plan.outputs.get_mut(output).into_iter().for_each(|output| *output = Output::Tensor(logits.clone()));
    let is_read =
        |step: &PlanStep| matches!(step, PlanStep::Device(prim) if prim.reads().iter().any(|view| view.buf == out.buf));
    if plan.blocks.iter().flat_map(|block| &block.steps).any(is_read) {
        return Err(NOT_LAST);
    }
    let input = |buf: Buf| {
        let is_it = |input: &Input| matches!(input, Input::Tensor { buf: own, .. } if *own == buf);
        plan.inputs.iter().position(is_it).ok_or(NOT_INPUTS)
    };
    let ports = Ports {
        output,
        temperature: input(temperature.buf)?,
        top_k: input(top_k.buf)?,
        top_p: input(top_p.buf)?,
        seed: input(seed.ok_or(NOT_INPUTS)?.buf)?,
    };
    Ok((plan, ports))
}

const NO_SAMPLER: Fault = Fault::Contract("the program's head is one step that can be moved to the host");
const NOT_LAST: Fault = Fault::Contract("the token that is drawn is an output, and nothing else reads it");
const NOT_INPUTS: Fault = Fault::Contract("temperature, top-k, top-p and a seed are inputs");
const NOT_LOGITS: Fault = Fault::Contract("logits are floats");

struct HostExecutable {
    inner: Box<dyn Executable>,
    ports: Ports,
    host: Cpu,
    drawer: Drawer,
}

impl Executable for HostExecutable {
    fn state(&self, seed: u64) -> ptero_backend::Result<Box<dyn State>> {
        Ok(Box::new(HostState {
            inner: self.inner.state(seed)?,
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
}

struct HostState {
    inner: Box<dyn State>,
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
        self.inner.write(input, value)
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> ptero_backend::Result<()> {
        self.inner.run_until(cancelled)?;
        self.inner.read_into(self.ports.output, &mut self.logits)?;
        let OutputValue::Tensor { dtype, bytes, .. } = &self.logits else { return Err(NOT_LOGITS.into()) };
        match self.drawer {
            Drawer::Fast => {
                let logits = elements(*dtype, bytes, &mut self.row)?;
                let count = bytes.len() / usize::try_from(dtype.bytes()).unwrap_or(1).max(1);
                let (rows, mut token) = (Rows::contiguous(logits, count), [0]);
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

    fn read_into(&self, output: usize, value: &mut OutputValue) -> ptero_backend::Result<()> {
        if output != self.ports.output {
            return self.inner.read_into(output, value);
        }
        let (mut shape, mut bytes) = value.take_memory();
        shape.push(1);
        bytes.extend_from_slice(&self.token.to_le_bytes());
        *value = OutputValue::Tensor { dtype: DType::I64, shape, bytes };
        Ok(())
    }

    fn reset(&mut self) {
        self.inner.reset();
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
