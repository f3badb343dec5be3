//! The command `ptero`: parses arguments and prints. Everything else is in the crate `ptero`. It is a library so that tests and
//! fuzz targets can call it.
//!
//! Invariant: this is the only crate that parses arguments or prints.
#![forbid(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod device;
pub mod devices;
pub mod exec;
pub mod export;
pub mod graft;
pub mod hint;
pub mod inspect;
mod print;
mod progress;
pub mod rewrite;
pub mod run;
pub mod serve;
mod tensors;

/// Calls the setter of a builder if there is a value.
fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}
