//! Kernels of sampling: maxima of blocks, random words, masses. What they compute is defined, to the bit, by `ptero_sampling`.
#![allow(clippy::indexing_slicing, reason = "of arrays, and of what was just measured")]

pub(crate) mod compress;

use super::lanes::{LANES, Lanes, Loaded};
use ptero_arithmetic::{EXP, LN_2_HIGH, LN_2_LOW, WHOLE};
use ptero_sampling::adjust::MASK_BITS;
use ptero_sampling::mass::ONE;
use ptero_sampling::threefry::Key;

/// Elements that share a maximum.
pub(crate) const BLOCK: usize = 128;

lanes_kernel! {
    /// The maximum of every block, the last of which may be shorter; minus infinity for a block that is empty or all NaN.
    // Left to the compiler, this gathers columns.
    pub(crate) fn maxima[E: Loaded](lanes, x: &[E], out: &mut [f32]) {
        let (blocks, _) = x.as_chunks::<LANES>().0.as_chunks::<{ BLOCK / LANES }>();
        for ([a, b, c, d, e, f, g, h], out) in blocks.iter().zip(out.iter_mut()) {
            let least = lanes.splat(f32::NEG_INFINITY);
            let larger = |best: L::Floats, x: &[E; LANES]| lanes.larger(best, E::load(lanes, x));
            let (first, second) = (larger(larger(least, a), b), larger(larger(least, c), d));
            let (third, fourth) = (larger(larger(least, e), f), larger(larger(least, g), h));
            *out = lanes.largest(lanes.larger(lanes.larger(first, second), lanes.larger(third, fourth)));
        }
        let done = blocks.len() * BLOCK;
        if done < x.len()
            && let Some(out) = out.get_mut(blocks.len())
        {
            let mut last = [f32::NEG_INFINITY; BLOCK];
            last.iter_mut().zip(&x[done..]).for_each(|(last, x)| *last = x.float());
            *out = largest_of(lanes, &last);
        }
    }

    /// Same as [`maxima`], of elements whose bit of a mask is 1.
    pub(crate) fn allowed_maxima[E: Loaded](lanes, x: &[E], mask: &[i32], out: &mut [f32]) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        let (words, rest_words) = mask.as_chunks::<BLOCK_WORDS>();
        for ((block, words), out) in blocks.iter().zip(words).zip(out.iter_mut()) {
            *out = largest_allowed(lanes, block, words);
        }
        if let Some(out) = out.get_mut(blocks.len()) {
            let (mut last, mut last_words) = ([f32::NEG_INFINITY; BLOCK], [0; BLOCK_WORDS]);
            last.iter_mut().zip(rest).for_each(|(last, x)| *last = x.float());
            let rest_words = words.get(blocks.len()).map_or(rest_words, |words| words.as_slice());
            last_words.iter_mut().zip(rest_words).for_each(|(last, word)| *last = *word);
            *out = largest_allowed(lanes, &last, &last_words);
        }
    }

    /// The largest element; minus infinity if there is none, or if all are NaN.
    pub(crate) fn largest(lanes, x: &[f32]) -> f32 {
        largest_of(lanes, x)
    }
}

/// The words of a mask for a block.
const BLOCK_WORDS: usize = BLOCK / MASK_BITS;

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "halves of a word")]
fn largest_allowed<L: Lanes, E: Loaded>(lanes: L, block: &[E; BLOCK], words: &[i32; BLOCK_WORDS]) -> f32 {
    let mut best = [lanes.splat(f32::NEG_INFINITY); 2];
    if *words == [0; BLOCK_WORDS] {
        return f32::NEG_INFINITY;
    }
    let (pairs, _) = block.as_chunks::<LANES>().0.as_chunks::<2>();
    for ([low, high], word) in pairs.iter().zip(words) {
        best[0] = lanes.larger_where(*word as u16, best[0], E::load(lanes, low));
        best[1] = lanes.larger_where((*word >> LANES) as u16, best[1], E::load(lanes, high));
    }
    lanes.largest(lanes.larger(best[0], best[1]))
}

#[inline(always)]
fn largest_of<L: Lanes>(lanes: L, x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last.iter_mut().zip(rest).for_each(|(last, x)| *last = *x);
    let mut best = [lanes.larger(lanes.splat(f32::NEG_INFINITY), lanes.load(&last)); 2];
    let (pairs, single) = chunks.as_chunks::<2>();
    for pair in pairs {
        best = [lanes.larger(best[0], lanes.load(&pair[0])), lanes.larger(best[1], lanes.load(&pair[1]))];
    }
    for chunk in single {
        best[0] = lanes.larger(best[0], lanes.load(chunk));
    }
    lanes.largest(lanes.larger(best[0], best[1]))
}

/// `ptero_sampling::threefry::threefry2x32`, unrolled.
#[inline(always)]
fn threefry([k0, k1]: Key, c0: u32, c1: u32) -> [u32; 2] {
    let k2 = k0 ^ k1 ^ 0x1BD1_1BDA;
    let mut x = [c0.wrapping_add(k0), c1.wrapping_add(k1)];
    let four = |x: [u32; 2], rotations: [u32; 4], s0: u32, s1: u32, group: u32| {
        let round = |[x0, x1]: [u32; 2], rotation: u32| {
            let x0 = x0.wrapping_add(x1);
            [x0, x1.rotate_left(rotation) ^ x0]
        };
        let [a, b, c, d] = rotations;
        let [x0, x1] = round(round(round(round(x, a), b), c), d);
        [x0.wrapping_add(s0), x1.wrapping_add(s1.wrapping_add(group))]
    };
    let (even, odd) = ([13, 15, 26, 6], [17, 29, 16, 24]);
    x = four(x, even, k1, k2, 1);
    x = four(x, odd, k2, k0, 2);
    x = four(x, even, k0, k1, 3);
    x = four(x, odd, k1, k2, 4);
    four(x, even, k2, k0, 5)
}

/// The distance below the largest.
#[inline(always)]
fn distance(scaled: f32, largest: f32) -> f32 {
    if scaled == largest { 0.0 } else { scaled - largest }
}

/// `exp(distance)`, without branches; zero below -28, where there is no mass, and for NaN.
#[inline(always)]
fn power(distance: f32) -> f32 {
    let shifted = distance * std::f32::consts::LOG2_E + WHOLE;
    let power = shifted - WHOLE;
    let r = (distance - power * LN_2_HIGH) - power * LN_2_LOW;
    let [c0, c1, c2, c3, c4] = EXP;
    let mantissa = 1.0 + (r + r * r * ((((c4 * r + c3) * r + c2) * r + c1) * r + c0));
    // The mantissa times 2^power: exact, since neither is anywhere near the ends of the exponents.
    let whole = shifted.to_bits().wrapping_sub(WHOLE.to_bits());
    let bits = mantissa.to_bits().wrapping_add(whole << 23);
    f32::from_bits(if distance >= -28.0 { bits } else { 0 })
}

/// `ptero_sampling::mass::mass`, of the power: its high part, in units of 2^20, and the rest. Every step is exact.
#[inline(always)]
#[allow(unsafe_code, reason = "truncates to integers without checking the range")]
fn mass(power: f32) -> [i32; 2] {
    const UNIT: f32 = 1_048_576.0;
    // From 0 to 1 anyway, as long as nothing is above the largest; but no caller's mistake may reach the cut below.
    let power = if power < 1.0 { power } else { 1.0 };
    let scaled = if power > 0.0 { power } else { 0.0 } * UNIT;
    // SAFETY: a number from 0 to 2^20, whatever the power is.
    let high: i32 = unsafe { scaled.to_int_unchecked() };
    #[allow(clippy::cast_precision_loss, reason = "not above 2^20")]
    let rest = (scaled - high as f32) * UNIT;
    // SAFETY: less than 1 times 2^20, and not below 0.
    [high, unsafe { rest.to_int_unchecked() }]
}

/// Joins the parts of a mass; neither is negative.
#[inline(always)]
fn joined([high, low]: [i32; 2]) -> u64 {
    (u64::from(high.cast_unsigned()) << 20) + u64::from(low.cast_unsigned())
}

/// The mass of a power that [`place`] gave.
#[inline(always)]
pub(crate) fn mass_of(power: f32) -> u64 {
    joined(mass(power))
}

/// The most masses that can be summed by parts without overflow.
const SUMMED: usize = 1024;

/// The masses of those that are at least `low`, when scaled, summed.
#[inline(always)]
fn sum_masses(x: &[f32], scale: impl Fn(f32) -> f32, low: f32, largest: f32) -> u64 {
    if largest == f32::INFINITY {
        return x.iter().filter(|x| scale(**x) == largest).count() as u64 * ONE;
    }
    let of_part = |part: &[f32]| {
        let (mut high_sum, mut low_sum) = (0_i32, 0_i32);
        for x in part {
            let power = power(scale(*x) - largest);
            let [high, rest] = mass(if *x >= low { power } else { 0.0 });
            (high_sum, low_sum) = (high_sum.wrapping_add(high), low_sum.wrapping_add(rest));
        }
        joined([high_sum, low_sum])
    };
    x.chunks(SUMMED).map(of_part).sum()
}

/// Bins of a histogram of masses for every unit of distance.
pub(crate) const BINS_PER_UNIT: f32 = 32.0;
/// Bins of a histogram of masses: those of what has any mass.
pub(crate) const BINS: usize = 28 * 32 + 1;
/// [`BINS`] as a float.
const BINS_END: f32 = 897.0;

/// The bin of a scaled logit; [`BINS`] if it has no mass. A smaller logit never has a smaller bin.
#[inline(always)]
pub(crate) fn bin(scaled: f32, largest: f32) -> u32 {
    let bins = distance(scaled, largest) * -BINS_PER_UNIT;
    let bounded = if bins < BINS_END { bins } else { BINS_END };
    (bounded + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits())
}

/// The bits of a mask from a number on.
#[inline(always)]
fn mask_bits(mask: &[i32], first: usize) -> u32 {
    let word = |at: usize| u64::from(mask.get(at).map_or(u32::MAX, |word| word.cast_unsigned()));
    let at = first / MASK_BITS;
    let both = word(at) | word(at + 1) << MASK_BITS;
    #[allow(clippy::cast_possible_truncation, reason = "the bits above belong to later elements")]
    let bits = (both >> (first % MASK_BITS)) as u32;
    bits
}

#[inline(always)]
fn exclude_bits(bits: u32, x: &mut [f32]) {
    for (x, bit) in x.iter_mut().zip(0..) {
        *x = if bits >> bit & 1 == 0 { f32::NEG_INFINITY } else { *x };
    }
}

/// The parameters of the masses of logits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weighting {
    /// Logits are divided by it.
    pub(crate) temperature: f32,
    /// The smallest logit that has any mass.
    pub(crate) low: f32,
    /// The smallest logit whose bin matters.
    pub(crate) near: f32,
    /// The largest scaled logit.
    pub(crate) largest: f32,
}

kernel! {
    /// The number of elements that are at least `low`.
    pub(crate) fn count(x: &[f32], low: f32) -> usize {
        x.iter().map(|x| u32::from(*x >= low)).sum::<u32>() as usize
    }

    /// Replaces elements by minus infinity if their bit of a mask is 0. The bit of the first is number `first`; missing words are
    /// all ones.
    pub(crate) fn exclude(mask: &[i32], first: usize, x: &mut [f32]) {
        for (x, first) in x.chunks_mut(MASK_BITS).zip((first..).step_by(MASK_BITS)) {
            let bits = mask_bits(mask, first);
            match x.as_chunks_mut::<MASK_BITS>() {
                _ if bits == u32::MAX => {}
                ([whole], _) if bits == 0 => whole.fill(f32::NEG_INFINITY),
                ([whole], _) => exclude_bits(bits, whole),
                (_, part) => exclude_bits(bits, part),
            }
        }
    }

    /// Logits divided by the temperature.
    pub(crate) fn scale(x: &[f32], temperature: f32, out: &mut [f32]) {
        x.iter().zip(out).for_each(|(x, out)| *out = *x / temperature);
    }

    /// The sum of the masses of scaled logits.
    pub(crate) fn total(scaled: &[f32], largest: f32) -> u64 {
        sum_masses(scaled, |scaled| scaled, f32::NEG_INFINITY, largest)
    }

    /// The sum of the masses of logits.
    pub(crate) fn weigh(x: &[f32], weigh: &Weighting) -> u64 {
        let Weighting { temperature, low, largest, .. } = *weigh;
        // Dividing by a power of two is multiplying by another, to the bit, and takes a fraction of the time.
        let factor = 1.0 / temperature;
        if temperature.to_bits() & 0x7f_ffff == 0 && factor.is_normal() {
            sum_masses(x, |x| x * factor, low, largest)
        } else {
            sum_masses(x, |x| x / temperature, low, largest)
        }
    }

    /// The power of each scaled logit, and its bin.
    pub(crate) fn place(scaled: &[f32], largest: f32, powers: &mut [f32], bins: &mut [u32]) {
        for ((scaled, out), bin_of) in scaled.iter().zip(powers).zip(bins) {
            *out = power(distance(*scaled, largest));
            *bin_of = bin(*scaled, largest);
        }
    }

    /// The largest word.
    pub(crate) fn most(words: &[u32]) -> u32 {
        words.iter().fold(0, |most, word| most.max(*word))
    }

    /// The words of pairs of counters that count up from `first`; returns the largest of each.
    pub(crate) fn word_pairs(key: Key, first: [u32; 2], low: &mut [u32], high: &mut [u32]) -> [u32; 2] {
        let [c0, c1] = first;
        for ((low, high), at) in low.iter_mut().zip(high.iter_mut()).zip(0_u32..) {
            [*low, *high] = threefry(key, c0.wrapping_add(at), c1.wrapping_add(at));
        }
        [low, high].map(|words| words.iter().fold(0, |most, word| most.max(*word)))
    }

    /// The words, of `count`, of indices that count from `start`; returns the largest. No index is beyond 2^32.
    pub(crate) fn words_at(key: Key, count: u32, start: u32, indices: &[u32], out: &mut [u32]) -> u32 {
        let (half, upper) = (count / 2, count.div_ceil(2));
        for (index, out) in indices.iter().zip(out.iter_mut()) {
            let at = start.wrapping_add(*index);
            let is_low = at < upper;
            let c0 = if is_low { at } else { at.wrapping_sub(upper) };
            let partner = if at < half { at.wrapping_add(upper) } else { 0 };
            let [low, high] = threefry(key, c0, if is_low { partner } else { at });
            *out = if is_low { low } else { high };
        }
        out.iter().zip(indices).fold(0, |most, (word, _)| most.max(*word))
    }

    /// The inverted first words of the blocks of indices that count from `start`; returns the largest. The second counter of a
    /// block is `count` above the first.
    pub(crate) fn inverted_words_at(key: Key, count: u32, start: u32, indices: &[u32], out: &mut [u32]) -> u32 {
        for (index, out) in indices.iter().zip(out.iter_mut()) {
            let at = start.wrapping_add(*index);
            let [high, _] = threefry(key, at, at.wrapping_add(count));
            *out = !high;
        }
        out.iter().zip(indices).fold(0, |most, (word, _)| most.max(*word))
    }
}

#[cfg(test)]
mod tests;
