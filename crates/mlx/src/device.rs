//! The device: MLX itself, and graphs compiled for it.

use crate::bridge::{ffi, lock};
use crate::compiled::Compiled;
use crate::session::Shared;
use ptero_backend::{Backend, Executable, Result, check_graph};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use std::sync::Arc;

/// MLX's default device: the GPU if this build of MLX has one, else the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx;

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
        Capabilities { burst: 8, is_inexact: true, ..Capabilities::default() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        check_graph(&graph, &self.capabilities())?;
        let _guard = lock();
        let compiled = Compiled::new(graph)?;
        Ok(Box::new(Shared(Arc::new(compiled))))
    }
}
