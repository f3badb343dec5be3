//! SHA-256, to identify a kernel by its source.

const FIRST: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The first 32 bits of the fractional part of a prime's cube root, for the first 64 primes.
fn round_constants() -> [u32; 64] {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    let mut primes = (2_u64..).filter(is_prime);
    // The cube root of `p * 2^96` by bisection; its low 32 bits are the fraction.
    [(); 64].map(|()| {
        let cube = u128::from(primes.next().unwrap_or(2)) << 96;
        let (mut low, mut high) = (0_u128, 1 << 36);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if middle * middle * middle <= cube { low = middle } else { high = middle }
        }
        u32::try_from(low & 0xffff_ffff).unwrap_or(0)
    })
}

/// The first 64 bits of the digest.
#[allow(clippy::indexing_slicing, reason = "constant indices below 64 into arrays of 64")]
pub(crate) fn sha256_start(text: &[u8]) -> u64 {
    let constants = round_constants();
    let mut bytes = text.to_vec();
    bytes.push(0x80);
    bytes.resize((bytes.len() + 8).next_multiple_of(64) - 8, 0);
    bytes.extend_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    let mut state = FIRST;
    for block in bytes.chunks_exact(64) {
        let mut words = [0_u32; 64];
        for (word, raw) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = raw.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..64 {
            let (a, b) = (words[at - 15], words[at - 2]);
            let first = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let second = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            words[at] = words[at - 16].wrapping_add(first).wrapping_add(words[at - 7]).wrapping_add(second);
        }
        let mut round = state;
        for (word, constant) in words.iter().zip(&constants) {
            let [a, b, c, d, e, f, g, h] = round;
            let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let first = [sum, choice, *constant, *word].into_iter().fold(h, u32::wrapping_add);
            let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = sum.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            round = [first.wrapping_add(second), a, b, c, d.wrapping_add(first), e, f, g];
        }
        for (word, add) in state.iter_mut().zip(round) {
            *word = word.wrapping_add(add);
        }
    }
    u64::from(state[0]) << 32 | u64::from(state[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(sha256_start(b""), 0xe3b0_c442_98fc_1c14);
        assert_eq!(sha256_start(b"abc"), 0xba78_16bf_8f01_cfea);
        assert_eq!(sha256_start(&[b'a'; 1000]), 0x41ed_ece4_2d63_e8d9);
    }
}
