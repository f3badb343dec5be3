//! Element types, shapes, bytes, the blocks of quantized weights, and errors with their location.
//!
//! Invariant: this crate knows no file format and no device. Unsafe code lives in `bytes.rs` alone (the memory map).

mod bytes;
mod dtype;
pub mod fault;
mod quant;
mod random;
mod shape;

pub use bytes::{Bytes, Zeroed};
pub use dtype::{DType, decode_floats, integer};
pub use quant::{Affine, GgufLegacyType, GgufType, ScaleType, Unrepresentable, WholeGroup};
pub use random::SplitMix64;
pub use shape::{MAX_RANK, byte_count, element_count};
