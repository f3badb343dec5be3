//! The oracle: scalar loops, obviously right, slow. One file per family of primitives.
//!
//! Every operand is widened to `f32` or `i64` as it is read, every result is computed into fresh memory and rounded to its
//! type as it is stored, so no primitive knows about element types, strides or overlap: `number` and `tensor` do.

mod attention;
mod check;
mod conv;
mod gated_delta;
mod index;
mod map;
mod matmul;
mod memory;
mod norm;
mod number;
mod quant;
mod random;
mod reduce;
mod run;
mod sample;
mod scalar;
mod small_float;
mod tensor;
#[cfg(test)]
mod tests;

pub(crate) use memory::LIMIT_BYTES;
pub(crate) use number::Element;
pub(crate) use scalar::{floor_div, floor_mod};

pub use check::check;
pub use number::cast;

use crate::drive::drive;
use crate::error::{Fault, Place, Result};
use crate::inputs::Inputs;
use crate::traits::{Backend, Executable, InputValue, OutputValue, State};
use memory::Memory;
use ptero_plan::plan::{Output, Plan};
use ptero_tensor::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The backend that all others are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>> {
        check::check(&plan)?;
        let derived = match plan.init {
            Some(init) => {
                let mut memory = Memory::new(Arc::clone(&plan), &[], 0)?;
                drive(&plan, init, &mut memory, &AtomicBool::new(false))?;
                memory.into_derived()
            }
            None => Vec::new(),
        };
        Ok(Box::new(Compiled { plan, derived }))
    }
}

struct Compiled {
    plan: Arc<Plan>,
    /// The derived buffers, at their numbers.
    derived: Vec<Option<Bytes>>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let memory = Memory::new(Arc::clone(&self.plan), &self.derived, seed)?;
        let inputs = Inputs::new(&self.plan);
        Ok(Box::new(Session { plan: Arc::clone(&self.plan), memory, inputs, has_outputs: false }))
    }
}

struct Session {
    plan: Arc<Plan>,
    memory: Memory,
    inputs: Inputs,
    /// Whether the memory holds the outputs of a run.
    has_outputs: bool,
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        if let Some((buf, bytes)) = self.inputs.accept(&self.plan, input, value)? {
            self.memory.fill(buf.0 as usize, bytes);
        }
        self.has_outputs = false;
        Ok(())
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()> {
        self.has_outputs = false;
        self.memory.start_call();
        self.inputs.start(&mut self.memory.values)?;
        drive(&self.plan, self.plan.main, &mut self.memory, cancelled)?;
        self.has_outputs = true;
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        let count = self.plan.outputs.len();
        let wanted = self.plan.outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count })?;
        let here = |fault: Fault| fault.at(Place::Output(output));
        if !self.has_outputs {
            return Err(here(Fault::NotRun));
        }
        match wanted {
            Output::Int(dim) => *value = OutputValue::Int(dim.eval(&self.memory.values)),
            Output::Tensor(view) => {
                let tensor = self.memory.tensor(view).map_err(here)?;
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(tensor.shape().iter().map(|&size| size as u64));
                bytes.resize(tensor.window.count() * tensor.element.bytes(), 0);
                for (place, number) in tensor.numbers().enumerate() {
                    tensor.element.store(&mut bytes, place, number);
                }
                *value = OutputValue::Tensor { dtype: view.dtype, shape, bytes };
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.memory.reset();
        self.has_outputs = false;
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let (plan, inputs) = (Arc::clone(&self.plan), self.inputs.clone());
        Ok(Box::new(Session { plan, memory: self.memory.fork(seed)?, inputs, has_outputs: false }))
    }
}
