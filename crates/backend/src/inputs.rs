//! What a caller gives, compared with what a plan wants: the same on every device.

use crate::error::{Fault, Place, Result};
use crate::reference::{Element, LIMIT_BYTES};
use crate::traits::InputValue;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::plan::{Input, Plan};
use ptero_plan::prim::Buf;
use ptero_tensor::{DType, byte_count};

/// Which inputs of a state were given, and the host values that they fill.
#[derive(Clone, Debug)]
pub struct Inputs {
    given: Vec<Given>,
    /// The host values that inputs have filled in the run that starts.
    known: Vec<Option<i64>>,
}

#[derive(Clone, Debug, Default)]
struct Given {
    is_written: bool,
    values: Vec<(Var, i64)>,
}

impl Inputs {
    /// None is given yet.
    pub fn new(plan: &Plan) -> Self {
        Self { given: vec![Given::default(); plan.inputs.len()], known: vec![None; plan.vars as usize] }
    }

    /// Takes note of an input, and says which buffer gets which bytes. One that does not fit is refused, and the earlier
    /// one stays.
    pub fn accept<'a>(&mut self, plan: &Plan, input: usize, value: InputValue<'a>) -> Result<Option<(Buf, &'a [u8])>> {
        let count = self.given.len();
        let (Some(wanted), Some(given)) = (plan.inputs.get(input), self.given.get_mut(input)) else {
            return Err(Fault::NoSuch { what: "input", index: input, count }.into());
        };
        let here = |fault: Fault| fault.at(Place::Input(input));
        let filled = match (wanted, value) {
            (Input::Int(var), InputValue::Int(value)) => {
                let value = fit_32_bits(value.into()).map_err(here)?;
                given.values.clear();
                given.values.push((*var, value));
                None
            }
            (Input::Tensor { buf, dtype, shape }, InputValue::Tensor { dtype: found, shape: sizes, bytes }) => {
                check_tensor((*dtype, shape), (found, sizes, bytes)).map_err(here)?;
                check_largest(plan, shape, sizes).map_err(here)?;
                given.values.clear();
                let varying = shape.iter().zip(sizes).filter_map(|(dim, &size)| Some((dim.as_var()?, size)));
                for (var, size) in varying {
                    given.values.push((var, fit_32_bits(size.into()).map_err(here)?));
                }
                Some((*buf, bytes))
            }
            (Input::Int(_), InputValue::Tensor { .. }) => {
                return Err(here(Fault::WrongKind { found: "a tensor", wanted: "an integer" }));
            }
            (Input::Tensor { .. }, InputValue::Int(_)) => {
                return Err(here(Fault::WrongKind { found: "an integer", wanted: "a tensor" }));
            }
        };
        given.is_written = true;
        Ok(filled)
    }

    /// The host values at the start of a run: those that inputs fill, and zeros.
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
    let wanted = byte_count(sizes, dtype).ok_or(Fault::TooLarge { limit: LIMIT_BYTES })?;
    if bytes.len() as u64 != wanted {
        return Err(Fault::WrongLength { found: bytes.len(), wanted });
    }
    Element::new(dtype).map(|_| ())
}

/// Memory was set aside for the largest sizes that the program declares.
fn check_largest(plan: &Plan, shape: &[Dim], sizes: &[u64]) -> Result<(), Fault> {
    for (dim, &size) in shape.iter().zip(sizes) {
        let declared = plan.largest.iter().find(|(var, _)| dim.as_var() == Some(*var));
        if let Some((_, high)) = declared.filter(|(_, largest)| i128::from(size) > i128::from(*largest)) {
            let value = fit_32_bits(size.into())?;
            return Err(Fault::NotWithin { what: "a size that varies", value, low: 0, high: *high });
        }
    }
    Ok(())
}

/// Host values that enter a call must fit 32 bits, as in ExecuTorch; products of two then fit the 64 that are computed in.
fn fit_32_bits(value: i128) -> Result<i64, Fault> {
    i32::try_from(value).map(i64::from).map_err(|_| Fault::Not32Bits(value))
}
