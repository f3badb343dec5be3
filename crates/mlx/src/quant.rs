//! Quantized weights.

use crate::bridge::ffi::{Kind, Weights};
use crate::frame::{Frame, NONE, Sizes, device};
use crate::kind::quant;
use crate::map::fused;
use crate::prim::{choice, product_kind, slot};
use ptero_backend::Fault;
use ptero_backend::number::small_float::{e2m1, e4m3, e8m0};
use ptero_plan::graph::Value;
use ptero_plan::prim::{Choice, Epilogue, QuantFormat, QuantMode, Quantized};
use ptero_tensor::GgufType;

const ODD_BLOCKS: Fault = Fault::Contract("rows are whole blocks");

/// The numbers that bytes stand for in the formats of small floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    E2m1,
    E4m3,
    E8m0,
}

impl Table {
    pub(crate) const ALL: [Table; 3] = [Table::E2m1, Table::E4m3, Table::E8m0];

    /// The number of each byte, as bytes of f32.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let number = |byte: u8| match self {
            Table::E2m1 => e2m1(byte & 15),
            Table::E4m3 => e4m3(byte),
            Table::E8m0 => e8m0(byte),
        };
        (0..=u8::MAX).flat_map(|byte| number(byte).to_le_bytes()).collect()
    }
}

fn words(frame: &Frame<'_>, w: &Quantized<Value>, mode: QuantMode, bits: u8, group: u16) -> Result<Weights, Fault> {
    let table = |table: Table| frame.compiled.slots.tables + table as u32;
    let (code_table, scale_table) = match mode {
        QuantMode::Affine => (NONE, NONE),
        QuantMode::Mxfp4 => (table(Table::E2m1), table(Table::E8m0)),
        QuantMode::Nvfp4 => (table(Table::E2m1), table(Table::E4m3)),
        QuantMode::Mxfp8 => (table(Table::E4m3), table(Table::E8m0)),
    };
    let scales = w.scales.ok_or(Fault::Contract("there is a scale for each group"))?.0;
    let (kind, bits, group) = (quant(mode), i32::from(bits), i32::from(group));
    Ok(Weights { codes: w.codes.0, scales, biases: slot(w.biases), code_table, scale_table, kind, bits, group })
}

/// The slot of decoded blocks in f32: decoded once where they are weights of the program.
fn blocks(frame: &mut Frame<'_>, codes: Value, kind: GgufType) -> Result<u32, Fault> {
    if let Some(slot) = frame.compiled.decoded(codes) {
        return Ok(slot);
    }
    let (shape, slot) = (frame.shape(codes)?, frame.temporary());
    let count = shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product();
    let mut bytes = vec![0; count];
    frame.arrays().read(codes.0, &mut bytes).map_err(device)?;
    let (floats, shape) = decode(kind, &bytes, &shape)?;
    frame.arrays().store(slot, &floats, &shape, Kind::F32).map_err(device)?;
    Ok(slot)
}

/// Blocks as floats: their bytes, and their shape.
pub(crate) fn decode(kind: GgufType, bytes: &[u8], shape: &[i32]) -> Result<(Vec<u8>, Sizes), Fault> {
    let (block, length) = (kind.block_bytes(), kind.block_len());
    let mut shape = Sizes::from_slice(shape);
    let last = shape.last_mut().ok_or(ODD_BLOCKS)?;
    let row = usize::try_from(*last).map_err(|_| ODD_BLOCKS)?;
    if row % block != 0 {
        return Err(ODD_BLOCKS);
    }
    *last = i32::try_from(row / block * length).map_err(|_| ODD_BLOCKS)?;
    let mut floats = vec![0.0; bytes.len() / block * length];
    kind.decode(bytes, &mut floats);
    Ok((floats.into_iter().flat_map(f32::to_le_bytes).collect(), shape))
}

pub(crate) fn quant_matmul(
    frame: &mut Frame<'_>,
    out: Value,
    (x, w, transpose): (Value, &Quantized<Value>, bool),
    (lhs, rhs): (Choice<Value>, Choice<Value>),
    epilogue: &Epilogue<Value>,
) -> Result<(), Fault> {
    let mark = frame.mark();
    let lhs = if lhs.is_some() { choice(frame, lhs, &frame.shape(x)?)? } else { NONE };
    let rhs = if rhs.is_some() { choice(frame, rhs, &frame.shape(w.codes)?)? } else { NONE };
    let (kind, product) = (product_kind(frame, out, epilogue)?, frame.temporary());
    match w.format {
        QuantFormat::Words { mode, bits, group } => {
            let mut weights = words(frame, w, mode, bits, group)?;
            weights.scales = w.scales.map_or(NONE, |scales| frame.compiled.widened(scales));
            weights.biases = w.biases.map_or(NONE, |biases| frame.compiled.widened(biases));
            frame.arrays().quant_matmul(product, x.0, &weights, transpose, lhs, rhs, kind).map_err(device)?;
        }
        QuantFormat::Gguf(gguf) => {
            let mut weights = blocks(frame, w.codes, gguf)?;
            if transpose {
                let rank = frame.shape(w.codes)?.len();
                let mut order: Sizes = (0..rank).map(crate::frame::axis).collect();
                order.swap(rank - 1, rank - 2);
                let turned = frame.temporary();
                frame.arrays().permute(turned, weights, &order).map_err(device)?;
                weights = turned;
            }
            frame.arrays().matmul(product, x.0, weights, lhs, rhs, kind).map_err(device)?;
        }
    }
    fused(frame, out, product, epilogue)?;
    frame.release(mark);
    Ok(())
}

pub(crate) fn dequantize(frame: &mut Frame<'_>, out: Value, w: &Quantized<Value>) -> Result<(), Fault> {
    let (kind, mark) = (frame.kind(out)?, frame.mark());
    match w.format {
        QuantFormat::Words { mode, bits, group } => {
            let weights = words(frame, w, mode, bits, group)?;
            frame.arrays().dequantize(out.0, &weights, kind).map_err(device)?;
        }
        QuantFormat::Gguf(gguf) => {
            let weights = blocks(frame, w.codes, gguf)?;
            frame.arrays().cast(out.0, weights, kind).map_err(device)?;
        }
    }
    frame.release(mark);
    Ok(())
}
