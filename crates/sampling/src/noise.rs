//! Gumbel noise: what, added to each logit, makes the largest sum a draw from their softmax.
//!
//! Upstream's noise is of one random word for each token. Near 1 a word has 24 bits as a float, and the largest noise is 16.6, so a
//! token that is less likely than about 2^-24 of the likeliest is drawn too rarely or never. Noise with an exact tail is of two
//! words: of the distance from 1, which keeps its precision however small it is, down to 2^-64.

use crate::threefry::{self, Key};
use ptero_arithmetic::{ln, ln_1p};

/// The largest number below 1, the largest that [`uniform`] gives.
pub const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// A number in [0, 1) from a random word. Rounding would take the largest words to 1, where the noise is infinite.
#[allow(clippy::cast_precision_loss, reason = "the contract rounds to f32")]
pub fn uniform(word: u32) -> f32 {
    (word as f32 / u32::MAX as f32).min(BELOW_ONE)
}

/// The noise of a random word: from minus infinity (word 0) through about -3.1 (word 1) to about 16.6, never falling from one word to
/// the next.
pub fn gumbel(word: u32) -> f32 {
    -ln(-ln(uniform(word)))
}

/// The smallest number that [`distance`] gives.
pub const LEAST_DISTANCE: f32 = 1.0 / 18_446_744_073_709_551_616.0;

/// A number in (0, 1) from two random words, the high half and the low half of 64 bits, rounded to f32. Rounding would take the
/// largest to 1; 0 would make the noise infinite.
#[allow(clippy::cast_precision_loss, reason = "the contract rounds to f32")]
pub fn distance([high, low]: [u32; 2]) -> f32 {
    const HIGH: f32 = 1.0 / 4_294_967_296.0;
    (high as f32 * HIGH + low as f32 * LEAST_DISTANCE).clamp(LEAST_DISTANCE, BELOW_ONE)
}

/// The noise of two random words, from about 44.4 down to about -2.8, never rising from one number of 64 bits to the next.
pub fn exact_gumbel(words: [u32; 2]) -> f32 {
    -ln(-ln_1p(-distance(words)))
}

/// The random words of a row: those of a key for `count` tokens, of which the row has those from `start` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the comment above names them")]
pub struct Stream {
    pub key: Key,
    pub count: usize,
    pub start: usize,
}

impl Stream {
    /// The stream of a row that has a key of its own.
    pub fn of_row(key: Key, vocabulary: usize) -> Self {
        Self { key, count: vocabulary, start: 0 }
    }

    /// The noise of a token of the row.
    pub fn noise(&self, index: usize, exact_tail: bool) -> f32 {
        let at = self.start + index;
        if exact_tail {
            exact_gumbel(threefry::pair(self.key, self.count, at))
        } else {
            gumbel(threefry::word(self.key, self.count, at))
        }
    }
}

/// The key of a seed that reaches the program as a 32-bit integer: its low half, sign-extended. Seeds that differ by a multiple
/// of 2^32 are one seed there.
#[allow(clippy::cast_possible_truncation, reason = "what upstream does to seeds")]
pub fn seed_key(seed: i64) -> Key {
    threefry::key(i64::from(seed as i32).cast_unsigned())
}

/// The seed of one of several texts that are drawn from one prompt: the seed itself for the first, and for the others a random
/// word of 32 bits. Not `seed + index`: token `i` of a text draws with `seed + i`, so two such texts would share their noise.
pub fn mix(seed: i64, index: u32) -> i64 {
    match index {
        0 => seed,
        _ => i64::from(threefry::threefry2x32(seed_key(seed), [index, u32::MAX])[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_words_are_the_ends_of_the_noise() {
        assert_eq!(uniform(0), 0.0);
        assert_eq!(uniform(u32::MAX), BELOW_ONE);
        assert_eq!(uniform(1 << 31), 0.5);
        assert_eq!(gumbel(0), f32::NEG_INFINITY);
        assert!((-3.2..-3.0).contains(&gumbel(1)), "{}", gumbel(1));
        assert!((16.6..16.7).contains(&gumbel(u32::MAX)), "{}", gumbel(u32::MAX));
    }

    /// A word for each number that words are rounded to, in order.
    fn rounded_words() -> impl Iterator<Item = u32> {
        let exact = 0..1 << 24;
        let rounded = (24..32).flat_map(|power| (0..1 << 23).map(move |step| (1 << power) + (step << (power - 23))));
        exact.chain(rounded).chain([u32::MAX])
    }

    #[test]
    fn noise_never_falls_as_the_word_grows() {
        // Kernels skip words that are too small to win without computing their noise. Rounding a word never falls, so one word
        // for each result tells of all.
        let mut last = (0.0, f32::NEG_INFINITY);
        for word in rounded_words() {
            let next = (uniform(word), gumbel(word));
            assert!(next.0 >= last.0 && next.1 >= last.1, "word {word}");
            last = next;
        }
        assert_eq!(rounded_words().count(), (1 << 24) + 8 * (1 << 23) + 1);
    }

    /// Two words for each number that [`distance`] rounds to, from the smallest on: a leading bit and 23 more, or fewer where the
    /// 64 bits end, and the cap. One in `step` of them.
    fn rounded_pairs(step: usize) -> impl Iterator<Item = [u32; 2]> {
        let numbers = (0..64_u32).flat_map(|power| {
            let bits = power.min(23);
            (0..1_u64 << bits).map(move |rest| (1 << power) | rest << (power - bits))
        });
        [0].into_iter().chain(numbers.step_by(step)).chain([u64::MAX]).map(threefry::key)
    }

    #[test]
    fn noise_with_an_exact_tail_never_rises_as_its_words_grow() {
        // All 0.34 billion numbers take 13 s: `PTERO_EVERY_NOISE=1`.
        let step = if std::env::var_os("PTERO_EVERY_NOISE").is_some() { 1 } else { 997 };
        let mut last = (0.0, f32::INFINITY);
        for words in rounded_pairs(step) {
            let next = (distance(words), exact_gumbel(words));
            assert!(next.0 >= last.0 && next.1 <= last.1, "{words:?}");
            last = next;
        }
        assert_eq!(exact_gumbel([0, 0]), exact_gumbel([0, 1]));
        assert!((44.3..44.4).contains(&exact_gumbel([0, 0])), "{}", exact_gumbel([0, 0]));
        assert!((-2.82..-2.81).contains(&exact_gumbel([u32::MAX; 2])), "{}", exact_gumbel([u32::MAX; 2]));
    }

    #[test]
    fn numbers_of_64_bits_keep_their_order_and_their_precision() {
        // Around every number at which the high word stops being exact, and at random.
        let edges = (0..64).flat_map(|power| (0..64).map(move |by| (1_u64 << power).wrapping_add(by).wrapping_sub(32)));
        let random = (0..100_000).map(|at| {
            let [high, low] = threefry::threefry2x32([1, 2], [at, 0]);
            (u64::from(high) << 32 | u64::from(low)) >> (at % 64)
        });
        for number in edges.chain(random).filter(|number| (1..u64::MAX - (1 << 32)).contains(number)) {
            let found = distance(threefry::key(number));
            for next in [number + 1, number + (1 << 32), (number | 0xffff_ffff) + 1] {
                assert!(distance(threefry::key(next)) >= found, "{number} {next}");
            }
            let exact = number as f64 / 2.0_f64.powi(64);
            assert!((f64::from(found) / exact - 1.0).abs() <= 2.0_f64.powi(-23), "{number}");
        }
    }

    #[test]
    fn noise_with_an_exact_tail_is_the_logarithm_to_the_last_places() {
        for words in rounded_pairs(9973) {
            let number = f64::from(distance(words));
            let expected = -(-(-number).ln_1p()).ln();
            let error = (f64::from(exact_gumbel(words)) - expected).abs();
            assert!(error <= 2e-7 * expected.abs().max(1.0), "{words:?}: {error}");
        }
    }

    #[test]
    fn seeds_are_equal_modulo_two_to_the_32() {
        assert_eq!(seed_key(0), [0, 0]);
        assert_eq!(seed_key(-1), [u32::MAX, u32::MAX]);
        assert_eq!(seed_key(1 << 31), [u32::MAX, 1 << 31]);
        assert_eq!(seed_key(1 << 40), seed_key(0));
        assert_eq!(seed_key((1 << 32) - 1), seed_key(-1));
    }

    #[test]
    fn the_texts_of_a_prompt_have_seeds_that_are_far_apart() {
        assert_eq!((mix(42, 0), mix(-1, 0)), (42, -1));
        assert_eq!(mix(42, 1), mix(42 + (1 << 32), 1), "low 32 bits count");
        let mut seeds: Vec<i64> = (0..64).flat_map(|index| (0..64).map(move |seed| mix(seed, index))).collect();
        seeds.sort_unstable();
        // The first texts have the seeds 0 to 63 themselves; of all others none comes near another.
        let is_apart = |pair: &&[i64]| pair[1] - pair[0] > 1;
        assert!(seeds.windows(2).filter(|pair| !is_apart(pair)).count() <= 64);
        assert_eq!(mix(42, 1), 4_155_720_318);
    }
}
