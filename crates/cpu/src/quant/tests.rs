//! Compares every format with a naive implementation.
#![allow(clippy::cast_possible_truncation, reason = "the expected number, rounded")]

pub(super) mod sample;

use super::*;
use crate::dense::Dense;
use crate::finish::Rounded;
use crate::gemm::Size;
use crate::pool::{Matrices, Pool, Scratch};
use sample::{Kind, Noise, Sample, formats, lengths};

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
        let stored = Some(Scales::E8m0(QuantRows::new(&scales, 8)));
        let weights = Weights::new(format, [1, 256], QuantRows::new(&codes, 256), stored, None).unwrap();
        let mut found = vec![0.0; 256];
        weights.decode(Isa::best(), 0, 0, &mut found);
        let expected = codes.iter().map(|code| from_e8m0(scale) * from_e4m3((*code).into()));
        assert!(found.iter().zip(expected).all(|(found, expected)| same(*found, expected)));
    }
}

#[test]
fn parts_that_do_not_fit_make_no_matrix() {
    let (codes, scales) = ([0_u8; 64], [0.0_f32; 4]);
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
    let (rows, stored) = (QuantRows::new(&codes[..], 32), Some(Scales::F32(QuantRows::new(&scales[..], 2))));
    assert!(Weights::new(format, [2, 64], rows, stored, stored).is_some());
    assert!(Weights::new(format, [3, 64], rows, stored, stored).is_none());
    assert!(Weights::new(format, [2, 65], rows, stored, stored).is_none());
    assert!(Weights::new(format, [2, 64], QuantRows::new(&codes[..63], 32), stored, stored).is_none());
    assert!(Weights::new(format, [2, 64], rows, Some(Scales::F32(QuantRows::new(&scales[..3], 2))), stored).is_none());
    assert!(Weights::new(format, [2, 64], rows, None, None).is_none());
    assert!(Weights::new(QuantFormat::Gguf(GgufType::Q4K), [1, 128], rows, None, None).is_none());
}

pub(super) fn on<R>(threads: usize, work: impl FnOnce(&mut Workers<'_>) -> R) -> R {
    let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
    work(&mut Workers { pool: &pool, scratch: &mut scratch })
}

/// Checks products of rows in single precision, which are exact, and of bfloats, which may be off by half a step.
fn check(sample: &Sample, x: &[f32], transpose: bool) {
    let short: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let widened: Vec<f32> = short.iter().map(|x| x.to_f32()).collect();
    check_rows(sample, x, x, transpose, 0.0);
    check_rows(sample, &widened, &short, transpose, 0.51);
}

/// Computes the product of rows with weights, or with their transpose.
fn multiply<T: Float>(isa: Isa, threads: usize, x: &[T], (weights, transpose): (&Weights<'_>, bool)) -> Vec<f32> {
    let [rows, columns] = weights.size();
    let (k, n) = if transpose { (columns, rows) } else { (rows, columns) };
    let left = &Dense { elements: x, row_stride: k, column_stride: 1 };
    let size = Size { m: x.len() / k, k, n };
    let mut out = vec![7.0; size.m * n];
    on(threads, |workers| {
        let mut rows = Matrices::one(&mut out, size.n);
        let product = Product { isa, size, left, out: rows.all(), finish: &Rounded };
        product.times_quantized(workers, weights, transpose);
    });
    out
}

fn product_of<T: Float>(sample: &Sample, x: &[T], transpose: bool, isa: Isa, threads: usize) -> Vec<f32> {
    multiply(isa, threads, x, (&sample.weights(), transpose))
}

/// Checks that each row alone, in plain code, is close to sums of `f64`, and that all rows at once give the same bits on every
/// instruction set and any number of threads.
fn check_rows<T: Float>(sample: &Sample, x: &[f32], stored: &[T], transpose: bool, steps_off: f64) {
    let decoded: Vec<_> = (0..sample.rows).map(|row| sample.row(row)).collect();
    let (k, n) = if transpose { (sample.columns, sample.rows) } else { (sample.rows, sample.columns) };
    let weight = |k: usize, n: usize| f64::from(if transpose { decoded[n][k] } else { decoded[k][n] });
    let step = |at: usize| x[at / 64 * 64..].iter().take(64).fold(0.0_f32, |step, x| step.max(x.abs())) / 32639.0;
    let largest = decoded.iter().flatten().fold(0.0, |largest, weight| f64::from(weight.abs()).max(largest));
    let alone = stored.chunks_exact(k).flat_map(|row| product_of(sample, row, transpose, Isa::available()[0], 1));
    let alone: Vec<f32> = alone.collect();
    for (at, found) in alone.iter().enumerate() {
        let row = at / n * k;
        let expected = (0..k).map(|k_at| f64::from(x[row + k_at]) * weight(k_at, at % n)).sum::<f64>();
        // A weight is the sum of two numbers, each of which may be as large as the largest weight.
        let size = (0..k).map(|k_at| f64::from(x[row + k_at]).abs() * largest).sum::<f64>();
        let steps = (0..k).map(|k_at| f64::from(step(row + k_at)) * weight(k_at, at % n).abs()).sum::<f64>();
        let allowed = 1e-6 * size + steps_off * steps + 2.0e-29 * k as f64 * largest + 1e-30;
        let is_right = same(*found, expected as f32) || (f64::from(*found) - expected).abs() <= allowed;
        assert!(is_right, "{:?} {k}x{n} at {at}: {found} for {expected}", sample.format);
    }
    for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [1, 2, 5].map(|threads| (isa, threads))) {
        let together = product_of(sample, stored, transpose, isa, threads);
        assert!(together.iter().zip(&alone).all(|(a, b)| same(*a, *b)), "{:?} {isa:?} {threads}", sample.format);
    }
}

pub(super) fn activations(count: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| noise.float() * if noise.byte() < 4 { 100.0 } else { 1.0 }).collect()
}

#[test]
fn products_with_every_format_are_right_for_few_rows_and_many() {
    for (number, format) in formats().into_iter().enumerate() {
        for (turn, columns) in lengths(format).into_iter().enumerate() {
            let rows = [1, 33, 5, 18][turn];
            let sample = Sample::new(format, [Kind::F32, Kind::F16, Kind::Bf16][(number + turn) % 3], [rows, columns]);
            for m in [[1, 2], [3, 5], [0, 9], [1, 13]][(number + turn) % 4] {
                check(&sample, &activations(m * columns, number as u64), true);
            }
        }
    }
}

/// Of rows that follow each other, blocks of sixteen cells begin anywhere in a row, and the last one may not be whole.
#[test]
fn products_of_one_row_are_right_without_gaps_between_rows() {
    for (bits, group) in [4, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group))) {
        let format = QuantFormat::Words { mode: QuantMode::Affine, bits, group };
        for (turn, columns) in [64, 192, 576, 1088, 2048].into_iter().enumerate() {
            let columns = columns.max(usize::from(group));
            for rows in [1, 2, 3, 5, 16, 37] {
                let kind = [Kind::Bf16, Kind::F16, Kind::F32][(turn + rows) % 3];
                let sample = Sample::new(format, kind, [rows, columns.next_multiple_of(group.into())]).without_gaps();
                let sample = if (turn + rows) % 4 == 0 { sample.without_biases() } else { sample };
                check(&sample, &activations(sample.columns, rows as u64), true);
            }
        }
    }
}

/// Above the limit of few rows, with a last panel that is not full.
#[test]
fn products_with_every_format_are_right_for_many_rows() {
    for (number, format) in formats().into_iter().enumerate() {
        for (turn, columns) in lengths(format).into_iter().enumerate() {
            let kind = [Kind::F32, Kind::F16, Kind::Bf16][(number + turn) % 3];
            let sample = Sample::new(format, kind, [[1, 33, 66, 18][turn], columns]);
            check(&sample, &activations(67 * columns, number as u64), true);
        }
    }
}

/// Small enough for Miri, which does not support half precision.
#[test]
fn small_products_in_integers_are_right() {
    let words = |mode, bits, group| QuantFormat::Words { mode, bits, group };
    let affine =
        [(2, 16), (3, 32), (4, 32), (5, 64), (6, 16), (8, 128)].map(|(bits, group)| (QuantMode::Affine, bits, group));
    let small_floats = [(QuantMode::Mxfp4, 4, 32), (QuantMode::Nvfp4, 4, 16)];
    let words = affine.into_iter().chain(small_floats).map(|(mode, bits, group)| words(mode, bits, group));
    let blocks = [GgufType::Q4K, GgufType::Q5K, GgufType::Q6K].map(QuantFormat::Gguf);
    let blocks = blocks.into_iter().filter(|_| !cfg!(miri));
    for (number, format) in words.chain(blocks).enumerate() {
        let unit = lengths(format)[0];
        let columns = if unit < 64 { 64 + unit } else { unit };
        let sample = Sample::new(format, [Kind::F32, Kind::Bf16][number % 2], [2, columns]);
        check(&sample, &activations(columns, number as u64), true);
    }
}

/// With any scales: the offset of the codes is subtracted in integers.
#[test]
fn products_with_weights_that_are_zero_are_zero() {
    let scales = [254, 0x7E, 1, 100];
    let small_float = |mode, group, scales| {
        let format = QuantFormat::Words { mode, bits: 4, group };
        Weights::new(format, [2, 64], QuantRows::new(&[0x80; 64], 32), Some(scales), None).unwrap()
    };
    // Zero is the middle code, and groups have scales from -90 to 90.
    let mut block = [0_u8; 210];
    block[..128].fill(0);
    block[128..192].fill(0xAA);
    block[192..208].iter_mut().zip(0_u8..).for_each(|(scale, at)| *scale = (at * 12).wrapping_sub(90));
    block[208..].copy_from_slice(&f16::from_f32(0.37).to_le_bytes());
    let zeros = [
        small_float(QuantMode::Mxfp4, 32, Scales::E8m0(QuantRows::new(&scales, 2))),
        small_float(QuantMode::Nvfp4, 16, Scales::E4m3(QuantRows::new(&scales, 0))),
        Weights::new(QuantFormat::Gguf(GgufType::Q6K), [1, 256], QuantRows::new(&block, 210), None, None).unwrap(),
    ];
    for (weights, isa) in zeros.iter().flat_map(|weights| Isa::available().into_iter().map(move |isa| (weights, isa))) {
        let x: Vec<bf16> = activations(3 * weights.columns, 8).into_iter().map(bf16::from_f32).collect();
        let out = multiply(isa, 1, &x, (weights, true));
        assert!(out.iter().all(|found| *found == 0.0), "{:?} {isa:?}: {out:?}", weights.packing);
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
fn very_small_and_very_large_activations_give_what_floats_give() {
    for format in formats() {
        let sample = Sample::new(format, Kind::F16, [19, lengths(format)[2]]);
        for special in [1e30, 1e-30, 1e-42] {
            // The second of few or many rows has one special element, or is scaled by it.
            for rows in [2, 65] {
                let mut x = activations(rows * sample.columns, 3);
                x[sample.columns + 7] = special;
                check(&sample, &x, true);
                x[sample.columns + 7] = 1.0;
                x[sample.columns..2 * sample.columns].iter_mut().for_each(|x| *x *= special);
                check(&sample, &x, true);
            }
            check(&sample, &vec![special; sample.columns], true);
        }
    }
}

/// At any index of a row, and only for that row.
#[test]
fn activations_and_scales_that_are_not_finite_make_nan_in_whole_numbers() {
    let codes: Vec<u8> = (0..8 * 64_u32).map(|at| (at * 37 % 256) as u8).collect();
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
    for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for (isa, rows) in Isa::available().into_iter().flat_map(|isa| [3, 65].map(|rows| (isa, rows))) {
            let (mut x, mut scales, biases) = (activations(rows * 128, 9), vec![0.5_f32; 8 * 4], vec![1.0_f32; 8 * 4]);
            (x[128 + 77], scales[4 * 4 + 3]) = (special, special);
            let of = |factors| Some(Scales::F32(QuantRows::new(factors, 4)));
            let weights = Weights::new(format, [8, 128], QuantRows::new(&codes, 64), of(&scales), of(&biases)).unwrap();
            let out = multiply(isa, 2, &x, (&weights, true));
            for (at, found) in out.iter().enumerate() {
                // An infinite scale with a sum of whole numbers that is not zero stays infinite, until the rest is added.
                let is_special = at / 8 == 1 || at % 8 == 4;
                assert_eq!(!found.is_finite(), is_special, "{isa:?} {special} at {at}: {found}");
                assert!(at / 8 != 1 || found.is_nan());
            }
        }
    }
}
