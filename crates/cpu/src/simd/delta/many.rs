//! Many tokens of the gated delta rule, four at a time.
//!
//! With a state `s` before four tokens, `a_j = s k_j` and `b_j = s q_j`, the tokens follow without looking at the state: for
//! token `i`, `d = (v - g a_i) * beta` and `out = g b_i + d (k_i q_i)`, and then for those after it
//! `a_j = g a_j + d (k_i k_j)` and `b_j = g b_j + d (k_i q_j)`. The state is read once for the eight products and changed once by
//! all four `d`, each decayed by the tokens after its own. A lane is a row of the state, so nothing is summed across lanes, and
//! the state is turned on its side before the first token and back after the last.
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants below their length")]
#![allow(clippy::needless_range_loop, reason = "by constants, so that what is indexed stays in registers")]

use super::dot;
use crate::simd::lanes::{Job, LANES, Lanes, with_lanes};
use crate::simd::transpose::transpose;
use crate::simd::{Isa, Level};

/// Tokens that are taken together.
pub(crate) const TOKENS: usize = 4;
/// Rows of a state that are taken together.
pub(crate) const ROWS: usize = LANES;

/// What four tokens are for all rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Four {
    pub(crate) g: [f32; TOKENS],
    pub(crate) beta: [f32; TOKENS],
    /// `k_i k_j` for `i < j`.
    keys: [[f32; TOKENS]; TOKENS],
    /// `k_i q_j` for `i <= j`.
    queries: [[f32; TOKENS]; TOKENS],
}

/// Four tokens whose keys, and then queries, lie one after another in `lines`; `panel` gets them element by element.
pub(crate) fn prepared(isa: Isa, lines: &[f32], panel: &mut [f32], [g, beta]: [[f32; TOKENS]; 2]) -> Four {
    let width = lines.len() / (2 * TOKENS);
    transpose(isa, lines, width, panel, 2 * TOKENS);
    let mut four = Four { g, beta, ..Four::default() };
    products(isa, lines, width, &mut four);
    four
}

kernel! {
    /// The products of keys with the keys after them, and with the queries from their own on.
    fn products(lines: &[f32], width: usize, four: &mut Four) {
        if width == 0 {
            return;
        }
        let (keys, queries) = lines.split_at(TOKENS * width);
        for (i, key) in keys.chunks_exact(width).enumerate() {
            for (j, (other, query)) in keys.chunks_exact(width).zip(queries.chunks_exact(width)).enumerate().skip(i) {
                four.keys[i][j] = dot(key, other);
                four.queries[i][j] = dot(key, query);
            }
        }
    }
}

/// Some tokens for [`ROWS`] rows of a state.
pub(crate) struct Tokens<'a> {
    pub(crate) fours: &'a [Four],
    /// Of all fours.
    pub(crate) panels: &'a [f32],
    /// The values of those rows: from a token to the next it is `stride`.
    pub(crate) values: &'a [f32],
    /// The results likewise.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

/// Changes rows of a state, which lie one after another, by some tokens. `turned` is as long as they are.
pub(crate) fn rows(isa: Isa, state: &mut [f32], turned: &mut [f32], tokens: Tokens<'_>) {
    let width = state.len() / ROWS;
    transpose(isa, state, width, turned, ROWS);
    with_lanes(isa, Rows { state: turned.as_chunks_mut().0, tokens, is_wide: is_wide(isa) });
    // Back, a square after another.
    for (number, square) in turned.chunks(ROWS * ROWS).enumerate() {
        if let Some(state) = state.get_mut(number * ROWS..) {
            transpose(isa, square, ROWS, state, width);
        }
    }
}

fn is_wide(isa: Isa) -> bool {
    match isa.level() {
        Level::Baseline => false,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => false,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => true,
    }
}

struct Rows<'a> {
    state: &'a mut [[f32; LANES]],
    tokens: Tokens<'a>,
    /// Whether sixteen lanes are one register.
    is_wide: bool,
}

// Registers pass through no closures: those would be compiled without the instructions.

impl Job for Rows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { state, tokens: Tokens { fours, panels, values, out, stride }, is_wide } = self;
        let panels = panels.as_chunks::<{ 2 * TOKENS }>().0.chunks_exact(state.len().max(1));
        let lines = values.chunks(TOKENS * stride).zip(out.chunks_mut(TOKENS * stride));
        for ((four, panel), (values, out)) in fours.iter().zip(panels).zip(lines) {
            let mut sums = [lanes.splat(0.0); 2 * TOKENS];
            // Eight sums of sixteen lanes fit where a register has sixteen; elsewhere four do.
            if is_wide {
                add_products::<L, 0, { 2 * TOKENS }>(lanes, state, panel, &mut sums);
            } else {
                add_products::<L, 0, TOKENS>(lanes, state, panel, &mut sums);
                add_products::<L, TOKENS, { 2 * TOKENS }>(lanes, state, panel, &mut sums);
            }
            let differences = through(lanes, four, sums, values, out, stride);
            let [a, b, c, d] = four.g;
            let decay = lanes.splat(a * b * c * d);
            for (state, panel) in state.iter_mut().zip(panel) {
                let mut new = lanes.multiply(lanes.load(state), decay);
                for at in 0..TOKENS {
                    new = lanes.multiply_add(differences[at], lanes.splat(panel[at]), new);
                }
                lanes.store(new, state);
            }
        }
    }
}

/// The products of rows with the lines of a panel from `FIRST` up to `END`.
#[inline(always)]
fn add_products<L: Lanes, const FIRST: usize, const END: usize>(
    lanes: L,
    state: &[[f32; LANES]],
    panel: &[[f32; 2 * TOKENS]],
    sums: &mut [L::Floats; 2 * TOKENS],
) {
    let mut own = *sums;
    for (state, panel) in state.iter().zip(panel) {
        let state = lanes.load(state);
        for at in FIRST..END {
            own[at] = lanes.multiply_add(state, lanes.splat(panel[at]), own[at]);
        }
    }
    *sums = own;
}

/// The results of four tokens, and what each adds to the state along its key.
#[inline(always)]
fn through<L: Lanes>(
    lanes: L,
    four: &Four,
    mut sums: [L::Floats; 2 * TOKENS],
    values: &[f32],
    out: &mut [f32],
    stride: usize,
) -> [L::Floats; TOKENS] {
    let mut differences = [lanes.splat(0.0); TOKENS];
    for token in 0..TOKENS {
        let (Some(value), Some(out)) =
            (values.get(token * stride..).and_then(<[f32]>::first_chunk), out.get_mut(token * stride..))
        else {
            break;
        };
        let (g, beta) = (lanes.splat(four.g[token]), lanes.splat(four.beta[token]));
        let value = lanes.multiply_add(lanes.splat(-four.g[token]), sums[token], lanes.load(value));
        let difference = lanes.multiply(value, beta);
        for later in token..TOKENS {
            let (key, query) = (lanes.splat(four.keys[token][later]), lanes.splat(four.queries[token][later]));
            sums[later] = lanes.multiply_add(difference, key, lanes.multiply(g, sums[later]));
            sums[TOKENS + later] = lanes.multiply_add(difference, query, lanes.multiply(g, sums[TOKENS + later]));
        }
        if let Some(out) = out.first_chunk_mut() {
            lanes.store(sums[TOKENS + token], out);
        }
        for earlier in 0..token {
            differences[earlier] = lanes.multiply(g, differences[earlier]);
        }
        differences[token] = difference;
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::delta::{Token, step};

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at + seed) * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// A state of sixteen rows and the results, after so many fours of tokens.
    fn many(isa: Isa, width: usize, count: usize, stride: usize) -> (Vec<f32>, Vec<f32>) {
        let tokens = Sequence::new(width, count, stride);
        let mut panels = vec![7.0; 2 * TOKENS * width * count];
        let mut fours = Vec::new();
        for number in 0..count {
            let first = number * TOKENS;
            let range = first * width..(first + TOKENS) * width;
            let lines = [&tokens.k[range.clone()], &tokens.q[range]].concat();
            let four = |from: &[f32]| std::array::from_fn(|token| from[first + token]);
            let panel = &mut panels[number * lines.len()..(number + 1) * lines.len()];
            fours.push(prepared(isa, &lines, panel, [four(&tokens.g), four(&tokens.beta)]));
        }
        let (mut state, mut turned, mut out) =
            (tokens.state.clone(), vec![7.0; ROWS * width], vec![7.0; tokens.v.len()]);
        let given = Tokens { fours: &fours, panels: &panels, values: &tokens.v, out: &mut out, stride };
        rows(isa, &mut state, &mut turned, given);
        (state, out)
    }

    struct Sequence {
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        g: Vec<f32>,
        beta: Vec<f32>,
        state: Vec<f32>,
    }

    impl Sequence {
        fn new(width: usize, count: usize, stride: usize) -> Self {
            let length = 1.0 / (width as f32).sqrt();
            let tokens = TOKENS * count;
            Self {
                q: numbers(tokens * width, 3),
                k: numbers(tokens * width, 5).iter().map(|k| k * length).collect(),
                v: numbers(tokens * stride, 7),
                g: numbers(tokens, 11).iter().map(|g| g.abs()).collect(),
                beta: numbers(tokens, 13).iter().map(|beta| beta.abs()).collect(),
                state: numbers(ROWS * width, 17),
            }
        }
    }

    #[test]
    fn four_at_a_time_tokens_give_what_they_give_one_by_one() {
        for isa in Isa::available() {
            for (width, count, stride) in [(1, 1, 16), (3, 2, 16), (16, 1, 19), (33, 3, 32), (128, 16, 128)] {
                let (state, out) = many(isa, width, count, stride);
                let Sequence { q, k, v, g, beta, state: mut wanted } = Sequence::new(width, count, stride);
                for token in 0..TOKENS * count {
                    let line = token * width..(token + 1) * width;
                    let one = Token { q: &q[line.clone()], k: &k[line], g: g[token], beta: beta[token] };
                    let (range, mut results) = (token * stride..token * stride + ROWS, [0.0; ROWS]);
                    step(isa, &mut wanted, one, &v[range.clone()], &mut results);
                    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 * (width as f32).sqrt();
                    assert!(out[range.clone()].iter().zip(&results).all(is_near), "{isa:?} {width} {token}");
                    let others = &out[range.end..(token + 1) * stride];
                    assert!(others.iter().all(|x| *x == 7.0), "other rows stay");
                }
                assert!(state.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5), "{isa:?} {width}");
            }
        }
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let bits = |isa| {
            let (state, out) = many(isa, 33, 2, 20);
            state.into_iter().chain(out).map(f32::to_bits).collect::<Vec<u32>>()
        };
        let plain = bits(Isa::available()[0]);
        assert!(Isa::available().into_iter().all(|isa| bits(isa) == plain));
    }
}
