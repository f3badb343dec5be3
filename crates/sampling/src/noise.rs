//! Gumbel noise: what, added to each logit, makes the largest sum a draw from their softmax.

use crate::threefry::{self, Key};
use ptero_arithmetic::ln;

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
