//! Runs plans on the CPU.
//!
//! Invariant: unsafe code lives in `simd` and `pool` alone; everything else sees slices.

pub mod dense;
pub mod gemm;
pub mod pool;
pub mod quant;
pub mod simd;
