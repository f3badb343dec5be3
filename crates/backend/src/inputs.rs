//! Compares the inputs of a call with those that a graph declares, the same way on every device.

use crate::error::{Fault, Place, Result};
use crate::lanes::Change;
use crate::traits::InputValue;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{Graph, Input};
use ptero_plan::host::{HostInputs, HostOp, NumberFault};
use ptero_tensor::{DType, byte_count, integer};
use std::sync::Arc;

/// The inputs that a graph declares.
#[derive(Debug)]
pub struct InputTypes {
    types: Vec<InputType>,
    host_values: usize,
    session_ints: usize,
}

#[derive(Debug)]
enum InputType {
    Tensor {
        dtype: DType,
        shape: Vec<Dim>,
        /// By axis, the largest size that the program declares.
        largest: Vec<Option<i64>>,
        /// Host values are read from its elements.
        is_read_by_host: bool,
    },
    Int(Var),
}

impl InputTypes {
    /// Those of a graph.
    pub fn of(graph: &Graph) -> Self {
        let most = |size: &Dim| match graph.host.get(size.as_var()?.0 as usize) {
            Some(HostOp::Given { most }) => *most,
            _ => None,
        };
        let is_read =
            |number: usize| graph.host.iter().any(|op| matches!(op, HostOp::Element { input, .. } if *input == number));
        let input = |(number, input): (usize, &Input)| match input {
            Input::Int(var) => InputType::Int(*var),
            Input::Tensor(value) => {
                let ty = graph.ty(*value);
                InputType::Tensor {
                    dtype: ty.dtype,
                    largest: ty.shape.iter().map(most).collect(),
                    shape: ty.shape.clone(),
                    is_read_by_host: is_read(number),
                }
            }
        };
        let types = graph.inputs.iter().enumerate().map(input).collect();
        Self { types, host_values: graph.host.len(), session_ints: graph.session_ints.len() }
    }

    /// Returns `true` if host values are read from the elements of an input.
    pub fn host_reads(&self, input: usize) -> bool {
        matches!(self.types.get(input), Some(InputType::Tensor { is_read_by_host: true, .. }))
    }
}

const INTEGER_WANTED: Fault = Fault::WrongKind { found: "a tensor", wanted: "an integer" };
const TENSOR_WANTED: Fault = Fault::WrongKind { found: "an integer", wanted: "a tensor" };

/// The inputs that were written to a state, and the host values they give.
#[derive(Clone, Debug)]
pub struct Inputs {
    types: Arc<InputTypes>,
    given: Vec<Given>,
    /// The host values that inputs have filled in the run that starts.
    known: Vec<Option<i64>>,
    /// The integers that the session keeps.
    session_ints: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
struct Given {
    is_written: bool,
    values: Vec<(Var, i64)>,
    /// The elements, where the host reads them.
    bytes: Vec<u8>,
}

impl Inputs {
    /// None is given yet.
    pub fn new(types: Arc<InputTypes>) -> Self {
        let (given, known) = (vec![Given::default(); types.types.len()], vec![None; types.host_values]);
        Self { session_ints: vec![0; types.session_ints], types, given, known }
    }

    /// Accepts an input, and returns the bytes that the device has to store. An input that does not fit is refused, and the earlier
    /// one stays.
    pub fn accept<'a>(&mut self, input: usize, value: InputValue<'a>) -> Result<Option<&'a [u8]>> {
        let count = self.given.len();
        let (Some(wanted), Some(given)) = (self.types.types.get(input), self.given.get_mut(input)) else {
            return Err(Fault::NoSuch { what: "input", index: input, count }.into());
        };
        let here = |fault: Fault| fault.at(Place::Input(input));
        let stored = match (wanted, value) {
            (InputType::Int(var), InputValue::Int(value)) => {
                let value = fit_32_bits(value.into()).map_err(here)?;
                given.values.clear();
                given.values.push((*var, value));
                None
            }
            (
                InputType::Tensor { dtype, shape, largest, is_read_by_host },
                InputValue::Tensor { dtype: found, shape: sizes, bytes },
            ) => {
                check_tensor((*dtype, shape), (found, sizes, bytes)).map_err(here)?;
                check_largest(largest, sizes).map_err(here)?;
                given.values.clear();
                let varying = shape.iter().zip(sizes).filter_map(|(dim, &size)| Some((dim.as_var()?, size)));
                for (var, size) in varying {
                    given.values.push((var, fit_32_bits(size.into()).map_err(here)?));
                }
                if *is_read_by_host {
                    given.bytes.clear();
                    given.bytes.extend_from_slice(bytes);
                }
                Some(bytes)
            }
            (InputType::Int(_), InputValue::Tensor { .. }) => return Err(here(INTEGER_WANTED)),
            (InputType::Tensor { .. }, InputValue::Int(_)) => return Err(here(TENSOR_WANTED)),
        };
        given.is_written = true;
        Ok(stored)
    }

    /// Fills the host values that inputs give, at the start of a run; the others become zero.
    pub fn start(&mut self, values: &mut [i64]) -> Result<()> {
        self.known.fill(None);
        for (input, given) in self.given.iter().enumerate() {
            let here = |fault: Fault| fault.at(Place::Input(input));
            if !given.is_written {
                return Err(here(Fault::Unwritten));
            }
            for &(var, value) in &given.values {
                let slot = self.known.get_mut(var.0 as usize);
                if let Some(earlier) = slot.and_then(|slot| slot.replace(value)).filter(|&earlier| earlier != value) {
                    return Err(here(Fault::Conflict { var: var.0, found: value, wanted: earlier }));
                }
            }
        }
        values.iter_mut().zip(&self.known).for_each(|(value, known)| *value = known.unwrap_or(0));
        Ok(())
    }

    /// Changes the one element of an integer input between two steps. Returns its new bytes, little-endian, and their number.
    pub fn change(&mut self, input: usize, change: Change, bytes: &[u8]) -> Result<([u8; 8], usize)> {
        let here = |fault: Fault| fault.at(Place::Input(input));
        let Some(InputType::Tensor { dtype, is_read_by_host, .. }) = self.types.types.get(input) else {
            return Err(here(TENSOR_WANTED));
        };
        let width = dtype.size();
        if !matches!(dtype, DType::I64 | DType::I32) || bytes.len() != width {
            return Err(here(Fault::Contract("what changes between steps is one element of type i64 or i32")));
        }
        let next = match change {
            Change::To(value) => value,
            Change::Up => integer(*dtype, bytes).wrapping_add(1),
        };
        let next = next.to_le_bytes();
        if *is_read_by_host && let Some(given) = self.given.get_mut(input) {
            given.bytes.clear();
            given.bytes.extend(next.iter().take(width));
        }
        Ok((next, width))
    }

    /// The integers that the session keeps.
    pub fn session_ints_mut(&mut self) -> &mut [i64] {
        &mut self.session_ints
    }
}

impl HostInputs for Inputs {
    #[allow(clippy::cast_possible_truncation, reason = "an element is cut to 32 bits, as upstream does")]
    fn element(&self, input: usize, at: i64) -> i64 {
        let Some(InputType::Tensor { dtype, .. }) = self.types.types.get(input) else { return 0 };
        let bytes = self.given.get(input).map_or(&[][..], |given| &given.bytes);
        let element =
            usize::try_from(at).ok().and_then(|at| bytes.chunks_exact(dtype.size()).nth(at)).unwrap_or_default();
        i64::from(integer(*dtype, element) as i32)
    }

    fn session_int(&self, number: usize) -> i64 {
        self.session_ints.get(number).copied().unwrap_or(0)
    }
}

/// Compares a tensor with what an input wants.
fn check_tensor((dtype, shape): (DType, &[Dim]), (found, sizes, bytes): (DType, &[u64], &[u8])) -> Result<(), Fault> {
    if found != dtype {
        return Err(Fault::WrongDType { found, wanted: dtype });
    }
    if sizes.len() != shape.len() {
        return Err(Fault::WrongRank { found: sizes.len(), wanted: shape.len() });
    }
    for (axis, (&size, dim)) in sizes.iter().zip(shape).enumerate() {
        let value = fit_32_bits(size.into())?;
        if let Some(wanted) = dim.as_fixed().filter(|&wanted| wanted != value) {
            return Err(Fault::WrongSize { axis, found: size, wanted });
        }
    }
    let wanted = byte_count(sizes, dtype).ok_or(NumberFault::TooLarge)?;
    if bytes.len() as u64 != wanted {
        return Err(Fault::WrongLength { found: bytes.len(), wanted });
    }
    Ok(())
}

/// Memory was set aside for the largest sizes that the program declares.
fn check_largest(largest: &[Option<i64>], sizes: &[u64]) -> Result<(), Fault> {
    for (largest, &size) in largest.iter().zip(sizes) {
        if let Some(high) = largest.filter(|largest| i128::from(size) > i128::from(*largest)) {
            let value = fit_32_bits(size.into())?;
            return Err(NumberFault::NotWithin { what: "a size that varies", value, low: 0, high }.into());
        }
    }
    Ok(())
}

/// Host values that enter a call must fit 32 bits, as in ExecuTorch; products of two then fit the 64 that are computed in.
fn fit_32_bits(value: i128) -> Result<i64, Fault> {
    i32::try_from(value).map(i64::from).map_err(|_| Fault::Not32Bits(value))
}
