//! Random bits as MLX makes them: Threefry-2x32 with 20 rounds over a counter.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); the layout of the counters is MLX's
//! `random::bits`, the sequence of keys its `random::KeySequence`.

/// What the bits are a function of.
pub type Key = [u32; 2];

/// The key of a seed: its high half, then its low half.
#[allow(clippy::cast_possible_truncation, reason = "the halves of the seed")]
pub fn key(seed: u64) -> Key {
    [(seed >> 32) as u32, seed as u32]
}

/// Encrypts a counter.
pub fn threefry2x32(key: Key, counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let [k0, k1] = key;
    let k2 = k0 ^ k1 ^ 0x1BD1_1BDA;
    // What is added after each group of four rounds.
    let schedule = [(k1, k2), (k2, k0), (k0, k1), (k1, k2), (k2, k0)];
    let [mut x0, mut x1] = [counter[0].wrapping_add(k0), counter[1].wrapping_add(k1)];
    for ((group, (s0, s1)), rotations) in (1_u32..).zip(schedule).zip(ROTATIONS.iter().cycle()) {
        for &rotation in rotations {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        x0 = x0.wrapping_add(s0);
        x1 = x1.wrapping_add(s1).wrapping_add(group);
    }
    [x0, x1]
}

/// Random word `at` of the `count` words of a key. It depends on `count`: MLX pairs word `i` of the lower half with word `i` of
/// the upper half, and an odd one in the middle has a zero for a partner.
#[allow(clippy::cast_possible_truncation, reason = "MLX counts in 32 bits")]
pub fn word(key: Key, count: usize, at: usize) -> u32 {
    let (half, upper_start) = (count / 2, count.div_ceil(2));
    let [low, high] = if at < half {
        threefry2x32(key, [at as u32, (at + upper_start) as u32])
    } else if at < upper_start {
        threefry2x32(key, [half as u32, 0])
    } else {
        threefry2x32(key, [(at - upper_start) as u32, at as u32])
    };
    if at < upper_start { low } else { high }
}

/// Random words `at` and `count + at` of the `2 * count` words of a key, which are one block.
#[allow(clippy::cast_possible_truncation, reason = "MLX counts in 32 bits")]
pub fn pair(key: Key, count: usize, at: usize) -> [u32; 2] {
    threefry2x32(key, [at as u32, (count + at) as u32])
}

/// All `count` random words of a key.
pub fn words(key: Key, count: usize) -> Vec<u32> {
    (0..count).map(|at| word(key, count, at)).collect()
}

/// Random elements of `bytes_per_element` bytes each, little-endian: the words of the key, cut off where the last element
/// ends.
pub fn bits(key: Key, bytes_per_element: usize, elements: usize) -> Vec<u8> {
    let byte_count = elements.saturating_mul(bytes_per_element);
    let mut bytes: Vec<u8> = words(key, byte_count.div_ceil(4)).into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.truncate(byte_count);
    bytes
}

/// The keys that unseeded requests get, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySequence {
    state: Key,
}

impl KeySequence {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: key(seed) }
    }

    /// The next key.
    pub fn next_key(&mut self) -> Key {
        // The four words that `words(state, 4)` gives: two for the next state, then two for the caller.
        let [state0, key0] = threefry2x32(self.state, [0, 2]);
        let [state1, key1] = threefry2x32(self.state, [1, 3]);
        self.state = [state0, state1];
        [key0, key1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_gives_the_known_answers_of_its_authors() {
        assert_eq!(threefry2x32([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry2x32([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry2x32([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn the_next_key_is_the_second_half_of_four_words() {
        let expected = words(key(7), 4);
        assert_eq!(KeySequence::new(7).next_key().as_slice(), &expected[2..]);
    }

    #[test]
    fn a_pair_is_a_word_of_each_half() {
        for (count, at) in [(1, 0), (7, 0), (7, 6), (151_936, 75_968)] {
            let both = [at, count + at].map(|at| word(key(7), 2 * count, at));
            assert_eq!(pair(key(7), count, at), both, "{count} {at}");
        }
    }

    #[test]
    fn no_elements_are_no_bytes() {
        assert!(bits(key(1), 4, 0).is_empty());
    }
}
