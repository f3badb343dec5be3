//! From nodes to values, from values to buffers, from buffers to numbers: everything that happens to a program before a device
//! runs it.
//!
//! ```text
//! Verified --lower--> Graph --passes--> Graph --bufferize--> Plan --bind(sizes)--> Bound
//! ```
//!
//! Shapes, types and promotion are checked in `lower`, once; a device implements eighteen primitives instead of 136 node types.
//!
//! Invariant: this crate knows no device and does no I/O.
#![forbid(unsafe_code)]

pub mod bound;
mod bufferize;
mod builder;
mod cache;
mod capabilities;
mod digest;
pub mod dim;
mod error;
pub mod expr;
pub mod function;
pub mod graph;
pub mod host;
mod label;
mod lower;
pub mod passes;
mod place;
pub mod plan;
pub mod prim;
mod print;
mod promote;
mod query;
mod reads;
mod view;

pub use bufferize::bufferize;
pub use cache::{CacheError, CacheLayer, KvCache};
pub use capabilities::Capabilities;
pub use error::{Fault, PlanError};
pub use lower::{Options, lower};
pub use place::{Arena, Placement};
pub use reads::{MemoryRead, StepBytes};
