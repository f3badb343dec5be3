//! Quantized weights, decoded, and as groups of whole numbers.

use crate::memory::Memory;
use crate::tensor::Tensor;
use ptero_backend::number::Number;
use ptero_backend::number::small_float::{e2m1, e4m3, e8m0};
use ptero_backend::{Fault, NumberFault};
use ptero_plan::graph::Value;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized};
use ptero_tensor::{GgufType, WholeGroup};

/// Quantized weights: a matrix, or a stack of them.
pub(crate) struct Weights {
    pub(crate) codes: Tensor,
    scales: Option<Tensor>,
    biases: Option<Tensor>,
    format: QuantFormat,
}

impl Weights {
    /// The whole stack.
    pub(crate) fn new(memory: &Memory<'_>, w: &Quantized<Value>) -> Result<Self, Fault> {
        let (scales, biases) = (memory.optional(w.scales)?.cloned(), memory.optional(w.biases)?.cloned());
        Ok(Self { codes: memory.tensor(w.codes)?.clone(), scales, biases, format: w.format })
    }

    /// The matrix at index `index` of the outer axes, counted in row-major order.
    pub(crate) fn nth(&self, index: usize) -> Option<Self> {
        let nth = |tensor: &Option<Tensor>| tensor.as_ref().and_then(|tensor| tensor.nth(2, index));
        let (scales, biases) = (nth(&self.scales), nth(&self.biases));
        Some(Self { codes: self.codes.nth(2, index)?, scales, biases, format: self.format })
    }

    /// The number of weights in a row.
    pub(crate) fn row_length(&self) -> Result<usize, Fault> {
        match self.format {
            QuantFormat::Words { group, .. } => {
                let scales = self.scales.as_ref().ok_or(NO_SCALE)?;
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
        self.each_row(Row::floats)
    }

    /// The rows, in groups of whole numbers.
    pub(crate) fn whole_rows(&self) -> Result<Vec<Vec<WholeGroup>>, Fault> {
        self.each_row(Row::groups)
    }

    /// The number of weights that are multiplied, as whole numbers, with activations of one step; `None` if they are not.
    pub(crate) fn whole_group(&self) -> Option<usize> {
        match self.format {
            QuantFormat::Words { mode: QuantMode::Mxfp8, .. } => None,
            QuantFormat::Words { group: group @ (16 | 32 | 64 | 128), .. } => Some(usize::from(group).min(64)),
            QuantFormat::Words { .. } => None,
            QuantFormat::Gguf(GgufType::Q4K | GgufType::Q5K) => Some(32),
            QuantFormat::Gguf(GgufType::Q6K) => Some(16),
        }
    }

    fn each_row<T>(&self, read: impl Fn(&Row) -> T) -> Result<Vec<T>, Fault> {
        let mut scales = self.scales.as_ref().map(|scales| scales.inner(1));
        let mut biases = self.biases.as_ref().map(|biases| biases.inner(1));
        let rows = self.codes.inner(1).map(|codes| match self.format {
            QuantFormat::Gguf(kind) => Ok(read(&Row::Blocks(kind, codes.numbers().map(byte).collect()))),
            QuantFormat::Words { mode, bits, group } => {
                let group = usize::from(group);
                let scales = scales.as_mut().and_then(Iterator::next).ok_or(NO_SCALE)?;
                let scales: Vec<f32> = scales.numbers().map(|number| scale(mode, number)).collect();
                // Affine weights may do without biases; then all are zero.
                let biases = biases.as_mut().map(|biases| biases.next().ok_or(NO_BIAS)).transpose()?;
                let biases = biases.map(|biases| biases.floats());
                if biases.as_ref().is_some_and(|biases| mode != QuantMode::Affine || biases.len() != scales.len()) {
                    return Err(NO_BIAS);
                }
                let codes: Vec<u8> = unpack(&codes, bits).take(scales.len() * group).collect();
                if codes.len() != scales.len() * group {
                    return Err(Fault::Contract("there is a code for each element"));
                }
                let biases = (0..).map(|at| biases.as_ref()?.get(at).copied());
                let groups = codes.chunks(group).zip(scales).zip(biases);
                let groups = groups.map(|((codes, scale), bias)| CodeGroup { codes: codes.to_vec(), scale, bias });
                Ok(read(&Row::Words(mode, groups.collect())))
            }
        });
        rows.collect()
    }
}

const NO_SCALE: Fault = Fault::Contract("there is a scale for each group");
const NO_BIAS: Fault = Fault::Contract("a bias belongs to each group of affine weights, and to no others");

/// A row of weights.
enum Row {
    Blocks(GgufType, Vec<u8>),
    Words(QuantMode, Vec<CodeGroup>),
}

/// Codes that share a scale and a bias, if the weights have any.
struct CodeGroup {
    codes: Vec<u8>,
    scale: f32,
    bias: Option<f32>,
}

impl Row {
    fn floats(&self) -> Vec<f32> {
        match self {
            Row::Blocks(kind, bytes) => {
                let mut row = vec![0.0; bytes.len() / kind.block_bytes() * kind.block_len()];
                kind.decode(bytes, &mut row);
                row
            }
            Row::Words(mode, groups) => {
                let weight = |group: &CodeGroup, code: u8| match mode {
                    QuantMode::Affine => group.scale * f32::from(code) + group.bias.unwrap_or(0.0),
                    QuantMode::Mxfp4 | QuantMode::Nvfp4 => group.scale * e2m1(code),
                    QuantMode::Mxfp8 => group.scale * e4m3(code),
                };
                groups.iter().flat_map(|group| group.codes.iter().map(|code| weight(group, *code))).collect()
            }
        }
    }

    /// Groups of at most 64 weights.
    fn groups(&self) -> Vec<WholeGroup> {
        match self {
            Row::Blocks(kind, bytes) => {
                bytes.chunks_exact(kind.block_bytes()).flat_map(|block| kind.whole_groups(block)).collect()
            }
            Row::Words(mode, groups) => groups.iter().flat_map(|group| group.whole(*mode)).collect(),
        }
    }
}

impl CodeGroup {
    #[allow(clippy::cast_possible_truncation, reason = "twice a number of four bits is whole and small")]
    fn whole(&self, mode: QuantMode) -> impl Iterator<Item = WholeGroup> {
        let affine = mode == QuantMode::Affine;
        let (scale, bias) = (if affine { self.scale } else { self.scale * 0.5 }, self.bias);
        let code = move |code: &u8| if affine { (*code).into() } else { (2.0 * e2m1(*code)) as i32 };
        self.codes.chunks(64).map(move |codes| WholeGroup { codes: codes.iter().map(code).collect(), scale, bias })
    }
}

fn scale(mode: QuantMode, number: Number) -> f32 {
    match mode {
        QuantMode::Affine => number.float(),
        QuantMode::Mxfp4 | QuantMode::Mxfp8 => e8m0(byte(number)),
        QuantMode::Nvfp4 => e4m3(byte(number)),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the elements are single bytes")]
fn byte(number: Number) -> u8 {
    number.int() as u8
}

/// The codes of a row: its words are one stream of bits, lowest first.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "words are u32, and codes have at most 8 bits"
)]
fn unpack(words: &Tensor, bits: u8) -> impl Iterator<Item = u8> {
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
