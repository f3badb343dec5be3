//! Kernels of sampling: maxima of blocks, random words, masses. What they compute is defined, to the bit, by `ptero_sampling`.

use ptero_sampling::math::{EXP, LN_2_HIGH, LN_2_LOW, WHOLE};
use ptero_sampling::threefry::Key;

/// Elements that share a maximum.
pub(crate) const BLOCK: usize = 128;

/// Elements that maxima are taken of in parallel.
const LANES: usize = 32;

/// The larger one; not-a-number never is.
#[inline(always)]
fn larger(best: f32, x: f32) -> f32 {
    if x > best { x } else { best }
}

#[inline(always)]
fn largest_of(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane = larger(*lane, *x));
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high.iter()).for_each(|(low, high)| *low = larger(*low, *high));
        width /= 2;
    }
    let [first, ..] = lanes;
    first
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

/// How far below the largest.
#[inline(always)]
fn distance(scaled: f32, largest: f32) -> f32 {
    if scaled == largest { 0.0 } else { scaled - largest }
}

/// `ptero_sampling::mass::mass` of a distance, without branches; of not-a-number, nothing.
#[inline(always)]
fn mass(distance: f32) -> u64 {
    let shifted = distance * std::f32::consts::LOG2_E + WHOLE;
    let power = shifted - WHOLE;
    let r = (distance - power * LN_2_HIGH) - power * LN_2_LOW;
    let [c0, c1, c2, c3, c4] = EXP;
    let mantissa = 1.0 + (r + r * r * ((((c4 * r + c3) * r + c2) * r + c1) * r + c0));
    // The mantissa times 2^power: exact, since neither is anywhere near the ends of the exponents.
    let whole = shifted.to_bits().wrapping_sub(WHOLE.to_bits());
    let bits = mantissa.to_bits().wrapping_add(whole << 23);
    let (exponent, mantissa) = (bits >> 23, bits & 0x7f_ffff | 0x80_0000);
    let mass = (u64::from(mantissa) << 17).wrapping_shr(127_u32.wrapping_sub(exponent));
    if distance >= -28.0 { mass } else { 0 }
}

/// Bins of a histogram of masses for every unit of distance.
const BINS_PER_UNIT: f32 = 32.0;
/// Bins of a histogram of masses: those of what has any mass.
pub(crate) const BINS: usize = 28 * 32 + 1;
/// The same, as what bins are computed in.
const BINS_END: f32 = 897.0;

/// The bin of a scaled logit; [`BINS`] if it has no mass. It never falls as the logit falls.
#[inline(always)]
pub(crate) fn bin(scaled: f32, largest: f32) -> u32 {
    let bins = distance(scaled, largest) * -BINS_PER_UNIT;
    let bounded = if bins < BINS_END { bins } else { BINS_END };
    (bounded + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits())
}

kernel! {
    /// The maximum of every block, the last of which may be shorter. Of nothing, or nothing but not-a-number, minus infinity.
    pub(crate) fn maxima(x: &[f32], out: &mut [f32]) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        for (block, out) in blocks.iter().zip(out.iter_mut()) {
            *out = largest_of(block);
        }
        if !rest.is_empty() && let Some(out) = out.get_mut(blocks.len()) {
            *out = largest_of(rest);
        }
    }

    /// The largest, likewise.
    pub(crate) fn largest(x: &[f32]) -> f32 {
        largest_of(x)
    }

    /// How many are at least `low`.
    pub(crate) fn count(x: &[f32], low: f32) -> usize {
        x.iter().map(|x| u32::from(*x >= low)).sum::<u32>() as usize
    }

    /// Logits divided by the temperature.
    pub(crate) fn scale(x: &[f32], temperature: f32, out: &mut [f32]) {
        x.iter().zip(out).for_each(|(x, out)| *out = *x / temperature);
    }

    /// The sum of the masses of scaled logits.
    pub(crate) fn mass_sum(scaled: &[f32], largest: f32) -> u64 {
        scaled.iter().map(|scaled| mass(distance(*scaled, largest))).sum()
    }

    /// The masses and bins of those logits that are at least `low`, others having none; and the sum.
    pub(crate) fn weigh(
        x: &[f32],
        temperature: f32,
        low: f32,
        largest: f32,
        masses: &mut [u64],
        bins: &mut [u32],
    ) -> u64 {
        for ((x, out), place) in x.iter().zip(masses.iter_mut()).zip(bins) {
            let scaled = *x / temperature;
            let mass = mass(distance(scaled, largest));
            *out = if *x >= low { mass } else { 0 };
            *place = bin(scaled, largest);
        }
        masses.iter().zip(x).map(|(mass, _)| *mass).sum()
    }

    /// The words of pairs of counters that count up from two; gives the largest of each.
    pub(crate) fn word_pairs(key: Key, first: [u32; 2], low: &mut [u32], high: &mut [u32]) -> [u32; 2] {
        let [c0, c1] = first;
        for ((low, high), at) in low.iter_mut().zip(high.iter_mut()).zip(0_u32..) {
            [*low, *high] = threefry(key, c0.wrapping_add(at), c1.wrapping_add(at));
        }
        [low, high].map(|words| words.iter().fold(0, |most, word| most.max(*word)))
    }

    /// The words, of `count`, of indices that count from `start`; gives the largest. No word is beyond 2^32.
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
}

#[cfg(test)]
mod tests;
