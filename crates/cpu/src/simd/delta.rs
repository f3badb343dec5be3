//! The gated delta rule for rows of a head's state, to the bits that `docs/ARITHMETIC.md` defines.
//!
//! One token: a row of the state is multiplied by the key; then it decays, the key is added, and it is multiplied by the query.
//! Four rows at a time, so that their sums need not wait for each other.
//!
//! Several tokens: some rows stay in the first cache while all tokens change them. While a token changes a row, the new
//! elements are multiplied by its query and, in the same loop, by the key of the next token, so that an element is read and
//! written once per token. Rows go in pairs, whose four sums fit the registers; while the sums of one pair are added up, the
//! next pair computes.
#![allow(clippy::indexing_slicing, reason = "`tokens` asserts that every token is complete")]

use super::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::dot::dot_f32;
use super::numeric::convert;

/// Rows that one token changes together.
const ROWS: usize = 4;
/// Pairs of rows that stay in the first cache while several tokens change them.
const PAIRS: usize = 4;

/// A token: the query, the key, the decay, and the learning rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    /// As long as a row of the state.
    pub(crate) q: &'a [f32],
    /// As long as the query.
    pub(crate) k: &'a [f32],
    /// The decay.
    pub(crate) g: f32,
    /// The learning rate.
    pub(crate) beta: f32,
}

/// The type that the state is rounded to after every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Single precision: not rounded.
    F32,
    /// Half precision.
    F16,
    /// Bfloat.
    Bf16,
}

impl Kept {
    fn round(self, isa: Isa, state: &mut [f32]) {
        match self {
            Kept::F32 => {}
            Kept::F16 => convert::round_f16(isa, state),
            Kept::Bf16 => convert::round_bf16(isa, state),
        }
    }
}

/// Some tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    /// One after another, each as long as a row of the state.
    pub(crate) q: &'a [f32],
    /// One after another, each as long as a row of the state.
    pub(crate) k: &'a [f32],
    /// Per token the decay and the learning rate.
    pub(crate) factors: &'a [[f32; 2]],
    /// Per token a value for each row of the state.
    pub(crate) v: &'a [f32],
}

impl<'a> Tokens<'a> {
    fn get(&self, number: usize, width: usize) -> Token<'a> {
        let line = number * width..(number + 1) * width;
        let [g, beta] = self.factors[number];
        Token { q: &self.q[line.clone()], k: &self.k[line], g, beta }
    }
}

/// Updates the state of a head, of `height` rows, by tokens. Per token, `out` gets a result for each row.
pub(crate) fn tokens(isa: Isa, state: &mut [f32], height: usize, kept: Kept, tokens: Tokens<'_>, out: &mut [f32]) {
    let width = state.len().checked_div(height).unwrap_or(0);
    if width == 0 {
        return out.fill(0.0);
    }
    let count = tokens.factors.len();
    assert!(tokens.q.len() == count * width && tokens.k.len() == count * width, "a query and a key for each token");
    let is_many = count > 1 && width.is_multiple_of(LANES) && kept == Kept::F32;
    let at_once = if count > 1 { 2 * PAIRS } else { height };
    for (number, state) in state.chunks_mut(at_once * width).enumerate() {
        let (first, rows) = (number * at_once, state.len() / width);
        let paired = if is_many { rows / 2 * 2 } else { 0 };
        let (pairs, rest) = state.split_at_mut(paired * width);
        if !pairs.is_empty() {
            change_pairs(isa, pairs.as_chunks_mut().0, width / LANES, tokens, first, height, out);
        }
        if rest.is_empty() {
            continue;
        }
        let rows = first + paired..first + rows;
        let lines = tokens.v.chunks_exact(height).zip(out.chunks_exact_mut(height));
        for (number, (v, out)) in lines.enumerate() {
            step(isa, rest, tokens.get(number, width), &v[rows.clone()], &mut out[rows.clone()]);
            kept.round(isa, rest);
        }
    }
}

/// For each row of a head's state: `d = (v - g (s k)) beta; s = fma(d, k, s g); out = s q`. There are as many rows as values,
/// each as long as the key.
fn step(isa: Isa, state: &mut [f32], token: Token<'_>, v: &[f32], out: &mut [f32]) {
    let width = token.k.len();
    // Rows of whole registers, and then the others.
    let together = if width.is_multiple_of(LANES) { v.len() / ROWS * ROWS } else { 0 };
    let (first, state) = state.split_at_mut(together * width);
    let ((v_first, v), (out_first, out)) = (v.split_at(together), out.split_at_mut(together));
    let (v_first, out_first) = (v_first.as_chunks().0, out_first.as_chunks_mut().0);
    four_rows(isa, first.as_chunks_mut().0, token, v_first, out_first);
    let Token { q, k, g, beta } = token;
    for ((state, v), out) in state.chunks_exact_mut(width).zip(v).zip(out) {
        let difference = (v - g * dot_f32(isa, state, k)) * beta;
        learn(isa, state, k, difference, g);
        *out = dot_f32(isa, state, q);
    }
}

kernel! {
    /// `s = fma(difference, k, s g)`.
    fn learn(state: &mut [f32], k: &[f32], difference: f32, g: f32) {
        state.iter_mut().zip(k).for_each(|(s, k)| *s = difference.mul_add(*k, *s * g));
    }
}

// Registers pass through no closures: those would be compiled without the instructions.

lanes_kernel! {
    /// Changes rows by one token, [`ROWS`] at a time; a row is whole registers.
    fn four_rows(lanes, state: &mut [[f32; LANES]], token: Token<'_>, v: &[[f32; ROWS]], out: &mut [[f32; ROWS]]) {
        let Token { q, k, g, beta } = token;
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

    /// Changes pairs of rows, [`PAIRS`] at most, by all tokens. A row is `steps` times the lanes; `first` is the number of the
    /// first row, of `height`.
    fn change_pairs(
        lanes,
        state: &mut [[f32; LANES]],
        steps: usize,
        tokens: Tokens<'_>,
        first: usize,
        height: usize,
        out: &mut [f32],
    ) {
        let rows = state.len() / steps;
        let (q, k) = (tokens.q.as_chunks().0.chunks_exact(steps), tokens.k.as_chunks().0.chunks_exact(steps));
        let mut products = [[0.0; 2]; PAIRS];
        for (state, products) in state.chunks_exact(2 * steps).zip(&mut products) {
            *products = key_products(lanes, state, &tokens.k.as_chunks().0[..steps]);
        }
        // After the last token there is no key: its own is taken, and what that gives is not used.
        let next = k.clone().skip(1).chain(k.clone().next_back());
        let lines = tokens.v.chunks_exact(height).zip(out.chunks_exact_mut(height));
        for ((((&[g, beta], k), next), q), (v, out)) in tokens.factors.iter().zip(k).zip(next).zip(q).zip(lines) {
            let v = v[first..first + rows].as_chunks::<2>().0;
            let out = out[first..first + rows].as_chunks_mut::<2>().0;
            let values = v.iter().zip(out);
            for ((state, products), ([v, w], out)) in state.chunks_exact_mut(2 * steps).zip(&mut products).zip(values) {
                let [p, r] = *products;
                let differences = [(v - g * p) * beta, (w - g * r) * beta];
                (*out, *products) = change(lanes, state, [k, q, next], differences, g);
            }
        }
    }
}

/// The products of two rows with a key.
#[inline(always)]
fn key_products<L: Lanes>(lanes: L, rows: &[[f32; LANES]], key: &[[f32; LANES]]) -> [f32; 2] {
    let (first, second) = rows.split_at(rows.len() / 2);
    let mut sums = [lanes.splat(0.0); 4];
    for ((a, b), k) in first.iter().zip(second).zip(key) {
        let k = lanes.load(k);
        sums[0] = lanes.multiply_add(lanes.load(a), k, sums[0]);
        sums[1] = lanes.multiply_add(lanes.load(b), k, sums[1]);
    }
    let [p, r, ..] = lanes.totals(&sums);
    [p, r]
}

/// Two rows decay and learn: their products with the query, and those with the next key.
#[inline(always)]
fn change<L: Lanes>(
    lanes: L,
    rows: &mut [[f32; LANES]],
    [key, query, next]: [&[[f32; LANES]]; 3],
    [d, e]: [f32; 2],
    g: f32,
) -> ([f32; 2], [f32; 2]) {
    let (first, second) = rows.split_at_mut(rows.len() / 2);
    let (d, e, g) = (lanes.splat(d), lanes.splat(e), lanes.splat(g));
    let mut sums = [lanes.splat(0.0); 4];
    for ((a, b), ((k, q), next)) in first.iter_mut().zip(second).zip(key.iter().zip(query).zip(next)) {
        let (k, q, next) = (lanes.load(k), lanes.load(q), lanes.load(next));
        let one = lanes.multiply_add(d, k, lanes.multiply(lanes.load(a), g));
        let other = lanes.multiply_add(e, k, lanes.multiply(lanes.load(b), g));
        lanes.store(one, a);
        lanes.store(other, b);
        sums[0] = lanes.multiply_add(one, q, sums[0]);
        sums[1] = lanes.multiply_add(other, q, sums[1]);
        sums[2] = lanes.multiply_add(one, next, sums[2]);
        sums[3] = lanes.multiply_add(other, next, sums[3]);
    }
    let [out, other_out, p, r] = lanes.totals(&sums);
    ([out, other_out], [p, r])
}

#[cfg(test)]
mod tests;
