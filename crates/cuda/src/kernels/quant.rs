//! Quantized weights as kernels get them: `quant/quant.cuh`.

pub(crate) mod dequantize;
pub(crate) mod quant_many;
pub(crate) mod quant_matmul;
pub(crate) mod quant_row;
pub(crate) mod quantize;

use crate::kernels::flag;
use crate::step::{Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::bound::BoundView;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized, ViewId};
use ptero_tensor::GgufType;
use smallvec::SmallVec;

/// `QuantizedViews` in quant.cuh.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct QuantizedViews {
    codes: ViewArg,
    scales: ViewArg,
    biases: ViewArg,
}

impl QuantizedViews {
    pub(crate) fn new(step: &Step<'_>, w: &Quantized) -> Self {
        let optional = |view: Option<ViewId>| view.map_or_else(ViewArg::zeroed, |view| step.view(view));
        Self { codes: step.view(w.codes), scales: optional(w.scales), biases: optional(w.biases) }
    }
}

/// Macros of a source: names and values.
pub(crate) type Defines = SmallVec<[(&'static str, &'static str); 24]>;

/// The macros that describe weights.
pub(crate) fn defines(step: &Step<'_>, w: &Quantized) -> Result<Defines, Fault> {
    let tag_of = |view: Option<ViewId>| view.map_or("F32", |view| step.tag(view));
    let mut defines = Defines::new();
    match w.format {
        QuantFormat::Words { mode, bits, group } => {
            let format = match mode {
                QuantMode::Affine => "AFFINE",
                QuantMode::Mxfp4 => "MXFP4",
                QuantMode::Nvfp4 => "NVFP4",
                QuantMode::Mxfp8 => "MXFP8",
            };
            defines.extend([("FORMAT", format), ("BITS", number(bits.into())?), ("GROUP", number(group)?)]);
            defines.extend([("SCALE", tag_of(w.scales)), ("BIAS", tag_of(w.biases))]);
            defines.push(("HAS_BIAS", flag(w.biases.is_some())));
        }
        QuantFormat::Gguf(kind) => defines.push((
            "FORMAT",
            match kind {
                GgufType::Q4K => "Q4_K",
                GgufType::Q5K => "Q5_K",
                GgufType::Q6K => "Q6_K",
            },
        )),
    }
    let alignment = if matches!(w.format, QuantFormat::Gguf(GgufType::Q6K)) { 2 } else { 16 };
    defines.push(("VECTOR", flag(step.is_fixed(w.codes) && has_vector_rows(step.shape(w.codes), alignment))));
    Ok(defines)
}

/// The bits of a code or the weights of a group, as text.
fn number(number: u16) -> Result<&'static str, Fault> {
    Ok(match number {
        2 => "2",
        3 => "3",
        4 => "4",
        5 => "5",
        6 => "6",
        8 => "8",
        16 => "16",
        32 => "32",
        64 => "64",
        128 => "128",
        256 => "256",
        _ => return Err(Fault::Contract("codes and groups have one of the sizes of MLX")),
    })
}

/// Returns `true` if rows of codes are contiguous and start at multiples of that many bytes.
fn has_vector_rows(codes: &BoundView, alignment: usize) -> bool {
    let size = codes.dtype.size();
    let is_aligned = |elements: usize| (elements * size).is_multiple_of(alignment);
    let Some((last, others)) = codes.strides.split_last() else { return false };
    *last == 1 && is_aligned(codes.offset) && others.iter().all(|stride| is_aligned(stride.unsigned_abs()))
}

/// The number of weights in a row.
pub(crate) fn row_length(step: &Step<'_>, w: &Quantized) -> usize {
    let last = |view: ViewId| step.shape(view).shape.last().copied().unwrap_or(0);
    match w.format {
        QuantFormat::Words { group, .. } => w.scales.map_or(0, |scales| last(scales) * usize::from(group)),
        QuantFormat::Gguf(kind) => last(w.codes) / kind.block_bytes() * kind.block_len(),
    }
}
