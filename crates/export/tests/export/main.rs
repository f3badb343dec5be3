//! Graphs that we build, against those of ExecuTorch, and run.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod bits;
mod builder;
mod corpus;
mod draw;
mod full;
mod fused;
mod gemma4;
#[path = "../../../pte/tests/common/generate.rs"]
mod generate;
mod gguf;
mod graft;
mod head;
mod llama;
mod qwen3_5_moe;
mod recipe;
mod recycle;
mod smollm2;
mod tiny;
mod trace;
mod upgrade;
mod window;
