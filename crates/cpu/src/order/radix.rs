//! Radix sort, lowest digit first: all digits are counted in one pass, then each digit takes a pass that moves all keys. A digit
//! that all keys share takes no pass, such as the lower half of bfloats, or the exponents of numbers of similar size.
#![allow(clippy::indexing_slicing, reason = "digits are below `1 << BITS`; `spare` is as long as `keys`")]

/// Bits of a digit: three of them cover 32 bits, and the offsets of one fit the L1 cache.
const BITS: u32 = 11;
/// Digits of the high half of a key.
const DIGITS: u32 = 3;
/// Shorter lines are sorted by comparing; measured.
const SHORTEST: usize = 2048;

/// Sorts keys, given in ascending order of their low halves, by their high halves. `spare` is as long; the result is in either.
pub(super) fn sort<'a>(keys: &'a mut [i64], spare: &'a mut [i64]) -> &'a [i64] {
    if keys.len() < SHORTEST {
        keys.sort_unstable();
        return keys;
    }
    assert_eq!(keys.len(), spare.len(), "a pass moves all keys");
    let mut counts = [[0_usize; 1 << BITS]; DIGITS as usize];
    for key in keys.iter() {
        for (number, counts) in (0..).zip(&mut counts) {
            counts[digit(*key, number)] += 1;
        }
    }
    let (mut from, mut to) = (keys, spare);
    for (number, mut counts) in (0..).zip(counts) {
        if counts.contains(&from.len()) {
            continue;
        }
        let mut start = 0;
        for count in &mut counts {
            (*count, start) = (start, start + *count);
        }
        for key in from.iter() {
            let offset = &mut counts[digit(*key, number)];
            to[*offset] = *key;
            *offset += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// A digit of the high half, with the sign bit flipped so that negative keys come first.
#[allow(clippy::cast_possible_truncation, reason = "a digit has 11 bits")]
#[inline(always)]
fn digit(key: i64, number: u32) -> usize {
    let bits = (key ^ i64::MIN).cast_unsigned() >> (32 + BITS * number) & ((1 << BITS) - 1);
    bits as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radix_sort_equals_comparison_sort_for_any_digits() {
        for length in [0_i64, 1, 2047, 2048, 5000] {
            for mask in [-1, 0, 0xFF, 0xFFFF, 0x7F00_0000, 0x00FF_FF00, -0x8000_0000] {
                let number = |at: i64| ((at * 0x9E37_79B9) % (1 << 32) - (1 << 31)) & mask;
                let mut keys: Vec<i64> = (0..length).map(|at| number(at) << 32 | at).collect();
                let (mut expected, mut spare) = (keys.clone(), vec![0; keys.len()]);
                expected.sort_unstable();
                assert_eq!(sort(&mut keys, &mut spare), expected, "{length}, {mask:x}");
            }
        }
    }
}
