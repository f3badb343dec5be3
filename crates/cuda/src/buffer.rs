//! Typed memory on a device.

use crate::error::{Error, Operation, Result, Status};
use crate::launch;
use crate::stream::Stream;
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

impl<T> Buffer<T> {
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn belongs_to(&self, stream: &Stream) -> bool {
        self.memory.stream.is(stream)
    }
}
