//! A device on which one run of each session does its work and then says that it was stopped.

use ptero_backend::{Backend, Executable, Fault, InputValue, OutputValue, Result, State};
use ptero_cpu::Cpu;
use ptero_plan::plan::Plan;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) struct Breaking {
    /// Which run, from 1.
    pub(crate) at: usize,
}

struct Compiled(Box<dyn Executable>, usize);

struct Broken(Box<dyn State>, usize);

impl Backend for Breaking {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Compiled(Cpu::new().compile(plan)?, self.at)))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(Broken(self.0.state(seed)?, self.1)))
    }
}

impl State for Broken {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.0.write(input, value)
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()> {
        self.0.run_until(cancelled)?;
        self.1 = self.1.wrapping_sub(1);
        if self.1 == 0 { Err(Fault::Cancelled.into()) } else { Ok(()) }
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        self.0.read_into(output, value)
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(Broken(self.0.fork(seed)?, self.1)))
    }
}
