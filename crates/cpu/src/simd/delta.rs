//! One token of the gated delta rule; [`many`] of them take another way.
//!
//! A row of the state is multiplied by the key; then it decays, the key is added, and it is multiplied by the query. Four rows at a
//! time, so that their sums need not wait for each other. Sums run in the same lanes in all versions, which give the same bits.

pub(crate) mod many;

use super::Isa;
use super::lanes::{Job, LANES, Lanes, with_lanes};

/// Rows that are walked together.
const ROWS: usize = 4;

/// A token: the query, the key, the decay, and how much is learnt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    /// As long as a row of the state.
    pub(crate) q: &'a [f32],
    /// Likewise.
    pub(crate) k: &'a [f32],
    /// The decay.
    pub(crate) g: f32,
    /// How much is learnt.
    pub(crate) beta: f32,
}

/// For each row of a head's state: `s *= g; d = (v - s k) * beta; s += d k; out = s q`. There are as many rows as values, each
/// as long as the key.
pub(crate) fn step(isa: Isa, state: &mut [f32], token: Token<'_>, v: &[f32], out: &mut [f32]) {
    let width = token.k.len();
    if width == 0 {
        return out.fill(0.0);
    }
    // Rows of whole registers, and then the others.
    let together = if width.is_multiple_of(LANES) { v.len() / ROWS * ROWS } else { 0 };
    let (first, state) = state.split_at_mut(together * width);
    let ((v_first, v), (out_first, out)) = (v.split_at(together), out.split_at_mut(together));
    let (v_first, out_first) = (v_first.as_chunks().0, out_first.as_chunks_mut().0);
    with_lanes(isa, Rows { state: first.as_chunks_mut().0, token, v: v_first, out: out_first });
    rows(isa, state, token, v, out);
}

/// Row by row.
fn rows(isa: Isa, state: &mut [f32], token: Token<'_>, v: &[f32], out: &mut [f32]) {
    let rows = state.chunks_exact_mut(token.k.len()).zip(v).zip(out);
    rows.for_each(|((state, v), out)| *out = row(isa, state, token, *v));
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        lanes.iter_mut().zip(a).zip(b).for_each(|((lane, a), b)| *lane = a.mul_add(*b, *lane));
    }
    lanes.iter_mut().zip(a_rest).zip(b_rest).for_each(|((lane, a), b)| *lane = a.mul_add(*b, *lane));
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        width /= 2;
    }
    let [sum, ..] = lanes;
    sum
}

kernel! {
    /// One row.
    fn row(state: &mut [f32], token: Token<'_>, v: f32) -> f32 {
        let Token { q, k, g, beta } = token;
        let difference = (v - g * dot(state, k)) * beta;
        state.iter_mut().zip(k).for_each(|(s, k)| *s = difference.mul_add(*k, *s * g));
        dot(state, q)
    }
}

struct Rows<'a> {
    state: &'a mut [[f32; LANES]],
    token: Token<'a>,
    v: &'a [[f32; ROWS]],
    out: &'a mut [[f32; ROWS]],
}

// Registers pass through no closures: those would be compiled without the instructions.

impl Job for Rows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { state, token: Token { q, k, g, beta }, v, out } = self;
        let (q, k) = (q.as_chunks().0, k.as_chunks().0);
        let blocks = state.chunks_exact_mut((ROWS * k.len()).max(1));
        for ((state, v), out) in blocks.zip(v).zip(out) {
            let (first, rest) = state.split_at_mut(k.len());
            let (second, rest) = rest.split_at_mut(k.len());
            let (third, fourth) = rest.split_at_mut(k.len());
            let mut sums = [lanes.splat(0.0); ROWS];
            for ((((a, b), c), d), k) in first.iter().zip(&*second).zip(&*third).zip(&*fourth).zip(k) {
                let k = lanes.load(k);
                for (sum, s) in sums.iter_mut().zip([a, b, c, d]) {
                    *sum = lanes.multiply_add(lanes.load(s), k, *sum);
                }
            }
            let mut factors = [lanes.splat(0.0); ROWS];
            for (factor, (v, product)) in factors.iter_mut().zip(v.iter().zip(lanes.totals(&sums))) {
                *factor = lanes.splat((v - g * product) * beta);
            }
            let (decay, mut sums) = (lanes.splat(g), [lanes.splat(0.0); ROWS]);
            let rows = first.iter_mut().zip(second).zip(third).zip(fourth);
            for ((((a, b), c), d), (k, q)) in rows.zip(k.iter().zip(q)) {
                let (k, q) = (lanes.load(k), lanes.load(q));
                for ((sum, factor), s) in sums.iter_mut().zip(factors).zip([a, b, c, d]) {
                    let new = lanes.multiply_add(factor, k, lanes.multiply(lanes.load(s), decay));
                    lanes.store(new, s);
                    *sum = lanes.multiply_add(new, q, *sum);
                }
            }
            *out = lanes.totals(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn rows_walked_together_or_alone_give_the_same_bits() {
        for isa in Isa::available() {
            for (height, width) in [(1, 1), (4, 16), (7, 33), (9, 128), (3, 0), (0, 5)] {
                let number = |at: usize| (at * 37 % 101) as f32 / 50.0 - 1.0;
                let [q, k, v] = [3, 5, 7].map(|seed| (0..128).map(|at| number(at + seed)).collect::<Vec<f32>>());
                let token = Token { q: &q[..width], k: &k[..width], g: 0.75, beta: 0.5 };
                let mut state: Vec<f32> = (0..height * width).map(number).collect();
                let (before, mut out) = (state.clone(), vec![7.0; height]);
                step(isa, &mut state, token, &v[..height], &mut out);
                for row in 0..height {
                    let (range, mut one) = (row * width..(row + 1) * width, [7.0]);
                    let mut alone = before[range.clone()].to_vec();
                    step(isa, &mut alone, token, &v[row..=row], &mut one);
                    assert_eq!((alone.as_slice(), one[0]), (&state[range.clone()], out[row]), "{isa:?}");
                    let product: f32 = before[range.clone()].iter().zip(&k).map(|(s, k)| 0.75 * s * k).sum();
                    let learnt = |(s, k): (&f32, &f32)| 0.75 * s + (v[row] - product) * 0.5 * k;
                    let expected: Vec<f32> = before[range].iter().zip(&k).map(learnt).collect();
                    let result: f32 = expected.iter().zip(&q).map(|(s, q)| s * q).sum();
                    assert!(alone.iter().zip(&expected).all(|(s, expected)| (s - expected).abs() < 1e-4));
                    assert!((one[0] - result).abs() < 1e-3, "{isa:?}: {} for {result}", one[0]);
                }
            }
        }
    }
}
