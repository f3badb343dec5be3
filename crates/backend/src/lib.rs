//! What a device must offer to run a plan ([`Backend`], [`Executable`], [`State`]), and [`Reference`], the oracle that every
//! other device is held to. With the feature `suite`, also the cases that hold it.
//!
//! ```text
//! Plan --Backend::compile--> Executable --state(seed)--> State        State: write inputs, run, read outputs
//! ```
//!
//! Invariant: this crate names no device and no file format, does no I/O, and has no unsafe code.
#![forbid(unsafe_code)]

mod drive;
mod error;
mod inputs;
mod reference;
#[cfg(any(test, feature = "suite"))]
#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "it is test code for other crates: sizes are small, and a panic is a failed test"
)]
pub mod suite;
mod traits;

pub use drive::{Steps, drive};
pub use error::{Error, Fault, Place, Result};
pub use inputs::Inputs;
pub use reference::{Reference, cast, check as check_plan};
pub use traits::{Backend, Executable, InputValue, OutputValue, State};
