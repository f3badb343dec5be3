//! What sampling means, to the bit. So far the random numbers.
//!
//! Invariant: this crate knows no device and no file format, does no I/O and keeps no global state.
#![forbid(unsafe_code)]

pub mod inputs;
pub mod threefry;
