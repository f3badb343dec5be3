//! Functions of single numbers, defined to the bit: one definition for every device.
//!
//! Invariant: a function here is a fixed sequence of IEEE additions, subtractions, multiplications, divisions and square roots,
//! each rounded to nearest, integer operations and selections. Nothing is fused, nothing is left to a mathematical
//! library, and subnormal numbers are kept. Whoever computes the same sequence (a vector unit, a GPU) gets the same bits.
//! The bit pattern of a NaN result is not defined. `docs/ARITHMETIC.md` says the same in words.
#![forbid(unsafe_code)]

mod angle;
mod erf;
mod functions;
mod single;
mod wide;

/// The version of the arithmetic that `docs/ARITHMETIC.md` defines. It grows with every change of a result.
pub const VERSION: u32 = 1;

pub use angle::{cos, sin, sin_cos, tan};
pub use erf::erf;
pub use functions::{
    acos, acosh, asin, asinh, atan, atan2, atanh, cosh, exp_m1, floor_div, ln_1p, log_add_exp, log2, log10, max, min,
    power, remainder, rsqrt, sign, sinh,
};
pub use single::{EXP, LN, LN_2_HIGH, LN_2_LOW, SQRT_HALF, ULPS, WHOLE, exp, ln, sigmoid, tanh};
