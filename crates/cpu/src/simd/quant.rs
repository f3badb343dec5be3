//! Quantized weights: decoding them, and multiplying them with activations in integers.

pub(crate) mod activation;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod codes;
pub(crate) mod decode;
pub(crate) mod factors;
pub(crate) mod flat;
pub(crate) mod integer;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod panel;
pub(crate) mod sixteen;
pub(crate) mod tiles;
pub(crate) mod unpack;
#[cfg(target_arch = "x86_64")]
mod vnni;
