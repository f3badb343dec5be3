//! Affine codes, as MLX packs them: a weight is `scale * code + bias`, with one scale and one bias for each group.
//!
//! Codes of a row are one stream of bits, lowest first, so that eight codes of any width fill whole bytes. The encoder looks
//! for the grid of least squared error: it tries the grid from lowest to highest, narrower ones, and those that hold zero
//! exactly, then fits the best of them to its own codes twice. Every grid is rounded to the type of the scales before codes
//! are chosen, so that the error it is judged by is the one that will be stored.

mod grid;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::DType;
use grid::{Grid, LANES};
use half::{bf16, f16};

/// Codes that are packed at once: they fill whole bytes at any width.
const RUN: usize = 8;
/// Weights of the largest groups.
const MAX_GROUP: usize = 128;

/// Width of codes and size of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    bits: u8,
    group: usize,
}

/// The type that scales and biases are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl ScaleType {
    /// Every type.
    pub const ALL: &[Self] = &[Self::F32, Self::F16, Self::Bf16];

    /// The type for scales of this element type, if it is one.
    pub fn new(dtype: DType) -> Option<Self> {
        Self::ALL.iter().copied().find(|scale| scale.dtype() == dtype)
    }

    /// Its element type.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
        }
    }

    /// The nearest number of this type.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

/// Some group cannot be stored: it holds a NaN or an infinity, or numbers too large for the type of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrepresentable {
    /// The first such group, counted from the start of the values.
    pub group: usize,
}

impl fmt::Display for Unrepresentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} has weights that are not finite, or too large for the type of its scale", self.group)
    }
}

impl std::error::Error for Unrepresentable {}

impl Affine {
    /// Widths that codes can have.
    pub const BITS: &[u8] = &[2, 3, 4, 5, 6, 8];
    /// Weights that groups can have.
    pub const GROUPS: &[usize] = &[32, 64, 128];

    pub(super) const BLOCKS_OF_4: Self = Self { bits: 4, group: 32 };
    pub(super) const BLOCKS_OF_5: Self = Self { bits: 5, group: 32 };
    pub(super) const BLOCKS_OF_8: Self = Self { bits: 8, group: 32 };

    /// The format with codes of `bits` bits and groups of `group` weights, if MLX has it.
    pub fn new(bits: u8, group: usize) -> Option<Self> {
        (Self::BITS.contains(&bits) && Self::GROUPS.contains(&group)).then_some(Self { bits, group })
    }

    /// Bits of a code.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Weights of a group.
    pub fn group(self) -> usize {
        self.group
    }

    /// Returns `true` if a row of `columns` weights is a whole number of groups.
    pub fn divides(self, columns: usize) -> bool {
        columns.is_multiple_of(self.group())
    }

    /// The number of groups in a row of `columns` weights.
    pub fn groups(self, columns: usize) -> usize {
        columns / self.group()
    }

    /// The number of bytes of the codes of a row of `columns` weights.
    pub fn code_bytes(self, columns: usize) -> usize {
        self.groups(columns) * self.group_bytes()
    }

    fn group_bytes(self) -> usize {
        self.group() / RUN * usize::from(self.bits)
    }

    /// The highest code.
    fn top(self) -> u8 {
        u8::MAX >> (8 - self.bits)
    }

    /// Encodes whole groups, of one row or of many; what does not make a whole group in any of the slices is left alone.
    /// Scales and biases come out as numbers of the type `float`.
    ///
    /// A group that cannot be represented gets NaN for scale and bias, so that it decodes to NaN; all others are encoded
    /// all the same.
    pub fn encode(
        self,
        values: &[f32],
        float: ScaleType,
        codes: &mut [u8],
        scales: &mut [f32],
        biases: &mut [f32],
    ) -> Result<(), Unrepresentable> {
        let mut first_bad = None;
        let values = values.chunks(LANES * self.group());
        let codes = codes.chunks_mut(LANES * self.group_bytes());
        let scales = scales.chunks_mut(LANES).zip(biases.chunks_mut(LANES));
        for (at, ((values, codes), (scales, biases))) in values.zip(codes).zip(scales).enumerate() {
            let bad = self.encode_some(values, float, codes, scales, biases);
            first_bad = first_bad.or(bad.map(|lane| LANES * at + lane));
        }
        first_bad.map_or(Ok(()), |group| Err(Unrepresentable { group }))
    }

    /// Encodes up to [`LANES`] groups, and returns the first that cannot be represented.
    fn encode_some(
        self,
        values: &[f32],
        float: ScaleType,
        codes: &mut [u8],
        scales: &mut [f32],
        biases: &mut [f32],
    ) -> Option<usize> {
        let groups = values.chunks_exact(self.group());
        let grids = grid::fit(groups.clone(), self, float);
        let codes = codes.chunks_exact_mut(self.group_bytes());
        let mut first_bad = None;
        for (lane, ((values, codes), (scale, bias))) in groups.zip(codes).zip(scales.iter_mut().zip(biases)).enumerate()
        {
            let grid = grids.get(lane).copied().flatten();
            if grid.is_none() {
                first_bad = first_bad.or(Some(lane));
            }
            let grid = grid.unwrap_or(Grid::NONE);
            (*scale, *bias) = (grid.scale, grid.bias);
            self.emit(values, &grid, codes);
        }
        first_bad
    }

    fn emit(self, values: &[f32], grid: &Grid, codes: &mut [u8]) {
        let runs = values.as_chunks::<RUN>().0.iter().map(|run| run.map(|value| grid.code(value)));
        match self.bits {
            4 => runs.zip(codes.as_chunks_mut().0).for_each(|(run, to)| *to = pack_nibbles(run)),
            8 => runs.zip(codes.as_chunks_mut().0).for_each(|(run, to)| *to = run),
            bits => runs.zip(codes.chunks_exact_mut(bits.into())).for_each(|(run, to)| pack(run, bits, to)),
        }
    }

    /// Packs codes that are there already; those that are too wide lose their upper bits.
    pub(super) fn pack(self, codes: &[u8], to: &mut [u8]) {
        let runs = codes.as_chunks::<RUN>().0.iter();
        runs.zip(to.chunks_exact_mut(self.bits.into())).for_each(|(run, to)| pack(*run, self.bits, to));
    }

    /// Decodes whole groups; what does not make a whole group in any of the slices is left alone.
    pub fn decode(self, codes: &[u8], scales: &[f32], biases: &[f32], values: &mut [f32]) {
        let groups = values.chunks_exact_mut(self.group()).zip(codes.chunks_exact(self.group_bytes()));
        for ((values, codes), (scale, bias)) in groups.zip(scales.iter().zip(biases)) {
            let codes = codes.chunks_exact(self.bits.into()).flat_map(|run| unpack(run, self.bits));
            for (value, code) in values.iter_mut().zip(codes) {
                *value = scale * f32::from(code) + bias;
            }
        }
    }
}

fn pack(codes: [u8; RUN], bits: u8, to: &mut [u8]) {
    let mask = u8::MAX >> (8 - bits);
    let packed = codes.iter().rev().fold(0_u64, |packed, code| packed << bits | u64::from(code & mask));
    to.iter_mut().zip(packed.to_le_bytes()).for_each(|(to, byte)| *to = byte);
}

/// Halves the distance between neighbours three times.
fn pack_nibbles(codes: [u8; RUN]) -> [u8; RUN / 2] {
    let bytes = u64::from_le_bytes(codes);
    let pairs = (bytes | bytes >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    let [a, b, c, d, ..] = (quads | quads >> 16).to_le_bytes();
    [a, b, c, d]
}

fn unpack(run: &[u8], bits: u8) -> impl Iterator<Item = u8> + use<> {
    let packed = run.iter().rev().fold(0_u64, |packed, byte| packed << 8 | u64::from(*byte));
    let mask = u8::MAX >> (8 - bits);
    (0..8).map(move |at| {
        let [low, ..] = (packed >> (at * bits)).to_le_bytes();
        low & mask
    })
}
