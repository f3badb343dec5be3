//! The two products of attention for a few queries at once: each key and each value is read once, where it lies.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]
#![allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]

use crate::simd::lanes::{LANES, Lanes, Loaded, Square};
use crate::simd::strands::total;
use crate::simd::strip::Strip;
use crate::simd::{Isa, prefetch};
use ptero_arithmetic::{exp, max};

/// Positions of a block, whose keys share a softmax.
pub(crate) const BLOCK: usize = 64;
/// The most queries that are computed at once.
pub(crate) const QUERIES: usize = 4;
/// The values of this many keys are added to a piece of the mixes before the next piece.
const VALUES: usize = 16;
/// How many bytes ahead memory is prefetched.
const DISTANCE: usize = 8 << 10;

/// Rows to prefetch: those that are being read, and those that come next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead<'a> {
    rows: Strip<'a, u8>,
    next: Strip<'a, u8>,
    /// How many rows ahead of the ones that are read.
    distance: usize,
}

impl<'a> Ahead<'a> {
    /// Prefetches nothing.
    pub(crate) const NONE: Self = Self { rows: Strip::EMPTY, next: Strip::EMPTY, distance: 0 };

    pub(crate) fn new(rows: Strip<'a, u8>, next: Strip<'a, u8>) -> Self {
        Self { rows, next, distance: DISTANCE.checked_div(rows.length).unwrap_or(0) }
    }

    /// Prefetches the rows that are `distance` after these.
    #[inline(always)]
    fn fetch(&self, first: usize, count: usize) {
        for number in first + self.distance..first + self.distance + count {
            if number < self.rows.count {
                prefetch(self.rows.row(number));
            } else if number - self.rows.count < self.next.count {
                prefetch(self.next.row(number - self.rows.count));
            }
        }
    }
}

/// Floats of a packed query, or elements of a transposed key: a multiple of [`LANES`].
pub(crate) fn packed_len(depth: usize) -> usize {
    depth.next_multiple_of(LANES)
}

/// Floats of the memory in which [`scores`] transposes keys.
pub(crate) fn turned_len(depth: usize) -> usize {
    packed_len(depth) * LANES
}

/// Computes `out[query][slot] = query · key` for the keys of a block, whose first key has the slot `first`: a chain of fused
/// multiply-adds in the order of the elements. The scores of slots without a key are unspecified. There are `count` queries, [`packed_len`]
/// apart. Prefetches `ahead`.
pub(crate) fn scores<T: Loaded>(
    isa: Isa,
    count: usize,
    queries: &[f32],
    (keys, first): (Strip<'_, T>, usize),
    ahead: Ahead<'_>,
    (transposed, out): (&mut [f32], &mut [f32]),
) {
    let transposed = transposed.as_chunks_mut::<LANES>().0.as_chunks_mut::<LANES>().0;
    let out = &mut out.as_chunks_mut::<BLOCK>().0[..count];
    match count {
        _ if count == 0 || keys.count == 0 => {}
        1 => run_scores(isa, Scores::<T, 1> { queries, keys, first, ahead, transposed, out }),
        2 => run_scores(isa, Scores::<T, 2> { queries, keys, first, ahead, transposed, out }),
        3 => run_scores(isa, Scores::<T, 3> { queries, keys, first, ahead, transposed, out }),
        _ => run_scores(isa, Scores::<T, QUERIES> { queries, keys, first, ahead, transposed, out }),
    }
}

/// Adds `weights[query][key] * values[key]` to `mix[query]`, fused, key by key, for `count` queries, whose weights lie `distance`
/// apart. Prefetches `ahead`.
pub(crate) fn mix<T: Loaded>(
    isa: Isa,
    count: usize,
    weights: &[f32],
    distance: usize,
    values: Strip<'_, T>,
    ahead: Ahead<'_>,
    mix: &mut [f32],
) {
    match count {
        0 => {}
        1 => run_mix(isa, Mix::<T, 1> { weights, distance, values, ahead, mix }),
        2 => run_mix(isa, Mix::<T, 2> { weights, distance, values, ahead, mix }),
        3 => run_mix(isa, Mix::<T, 3> { weights, distance, values, ahead, mix }),
        _ => run_mix(isa, Mix::<T, QUERIES> { weights, distance, values, ahead, mix }),
    }
}

/// Sixteen keys at a time are transposed, square by square, so that each has a lane. Up to four queries are computed with each
/// square; further ones read the transposed keys.
struct Scores<'a, T, const COUNT: usize> {
    queries: &'a [f32],
    keys: Strip<'a, T>,
    first: usize,
    ahead: Ahead<'a>,
    transposed: &'a mut [Square],
    out: &'a mut [[f32; BLOCK]],
}

// Registers pass through no closures: those would be compiled without the instructions.

impl<T: Loaded, const COUNT: usize> Scores<'_, T, COUNT> {
    /// Transposes a square of the keys of the slots from `slot` on.
    #[inline(always)]
    fn transpose<L: Lanes>(&mut self, lanes: L, slot: usize, square: usize) {
        let (keys, start, to) = (self.keys, square * LANES, &mut self.transposed[square]);
        if slot >= self.first && slot + LANES <= self.first + keys.count && start + LANES <= keys.length {
            return lanes.transpose(&keys.elements[(slot - self.first) * keys.stride + start..], keys.stride, to);
        }
        let mut rows = [[T::ZERO; LANES]; LANES];
        for (slot, row) in (slot..).zip(&mut rows) {
            // Slots before the first key or after the last take the nearest one.
            let key = keys.row(slot.clamp(self.first, self.first + keys.count - 1) - self.first);
            row.iter_mut().zip(&key[start..]).for_each(|(to, from)| *to = *from);
        }
        lanes.transpose(rows.as_flattened(), LANES, to);
    }

    /// The products of the queries from `query` on with sixteen keys, those of the slots from `slot` on. The keys are
    /// transposed for the first queries.
    #[inline(always)]
    fn products<L: Lanes, const IS_FIRST: bool>(&mut self, lanes: L, query: usize, slot: usize) {
        let depth = packed_len(self.keys.length);
        let queries = &self.queries[query * depth..][..COUNT * depth];
        let mut sums = [lanes.splat(0.0); COUNT];
        for square in 0..depth / LANES {
            if IS_FIRST {
                self.transpose(lanes, slot, square);
                // A share of the rows with each square: more prefetches at once would wait for each other.
                let share = |square: usize| square * LANES * LANES / depth;
                self.ahead.fetch(slot.saturating_sub(self.first) + share(square), share(square + 1) - share(square));
            }
            let mut pieces = [&[0.0; LANES]; COUNT];
            for at in 0..COUNT {
                pieces[at] = &queries[at * depth..].as_chunks().0[square];
            }
            let transposed = &self.transposed[square];
            if (square + 1) * LANES <= self.keys.length {
                for element in 0..LANES {
                    add_products(lanes, element, &pieces, transposed, &mut sums);
                }
            } else {
                for element in 0..self.keys.length % LANES {
                    add_products(lanes, element, &pieces, transposed, &mut sums);
                }
            }
        }
        for at in 0..COUNT {
            if let Some(out) = self.out[query + at][slot..].first_chunk_mut() {
                lanes.store(sums[at], out);
            }
        }
    }
}

/// Adds the products of one element of the queries and of sixteen keys.
#[inline(always)]
fn add_products<L: Lanes, const COUNT: usize>(
    lanes: L,
    element: usize,
    queries: &[&[f32; LANES]; COUNT],
    keys: &Square,
    sums: &mut [L::Floats; COUNT],
) {
    let keys = lanes.load(&keys[element]);
    for at in 0..COUNT {
        sums[at] = lanes.multiply_add(lanes.splat(queries[at][element]), keys, sums[at]);
    }
}

lanes_kernel! {
    fn run_scores[T: Loaded, const COUNT: usize](lanes, scores: Scores<'_, T, COUNT>) {
        let mut scores = scores;
        let (first, end, count) = (scores.first, scores.first + scores.keys.count, scores.out.len());
        for slot in (first / LANES * LANES..end).step_by(LANES) {
            scores.products::<L, true>(lanes, 0, slot);
            for query in (COUNT..count).step_by(COUNT) {
                // The last ones may include some for the second time.
                scores.products::<L, false>(lanes, query.min(count - COUNT), slot);
            }
        }
    }

    fn run_mix[T: Loaded, const COUNT: usize](lanes, mix: Mix<'_, T, COUNT>) {
        let mut mix = mix;
        let (count, length, distance) = (mix.values.count, mix.values.length, mix.distance);
        for first in (0..count).step_by(VALUES) {
            let end = count.min(first + VALUES);
            let mut weights: [&[f32]; COUNT] = [&[]; COUNT];
            for query in 0..COUNT {
                weights[query] = &mix.weights[query * distance + first..query * distance + end];
            }
            mix.ahead.fetch(first, VALUES);
            let (mut at, room) = (0, (L::REGISTERS - 1) / (COUNT + 1));
            while room >= 4 && at + 4 * LANES <= length {
                mix.add::<L, 4>(lanes, weights, first, at);
                at += 4 * LANES;
            }
            while room >= 2 && at + 2 * LANES <= length {
                mix.add::<L, 2>(lanes, weights, first, at);
                at += 2 * LANES;
            }
            while at + LANES <= length {
                mix.add::<L, 1>(lanes, weights, first, at);
                at += LANES;
            }
            if at < length {
                mix.add_rest(weights, first, at);
            }
        }
    }
}

struct Mix<'a, T, const COUNT: usize> {
    weights: &'a [f32],
    distance: usize,
    values: Strip<'a, T>,
    ahead: Ahead<'a>,
    mix: &'a mut [f32],
}

impl<T: Loaded, const COUNT: usize> Mix<'_, T, COUNT> {
    /// Adds the values of the keys from `first` on to `N * LANES` elements from `at` on.
    #[inline(always)]
    fn add<L: Lanes, const N: usize>(&mut self, lanes: L, weights: [&[f32]; COUNT], first: usize, at: usize) {
        let length = self.values.length;
        let mut sums = [[lanes.splat(0.0); N]; COUNT];
        for query in 0..COUNT {
            let mix = self.mix[query * length + at..][..N * LANES].as_chunks::<LANES>().0;
            for piece in 0..N {
                sums[query][piece] = lanes.load(&mix[piece]);
            }
        }
        for number in 0..weights[0].len() {
            let value = self.values.row(first + number)[at..][..N * LANES].as_chunks::<LANES>().0;
            let mut loaded = [lanes.splat(0.0); N];
            for (loaded, value) in loaded.iter_mut().zip(value) {
                *loaded = T::load(lanes, value);
            }
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let weight = lanes.splat(weights[number]);
                for (sum, value) in sums.iter_mut().zip(&loaded) {
                    *sum = lanes.multiply_add(weight, *value, *sum);
                }
            }
        }
        for query in 0..COUNT {
            let mix = self.mix[query * length + at..][..N * LANES].as_chunks_mut::<LANES>().0;
            for piece in 0..N {
                lanes.store(sums[query][piece], &mut mix[piece]);
            }
        }
    }

    /// Same as `add`, for the elements after the last whole lanes.
    #[inline(always)]
    fn add_rest(&mut self, weights: [&[f32]; COUNT], first: usize, at: usize) {
        for (mix, weights) in self.mix.chunks_exact_mut(self.values.length).zip(weights) {
            for (number, weight) in weights.iter().enumerate() {
                let values = self.values.row(first + number)[at..].iter();
                mix[at..].iter_mut().zip(values).for_each(|(mix, value)| *mix = weight.mul_add(value.float(), *mix));
            }
        }
    }
}

kernel! {
    /// Replaces the scores of a block by weights, relative to the largest score; returns that and the sum of the weights, in strands by
    /// position.
    pub(crate) fn weigh(scores: &mut [f32; BLOCK]) -> (f32, f32) {
        let pieces = scores.as_chunks_mut::<LANES>().0;
        let mut most = [f32::NEG_INFINITY; LANES];
        for piece in pieces.iter() {
            most.iter_mut().zip(piece).for_each(|(most, score)| *most = max(*most, *score));
        }
        let largest = most.into_iter().fold(f32::NEG_INFINITY, max);
        // Where there are only scores of minus infinity, all weights are zero.
        let center = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let mut strands = [0.0; LANES];
        for piece in pieces {
            for (strand, score) in strands.iter_mut().zip(piece) {
                *score = exp(*score - center);
                *strand += *score;
            }
        }
        (largest, total(strands))
    }

    /// Sets `mix` to `mix * a + other * b`: two products and their sum, each rounded.
    pub(crate) fn join(mix: &mut [f32], other: &[f32], a: f32, b: f32) {
        mix.iter_mut().zip(other).for_each(|(mix, other)| *mix = *mix * a + other * b);
    }

    /// Multiplies a mix by the factor, and makes -0 +0.
    pub(crate) fn finish(mix: &mut [f32], factor: f32) {
        mix.iter_mut().for_each(|mix| *mix = *mix * factor + 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::numeric::element::Float;
    use half::{bf16, f16};

    fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
        (0..count).map(|at| T::rounded(((at * 37 + seed * 11) % 101) as f32 / 61.0 - 0.8)).collect()
    }

    /// Queries, keys, the slot of the first key, elements.
    const SIZES: [[usize; 4]; 8] = [
        [1, 1, 63, 1],
        [2, 17, 0, 16],
        [3, 40, 5, 100],
        [4, 33, 31, 64],
        [4, 5, 14, 193],
        [4, 0, 3, 8],
        [7, 64, 0, 40],
        [16, 50, 13, 31],
    ];

    fn check<T: Loaded>() {
        for (isa, [count, keys, first, length]) in
            Isa::available().into_iter().flat_map(|isa| SIZES.map(|size| (isa, size)))
        {
            let (stride, padded) = (length + 3, packed_len(length));
            let (queries, elements) = (numbers::<f32>(count * padded, 1), numbers::<T>(keys * stride, 2));
            let strip = Strip { elements: &elements, stride, count: keys, length };
            let (mut transposed, mut scores) = (vec![f32::NAN; turned_len(length)], vec![7.0; count * BLOCK]);
            super::scores(isa, count, &queries, (strip, first), Ahead::NONE, (&mut transposed, &mut scores));
            for (query, scores) in queries.chunks_exact(padded).zip(scores.chunks_exact(BLOCK)) {
                for key in 0..keys {
                    let row = &elements[key * stride..];
                    let chain = |sum: f32, (q, k): (&f32, &T)| q.mul_add(k.float(), sum);
                    let expected = query.iter().zip(&row[..length]).fold(0.0, chain);
                    assert_eq!(scores[first + key].to_bits(), expected.to_bits(), "{isa:?}");
                }
            }
            for (number, scores) in scores.chunks(QUERIES * BLOCK).enumerate() {
                let mut mixes = numbers::<f32>(scores.len() / BLOCK * length, number);
                let before = mixes.clone();
                super::mix(isa, scores.len() / BLOCK, &scores[first..], BLOCK, strip, Ahead::NONE, &mut mixes);
                for (at, (mix, before)) in mixes.iter().zip(before).enumerate() {
                    let (query, element) = (at / length, at % length);
                    let chain = |sum: f32, key: usize| {
                        scores[query * BLOCK + first + key].mul_add(elements[key * stride + element].float(), sum)
                    };
                    assert_eq!(mix.to_bits(), (0..keys).fold(before, chain).to_bits(), "{isa:?}");
                }
            }
        }
    }

    #[test]
    fn scores_and_mixes_are_those_of_the_definition() {
        check::<f32>();
        check::<f16>();
        check::<bf16>();
    }

    #[test]
    fn blocks_are_weighed_in_strands_by_position() {
        for isa in Isa::available() {
            let given: Vec<f32> = numbers(BLOCK, 1);
            let mut scores: [f32; BLOCK] = std::array::from_fn(|at| 9.0 * given[at]);
            (scores[0], scores[63]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            let most = scores.into_iter().fold(f32::NEG_INFINITY, f32::max);
            let weights = scores.map(|score| exp(score - most));
            let strand = |at: usize| weights[at..].iter().step_by(LANES).fold(0.0, |sum, weight| sum + weight);
            let mut strands: Vec<f32> = (0..LANES).map(strand).collect();
            while strands.len() > 1 {
                let (low, high) = strands.split_at(strands.len() / 2);
                strands = low.iter().zip(high).map(|(low, high)| low + high).collect();
            }
            assert_eq!(weigh(isa, &mut scores), (most, strands[0]));
            assert_eq!(scores, weights);
            let mut nothing = [f32::NEG_INFINITY; BLOCK];
            assert_eq!(weigh(isa, &mut nothing), (f32::NEG_INFINITY, 0.0));
            assert_eq!(nothing, [0.0; BLOCK]);
        }
    }
}
