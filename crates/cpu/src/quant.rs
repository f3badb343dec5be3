//! Quantized weights, read where they lie: decoded, or multiplied without being decoded.

use crate::finish::Finish;
use crate::gemm::{self, Left, PackedColumns, Right, Size};
use crate::pool::Workers;
use crate::simd::matmul::transpose::AT_ONCE;
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

/// Groups whose scales are widened at once.
const GROUPS: usize = 16;

/// Rows at a fixed distance.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    elements: &'a [T],
    stride: usize,
}

impl<'a, T> Rows<'a, T> {
    /// From the first element of the first row on.
    pub fn new(elements: &'a [T], stride: usize) -> Self {
        Self { elements, stride }
    }

    /// So many elements of a row.
    pub(crate) fn row(&self, row: usize, length: usize) -> &'a [T] {
        let start = row * self.stride;
        self.elements.get(start..start + length).unwrap_or_default()
    }

    /// So many elements of a row, from some element on.
    pub(crate) fn part(&self, row: usize, first: usize, length: usize) -> &'a [T] {
        let start = row * self.stride + first;
        self.elements.get(start..start + length).unwrap_or_default()
    }

    fn holds(&self, rows: usize, length: usize) -> bool {
        rows == 0 || self.elements.len() >= (rows - 1) * self.stride + length
    }
}

/// Scales or biases.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// As floats.
    F32(Rows<'a, f32>),
    /// In half precision.
    F16(Rows<'a, f16>),
    /// As bfloats.
    Bf16(Rows<'a, bf16>),
    /// Only powers of two: `2^(code - 127)`.
    E8m0(Rows<'a, u8>),
    /// Floats of eight bits.
    E4m3(Rows<'a, u8>),
}

impl<'a> Scales<'a> {
    /// The bits of those that have 16, and whether they are bfloats.
    pub(crate) fn short(&self) -> Option<(Rows<'a, u16>, bool)> {
        match self {
            Scales::F16(Rows { elements, stride }) => Some((Rows::new(bytemuck::cast_slice(elements), *stride), false)),
            Scales::Bf16(Rows { elements, stride }) => Some((Rows::new(bytemuck::cast_slice(elements), *stride), true)),
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

    /// Widens scales of a row, from some group on, with the instructions of the machine.
    pub(crate) fn widen_all(&self, isa: Isa, row: usize, first: usize, to: &mut [f32]) {
        match self {
            Scales::F32(scales) => to.copy_from_slice(scales.part(row, first, to.len())),
            Scales::F16(scales) => widen(isa, scales.part(row, first, to.len()), to),
            Scales::Bf16(scales) => widen(isa, scales.part(row, first, to.len()), to),
            Scales::E8m0(scales) => codes::widen_e8m0(isa, scales.part(row, first, to.len()), to),
            Scales::E4m3(scales) => codes::widen_e4m3(isa, scales.part(row, first, to.len()), to),
        }
    }

    /// Widens scales of a row, from some group on.
    #[inline]
    pub(crate) fn widen(&self, row: usize, first: usize, to: &mut [f32]) {
        fn from<T: Copy>(rows: &Rows<'_, T>, row: usize, first: usize, to: &mut [f32], widen: impl Fn(T) -> f32) {
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
    /// Blocks that hold their scales.
    Gguf(GgufType),
}

/// One matrix of quantized weights.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) codes: Rows<'a, u8>,
    pub(crate) packing: Packing<'a>,
}

impl<'a> Weights<'a> {
    /// `codes` are the bytes of the rows (of words: in little-endian order), `scales` and `biases` as the format has them.
    /// Nothing if a part is missing, of the wrong kind or too short.
    pub fn new(
        format: QuantFormat,
        [rows, columns]: [usize; 2],
        codes: Rows<'a, u8>,
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

    /// Writes as many weights of a row as `to` holds, from column `start` on. Fast where whole groups (of GGUF: blocks) are
    /// wanted.
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

    /// Weights that share a scale, or a block.
    fn unit(&self) -> usize {
        match self.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } | Packing::E4m3 { group, .. } => group,
            Packing::Gguf(_) => GGUF_BLOCK,
        }
    }

    /// Whole groups or blocks.
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
            match &self.packing {
                Packing::Affine { bits, scales: stored, biases: stored_biases, .. } => {
                    stored.widen(row, first, scales);
                    if let Some(stored) = stored_biases {
                        stored.widen(row, first, biases);
                    }
                    decode::affine(isa, self.codes_of(row, first, count), *bits, unit, scales, biases, to);
                }
                Packing::E2m1 { scales: stored, .. } => {
                    stored.widen(row, first, scales);
                    decode::e2m1(isa, self.codes_of(row, first, count), unit, scales, to);
                }
                Packing::E4m3 { scales: stored, .. } => {
                    stored.widen(row, first, scales);
                    decode::e4m3(isa, self.codes_of(row, first, count), unit, scales, to);
                }
                Packing::Gguf(kind) => decode_blocks(isa, *kind, self.codes_of(row, first, count), to),
            }
        }
    }

    /// About as many bytes of a row as hold the codes of some columns, after those.
    fn codes_after(&self, row: usize, columns: Range<usize>) -> &'a [u8] {
        let bytes = |count: usize| self.row_bytes() * count / self.columns.max(1);
        self.codes.part(row, bytes(columns.end), bytes(columns.len()).min(self.row_bytes() - bytes(columns.end)))
    }

    /// The bytes of whole groups or blocks.
    fn codes_of(&self, row: usize, first: usize, count: usize) -> &'a [u8] {
        let unit_bytes = match self.packing {
            Packing::Affine { bits, group, .. } => group * usize::from(bits) / 8,
            Packing::E2m1 { group, .. } => group / 2,
            Packing::E4m3 { group, .. } => group,
            Packing::Gguf(kind) => kind.block_bytes(),
        };
        self.codes.part(row, first * unit_bytes, count * unit_bytes)
    }

    /// Weights of one group or block, one at a time.
    fn decode_part(&self, isa: Isa, row: usize, start: usize, to: &mut [f32]) {
        if to.is_empty() {
            return;
        }
        let (mut scale, mut bias) = ([0.0], [0.0]);
        match &self.packing {
            Packing::Affine { bits, group, scales, biases } => {
                scales.widen(row, start / group, &mut scale);
                if let Some(biases) = biases {
                    biases.widen(row, start / group, &mut bias);
                }
                let ([scale], [bias]) = (scale, bias);
                let codes = self.codes_from(row, start, *bits);
                codes.zip(to).for_each(|(code, to)| *to = scale * f32::from(code) + bias);
            }
            Packing::E2m1 { group, scales } => {
                scales.widen(row, start / group, &mut scale);
                let [scale] = scale;
                self.codes_from(row, start, 4).zip(to).for_each(|(code, to)| *to = scale * from_e2m1(code.into()));
            }
            Packing::E4m3 { group, scales } => {
                scales.widen(row, start / group, &mut scale);
                let [scale] = scale;
                self.codes_from(row, start, 8).zip(to).for_each(|(code, to)| *to = scale * from_e4m3(code.into()));
            }
            Packing::Gguf(kind) => {
                let mut block = [0.0; GGUF_BLOCK];
                decode_blocks(isa, *kind, self.codes_of(row, start / GGUF_BLOCK, 1), &mut block);
                block.iter().skip(start % GGUF_BLOCK).zip(to).for_each(|(weight, to)| *to = *weight);
            }
        }
    }

    /// The codes of a row from some column on.
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

/// Weights as the right operand: their rows are columns of the product.
struct Transposed<'a>(&'a Weights<'a>);

impl Right for Transposed<'_> {
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, packed: &mut PackedColumns<'_>, temporary: &mut [f32]) {
        for first in n.clone().step_by(AT_ONCE) {
            let count = AT_ONCE.min(n.end - first);
            let columns = temporary.split_at_mut(count * k.len()).0;
            for (row, to) in (first..).zip(columns.chunks_exact_mut(k.len())) {
                self.0.decode(isa, row, k.start, to);
                prefetch(self.0.codes_after(row, k.clone()));
            }
            packed.columns(first - n.start, columns);
        }
    }
}

/// Weights as the right operand, as they are.
struct Upright<'a>(&'a Weights<'a>);

impl Right for Upright<'_> {
    fn pack(&self, isa: Isa, k: Range<usize>, n: Range<usize>, packed: &mut PackedColumns<'_>, temporary: &mut [f32]) {
        for first in k.clone().step_by(AT_ONCE) {
            let rows = temporary.split_at_mut(AT_ONCE.min(k.end - first) * n.len()).0;
            for (row, to) in (first..).zip(rows.chunks_exact_mut(n.len())) {
                self.0.decode(isa, row, n.start, to);
            }
            packed.rows(isa, first - k.start, rows, n.len());
        }
    }
}

/// Writes `m` rows times the weights, rounded once, in row-major order to `out`: times their transpose, or as they are.
pub fn product<T: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    m: usize,
    left: &impl Left,
    (weights, transpose): (&Weights<'_>, bool),
    out: &mut [T],
    finish: &impl Finish,
) {
    if transpose && let Some(product) = IntegerProduct::of(isa, weights, left.is_single()) {
        product.product(workers, m, left, out, finish);
    } else if transpose {
        let size = Size { m, k: weights.columns, n: weights.rows };
        gemm::product(workers, isa, size, left, &Transposed(weights), out, finish);
    } else {
        let size = Size { m, k: weights.rows, n: weights.columns };
        gemm::product(workers, isa, size, left, &Upright(weights), out, finish);
    }
}

mod integer;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
