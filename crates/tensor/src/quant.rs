//! Quantized blocks: how packed weights are decoded, and affine codes also encoded.

mod affine;
mod gguf;
mod legacy;

pub use affine::{Affine, ScaleType, Unrepresentable};
pub use gguf::{GgufType, WholeGroup};
pub use legacy::GgufLegacyType;

use half::f16;

/// The half at the start of `bytes`.
fn float(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(0.0, |raw| f16::from_le_bytes(*raw).to_f32())
}
