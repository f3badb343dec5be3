//! Compares tiles with sums of products, one after another.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes made of small numbers")]

use super::*;
use crate::simd::quant::codes::{ActivationRow, product};
use ptero_tensor::SplitMix64;

/// The plain twin of `amx::ConfiguredTiles`.
pub(super) struct PlainUnit {
    pub(super) group: usize,
    pub(super) is_signed: bool,
}

impl Unit for PlainUnit {
    fn products(&self, codes: &[u8], stride: usize, x: &[f32], groups: usize, to: &mut [f32; MEMORY]) {
        for (at, to) in to.iter_mut().enumerate().take(groups * PRODUCTS) {
            let (number, tile, plane, row, other) = (at / 1024, at / 512 % 2, at / 256 % 2, at / 16 % 16, at % 16);
            let x: &[i8] =
                bytemuck::cast_slice(&x[number * self.group / 2 * SIDE..(number + 1) * self.group / 2 * SIDE]);
            let codes = &codes[number * self.group..];
            let mut sum = 0;
            for column in 0..self.group {
                let code = codes[(tile * SIDE + row) * stride + column];
                let code = if self.is_signed { i32::from(code.cast_signed()) } else { i32::from(code) };
                sum += code * i32::from(x[(plane * self.group + column / 4 * 4) * SIDE + 4 * other + column % 4]);
            }
            *to = f32::from_bits(sum.cast_unsigned());
        }
    }
}

macro_rules! version {
    ($name:ident, $register:ident, $features:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        pub(super) fn $name(unit: &PlainUnit, left: Panel<'_>, codes: Codes<'_>, memory: &mut [f32], sums: &mut [f32]) {
            multiply_with(crate::simd::lanes::x86::$register::new(), unit, left, codes, memory, sums);
        }
    };
}

version!(avx2, Avx2, "avx2,fma,f16c,bmi2");
version!(avx512, Avx512, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2");

/// Operands of a product: 64 rows of codes and 16 of activations.
struct Operands {
    codes: Vec<i16>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    integers: Vec<i16>,
    steps: Vec<f32>,
    sums: Vec<i32>,
}

impl Operands {
    fn new(columns: usize, group: usize, is_signed: bool) -> Self {
        let mut noise = SplitMix64::new((columns * group) as u64);
        let mut number = |from: i64, to: i64| from + (noise.next_u64() % (to - from + 1) as u64).cast_signed();
        let groups = columns / group;
        let codes = if is_signed { (-128, 127) } else { (0, 255) };
        let integers: Vec<i16> = (0..SIDE * columns).map(|_| number(-32639, 32639) as i16).collect();
        Self {
            codes: (0..2 * ROWS * columns).map(|_| number(codes.0, codes.1) as i16).collect(),
            scales: (0..2 * ROWS * groups).map(|_| number(-1000, 1000) as f32 / 777.0).collect(),
            biases: (0..2 * ROWS * groups).map(|_| number(-1000, 1000) as f32 / 33.0).collect(),
            steps: (0..SIDE * groups).map(|_| number(1, 1000) as f32 / 1e6).collect(),
            sums: integers.chunks(group).map(|group| group.iter().map(|x| i32::from(*x)).sum()).collect(),
            integers,
        }
    }

    /// Activations as tiles have them: words, and factors.
    fn left(&self, columns: usize, group: usize) -> [Vec<f32>; 2] {
        let (mut bytes, mut factors) = (vec![0_u8; 2 * SIDE * columns], vec![0.0; 2 * SIDE * (columns / group)]);
        for (at, integer) in self.integers.iter().enumerate() {
            let (row, column, high) = (at / columns, at % columns, (i32::from(*integer) + 128) >> 8);
            let to = column / group * 2 * group * SIDE + (column % group / 4 * SIDE + row) * 4 + column % 4;
            (bytes[to], bytes[to + group * SIDE]) = (high as u8, (i32::from(*integer) - 256 * high) as u8);
        }
        for (at, (step, sum)) in self.steps.iter().zip(&self.sums).enumerate() {
            let (row, number) = (at / (columns / group), at % (columns / group));
            (factors[2 * SIDE * number + row], factors[(2 * number + 1) * SIDE + row]) = (*step, step * *sum as f32);
        }
        [bytes.chunks(4).map(bytemuck::pod_read_unaligned).collect(), factors]
    }

    /// Codes as tiles have them.
    fn right(&self, columns: usize, group: usize) -> Vec<f32> {
        let mut floats = Vec::new();
        for (block, start) in (0..2).flat_map(|block| (0..columns).step_by(CHUNK).map(move |start| (block, start))) {
            let (rows, end) = (block * ROWS..(block + 1) * ROWS, columns.min(start + CHUNK));
            let codes = rows.clone().flat_map(|row| &self.codes[row * columns + start..row * columns + end]);
            let bytes: Vec<u8> = codes.map(|code| *code as u8).collect();
            floats.extend(bytes.chunks(4).map(bytemuck::pod_read_unaligned::<f32>));
            for cell in (start..end).step_by(CELL) {
                for (row, column) in rows
                    .clone()
                    .flat_map(|row| (cell..end.min(cell + CELL)).step_by(group).map(move |column| (row, column)))
                {
                    let at = (row * columns + column) / group;
                    floats.extend([self.scales[at], self.biases[at]]);
                }
            }
        }
        floats
    }
}

#[test]
fn products_in_tiles_are_those_of_rows() {
    let sizes = [(16, 16), (32, 64), (64, 64), (32, 96), (64, 320), (16, 304), (32, 512), (16, 0)];
    for (isa, (group, columns)) in Isa::available().into_iter().flat_map(|isa| sizes.map(|size| (isa, size))) {
        for is_signed in [false, true] {
            let operands = Operands::new(columns, group, is_signed);
            let ([words, factors], floats) = (operands.left(columns, group), operands.right(columns, group));
            let units = [Some(Tiles::plain(isa)), Tiles::of(isa)];
            for unit in units.into_iter().flatten() {
                let (mut memory, mut sums) = (vec![f32::NAN; MEMORY], vec![0.0; 2 * ROWS * SIDE]);
                for start in (0..columns).step_by(CHUNK) {
                    let codes = Codes { floats: &floats, columns, start, group, is_signed };
                    unit.multiply(Panel { words: &words, factors: &factors }, codes, &mut memory, &mut sums);
                }
                for (at, found) in sums.iter().enumerate() {
                    let (row, other, groups) = (at / SIDE, at % SIDE, columns / group);
                    let x = ActivationRow {
                        integers: &operands.integers[other * columns..(other + 1) * columns],
                        steps: &operands.steps[other * groups..(other + 1) * groups],
                        sums: &operands.sums[other * groups..(other + 1) * groups],
                        group,
                    };
                    let range = row * groups..(row + 1) * groups;
                    let (scales, biases) = (&operands.scales[range.clone()], &operands.biases[range]);
                    let codes = &operands.codes[row * columns..(row + 1) * columns];
                    let expected = product(Isa::available()[0], codes, scales, biases, x);
                    assert_eq!(found.to_bits(), expected.to_bits(), "{unit:?} {isa:?} {group} {columns} {at}");
                }
            }
        }
    }
}
