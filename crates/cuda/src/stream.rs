//! Streams (queues of work that is done in order), events on them, and captured graphs.
//!
//! Every buffer belongs to the stream it was made on, and every call that touches it goes through that stream. So nothing
//! has to be waited for but what the host reads, and memory is freed after the work that still uses it.

use crate::buffer::Memory;
use crate::context::Device;
use crate::error::{Error, Operation, Result};
use crate::launch::{self, Recorded};
use crate::module::Loaded;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue of work on a device. Clones are the same queue; threads that share one take turns. Dropping the last, and the last
/// buffer and graph of it, waits for the work.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    device: Device,
    queue: Arc<CudaStream>,
    held: Mutex<Held>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Modules go next, and kernels of theirs may still run. A failure shows in the next call.
        self.device.context().record_err(self.queue.synchronize());
    }
}

/// What the work on a stream needs.
#[derive(Debug, Default)]
struct Held {
    /// Those whose kernels were put on the stream.
    modules: Vec<Arc<Loaded>>,
    /// The capture under way.
    capture: Option<Capture>,
}

#[derive(Debug, Default)]
struct Capture {
    /// What the captured work touches: it must live as long as the graph.
    kept: Vec<Arc<Memory>>,
    /// Memory dropped during the capture: freeing it now would become part of the graph.
    dropped: Vec<CudaSlice<u8>>,
}

impl Device {
    /// A new stream; it does not wait for others.
    pub fn stream(&self) -> Result<Stream> {
        let queue = self.context().new_stream().map_err(|error| Operation::NewStream.failed(error))?;
        Ok(Stream(Arc::new(Queue { device: self.clone(), queue, held: Mutex::default() })))
    }
}

impl Stream {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until everything on the stream is done. An error may come from any work before.
    pub fn synchronize(&self) -> Result<()> {
        self.now(Operation::Synchronize, |queue| queue.synchronize())
    }

    /// A point in time: when everything that is on the stream by now is done.
    pub fn record(&self) -> Result<Event> {
        self.now(Operation::Time, |queue| queue.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))).map(Event)
    }

    /// Records what `work` puts on the stream, without doing it. The graph can then be replayed any number of times, on
    /// whatever the same buffers hold by then.
    ///
    /// Launches and [`Buffer::zero`](crate::Buffer::zero) can be recorded; everything else of this stream fails meanwhile.
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Captured> {
        let recording = Recording::start(self)?;
        work(self)?;
        recording.finish()
    }

    /// Returns `true` if both are the same stream.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something on the stream that cannot be captured.
    pub(crate) fn now<T>(
        &self,
        doing: Operation,
        work: impl FnOnce(&Arc<CudaStream>) -> Result<T, DriverError>,
    ) -> Result<T> {
        let held = self.held();
        if held.capture.is_some() {
            return Err(Error::Capturing(doing));
        }
        work(&self.0.queue).map_err(|error| doing.failed(error))
    }

    /// Puts work on the stream that touches this memory and runs a kernel of this module. The stream keeps the module; if the
    /// work is captured, the graph keeps the memory.
    pub(crate) fn put(
        &self,
        doing: Operation,
        memory: &[&Arc<Memory>],
        module: Option<&Arc<Loaded>>,
        work: impl FnOnce(&CudaStream) -> Result<(), DriverError>,
    ) -> Result<()> {
        let mut held = self.held();
        if let Some(module) = module.filter(|module| !held.modules.iter().any(|known| Arc::ptr_eq(known, module))) {
            held.modules.push(Arc::clone(module));
        }
        if let Some(capture) = &mut held.capture {
            capture.kept.extend(memory.iter().copied().cloned());
        }
        work(&self.0.queue).map_err(|error| doing.failed(error))
    }

    /// Frees memory of this stream, after everything that is on the stream.
    pub(crate) fn free(&self, memory: CudaSlice<u8>) {
        match &mut self.held().capture {
            Some(capture) => capture.dropped.push(memory),
            None => self.free_now(memory),
        }
    }

    fn free_now(&self, memory: CudaSlice<u8>) {
        let context = self.device().context();
        // Freeing needs the context, and this may be any thread; a failure shows in the next call.
        context.record_err(context.bind_to_thread());
        drop(memory);
    }
}

/// A capture under way; ends when dropped.
struct Recording<'s> {
    stream: &'s Stream,
    ended: bool,
}

impl<'s> Recording<'s> {
    fn start(stream: &'s Stream) -> Result<Self> {
        let mut held = stream.held();
        if held.capture.is_some() {
            return Err(Error::Capturing(Operation::Capture));
        }
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.0.queue.begin_capture(mode).map_err(|error| Operation::Capture.failed(error))?;
        held.capture = Some(Capture::default());
        Ok(Self { stream, ended: false })
    }

    fn finish(mut self) -> Result<Captured> {
        let (recorded, kept) = self.end();
        let recorded = recorded?.ok_or(Error::NoGraph)?;
        Ok(Captured { recorded, stream: self.stream.clone(), _kept: kept })
    }

    fn end(&mut self) -> (Result<Option<Recorded>>, Vec<Arc<Memory>>) {
        self.ended = true;
        // Dropping memory locks the stream again, so nothing may be dropped while it is locked.
        let (recorded, capture) = {
            let mut held = self.stream.held();
            let recorded = launch::end_capture(&self.stream.0.queue, CUgraphInstantiate_flags(0));
            (recorded, held.capture.take().unwrap_or_default())
        };
        for memory in capture.dropped {
            self.stream.free_now(memory);
        }
        (recorded.map_err(|error| Operation::Capture.failed(error)), capture.kept)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.end());
        }
    }
}

/// Work that was captured once and can be done again and again, at the cost of one launch.
#[derive(Debug)]
pub struct Captured {
    // Goes before the memory that it touches.
    recorded: Recorded,
    stream: Stream,
    _kept: Vec<Arc<Memory>>,
}

impl Captured {
    /// Puts the work on the stream it was captured from.
    pub fn launch(&mut self) -> Result<()> {
        self.stream.now(Operation::Replay, |_| self.recorded.launch())
    }
}

/// A point in time on a stream.
#[derive(Debug)]
pub struct Event(CudaEvent);

impl Event {
    /// Waits for it.
    pub(crate) fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(|error| Operation::Synchronize.failed(error))
    }

    /// The microseconds from this to a later one, after waiting for both. Good to about half of one.
    pub fn microseconds_until(&self, later: &Event) -> Result<f64> {
        let milliseconds = launch::elapsed_ms(&self.0, &later.0).map_err(|error| Operation::Time.failed(error))?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}
