//! ExecuTorch programs (`.pte`) whose graph is the MLX delegate's: opening, checking, printing and writing them.
//!
//! ```text
//! path --Program::open--> Program --Verified::new--> Verified        Program --write--> bytes
//! ```
//!
//! A program is its methods and the data they refer to ([`program`]); a method calls delegates; an MLX delegate is a
//! [`Delegate`] of [`Node`]s, all of them rows of one table ([`nodes`]). Data stays a window on the mapped file.
//!
//! Invariant: this crate knows no device and runs nothing; it allocates no more than a small multiple of a file's table
//! of contents, never panics on any file, and has no unsafe code.
#![forbid(unsafe_code)]

mod container;
mod delegate;
mod error;
pub mod field;
mod limits;
pub mod nodes;
pub mod program;
pub mod schema;
mod tensor_data;
mod verify;
mod wire;
mod write;

pub use container::SegmentWriter;
pub use delegate::{Chains, Delegate, NamedSlot, Role, ShapeDim, SlotType, SlotVariant, TensorMeta};
pub use error::{Error, Fault, Kind, Result, Step};
pub use field::{Datum, Slot, Use};
pub use limits::Limits;
pub use nodes::Node;
pub use program::{DelegateEntry, MLX_DELEGATE, Method, NamedData, Payload, Program};
pub use ptero_tensor::{Bytes, DType, SplitMix64, byte_count};
pub use tensor_data::TensorData;
pub use verify::{Verified, VerifiedDelegate, check};
pub use write::Pending;

/// The snippets of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/ADDING.md")]
struct Adding;
