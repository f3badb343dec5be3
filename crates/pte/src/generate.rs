//! Random numbers for tests and fuzzers, and what [`Node::sample`](crate::Node::sample) makes nodes from.

use ptero_tensor::SplitMix64;

/// A source of random numbers: the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an endless source is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, or 0 when `end` is.
    #[allow(clippy::cast_possible_truncation, reason = "a remainder of a u32 is a u32")]
    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    /// One of the items, which must not be empty.
    #[allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "the remainder is below the length")]
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.next() as usize % items.len()]
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        let [byte, ..] = self.next().to_le_bytes();
        byte
    }
}
