//! One token of the gated delta rule; [`many`] of them take another way.
//!
//! A row of the state is scaled and multiplied by the key; then the key is added and it is multiplied by the query. With AVX-512,
//! four rows at a time, each walked twice. Sums run in the same lanes in all versions: those that can fuse give the same bits.
#![allow(unsafe_code, reason = "loads and stores of registers")]

pub(crate) mod many;

use super::Isa;

/// Sums run in so many lanes.
const LANES: usize = 16;

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
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        super::Level::Avx512 if width.is_multiple_of(LANES) => unsafe { x86::avx512(isa, state, token, v, out) },
        _ => rows(isa, state, token, v, out),
    }
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
    let (low, high) = lanes.split_at(LANES / 2);
    let mut sums = [0.0; LANES / 2];
    sums.iter_mut().zip(low).zip(high).for_each(|((sum, low), high)| *sum = low + high);
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

kernel! {
    /// One row.
    fn row(state: &mut [f32], token: Token<'_>, v: f32) -> f32 {
        let Token { q, k, g, beta } = token;
        state.iter_mut().for_each(|s| *s *= g);
        let difference = (v - dot(state, k)) * beta;
        state.iter_mut().zip(k).for_each(|(s, k)| *s = difference.mul_add(*k, *s));
        dot(state, q)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, LANES, Token, rows};
    use std::arch::x86_64::*;

    /// Rows that are walked together, so that their sums need not wait for each other.
    const ROWS: usize = 4;

    type Row<'a> = &'a mut [[f32; LANES]];

    /// Rows of whole registers.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn avx512(isa: Isa, state: &mut [f32], token: Token<'_>, v: &[f32], out: &mut [f32]) {
        let Token { q, k, g, beta } = token;
        let (v_blocks, v_rest) = v.as_chunks::<ROWS>();
        let (out_blocks, out_rest) = out.as_chunks_mut::<ROWS>();
        let (q_parts, k_parts) = (q.as_chunks::<LANES>().0, k.as_chunks::<LANES>().0);
        let mut states = state.chunks_exact_mut(ROWS * k.len());
        for ((v, out), state) in v_blocks.iter().zip(out_blocks).zip(&mut states) {
            let mut lines = state.chunks_exact_mut(k.len());
            let mut state = std::array::from_fn(|_| lines.next().unwrap_or_default().as_chunks_mut::<LANES>().0);
            let products = scaled(&mut state, g, k_parts);
            let mut differences = [0.0; ROWS];
            let pairs = v.iter().zip(products);
            differences.iter_mut().zip(pairs).for_each(|(to, (v, product))| *to = (v - product) * beta);
            *out = learnt(&mut state, differences, k_parts, q_parts);
        }
        rows(isa, states.into_remainder(), token, v_rest, out_rest);
    }

    /// `s *= g`, then `s k`.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn scaled([a, b, c, d]: &mut [Row<'_>; ROWS], g: f32, k: &[[f32; LANES]]) -> [f32; ROWS] {
        let (g, mut sums) = (_mm512_set1_ps(g), [_mm512_setzero_ps(); ROWS]);
        for ((((a, b), c), d), k) in a.iter_mut().zip(b.iter_mut()).zip(c.iter_mut()).zip(d.iter_mut()).zip(k) {
            let k = load(k);
            for (s, sum) in [a, b, c, d].into_iter().zip(&mut sums) {
                let scaled = _mm512_mul_ps(load(s), g);
                store(s, scaled);
                *sum = _mm512_fmadd_ps(scaled, k, *sum);
            }
        }
        totals(sums)
    }

    /// `s += d k`, then `s q`.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn learnt(
        [a, b, c, d]: &mut [Row<'_>; ROWS],
        differences: [f32; ROWS],
        k: &[[f32; LANES]],
        q: &[[f32; LANES]],
    ) -> [f32; ROWS] {
        let mut factors = [_mm512_setzero_ps(); ROWS];
        factors.iter_mut().zip(differences).for_each(|(factor, difference)| *factor = _mm512_set1_ps(difference));
        let mut sums = [_mm512_setzero_ps(); ROWS];
        let state = a.iter_mut().zip(b.iter_mut()).zip(c.iter_mut()).zip(d.iter_mut());
        for ((((a, b), c), d), (k, q)) in state.zip(k.iter().zip(q)) {
            let (k, q) = (load(k), load(q));
            for ((s, factor), sum) in [a, b, c, d].into_iter().zip(factors).zip(&mut sums) {
                let learnt = _mm512_fmadd_ps(factor, k, load(s));
                store(s, learnt);
                *sum = _mm512_fmadd_ps(learnt, q, *sum);
            }
        }
        totals(sums)
    }

    /// The sums over lanes, halves with halves.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn totals(sums: [__m512; ROWS]) -> [f32; ROWS] {
        let mut totals = [0.0; ROWS];
        for (total, sum) in totals.iter_mut().zip(sums) {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps::<1>(sum));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            *total = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
        totals
    }

    #[target_feature(enable = "avx512f")]
    fn load(from: &[f32; LANES]) -> __m512 {
        // SAFETY: sixteen floats are a register.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[target_feature(enable = "avx512f")]
    fn store(to: &mut [f32; LANES], register: __m512) {
        // SAFETY: likewise.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), register) }
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
