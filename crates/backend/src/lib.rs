//! The traits of a device ([`Backend`], [`Executable`], [`State`]), and code that all devices share: checks of inputs and graphs,
//! lanes, elements as numbers, faults and where they are found.
//!
//! ```text
//! Graph --Backend::compile--> Executable --state(seed)--> State        State: write inputs; Executable: run lanes
//! ```
//!
//! Invariant: this crate names no device and no file format, does no I/O, and has no unsafe code.
#![forbid(unsafe_code)]

mod check;
mod conv;
mod drive;
mod error;
mod inputs;
mod lanes;
mod lists;
mod loading;
pub mod number;
mod traits;

pub use check::{check_graph, check_steps, place_of};
pub use conv::Conv;
pub use drive::{Device, DeviceStep, DeviceSteps, DrivenState, Numbers, run_block};
pub use error::{Error, Fault, Place, Result};
pub use inputs::{InputTypes, Inputs};
pub use lanes::{Change, Follow, Lane, RunningLane, RunningLanes, StepState, Steps, check_lanes, run_once, run_steps};
pub use lists::{ListMemory, emptied};
pub use loading::{Load, Loading, LoadingBytes};
pub use number::cast;
pub use ptero_plan::bound::LIMIT_BYTES;
pub use ptero_plan::host::NumberFault;
pub use ptero_tensor::integer;
pub use traits::{Backend, Executable, InputValue, OutputValue, State};
