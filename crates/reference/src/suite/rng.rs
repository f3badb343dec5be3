//! The random numbers of the suite.

use ptero_tensor::SplitMix64;

/// A sequence of random numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Rng(SplitMix64);

impl Rng {
    /// The sequence of the `number`-th case of a primitive.
    pub(super) fn of_case(primitive: &str, seed: u64, number: u64) -> Self {
        let parts = primitive.bytes().map(u64::from).chain([number]);
        Self(parts.fold(SplitMix64::new(seed), |mut rng, part| SplitMix64::new(rng.next_u64() ^ part)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `count`, which is not zero.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Both ends included.
    pub(super) fn within(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// From `low` up to `high`, without it.
    pub(super) fn float(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.0.unit_f32()
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
