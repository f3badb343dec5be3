//! Compares products with three nested loops, over sizes with remainders, all layouts, types and numbers of threads.

use super::*;
use crate::dense::Dense;
use crate::finish::Rounded;
use crate::pool::{Matrices, Pool};
use half::{bf16, f16};

fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
    let number = |at: usize| ((((at + seed) * 2_654_435_761) >> 7) % 1001) as f32 / 500.0 - 1.0;
    (0..count).map(|at| T::rounded(number(at))).collect()
}

fn on<R>(threads: usize, work: impl FnOnce(&mut Workers<'_>) -> R) -> R {
    let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
    work(&mut Workers { pool: &pool, scratch: &mut scratch })
}

fn naive<T: Float, U: Float>(size: Size, left: &Dense<'_, T>, right: &Dense<'_, U>) -> Vec<f64> {
    let cell = |m: usize, n: usize| {
        let product = |k: usize| {
            let a = left.elements[m * left.row_stride + k * left.column_stride].float();
            let b = right.elements[k * right.row_stride + n * right.column_stride].float();
            f64::from(a) * f64::from(b)
        };
        (0..size.k).map(product).sum()
    };
    (0..size.m).flat_map(|m| (0..size.n).map(move |n| (m, n))).map(|(m, n)| cell(m, n)).collect()
}

fn check<T: Float, U: Float>(size: Size, strides: [usize; 2]) {
    let (a, b) = (numbers::<T>(size.m * size.k, 1), numbers::<U>(2 * size.k * size.n + 2, 5));
    let left = Dense { elements: &a, row_stride: size.k, column_stride: 1 };
    let right = Dense { elements: &b, row_stride: strides[0], column_stride: strides[1] };
    let expected = naive(size, &left, &right);
    let mut defined: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        let run = |threads, with_tiles: bool| {
            on(threads, |workers| {
                let mut out = vec![T::rounded(7.0); size.m * size.n];
                let mut rows = Matrices::one(&mut out, size.n);
                let product = Product { isa, size, left: &left, out: rows.all(), finish: &Rounded };
                if with_tiles {
                    product.times(workers, &right);
                } else {
                    product.times_dense(workers, &right);
                }
                drop(rows);
                out.into_iter().map(T::float).collect::<Vec<f32>>()
            })
        };
        for with_tiles in [true, false] {
            let one = run(1, with_tiles);
            for (found, expected) in one.iter().zip(&expected) {
                let rounding = (expected.abs() + 1.0) * f64::from(T::rounded(1.0 + 1.0 / 200.0).float() - 1.005).abs();
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-4 + 4.0 * rounding,
                    "{isa:?} {size:?}: {found} for {expected}"
                );
            }
            for threads in [2, 5] {
                assert!(run(threads, with_tiles) == one, "{isa:?} {size:?}: {threads} threads");
            }
            // With tiles or in place, on any instruction set: the bits are the same.
            assert!(*defined.get_or_insert_with(|| one.clone()) == one, "{isa:?} {size:?}: tiles {with_tiles}");
        }
    }
}

const SIZES: [[usize; 3]; 10] = [
    [0, 4, 4],
    [1, 0, 3],
    [1, 1, 1],
    [3, 33, 130],
    [4, 300, 65],
    [13, 257, 31],
    [25, 40, 129],
    [5, 7, 0],
    [12, 512, 64],
    [50, 1100, 7],
];

#[test]
fn products_of_floats_of_any_layout_are_right() {
    for [m, k, n] in SIZES {
        let size = Size { m, k, n };
        check::<f32, f32>(size, [n, 1]);
        check::<f32, f32>(size, [1, k]);
        check::<f32, f32>(size, [2 * n, 2]);
        check::<f32, f32>(size, [0, 1]);
    }
}

#[test]
fn products_of_halves_round_once() {
    for [m, k, n] in SIZES {
        let size = Size { m, k, n };
        check::<bf16, bf16>(size, [n, 1]);
        check::<f16, bf16>(size, [1, k]);
        check::<f32, f16>(size, [1, k + 1]);
    }
}

#[test]
fn more_rows_than_one_pass_holds() {
    check::<f32, f32>(Size { m: PASS_ROWS + 5, k: 3, n: 5 }, [5, 1]);
}

#[test]
fn nan_reaches_its_row_and_column_only() {
    let (mut a, b) = (numbers::<f32>(6 * 300, 1), numbers::<f32>(300 * 40, 2));
    a[2 * 300 + 17] = f32::NAN;
    let left = Dense { elements: &a, row_stride: 300, column_stride: 1 };
    let right = Dense { elements: &b, row_stride: 40, column_stride: 1 };
    for isa in Isa::available() {
        let mut out = vec![0.0_f32; 6 * 40];
        let size = Size { m: 6, k: 300, n: 40 };
        on(2, |workers| {
            let mut rows = Matrices::one(&mut out, size.n);
            Product { isa, size, left: &left, out: rows.all(), finish: &Rounded }.times(workers, &right);
        });
        assert!(out.iter().enumerate().all(|(at, number)| number.is_nan() == (at / 40 == 2)));
    }
}
