//! The two products of attention for a few queries at once: each key and each value is read once, where it lies.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]
#![allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]

use super::element::Float;
use super::lanes::{Job, LANES, Lanes, with_lanes};
use super::{Isa, prefetch};
use half::{bf16, f16};

/// So many queries at once, at most.
pub(crate) const QUERIES: usize = 4;
/// So many keys at once: as many sums as lanes are added across together.
const KEYS: usize = 4;
/// The values of so many keys are added to a piece of the mixes before the next piece.
const VALUES: usize = 16;
/// So many bytes are on their way from memory.
const DISTANCE: usize = 8 << 10;

/// Rows of equal length at equal distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strip<'a, T> {
    /// From the first element of the first row on.
    pub(crate) elements: &'a [T],
    /// From a row to the next.
    pub(crate) stride: usize,
    /// How many rows.
    pub(crate) count: usize,
    /// Of a row.
    pub(crate) length: usize,
}

impl<'a, T> Strip<'a, T> {
    /// No rows.
    pub(crate) const EMPTY: Self = Self { elements: &[], stride: 0, count: 0, length: 0 };

    #[inline(always)]
    fn row(&self, number: usize) -> &'a [T] {
        &self.elements[number * self.stride..][..self.length]
    }
}

/// Bytes that should be on their way from memory: those of the rows that are being read, and of the rows that come next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead<'a> {
    pub(crate) rows: Strip<'a, u8>,
    pub(crate) next: Strip<'a, u8>,
}

impl Ahead<'_> {
    /// Nothing.
    pub(crate) const NONE: Self = Self { rows: Strip::EMPTY, next: Strip::EMPTY };

    /// Asks for what will be read soon, when these rows are read now.
    #[inline(always)]
    fn fetch(&self, first: usize, count: usize) {
        let distance = DISTANCE.checked_div(self.rows.length).unwrap_or(0);
        for number in first + distance..first + distance + count {
            if number < self.rows.count {
                prefetch(self.rows.row(number));
            } else if number - self.rows.count < self.next.count {
                prefetch(self.next.row(number - self.rows.count));
            }
        }
    }
}

/// The elements that keys and values can have.
pub(crate) trait Attended: Float + Default {
    /// Sixteen of them, widened.
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats;
}

impl Attended for f32 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats {
        lanes.load(from)
    }
}

impl Attended for f16 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats {
        lanes.load_f16(from)
    }
}

impl Attended for bf16 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats {
        lanes.load_bf16(from)
    }
}

/// Floats of a packed query.
pub(crate) fn packed_len(depth: usize) -> usize {
    depth.next_multiple_of(LANES)
}

/// Packs queries of so many elements for [`scores`]: `[piece][query][lane]`, with zeros behind the last element.
pub(crate) fn pack(queries: &[f32], depth: usize, to: &mut [f32]) {
    let count = queries.len().checked_div(depth).unwrap_or(0);
    for (number, query) in queries.chunks_exact(depth.max(1)).enumerate() {
        let pieces = to.as_chunks_mut::<LANES>().0.iter_mut().skip(number).step_by(count);
        for (piece, from) in pieces.zip(query.chunks(LANES)) {
            piece.fill(0.0);
            piece.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}

/// `out[query][key] = query · key`. The `count` queries are those of [`pack`]; `out` has as many rows. What is
/// `ahead` is asked for on the way.
pub(crate) fn scores<T: Attended>(
    isa: Isa,
    count: usize,
    queries: &[f32],
    keys: Strip<'_, T>,
    ahead: Ahead<'_>,
    out: &mut [f32],
) {
    match count {
        1 => with_lanes(isa, Scores::<T, 1> { queries, keys, ahead, out }),
        2 => with_lanes(isa, Scores::<T, 2> { queries, keys, ahead, out }),
        3 => with_lanes(isa, Scores::<T, 3> { queries, keys, ahead, out }),
        _ => with_lanes(isa, Scores::<T, QUERIES> { queries, keys, ahead, out }),
    }
}

/// `mix[query] += Σ weights[query][key] values[key]`, for `count` queries. Likewise.
pub(crate) fn mix<T: Attended>(
    isa: Isa,
    count: usize,
    weights: &[f32],
    values: Strip<'_, T>,
    ahead: Ahead<'_>,
    mix: &mut [f32],
) {
    match count {
        1 => with_lanes(isa, Mix::<T, 1> { weights, values, ahead, mix }),
        2 => with_lanes(isa, Mix::<T, 2> { weights, values, ahead, mix }),
        3 => with_lanes(isa, Mix::<T, 3> { weights, values, ahead, mix }),
        _ => with_lanes(isa, Mix::<T, QUERIES> { weights, values, ahead, mix }),
    }
}

struct Scores<'a, T, const COUNT: usize> {
    queries: &'a [f32],
    keys: Strip<'a, T>,
    ahead: Ahead<'a>,
    out: &'a mut [f32],
}

// Registers pass through no closures: those would be compiled without the instructions.

impl<T: Attended, const COUNT: usize> Scores<'_, T, COUNT> {
    /// The products of all queries with some keys.
    #[inline(always)]
    fn products<L: Lanes>(&self, lanes: L, first: usize) -> [[f32; KEYS]; COUNT] {
        let queries = self.queries.as_chunks::<LANES>().0.as_chunks::<COUNT>().0;
        let whole = self.keys.length / LANES;
        // Behind the last key it is the last again.
        let keys: [&[T]; KEYS] = std::array::from_fn(|number| self.keys.row((first + number).min(self.keys.count - 1)));
        let pieces: [&[[T; LANES]]; KEYS] = keys.map(|key| &key.as_chunks::<LANES>().0[..whole]);
        let mut sums = [[lanes.splat(0.0); KEYS]; COUNT];
        for (number, queries) in queries.iter().enumerate().take(whole) {
            let mut loaded = [lanes.splat(0.0); KEYS];
            for (loaded, key) in loaded.iter_mut().zip(pieces) {
                *loaded = T::load(lanes, &key[number]);
            }
            add_products(lanes, queries, &loaded, &mut sums);
        }
        if let Some(queries) = queries.get(whole) {
            let mut loaded = [lanes.splat(0.0); KEYS];
            for (loaded, key) in loaded.iter_mut().zip(keys) {
                let mut rest = [T::default(); LANES];
                rest.iter_mut().zip(&key[whole * LANES..]).for_each(|(to, from)| *to = *from);
                *loaded = T::load(lanes, &rest);
            }
            add_products(lanes, queries, &loaded, &mut sums);
        }
        let mut products = [[0.0; KEYS]; COUNT];
        for (products, sums) in products.iter_mut().zip(&sums) {
            *products = lanes.totals(sums);
        }
        products
    }
}

#[inline(always)]
fn add_products<L: Lanes, const COUNT: usize>(
    lanes: L,
    queries: &[[f32; LANES]; COUNT],
    keys: &[L::Floats; KEYS],
    sums: &mut [[L::Floats; KEYS]; COUNT],
) {
    for (sums, query) in sums.iter_mut().zip(queries) {
        let query = lanes.load(query);
        for (sum, key) in sums.iter_mut().zip(keys) {
            *sum = lanes.multiply_add(query, *key, *sum);
        }
    }
}

impl<T: Attended, const COUNT: usize> Job for Scores<'_, T, COUNT> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (count, distance) = (self.keys.count, self.out.len() / COUNT);
        for first in (0..count).step_by(KEYS) {
            self.ahead.fetch(first, KEYS);
            let products = self.products(lanes, first);
            for (products, out) in products.iter().zip(self.out.chunks_exact_mut(distance)) {
                if let Some(out) = out[first..count].first_chunk_mut() {
                    *out = *products;
                } else {
                    out[first..count].iter_mut().zip(products).for_each(|(out, product)| *out = *product);
                }
            }
        }
    }
}

struct Mix<'a, T, const COUNT: usize> {
    weights: &'a [f32],
    values: Strip<'a, T>,
    ahead: Ahead<'a>,
    mix: &'a mut [f32],
}

impl<T: Attended, const COUNT: usize> Mix<'_, T, COUNT> {
    /// Adds the values of the keys from `first` on to the elements from `at` on, as many as fill `N` times the lanes.
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

    /// Likewise, to the elements that fill no lanes.
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

impl<T: Attended, const COUNT: usize> Job for Mix<'_, T, COUNT> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (count, length, distance) = (self.values.count, self.values.length, self.weights.len() / COUNT);
        for first in (0..count).step_by(VALUES) {
            let end = count.min(first + VALUES);
            let all = self.weights;
            let weights: [&[f32]; COUNT] =
                std::array::from_fn(|query| &all[query * distance + first..query * distance + end]);
            self.ahead.fetch(first, VALUES);
            let mut at = 0;
            while at + 4 * LANES <= length {
                self.add::<L, 4>(lanes, weights, first, at);
                at += 4 * LANES;
            }
            while at + LANES <= length {
                self.add::<L, 1>(lanes, weights, first, at);
                at += LANES;
            }
            if at < length {
                self.add_rest(weights, first, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
        (0..count).map(|at| T::rounded(((at * 37 + seed * 11) % 101) as f32 / 64.0 - 0.8)).collect()
    }

    fn check<T: Attended>() {
        for isa in Isa::available() {
            for (count, keys, length) in [(1, 1, 1), (2, 17, 16), (3, 40, 100), (4, 33, 64), (4, 5, 193), (4, 0, 8)] {
                let (stride, distance) = (length + 3, keys + 2);
                let (queries, elements) = (numbers::<f32>(count * length, 1), numbers::<T>(keys * stride, 2));
                let strip = Strip { elements: &elements, stride, count: keys, length };
                let mut packed = vec![f32::NAN; count * packed_len(length)];
                pack(&queries, length, &mut packed);
                let mut scores = vec![7.0; count * distance];
                super::scores(isa, count, &packed, strip, Ahead::NONE, &mut scores);
                let mut mixes = numbers::<f32>(count * length, 3);
                super::mix(isa, count, &scores, strip, Ahead::NONE, &mut mixes);
                for query in 0..count {
                    for key in 0..distance {
                        let product = |at: usize| queries[query * length + at] * elements[key * stride + at].float();
                        let expected = if key < keys { (0..length).map(product).sum() } else { 7.0 };
                        let found = scores[query * distance + key];
                        assert!((found - expected).abs() < 1e-3, "{isa:?}: {found} for {expected}");
                    }
                    for at in 0..length {
                        let product = |key: usize| scores[query * distance + key] * elements[key * stride + at].float();
                        let before = numbers::<f32>(count * length, 3)[query * length + at];
                        let expected = before + (0..keys).map(product).sum::<f32>();
                        let found = mixes[query * length + at];
                        assert!((found - expected).abs() < 1e-2, "{isa:?}: {found} for {expected}");
                    }
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
}
