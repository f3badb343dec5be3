//! Few rows of activations times quantized weights in whole numbers, where the machine has instructions for that.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::activation::{CELL, CHUNK, Layout, Order, ROWS, Sums};
use crate::quant::{Packing, QuantRows, Scales, Weights};
use crate::simd::Isa;
use crate::simd::matmul::transpose::transpose;
use ptero_tensor::GgufType;
use std::ops::Range;

/// Numbers of four bits are doubled and moved up by this, to be whole and not below zero.
const E2M1_OFFSET: i32 = 12;
/// The code of zero in blocks of six bits.
const Q6K_OFFSET: i32 = 32;
/// At least this many bytes are fetched ahead of those in use.
const AHEAD: usize = 2048;
/// The most rows of activations at once.
pub(crate) const MOST: usize = 4;

/// The instructions; having one is the proof that the machine has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers(Kind, Isa);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Avx2,
    Vnni,
}

/// QuantRows of activations as `activation::arrange` writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'a> {
    pub(crate) layout: Layout,
    pub(crate) floats: &'a [f32],
}

/// Scales or biases of [`ROWS`] rows of weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factors<'a> {
    /// `[group][row]`, with zeros up to a whole chunk.
    Turned(&'a [f32]),
    /// Where they lie: bfloats, or halves.
    Short(Short<'a>),
}

/// Short factors of [`ROWS`] rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short<'a> {
    /// The bits of each row.
    pub(crate) rows: [&'a [u16]; ROWS],
    /// At most as many as any row has.
    count: usize,
    /// Whether they are bfloats.
    pub(crate) is_bfloat: bool,
    /// Whether two cells share one.
    pub(crate) is_shared: bool,
}

impl<'a> Short<'a> {
    /// Those of all rows, if they can be read where they lie: scales, and biases, which are scales again where there are none.
    fn of(weights: &Weights<'a>) -> Option<[(QuantRows<'a, u16>, Self); 2]> {
        let Packing::Affine { group, scales, biases, .. } = &weights.packing else { return None };
        let (count, is_shared) = (weights.columns / group, *group > CELL);
        let of = |factors: &Scales<'a>| {
            let (rows, is_bfloat) = factors.short()?;
            Some((rows, Self { rows: [&[]; ROWS], count, is_bfloat, is_shared }))
        };
        Some([of(scales)?, of(biases.as_ref().unwrap_or(scales))?])
    }

    /// Those of some rows.
    #[inline(always)]
    fn with(&self, all: &QuantRows<'a, u16>, numbers: [usize; ROWS]) -> Self {
        let mut short = *self;
        for (row, number) in short.rows.iter_mut().zip(numbers) {
            *row = all.row(number, self.count);
            short.count = short.count.min(row.len());
        }
        short
    }

    /// How many there are in a row from one on.
    #[inline(always)]
    pub(crate) fn after(&self, start: usize) -> usize {
        self.count.saturating_sub(start)
    }

    /// `N` factors of each row from one on, if there are as many; else what there is, and zeros.
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
    /// Floats of memory that [`Factors::turned`] needs.
    pub(crate) fn floats(columns: usize, group: usize) -> usize {
        2 * ROWS * (columns / group + columns.next_multiple_of(CHUNK) / group)
    }

    /// Those of rows that cannot be read where they lie: scales, and biases.
    fn turned(isa: Isa, weights: &Weights<'_>, group: usize, rows: [usize; ROWS], memory: &'a mut [f32]) -> [Self; 2] {
        let (count, padded) = (weights.columns / group, weights.columns.next_multiple_of(CHUNK) / group);
        let (lines, turned) = memory.split_at_mut(2 * ROWS * count);
        let (scale_lines, bias_lines) = lines.split_at_mut(ROWS * count);
        let lines = scale_lines.chunks_exact_mut(count).zip(bias_lines.chunks_exact_mut(count));
        for (row, (scales, biases)) in rows.into_iter().zip(lines) {
            weights.factors(isa, row, 0, scales, biases);
        }
        let (scales, rest) = turned.split_at_mut(ROWS * padded);
        let biases = rest.split_at_mut(ROWS * padded).0;
        for (lines, to) in [(&*scale_lines, &mut *scales), (&*bias_lines, &mut *biases)] {
            transpose(isa, lines, count, to, ROWS);
            to.split_at_mut(ROWS * count).1.fill(0.0);
        }
        [Self::Turned(scales), Self::Turned(biases)]
    }
}

impl Integers {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa.level() {
            crate::simd::Level::Baseline => None,
            // All machines with VNNI but the first permute bytes, too.
            crate::simd::Level::Avx512 if is_x86_feature_detected!("avx512vbmi") => Some(Self(Kind::Vnni, isa)),
            crate::simd::Level::Avx2 | crate::simd::Level::Avx512 => Some(Self(Kind::Avx2, isa)),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of(_: Isa) -> Option<Self> {
        None
    }

    /// How a row of activations must lie for these weights, whose groups are `group`; nothing if these are not taken.
    pub(crate) fn layout(self, weights: &Weights<'_>, group: usize) -> Option<Layout> {
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
        Some(Layout { order, sums, group, rows: 1 })
    }

    /// How many rows of activations to take at once of those that are left.
    pub(crate) fn at_once(rows: usize) -> usize {
        if rows == MOST - 1 { MOST - 2 } else { rows.min(MOST) }
    }

    /// Writes the products of some rows of the weights with each row of activations, of which there are 1, 2 or 4; those of the
    /// next row of activations `stride` further on. `memory` is for [`Factors`].
    pub(crate) fn products(
        self,
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        memory: &mut [f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let Some(last) = rows.clone().next_back() else { return };
        // Memory is fetched in its own order, whatever order four rows are read in: a whole number of such fours ahead.
        let four = (ROWS * weights.row_bytes()).max(1);
        let distance = AHEAD.next_multiple_of(four);
        let (short, row_bytes) = (Short::of(weights), weights.row_bytes());
        for first in rows.clone().step_by(ROWS) {
            // After the last row it is the last again.
            let numbers = [first, (first + 1).min(last), (first + 2).min(last), (first + 3).min(last)];
            let [scales, biases] = match &short {
                Some([(all_scales, scales), (all_biases, biases)]) => {
                    [scales.with(all_scales, numbers), biases.with(all_biases, numbers)].map(Factors::Short)
                }
                None => Factors::turned(self.1, weights, x.layout.group, numbers, memory),
            };
            let mut lines = [[].as_slice(); ROWS];
            lines.iter_mut().zip(numbers).for_each(|(line, row)| *line = weights.codes.row(row, row_bytes));
            let mut totals = [[0.0; ROWS]; MOST];
            self.four(&Lines { packing: &weights.packing, codes: lines, distance, scales, biases, x }, &mut totals);
            for (m, totals) in totals.iter().enumerate().take(x.layout.rows) {
                let start = m * stride + first - rows.start;
                let end = (start + ROWS).min(m * stride + rows.len());
                sums.get_mut(start..end)
                    .unwrap_or_default()
                    .iter_mut()
                    .zip(totals)
                    .for_each(|(to, total)| *to = *total);
            }
        }
    }

    fn four(self, lines: &Lines<'_>, totals: &mut [[f32; ROWS]; MOST]) {
        #[cfg(target_arch = "x86_64")]
        match self.0 {
            // SAFETY: this kind exists only on machines that have the instructions.
            Kind::Avx2 => unsafe {
                use super::avx2::products;
                match lines.x.layout.rows {
                    1 => products::<1>(lines, totals),
                    2 => products::<2>(lines, totals),
                    _ => products::<MOST>(lines, totals),
                }
            },
            // SAFETY: this kind exists only on machines that have the instructions.
            Kind::Vnni => unsafe {
                use super::vnni::products;
                match lines.x.layout.rows {
                    1 => products::<1>(lines, totals),
                    2 => products::<2>(lines, totals),
                    _ => products::<MOST>(lines, totals),
                }
            },
        }
    }
}

/// Four rows of weights, and what they are multiplied with.
pub(crate) struct Lines<'a> {
    pub(crate) packing: &'a Packing<'a>,
    pub(crate) codes: [&'a [u8]; ROWS],
    /// How far ahead memory is fetched, in bytes from the first row on.
    pub(crate) distance: usize,
    pub(crate) scales: Factors<'a>,
    pub(crate) biases: Factors<'a>,
    pub(crate) x: &'a Activations<'a>,
}
