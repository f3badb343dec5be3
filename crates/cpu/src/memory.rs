//! The buffers of one state.
//!
//! Temporaries share one arena, at the offsets that the plan assigns; states, inputs and buffers without a maximal size have
//! memory of their own; weights stay in the file. After the first call nothing is allocated, unless a call is larger than all
//! before.
//!
//! Views are opened here, and here it is checked once that the elements of each lie inside its bytes, which are aligned for them:
//! binding checks views against the lengths that buffers should have, this file the bytes that they have.
#![allow(clippy::indexing_slicing, reason = "there is memory for each buffer of the plan; `resize` allocates a length")]

use crate::simd::Isa;
use crate::view::{Target, Tensor, ensure_shape};
use ptero_backend::{Fault, LIMIT_BYTES, NumberFault, Place, Result};
use ptero_plan::bound::Bound;
use ptero_plan::plan::{Buffer, BufferKind, Plan};
use ptero_plan::prim::{Buf, ViewId};
use ptero_tensor::{Bytes, Zeroed};
use std::ops::Range;
use std::sync::Arc;

/// Alignment of every buffer: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// Bytes aligned to a cache line.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Zeroed,
    start: usize,
    length: usize,
}

impl Aligned {
    fn zeroed(length: usize) -> Result<Self, Fault> {
        let mut aligned = Self::default();
        aligned.resize(length)?;
        Ok(aligned)
    }

    fn copy_of(bytes: &[u8]) -> Result<Self, Fault> {
        let mut aligned = Self::default();
        aligned.fill(bytes)?;
        Ok(aligned)
    }

    /// Sets the length; the content is unspecified.
    fn resize(&mut self, length: usize) -> Result<(), Fault> {
        if self.start + length > self.memory.len() {
            let padded = length.checked_add(ALIGN).ok_or(NumberFault::TooLarge)?;
            // Empty until there is other memory.
            *self = Self::default();
            self.memory = Zeroed::new(padded).map_err(|_| Fault::OutOfMemory { bytes: padded })?;
            self.start = self.memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        }
        self.length = length;
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    /// Replaces all bytes.
    fn fill(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.resize(bytes.len())?;
        self.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Makes all bytes zero.
    fn clear(&mut self) -> Result<(), Fault> {
        // No memory has no address to align.
        if self.memory.is_empty() {
            return Ok(());
        }
        self.memory.clear().map_err(|_| Fault::OutOfMemory { bytes: self.length })?;
        self.start = self.memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Ok(())
    }

    fn into_shared(self) -> Result<Bytes, Fault> {
        let range = self.start..self.start + self.length;
        let bytes = self.memory.into_bytes().map_err(|_| Fault::OutOfMemory { bytes: self.length })?;
        bytes.slice(range).ok_or(Fault::Contract("aligned bytes lie inside their memory"))
    }
}

/// What all states of a plan share.
#[derive(Debug)]
pub(crate) struct SharedBuffers {
    pub(crate) plan: Arc<Plan>,
    pub(crate) isa: Isa,
    /// Constants and, once the init block has run, derived buffers, by buffer.
    shared: Vec<Option<Bytes>>,
}

impl SharedBuffers {
    pub(crate) fn new(plan: Arc<Plan>, isa: Isa) -> Result<Self> {
        let constant = |buffer: &Buffer| match &buffer.kind {
            // Files align their data; bytes that are not aligned for their elements are copied once.
            BufferKind::Constant(bytes) if bytes.as_ptr().align_offset(buffer.dtype.size()) == 0 => {
                Ok(Some(bytes.clone()))
            }
            BufferKind::Constant(bytes) => Aligned::copy_of(bytes)?.into_shared().map(Some),
            BufferKind::Derived | BufferKind::Input(_) | BufferKind::State | BufferKind::Temporary => Ok(None),
        };
        if plan.views.iter().any(|view| view.dtype != plan.buffer(view.buf).dtype) {
            return Err(Fault::Contract("a view has the element type of its buffer").into());
        }
        let shared = plan.buffers.iter().map(constant).collect::<Result<_, Fault>>()?;
        Ok(Self { plan, isa, shared })
    }

    /// Copies constants into huge pages, and lets go of their pages of files.
    pub(crate) fn copy_to_huge_pages(&mut self) -> Result<(), Fault> {
        let windows: Vec<Bytes> = self.shared.iter().flatten().cloned().collect();
        let bytes = windows.iter().map(|window| window.len()).sum();
        let copies = Bytes::copy_to_huge_pages(&windows, ALIGN).map_err(|_| Fault::OutOfMemory { bytes })?;
        self.shared.iter_mut().flatten().zip(copies).for_each(|(shared, copy)| *shared = copy);
        windows.iter().for_each(Bytes::release);
        Ok(())
    }

    /// The bytes of a buffer that all states share.
    pub(crate) fn shared_bytes(&self, buf: Buf) -> Option<&[u8]> {
        self.shared.get(buf.0 as usize)?.as_deref()
    }

    /// Takes over the derived buffers that the init block has filled.
    pub(crate) fn take_derived(&mut self, memory: Memory) -> Result<()> {
        for ((shared, own), buffer) in self.shared.iter_mut().zip(memory.own).zip(&self.plan.buffers) {
            if matches!(buffer.kind, BufferKind::Derived) {
                *shared = Some(own.into_shared()?);
            }
        }
        Ok(())
    }

    /// The range of a buffer in the arena, if it is there. Binding has checked that it is large enough.
    fn arena_range(&self, buf: Buf, bound: &Bound) -> Option<Range<usize>> {
        let place = self.plan.placement.places.get(buf.0 as usize)?.as_ref()?;
        let start = usize::try_from(place.start).ok()?;
        Some(start..start + bound.length(buf))
    }
}

/// The bytes of a buffer of fixed size.
fn fixed_length(buffer: &Buffer) -> Result<usize, Fault> {
    let elements = buffer.elements.as_fixed().ok_or_else(|| Fault::NotFixed(buffer.elements.clone()))?;
    let elements = u64::try_from(elements).map_err(|_| NumberFault::NegativeSize(elements))?;
    let bytes = elements.checked_mul(buffer.dtype.bytes()).filter(|&bytes| bytes <= LIMIT_BYTES);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(NumberFault::TooLarge.into())
}

/// Copies onto zeros, skipping pages of zeros: most positions of a cache were never written, and the system need not provide
/// memory for them.
fn copy_written(zeros: &mut [u8], from: &[u8]) {
    const PAGE: usize = 4096;
    const UNWRITTEN: [u8; PAGE] = [0; PAGE];
    for (to, from) in zeros.chunks_mut(PAGE).zip(from.chunks(PAGE)) {
        if !UNWRITTEN.starts_with(from) {
            to.copy_from_slice(from);
        }
    }
}

/// The buffers of one state.
#[derive(Debug)]
pub(crate) struct Memory {
    arena: Aligned,
    /// By buffer; empty for shared buffers and those in the arena.
    own: Vec<Aligned>,
    /// A copy of the buffer that a step writes, for a step that also reads other elements of it.
    copy: Aligned,
}

impl Memory {
    pub(crate) fn new(shared: &SharedBuffers) -> Result<Self> {
        let arena_bytes =
            usize::try_from(shared.plan.placement.arena_bytes).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        let mut own = Vec::with_capacity(shared.plan.buffers.len());
        for (index, buffer) in shared.plan.buffers.iter().enumerate() {
            let is_shared = matches!(shared.shared.get(index), Some(Some(_)));
            let zeroed = match buffer.kind {
                BufferKind::State | BufferKind::Derived if !is_shared => fixed_length(buffer).and_then(Aligned::zeroed),
                _ => Ok(Aligned::default()),
            };
            own.push(zeroed.map_err(|fault| fault.at(Place::Buffer(index)))?);
        }
        Ok(Self { arena: Aligned::zeroed(arena_bytes)?, own, copy: Aligned::default() })
    }

    /// Zeroes the state buffers.
    pub(crate) fn reset(&mut self, plan: &Plan) -> Result<(), Fault> {
        let is_state = |buffer: &Buffer| matches!(buffer.kind, BufferKind::State);
        let mut states = self.own.iter_mut().zip(&plan.buffers).filter(|(_, buffer)| is_state(buffer));
        states.try_for_each(|(own, _)| own.clear())
    }

    /// Gives the arena's pages back to the system; new ones come when they are written.
    pub(crate) fn empty_arena(&mut self) -> Result<(), Fault> {
        self.arena.clear()
    }

    /// Copies what outlives a call: states, which are still zero here, and inputs.
    pub(crate) fn copy_kept(&mut self, from: &Self, plan: &Plan) -> Result<()> {
        for (index, ((own, from), buffer)) in self.own.iter_mut().zip(&from.own).zip(&plan.buffers).enumerate() {
            match buffer.kind {
                BufferKind::State => copy_written(own.bytes_mut(), from.bytes()),
                BufferKind::Input(_) => own.fill(from.bytes()).map_err(|fault| fault.at(Place::Buffer(index)))?,
                BufferKind::Constant(_) | BufferKind::Derived | BufferKind::Temporary => {}
            }
        }
        Ok(())
    }

    /// Replaces the bytes of an input.
    pub(crate) fn fill(&mut self, buf: Buf, bytes: &[u8]) -> Result<(), Fault> {
        self.own[buf.0 as usize].fill(bytes)
    }

    /// The bytes of an input.
    pub(crate) fn own_bytes(&self, buf: Buf) -> &[u8] {
        self.own[buf.0 as usize].bytes()
    }

    /// All buffers, to be read.
    pub(crate) fn sources<'a>(&'a self, shared: &'a SharedBuffers, bound: &'a Bound) -> Sources<'a> {
        let (own, arena) = (GapSlice::whole(&self.own), GapSlice::whole(self.arena.bytes()));
        Sources { shared, bound, own, arena, copied: None }
    }

    /// A view to be written, and all other buffers, to be read.
    pub(crate) fn open<'a>(
        &'a mut self,
        shared: &'a SharedBuffers,
        bound: &'a Bound,
        out: ViewId,
    ) -> Result<(Target<'a>, Sources<'a>), Fault> {
        let view = bound.view(out);
        let index = view.buf.0 as usize;
        let copied = Some((view.buf, self.copy.bytes()));
        let (bytes, own, arena): (&mut [u8], _, _) = match shared.arena_range(view.buf, bound) {
            Some(range) => {
                let (bytes, arena) = GapSlice::cut(self.arena.bytes_mut(), range);
                (bytes, GapSlice::whole(&self.own), arena)
            }
            None => {
                let length = bound.length(view.buf);
                let (buffer, own) = GapSlice::cut(&mut self.own, index..index + 1);
                let buffer = buffer.first_mut().ok_or(Fault::Contract("a buffer that is written exists"))?;
                if buffer.length != length {
                    buffer.resize(length)?;
                }
                (buffer.bytes_mut(), own, GapSlice::whole(self.arena.bytes()))
            }
        };
        if bytes.len() < bound.length(view.buf) {
            return Err(TOO_SHORT);
        }
        let sources = Sources { shared, bound, own, arena, copied };
        Ok((Target { isa: shared.isa, dtype: view.dtype, view: view.clone(), bytes }, sources))
    }

    /// Copies a buffer that is about to be written, for a step that also reads it.
    pub(crate) fn keep(&mut self, shared: &SharedBuffers, bound: &Bound, buf: Buf) -> Result<(), Fault> {
        let mut copy = std::mem::take(&mut self.copy);
        let filled = self.sources(shared, bound).bytes(buf).and_then(|bytes| copy.fill(bytes));
        self.copy = copy;
        filled
    }
}

const TOO_SHORT: Fault = Fault::Contract("a buffer has the length that was bound");

/// A slice without a range in its middle.
#[derive(Debug)]
struct GapSlice<'a, T> {
    low: &'a [T],
    /// The index of the first element of `high`.
    gap: usize,
    high: &'a [T],
}

impl<'a, T> GapSlice<'a, T> {
    fn whole(whole: &'a [T]) -> Self {
        Self { low: whole, gap: whole.len(), high: &[] }
    }

    fn cut(whole: &'a mut [T], range: Range<usize>) -> (&'a mut [T], Self) {
        let end = range.end.min(whole.len());
        let (head, high) = whole.split_at_mut(end);
        let (low, middle) = head.split_at_mut(range.start.min(end));
        (middle, Self { low, gap: end, high })
    }

    fn get(&self, range: Range<usize>) -> Option<&'a [T]> {
        match range.start.checked_sub(self.gap) {
            Some(start) => self.high.get(start..range.end.checked_sub(self.gap)?),
            None => self.low.get(range),
        }
    }
}

/// The buffers that a step reads.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    shared: &'a SharedBuffers,
    pub(crate) bound: &'a Bound,
    own: GapSlice<'a, Aligned>,
    arena: GapSlice<'a, u8>,
    copied: Option<(Buf, &'a [u8])>,
}

impl<'a> Sources<'a> {
    fn bytes(&self, buf: Buf) -> Result<&'a [u8], Fault> {
        let index = buf.0 as usize;
        if let Some(Some(shared)) = self.shared.shared.get(index) {
            return Ok(shared);
        }
        if let Some((_, bytes)) = self.copied.filter(|(copied, _)| *copied == buf) {
            return Ok(bytes);
        }
        let found = match self.shared.arena_range(buf, self.bound) {
            Some(range) => self.arena.get(range),
            None => self.own.get(index..index + 1).and_then(|own| own.first()).map(Aligned::bytes),
        };
        found.ok_or(Fault::Contract("a buffer that is read exists"))
    }

    /// A view, to be read.
    pub(crate) fn tensor(&self, view: &ViewId) -> Result<Tensor<'a>, Fault> {
        let view = self.bound.view(*view);
        let bytes = self.bytes(view.buf)?.get(..self.bound.length(view.buf)).ok_or(TOO_SHORT)?;
        Ok(Tensor { isa: self.shared.isa, dtype: view.dtype, view: view.clone(), bytes })
    }

    /// A view of the shape that a step needs, to be read.
    pub(crate) fn shaped(&self, view: &ViewId, shape: &[usize]) -> Result<Tensor<'a>, Fault> {
        ensure_shape(self.bound.view(*view), shape)?;
        self.tensor(view)
    }

    /// An optional view, to be read.
    pub(crate) fn optional(&self, view: Option<&ViewId>) -> Result<Option<Tensor<'a>>, Fault> {
        view.map(|view| self.tensor(view)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_empty_after_there_was_no_memory_for_it() {
        let mut buffer = Aligned::copy_of(&[1, 2, 3]).expect("there is memory");
        assert!(buffer.resize(isize::MAX.cast_unsigned()).is_err());
        assert_eq!(buffer.bytes(), []);
        buffer.fill(&[4]).expect("there is memory");
        assert_eq!(buffer.bytes(), [4]);
    }
}
