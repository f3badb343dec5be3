//! Quantized weights as numbers: `dequantize.cu`.

use crate::kernels::quant::{QuantizedViews, defines};
use crate::kernels::together::{Part, part};
use crate::module::Variant;
use crate::step::{Launch, Step, ViewArg, tag};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::{Quantized, ViewId};
use ptero_tensor::DType;

pub(crate) static DEQUANTIZE: Part = part!("dequantize", "DequantizeArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct DequantizeArgs {
    launch: Launch,
    out: ViewArg,
    weights: QuantizedViews,
}

const _: () = assert!(size_of::<DequantizeArgs>() == 624, "the layout of `DequantizeArgs` in dequantize.cu");

const THREADS: u32 = 256;

pub(crate) fn dequantize(step: &mut Step<'_>, out: ViewId, w: &Quantized) -> Result<(), Fault> {
    decode(step, step.view(out), step.dtype(out), step.shape(out).count(), w)
}

/// Decodes weights to a tensor that need not belong to the plan.
pub(crate) fn decode(
    step: &mut Step<'_>,
    out: ViewArg,
    dtype: DType,
    count: usize,
    w: &Quantized,
) -> Result<(), Fault> {
    let mut defines = defines(step, w)?;
    defines.push(("OUT", tag(dtype)));
    let args = DequantizeArgs { launch: step.launch(), out, weights: QuantizedViews::new(step, w) };
    let variant = Variant { defines: &defines, generated: "" };
    step.run_part(&DEQUANTIZE, variant, step.grid(count, THREADS as usize, THREADS), &args);
    Ok(())
}
