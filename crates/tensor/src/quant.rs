//! Quantized blocks: how packed weights are decoded.

mod gguf;

pub use gguf::GgufType;
