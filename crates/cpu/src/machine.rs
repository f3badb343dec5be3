//! What the machine can do at most: what figures of programs and kernels are compared with.

use crate::pool::Workers;
use crate::simd::{Isa, probe};
use std::hint::black_box;
use std::time::Instant;

/// Seconds of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the runs took no longer.
    pub median: f64,
    /// The shortest run.
    pub least: f64,
    /// The longest.
    pub most: f64,
}

impl Spread {
    /// Of measurements in any order; `None` of none.
    pub fn of(mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let (least, most) = (*seconds.first()?, *seconds.last()?);
        // Of an even number, the mean of the two in the middle.
        let (low, high) = (*seconds.get((seconds.len() - 1) / 2)?, *seconds.get(seconds.len() / 2)?);
        Some(Self { median: f64::midpoint(low, high), least, most })
    }
}

/// Runs the work some times to warm up, then `repeats` times, at least once.
pub fn repeat(before: usize, repeats: usize, mut work: impl FnMut()) -> Spread {
    for _ in 0..before {
        work();
    }
    let mut time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    let first = time();
    let seconds = std::iter::once(first).chain((1..repeats).map(|_| time())).collect();
    Spread::of(seconds).unwrap_or(Spread { median: first, least: first, most: first })
}

/// Of a limit: few, since limits are measured again beside each figure, because others may use the machine.
const REPEATS: usize = 5;
/// Words that are read: more than caches hold.
const WORDS: usize = 32 << 20;
/// Words of a task.
const CHUNK: usize = 32 << 10;
/// Rounds of multiply-adds of a task: some milliseconds.
const ROUNDS: usize = 2_000_000;

/// Measures limits.
#[derive(Debug)]
pub struct Machine {
    isa: Isa,
    words: Vec<u64>,
}

impl Machine {
    /// With memory to read, which is written here.
    pub fn new(isa: Isa) -> Self {
        Self { isa, words: vec![1; WORDS] }
    }

    /// Bytes that these threads read from memory per second.
    #[allow(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
    #[allow(clippy::indexing_slicing, reason = "there is a task for each chunk")]
    pub fn bandwidth(&self, workers: &mut Workers<'_>) -> f64 {
        let (chunks, _) = self.words.as_chunks::<CHUNK>();
        let read = repeat(1, REPEATS, || {
            workers.each(chunks.len(), |task, _| {
                black_box(probe::read(self.isa, &chunks[task]));
            });
        });
        (8 * CHUNK * chunks.len()) as f64 / read.median
    }

    /// Floating-point operations that these threads do per second, on registers alone.
    #[allow(clippy::cast_precision_loss, reason = "fewer than 2^53 operations")]
    pub fn peak(&self, workers: &mut Workers<'_>) -> f64 {
        let threads = workers.pool.threads();
        let multiply_adds = repeat(1, REPEATS, || {
            workers.each(threads, |_, _| {
                black_box(probe::multiply_adds(self.isa, ROUNDS));
            });
        });
        (threads * probe::multiply_adds(self.isa, ROUNDS)) as f64 / multiply_adds.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        let spread = |seconds: &[f64]| Spread::of(seconds.to_vec());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { median: 3.0, least: 3.0, most: 3.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 9.0 }));
        assert_eq!(spread(&[9.0, 1.0, 4.0, 2.0]), Some(Spread { median: 3.0, least: 1.0, most: 9.0 }));
    }

    #[test]
    fn work_is_done_as_often_as_it_is_said() {
        let mut count = 0;
        repeat(2, 3, || count += 1);
        assert_eq!(count, 5);
    }
}
