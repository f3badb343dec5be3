//! Quantized weights, decoded.

use super::memory::Memory;
use super::number::Number;
use super::small_float::{e2m1, e4m3, e8m0};
use super::tensor::Tensor;
use crate::error::Fault;
use ptero_plan::prim::QuantMode;
use ptero_plan::prim::{QuantFormat, Quantized};
use ptero_tensor::{DType, GgufType};

/// One matrix of quantized weights.
pub(super) struct Weights<'a> {
    codes: Tensor<'a>,
    scales: Option<Tensor<'a>>,
    biases: Option<Tensor<'a>>,
    format: QuantFormat,
}

/// The matrices of a stack, in row-major order of its outer axes.
pub(super) fn weights<'a>(memory: &'a Memory, w: &Quantized) -> Result<Vec<Weights<'a>>, Fault> {
    let mut scales = memory.optional(w.scales.as_ref())?.map(|scales| scales.inner(2));
    let mut biases = memory.optional(w.biases.as_ref())?.map(|biases| biases.inner(2));
    let matrices = memory.tensor(&w.codes)?.inner(2).map(|codes| Weights {
        codes,
        scales: scales.as_mut().and_then(Iterator::next),
        biases: biases.as_mut().and_then(Iterator::next),
        format: w.format,
    });
    Ok(matrices.collect())
}

/// What is wrong with quantized weights whatever their sizes.
pub(super) fn check(w: &Quantized) -> Result<(), Fault> {
    let (is_sound, codes) = match w.format {
        QuantFormat::Words { bits, group, .. } => {
            ((1..=8).contains(&bits) && group > 0 && w.scales.is_some(), DType::U32)
        }
        QuantFormat::Gguf(_) => (true, DType::U8),
    };
    if w.codes.dtype != codes {
        return Err(Fault::WrongDType { found: w.codes.dtype, wanted: codes });
    }
    if is_sound { Ok(()) } else { Err(Fault::Contract("codes have 1 to 8 bits, groups elements, and words scales")) }
}

impl Weights<'_> {
    /// The rows, in `f32`.
    pub(super) fn rows(&self) -> Result<Vec<Vec<f32>>, Fault> {
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
    let mut row = Vec::with_capacity(scales.len() * usize::from(group));
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
