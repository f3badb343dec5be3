//! The command `ptero`, as a library for its tests and fuzzers: arguments in, output out. Everything else is in the crate
//! `ptero`.
//!
//! Invariant: this is the only crate that prints or reads arguments.
#![forbid(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod device;
pub mod devices;
pub mod exec;
pub mod export;
pub mod fuzz;
pub mod graft;
pub mod hint;
pub mod inspect;
mod progress;
pub mod rewrite;
pub mod run;
mod tensors;
