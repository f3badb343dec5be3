//! Typed memory on a device.

use crate::error::{Error, Operation, Result, Status};
use crate::launch::{self, Pinned};
use crate::stream::{Event, Stream};
use bytemuck::Pod;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, DevicePtr, DriverError};
use std::marker::PhantomData;
use std::sync::Arc;

/// Memory on a device, freed after the work that uses it.
#[derive(Debug)]
pub(crate) struct Memory {
    slice: Option<CudaSlice<u8>>,
    address: u64,
    stream: Stream,
}

impl Memory {
    fn zeroed(stream: &Stream, bytes: usize) -> Result<Self> {
        // The driver refuses to allocate 0 bytes, and kernels may need an address.
        let slice = stream.now(Operation::Allocate, |queue| queue.alloc_zeros::<u8>(bytes.max(16)));
        let slice = slice.map_err(|error| match error {
            Error::Driver { status: Status(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)), .. } => {
                Error::OutOfMemory { bytes }
            }
            other => other,
        })?;
        let (address, _) = slice.device_ptr(slice.stream());
        Ok(Self { slice: Some(slice), address, stream: stream.clone() })
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The address of `count` bytes from `start` on, if it has them.
    pub(crate) fn part(&self, start: usize, count: usize) -> Option<u64> {
        let end = start.checked_add(count)?;
        let held = self.slice.as_ref().map_or(0, CudaSlice::len);
        (end <= held).then_some(self.address + start as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            self.stream.free(slice);
        }
    }
}

/// A number of elements on a device. It belongs to the stream it was made on; dropping it waits for nothing.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Arc<Memory>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Allocates `len` elements, all bits zero.
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let size = size_of::<T>();
        let bytes = len.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok());
        let memory = Memory::zeroed(stream, bytes.ok_or(Error::TooLarge { len, size })?)?;
        Ok(Self { memory: Arc::new(memory), len, elements: PhantomData })
    }

    /// A copy of these elements.
    pub fn from_slice(stream: &Stream, elements: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(stream, elements.len())?;
        buffer.write(0, elements)?;
        Ok(buffer)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream it belongs to.
    pub fn stream(&self) -> &Stream {
        &self.memory.stream
    }

    /// Replaces the elements from `start` on, after everything that is on the stream. The slice can be used again at once.
    pub fn write(&mut self, start: usize, elements: &[T]) -> Result<()> {
        let start = self.byte(start, elements.len())?;
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        if bytes.is_empty() {
            return Ok(());
        }
        let wait = self.stream().device().copies_in_place();
        self.stream().now(Operation::Write, |queue| launch::copy_to_device(queue, &self.memory, start, bytes, wait))
    }

    /// Copies all elements of another buffer to the start of this one, after everything that is on the streams of both. If these are
    /// two, the copy is waited for.
    pub fn copy_from(&mut self, from: &Self) -> Result<()> {
        let bytes = from.len * size_of::<T>();
        self.byte(0, from.len)?;
        if bytes == 0 {
            return Ok(());
        }
        let are_of_one = from.belongs_to(self.stream());
        if !are_of_one {
            from.stream().synchronize()?;
        }
        let (to, from) = (&self.memory, &from.memory);
        self.stream()
            .put(Operation::Write, &[to, from], None, |queue| launch::copy_on_device(queue, to, from, bytes))?;
        // The other stream does not wait with freeing its memory.
        if are_of_one { Ok(()) } else { self.stream().synchronize() }
    }

    /// Sets all bits to zero, after everything that is on the stream.
    pub fn zero(&mut self) -> Result<()> {
        let bytes = self.len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        self.stream().put(Operation::Zero, &[&self.memory], None, |queue| launch::zero(queue, &self.memory, bytes))
    }

    /// All elements, once everything that is on the stream is done.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        self.read_into(0, &mut elements)?;
        Ok(elements)
    }

    /// The elements from `start` on, once everything that is on the stream is done.
    pub fn read_into(&self, start: usize, elements: &mut [T]) -> Result<()> {
        let start = self.byte(start, elements.len())?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(elements);
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream().now(Operation::Read, |queue| launch::copy_to_host(queue, &self.memory, start, bytes))
    }

    /// The byte at which element `start` lies, if there are `count` elements from there on.
    fn byte(&self, start: usize, count: usize) -> Result<usize> {
        let end = start.saturating_add(count);
        if end > self.len {
            return Err(Error::OutOfRange { start, end, len: self.len });
        }
        Ok(start * size_of::<T>())
    }
}

impl Buffer<u8> {
    /// Replaces parts, each given by its first byte, in ascending order: through memory that the device reads by itself, part
    /// of which is filled while the rest is copied. What lies between the parts is then unspecified. Waits until all is copied.
    pub fn write_staged<'a>(&mut self, parts: impl Iterator<Item = (usize, &'a [u8])>) -> Result<()> {
        let mut staging = Staging::new(self)?;
        let written = parts.into_iter().try_for_each(|(start, bytes)| staging.put(start, bytes));
        let finished = written.and_then(|()| staging.send());
        // The memory of the host must stay until nothing is copied from it.
        self.stream().synchronize().and(finished)
    }
}

impl<T> Buffer<T> {
    /// Its address, for the arguments of kernels.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn belongs_to(&self, stream: &Stream) -> bool {
        self.memory.stream.is(stream)
    }
}

/// Bytes of a part that is copied at once.
const STAGED_BYTES: usize = 16 << 20;

/// Two pieces of the host's memory: one is filled while the other is copied.
struct Staging<'b> {
    memory: &'b Arc<Memory>,
    stream: &'b Stream,
    /// The one that is filled now, and the one that is copied, with the end of its copy.
    filling: Pinned,
    copying: Pinned,
    copied: Option<Event>,
    /// Where the current piece goes, and how much of it is filled.
    start: usize,
    filled: usize,
}

impl<'b> Staging<'b> {
    fn new(buffer: &'b Buffer<u8>) -> Result<Self> {
        let length = STAGED_BYTES.min(buffer.len.max(16));
        let context = buffer.stream().device().context();
        let piece = || Pinned::new(context, length).map_err(|error| Operation::Allocate.failed(error));
        let (memory, stream) = (&buffer.memory, buffer.stream());
        let (filling, copying) = (piece()?, piece()?);
        Ok(Self { memory, stream, filling, copying, copied: None, start: 0, filled: 0 })
    }

    fn put(&mut self, mut start: usize, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some(at) = start.checked_sub(self.start).filter(|at| *at < STAGED_BYTES) else {
                self.send()?;
                self.start = start;
                continue;
            };
            let Some(room) = self.filling.bytes().get_mut(at..) else {
                self.send()?;
                self.start = start;
                continue;
            };
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            self.filled = at + now.len();
            (start, bytes) = (start + now.len(), later);
            if !bytes.is_empty() {
                self.send()?;
                self.start = start;
            }
        }
        Ok(())
    }

    /// Puts the copy of the current piece on the stream, and waits until the other may be filled.
    fn send(&mut self) -> Result<()> {
        if self.filled > 0 {
            let (start, count) = (self.start, std::mem::take(&mut self.filled));
            let (memory, piece) = (self.memory, &self.filling);
            self.stream.now(Operation::Write, |queue| launch::copy_pinned(queue, memory, start, piece, count))?;
            let copied = self.copied.replace(self.stream.record()?);
            std::mem::swap(&mut self.filling, &mut self.copying);
            copied.map_or(Ok(()), |copied| copied.wait())?;
        }
        Ok(())
    }
}
