//! The buffers of one state.
//!
//! Temporaries share one arena, in the places that the plan gives them; states, inputs and what has no largest size have memory
//! of their own; weights stay in the file. After the first call nothing is allocated, unless a call is larger than all before.

use crate::element::size_of;
use crate::window::{Target, Tensor};
use ptero_backend::{Fault, LIMIT_BYTES, NumberFault, Place, Result};
use ptero_plan::bound::Bound;
use ptero_plan::plan::{BufferKind, Plan};
use ptero_plan::prim::{Buf, ViewId};
use ptero_tensor::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Every buffer starts at a multiple of this.
const ALIGN: usize = 64;

/// Bytes that start at a cache line.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// So many zeros.
    pub(crate) fn zeroed(length: usize) -> Result<Self, Fault> {
        let mut aligned = Self::default();
        aligned.resize(length)?;
        Ok(aligned)
    }

    /// Makes room for so many bytes; what they are is not said.
    pub(crate) fn resize(&mut self, length: usize) -> Result<(), Fault> {
        if self.start + length > self.memory.len() {
            let padded = length.checked_add(ALIGN).ok_or(NumberFault::TooLarge)?;
            self.memory = Vec::new();
            // Asked first, since to ask for zeros would end the process where there is no memory.
            Vec::<u8>::new().try_reserve_exact(padded).map_err(|_| Fault::OutOfMemory { bytes: padded })?;
            self.memory = vec![0; padded];
            self.start = self.memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        }
        self.length = length;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.start + self.length).unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.length).unwrap_or_default()
    }

    /// Replaces all bytes.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.resize(bytes.len())?;
        self.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }
}

/// What all states of a plan share.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) plan: Arc<Plan>,
    /// Constants and, when the init block has run, derived buffers, by number.
    shared: Vec<Option<Bytes>>,
}

impl Layout {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let constant = |buffer: &ptero_plan::plan::Buffer| match &buffer.kind {
            // Files align their data; what is not aligned for its elements is copied once.
            BufferKind::Constant(bytes) if bytes.as_ptr().align_offset(size_of(buffer.dtype)) == 0 => {
                Some(bytes.clone())
            }
            BufferKind::Constant(bytes) => Some(aligned_copy(bytes)),
            BufferKind::Derived | BufferKind::Input(_) | BufferKind::State | BufferKind::Temporary => None,
        };
        let shared = plan.buffers.iter().map(constant).collect();
        Self { plan, shared }
    }

    /// Takes over the derived buffers that the init block has filled.
    pub(crate) fn share(&mut self, memory: Memory) {
        for ((shared, own), buffer) in self.shared.iter_mut().zip(memory.own).zip(&self.plan.buffers) {
            if matches!(buffer.kind, BufferKind::Derived) {
                *shared = Some(aligned_copy(own.bytes()));
            }
        }
    }

    /// How long a buffer of a fixed size is.
    fn fixed_length(&self, buf: Buf) -> Result<usize, Fault> {
        let buffer = self.plan.buffer(buf);
        let elements = buffer.elements.as_fixed().ok_or_else(|| Fault::NotFixed(buffer.elements.clone()))?;
        let elements = u64::try_from(elements).map_err(|_| NumberFault::NegativeSize(elements))?;
        let bytes = elements.checked_mul(buffer.dtype.bytes()).filter(|&bytes| bytes <= LIMIT_BYTES);
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(NumberFault::TooLarge.into())
    }

    /// The part of the arena that a buffer has, if that is where it lies. Binding has seen that it is large enough.
    fn place(&self, buf: Buf, bound: &Bound) -> Option<Range<usize>> {
        let place = self.plan.placement.places.get(buf.0 as usize)?.as_ref()?;
        let start = usize::try_from(place.start).ok()?;
        Some(start..start + bound.length(buf))
    }
}

/// A copy that starts at a cache line.
fn aligned_copy(bytes: &[u8]) -> Bytes {
    let mut memory = vec![0; bytes.len() + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
    memory.iter_mut().skip(start).zip(bytes).for_each(|(to, from)| *to = *from);
    Bytes::from(memory).slice(start..start + bytes.len()).unwrap_or_else(|| Bytes::from(Vec::new()))
}

/// Copies onto zeros. Of a cache most positions were never written: their pages are not touched, so that the system does not
/// have to find memory for them.
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
    /// By number of the buffer; empty for those that lie elsewhere.
    own: Vec<Aligned>,
    /// What a step reads of the buffer that it writes to, other than the very elements that it writes.
    copy: Aligned,
}

impl Memory {
    pub(crate) fn new(layout: &Layout) -> Result<Self> {
        let arena_bytes =
            usize::try_from(layout.plan.placement.arena_bytes).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        let mut own = Vec::with_capacity(layout.plan.buffers.len());
        for (index, buffer) in layout.plan.buffers.iter().enumerate() {
            let is_shared = matches!(layout.shared.get(index), Some(Some(_)));
            let here = |fault: Fault| fault.at(Place::Buffer(index));
            own.push(match buffer.kind {
                BufferKind::State | BufferKind::Derived if !is_shared => {
                    let number = u32::try_from(index).unwrap_or(u32::MAX);
                    let length = layout.fixed_length(Buf(number)).map_err(here)?;
                    Aligned::zeroed(length).map_err(here)?
                }
                _ => Aligned::default(),
            });
        }
        Ok(Self { arena: Aligned::zeroed(arena_bytes)?, own, copy: Aligned::default() })
    }

    /// Zeroes the state buffers.
    pub(crate) fn reset(&mut self, plan: &Plan) {
        for (own, buffer) in self.own.iter_mut().zip(&plan.buffers) {
            if matches!(buffer.kind, BufferKind::State) {
                own.bytes_mut().fill(0);
            }
        }
    }

    /// Takes over what lives beyond a call: states, which are still zero here, and inputs.
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
        self.own.get_mut(buf.0 as usize).map_or(Ok(()), |own| own.fill(bytes))
    }

    /// The bytes of a buffer that has memory of its own, such as an input.
    pub(crate) fn own_bytes(&self, buf: Buf) -> &[u8] {
        self.own.get(buf.0 as usize).map_or(&[], Aligned::bytes)
    }

    /// All buffers, to be read.
    pub(crate) fn sources<'a>(&'a self, layout: &'a Layout, bound: &'a Bound) -> Sources<'a> {
        let own = Around { low: &self.own, gap: self.own.len(), high: &[] };
        let arena = Around { low: self.arena.bytes(), gap: self.arena.length, high: &[] };
        Sources { layout, bound, own, arena, copied: None }
    }

    /// A view to be written, and all other buffers, to be read.
    pub(crate) fn open<'a>(
        &'a mut self,
        layout: &'a Layout,
        bound: &'a Bound,
        out: ViewId,
    ) -> Result<(Target<'a>, Sources<'a>), Fault> {
        let window = bound.window(out);
        let index = window.buf.0 as usize;
        let copied = Some((window.buf, self.copy.bytes()));
        let (bytes, own, arena): (&mut [u8], _, _) = match layout.place(window.buf, bound) {
            Some(range) => {
                let own = Around { low: &self.own, gap: self.own.len(), high: &[] };
                let (bytes, arena) = Around::cut(self.arena.bytes_mut(), range);
                (bytes, own, arena)
            }
            None => {
                let length = bound.length(window.buf);
                let (buffer, own) = Around::cut(&mut self.own, index..index + 1);
                let arena = Around { low: self.arena.bytes(), gap: self.arena.length, high: &[] };
                let buffer = buffer.first_mut().ok_or(Fault::Contract("what is written exists"))?;
                if buffer.length != length {
                    buffer.resize(length)?;
                }
                (buffer.bytes_mut(), own, arena)
            }
        };
        let sources = Sources { layout, bound, own, arena, copied };
        Ok((Target { dtype: window.dtype, window: window.clone(), bytes }, sources))
    }

    /// Keeps the bytes of a buffer that is about to be written, for the step that also reads them.
    pub(crate) fn keep(&mut self, layout: &Layout, bound: &Bound, buf: Buf) -> Result<(), Fault> {
        let mut copy = std::mem::take(&mut self.copy);
        let filled = self.sources(layout, bound).bytes(buf).and_then(|bytes| copy.fill(bytes));
        self.copy = copy;
        filled
    }
}

/// A slice without a range in its middle.
#[derive(Debug)]
struct Around<'a, T> {
    low: &'a [T],
    /// Where `high` starts in the whole.
    gap: usize,
    high: &'a [T],
}

impl<'a, T> Around<'a, T> {
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
    layout: &'a Layout,
    pub(crate) bound: &'a Bound,
    own: Around<'a, Aligned>,
    arena: Around<'a, u8>,
    copied: Option<(Buf, &'a [u8])>,
}

impl<'a> Sources<'a> {
    fn bytes(&self, buf: Buf) -> Result<&'a [u8], Fault> {
        let index = buf.0 as usize;
        if let Some(Some(shared)) = self.layout.shared.get(index) {
            return Ok(shared);
        }
        if let Some((_, bytes)) = self.copied.filter(|(copied, _)| *copied == buf) {
            return Ok(bytes);
        }
        let found = match self.layout.place(buf, self.bound) {
            Some(range) => self.arena.get(range),
            None => self.own.get(index..index + 1).and_then(|own| own.first()).map(Aligned::bytes),
        };
        found.ok_or(Fault::Contract("what is read exists"))
    }

    /// A view, to be read.
    pub(crate) fn tensor(&self, view: &ViewId) -> Result<Tensor<'a>, Fault> {
        let window = self.bound.window(*view);
        Ok(Tensor { dtype: window.dtype, bytes: self.bytes(window.buf)?, window: window.clone() })
    }

    /// A view that may be absent.
    pub(crate) fn optional(&self, view: Option<&ViewId>) -> Result<Option<Tensor<'a>>, Fault> {
        view.map(|view| self.tensor(view)).transpose()
    }
}
