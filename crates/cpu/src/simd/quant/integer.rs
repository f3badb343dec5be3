//! Few rows of activations times quantized weights in integers, where the machine has instructions for that.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants, and of sums that the caller made room for")]
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::activation::{CELL, CHUNK, Order, ROWS, Sums, TableLayout};
use super::factors::ShortFactors;
use crate::quant::{Packing, Weights};
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::Register;
use crate::simd::matmul::transpose::transpose;
use crate::simd::{CACHE_LINE, Isa, Level, prefetch_at};
use ptero_tensor::GgufType;
use std::ops::Range;

/// Added to doubled floats of four bits, so that they are integers and not negative.
const E2M1_OFFSET: i32 = 12;
/// The code of zero in blocks of six bits.
const Q6K_OFFSET: i32 = 32;
/// At least this many bytes are prefetched ahead of those in use.
const AHEAD: usize = 2048;
/// The most rows of activations at once.
pub(crate) const MOST: usize = 4;

/// Instructions for products of integers; having a value is the proof that the machine has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers(Kind, Isa);

#[derive(Clone, Copy, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Rows of activations as `activation::arrange` writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'a> {
    pub(crate) layout: TableLayout,
    pub(crate) floats: &'a [f32],
}

/// Floats of memory that factors need: those of four rows, `[group][row]` up to whole chunks, twice, and room to widen them.
pub(crate) fn factor_floats(columns: usize, group: usize) -> usize {
    2 * ROWS * (columns / group + columns.next_multiple_of(CHUNK) / group)
}

impl Integers {
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa.level() {
            Level::Baseline => None,
            // All machines with VNNI but the first permute bytes, too.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx if is_x86_feature_detected!("avx512vbmi") => Some(Self(Kind::Vnni, isa)),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Some(Self(Kind::AvxVnni, isa)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 | Level::Amx => Some(Self(Kind::Avx2, isa)),
            #[cfg(target_arch = "aarch64")]
            Level::DotProducts => Some(Self(Kind::Neon, isa)),
        }
    }

    /// The layout of activations for these weights, whose groups are `group`; `None` if they are not supported.
    pub(crate) fn layout(self, weights: &Weights<'_>, group: usize) -> Option<TableLayout> {
        let (vectors, sums) = match weights.packing {
            // A group of 16 has no fast path.
            Packing::Affine { .. } if group == CELL / 4 => return None,
            Packing::Affine { bits, biases, .. } => {
                let sums = if biases.is_some() { Sums::Biased } else { Sums::Plain };
                match bits {
                    2 => (4, sums),
                    4 => (2, sums),
                    3 | 5 | 6 | 8 => (1, sums),
                    _ => return None,
                }
            }
            Packing::E2m1 { .. } if group == CELL => return None,
            Packing::E2m1 { .. } => (2, Sums::Offset(E2M1_OFFSET)),
            Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => (1, Sums::Biased),
            Packing::Gguf(GgufType::Q6K) => (1, Sums::Offset(Q6K_OFFSET)),
            Packing::E4m3 { .. } => return None,
        };
        let order = match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni if vectors == 1 => Order::Twos,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni => Order::Fours,
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni => Order::Bytes { vectors },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => match weights.packing {
                Packing::Affine { bits: 4 | 8, .. } => Order::Bytes { vectors },
                Packing::E2m1 { .. } if group == CELL / 2 => Order::Bytes { vectors },
                _ => return None,
            },
        };
        Some(TableLayout { order, sums, group, rows: 1 })
    }

    /// Writes the products of some rows of the weights with each of 1, 2 or 4 rows of activations, `stride` apart. `memory` has
    /// [`factor_floats`].
    pub(crate) fn products(
        self,
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        memory: &mut [f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let Self(kind, isa) = self;
        let groups = weights.columns / x.layout.group;
        let padded = weights.columns.next_multiple_of(CHUNK) / x.layout.group;
        let (lines, factors) = memory.split_at_mut(2 * ROWS * groups);
        // What is beyond the last group stays zero, and so do biases that do not exist.
        factors.fill(0.0);
        let (scales, biases) = factors.split_at_mut(ROWS * padded);
        let row_bytes = weights.row_bytes();
        let distance = AHEAD.next_multiple_of((ROWS * row_bytes).max(1));
        let block = x.layout.columns();
        let lengths = [
            row_bytes,
            (row_bytes * weights.columns.next_multiple_of(block)).checked_div(weights.columns).unwrap_or(0),
        ];
        let short = ShortFactors::of(weights, x.layout.group);
        let weights =
            &mut WeightRows { isa, weights, rows, x, distance, lengths, short, lines, scales, biases, sums, stride };
        #[cfg(target_arch = "x86_64")]
        {
            use super::{avx2, vnni};
            let products = match (kind, x.layout.rows) {
                (Kind::Avx2, 1) => avx2::products::<1, false>,
                (Kind::Avx2, 2) => avx2::products::<2, false>,
                (Kind::Avx2, _) => avx2::products::<MOST, false>,
                (Kind::AvxVnni, 1) => avx2::products::<1, true>,
                (Kind::AvxVnni, 2) => avx2::products::<2, true>,
                (Kind::AvxVnni, _) => avx2::products::<MOST, true>,
                (Kind::Vnni, 1) => vnni::products::<1>,
                (Kind::Vnni, 2) => vnni::products::<2>,
                (Kind::Vnni, _) => vnni::products::<MOST>,
            };
            // SAFETY: a kind exists only on machines that have its instructions.
            unsafe { products(weights) };
        }
        #[cfg(target_arch = "aarch64")]
        {
            use super::neon;
            let products = match (kind, x.layout.rows) {
                (Kind::Neon, 1) => neon::products::<1>,
                (Kind::Neon, 2) => neon::products::<2>,
                (Kind::Neon, _) => neon::products::<MOST>,
            };
            // SAFETY: a kind exists only on machines that have its instructions.
            unsafe { products(weights) };
        }
    }
}

/// Some rows of weights, taken four at a time, and what they are multiplied with.
pub(super) struct WeightRows<'a> {
    isa: Isa,
    weights: &'a Weights<'a>,
    rows: Range<usize>,
    pub(super) x: &'a Activations<'a>,
    /// How far ahead memory is prefetched, in bytes from the first of four rows on: in memory's own order, whatever order the
    /// four are read in.
    distance: usize,
    /// Bytes of a row, and of a row up to a whole block of activations.
    lengths: [usize; 2],
    short: Option<(ShortFactors<'a>, Option<ShortFactors<'a>>)>,
    /// Memory for widening other factors.
    lines: &'a mut [f32],
    scales: &'a mut [f32],
    biases: &'a mut [f32],
    sums: &'a mut [f32],
    stride: usize,
}

/// Four rows of weights.
pub(super) struct FourRows<'a> {
    pub(super) columns: usize,
    /// All of the same length, which is that of the columns or more.
    pub(super) codes: [&'a [u8]; ROWS],
    distance: usize,
    /// `[group][row]`, with zeros up to a whole chunk.
    pub(super) scales: &'a [f32],
    pub(super) biases: &'a [f32],
}

impl WeightRows<'_> {
    pub(super) fn packing(&self) -> &Packing<'_> {
        &self.weights.packing
    }

    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Four rows from number `at` of these on; the last is repeated.
    #[inline]
    pub(super) fn four(&mut self, at: usize) -> FourRows<'_> {
        let (weights, last) = (self.weights, self.rows.end - 1);
        let numbers = [0, 1, 2, 3].map(|row| (self.rows.start + at + row).min(last));
        match &self.short {
            Some((scales, biases)) => {
                scales.widen(self.isa, numbers, scales.groups(), self.scales, ROWS);
                if let Some(biases) = biases {
                    biases.widen(self.isa, numbers, biases.groups(), self.biases, ROWS);
                }
            }
            None => self.transpose_factors(numbers),
        }
        // What follows a row is multiplied with zeros, so that the last block can be read like the others; not after the last row.
        let [least, most] = self.lengths;
        let length = if weights.codes.holds(numbers[ROWS - 1] + 1, most) { most } else { least };
        let (columns, codes) = (weights.columns, numbers.map(|row| weights.codes.row(row, length)));
        FourRows { columns, codes, distance: self.distance, scales: self.scales, biases: self.biases }
    }

    /// Widens factors of all formats.
    fn transpose_factors(&mut self, rows: [usize; ROWS]) {
        let count = self.weights.columns / self.x.layout.group;
        let (scale_lines, bias_lines) = self.lines.split_at_mut(ROWS * count);
        let lines = scale_lines.chunks_exact_mut(count).zip(bias_lines.chunks_exact_mut(count));
        for (row, (scales, biases)) in rows.into_iter().zip(lines) {
            self.weights.factors(self.isa, row, 0, scales, biases);
        }
        transpose(self.isa, scale_lines, count, self.scales, ROWS);
        transpose(self.isa, bias_lines, count, self.biases, ROWS);
    }

    /// Stores the products of four rows from number `at` on.
    #[inline]
    pub(super) fn store<const M: usize>(&mut self, at: usize, totals: &[[f32; ROWS]; M]) {
        let count = ROWS.min(self.rows.len() - at);
        for (m, totals) in totals.iter().enumerate() {
            let sums = &mut self.sums[m * self.stride + at..];
            match sums.first_chunk_mut() {
                Some(sums) if count == ROWS => *sums = *totals,
                _ => sums[..count].copy_from_slice(&totals[..count]),
            }
        }
    }
}

impl FourRows<'_> {
    /// Asks for the codes that come `distance` after those of a block of four rows, which has that many bytes.
    #[inline(always)]
    pub(super) fn prefetch(&self, number: usize, bytes: usize) {
        let ahead = self.codes[0].as_ptr().wrapping_add(self.distance + number * bytes);
        for at in (0..bytes).step_by(CACHE_LINE) {
            prefetch_at(ahead.wrapping_add(at));
        }
    }
}

/// Cells as floats: by slot, the sum of the products of a group, times step and scale, and the bias, times the sum of the
/// activations. `table` holds steps and sums by slot; with an offset, these are what is subtracted from the sums of products.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn cell_sums<R: Register, const LANES: usize, const SLOTS: usize>(
    register: R,
    table: &[[f32; LANES]],
    products: [R::Integers; SLOTS],
    [scales, biases]: [[R::Floats; SLOTS]; 2],
    has_offset: bool,
) -> R::Floats {
    let mut cells = register.splat(0.0);
    for slot in 0..SLOTS {
        let (step, sum) = (register.load(&table[2 * slot]), register.load(&table[2 * slot + 1]));
        let scale = register.multiply(scales[slot], step);
        if has_offset {
            let products = register.subtract(products[slot], register.bits(sum));
            cells = register.multiply_add(scale, register.to_floats(products), cells);
        } else {
            cells = register.multiply_add(scale, register.to_floats(products[slot]), cells);
            cells = register.multiply_add(biases[slot], sum, cells);
        }
    }
    cells
}
