//! What is put on a stream: kernels, copies, captured graphs.
//!
//! Unsafe code is here because the driver takes addresses. A `.cu` file is trusted like unsafe code: no compiler checks that a
//! kernel stays within the sizes in its arguments.
#![allow(unsafe_code)]

use crate::buffer::{Buffer, Memory};
use crate::error::{Error, Operation, Result};
use crate::module::Loaded;
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute, CUgraphInstantiate_flags, CUlaunchAttributeID, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaStream, DriverError};
use smallvec::SmallVec;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A pointer in the argument struct of a kernel.
macro_rules! pointer {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name<T> {
            address: u64,
            elements: PhantomData<T>,
        }

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        impl<T> $name<T> {
            /// An address in memory that the caller keeps until the launch is done.
            pub(crate) fn at(address: u64) -> Self {
                Self { address, elements: PhantomData }
            }
        }

        // SAFETY: a transparent wrapper of a `u64` and a zero-sized marker. Zero is the null pointer.
        unsafe impl<T: Pod> Zeroable for $name<T> {}
        // SAFETY: as above; every bit pattern of the `u64` is a value.
        unsafe impl<T: Pod> Pod for $name<T> {}
    };
}

pointer! {
    /// The address of elements that a kernel reads: `const T*` in its argument struct. Valid for the launch it was made for; all
    /// zeros is the null pointer.
    In
}

pointer! {
    /// The address of elements that a kernel writes, and may read: `T*` in its argument struct. Otherwise as [`In`].
    Out
}

impl<T> In<T> {
    /// The same address as a pointer to another type (`const void*` in the kernel).
    pub(crate) fn cast<U>(self) -> In<U> {
        In { address: self.address, elements: PhantomData }
    }
}

/// Buffers on their way into the arguments of a launch, which borrows them.
#[derive(Debug)]
pub struct Binding<'b> {
    stream: &'b Stream,
    touched: SmallVec<[&'b Arc<Memory>; 16]>,
    others: bool,
}

impl<'b> Binding<'b> {
    /// A buffer that the kernel reads.
    pub fn read<T: Pod>(&mut self, buffer: &'b Buffer<T>) -> In<T> {
        In { address: self.bind(buffer), elements: PhantomData }
    }

    /// A buffer that the kernel writes, and may read.
    pub fn write<T: Pod>(&mut self, buffer: &'b mut Buffer<T>) -> Out<T> {
        Out { address: self.bind(buffer), elements: PhantomData }
    }

    fn bind<T>(&mut self, buffer: &'b Buffer<T>) -> u64 {
        self.others |= !buffer.belongs_to(self.stream);
        self.touched.push(buffer.memory());
        buffer.memory().address()
    }
}

/// How many threads a launch has, and what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks, in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, in x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block. Over 48 KiB only after [`Kernel::allow_shared_bytes`].
    pub shared_bytes: u32,
    /// All blocks must run at once, so that they may wait for one another.
    pub cooperative: bool,
    /// Blocks may start before the previous launch is done. The kernel must then wait for it itself
    /// (`cudaGridDependencySynchronize`, or `griddepcontrol.wait`) before it touches the same memory.
    pub overlapping: bool,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in x, and nothing else.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared_bytes: 0,
            cooperative: false,
            overlapping: false,
        }
    }

    fn is_valid(&self, most_threads: u32) -> bool {
        let threads = self.threads.iter().try_fold(1_u32, |product, count| product.checked_mul(*count));
        !self.blocks.contains(&0) && threads.is_some_and(|threads| (1..=most_threads).contains(&threads))
    }
}

/// A kernel whose one argument is a struct `A`, by value. That of a kernel whose struct is generated is a number of words, `[u64]`.
pub struct Kernel<A: ?Sized> {
    function: CudaFunction,
    module: Arc<Loaded>,
    name: &'static str,
    most_threads: u32,
    /// The bytes of the argument.
    bytes: usize,
    arguments: PhantomData<fn(&A)>,
}

impl<A: ?Sized> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("most_threads", &self.most_threads).finish()
    }
}

impl<A: ?Sized> Kernel<A> {
    /// For arguments of that many bytes.
    pub(crate) fn new(
        function: CudaFunction,
        module: &Arc<Loaded>,
        (name, bytes): (&'static str, usize),
    ) -> Result<Self> {
        // Asking also loads the function, which is not possible in a capture.
        let threads = function.max_threads_per_block().map_err(|error| Operation::Find(name).failed(error))?;
        let most_threads = u32::try_from(threads).unwrap_or(0);
        Ok(Self { function, module: Arc::clone(module), name, most_threads, bytes, arguments: PhantomData })
    }

    /// Lets launches have up to `bytes` bytes of dynamic shared memory.
    pub fn allow_shared_bytes(&mut self, bytes: u32) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // Asking for an attribute first binds the context to this thread; setting one does not.
        let set = self.function.get_attribute(attribute).and_then(|_| self.function.set_attribute(attribute, bytes));
        set.map_err(|error| Operation::Configure(self.name).failed(error))
    }

    /// The number of blocks of `threads` threads and `shared_bytes` bytes of dynamic shared memory that the whole device runs at
    /// once: the most that a cooperative launch can have.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let blocks = self.function.occupancy_max_active_blocks_per_multiprocessor(threads, shared_bytes as usize, None);
        let blocks = blocks.map_err(|error| Operation::Configure(self.name).failed(error))?;
        Ok(blocks * self.module.device.info().multiprocessors)
    }

    fn put(&self, stream: &Stream, grid: Grid, (touched, arguments): (&[&Arc<Memory>], &[u8])) -> Result<()> {
        if !grid.is_valid(self.most_threads) {
            let Grid { blocks, threads, .. } = grid;
            return Err(Error::Grid { kernel: self.name, grid: blocks, block: threads, most: self.most_threads });
        }
        if arguments.len() != self.bytes {
            return Err(Error::Arguments { kernel: self.name, here: arguments.len(), there: self.bytes });
        }
        stream.put(Operation::Launch(self.name), touched, Some(&self.module), |queue| {
            queue.context().bind_to_thread()?;
            launch(queue, &self.function, &grid, arguments)
        })
    }
}

impl Kernel<[u64]> {
    /// Puts the kernel on the stream. Addresses in `arguments` are those of memory that the caller keeps until the launch is done.
    pub(crate) fn launch_words(&self, stream: &Stream, grid: Grid, arguments: &[u64]) -> Result<()> {
        self.put(stream, grid, (&[], bytemuck::cast_slice(arguments)))
    }
}

impl<A: Pod> Kernel<A> {
    /// Puts the kernel on the stream. `arguments` makes the argument struct from buffers of that stream:
    ///
    /// ```text
    /// kernel.launch(&stream, Grid::new(blocks, 256), |bind| ScaleArgs {
    ///     x: bind.read(&x),
    ///     out: bind.write(&mut out),
    ///     len,
    ///     factor: 2.0,
    /// })?;
    /// ```
    pub fn launch<'b>(
        &self,
        stream: &'b Stream,
        grid: Grid,
        arguments: impl FnOnce(&mut Binding<'b>) -> A,
    ) -> Result<()> {
        let mut binding = Binding { stream, touched: SmallVec::new(), others: false };
        let arguments = arguments(&mut binding);
        if binding.others {
            return Err(Error::OtherStream(self.name));
        }
        self.put(stream, grid, (&binding.touched, bytemuck::bytes_of(&arguments)))
    }
}

/// `arguments` are as many bytes as the kernel takes.
fn launch(queue: &CudaStream, function: &CudaFunction, grid: &Grid, arguments: &[u8]) -> Result<(), DriverError> {
    let attribute = |id, set: bool| sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        // Both attributes are one integer at the start of the union.
        value: sys::CUlaunchAttributeValue { cooperative: set.into() },
    };
    let mut attributes = [
        attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, grid.cooperative),
        attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, grid.overlapping),
    ];
    // A plain launch names none: an attribute that is off still has to be known to the device.
    let used = match (grid.cooperative, grid.overlapping) {
        (false, false) => &mut attributes[..0],
        (true, false) => &mut attributes[..1],
        (false, true) => &mut attributes[1..],
        (true, true) => &mut attributes[..],
    };
    let [grid_x, grid_y, grid_z] = grid.blocks;
    let [block_x, block_y, block_z] = grid.threads;
    let config = sys::CUlaunchConfig {
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: grid.shared_bytes,
        hStream: queue.cu_stream(),
        attrs: used.as_mut_ptr(),
        numAttrs: u32::try_from(used.len()).unwrap_or(0),
    };
    let mut parameters = [arguments.as_ptr().cast_mut().cast()];
    let parameters = if arguments.is_empty() { std::ptr::null_mut() } else { parameters.as_mut_ptr() };
    // SAFETY: `config` and `parameters` live until the call returns, by when the driver has copied them; the kernel takes one
    // parameter of as many bytes as `arguments` has (`Kernel::put` has compared them with what `Module::kernel` asked the driver for),
    // all of which are initialised. Addresses in them come from buffers of this stream, whose memory is freed in the order of the stream, or
    // kept by the graph that this launch becomes part of; the stream keeps the module. The source of the
    // kernel is trusted to stay within those buffers.
    unsafe { sys::cuLaunchKernelEx(&config, function.cu_function(), parameters, std::ptr::null_mut()) }.result()
}

const OUT_OF_RANGE: DriverError = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);

/// Copies into memory of this stream. With `wait`, returns when that is done; without, the driver must copy through memory of
/// its own.
pub(crate) fn copy_to_device(
    queue: &CudaStream,
    memory: &Memory,
    start: usize,
    bytes: &[u8],
    wait: bool,
) -> Result<(), DriverError> {
    let address = memory.part(start, bytes.len()).ok_or(OUT_OF_RANGE)?;
    queue.context().bind_to_thread()?;
    // SAFETY: the memory has these bytes and is freed in the order of its stream. `bytes` is pageable memory, which the driver
    // copies before the call returns; where it would not, the caller asks to wait.
    unsafe { result::memcpy_htod_async(address, bytes, queue.cu_stream()) }?;
    if wait { queue.synchronize() } else { Ok(()) }
}

/// Copies out of memory of this stream, and waits for that.
pub(crate) fn copy_to_host(
    queue: &CudaStream,
    memory: &Memory,
    start: usize,
    bytes: &mut [u8],
) -> Result<(), DriverError> {
    let address = memory.part(start, bytes.len()).ok_or(OUT_OF_RANGE)?;
    queue.context().bind_to_thread()?;
    // SAFETY: the memory has these bytes, and the copy into `bytes` is over when the stream has been waited for, below.
    unsafe { result::memcpy_dtoh_async(bytes, address, queue.cu_stream()) }?;
    queue.synchronize()
}

/// Copies to memory of this stream, from memory of this stream or of one that has been waited for.
pub(crate) fn copy_on_device(queue: &CudaStream, to: &Memory, from: &Memory, count: usize) -> Result<(), DriverError> {
    let (to, from) = (to.part(0, count).ok_or(OUT_OF_RANGE)?, from.part(0, count).ok_or(OUT_OF_RANGE)?);
    queue.context().bind_to_thread()?;
    // SAFETY: both have these bytes, are different memory, and are freed in the order of their stream; `Buffer::copy_from` waits where
    // these are two.
    unsafe { result::memcpy_dtod_async(to, from, count, queue.cu_stream()) }
}

/// Memory of the host that the device copies from by itself.
#[derive(Debug)]
pub(crate) struct Pinned {
    memory: std::ptr::NonNull<u8>,
    length: usize,
    context: Arc<CudaContext>,
}

impl Pinned {
    pub(crate) fn new(context: &Arc<CudaContext>, length: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the context is bound to this thread, and `length` is not 0 where this is called.
        let memory = unsafe { result::malloc_host(length, 0) }?.cast::<u8>();
        let memory = std::ptr::NonNull::new(memory).ok_or(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        // SAFETY: these bytes have just been allocated, and nothing else uses them.
        unsafe { memory.write_bytes(0, length) };
        Ok(Self { memory, length, context: Arc::clone(context) })
    }

    /// Its bytes. The caller has waited for copies from it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory has that many initialised bytes until it is dropped, and `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.length) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: it was allocated by `malloc_host`, and whoever copied from it has waited.
        self.context.record_err(unsafe { result::free_host(self.memory.as_ptr().cast()) });
    }
}

/// Copies the first bytes of pinned memory into memory of this stream, without waiting.
pub(crate) fn copy_pinned(
    queue: &CudaStream,
    memory: &Memory,
    start: usize,
    from: &Pinned,
    count: usize,
) -> Result<(), DriverError> {
    let address = memory.part(start, count).ok_or(OUT_OF_RANGE)?;
    if count > from.length {
        return Err(OUT_OF_RANGE);
    }
    queue.context().bind_to_thread()?;
    // SAFETY: both have these bytes. The caller waits for the copy before it changes or drops `from`.
    unsafe {
        let bytes = std::slice::from_raw_parts(from.memory.as_ptr(), count);
        result::memcpy_htod_async(address, bytes, queue.cu_stream())
    }
}

/// Zeroes memory of this stream.
pub(crate) fn zero(queue: &CudaStream, memory: &Memory, count: usize) -> Result<(), DriverError> {
    let address = memory.part(0, count).ok_or(OUT_OF_RANGE)?;
    queue.context().bind_to_thread()?;
    // SAFETY: the memory has these bytes; it is freed in the order of its stream, or kept by the graph that this becomes part of.
    unsafe { result::memset_d8_async(address, 0, count, queue.cu_stream()) }
}

/// Turns off the events by which cudarc orders buffers that several streams use.
pub(crate) fn track_no_events(context: &CudaContext) {
    // SAFETY: memory is used only on the stream it was made on (`Binding` and `Buffer` check that), so it needs no other order.
    unsafe { context.disable_event_tracking() }
}

/// The milliseconds between two events, after waiting for both.
pub(crate) fn elapsed_ms(start: &CudaEvent, end: &CudaEvent) -> Result<f32, DriverError> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
    start.synchronize()?;
    end.synchronize()?;
    let mut milliseconds = 0.0;
    // SAFETY: there are events, so the library is loaded; every version of it has this function with this signature. (cudarc
    // would call a second version of it, which drivers before CUDA 12.8 lack.)
    let elapsed = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
    let elapsed = elapsed.map_err(|_| DriverError(CUresult::CUDA_ERROR_NOT_FOUND))?;
    // SAFETY: both events exist and have been recorded with their times.
    unsafe { elapsed(&mut milliseconds, start.cu_event(), end.cu_event()) }.result()?;
    Ok(milliseconds)
}

/// A graph that can be launched.
pub(crate) struct Recorded {
    graph: Option<CudaGraph>,
    queue: Arc<CudaStream>,
}

// SAFETY: the driver lets any thread use a graph as long as one does at a time, and only `&mut self` reaches it.
unsafe impl Send for Recorded {}
// SAFETY: as above; `&self` reaches nothing of the graph.
unsafe impl Sync for Recorded {}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

impl Recorded {
    pub(crate) fn launch(&mut self) -> Result<(), DriverError> {
        self.graph.as_ref().map_or(Ok(()), CudaGraph::launch)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // Destroying a graph needs the context, and this may be any thread.
        let context = self.queue.context();
        context.record_err(context.bind_to_thread());
        self.graph = None;
    }
}

/// Ends a capture. Returns the graph, or `None` if the driver has none.
pub(crate) fn end_capture(
    queue: &Arc<CudaStream>,
    flags: CUgraphInstantiate_flags,
) -> Result<Option<Recorded>, DriverError> {
    let graph = queue.end_capture(flags)?;
    Ok(graph.map(|graph| Recorded { graph: Some(graph), queue: Arc::clone(queue) }))
}
