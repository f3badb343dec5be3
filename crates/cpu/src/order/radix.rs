//! Sorting by digits, the lowest first: every digit is counted once, then each pass moves all keys to their places. A digit that
//! is the same in all keys takes no pass, as the lower half of bfloats, or the exponents of numbers of one size.
#![allow(clippy::indexing_slicing, reason = "of arrays, by a digit that is masked to their length")]

/// Bits of a digit: three of them are 32 bits, and the places of one fit the first cache.
const BITS: u32 = 11;
/// Digits of the high half of a key.
const DIGITS: u32 = 3;
/// Shorter lines are sorted by comparing; measured.
const SHORTEST: usize = 2048;

/// Sorts keys that are given in the order of their low halves, by their high halves. `spare` is as long; the result is in
/// either.
pub(super) fn sort<'a>(keys: &'a mut [i64], spare: &'a mut [i64]) -> &'a [i64] {
    if keys.len() < SHORTEST {
        keys.sort_unstable();
        return keys;
    }
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
            let place = &mut counts[digit(*key, number)];
            if let Some(to) = to.get_mut(*place) {
                *to = *key;
            }
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// A digit of the high half; as the highest bit is the sign, negative keys come first.
#[inline(always)]
fn digit(key: i64, number: u32) -> usize {
    let bits = (key ^ i64::MIN).cast_unsigned() >> (32 + BITS * number) & ((1 << BITS) - 1);
    usize::try_from(bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_as_by_comparing_whatever_their_digits() {
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
