//! Runs plans on the CPU: threaded, vectorised, with weights read in place from the mapped file.
//!
//! ```text
//! run.rs         dispatch: one line per primitive
//! map.rs …       one file per family of primitives: sizes, strides and tasks; safe code
//! lines.rs       computes tensors line by line along an axis
//! memory.rs      buffers; view.rs: views of them; element.rs: conversion of elements
//! simd/          kernels on slices, per instruction set
//! pool.rs        the thread pool
//! machine.rs     measures bandwidth and peak of the machine, to compare with
//! profile.rs     records where the time of steps goes
//! ```
//!
//! Invariant: unsafe code is in `simd` and `pool` only; all other modules work on slices. The result of a run does not depend on
//! the number of threads.

#[cfg(target_endian = "big")]
compile_error!("elements are stored in little-endian order, and kernels read them without conversion");

mod attention;
mod conv;
mod delta;
pub mod dense;
mod element;
pub mod finish;
pub mod gemm;
mod index;
mod lines;
pub mod machine;
mod map;
mod matmul;
mod memory;
mod order;
pub mod pool;
pub mod profile;
pub mod quant;
mod random;
mod reduce;
mod rows;
mod run;
pub mod sample;
pub mod simd;
mod view;

use memory::{ALIGN, Memory};
use pool::{Pool, Scratch, Workers};
use profile::Profiler;
use ptero_backend::{
    Backend, Change, DrivenState, Executable, Fault, InputTypes, InputValue, Inputs, Lane, Numbers, OutputValue, Place,
    Result, RunningLane, RunningLanes, State, StepState, Steps, check_graph, check_lanes, check_steps, run_block,
    run_steps,
};
use ptero_plan::graph::Graph;
use ptero_plan::plan::{Buffer, BufferKind, Input, Output, Plan};
use ptero_plan::prim::Buf;
use ptero_plan::{Arena, Capabilities, bufferize};
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::Bytes;
use run::{Program, Resources, Runner};
use simd::Isa;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use view::Tensor;

/// The CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
    /// Gets the profiler of each program that is compiled.
    profilers: Option<Sender<Arc<Profiler>>>,
    has_huge_pages: bool,
}

impl Cpu {
    /// Uses all cores and the best instruction set of this machine.
    pub fn new() -> Self {
        Self::with(std::thread::available_parallelism().map_or(1, usize::from), Isa::best())
    }

    /// Uses `threads` threads and one instruction set.
    pub fn with(threads: usize, isa: Isa) -> Self {
        Self { pool: Arc::new(Pool::new(threads)), isa, profilers: None, has_huge_pages: false }
    }

    /// Copies the weights of programs into huge pages, which are faster to read where the system has them; without this, weights
    /// stay in the mapped file, which all processes share.
    pub fn with_huge_pages(self, has_huge_pages: bool) -> Self {
        Self { has_huge_pages, ..self }
    }

    /// Same threads, but each program that is compiled has a profiler, which is sent to `profilers`.
    pub fn profiled(&self, profilers: Sender<Arc<Profiler>>) -> Self {
        Self { profilers: Some(profilers), ..self.clone() }
    }

    /// The threads, for work outside programs. While a program runs, such work runs on the calling thread only.
    pub fn workers<'a>(&'a self, scratch: &'a mut Scratch) -> Workers<'a> {
        Workers { pool: &self.pool, scratch }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { epilogues: true, ..Capabilities::default() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        let plan = Arc::new(bufferize(&graph, Arena::aligned(ALIGN as u64))?);
        prefetch_weights(&plan);
        let mut program = Program::new(Arc::clone(&plan), InputTypes::of(&graph), self.isa)?;
        if self.has_huge_pages {
            program.buffers.copy_to_huge_pages()?;
        }
        if let Some(init) = plan.init {
            let mut state = CpuState::new(self.clone(), Arc::new(program), 0)?;
            state.numbers.start_init()?;
            let mut fault = None;
            CpuState::run_lanes(&mut [RunningLane::once(&mut state, &mut fault)], init, &AtomicBool::new(false));
            fault.map_or(Ok(()), Err)?;
            let CpuState { resources, program: shared, .. } = state;
            program = Arc::into_inner(shared).ok_or(Fault::Contract("the init block runs alone"))?;
            program.buffers.take_derived(resources.memory)?;
        }
        if let Some(profilers) = &self.profilers {
            let profiler = Arc::new(Profiler::new(plan, Arc::clone(&self.pool)));
            program.profiler = Some(Arc::clone(&profiler));
            // Where nobody waits for it, nothing is recorded.
            let _ = profilers.send(profiler);
        }
        Ok(Box::new(Compiled {
            cpu: self.clone(),
            program: Arc::new(program),
            graph,
            running: RunningLanes::default(),
        }))
    }
}

/// Weights of at least this many bytes are prefetched by a thread of their own.
const PREFETCHED_BYTES: usize = 1 << 20;

/// Prefetches all weights in the background: the first run would fault in their pages one by one, which takes ten times as long.
fn prefetch_weights(plan: &Plan) {
    let constant =
        |buffer: &Buffer| if let BufferKind::Constant(bytes) = &buffer.kind { Some(bytes.clone()) } else { None };
    let weights: Vec<Bytes> = plan.buffers.iter().filter_map(constant).collect();
    if weights.iter().map(|bytes| bytes.len()).sum::<usize>() >= PREFETCHED_BYTES {
        // Without the thread, the first run is slower.
        let prefetch = move || weights.iter().for_each(Bytes::prefetch);
        let _ = std::thread::Builder::new().name("ptero-prefetch".to_owned()).spawn(prefetch);
    }
}

struct Compiled {
    cpu: Cpu,
    program: Arc<Program>,
    graph: Arc<Graph>,
    running: RunningLanes<CpuState>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(CpuState::new(self.cpu.clone(), Arc::clone(&self.program), seed)?))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        check_steps(&self.graph, steps)?;
        check_lanes(lanes, |state: &CpuState| Arc::ptr_eq(&state.program, &self.program))?;
        run_steps(lanes, steps, &self.running)
    }
}

struct CpuState {
    cpu: Cpu,
    program: Arc<Program>,
    resources: Resources,
    numbers: Numbers,
    inputs: Inputs,
    /// The memory holds the outputs of a step.
    has_outputs: bool,
}

/// An output of the last step.
enum Found<'a> {
    Int(i64),
    Tensor(Tensor<'a>),
}

impl CpuState {
    fn new(cpu: Cpu, program: Arc<Program>, seed: u64) -> Result<Self> {
        let resources = Resources {
            memory: Memory::new(&program.buffers)?,
            scratch: Scratch::default(),
            staging: Vec::new(),
            lists: matmul::LaneLists::default(),
            turns: rows::Turns::default(),
            keys: KeySequence::new(seed),
        };
        let numbers = Numbers::new(Arc::clone(&program.buffers.plan));
        let inputs = Inputs::new(Arc::clone(&program.types));
        Ok(Self { cpu, program, resources, numbers, inputs, has_outputs: false })
    }

    /// Runs a block with the numbers of steps that were started.
    fn run_lanes(lanes: &mut [RunningLane<'_, Self>], block: usize, stop: &AtomicBool) {
        let Some(first) = lanes.first() else { return };
        let (program, pool) = (Arc::clone(&first.state.program), Arc::clone(&first.state.cpu.pool));
        run_block(&program.buffers.plan, block, lanes, &mut Runner { program: &program, pool: &pool }, stop);
    }

    fn output(&self, output: usize) -> Result<Found<'_>> {
        let outputs = &self.program.buffers.plan.outputs;
        let found = outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count: outputs.len() })?;
        let here = |fault: Fault| fault.at(Place::Output(output));
        let bound = self.numbers.bound().filter(|_| self.has_outputs).ok_or_else(|| here(Fault::NotRun))?;
        Ok(match found {
            Output::Int(dim) => Found::Int(dim.eval(&bound.values)),
            Output::Tensor(view) => {
                let sources = self.resources.memory.sources(&self.program.buffers, bound);
                Found::Tensor(sources.tensor(view).map_err(here)?)
            }
        })
    }

    fn buffer_of(&self, input: usize) -> Result<Buf> {
        match self.program.buffers.plan.inputs.get(input) {
            Some(Input::Tensor { buf, .. }) => Ok(*buf),
            Some(Input::Int(_)) | None => Err(Fault::Contract("a tensor is stored in the buffer of its input").into()),
        }
    }
}

impl StepState for CpuState {
    fn step(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut fault = None;
        Self::step_together(&mut [RunningLane::once(self, &mut fault)], stop);
        fault.map_or(Ok(()), Err)
    }

    fn step_together(lanes: &mut [RunningLane<'_, Self>], stop: &AtomicBool) {
        for lane in lanes.iter_mut() {
            lane.state.has_outputs = false;
            *lane.fault = lane.state.numbers.start(&mut lane.state.inputs).err();
        }
        let Some(main) = lanes.first().map(|lane| lane.state.program.buffers.plan.main) else { return };
        Self::run_lanes(lanes, main, stop);
        for lane in lanes.iter_mut().filter(|lane| lane.fault.is_none()) {
            lane.state.numbers.finish(&mut lane.state.inputs);
            lane.state.has_outputs = true;
        }
    }

    fn token(&self, output: usize) -> Result<i64> {
        match self.output(output)? {
            Found::Int(number) => Ok(number),
            Found::Tensor(tensor) if tensor.view.count() == 1 && !tensor.is_float() => Ok(tensor.number(0)),
            Found::Tensor(_) => Err(Fault::Contract("a token is one integer").at(Place::Output(output))),
        }
    }

    fn set(&mut self, input: usize, change: Change) -> Result<()> {
        let buf = self.buffer_of(input)?;
        let memory = &mut self.resources.memory;
        let (bytes, width) = self.inputs.change(input, change, memory.own_bytes(buf))?;
        memory.fill(buf, bytes.split_at(width).0).map_err(|fault| fault.at(Place::Input(input)))
    }
}

impl DrivenState for CpuState {
    fn numbers(&mut self) -> (&mut Numbers, &Inputs) {
        (&mut self.numbers, &self.inputs)
    }
}

impl State for CpuState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.has_outputs = false;
        if let Some(bytes) = self.inputs.accept(input, value)? {
            let buf = self.buffer_of(input)?;
            self.resources.memory.fill(buf, bytes).map_err(|fault| fault.at(Place::Input(input)))?;
        }
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        match self.output(output)? {
            Found::Int(number) => *value = OutputValue::Int(number),
            Found::Tensor(tensor) => {
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(tensor.view.shape.iter().map(|&size| size as u64));
                tensor.append_to(&mut bytes);
                *value = OutputValue::tensor(tensor.dtype, shape, bytes);
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.resources.memory.reset(&self.program.buffers.plan)?;
        self.inputs.session_ints_mut().fill(0);
        self.has_outputs = false;
        Ok(())
    }

    fn rest(&mut self) -> Result<()> {
        self.has_outputs = false;
        let Resources { memory, scratch, staging, lists, turns, keys: _ } = &mut self.resources;
        // As in a new state.
        (*scratch, *staging) = (Scratch::default(), Vec::new());
        (*lists, *turns) = (matmul::LaneLists::default(), rows::Turns::default());
        Ok(memory.empty_arena()?)
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let mut fork = CpuState::new(self.cpu.clone(), Arc::clone(&self.program), seed)?;
        fork.resources.memory.copy_kept(&self.resources.memory, &self.program.buffers.plan)?;
        fork.inputs = self.inputs.clone();
        Ok(Box::new(fork))
    }
}
