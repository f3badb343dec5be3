//! The buffers and host values of one state.

use super::number::{Element, Number};
use super::tensor::{Tensor, Window};
use crate::error::{Fault, Place, Result};
use ptero_plan::plan::{BufferKind, Plan};
use ptero_plan::prim::View;
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::Bytes;
use std::sync::Arc;

/// The most that one buffer may hold.
pub(crate) const LIMIT_BYTES: u64 = 16 << 30;

/// The bytes of a buffer.
#[derive(Debug)]
enum Storage {
    /// Read-only, and the same for all states.
    Shared(Bytes),
    /// This state's own.
    Own(Vec<u8>),
}

/// The buffers and host values of one state.
#[derive(Debug)]
pub(super) struct Memory {
    plan: Arc<Plan>,
    buffers: Vec<Storage>,
    /// The host values, by number.
    pub(super) values: Vec<i64>,
    /// Where unseeded random bits get their keys.
    pub(super) keys: KeySequence,
}

impl Memory {
    /// Zeroed memory. `derived` holds the buffers that the init block has filled, or nothing before it has run.
    pub(super) fn new(plan: Arc<Plan>, derived: &[Option<Bytes>], seed: u64) -> Result<Self> {
        let mut buffers = Vec::with_capacity(plan.buffers.len());
        for (index, buffer) in plan.buffers.iter().enumerate() {
            buffers.push(match (&buffer.kind, derived.get(index)) {
                (BufferKind::Constant(bytes), _) | (BufferKind::Derived, Some(Some(bytes))) => {
                    Storage::Shared(bytes.clone())
                }
                (BufferKind::Derived | BufferKind::State, _) => {
                    let length = byte_length(&plan, index, &[]).map_err(|fault| fault.at(Place::Buffer(index)))?;
                    let mut bytes = Vec::new();
                    zero(&mut bytes, length).map_err(|fault| fault.at(Place::Buffer(index)))?;
                    Storage::Own(bytes)
                }
                (BufferKind::Input(_) | BufferKind::Temporary, _) => Storage::Own(Vec::new()),
            });
        }
        let values = vec![0; plan.vars as usize];
        Ok(Self { plan, buffers, values, keys: KeySequence::new(seed) })
    }

    /// The derived buffers, for all states to share. To be called when the init block has run.
    pub(super) fn into_derived(self) -> Vec<Option<Bytes>> {
        let kinds = self.plan.buffers.iter().map(|buffer| &buffer.kind);
        let share = |(storage, kind): (Storage, &BufferKind)| match (storage, kind) {
            (Storage::Own(bytes), BufferKind::Derived) => Some(Bytes::from(bytes)),
            (Storage::Own(_) | Storage::Shared(_), _) => None,
        };
        self.buffers.into_iter().zip(kinds).map(share).collect()
    }

    /// A copy of what lives beyond a call.
    pub(super) fn fork(&self, seed: u64) -> Result<Self> {
        let mut buffers = Vec::with_capacity(self.buffers.len());
        for (index, (storage, buffer)) in self.buffers.iter().zip(&self.plan.buffers).enumerate() {
            buffers.push(match storage {
                Storage::Shared(bytes) => Storage::Shared(bytes.clone()),
                Storage::Own(_) if matches!(buffer.kind, BufferKind::Temporary) => Storage::Own(Vec::new()),
                Storage::Own(bytes) => {
                    let mut copy = Vec::new();
                    zero(&mut copy, bytes.len()).map_err(|fault| fault.at(Place::Buffer(index)))?;
                    copy.copy_from_slice(bytes);
                    Storage::Own(copy)
                }
            });
        }
        let (plan, values) = (Arc::clone(&self.plan), vec![0; self.values.len()]);
        Ok(Self { plan, buffers, values, keys: KeySequence::new(seed) })
    }

    /// Forgets what lives only within a call.
    pub(super) fn start_call(&mut self) {
        self.each_own(|kind, bytes| {
            if matches!(kind, BufferKind::Temporary) {
                bytes.clear();
            }
        });
    }

    /// Zeroes the state buffers.
    pub(super) fn reset(&mut self) {
        self.each_own(|kind, bytes| {
            if matches!(kind, BufferKind::State) {
                bytes.fill(0);
            }
        });
    }

    fn each_own(&mut self, mut change: impl FnMut(&BufferKind, &mut Vec<u8>)) {
        for (storage, buffer) in self.buffers.iter_mut().zip(&self.plan.buffers) {
            if let Storage::Own(bytes) = storage {
                change(&buffer.kind, bytes);
            }
        }
    }

    /// Replaces the bytes of an input.
    pub(super) fn fill(&mut self, buffer: usize, data: &[u8]) {
        if let Some(Storage::Own(bytes)) = self.buffers.get_mut(buffer) {
            bytes.clear();
            bytes.extend_from_slice(data);
        }
    }

    /// A view, to be read.
    pub(super) fn tensor(&self, view: &View) -> Result<Tensor<'_>, Fault> {
        let element = Element::new(view.dtype)?;
        let bytes: &[u8] = match self.buffers.get(view.buf.0 as usize) {
            Some(Storage::Shared(bytes)) => bytes,
            Some(Storage::Own(bytes)) => bytes,
            None => &[],
        };
        let window = Window::new(view, &self.values, bytes.len() / element.bytes())?;
        Ok(Tensor { element, window, bytes })
    }

    /// A view that may be absent.
    pub(super) fn optional(&self, view: Option<&View>) -> Result<Option<Tensor<'_>>, Fault> {
        view.map(|view| self.tensor(view)).transpose()
    }

    /// A view, to be written; its buffer gets its memory if it is the first write of the call.
    pub(super) fn target(&mut self, view: &View) -> Result<(Element, Window, &mut [u8]), Fault> {
        let element = Element::new(view.dtype)?;
        let index = view.buf.0 as usize;
        let length = byte_length(&self.plan, index, &self.values)?;
        let Some(Storage::Own(bytes)) = self.buffers.get_mut(index) else {
            return Err(Fault::Contract("what is written is not shared"));
        };
        if bytes.len() != length {
            zero(bytes, length)?;
        }
        let window = Window::new(view, &self.values, bytes.len() / element.bytes())?;
        Ok((element, window, bytes))
    }

    /// Writes the elements of a view, given in row-major order.
    pub(super) fn store(&mut self, view: &View, numbers: Vec<Number>) -> Result<(), Fault> {
        self.store_with_last(view, &[], numbers)
    }

    /// Writes the elements of a view, given in the row-major order that it has with these axes moved to the end.
    pub(super) fn store_with_last(&mut self, view: &View, axes: &[usize], numbers: Vec<Number>) -> Result<(), Fault> {
        let (element, window, bytes) = self.target(view)?;
        let window = window.with_last(axes)?;
        if window.count() != numbers.len() {
            return Err(Fault::Contract("the result has the shape of the operands"));
        }
        for (place, number) in window.offsets().zip(numbers) {
            element.store(bytes, place, number);
        }
        Ok(())
    }
}

/// How long a buffer must be in a call with these host values.
fn byte_length(plan: &Plan, index: usize, values: &[i64]) -> Result<usize, Fault> {
    let missing = Fault::NoSuch { what: "buffer", index, count: plan.buffers.len() };
    let buffer = plan.buffers.get(index).ok_or(missing)?;
    let elements = buffer.elements.eval(values);
    let elements = u64::try_from(elements).map_err(|_| Fault::NegativeSize(elements))?;
    let bytes = elements.checked_mul(buffer.dtype.bytes()).filter(|&bytes| bytes <= LIMIT_BYTES);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(Fault::TooLarge { limit: LIMIT_BYTES })
}

fn zero(bytes: &mut Vec<u8>, length: usize) -> Result<(), Fault> {
    bytes.clear();
    bytes.try_reserve_exact(length).map_err(|_| Fault::OutOfMemory { bytes: length })?;
    bytes.resize(length, 0);
    Ok(())
}
