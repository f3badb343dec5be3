//! Every format against its plain meaning.
#![allow(clippy::cast_possible_truncation, reason = "the expected number, rounded")]

use super::sample::{Kind, Noise, Sample, formats, lengths};
use super::*;
use crate::dense::Dense;
use crate::pool::{Pool, Scratch};

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn every_format_decodes_to_the_bit() {
    for (number, format) in formats().into_iter().enumerate() {
        for columns in lengths(format) {
            let sample = Sample::new(format, [Kind::F32, Kind::F16, Kind::Bf16][number % 3], [3, columns]);
            let weights = sample.weights();
            for isa in Isa::available() {
                for row in 0..3 {
                    let expected = sample.row(row);
                    for (start, end) in
                        [(0, columns), (columns / 3, columns), (columns / 2, columns / 2 + 5), (1, columns - 1)]
                    {
                        let mut found = vec![7.0; end.min(columns) - start];
                        weights.decode(isa, row, start, &mut found);
                        assert!(
                            found.iter().zip(&expected[start..]).all(|(found, expected)| same(*found, *expected)),
                            "{format:?} {isa:?} {start}..{end} of {columns}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn all_codes_and_scales_of_eight_bits_decode() {
    let codes: Vec<u8> = (0..=255).collect();
    for scale in 0..=255 {
        let scales = [scale; 8];
        let format = QuantFormat::Words { mode: QuantMode::Mxfp8, bits: 8, group: 32 };
        let stored = Some(Scales::E8m0(Rows::new(&scales, 8)));
        let weights = Weights::new(format, [1, 256], Rows::new(&codes, 256), stored, None).unwrap();
        let mut found = vec![0.0; 256];
        weights.decode(Isa::best(), 0, 0, &mut found);
        let expected = codes.iter().map(|code| from_e8m0(scale) * from_e4m3(*code));
        assert!(found.iter().zip(expected).all(|(found, expected)| same(*found, expected)));
    }
}

#[test]
fn parts_that_do_not_fit_make_no_matrix() {
    let (codes, scales) = ([0_u8; 64], [0.0_f32; 4]);
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
    let (rows, stored) = (Rows::new(&codes[..], 32), Some(Scales::F32(Rows::new(&scales[..], 2))));
    assert!(Weights::new(format, [2, 64], rows, stored, stored).is_some());
    assert!(Weights::new(format, [3, 64], rows, stored, stored).is_none());
    assert!(Weights::new(format, [2, 65], rows, stored, stored).is_none());
    assert!(Weights::new(format, [2, 64], Rows::new(&codes[..63], 32), stored, stored).is_none());
    assert!(Weights::new(format, [2, 64], rows, Some(Scales::F32(Rows::new(&scales[..3], 2))), stored).is_none());
    assert!(Weights::new(format, [2, 64], rows, None, None).is_none());
    assert!(Weights::new(QuantFormat::Gguf(GgufType::Q4K), [1, 128], rows, None, None).is_none());
}

pub(super) fn on<R>(threads: usize, work: impl FnOnce(&mut Workers<'_>) -> R) -> R {
    let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
    work(&mut Workers { pool: &pool, scratch: &mut scratch })
}

/// The product with every instruction set and several numbers of threads against sums of `f64`.
fn check(sample: &Sample, x: &[f32], transpose: bool) {
    let (decoded, weights): (Vec<_>, _) = ((0..sample.rows).map(|row| sample.row(row)).collect(), sample.weights());
    let (k, n) = if transpose { (sample.columns, sample.rows) } else { (sample.rows, sample.columns) };
    let m = x.len() / k;
    let weight = |k: usize, n: usize| f64::from(if transpose { decoded[n][k] } else { decoded[k][n] });
    let left = Dense { elements: x, row_stride: k, column_stride: 1 };
    for isa in Isa::available() {
        let run = |threads| {
            let mut out = vec![7.0_f32; m * n];
            on(threads, |workers| product(workers, isa, m, &left, &weights, transpose, &mut out));
            out
        };
        let one = run(1);
        for (at, found) in one.iter().enumerate() {
            let products = (0..k).map(|k_at| f64::from(x[at / n * k + k_at]) * weight(k_at, at % n));
            let (expected, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
            // Activations may be off by half a unit, which their neighbours decide.
            let unit =
                |at: usize| x[at / 16 * 16..].iter().take(16).fold(0.0_f32, |unit, x| unit.max(x.abs())) / 32512.0;
            let units = (0..k).map(|k_at| 0.51 * f64::from(unit(at / n * k + k_at)) * weight(k_at, at % n).abs());
            let allowed = 1e-5 * size + if transpose { units.sum() } else { 0.0 } + 1e-30;
            let is_right = same(*found, expected as f32) || (f64::from(*found) - expected).abs() <= allowed;
            assert!(is_right, "{:?} {isa:?} {m}x{k}x{n} at {at}: {found} for {expected}", sample.format);
        }
        for threads in [2, 5] {
            assert!(run(threads).iter().zip(&one).all(|(a, b)| same(*a, *b)), "{:?} {isa:?}", sample.format);
        }
    }
}

fn activations(count: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    (0..count).map(|_| noise.float() * if noise.byte() < 4 { 100.0 } else { 1.0 }).collect()
}

#[test]
fn products_with_every_format_are_right_for_few_rows_and_many() {
    for (number, format) in formats().into_iter().enumerate() {
        for (turn, columns) in lengths(format).into_iter().enumerate() {
            let rows = [1, 33, 5, 18][turn];
            let sample = Sample::new(format, [Kind::F32, Kind::F16, Kind::Bf16][(number + turn) % 3], [rows, columns]);
            for m in [[1, 2], [3, 5], [0, 9], [1, 19]][(number + turn) % 4] {
                check(&sample, &activations(m * columns, number as u64), true);
            }
        }
    }
}

#[test]
fn products_with_weights_as_they_are() {
    for format in formats() {
        let sample = Sample::new(format, Kind::Bf16, [37, lengths(format)[2]]);
        check(&sample, &activations(3 * 37, 5), false);
    }
}

#[test]
fn activations_that_are_not_finite_or_very_small_or_large_give_what_floats_give() {
    for format in formats() {
        let sample = Sample::new(format, Kind::F16, [19, lengths(format)[2]]);
        for special in [f32::NAN, f32::INFINITY, -f32::INFINITY, 1e30, 1e-30, 1e-42] {
            let mut x = activations(2 * sample.columns, 3);
            x[sample.columns + 7] = special;
            check(&sample, &x, true);
            check(&sample, &vec![if special.is_finite() { special } else { 0.0 }; sample.columns], true);
        }
    }
}
