//! Products in tiles, by plain code in place of the unit, beside those in panels.

use super::*;
use crate::dense::Dense;
use crate::finish::Rounded;
use crate::pool::Matrices;
use crate::quant::tests::sample::{Kind, Sample, formats, lengths};
use crate::quant::tests::{activations, on};
use crate::simd::Isa;
use half::bf16;

/// Computes a product by panels, and by tiles on some threads.
fn both<T: Float>(sample: &Sample, isa: Isa, threads: usize, x: &[T]) -> Option<[Vec<f32>; 2]> {
    let (weights, left) = (sample.weights(), Dense { elements: x, row_stride: sample.columns, column_stride: 1 });
    let (product, rows) = (IntegerProduct::of(isa, &weights, left.is_single())?, 0..x.len() / sample.columns);
    let [mut panels, mut tiles] = [7.0, 8.0].map(|unset| vec![unset; rows.len() * sample.rows]);
    on(1, |workers| {
        let mut out = Matrices::one(&mut panels, sample.rows);
        product.many(workers, rows.clone(), &left, out.all(), &Rounded);
    });
    on(threads, |workers| {
        let mut out = Matrices::one(&mut tiles, sample.rows);
        product.in_tiles(Tiles::plain(isa), workers, rows, &left, out.all(), &Rounded);
    });
    Some([panels, tiles])
}

#[test]
fn products_in_tiles_have_the_bits_of_those_in_panels() {
    let mut count = 0;
    for (number, format) in formats().into_iter().enumerate() {
        for (turn, columns) in lengths(format).into_iter().enumerate() {
            let kind = [Kind::F32, Kind::F16, Kind::Bf16][(number + turn) % 3];
            let sample = Sample::new(format, kind, [[1, 33, 66, 18][turn], columns]);
            let single = activations([19, 8, 33, 3][(number + turn) % 4] * columns, number as u64);
            let short: Vec<bf16> = single.iter().map(|x| bf16::from_f32(*x)).collect();
            for (isa, threads) in Isa::available().into_iter().zip([1, 2, 5].into_iter().cycle()) {
                for pair in [both(&sample, isa, threads, &single), both(&sample, isa, threads, &short)] {
                    let Some([panels, tiles]) = pair else { continue };
                    let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(panels.iter().zip(&tiles).all(is_same), "{format:?} {columns} {isa:?} {threads}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count} products");
}

/// More weights than are unpacked at once.
#[test]
fn weights_are_unpacked_in_parts() {
    let format = formats()[0];
    let columns = 64 * lengths(format)[0].next_multiple_of(64);
    let sample = Sample::new(format, Kind::Bf16, [4 * MOST_FLOATS / columns, columns]);
    let x: Vec<bf16> = activations(2 * columns, 1).into_iter().map(bf16::from_f32).collect();
    let [panels, tiles] = both(&sample, Isa::best(), 2, &x).expect("codes are integers");
    assert!(panels.iter().zip(&tiles).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn shares_leave_no_thread_idle_where_that_can_be() {
    for (panels, blocks, threads) in [(32, 18, 16), (32, 48, 16), (32, 6, 16), (1, 64, 16), (32, 18, 2), (2, 1, 16)] {
        let [height, width] = shares([panels, blocks], 8, threads, |height, width| 2 * height * width + height + width);
        let (down, across) = (panels.div_ceil(height), blocks.div_ceil(width));
        let most = (down * across).div_ceil(threads) * height * width;
        let ideal = (panels * blocks).div_ceil(threads);
        assert!(most <= ideal + ideal / 3 + 1, "{panels} {blocks} {threads}: {height} x {width}, {most} of {ideal}");
    }
    assert_eq!(shares([0, 0], 4, 0, |height, width| height * width), [1, 1]);
}
