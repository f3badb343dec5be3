//! Quantized weights, decoded.

use crate::memory::Memory;
use crate::tensor::Tensor;
use ptero_backend::number::Number;
use ptero_backend::number::small_float::{e2m1, e4m3, e8m0};
use ptero_backend::{Fault, NumberFault};
use ptero_plan::graph::Value;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized};
use ptero_tensor::GgufType;

/// Quantized weights: a matrix, or a stack of them.
pub(crate) struct Weights<'a> {
    pub(crate) codes: Tensor<'a>,
    scales: Option<Tensor<'a>>,
    biases: Option<Tensor<'a>>,
    format: QuantFormat,
}

impl<'a> Weights<'a> {
    /// The whole stack.
    pub(crate) fn new(memory: &'a Memory<'_>, w: &Quantized<Value>) -> Result<Self, Fault> {
        let (codes, format) = (memory.tensor(w.codes)?, w.format);
        Ok(Self { codes, scales: memory.optional(w.scales)?, biases: memory.optional(w.biases)?, format })
    }

    /// The matrix at index `index` of the outer axes, counted in row-major order.
    pub(crate) fn nth(&self, index: usize) -> Option<Weights<'a>> {
        let nth = |tensor: &Option<Tensor<'a>>| tensor.as_ref().and_then(|tensor| tensor.nth(2, index));
        let (scales, biases) = (nth(&self.scales), nth(&self.biases));
        Some(Self { codes: self.codes.nth(2, index)?, scales, biases, format: self.format })
    }

    /// The number of weights in a row.
    pub(crate) fn row_length(&self) -> Result<usize, Fault> {
        match self.format {
            QuantFormat::Words { group, .. } => {
                let scales = self.scales.as_ref().ok_or(Fault::Contract("there is a scale for each group"))?;
                let [groups] = scales.last_sizes()?;
                groups.checked_mul(group.into()).ok_or(NumberFault::TooLarge.into())
            }
            QuantFormat::Gguf(kind) => {
                let [bytes] = self.codes.last_sizes()?;
                Ok(bytes / kind.block_bytes() * kind.block_len())
            }
        }
    }

    /// The rows, in `f32`.
    pub(crate) fn rows(&self) -> Result<Vec<Vec<f32>>, Fault> {
        let codes = self.codes.inner(1);
        match self.format {
            QuantFormat::Gguf(kind) => Ok(codes.map(|codes| gguf_row(&codes, kind)).collect()),
            QuantFormat::Words { mode, bits, group } => {
                let mut scales = self.scales.as_ref().map(|scales| scales.inner(1));
                let mut biases = self.biases.as_ref().map(|biases| biases.inner(1));
                let rows = codes.map(|codes| {
                    let scales = scales.as_mut().and_then(Iterator::next);
                    let scales = scales.ok_or(Fault::Contract("there is a scale for each group"))?;
                    word_row(unpack(&codes, bits), &scales, biases.as_mut().and_then(Iterator::next), mode, group)
                });
                rows.collect()
            }
        }
    }
}

fn gguf_row(codes: &Tensor<'_>, kind: GgufType) -> Vec<f32> {
    let bytes: Vec<u8> = codes.numbers().map(byte).collect();
    let mut row = vec![0.0; bytes.len() / kind.block_bytes() * kind.block_len()];
    kind.decode(&bytes, &mut row);
    row
}

fn word_row(
    mut codes: impl Iterator<Item = u8>,
    scales: &Tensor<'_>,
    biases: Option<Tensor<'_>>,
    mode: QuantMode,
    group: u16,
) -> Result<Vec<f32>, Fault> {
    let scales: Vec<Number> = scales.numbers().collect();
    let biases = biases.map_or(vec![0.0; scales.len()], |biases| biases.floats());
    let mut row = Vec::new();
    for (scale, bias) in scales.into_iter().zip(biases) {
        let scale = match mode {
            QuantMode::Affine => scale.float(),
            QuantMode::Mxfp4 | QuantMode::Mxfp8 => e8m0(byte(scale)),
            QuantMode::Nvfp4 => e4m3(byte(scale)),
        };
        for _ in 0..group {
            let code = codes.next().ok_or(Fault::Contract("there is a code for each element"))?;
            row.push(match mode {
                QuantMode::Affine => scale * f32::from(code) + bias,
                QuantMode::Mxfp4 | QuantMode::Nvfp4 => scale * e2m1(code),
                QuantMode::Mxfp8 => scale * e4m3(code),
            });
        }
    }
    Ok(row)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of elements that are single bytes")]
fn byte(number: Number) -> u8 {
    number.int() as u8
}

/// The codes of a row: its words are one stream of bits, lowest first.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "words are u32, and codes have at most 8 bits"
)]
fn unpack<'a>(words: &Tensor<'a>, bits: u8) -> impl Iterator<Item = u8> + use<'a> {
    let mut words = words.numbers().map(|word| word.int() as u32);
    let (mut pending, mut pending_bits) = (0_u64, 0);
    std::iter::from_fn(move || {
        while pending_bits < bits {
            pending |= u64::from(words.next()?) << pending_bits;
            pending_bits += 32;
        }
        let code = pending & ((1 << bits) - 1);
        pending >>= bits;
        pending_bits -= bits;
        Some(code as u8)
    })
}
