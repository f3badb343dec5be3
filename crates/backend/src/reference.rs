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
mod scalar;
mod small_float;
mod tensor;
#[cfg(test)]
mod tests;

pub use number::cast;

use crate::error::{Fault, Place, Result};
use crate::traits::{Backend, Executable, InputValue, OutputValue, State};
use memory::Memory;
use number::Element;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::plan::{Input, Output, Plan};
use ptero_tensor::{Bytes, DType, byte_count};
use std::sync::Arc;

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
                run::run(&mut memory, init)?;
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
        let given = vec![None; self.plan.inputs.len()];
        Ok(Box::new(Session { plan: Arc::clone(&self.plan), memory, given, has_outputs: false }))
    }
}

struct Session {
    plan: Arc<Plan>,
    memory: Memory,
    /// For each input, once it was written, the host values that it fills.
    given: Vec<Option<Vec<(Var, i64)>>>,
    /// Whether the memory holds the outputs of a run.
    has_outputs: bool,
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        let count = self.given.len();
        let (Some(wanted), Some(given)) = (self.plan.inputs.get(input), self.given.get_mut(input)) else {
            return Err(Fault::NoSuch { what: "input", index: input, count }.into());
        };
        let here = |fault: Fault| fault.at(Place::Input(input));
        let values = match (wanted, value) {
            (Input::Int(var), InputValue::Int(value)) => {
                vec![(*var, fit_32_bits(value.into()).map_err(here)?)]
            }
            (Input::Tensor { buf, dtype, shape }, InputValue::Tensor { dtype: found, shape: sizes, bytes }) => {
                let values = check_tensor((*dtype, shape), (found, sizes, bytes)).map_err(here)?;
                self.memory.fill(buf.0 as usize, bytes);
                values
            }
            (Input::Int(_), InputValue::Tensor { .. }) => {
                return Err(here(Fault::WrongKind { found: "a tensor", wanted: "an integer" }));
            }
            (Input::Tensor { .. }, InputValue::Int(_)) => {
                return Err(here(Fault::WrongKind { found: "an integer", wanted: "a tensor" }));
            }
        };
        *given = Some(values);
        self.has_outputs = false;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.has_outputs = false;
        self.memory.start_call();
        let mut known: Vec<Option<i64>> = vec![None; self.plan.vars as usize];
        for (input, given) in self.given.iter().enumerate() {
            let here = |fault: Fault| fault.at(Place::Input(input));
            for &(var, value) in given.as_ref().ok_or_else(|| here(Fault::Unwritten))? {
                let slot = known.get_mut(var.0 as usize);
                if let Some(earlier) = slot.and_then(|slot| slot.replace(value)).filter(|&earlier| earlier != value) {
                    return Err(here(Fault::Conflict { var: var.0, found: value, wanted: earlier }));
                }
                self.memory.set(var, value);
            }
        }
        run::run(&mut self.memory, self.plan.main)?;
        self.has_outputs = true;
        Ok(())
    }

    fn read(&self, output: usize) -> Result<OutputValue> {
        let count = self.plan.outputs.len();
        let wanted = self.plan.outputs.get(output).ok_or(Fault::NoSuch { what: "output", index: output, count })?;
        let here = |fault: Fault| fault.at(Place::Output(output));
        if !self.has_outputs {
            return Err(here(Fault::NotRun));
        }
        Ok(match wanted {
            Output::Int(dim) => OutputValue::Int(dim.eval(&self.memory.values)),
            Output::Tensor(view) => {
                let tensor = self.memory.tensor(view).map_err(here)?;
                let mut bytes = vec![0; tensor.window.count() * tensor.element.bytes()];
                for (place, number) in tensor.numbers().enumerate() {
                    tensor.element.store(&mut bytes, place, number);
                }
                let shape = tensor.shape().iter().map(|&size| size as u64).collect();
                OutputValue::Tensor { dtype: view.dtype, shape, bytes }
            }
        })
    }

    fn reset(&mut self) {
        self.memory.reset();
        self.has_outputs = false;
    }
}

/// Compares a tensor with what an input wants; gives the values that its varying sizes fill.
fn check_tensor(
    (dtype, shape): (DType, &[Dim]),
    (found, sizes, bytes): (DType, &[u64], &[u8]),
) -> Result<Vec<(Var, i64)>, Fault> {
    if found != dtype {
        return Err(Fault::WrongDType { found, wanted: dtype });
    }
    if sizes.len() != shape.len() {
        return Err(Fault::WrongRank { found: sizes.len(), wanted: shape.len() });
    }
    let mut values = Vec::new();
    for (axis, (&size, dim)) in sizes.iter().zip(shape).enumerate() {
        let value = fit_32_bits(size.into())?;
        match (dim.as_fixed(), dim.as_var()) {
            (Some(wanted), _) if wanted != value => return Err(Fault::WrongSize { axis, found: size, wanted }),
            (Some(_), _) | (None, None) => {}
            (None, Some(var)) => values.push((var, value)),
        }
    }
    let wanted = byte_count(sizes, dtype).ok_or(Fault::TooLarge { limit: memory::LIMIT_BYTES })?;
    if bytes.len() as u64 != wanted {
        return Err(Fault::WrongLength { found: bytes.len(), wanted });
    }
    Element::new(dtype).map(|_| values)
}

/// Host values that enter a call must fit 32 bits, as in ExecuTorch; products of two then fit the 64 that are computed in.
fn fit_32_bits(value: i128) -> Result<i64, Fault> {
    i32::try_from(value).map(i64::from).map_err(|_| Fault::Not32Bits(value))
}
