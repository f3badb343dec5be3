//! The three traits of a device.

use crate::error::{Fault, Result};
use crate::lanes::{Lane, Steps};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use ptero_tensor::DType;
use std::any::Any;
use std::sync::Arc;

/// A device. It gets whole graphs, so that it may capture, batch or trace them.
pub trait Backend: Send + Sync {
    /// Its name, as users choose it.
    fn name(&self) -> &'static str;

    /// What it offers beyond the primitives, for the passes.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Compiles a graph, and runs its init block. Graphs that this device cannot run are refused here; [`Executable::run`] fails
    /// only because of the inputs of a call.
    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>>;
}

/// A compiled graph: shared by any number of sessions.
pub trait Executable: Send + Sync {
    /// A fresh state: zeroed tensors, its own sequence of keys (of `seed`) for unseeded random bits.
    ///
    /// # Errors
    /// When there is no memory for it.
    fn state(&self, seed: u64) -> Result<Box<dyn State>>;

    /// Runs `steps.count` steps for each lane, on the inputs that were written to its state.
    ///
    /// - All lanes have inputs of the same sizes and take the same branches; the caller groups them so. What a lane computes
    ///   does not depend on the others. A lane that is alone may have any inputs. Devices read weights once for all lanes where
    ///   they can.
    /// - A lane ends when its token is one of its ends, or when it has as many tokens as it wants. A device may run on
    ///   internally, but tokens and state are as if the lane had stopped exactly there.
    /// - A fault ends its lane and is left in [`Lane::fault`]: the first faulty node and what kind of fault it is. Tokens of
    ///   earlier steps stay, none of a later one appears; positions before the faulty step stay valid. The inputs are what they
    ///   were when the faulty step began, and state is as the steps before the faulty one left it or as the nodes before the
    ///   faulty one did.
    /// - When the stop flag is set, steps in flight are finished or abandoned, and lanes end with [`Fault::Cancelled`].
    ///
    /// # Errors
    /// When a lane is no state of this executable, or `steps` asks for what the graph does not have. Then nothing has run.
    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()>;
}

/// The state of a session between runs: its inputs, state tensors, and the outputs of the last step.
pub trait State: Send + Any {
    /// Writes an input, which stays until it is written again. An input that does not fit is refused, and the earlier one stays.
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()>;

    /// An output of the last step. Only between a successful run and the next `write`, run or `reset`.
    fn read(&self, output: usize) -> Result<OutputValue> {
        let mut value = OutputValue::Int(0);
        self.read_into(output, &mut value)?;
        Ok(value)
    }

    /// As [`State::read`], into memory that an earlier output may have left.
    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()>;

    /// Zeroes the state tensors. Inputs and the sequence of keys stay.
    ///
    /// # Errors
    /// When the device fails.
    fn reset(&mut self) -> Result<()>;

    /// Gives memory back that only runs need, for a state that may rest for long. Outputs are lost; the next run takes it again.
    ///
    /// # Errors
    /// When the device fails.
    fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes an independent copy: the same state tensors and inputs, no outputs before its first run, and its own sequence of keys
    /// (of `seed`). Memory that never changes is shared.
    ///
    /// # Errors
    /// When there is no memory for it, or when the device cannot copy states.
    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let _ = seed;
        Err(Fault::NoFork.into())
    }
}

/// A value that a caller writes.
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

/// A value that a caller reads.
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
    /// A tensor, with one bit pattern for every NaN: positive, quiet, and nothing else set. Which one an instruction gives differs
    /// from machine to machine.
    pub fn tensor(dtype: DType, shape: Vec<u64>, mut bytes: Vec<u8>) -> Self {
        fn canonical<const N: usize>(bytes: &mut [u8], nan: [u8; N], is_nan: impl Fn([u8; N]) -> bool) {
            bytes.as_chunks_mut().0.iter_mut().filter(|raw| is_nan(**raw)).for_each(|raw| *raw = nan);
        }
        let is_beyond = |infinity: u16| move |raw: [u8; 2]| u16::from_le_bytes(raw) & 0x7FFF > infinity;
        match dtype {
            DType::F32 => canonical(&mut bytes, f32::NAN.to_le_bytes(), |raw| f32::from_le_bytes(raw).is_nan()),
            DType::F16 => canonical(&mut bytes, 0x7E00_u16.to_le_bytes(), is_beyond(0x7C00)),
            DType::Bf16 => canonical(&mut bytes, 0x7FC0_u16.to_le_bytes(), is_beyond(0x7F80)),
            _ => {}
        }
        Self::Tensor { dtype, shape, bytes }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nan_is_read_as_one() {
        let floats = [-f32::NAN, f32::from_bits(0x7F80_0001), f32::INFINITY, -0.0, 1.5];
        let bytes = floats.into_iter().flat_map(f32::to_le_bytes).collect();
        let wanted = [f32::NAN, f32::NAN, f32::INFINITY, -0.0, 1.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let shape = vec![5];
        assert_eq!(
            OutputValue::tensor(DType::F32, shape.clone(), bytes),
            OutputValue::Tensor { dtype: DType::F32, shape, bytes: wanted }
        );
        for (dtype, infinity, nan) in [(DType::F16, 0x7C00_u16, 0x7E00_u16), (DType::Bf16, 0x7F80, 0x7FC0)] {
            let bits = [infinity, infinity | 1, infinity | 0x8000, infinity | 0x8003, 0x8000];
            let bytes = |bits: [u16; 5]| bits.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
            let wanted = bytes([infinity, nan, infinity | 0x8000, nan, 0x8000]);
            let OutputValue::Tensor { bytes, .. } = OutputValue::tensor(dtype, vec![5], bytes(bits)) else {
                unreachable!()
            };
            assert_eq!(bytes, wanted);
        }
    }
}
