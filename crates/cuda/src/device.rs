//! NVIDIA GPUs as a device of programs.

use crate::ahead::Ahead;
use crate::cache::Cache;
use crate::capture::run_captured;
use crate::context::{Device, DeviceInfo};
use crate::error::Result as CudaResult;
use crate::kernels::Kernels;
use crate::kernels::join::MOST_JOINED;
use crate::memory::LaneMemory;
use crate::program::{ALIGN, Program};
use crate::run::{Runner, latched};
use crate::step::Scratch;
use crate::stream::Stream;
use ptero_backend::{
    Backend, Change, DrivenState, Executable, Fault, InputTypes, InputValue, Inputs, Lane, Loading, Numbers,
    OutputValue, Place, Result, RunningLane, RunningLanes, State, StepState, Steps, check_graph, check_lanes,
    check_steps, integer, run_steps,
};
use ptero_plan::bound::BoundView;
use ptero_plan::graph::Graph;
use ptero_plan::plan::{Input, Output};
use ptero_plan::prim::Buf;
use ptero_plan::{Arena, Capabilities, bufferize};
use ptero_sampling::threefry;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An NVIDIA GPU.
#[derive(Clone, Debug)]
pub struct Cuda {
    opened: Arc<Opened>,
    loading: Loading,
}

#[derive(Debug)]
pub(crate) struct Opened {
    /// The work of all lanes is done in order: those that run at once share launches.
    pub(crate) stream: Stream,
    pub(crate) kernels: Kernels,
    scratch: Mutex<Scratch>,
}

impl Opened {
    /// Work is put on the stream by one thread at a time: the one that holds this.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cuda {
    /// Opens the first GPU.
    ///
    /// # Errors
    /// When there is no driver, it is too old, or it has no device.
    pub fn new() -> CudaResult<Self> {
        Self::open(0)
    }

    /// Opens a GPU by its number in [`crate::devices`].
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub fn open(ordinal: usize) -> CudaResult<Self> {
        Self::open_with(ordinal, Cache::of_user())
    }

    /// As [`Cuda::open`], with a cache of compiled kernels of the caller's choice.
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub fn open_with(ordinal: usize, cache: Cache) -> CudaResult<Self> {
        let device = Device::open(ordinal)?;
        device.info().check()?;
        let stream = device.stream()?;
        let scratch = Mutex::new(Scratch::new(&stream)?);
        let opened = Arc::new(Opened { stream, kernels: Kernels::new(device, cache), scratch });
        Ok(Self { opened, loading: Loading::IGNORED })
    }

    /// Reports the upload of weights.
    pub fn with_loading(self, loading: Loading) -> Self {
        Self { loading, ..self }
    }

    /// What is known of the GPU.
    pub fn info(&self) -> &DeviceInfo {
        self.opened.stream.device().info()
    }

    /// The memory that is free on the GPU.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn free_bytes(&self) -> CudaResult<u64> {
        self.opened.stream.device().free_bytes()
    }

    /// How many kernels were launched for steps of programs, but for draws; repetitions of a captured call do not count.
    pub fn launches(&self) -> u64 {
        self.opened.turn().together.launches
    }

    /// How many steps of programs were done by the launch of another step; repetitions of a captured call do not count.
    pub fn joined_steps(&self) -> u64 {
        self.opened.turn().joined_steps
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { epilogues: true, burst: 8, ..Capabilities::default() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        let plan = Arc::new(bufferize(&graph, Arena { align: ALIGN, lingering: MOST_JOINED })?);
        let opened = &self.opened;
        let turn = opened.turn();
        let program = Program::new(Arc::clone(&plan), InputTypes::of(&graph), &opened.stream, &self.loading)?;
        drop(turn);
        let program = Arc::new(program);
        if let Some(init) = plan.init {
            let mut state = CudaState::new(Arc::clone(opened), Arc::clone(&program), 0)?;
            state.numbers.start_init()?;
            let mut fault = None;
            CudaState::run_lanes(&mut [RunningLane::once(&mut state, &mut fault)], init, &AtomicBool::new(false));
            fault.map_or(Ok(()), Err)?;
        }
        Ok(Box::new(Compiled { opened: Arc::clone(opened), program, graph, running: RunningLanes::default() }))
    }
}

struct Compiled {
    opened: Arc<Opened>,
    program: Arc<Program>,
    graph: Arc<Graph>,
    running: RunningLanes<CudaState>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(CudaState::new(Arc::clone(&self.opened), Arc::clone(&self.program), seed)?))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        check_steps(&self.graph, steps)?;
        check_lanes(lanes, |state: &CudaState| Arc::ptr_eq(&state.program, &self.program))?;
        match Ahead::new(&self.program, steps, lanes) {
            Some(ahead) => ahead.run(lanes, steps.count),
            None => run_steps(lanes, steps, &self.running)?,
        }
        Ok(())
    }
}

/// The state of a session: a lane.
pub(crate) struct CudaState {
    pub(crate) opened: Arc<Opened>,
    pub(crate) program: Arc<Program>,
    pub(crate) memory: LaneMemory,
    pub(crate) numbers: Numbers,
    pub(crate) inputs: Inputs,
    /// By input: its bytes, if they are few. Tokens and positions change from step to step.
    pub(crate) small_inputs: Vec<Vec<u8>>,
    /// The memory holds the outputs of a step.
    pub(crate) has_outputs: bool,
}

/// Inputs up to this many bytes are also kept on the host.
const SMALL_INPUT: usize = 8;

/// An output of the last step.
enum Found<'a> {
    Int(i64),
    Tensor(&'a BoundView),
}

impl CudaState {
    fn new(opened: Arc<Opened>, program: Arc<Program>, seed: u64) -> Result<Self> {
        let turn = opened.turn();
        let memory = LaneMemory::new(&program, &opened.stream, threefry::key(seed)).map_err(|fault| match fault {
            Fault::OutOfMemory { .. } => program.no_room(&opened.stream),
            other => other,
        })?;
        drop(turn);
        let numbers = Numbers::new(Arc::clone(&program.plan));
        let inputs = Inputs::new(Arc::clone(&program.types));
        let small_inputs = vec![Vec::new(); program.plan.inputs.len()];
        Ok(Self { opened, program, memory, numbers, inputs, small_inputs, has_outputs: false })
    }

    /// Computes the numbers of a step, and uploads them.
    pub(crate) fn start_step(&mut self) -> Result<()> {
        self.numbers.start(&mut self.inputs)?;
        let bound = self.numbers.bound();
        bound.map_or(Ok(()), |bound| self.memory.start(&self.program, bound)).map_err(Into::into)
    }

    /// Computes the numbers of a step, which the device gets from the launch before it.
    pub(crate) fn start_on_host(&mut self) -> Result<()> {
        self.numbers.start(&mut self.inputs)?;
        self.numbers.bound().into_iter().for_each(|bound| self.memory.note_numbers(&self.program, bound));
        Ok(())
    }

    /// Runs a block with the numbers of steps that were started, and waits for it.
    fn run_lanes(lanes: &mut [RunningLane<'_, Self>], block: usize, stop: &AtomicBool) {
        let Some(first) = lanes.first() else { return };
        let (opened, program) = (Arc::clone(&first.state.opened), Arc::clone(&first.state.program));
        let mut turn = opened.turn();
        for lane in lanes.iter_mut().filter(|lane| lane.fault.is_none()) {
            let CudaState { memory, numbers, .. } = &mut *lane.state;
            let started = numbers.bound().map_or(Ok(()), |bound| memory.start(&program, bound));
            *lane.fault = started.err().map(Into::into);
        }
        let mut runner = Runner::new(&opened, &program, &mut turn);
        if program.is_capturable && block == program.plan.main {
            run_captured(&mut runner, lanes, stop);
        } else {
            runner.block(block, lanes, stop);
        }
        for lane in lanes.iter_mut() {
            // A latched fault came before whatever the host met later.
            if let Some(fault) = latched(&program, &mut lane.state.memory) {
                *lane.fault = Some(fault);
            }
        }
    }

    fn output(&self, output: usize) -> Result<Found<'_>> {
        let outputs = &self.program.plan.outputs;
        let found = outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count: outputs.len() })?;
        let bound = self.numbers.bound().filter(|_| self.has_outputs);
        let bound = bound.ok_or_else(|| Fault::NotRun.at(Place::Output(output)))?;
        Ok(match found {
            Output::Int(dim) => Found::Int(dim.eval(&bound.values)),
            Output::Tensor(view) => Found::Tensor(bound.view(*view)),
        })
    }

    fn buffer_of(&self, input: usize) -> Result<Buf> {
        match self.program.plan.inputs.get(input) {
            Some(Input::Tensor { buf, .. }) => Ok(*buf),
            Some(Input::Int(_)) | None => Err(Fault::Contract("a tensor is stored in the buffer of its input").into()),
        }
    }

    /// Stores the bytes of an input.
    fn fill(&mut self, input: usize, bytes: &[u8]) -> Result<()> {
        let site = self.program.site(self.buffer_of(input)?);
        let turn = self.opened.turn();
        let filled = self.memory.fill(&self.opened.stream, site, bytes);
        drop(turn);
        filled.map_err(|fault| fault.at(Place::Input(input)))?;
        self.note_bytes(input, bytes);
        Ok(())
    }

    fn note_bytes(&mut self, input: usize, bytes: &[u8]) {
        if let Some(small) = self.small_inputs.get_mut(input) {
            small.clear();
            small.extend(bytes.iter().take(SMALL_INPUT + 1));
        }
    }

    /// Changes an input on the host, and returns its bytes and their number; the device changes it too.
    pub(crate) fn note(&mut self, input: usize, change: Change) -> Result<([u8; 8], usize)> {
        let small = self.small_inputs.get(input).map_or(&[][..], Vec::as_slice);
        let (bytes, width) = self.inputs.change(input, change, small)?;
        self.note_bytes(input, bytes.split_at(width).0);
        Ok((bytes, width))
    }

    /// Appends the elements of a view in row-major order.
    fn append(&self, view: &BoundView, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let (size, first) = (view.dtype.size(), bytes.len());
        let count = view.count() * size;
        bytes.resize(first + count, 0);
        let Some(to) = bytes.get_mut(first..).filter(|to| !to.is_empty()) else { return Ok(()) };
        let _turn = self.opened.turn();
        if view.is_contiguous() {
            return self.memory.read(&self.program, view.buf, view.offset * size, to);
        }
        // What lies between the elements is read too: outputs are seldom views of something much larger.
        let bound = self.numbers.bound().ok_or(Fault::NotRun)?;
        let mut whole = vec![0; bound.length(view.buf)];
        self.memory.read(&self.program, view.buf, 0, &mut whole)?;
        for (number, to) in to.chunks_exact_mut(size).enumerate() {
            let start = view.offset_of(number) * size;
            let from = whole.get(start..start + size).ok_or(Fault::Contract("a view lies in its buffer"))?;
            to.copy_from_slice(from);
        }
        Ok(())
    }
}

impl Drop for CudaState {
    fn drop(&mut self) {
        self.program.graphs().forget(self.memory.address());
    }
}

impl StepState for CudaState {
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
        let Some(main) = lanes.first().map(|lane| lane.state.program.plan.main) else { return };
        Self::run_lanes(lanes, main, stop);
        for lane in lanes.iter_mut().filter(|lane| lane.fault.is_none()) {
            lane.state.numbers.finish(&mut lane.state.inputs);
            lane.state.has_outputs = true;
        }
    }

    fn token(&self, output: usize) -> Result<i64> {
        match self.output(output)? {
            Found::Int(number) => Ok(number),
            Found::Tensor(view) if view.count() == 1 && !view.dtype.is_float() => {
                let mut bytes = Vec::new();
                self.append(view, &mut bytes).map_err(|fault| fault.at(Place::Output(output)))?;
                Ok(integer(view.dtype, &bytes))
            }
            Found::Tensor(_) => Err(Fault::Contract("a token is one integer").at(Place::Output(output))),
        }
    }

    fn set(&mut self, input: usize, change: Change) -> Result<()> {
        let (bytes, width) = self.note(input, change)?;
        self.fill(input, bytes.split_at(width).0)
    }
}

impl DrivenState for CudaState {
    fn numbers(&mut self) -> (&mut Numbers, &Inputs) {
        (&mut self.numbers, &self.inputs)
    }
}

impl State for CudaState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.has_outputs = false;
        match self.inputs.accept(input, value)? {
            Some(bytes) => self.fill(input, bytes),
            None => Ok(()),
        }
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        match self.output(output)? {
            Found::Int(number) => *value = OutputValue::Int(number),
            Found::Tensor(view) => {
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(view.shape.iter().map(|&size| size as u64));
                self.append(view, &mut bytes).map_err(|fault| fault.at(Place::Output(output)))?;
                *value = OutputValue::tensor(view.dtype, shape, bytes);
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        let turn = self.opened.turn();
        self.memory.reset()?;
        drop(turn);
        self.inputs.session_ints_mut().fill(0);
        self.has_outputs = false;
        Ok(())
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let mut fork = CudaState::new(Arc::clone(&self.opened), Arc::clone(&self.program), seed)?;
        let turn = self.opened.turn();
        fork.memory.copy_kept(&self.memory, &self.program, &self.opened.stream)?;
        drop(turn);
        fork.inputs = self.inputs.clone();
        fork.small_inputs.clone_from(&self.small_inputs);
        Ok(Box::new(fork))
    }
}
