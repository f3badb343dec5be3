//! Runs plans on NVIDIA GPUs: weights are uploaded once, kernels are compiled at run time, and calls are captured as graphs.
//!
//! ```text
//! device.rs      the device of programs: compile, states, steps
//! program.rs     a plan prepared for the device: where buffers lie, and which numbers change from step to step
//! memory.rs      memory of weights and of lanes
//! run.rs         dispatch: one line per primitive; step.rs: what launches of a primitive are made of
//! capture.rs     calls of lanes as graphs
//! ahead.rs       runs of several steps, without waiting for tokens
//! kernels/       one file per family of primitives, each NAME.rs beside its NAME.cu, in folders by subject; shared/ has headers
//! kernels/join.rs, kernels/together.rs   which steps are one launch: one after the other, side by side
//! context.rs     which devices there are; opening one
//! stream.rs      queues of work, points in time, captured graphs
//! buffer.rs      typed memory that belongs to a stream
//! module.rs      sources: compiled by NVRTC, loaded by the driver
//! cache.rs       compiled kernels on disk
//! launch.rs      arguments, grids, launches
//! NAME.cu        kernels, each beside its NAME.rs
//! ```
//!
//! Neither the driver (`libcuda.so.1`) nor NVRTC (`libnvrtc.so`) is needed to build or to start a program that uses this crate:
//! both are loaded when a device is opened and a kernel is compiled, and an [`Error`] names the missing one.
//!
//! A kernel is `extern "C" __global__`, takes one struct by value, and includes nothing but headers of this crate
//! ([`Source`]). The struct is `#[repr(C)]` and [`Pod`](bytemuck::Pod) here, so it has no padding; it has [`In`] and [`Out`] where
//! the kernel has pointers. Its size is asserted where each side declares it, by the same number, and compared once
//! more when the kernel is loaded ([`Module::kernel`]).
//!
//! Invariant: unsafe code lives in `launch.rs` and `module.rs` alone, and in the kernels, which are trusted as it is. A buffer
//! is used on the stream it was made on, so its memory needs no further order.

mod ahead;
mod buffer;
mod cache;
mod capture;
mod categorical;
mod context;
mod device;
mod error;
mod kernels;
mod launch;
mod memory;
mod module;
mod program;
mod run;
mod sample;
mod step;
mod stream;

pub use buffer::Buffer;
pub use cache::Cache;
pub use categorical::{SoftmaxSampler, SoftmaxWorkspace};
pub use context::{Arch, Device, DeviceInfo, Version, devices};
pub use device::Cuda;
pub use error::{Error, NvrtcStatus, Operation, Result, Status};
pub use kernels::{VARIANTS, files_of_parts, launches};
pub use launch::{Binding, Grid, In, Kernel, Out};
pub use module::{Compiled, Module, Source, Variant, compile, nvrtc_version};
pub use sample::{Adjustments, LogitType, Logits, Request, Results, RowAdjustments, Sampler, Workspace};
pub use stream::{Captured, Event, Stream};

/// The sources of draws. A test compiles them all, with those of primitives ([`VARIANTS`]), and finds those that are missing.
pub const SOURCES: &[Source] = &[
    sample::CATEGORICAL[0],
    sample::CATEGORICAL[1],
    sample::CATEGORICAL[2],
    sample::SAMPLE[0],
    sample::SAMPLE[1],
    sample::SAMPLE[2],
];
