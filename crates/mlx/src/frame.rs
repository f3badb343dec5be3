//! The arrays and numbers of one call while it is built.

use crate::bridge::ffi::{Kind, Values};
use crate::compiled::Compiled;
use crate::kind::kind;
use ptero_backend::{Error, Fault, LIMIT_BYTES, NumberFault, Place};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{StateId, Value};
use ptero_sampling::threefry::KeySequence;
use smallvec::SmallVec;
use std::pin::Pin;

/// A slot that is absent.
pub(crate) const NONE: u32 = u32::MAX;

/// The sizes of an array.
pub(crate) type Sizes = SmallVec<[i32; 6]>;

/// An index that is checked once the step has run: where, and the size of its axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexCheck {
    pub(crate) place: Place,
    pub(crate) size: i64,
}

/// The arrays and numbers of one call.
pub(crate) struct Frame<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) values: Pin<&'a mut Values>,
    pub(crate) host: Vec<i64>,
    pub(crate) keys: &'a mut KeySequence,
    /// By state: `true` if the call has replaced it.
    pub(crate) written: Vec<bool>,
    /// The indices that are still to be checked, in order.
    pub(crate) checks: Vec<IndexCheck>,
    /// The items that the host knows without the device.
    pub(crate) folded: Vec<Var>,
    /// The node that is built.
    pub(crate) place: Place,
    /// The next slot that nobody uses.
    next: u32,
}

/// What MLX says is wrong.
pub(crate) fn device(error: cxx::Exception) -> Fault {
    Fault::Device(error.what().to_owned())
}

impl<'a> Frame<'a> {
    pub(crate) fn new(
        compiled: &'a Compiled,
        values: Pin<&'a mut Values>,
        host: Vec<i64>,
        keys: &'a mut KeySequence,
    ) -> Self {
        let written = vec![false; compiled.graph.states.len()];
        let (place, next) = (Place::Step { origin: (0, 0), name: "" }, compiled.slots.temporaries);
        Self { compiled, values, host, keys, written, checks: Vec::new(), folded: Vec::new(), place, next }
    }

    /// The arrays.
    pub(crate) fn arrays(&mut self) -> Pin<&mut Values> {
        self.values.as_mut()
    }

    /// A slot for an intermediate result.
    pub(crate) fn temporary(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Where the next intermediate result goes.
    pub(crate) fn mark(&self) -> u32 {
        self.next
    }

    /// Forgets intermediate results since a mark. Their slots are used again, so they need not be emptied.
    pub(crate) fn release(&mut self, mark: u32) {
        self.next = mark;
    }

    pub(crate) fn state(&self, state: StateId) -> u32 {
        self.compiled.slots.states + state.0
    }

    pub(crate) fn kind(&self, value: Value) -> Result<Kind, Fault> {
        kind(self.compiled.graph.ty(value).dtype)
    }

    pub(crate) fn eval(&self, dim: &Dim) -> i64 {
        dim.eval(&self.host)
    }

    /// The declared sizes of a value.
    pub(crate) fn shape(&self, value: Value) -> Result<Sizes, Fault> {
        let ty = self.compiled.graph.ty(value);
        sizes(&ty.shape, ty.dtype.bytes(), &self.host)
    }

    /// Sets a host value.
    pub(crate) fn set(&mut self, var: Var, number: i64) {
        if let Some(slot) = self.host.get_mut(var.0 as usize) {
            *slot = number;
        }
    }

    /// Sets items that the host computed.
    pub(crate) fn fold(&mut self, items: Vec<(Var, i64)>) {
        items.iter().for_each(|(var, number)| self.set(*var, *number));
        self.folded = items.into_iter().map(|(var, _)| var).collect();
    }

    /// Clips indices to an axis, and has them checked once the step has run.
    pub(crate) fn checked(&mut self, index: u32, coordinate: u32, size: i32, wraps: bool) -> Result<u32, Fault> {
        let clipped = self.temporary();
        let size = i64::from(size);
        self.values.as_mut().check_index(clipped, index, coordinate, size, wraps).map_err(device)?;
        self.checks.push(IndexCheck { place: self.place, size });
        Ok(clipped)
    }

    /// Evaluates the checks so far.
    ///
    /// # Errors
    /// The first that fails.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let slot = self.temporary();
        let count = self.values.as_mut().take_checks(slot).map_err(device)?;
        let mut bytes = vec![0; count * 8];
        if count > 0 {
            self.values.as_mut().read(slot, &mut bytes).map_err(device)?;
        }
        let checks = std::mem::take(&mut self.checks);
        verdict(&checks, &bytes)
    }
}

/// The first check that fails. Two numbers each: the least index and the greatest place.
pub(crate) fn verdict(checks: &[IndexCheck], bytes: &[u8]) -> Result<(), Error> {
    let numbers: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    for (check, [least, greatest]) in checks.iter().zip(numbers.as_chunks::<2>().0) {
        let index = if *least < 0 { *least } else { *greatest };
        if *least < 0 || *greatest >= check.size {
            let size = usize::try_from(check.size).unwrap_or(0);
            return Err(Fault::IndexOutside { index, size }.at(check.place));
        }
    }
    Ok(())
}

/// Sizes as numbers.
pub(crate) fn sizes(dims: &[Dim], element: u64, host: &[i64]) -> Result<Sizes, Fault> {
    let (mut sizes, mut bytes, mut is_empty) = (Sizes::with_capacity(dims.len()), element, false);
    for dim in dims {
        let size = dim.eval(host);
        let count = u64::try_from(size).map_err(|_| NumberFault::NegativeSize(size))?;
        is_empty |= count == 0;
        bytes = bytes.saturating_mul(count.max(1));
        sizes.push(i32::try_from(size).map_err(|_| NumberFault::TooLarge)?);
    }
    if bytes <= LIMIT_BYTES || is_empty { Ok(sizes) } else { Err(NumberFault::TooLarge.into()) }
}

/// A number that MLX takes in 32 bits.
pub(crate) fn small(number: i64) -> Result<i32, Fault> {
    i32::try_from(number).map_err(|_| Fault::Not32Bits(number.into()))
}

/// An axis.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "axes are few")]
pub(crate) fn axis(axis: usize) -> i32 {
    axis as i32
}
