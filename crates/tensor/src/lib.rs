//! Element types, shapes, bytes, and the blocks that quantized weights are packed in.
//!
//! Invariant: this crate knows no file format and no device. Unsafe code lives in `bytes.rs` alone (the memory map).

mod bytes;
mod dtype;
mod quant;
mod shape;

pub use bytes::Bytes;
pub use dtype::DType;
pub use quant::{GgufLegacyType, GgufType};
pub use shape::{MAX_RANK, byte_count, element_count};
