//! The two products of attention for a few queries at once: each key and each value is read once, where it lies.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

use super::Isa;
use super::convert::{from_bf16, from_f16};
use super::element::Element;
use half::{bf16, f16};

/// So many queries at once, at most.
pub const QUERIES: usize = 4;
/// Sums run in so many lanes.
const LANES: usize = 16;
/// So many elements of each mix are kept in registers, while they take the values of so many keys.
const WIDTH: usize = 64;
const KEYS: usize = 16;

/// Rows of equal length at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Strip<'a, T> {
    /// From the first element of the first row on.
    pub elements: &'a [T],
    /// From a row to the next.
    pub stride: usize,
    /// How many rows.
    pub count: usize,
    /// Of a row.
    pub length: usize,
}

impl<'a, T> Strip<'a, T> {
    #[inline(always)]
    fn row(&self, number: usize) -> &'a [T] {
        &self.elements[number * self.stride..][..self.length]
    }
}

/// The elements that keys and values can have.
pub trait Attended: Element {
    /// `out[query][key] = query · key`. The queries are those of [`pack`]; `out` has as many rows.
    fn scores(isa: Isa, count: usize, queries: &[f32], keys: Strip<'_, Self>, out: &mut [f32]);

    /// `mix[query] += Σ weights[query][key] values[key]`, for so many queries.
    fn mix(isa: Isa, count: usize, weights: &[f32], values: Strip<'_, Self>, mix: &mut [f32]);
}

impl Attended for f32 {
    fn scores(isa: Isa, count: usize, queries: &[f32], keys: Strip<'_, Self>, out: &mut [f32]) {
        scores_f32(isa, count, queries, keys, out);
    }

    fn mix(isa: Isa, count: usize, weights: &[f32], values: Strip<'_, Self>, mix: &mut [f32]) {
        mix_f32(isa, count, weights, values, mix);
    }
}

impl Attended for f16 {
    fn scores(isa: Isa, count: usize, queries: &[f32], keys: Strip<'_, Self>, out: &mut [f32]) {
        scores_f16(isa, count, queries, keys, out);
    }

    fn mix(isa: Isa, count: usize, weights: &[f32], values: Strip<'_, Self>, mix: &mut [f32]) {
        mix_f16(isa, count, weights, values, mix);
    }
}

impl Attended for bf16 {
    fn scores(isa: Isa, count: usize, queries: &[f32], keys: Strip<'_, Self>, out: &mut [f32]) {
        scores_bf16(isa, count, queries, keys, out);
    }

    fn mix(isa: Isa, count: usize, weights: &[f32], values: Strip<'_, Self>, mix: &mut [f32]) {
        mix_bf16(isa, count, weights, values, mix);
    }
}

/// Floats of a packed query.
pub fn packed_len(depth: usize) -> usize {
    depth.next_multiple_of(LANES)
}

/// Packs queries of so many elements for `scores`: `[piece][query][lane]`, with zeros behind the last element.
pub fn pack(queries: &[f32], depth: usize, to: &mut [f32]) {
    let count = queries.len().checked_div(depth).unwrap_or(0);
    for (number, query) in queries.chunks_exact(depth.max(1)).enumerate() {
        let pieces = to.as_chunks_mut::<LANES>().0.iter_mut().skip(number).step_by(count);
        for (piece, from) in pieces.zip(query.chunks(LANES)) {
            piece.fill(0.0);
            piece.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}

/// The sum over lanes, as a tree.
#[inline(always)]
fn total(lanes: &[f32; LANES]) -> f32 {
    let (low, high) = lanes.split_at(LANES / 2);
    let mut sums = [0.0; LANES / 2];
    sums.iter_mut().zip(low).zip(high).for_each(|((sum, low), high)| *sum = low + high);
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[inline(always)]
fn scores<T: Copy, const COUNT: usize>(
    queries: &[f32],
    keys: Strip<'_, T>,
    out: &mut [f32],
    widen: impl Fn(T) -> f32 + Copy,
) {
    let queries = queries.as_chunks::<LANES>().0.as_chunks::<COUNT>().0;
    let distance = out.len() / COUNT;
    for number in 0..keys.count.min(distance) {
        let (pieces, rest) = keys.row(number).as_chunks::<LANES>();
        let mut sums = [[0.0_f32; LANES]; COUNT];
        let mut add = |queries: &[[f32; LANES]; COUNT], key: &[f32; LANES]| {
            for (lanes, query) in sums.iter_mut().zip(queries) {
                lanes.iter_mut().zip(query).zip(key).for_each(|((lane, q), k)| *lane = q.mul_add(*k, *lane));
            }
        };
        for (queries, key) in queries.iter().zip(pieces) {
            add(queries, &key.map(widen));
        }
        if !rest.is_empty() {
            let mut key = [0.0; LANES];
            key.iter_mut().zip(rest).for_each(|(lane, k)| *lane = widen(*k));
            add(&queries[pieces.len()], &key);
        }
        for (query, lanes) in sums.iter().enumerate() {
            out[query * distance + number] = total(lanes);
        }
    }
}

/// Adds the values of some keys to `N` elements of each mix, from element `at` on.
#[inline(always)]
fn mix_piece<T: Copy, const COUNT: usize, const N: usize>(
    weights: [&[f32]; COUNT],
    values: Strip<'_, T>,
    (from, at): (usize, usize),
    mix: &mut [f32],
    widen: impl Fn(T) -> f32 + Copy,
) {
    let mut sums = [[0.0; N]; COUNT];
    for (sums, mix) in sums.iter_mut().zip(mix.chunks_exact(values.length)) {
        sums.copy_from_slice(&mix[at..at + N]);
    }
    for number in 0..weights[0].len() {
        let Some(value) = values.row(from + number)[at..].first_chunk::<N>() else { return };
        let value = value.map(widen);
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = weights[number];
            sums.iter_mut().zip(&value).for_each(|(sum, value)| *sum = weight.mul_add(*value, *sum));
        }
    }
    for (sums, mix) in sums.iter().zip(mix.chunks_exact_mut(values.length)) {
        mix[at..at + N].copy_from_slice(sums);
    }
}

#[inline(always)]
fn mix<T: Copy, const COUNT: usize>(
    weights: &[f32],
    values: Strip<'_, T>,
    mix: &mut [f32],
    widen: impl Fn(T) -> f32 + Copy,
) {
    let distance = weights.len() / COUNT;
    for from in (0..values.count).step_by(KEYS) {
        let count = KEYS.min(values.count - from);
        let weights: [&[f32]; COUNT] = std::array::from_fn(|query| &weights[query * distance + from..][..count]);
        let mut at = 0;
        while at + WIDTH <= values.length {
            mix_piece::<T, COUNT, WIDTH>(weights, values, (from, at), mix, widen);
            at += WIDTH;
        }
        while at + LANES <= values.length {
            mix_piece::<T, COUNT, LANES>(weights, values, (from, at), mix, widen);
            at += LANES;
        }
        while at < values.length {
            mix_piece::<T, COUNT, 1>(weights, values, (from, at), mix, widen);
            at += 1;
        }
    }
}

#[inline(always)]
fn scores_of_all<T: Copy>(
    count: usize,
    queries: &[f32],
    keys: Strip<'_, T>,
    out: &mut [f32],
    widen: impl Fn(T) -> f32 + Copy,
) {
    match count {
        1 => scores::<T, 1>(queries, keys, out, widen),
        2 => scores::<T, 2>(queries, keys, out, widen),
        3 => scores::<T, 3>(queries, keys, out, widen),
        _ => scores::<T, QUERIES>(queries, keys, out, widen),
    }
}

#[inline(always)]
fn mix_of_all<T: Copy>(
    count: usize,
    weights: &[f32],
    values: Strip<'_, T>,
    out: &mut [f32],
    widen: impl Fn(T) -> f32 + Copy,
) {
    match count {
        1 => mix::<T, 1>(weights, values, out, widen),
        2 => mix::<T, 2>(weights, values, out, widen),
        3 => mix::<T, 3>(weights, values, out, widen),
        _ => mix::<T, QUERIES>(weights, values, out, widen),
    }
}

kernel! {
    fn scores_f32(count: usize, queries: &[f32], keys: Strip<'_, f32>, out: &mut [f32]) {
        scores_of_all(count, queries, keys, out, |key| key);
    }

    fn scores_f16(count: usize, queries: &[f32], keys: Strip<'_, f16>, out: &mut [f32]) {
        scores_of_all(count, queries, keys, out, from_f16);
    }

    fn scores_bf16(count: usize, queries: &[f32], keys: Strip<'_, bf16>, out: &mut [f32]) {
        scores_of_all(count, queries, keys, out, from_bf16);
    }

    fn mix_f32(count: usize, weights: &[f32], values: Strip<'_, f32>, mix: &mut [f32]) {
        mix_of_all(count, weights, values, mix, |value| value);
    }

    fn mix_f16(count: usize, weights: &[f32], values: Strip<'_, f16>, mix: &mut [f32]) {
        mix_of_all(count, weights, values, mix, from_f16);
    }

    fn mix_bf16(count: usize, weights: &[f32], values: Strip<'_, bf16>, mix: &mut [f32]) {
        mix_of_all(count, weights, values, mix, from_bf16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<T: Element>(count: usize, seed: usize) -> Vec<T> {
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
                T::scores(isa, count, &packed, strip, &mut scores);
                let mut mixes = numbers::<f32>(count * length, 3);
                T::mix(isa, count, &scores, strip, &mut mixes);
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
