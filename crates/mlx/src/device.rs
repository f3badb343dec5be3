//! The device: MLX itself, and graphs compiled for it.

use crate::bridge::{ffi, lock};
use crate::compiled::Compiled;
use crate::session::Shared;
use ptero_backend::{Backend, Executable, Loading, Result, check_graph};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// MLX's default device: the GPU if this build of MLX has one, else the CPU.
#[derive(Clone, Debug, Default)]
pub struct Mlx {
    allows_foreign_kernels: bool,
    loading: Loading,
}

impl Mlx {
    /// Returns the device, which runs no code that programs bring.
    pub const fn new() -> Self {
        Self { allows_foreign_kernels: false, loading: Loading::IGNORED }
    }

    /// Sets whether kernels that programs bring as Metal source run on Apple GPUs. They are not checked, so they can do there what
    /// the GPU's driver lets them do. Experimental.
    pub fn with_foreign_kernels(mut self, allows_foreign_kernels: bool) -> Self {
        self.allows_foreign_kernels = allows_foreign_kernels;
        self
    }

    /// Reports the loading of weights.
    pub fn with_loading(self, loading: Loading) -> Self {
        Self { loading, ..self }
    }
}

/// What MLX says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its version.
    pub version: String,
    /// Computes on a GPU.
    pub has_gpu: bool,
    /// The name of the device; empty if MLX does not say.
    pub device_name: String,
    /// The memory of the device in bytes; 0 if MLX does not say.
    pub memory: u64,
}

/// What the host has done for the steps of all sessions so far: with a GPU, time that it may have to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTime {
    /// The number of steps.
    pub steps: u64,
    /// Making arrays, which computes nothing.
    pub building: Duration,
    /// Handing them to MLX.
    pub submitting: Duration,
}

/// Steps, and nanoseconds.
static SPENT: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

pub(crate) fn spend(building: Duration, submitting: Duration) {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(0);
    for (spent, more) in SPENT.iter().zip([1, nanoseconds(building), nanoseconds(submitting)]) {
        spent.fetch_add(more, Ordering::Relaxed);
    }
}

/// Returns what the host has done so far in this process.
pub fn host_time() -> HostTime {
    let [steps, building, submitting] = SPENT.each_ref().map(|spent| spent.load(Ordering::Relaxed));
    HostTime { steps, building: Duration::from_nanos(building), submitting: Duration::from_nanos(submitting) }
}

/// The memory of all arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The bytes that they hold.
    pub active: u64,
    /// The most bytes that they have held since the last call of [`memory`].
    pub peak: u64,
}

/// Returns the memory that MLX's arrays take.
pub fn memory() -> Memory {
    let _guard = lock();
    let ffi::Memory { active, peak } = ffi::take_memory();
    Memory { active, peak }
}

/// Asks MLX.
///
/// # Errors
/// When MLX fails.
pub fn info() -> Result<Info> {
    let _guard = lock();
    let device = ffi::device().map_err(crate::frame::device)?;
    Ok(Info { version: device.version, has_gpu: device.is_gpu, device_name: device.name, memory: device.memory })
}

impl Backend for Mlx {
    fn name(&self) -> &'static str {
        "mlx"
    }

    fn capabilities(&self) -> Capabilities {
        // Steps are made ahead of the device anyway; a run only has to be long enough that its end does not matter.
        let foreign_kernels = self.allows_foreign_kernels && ffi::has_metal();
        Capabilities { burst: 8, is_inexact: true, foreign_kernels, ..Capabilities::default() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        let _guard = lock();
        let compiled = Compiled::new(graph, &self.loading)?;
        Ok(Box::new(Shared(Arc::new(compiled))))
    }
}
