//! Rows walked together, in pairs or alone, and tokens one by one or together, against the definition.

use super::*;
use crate::simd::matmul::dot::dot_f32;
use half::{bf16, f16};

/// One token for one row, as the page says it.
fn defined(row: &mut [f32], q: &[f32], k: &[f32], v: f32, [g, beta]: [f32; 2]) -> f32 {
    let plain = Isa::available()[0];
    let difference = (v - g * dot_f32(plain, row, k)) * beta;
    row.iter_mut().zip(k).for_each(|(s, k)| *s = difference.mul_add(*k, *s * g));
    dot_f32(plain, row, q)
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at + seed) * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

fn check(isa: Isa, [height, width, count]: [usize; 3], kept: Kept) {
    let [q, mut k] = [3, 5].map(|seed| numbers(count * width, seed));
    k.iter_mut().for_each(|k| *k /= (width as f32).sqrt());
    let (v, factors) = (numbers(count * height, 7), numbers(2 * count, 11));
    let factors: Vec<[f32; 2]> = factors.as_chunks().0.iter().map(|[g, beta]| [g.abs(), beta.abs()]).collect();
    let mut state = numbers(height * width, 17);
    let (mut wanted, mut out) = (state.clone(), vec![7.0; count * height]);
    tokens(isa, &mut state, height, kept, Tokens { q: &q, k: &k, factors: &factors, v: &v }, &mut out);
    for (token, factors) in factors.iter().enumerate() {
        let line = token * width..(token + 1) * width;
        for row in 0..height {
            let s = &mut wanted[row * width..(row + 1) * width];
            let result = defined(s, &q[line.clone()], &k[line.clone()], v[token * height + row], *factors);
            let found = out[token * height + row];
            assert_eq!(found.to_bits(), result.to_bits(), "{isa:?} {height} {width}: token {token}, row {row}");
            s.iter_mut().for_each(|s| {
                *s = match kept {
                    Kept::F32 => *s,
                    Kept::F16 => f16::from_f32(*s).to_f32(),
                    Kept::Bf16 => bf16::from_f32(*s).to_f32(),
                }
            });
        }
    }
    assert!(state.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?} {height} {width} {count}");
}

#[test]
fn rows_and_tokens_give_the_bits_of_the_definition_however_they_are_taken() {
    for isa in Isa::available() {
        for [height, width] in [[1, 1], [4, 16], [7, 33], [9, 128], [19, 32], [3, 0], [0, 5]] {
            for count in [0, 1, 2, 5] {
                for kept in [Kept::F32, Kept::F16, Kept::Bf16] {
                    check(isa, [height, width, count], kept);
                }
            }
        }
    }
}
