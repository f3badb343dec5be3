//! From nodes to primitives: shapes, types and promotion are checked here, once, and a backend sees eighteen
//! primitives over strided views instead of 136 node types.
//!
//! Invariant: this crate knows no device and does no I/O.
#![forbid(unsafe_code)]

mod bounds;
mod builder;
mod cache;
mod digest;
pub mod dim;
mod error;
pub mod expr;
mod function;
mod lower;
pub mod passes;
mod place;
pub mod plan;
pub mod prim;
mod print;
mod promote;

pub use cache::{CacheError, CacheLayer, KvCache};
pub use error::{Fault, PlanError};
pub use lower::{Options, lower};
pub use place::Placement;
