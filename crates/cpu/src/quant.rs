//! Quantized weights, read in place: decoded, or multiplied without being decoded.

use crate::finish::Finish;
use crate::gemm::{Left, PackedColumns, Product, Right};
use crate::pool::Workers;
use crate::simd::numeric::convert::{from_bf16, from_f16, widen};
use crate::simd::numeric::element::Float;
use crate::simd::numeric::small_float::{from_e2m1, from_e4m3, from_e8m0};
use crate::simd::quant::codes;
use crate::simd::quant::decode::{self, GGUF_BLOCK};
use crate::simd::{Isa, prefetch};
use half::{bf16, f16};
use integer::IntegerProduct;
use ptero_plan::prim::{QuantFormat, QuantMode};
use ptero_tensor::GgufType;
use std::ops::Range;

/// Groups whose scales are converted at once.
const GROUPS: usize = 16;

/// Rows of codes, scales or biases at a fixed distance.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a, T> {
    elements: &'a [T],
    stride: usize,
}

impl<'a, T> QuantRows<'a, T> {
    /// Rows that start `stride` elements apart.
    pub fn new(elements: &'a [T], stride: usize) -> Self {
        Self { elements, stride }
    }

    /// The first `length` elements of a row.
    pub(crate) fn row(&self, row: usize, length: usize) -> &'a [T] {
        self.part(row, 0, length)
    }

    /// `length` elements of a row, starting with element `first`.
    pub(crate) fn part(&self, row: usize, first: usize, length: usize) -> &'a [T] {
        let start = row * self.stride + first;
        self.elements.get(start..start + length).unwrap_or_default()
    }

    /// All elements of rows of that length, if these follow each other without gaps.
    pub(crate) fn run(&self, rows: usize, length: usize) -> Option<&'a [T]> {
        if self.stride == length || rows == 1 { self.elements.get(..rows * length) } else { None }
    }

    /// Returns `true` if there are that many rows of that length.
    pub(crate) fn holds(&self, rows: usize, length: usize) -> bool {
        rows == 0 || self.elements.len() >= (rows - 1) * self.stride + length
    }
}

/// Scales or biases.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// Single precision.
    F32(QuantRows<'a, f32>),
    /// Half precision.
    F16(QuantRows<'a, f16>),
    /// Bfloats.
    Bf16(QuantRows<'a, bf16>),
    /// Powers of two: `2^(code - 127)`.
    E8m0(QuantRows<'a, u8>),
    /// Floats of eight bits.
    E4m3(QuantRows<'a, u8>),
}

impl<'a> Scales<'a> {
    /// The bits of 16-bit scales, and `true` if they are bfloats.
    pub(crate) fn short(&self) -> Option<(QuantRows<'a, u16>, bool)> {
        match self {
            Scales::F16(rows) => Some((QuantRows::new(bytemuck::cast_slice(rows.elements), rows.stride), false)),
            Scales::Bf16(rows) => Some((QuantRows::new(bytemuck::cast_slice(rows.elements), rows.stride), true)),
            Scales::F32(_) | Scales::E8m0(_) | Scales::E4m3(_) => None,
        }
    }

    fn holds(&self, rows: usize, length: usize) -> bool {
        match self {
            Scales::F32(scales) => scales.holds(rows, length),
            Scales::F16(scales) => scales.holds(rows, length),
            Scales::Bf16(scales) => scales.holds(rows, length),
            Scales::E8m0(scales) | Scales::E4m3(scales) => scales.holds(rows, length),
        }
    }

    /// Reads scales of a row as floats, starting with group `first`, with the instructions of the machine.
    pub(crate) fn widen_all(&self, isa: Isa, row: usize, first: usize, to: &mut [f32]) {
        match self {
            Scales::F32(scales) => to.copy_from_slice(scales.part(row, first, to.len())),
            Scales::F16(scales) => widen(isa, scales.part(row, first, to.len()), to),
            Scales::Bf16(scales) => widen(isa, scales.part(row, first, to.len()), to),
            Scales::E8m0(scales) => codes::widen_e8m0(isa, scales.part(row, first, to.len()), to),
            Scales::E4m3(scales) => codes::widen_e4m3(isa, scales.part(row, first, to.len()), to),
        }
    }

    /// Same as [`Scales::widen_all`], in plain code, which is faster for a few scales.
    #[inline]
    pub(crate) fn widen(&self, row: usize, first: usize, to: &mut [f32]) {
        fn from<T: Copy>(rows: &QuantRows<'_, T>, row: usize, first: usize, to: &mut [f32], widen: impl Fn(T) -> f32) {
            rows.part(row, first, to.len()).iter().zip(to).for_each(|(scale, to)| *to = widen(*scale));
        }
        match self {
            Scales::F32(scales) => from(scales, row, first, to, |scale| scale),
            Scales::F16(scales) => from(scales, row, first, to, from_f16),
            Scales::Bf16(scales) => from(scales, row, first, to, from_bf16),
            Scales::E8m0(scales) => from(scales, row, first, to, from_e8m0),
            Scales::E4m3(scales) => from(scales, row, first, to, |code| from_e4m3(code.into())),
        }
    }
}

/// How a row is packed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packing<'a> {
    /// `scale * code + bias`.
    Affine { bits: u8, group: usize, scales: Scales<'a>, biases: Option<Scales<'a>> },
    /// `scale * e2m1(code)`.
    E2m1 { group: usize, scales: Scales<'a> },
    /// `scale * e4m3(code)`.
    E4m3 { group: usize, scales: Scales<'a> },
    /// Blocks that contain their scales.
    Gguf(GgufType),
}

/// One matrix of quantized weights.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) codes: QuantRows<'a, u8>,
    pub(crate) packing: Packing<'a>,
}

impl<'a> Weights<'a> {
    /// `codes` are the bytes of the rows (words in little-endian order). Returns `None` if codes, scales or biases are missing, too
    /// short or of the wrong type for the format.
    pub fn new(
        format: QuantFormat,
        [rows, columns]: [usize; 2],
        codes: QuantRows<'a, u8>,
        scales: Option<Scales<'a>>,
        biases: Option<Scales<'a>>,
    ) -> Option<Self> {
        let packing = match format {
            QuantFormat::Words { mode, bits, group } => {
                let (group, scales) = (usize::from(group), scales?);
                let groups = columns.checked_div(group)?;
                let has_all = columns.is_multiple_of(group)
                    && scales.holds(rows, groups)
                    && biases.is_none_or(|biases| biases.holds(rows, groups));
                let packing = match (mode, bits, &scales) {
                    (QuantMode::Affine, 1..=8, Scales::F32(_) | Scales::F16(_) | Scales::Bf16(_)) => {
                        Packing::Affine { bits, group, scales, biases }
                    }
                    (QuantMode::Mxfp4, 4, Scales::E8m0(_)) | (QuantMode::Nvfp4, 4, Scales::E4m3(_)) => {
                        Packing::E2m1 { group, scales }
                    }
                    (QuantMode::Mxfp8, 8, Scales::E8m0(_)) => Packing::E4m3 { group, scales },
                    _ => return None,
                };
                has_all.then_some(packing)?
            }
            QuantFormat::Gguf(kind) => columns.is_multiple_of(GGUF_BLOCK).then_some(Packing::Gguf(kind))?,
        };
        let weights = Self { rows, columns, codes, packing };
        codes.holds(rows, weights.row_bytes()).then_some(weights)
    }

    /// Bytes of the codes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        match self.packing {
            Packing::Affine { bits, .. } => (self.columns * usize::from(bits)).div_ceil(8),
            Packing::E2m1 { .. } => self.columns.div_ceil(2),
            Packing::E4m3 { .. } => self.columns,
            Packing::Gguf(kind) => self.columns / GGUF_BLOCK * kind.block_bytes(),
        }
    }

    /// Rows and columns.
    pub fn size(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Decodes `to.len()` weights of a row, starting with column `start`. Fastest for whole groups (of GGUF: blocks).
    pub fn decode(&self, isa: Isa, row: usize, start: usize, to: &mut [f32]) {
        let unit = self.unit();
        let before = (start.next_multiple_of(unit) - start).min(to.len());
        let (first, rest) = to.split_at_mut(before);
        let (whole, last) = rest.split_at_mut(rest.len() / unit * unit);
        let end = start + before + whole.len();
        self.decode_part(isa, row, start, first);
        self.decode_whole(isa, row, (start + before) / unit, whole);
        self.decode_part(isa, row, end, last);
    }

    /// The number of weights that share a scale or a block.
    fn unit(&self) -> usize {
        match self.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } | Packing::E4m3 { group, .. } => group,
            Packing::Gguf(_) => GGUF_BLOCK,
        }
    }

    /// Decodes whole groups or blocks, starting with number `first`.
    fn decode_whole(&self, isa: Isa, row: usize, first: usize, to: &mut [f32]) {
        let unit = self.unit();
        if !unit.is_multiple_of(8) {
            let groups = to.chunks_exact_mut(unit).enumerate();
            return groups.for_each(|(group, to)| self.decode_part(isa, row, (first + group) * unit, to));
        }
        let (mut scales, mut biases) = ([0.0; GROUPS], [0.0; GROUPS]);
        for (number, to) in to.chunks_mut(GROUPS * unit).enumerate() {
            let (first, count) = (first + number * GROUPS, to.len() / unit);
            let (scales, biases) = (scales.split_at_mut(count).0, biases.split_at_mut(count).0);
            let codes = self.codes_of(row, first, count);
            self.widen_factors(row, first, scales, biases);
            match self.packing {
                Packing::Affine { bits, .. } => decode::affine(isa, codes, bits, unit, scales, biases, to),
                Packing::E2m1 { .. } => decode::e2m1(isa, codes, unit, scales, to),
                Packing::E4m3 { .. } => decode::e4m3(isa, codes, unit, scales, to),
                Packing::Gguf(kind) => decode_blocks(isa, kind, codes, to),
            }
        }
    }

    /// Reads scales and biases of a row, starting with group `first`. Those that the format lacks are unchanged.
    fn widen_factors(&self, row: usize, first: usize, to_scales: &mut [f32], to_biases: &mut [f32]) {
        match &self.packing {
            Packing::Affine { scales, biases, .. } => {
                scales.widen(row, first, to_scales);
                if let Some(biases) = biases {
                    biases.widen(row, first, to_biases);
                }
            }
            Packing::E2m1 { scales, .. } | Packing::E4m3 { scales, .. } => scales.widen(row, first, to_scales),
            Packing::Gguf(_) => {}
        }
    }

    /// The bytes after the codes of some columns of a row, about as many as those have.
    fn codes_after(&self, row: usize, columns: Range<usize>) -> &'a [u8] {
        let bytes = |count: usize| self.row_bytes() * count / self.columns.max(1);
        self.codes.part(row, bytes(columns.end), bytes(columns.len()).min(self.row_bytes() - bytes(columns.end)))
    }

    /// The codes of whole groups or blocks.
    fn codes_of(&self, row: usize, first: usize, count: usize) -> &'a [u8] {
        let unit_bytes = match self.packing {
            Packing::Affine { bits, group, .. } => group * usize::from(bits) / 8,
            Packing::E2m1 { group, .. } => group / 2,
            Packing::E4m3 { group, .. } => group,
            Packing::Gguf(kind) => kind.block_bytes(),
        };
        self.codes.part(row, first * unit_bytes, count * unit_bytes)
    }

    /// Decodes weights of one group or block, one at a time.
    fn decode_part(&self, isa: Isa, row: usize, start: usize, to: &mut [f32]) {
        if to.is_empty() {
            return;
        }
        let (mut scale, mut bias) = ([0.0], [0.0]);
        self.widen_factors(row, start / self.unit(), &mut scale, &mut bias);
        let ([scale], [bias]) = (scale, bias);
        match self.packing {
            Packing::Affine { bits, .. } => {
                let codes = self.codes_from(row, start, bits);
                codes.zip(to).for_each(|(code, to)| *to = scale * f32::from(code) + bias);
            }
            Packing::E2m1 { .. } => {
                self.codes_from(row, start, 4).zip(to).for_each(|(code, to)| *to = scale * from_e2m1(code.into()));
            }
            Packing::E4m3 { .. } => {
                self.codes_from(row, start, 8).zip(to).for_each(|(code, to)| *to = scale * from_e4m3(code.into()));
            }
            Packing::Gguf(kind) => {
                let mut block = [0.0; GGUF_BLOCK];
                decode_blocks(isa, kind, self.codes_of(row, start / GGUF_BLOCK, 1), &mut block);
                block.iter().skip(start % GGUF_BLOCK).zip(to).for_each(|(weight, to)| *to = *weight);
            }
        }
    }

    /// The codes of a row, starting with column `start`.
    fn codes_from(&self, row: usize, start: usize, bits: u8) -> impl Iterator<Item = u8> {
        let width = usize::from(bits);
        let bytes = self.codes.row(row, self.row_bytes());
        (start..self.columns).map(move |column| {
            let byte = |at: usize| bytes.get(at).map_or(0, |byte| u16::from(*byte));
            let (at, shift) = (column * width / 8, column * width % 8);
            #[allow(clippy::cast_possible_truncation, reason = "codes have at most eight bits")]
            let code = ((byte(at) | byte(at + 1) << 8) >> shift & ((1 << bits) - 1)) as u8;
            code
        })
    }
}

fn decode_blocks(isa: Isa, kind: GgufType, bytes: &[u8], to: &mut [f32]) {
    let to = to.as_chunks_mut::<GGUF_BLOCK>().0.iter_mut();
    match kind {
        GgufType::Q4K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| decode::q4k(isa, block, to)),
        GgufType::Q5K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| decode::q5k(isa, block, to)),
        GgufType::Q6K => bytes.as_chunks().0.iter().zip(to).for_each(|(block, to)| decode::q6k(isa, block, to)),
    }
}

/// Weights as the right operand, decoded.
struct Decoded<'a> {
    weights: &'a Weights<'a>,
    /// Rows of the weights are columns of the product.
    transpose: bool,
}

impl Right for Decoded<'_> {
    fn pack(&self, isa: Isa, packed: &mut PackedColumns<'_>) {
        let weights = self.weights;
        if self.transpose {
            packed.by_columns(|k, row, to| {
                weights.decode(isa, row, k.start, to);
                prefetch(weights.codes_after(row, k));
            });
        } else {
            packed.by_rows(isa, |row, columns, to| weights.decode(isa, row, columns.start, to));
        }
    }
}

impl<L: Left, T: Float, F: Finish> Product<'_, L, T, F> {
    /// Computes the product with weights, or with their transpose.
    pub fn times_quantized(self, workers: &mut Workers<'_>, weights: &Weights<'_>, transpose: bool) {
        match IntegerProduct::of(self.isa, weights, self.left.is_single()).filter(|_| transpose) {
            Some(integers) => integers.product(workers, self.left, self.out, self.finish),
            None => self.times(workers, &Decoded { weights, transpose }),
        }
    }
}

mod integer;
#[cfg(test)]
mod tests;
