//! [`Reference`], the device that all others are compared with: scalar loops, slow and obviously right. With the feature `suite`,
//! also the random cases that compare them.
//!
//! The bytes of a value are never changed, so a view shares them, a state is replaced and never written into, and no operation
//! has to deal with overlap. Every operand is widened to `f32` or `i64` as it is read, and every result is computed into new
//! memory and rounded to its type as it is stored. One file per family of primitives.
//!
//! Invariant: this crate names no other device and no file format, does no I/O, and has no unsafe code.
#![forbid(unsafe_code)]

mod attention;
mod block;
mod conv;
mod gated_delta;
mod index;
mod map;
mod matmul;
mod memory;
mod norm;
mod prim;
mod quant;
mod random;
mod reduce;
mod sample;
mod scalar;
mod session;
#[cfg(any(test, feature = "suite"))]
#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "test code for other crates: sizes are small, and a panic is a failed test"
)]
pub mod suite;
mod tensor;
mod view;
mod whole;

pub use session::Reference;

#[cfg(test)]
mod tests;
