//! Rows times the transpose of quantized weights, in integers: `docs/ARITHMETIC.md`, "QuantMatMul". The bits do not depend on the
//! number of rows.
//!
//! ```text
//! one.rs      one row, and weights without gaps between rows
//! few.rs      few rows: bound by reading the weights, so codes are multiplied where they lie, as they are unpacked
//! several.rs  several rows, as when sessions decode together: codes of sixteen rows are unpacked in registers
//! many.rs     many rows: codes are unpacked into panels, for products of tiles in registers
//! tiles.rs    many rows, on machines with tile registers
//! ```
//!
//! A row in single precision is the sum of two rows of integers: the rounded row, and the rounding errors.

mod few;
mod many;
mod one;
mod several;
mod tiles;

use super::{GGUF_BLOCK, Packing, Weights};
use crate::finish::{Finish, Sums};
use crate::gemm::{Left, PASS_ROWS};
use crate::map::Registers;
use crate::pool::{OutRows, Stripe, Workers};
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::simd::quant::activation::{CELL, Order, Quantized, TableLayout, quantize, residual};
use crate::simd::quant::codes::{self, Code};
use crate::simd::quant::decode::{q6k_scales, scales_and_minima};
use crate::simd::quant::flat::FlatWeights;
use crate::simd::quant::integer::Integers;
use crate::simd::quant::sixteen::Sixteen;
use crate::simd::quant::tiles::Tiles;
use crate::simd::quant::unpack::Unpacker;
use ptero_tensor::GgufType;

/// A product with weights whose codes are integers.
pub(super) struct IntegerProduct<'a> {
    isa: Isa,
    weights: &'a Weights<'a>,
    /// Activations that share a step.
    group: usize,
    /// Rows of integers that make a row.
    parts: usize,
    /// The instructions for few rows, and how a table of activations is laid out for them, where there are any.
    fast: Option<(Integers, TableLayout)>,
    /// The unit for many rows, where there is one.
    tiles: Option<Tiles>,
    /// Unpacks codes for panels, where there are instructions for that.
    unpacker: Option<Unpacker<'a>>,
    /// Multiplies several rows, where there are instructions for that.
    sixteen: Option<Sixteen<'a>>,
}

impl<'a> IntegerProduct<'a> {
    /// Returns `None` if the codes are not integers, or for groups of an unusual size.
    pub(super) fn of(isa: Isa, weights: &'a Weights<'a>, is_single: bool) -> Option<Self> {
        let group = weights.integer_group()?;
        let fast = Integers::of(isa).and_then(|integers| Some((integers, integers.layout(weights, group)?)));
        // Of groups of 16, tiles would be mostly empty.
        let tiles = Tiles::of(isa).filter(|_| group > CELL / 4);
        Some(Self {
            isa,
            weights,
            group,
            parts: if is_single { 2 } else { 1 },
            fast,
            tiles,
            unpacker: Unpacker::of(isa, weights, group),
            sixteen: Sixteen::of(isa, weights, group),
        })
    }

    /// Writes the product, rounded once, to `out`.
    pub(super) fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let m = out.count();
        if m * self.parts == 1
            && let Some(flat) = FlatWeights::of(self.isa, self.weights, self.group)
        {
            return self.one(&flat, workers, left, out, finish);
        }
        if m * self.parts <= self.most_few() {
            return self.few(workers, left, out, finish);
        }
        if let Some(sixteen) = self.sixteen.filter(|_| m * self.parts <= self.most_several()) {
            return self.several(&sixteen, workers, left, out, finish);
        }
        for first in (0..m).step_by(PASS_ROWS) {
            let (rows, out) = (first..m.min(first + PASS_ROWS), out.part(first, PASS_ROWS));
            match self.tiles.filter(|_| m * self.parts > self.most_in_panels()) {
                Some(tiles) => self.in_tiles(tiles, workers, rows, left, out, finish),
                None => self.many(workers, rows, left, out, finish),
            }
        }
    }

    /// Up to this many rows of integers, codes are multiplied where they lie; with more, unpacking them into panels or tiles pays
    /// off.
    fn most_few(&self) -> usize {
        let order = self.fast.map(|(_, layout)| layout.order);
        match (order, self.unpacker.is_some()) {
            _ if self.sixteen.is_some() => 2,
            (Some(Order::Fours | Order::Twos), true) => 6,
            (None, _) | (Some(Order::Bytes { .. }), true) => 8,
            (Some(_), false) if self.tiles.is_some() => 12,
            (Some(Order::Bytes { vectors: 1 }), false) => 24,
            (Some(Order::Twos), false) => 48,
            (Some(Order::Bytes { .. } | Order::Fours), false) => 64,
        }
    }

    /// Up to this many rows of integers, unpacking codes in registers is faster than into panels or tiles.
    fn most_several(&self) -> usize {
        if self.tiles.is_some() { self.most_in_panels().min(MOST_SEVERAL) } else { MOST_SEVERAL }
    }

    /// Up to this many rows of integers, panels are faster than tiles, which take longer to fill; and the sums of small groups
    /// leave tiles often.
    fn most_in_panels(&self) -> usize {
        match self.unpacker {
            Some(_) if self.group < CELL => 96,
            Some(_) => 24,
            None => 0,
        }
    }

    /// Floats of a row as integers, steps, and sums.
    fn row_floats(&self) -> usize {
        let k = self.weights.columns;
        k / 2 + 2 * (k / self.group)
    }

    /// Quantizes row `number / parts` or, if `number` is that of its second part, its rounding errors.
    fn quantize(&self, left: &impl Left, number: usize, to: &mut [f32], lines: &mut [f32]) {
        let (k, group) = (self.weights.columns, self.group);
        let (x, rest) = lines.split_at_mut(k);
        left.row(self.isa, number / self.parts, 0..k, x);
        let Quantized { integers, steps, sums } = self.parts_of(to);
        quantize(self.isa, x, group, Quantized { integers: &mut *integers, steps: &mut *steps, sums: &mut *sums });
        if number % self.parts == 1 {
            let rest = rest.split_at_mut(k).0;
            residual(self.isa, x, group, integers, steps, rest);
            quantize(self.isa, rest, group, Quantized { integers, steps, sums });
        }
    }

    /// Splits a row into integers, steps and sums.
    fn parts_of<'r>(&self, row: &'r mut [f32]) -> Quantized<'r> {
        let (integers, rest) = row.split_at_mut(self.weights.columns / 2);
        let (steps, sums) = rest.split_at_mut(self.weights.columns / self.group);
        Quantized { integers: bytemuck::cast_slice_mut(integers), steps, sums: bytemuck::cast_slice_mut(sums) }
    }

    /// Adds the parts of rows, and stores the rows of a stripe. Rows of sums lie `stride` apart.
    fn store<T: Float>(
        &self,
        first_row: usize,
        (sums, stride): (&mut [f32], usize),
        stripe: &mut Stripe<'_, T>,
        registers: &mut Registers,
        finish: &impl Finish,
    ) {
        if self.parts == 2 {
            for pair in sums.chunks_exact_mut(2 * stride.max(1)) {
                let (sums, rests) = pair.split_at_mut(stride);
                sums.iter_mut().zip(rests).for_each(|(sum, rest)| *sum += *rest);
            }
        }
        let sums = Sums { floats: sums, stride: self.parts * stride, first_row };
        finish.store(self.isa, sums, stripe, registers);
    }
}

impl Weights<'_> {
    /// Columns whose activations share a step, if codes are integers.
    fn integer_group(&self) -> Option<usize> {
        match self.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } => {
                matches!(group, 16 | 32 | 64 | 128).then_some(group.min(CELL))
            }
            Packing::E4m3 { .. } => None,
            Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => Some(32),
            Packing::Gguf(GgufType::Q6K) => Some(16),
        }
    }

    /// Returns `true` if products have biases, too.
    fn has_biases(&self) -> bool {
        match self.packing {
            Packing::Affine { biases, .. } => biases.is_some(),
            Packing::Gguf(kind) => kind != GgufType::Q6K,
            Packing::E2m1 { .. } | Packing::E4m3 { .. } => false,
        }
    }

    /// Returns `true` if codes may be negative.
    fn has_signed_codes(&self) -> bool {
        matches!(self.packing, Packing::E2m1 { .. } | Packing::Gguf(GgufType::Q6K))
    }

    /// Writes scales and biases of a row, from some group of activations on; where there are no biases, zeros.
    pub(crate) fn factors(&self, isa: Isa, row: usize, first: usize, scales: &mut [f32], biases: &mut [f32]) {
        match &self.packing {
            Packing::Affine { group, scales: stored, biases: stored_biases, .. } => {
                spread(isa, stored, *group, (row, first), scales);
                match stored_biases {
                    Some(stored) => spread(isa, stored, *group, (row, first), biases),
                    None => biases.fill(0.0),
                }
            }
            Packing::E2m1 { group, scales: stored } => {
                spread(isa, stored, *group, (row, first), scales);
                scales.iter_mut().for_each(|scale| *scale *= 0.5);
                biases.fill(0.0);
            }
            Packing::Gguf(kind) => self.block_factors(*kind, row, first, scales, biases),
            Packing::E4m3 { .. } => {}
        }
    }

    /// Scales and biases of blocks of GGUF; `first` is the first group of a block.
    fn block_factors(&self, kind: GgufType, row: usize, first: usize, scales: &mut [f32], biases: &mut [f32]) {
        biases.fill(0.0);
        let per_block = if kind == GgufType::Q6K { 16 } else { 8 };
        let blocks = self.codes_of(row, first / per_block, scales.len() / per_block);
        let groups = scales.chunks_exact_mut(per_block).zip(biases.chunks_exact_mut(per_block));
        for (block, (scales, biases)) in blocks.chunks_exact(kind.block_bytes()).zip(groups) {
            if let Some(block) = block.first_chunk().filter(|_| kind == GgufType::Q6K) {
                scales.copy_from_slice(&q6k_scales(block));
            } else {
                let (of_block, minima) = scales_and_minima(block);
                scales.copy_from_slice(&of_block);
                biases.iter_mut().zip(minima).for_each(|(bias, minimum)| *bias = -minimum);
            }
        }
    }

    /// Writes the codes of a row as integers, from a column on that starts a group or block.
    fn integer_codes<T: Code>(&self, isa: Isa, row: usize, start: usize, to: &mut [T]) {
        let unit = self.unit();
        let codes = self.codes_of(row, start / unit, to.len().div_ceil(unit));
        match self.packing {
            Packing::Affine { bits, .. } => codes::affine(isa, codes, bits, to),
            Packing::E2m1 { .. } => codes::e2m1(isa, codes, to),
            Packing::Gguf(kind) => block_codes(isa, kind, codes, to),
            Packing::E4m3 { .. } => {}
        }
    }
}

/// The most rows of integers for which codes are unpacked in registers; panels take fewer loads for each product.
const MOST_SEVERAL: usize = 128;
/// The most parts that the rows of a product are cut into.
const MOST_PARTS: usize = 16;

/// The size of a task, in panels of rows and blocks of columns, such that all threads get about equal shares. A task has at most
/// `most` blocks, and takes as long as `cost` returns.
fn shares(
    [panels, blocks]: [usize; 2],
    most: usize,
    threads: usize,
    cost: impl Fn(usize, usize) -> usize,
) -> [usize; 2] {
    let mut best = (usize::MAX, [1, 1]);
    for width in 1..=most.min(blocks) {
        for parts in 1..=MOST_PARTS.min(panels) {
            let height = panels.div_ceil(parts);
            let rounds = (panels.div_ceil(height) * blocks.div_ceil(width)).div_ceil(threads.max(1));
            best = best.min((rounds * cost(height, width), [height, width]));
        }
    }
    best.1
}

fn block_codes<T: Code>(isa: Isa, kind: GgufType, bytes: &[u8], to: &mut [T]) {
    let to = to.as_chunks_mut::<GGUF_BLOCK>().0.iter_mut();
    match kind {
        GgufType::Q4K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| codes::q4k(isa, block, to)),
        GgufType::Q5K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| codes::q5k(isa, block, to)),
        GgufType::Q6K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| codes::q6k(isa, block, to)),
    }
}

/// Writes the scales of a row for groups of activations; a group of weights may be two of these.
fn spread(isa: Isa, stored: &super::Scales<'_>, group: usize, (row, first): (usize, usize), to: &mut [f32]) {
    if group <= CELL {
        return stored.widen_all(isa, row, first, to);
    }
    // The first half of what is written is read before it is overwritten, from its end on.
    let count = to.len().div_ceil(2);
    stored.widen_all(isa, row, first / 2, to.split_at_mut(count).0);
    #[allow(clippy::indexing_slicing, reason = "the number is below the length, and so is half of it")]
    for at in (0..to.len()).rev() {
        to[at] = to[at / 2];
    }
}
