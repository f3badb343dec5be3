//! Few rows of activations times quantized weights in integers, where the machine has instructions for that.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants, and of sums that the caller made room for")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::activation::{CELL, CHUNK, Order, ROWS, Sums, TableLayout};
use crate::quant::{Packing, QuantRows, Scales, Weights};
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
    Avx2,
    Vnni,
}

/// Rows of activations as `activation::arrange` writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'a> {
    pub(crate) layout: TableLayout,
    pub(crate) floats: &'a [f32],
}

/// Scales or biases of [`ROWS`] rows of weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factors<'a> {
    /// `[group][row]`, with zeros up to a whole chunk.
    Transposed(&'a [f32]),
    /// Bfloats or halves, where they lie.
    Short(ShortFactors<'a>),
}

/// Short factors of [`ROWS`] rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortFactors<'a> {
    /// The bits of each row.
    pub(crate) rows: [&'a [u16]; ROWS],
    /// The length of the shortest row.
    count: usize,
    /// `true` for bfloats, `false` for halves.
    pub(crate) is_bfloat: bool,
    /// `true` if two cells share a factor.
    pub(crate) is_shared: bool,
}

impl<'a> ShortFactors<'a> {
    /// The scales and biases of all rows, if they can be read where they lie. Without biases, the scales take their place.
    fn of(weights: &Weights<'a>) -> Option<[(QuantRows<'a, u16>, Self); 2]> {
        let Packing::Affine { group, scales, biases, .. } = &weights.packing else { return None };
        let (count, is_shared) = (weights.columns / group, *group > CELL);
        let of = |factors: &Scales<'a>| {
            let (rows, is_bfloat) = factors.short()?;
            Some((rows, Self { rows: [&[]; ROWS], count, is_bfloat, is_shared }))
        };
        Some([of(scales)?, of(biases.as_ref().unwrap_or(scales))?])
    }

    /// The factors of some rows.
    #[inline(always)]
    fn with(&self, all: &QuantRows<'a, u16>, numbers: [usize; ROWS]) -> Self {
        let mut short = *self;
        for (row, number) in short.rows.iter_mut().zip(numbers) {
            *row = all.row(number, self.count);
            short.count = short.count.min(row.len());
        }
        short
    }

    /// The number of factors of a row from `start` on.
    #[inline(always)]
    pub(crate) fn after(&self, start: usize) -> usize {
        self.count.saturating_sub(start)
    }

    /// `N` factors of each row from `start` on; zeros after the last.
    #[inline(always)]
    pub(crate) fn parts<const N: usize>(&self, start: usize) -> [[u16; N]; ROWS] {
        if self.after(start) < N {
            return self.rest(start);
        }
        let mut parts = [[0; N]; ROWS];
        for (part, row) in parts.iter_mut().zip(self.rows) {
            // SAFETY: `start + N` is at most `count`, which is at most the length of any row.
            *part = unsafe { row.as_ptr().add(start).cast::<[u16; N]>().read() };
        }
        parts
    }

    #[cold]
    fn rest<const N: usize>(&self, start: usize) -> [[u16; N]; ROWS] {
        self.rows.map(|row| {
            let mut part = [0; N];
            part.iter_mut().zip(row.iter().skip(start)).for_each(|(to, from)| *to = *from);
            part
        })
    }
}

impl<'a> Factors<'a> {
    /// Floats of memory that [`Factors::transposed`] needs.
    pub(crate) fn floats(columns: usize, group: usize) -> usize {
        2 * ROWS * (columns / group + columns.next_multiple_of(CHUNK) / group)
    }

    /// Scales and biases of rows that cannot be read where they lie.
    fn transposed(
        isa: Isa,
        weights: &Weights<'_>,
        group: usize,
        rows: [usize; ROWS],
        memory: &'a mut [f32],
    ) -> [Self; 2] {
        let (count, padded) = (weights.columns / group, weights.columns.next_multiple_of(CHUNK) / group);
        let (lines, transposed) = memory.split_at_mut(2 * ROWS * count);
        let (scale_lines, bias_lines) = lines.split_at_mut(ROWS * count);
        let lines = scale_lines.chunks_exact_mut(count).zip(bias_lines.chunks_exact_mut(count));
        for (row, (scales, biases)) in rows.into_iter().zip(lines) {
            weights.factors(isa, row, 0, scales, biases);
        }
        let (scales, rest) = transposed.split_at_mut(ROWS * padded);
        let biases = rest.split_at_mut(ROWS * padded).0;
        for (lines, to) in [(&*scale_lines, &mut *scales), (&*bias_lines, &mut *biases)] {
            transpose(isa, lines, count, to, ROWS);
            to.split_at_mut(ROWS * count).1.fill(0.0);
        }
        [Self::Transposed(scales), Self::Transposed(biases)]
    }
}

impl Integers {
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa.level() {
            Level::Baseline => None,
            // All machines with VNNI but the first permute bytes, too.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx if is_x86_feature_detected!("avx512vbmi") => Some(Self(Kind::Vnni, isa)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 | Level::Amx => Some(Self(Kind::Avx2, isa)),
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
            Kind::Avx2 if vectors == 1 => Order::Twos,
            Kind::Avx2 => Order::Fours,
            Kind::Vnni => Order::Bytes { vectors },
        };
        Some(TableLayout { order, sums, group, rows: 1 })
    }

    /// Writes the products of some rows of the weights with each of 1, 2 or 4 rows of activations, `stride` apart. `memory` is
    /// for [`Factors`].
    pub(crate) fn products(
        self,
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        memory: &mut [f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let Some(last) = rows.clone().next_back() else { return };
        // Memory is prefetched in its own order, whatever order four rows are read in: a multiple of four rows ahead.
        let four = (ROWS * weights.row_bytes()).max(1);
        let distance = AHEAD.next_multiple_of(four);
        let (short, row_bytes) = (ShortFactors::of(weights), weights.row_bytes());
        for first in rows.clone().step_by(ROWS) {
            // The last row is repeated.
            let numbers = [first, (first + 1).min(last), (first + 2).min(last), (first + 3).min(last)];
            let [scales, biases] = match &short {
                Some([(all_scales, scales), (all_biases, biases)]) => {
                    [scales.with(all_scales, numbers), biases.with(all_biases, numbers)].map(Factors::Short)
                }
                None => Factors::transposed(self.1, weights, x.layout.group, numbers, memory),
            };
            let mut lines = [[].as_slice(); ROWS];
            lines.iter_mut().zip(numbers).for_each(|(line, row)| *line = weights.codes.row(row, row_bytes));
            let mut totals = [[0.0; ROWS]; MOST];
            self.four(&FourRows { packing: &weights.packing, codes: lines, distance, scales, biases, x }, &mut totals);
            for (m, totals) in totals.iter().enumerate().take(x.layout.rows) {
                let count = ROWS.min(rows.end - first);
                sums[m * stride + first - rows.start..][..count].copy_from_slice(&totals[..count]);
            }
        }
    }

    fn four(self, lines: &FourRows<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        #[cfg(target_arch = "x86_64")]
        {
            use super::{avx2, vnni};
            let products = match (self.0, lines.x.layout.rows) {
                (Kind::Avx2, 1) => avx2::products::<1>,
                (Kind::Avx2, 2) => avx2::products::<2>,
                (Kind::Avx2, _) => avx2::products::<MOST>,
                (Kind::Vnni, 1) => vnni::products::<1>,
                (Kind::Vnni, 2) => vnni::products::<2>,
                (Kind::Vnni, _) => vnni::products::<MOST>,
            };
            // SAFETY: a kind exists only on machines that have its instructions.
            unsafe { products(lines, totals) };
        }
    }
}

/// Four rows of weights, and what they are multiplied with.
pub(crate) struct FourRows<'a> {
    pub(crate) packing: &'a Packing<'a>,
    pub(crate) codes: [&'a [u8]; ROWS],
    /// How far ahead memory is prefetched, in bytes from the first row on.
    pub(crate) distance: usize,
    pub(crate) scales: Factors<'a>,
    pub(crate) biases: Factors<'a>,
    pub(crate) x: &'a Activations<'a>,
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
