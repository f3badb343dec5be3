//! The three traits of a device.

use crate::error::{Fault, Result};
use ptero_plan::plan::Plan;
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A device. It takes whole plans, so that it may capture, batch or trace them as it likes.
pub trait Backend: Send + Sync {
    /// Its name, as users choose it.
    fn name(&self) -> &'static str;

    /// Turns a plan into something runnable, and runs its init block. What this device cannot do is refused here, not in
    /// [`State::run`]: that fails only over what a call brings with it.
    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>>;
}

/// A compiled plan: shared by any number of sessions.
pub trait Executable: Send + Sync {
    /// A fresh state: zeroed buffers, its own sequence of keys (of `seed`) for unseeded random bits.
    fn state(&self, seed: u64) -> Result<Box<dyn State>>;
}

/// What a session keeps between runs, and the runs themselves.
pub trait State: Send {
    /// Gives an input, which stays given until it is written again. One that does not fit is refused, and the earlier one
    /// stays.
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()>;

    /// Runs the plan on the inputs, all of which must have been written.
    ///
    /// After a failure the inputs are what they were and the next run starts afresh, but steps before the one that failed
    /// have done their work: state buffers and the sequence of keys are as those steps left them. [`State::reset`] clears
    /// the buffers.
    fn run(&mut self) -> Result<()> {
        self.run_until(&AtomicBool::new(false))
    }

    /// As [`State::run`], but fails between two steps once the flag is set, which any thread may do.
    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()>;

    /// An output of the last run. Only between a successful run and the next `write`, `run` or `reset`.
    fn read(&self, output: usize) -> Result<OutputValue> {
        let mut value = OutputValue::Int(0);
        self.read_into(output, &mut value)?;
        Ok(value)
    }

    /// As [`State::read`], into memory that an earlier output may have left.
    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()>;

    /// Zeroes the state buffers. Inputs and the sequence of keys stay.
    fn reset(&mut self);

    /// A copy that goes its own way: the same state buffers and inputs, but nothing to read before its first run, and its
    /// own sequence of keys (of `seed`). What never changes is shared and not copied.
    ///
    /// # Errors
    /// When there is no memory for it, or when the device cannot copy states.
    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let _ = seed;
        Err(Fault::NoFork.into())
    }
}

/// What a caller gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputValue<'a> {
    /// A tensor in row-major order.
    Tensor {
        /// The type of its elements.
        dtype: DType,
        /// Its sizes, outermost first.
        shape: &'a [u64],
        /// Its elements, little-endian.
        bytes: &'a [u8],
    },
    /// An integer; must fit 32 bits.
    Int(i64),
}

/// What a caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputValue {
    /// A tensor in row-major order.
    Tensor {
        /// The type of its elements.
        dtype: DType,
        /// Its sizes, outermost first.
        shape: Vec<u64>,
        /// Its elements, little-endian.
        bytes: Vec<u8>,
    },
    /// An integer.
    Int(i64),
}

impl OutputValue {
    /// Takes the memory of its sizes and elements, emptied, for the next output.
    pub fn take_memory(&mut self) -> (Vec<u64>, Vec<u8>) {
        match std::mem::replace(self, OutputValue::Int(0)) {
            OutputValue::Tensor { mut shape, mut bytes, .. } => {
                shape.clear();
                bytes.clear();
                (shape, bytes)
            }
            OutputValue::Int(_) => (Vec::new(), Vec::new()),
        }
    }
}
