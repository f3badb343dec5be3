//! How the elements of a tensor are stored.

use crate::{Fault, Result};
use ptero_tensor::{DType, GgufLegacyType, GgufType, decode_floats, element_count};

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One by one.
    Plain(DType),
    /// GGUF's blocks of 256.
    Gguf(GgufType),
    /// GGUF's older blocks of 32.
    GgufLegacy(GgufLegacyType),
}

impl Format {
    /// The short name used in everything ptero prints.
    pub fn name(self) -> &'static str {
        match self {
            Format::Plain(dtype) => dtype.name(),
            Format::Gguf(GgufType::Q4K) => "q4_k",
            Format::Gguf(GgufType::Q5K) => "q5_k",
            Format::Gguf(GgufType::Q6K) => "q6_k",
            Format::GgufLegacy(GgufLegacyType::Q4_0) => "q4_0",
            Format::GgufLegacy(GgufLegacyType::Q4_1) => "q4_1",
            Format::GgufLegacy(GgufLegacyType::Q5_0) => "q5_0",
            Format::GgufLegacy(GgufLegacyType::Q5_1) => "q5_1",
            Format::GgufLegacy(GgufLegacyType::Q8_0) => "q8_0",
        }
    }

    /// Elements of a block; 1 for plain formats.
    pub fn block_len(self) -> u64 {
        match self {
            Format::Plain(_) => 1,
            Format::Gguf(kind) => kind.block_len() as u64,
            Format::GgufLegacy(kind) => kind.block_len() as u64,
        }
    }

    /// Bytes of a block, or of an element.
    pub fn block_bytes(self) -> u64 {
        match self {
            Format::Plain(dtype) => dtype.bytes(),
            Format::Gguf(kind) => kind.block_bytes() as u64,
            Format::GgufLegacy(kind) => kind.block_bytes() as u64,
        }
    }

    /// The bytes of a tensor of this shape, whose rows must be whole blocks.
    pub(crate) fn byte_count(self, shape: &[u64]) -> Result<u64> {
        let (columns, block) = (shape.last().copied().unwrap_or(1), self.block_len());
        if columns.checked_rem(block) != Some(0) {
            return Err(Fault::PartBlock { columns, block }.into());
        }
        // The number of elements must fit as well as the number of bytes.
        let bytes = element_count(shape).and_then(|count| (count / block).checked_mul(self.block_bytes()));
        bytes.ok_or_else(|| Fault::CountOverflow(shape.to_vec()).into())
    }

    /// Returns `true` if [`crate::TensorEntry::read_rows`] reads it.
    pub fn is_float(self) -> bool {
        match self {
            Format::Plain(dtype) => dtype.is_float(),
            Format::Gguf(_) | Format::GgufLegacy(_) => true,
        }
    }

    /// Decodes whole elements or blocks.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        match self {
            Format::Gguf(kind) => kind.decode(bytes, out),
            Format::GgufLegacy(kind) => kind.decode(bytes, out),
            Format::Plain(dtype) if decode_floats(dtype, bytes, out) => {}
            Format::Plain(_) => return Err(Fault::NotFloats(self.name()).into()),
        }
        Ok(())
    }
}
