//! Bounds of what is kept: the k-th largest logit, the nucleus. Only logits near a bound are partitioned.

use crate::element::{from_ordered, ordered};
use crate::simd::{Isa, sample as kernels};

/// The least logit for which `holds` returns `true`. It does so for `holds_for`, and for all logits above one for which it does.
///
/// Dividing by a temperature never changes the order of two logits, but it may make them equal. This converts bounds on scaled
/// logits to bounds on logits, to the bit, so that logits need not be divided to be compared.
pub(super) fn least(holds_for: f32, holds: impl Fn(f32) -> bool) -> f32 {
    let (mut below, mut found) = (ordered(f32::NEG_INFINITY), ordered(holds_for));
    while below < found {
        let middle = below + (found - below).div_euclid(2);
        if holds(from_ordered(middle)) { found = middle } else { below = middle + 1 }
    }
    from_ordered(found)
}

/// Moves the `count` largest numbers to the front, and returns the least of them.
pub(super) fn partition(numbers: &mut [f32], count: usize) -> f32 {
    // The order of the two zeros does not matter, since callers keep all numbers that equal the last.
    let (_, last, _) = numbers.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    *last
}

/// The least scaled logit with at most `limit` mass above it. `before`, at most `limit`, is the mass above all of these.
pub(super) fn smallest_kept(isa: Isa, scaled: &mut [f32], largest: f32, mut before: u64, limit: u64) -> f32 {
    let mut rest = scaled;
    // The largest of the rest is always kept. Equal logits may be in both halves: then some are counted as above others, which is
    // still within the limit.
    while rest.len() > 1 {
        let half = rest.len() / 2;
        partition(rest, half + 1);
        let (upper, lower) = rest.split_at_mut(half);
        let mass = kernels::total(isa, upper, largest);
        if before + mass > limit {
            rest = upper;
        } else {
            before += mass;
            rest = lower;
        }
    }
    rest.first().copied().unwrap_or(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptero_sampling::mass::{limit, mass};

    #[test]
    fn the_least_logit_of_a_bound_is_found_to_the_bit() {
        for temperature in [0.7_f32, 1.0, 3.3, 1e-4, 100.0, 1e38] {
            for logit in [-1e30_f32, -3.7, -1e-40, -0.0, 0.0, 1e-30, 0.1, 17.25, f32::MAX, f32::INFINITY] {
                let bound = logit / temperature;
                let found = least(logit, |logit| logit / temperature >= bound);
                assert!(found / temperature >= bound && found <= logit, "{logit} {temperature}");
                assert!(found == f32::NEG_INFINITY || found.next_down() / temperature < bound);
            }
        }
        assert_eq!(least(f32::INFINITY, |_| true), f32::NEG_INFINITY);
    }

    #[test]
    fn the_nucleus_ends_where_the_mass_above_exceeds_the_limit() {
        for length in 1..40_usize {
            // With ties, of the two zeros too.
            let number = |at: usize| ((at * 7) % 13) as f32 / 4.0 - 1.5;
            let mut scaled: Vec<f32> = (0..length).map(number).map(|x| if x == 0.0 { -0.0 } else { x }).collect();
            let largest = scaled.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total = kernels::total(Isa::best(), &scaled, largest);
            for top_p in [0.0, 0.1, 0.3, 0.5, 0.77, 0.95, 1.0] {
                let limit = limit(top_p, total);
                let above = |bound: f32| scaled.iter().filter(|x| **x > bound).map(|x| mass(*x, largest)).sum::<u64>();
                let kept = scaled.iter().copied().filter(|x| above(*x) <= limit);
                let expected = kept.fold(f32::INFINITY, f32::min);
                assert_eq!(smallest_kept(Isa::best(), &mut scaled.clone(), largest, 0, limit), expected);
            }
            scaled.clear();
        }
    }
}
