//! Runs plans on the CPU: threaded, vectorised, with weights read where they lie in the file.
//!
//! ```text
//! run.rs         one line per primitive
//! map.rs …       one file per family of primitives: sizes, strides and tasks; safe code
//! lines.rs       lines along an axis, one by one
//! memory.rs      where buffers lie; window.rs: views with numbers for sizes; element.rs: runs of elements
//! simd/          kernels on slices, per instruction set
//! pool.rs        threads that share a step
//! machine.rs     what the machine can do at most, to compare with
//! ```
//!
//! Invariant: unsafe code lives in `simd` and `pool` alone; everything else sees slices. The result of a run does not depend on
//! how many threads there are.

#[cfg(target_endian = "big")]
compile_error!("elements are stored in little-endian order, and kernels read them as they lie");

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
pub mod quant;
mod random;
mod reduce;
mod rows;
mod run;
pub mod sample;
pub mod simd;
mod window;

use memory::Memory;
use pool::{Pool, Scratch, Workers};
use ptero_backend::{
    Backend, Change, Executable, Fault, InputTypes, InputValue, Inputs, Lane, Numbers, OutputValue, Place, Result,
    State, StepState, Steps, check_graph, check_lanes, check_steps, run_in_turn,
};
use ptero_plan::graph::Graph;
use ptero_plan::plan::{Buffer, BufferKind, Input, Output, Plan};
use ptero_plan::prim::ViewId;
use ptero_plan::{Capabilities, bufferize};
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::Bytes;
use run::{Program, Runner};
use simd::Isa;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
}

impl Cpu {
    /// With all cores and the best instructions of this machine.
    pub fn new() -> Self {
        Self::with(std::thread::available_parallelism().map_or(1, usize::from), Isa::best())
    }

    /// With so many threads and these instructions.
    pub fn with(threads: usize, isa: Isa) -> Self {
        Self { pool: Arc::new(Pool::new(threads)), isa }
    }

    /// Its threads, for work beside programs. They are shared: while a program runs, such work runs on one thread.
    pub fn workers<'a>(&'a self, scratch: &'a mut Scratch) -> Workers<'a> {
        Workers { pool: &self.pool, scratch }
    }

    /// Its instructions.
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
        let types = Arc::new(InputTypes::of(&graph));
        let plan = Arc::new(bufferize(&graph, ALIGN)?);
        prefetch_weights(&plan);
        let mut program = Program::new(Arc::clone(&plan));
        if let Some(init) = plan.init {
            let mut session = Session::new(self.clone(), Arc::new(program), Arc::clone(&types), 0)?;
            session.numbers.start_init()?;
            session.drive(init, &AtomicBool::new(false))?;
            let Session { memory, program: shared, .. } = session;
            program = Arc::into_inner(shared).ok_or(Fault::Contract("the init block runs alone"))?;
            program.layout.share(memory);
        }
        Ok(Box::new(Compiled { cpu: self.clone(), program: Arc::new(program), types, graph }))
    }
}

/// Every buffer starts at a multiple of this: a cache line, and the widest vector.
const ALIGN: u64 = 64;

/// So many bytes are worth a thread that asks for them.
const WORTH_ASKING: usize = 1 << 20;

/// Asks for all weights, in the background: one by one, as the first run meets them, their pages would take ten times as long.
fn prefetch_weights(plan: &Plan) {
    let constant = |buffer: &Buffer| match &buffer.kind {
        BufferKind::Constant(bytes) => Some(bytes.clone()),
        BufferKind::Derived | BufferKind::Input(_) | BufferKind::State | BufferKind::Temporary => None,
    };
    let weights: Vec<Bytes> = plan.buffers.iter().filter_map(constant).collect();
    if weights.iter().map(|bytes| bytes.len()).sum::<usize>() >= WORTH_ASKING {
        // Without a thread they come one by one.
        let ask = move || weights.iter().for_each(Bytes::prefetch);
        let _ = std::thread::Builder::new().name("ptero-prefetch".to_owned()).spawn(ask);
    }
}

struct Compiled {
    cpu: Cpu,
    program: Arc<Program>,
    types: Arc<InputTypes>,
    graph: Arc<Graph>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let (program, types) = (Arc::clone(&self.program), Arc::clone(&self.types));
        Ok(Box::new(Session::new(self.cpu.clone(), program, types, seed)?))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        check_steps(&self.graph, steps)?;
        check_lanes(lanes, |session: &Session| Arc::ptr_eq(&session.program, &self.program))?;
        run_in_turn::<Session>(lanes, steps)
    }
}

struct Session {
    cpu: Cpu,
    program: Arc<Program>,
    types: Arc<InputTypes>,
    memory: Memory,
    scratch: Scratch,
    staging: Vec<f32>,
    turns: rows::Turns,
    numbers: Numbers,
    keys: KeySequence,
    inputs: Inputs,
    /// Whether the memory holds the outputs of a step.
    has_outputs: bool,
}

impl Session {
    fn new(cpu: Cpu, program: Arc<Program>, types: Arc<InputTypes>, seed: u64) -> Result<Self> {
        Ok(Self {
            cpu,
            memory: Memory::new(&program.layout)?,
            scratch: Scratch::default(),
            staging: Vec::new(),
            turns: rows::Turns::default(),
            numbers: Numbers::new(Arc::clone(&program.layout.plan)),
            keys: KeySequence::new(seed),
            inputs: Inputs::new(Arc::clone(&types)),
            has_outputs: false,
            program,
            types,
        })
    }

    fn drive(&mut self, block: usize, stop: &AtomicBool) -> Result<()> {
        let mut runner = Runner {
            program: &self.program,
            isa: self.cpu.isa,
            pool: &self.cpu.pool,
            memory: &mut self.memory,
            scratch: &mut self.scratch,
            staging: &mut self.staging,
            turns: &mut self.turns,
            keys: &mut self.keys,
        };
        self.numbers.run(block, &self.inputs, &mut runner, stop)
    }

    /// An output of the last step: its view, or its number.
    fn output(&self, output: usize) -> Result<&Output<ViewId>> {
        let outputs = &self.program.layout.plan.outputs;
        let found = outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count: outputs.len() })?;
        if self.has_outputs { Ok(found) } else { Err(Fault::NotRun.at(Place::Output(output))) }
    }

    fn buffer_of(&self, input: usize) -> Result<ptero_plan::prim::Buf> {
        match self.program.layout.plan.inputs.get(input) {
            Some(Input::Tensor { buf, .. }) => Ok(*buf),
            Some(Input::Int(_)) | None => Err(Fault::Contract("a tensor is stored in the buffer of its input").into()),
        }
    }
}

impl StepState for Session {
    fn step(&mut self, stop: &AtomicBool) -> Result<()> {
        self.has_outputs = false;
        self.numbers.start(&mut self.inputs)?;
        self.drive(self.program.layout.plan.main, stop)?;
        self.numbers.finish(&mut self.inputs);
        self.has_outputs = true;
        Ok(())
    }

    fn token(&self, output: usize) -> Result<i64> {
        let here = |fault: Fault| fault.at(Place::Output(output));
        let (found, Some(bound)) = (self.output(output)?, self.numbers.bound()) else {
            return Err(here(Fault::NotRun));
        };
        match found {
            Output::Int(dim) => Ok(dim.eval(&bound.values)),
            Output::Tensor(view) => {
                let tensor = self.memory.sources(&self.program.layout, bound).tensor(view).map_err(here)?;
                if tensor.window.count() != 1 || tensor.is_float() {
                    return Err(here(Fault::Contract("a token is one integer")));
                }
                Ok(tensor.int(self.cpu.isa, 0))
            }
        }
    }

    fn set(&mut self, input: usize, change: Change) -> Result<()> {
        let buf = self.buffer_of(input)?;
        let bytes = self.memory.own_bytes(buf);
        let (bytes, length) = self.inputs.change(input, change, bytes)?;
        self.memory.fill(buf, bytes.get(..length).unwrap_or_default()).map_err(|fault| fault.at(Place::Input(input)))
    }
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.has_outputs = false;
        if let Some(bytes) = self.inputs.accept(input, value)? {
            let buf = self.buffer_of(input)?;
            self.memory.fill(buf, bytes).map_err(|fault| fault.at(Place::Input(input)))?;
        }
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        let here = |fault: Fault| fault.at(Place::Output(output));
        let (found, Some(bound)) = (self.output(output)?, self.numbers.bound()) else {
            return Err(here(Fault::NotRun));
        };
        match found {
            Output::Int(dim) => *value = OutputValue::Int(dim.eval(&bound.values)),
            Output::Tensor(view) => {
                let tensor = self.memory.sources(&self.program.layout, bound).tensor(view).map_err(here)?;
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(tensor.window.shape.iter().map(|&size| size as u64));
                tensor.append_to(&mut bytes);
                *value = OutputValue::tensor(tensor.dtype, shape, bytes);
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.memory.reset(&self.program.layout.plan);
        self.inputs.kept_mut().fill(0);
        self.has_outputs = false;
        Ok(())
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let (program, types) = (Arc::clone(&self.program), Arc::clone(&self.types));
        let mut fork = Session::new(self.cpu.clone(), program, types, seed)?;
        fork.memory.copy_kept(&self.memory, &self.program.layout.plan)?;
        fork.inputs = self.inputs.clone();
        Ok(Box::new(fork))
    }
}
