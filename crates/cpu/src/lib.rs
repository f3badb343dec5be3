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
    Backend, Executable, Fault, InputValue, Inputs, OutputValue, Place, Result, State, check_plan, drive,
};
use ptero_plan::plan::{Buffer, BufferKind, Output, Plan};
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

    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>> {
        check_plan(&plan)?;
        prefetch_weights(&plan);
        let mut program = Program::new(Arc::clone(&plan));
        if let Some(init) = plan.init {
            let mut session = Session::new(self.clone(), Arc::new(program), 0)?;
            session.drive(init, &AtomicBool::new(false))?;
            let Session { memory, program: shared, .. } = session;
            program = Arc::into_inner(shared).ok_or(Fault::Contract("the init block runs alone"))?;
            program.layout.share(memory);
        }
        Ok(Box::new(Compiled { cpu: self.clone(), program: Arc::new(program) }))
    }
}

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
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(Session::new(self.cpu.clone(), Arc::clone(&self.program), seed)?))
    }
}

struct Session {
    cpu: Cpu,
    program: Arc<Program>,
    memory: Memory,
    scratch: Scratch,
    staging: Vec<f32>,
    turns: rows::Turns,
    values: Vec<i64>,
    keys: KeySequence,
    inputs: Inputs,
    /// Whether the memory holds the outputs of a run.
    has_outputs: bool,
}

impl Session {
    fn new(cpu: Cpu, program: Arc<Program>, seed: u64) -> Result<Self> {
        let plan = &program.layout.plan;
        Ok(Self {
            cpu,
            memory: Memory::new(&program.layout)?,
            scratch: Scratch::default(),
            staging: Vec::new(),
            turns: rows::Turns::default(),
            values: vec![0; plan.vars as usize],
            keys: KeySequence::new(seed),
            inputs: Inputs::new(plan),
            has_outputs: false,
            program,
        })
    }

    fn drive(&mut self, block: usize, cancelled: &AtomicBool) -> Result<()> {
        let mut runner = Runner {
            program: &self.program,
            isa: self.cpu.isa,
            pool: &self.cpu.pool,
            memory: &mut self.memory,
            scratch: &mut self.scratch,
            staging: &mut self.staging,
            turns: &mut self.turns,
            values: &mut self.values,
            keys: &mut self.keys,
        };
        drive(&self.program.layout.plan, block, &mut runner, cancelled)
    }
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.has_outputs = false;
        if let Some((buf, bytes)) = self.inputs.accept(&self.program.layout.plan, input, value)? {
            self.memory.fill(buf, bytes).map_err(|fault| fault.at(Place::Input(input)))?;
        }
        Ok(())
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()> {
        self.has_outputs = false;
        self.inputs.start(&mut self.values)?;
        self.drive(self.program.layout.plan.main, cancelled)?;
        self.has_outputs = true;
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        let outputs = &self.program.layout.plan.outputs;
        let wanted =
            outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count: outputs.len() })?;
        let here = |fault: Fault| fault.at(Place::Output(output));
        if !self.has_outputs {
            return Err(here(Fault::NotRun));
        }
        match wanted {
            Output::Int(dim) => *value = OutputValue::Int(dim.eval(&self.values)),
            Output::Tensor(view) => {
                let tensor = self.memory.sources(&self.program.layout, &self.values).tensor(view).map_err(here)?;
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(tensor.window.shape.iter().map(|&size| size as u64));
                tensor.append_to(&mut bytes);
                *value = OutputValue::Tensor { dtype: view.dtype, shape, bytes };
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.memory.reset(&self.program.layout.plan);
        self.has_outputs = false;
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let mut fork = Session::new(self.cpu.clone(), Arc::clone(&self.program), seed)?;
        fork.memory.copy_kept(&self.memory, &self.program.layout.plan)?;
        fork.inputs = self.inputs.clone();
        Ok(Box::new(fork))
    }
}
