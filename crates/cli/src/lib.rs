//! The parts of the command `ptero`, as a library for its tests and fuzzers.
//!
//! Invariant: this is the only crate that prints, reads arguments or names devices; only [`hub`] opens a socket.
#![forbid(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod device;
pub mod devices;
pub mod exec;
pub mod export;
pub mod files;
pub mod fuzz;
pub mod graft;
pub mod hint;
pub mod hub;
pub mod inspect;
pub mod model;
pub mod output;
mod progress;
pub mod rewrite;
pub mod run;
