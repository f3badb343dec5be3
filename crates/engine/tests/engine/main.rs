//! Tiny models of several families, exported with and without sampling, run through the engine.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod batch;
mod boxed;
mod breaking;
mod bursts;
mod chunks;
mod corpus;
mod counting;
mod ends;
mod forks;
mod full;
mod guards;
mod prefixes;
mod programs;
mod seeds;
mod sessions;
mod tiny;
mod together;
