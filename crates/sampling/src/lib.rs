//! What sampling means, to the bit: the contract that every device is tested against.
//!
//! | module | holds |
//! |---|---|
//! | [`inputs`] | what a sampling head takes |
//! | [`settings`] | temperature, top-k, top-p, min-p and penalties, and what is refused |
//! | [`adjust`] | penalties, biases and a mask, which change logits before the draw |
//! | [`threefry`] | random words, keys, the sequence of keys |
//! | [`noise`] | from a random word to Gumbel noise |
//! | [`mass`] | probabilities as whole numbers, whose sums depend on no order |
//! | [`mod@reference`] | a token from a row of logits, step by step |
//! | [`log_probabilities`] | those of a token and of the likeliest ones |
//! | [`mod@explain`] | why a token was drawn: its rivals, what dropped them, the noise that decided |
//! | [`categorical`] | a token and its log-probability from one uniform number |
//! | `cases` | random cases to compare devices with the reference on; a feature of that name |
//!
//! Invariant: this crate knows no device and no file format, does no I/O and keeps no global state.
#![forbid(unsafe_code)]

pub mod adjust;
#[cfg(any(test, feature = "cases"))]
pub mod cases;
pub mod categorical;
pub mod explain;
pub mod inputs;
pub mod log_probabilities;
pub mod mass;
pub mod noise;
pub mod reference;
pub mod settings;
pub mod threefry;
