//! `Mlx`, the device that runs graphs as MLX's lazy arrays: on Apple GPUs, and on CPUs where MLX's own build for them is.
//!
//! Needs the feature `link`; without it the crate is empty. A call of a graph makes arrays node by node, which computes nothing,
//! and hands the results to MLX as a whole. States are arrays that are replaced; MLX reuses the memory of those that nobody
//! holds. A run of several steps makes each step on the token of the one before, which the host reads one step later.
//!
//! Invariant: unsafe code is in `bridge.rs` alone, and MLX runs under one lock.
#![cfg(feature = "link")]
#![deny(unsafe_code)]

mod block;
mod bridge;
mod compiled;
mod device;
mod fold;
mod foreign;
mod frame;
mod gather;
mod kind;
mod map;
mod prim;
mod quant;
mod run;
mod sample;
mod session;
mod view;

pub use device::{HostTime, Info, Memory, Mlx, host_time, info, memory};
