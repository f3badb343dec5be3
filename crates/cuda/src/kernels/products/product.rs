//! Products and their epilogues: a product goes to its tensor, or rounded to its own type to scratch memory, from where the
//! epilogue's function takes it.

use crate::kernels::elements::map;
use crate::kernels::products::matmul::{is_few, matmul};
use crate::kernels::products::matmul_row::matmul_row;
use crate::kernels::quant::quant_matmul::{quant_matmul, takes_epilogue};
use crate::kernels::quant::quant_row::quant_row;
use crate::kernels::rows::Then;
use crate::step::{Step, ViewArg};
use ptero_backend::{Fault, NumberFault};
pub(crate) use ptero_plan::prim::Epilogue;
use ptero_plan::prim::{Choice, Prim, Quantized, ViewId};
use ptero_tensor::DType;

/// Where a product goes.
pub(crate) struct Product {
    pub(crate) view: ViewArg,
    pub(crate) dtype: DType,
    /// The sizes of this step.
    pub(crate) matrices: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// What it goes through before it is stored.
    pub(crate) then: Option<Then>,
}

/// The factors of a product.
#[derive(Clone, Copy)]
pub(crate) enum Factors<'a> {
    Plain(ViewId, ViewId),
    Quantized { x: ViewId, w: &'a Quantized, transpose: bool },
}

/// What a product computes before it multiplies.
#[derive(Clone, Copy)]
pub(crate) enum Before<'a> {
    Nothing,
    /// The step before it.
    Joined(&'a Prim),
    /// A step that waits with it, whose result others need too.
    Again(&'a Prim),
}

impl<'a> Before<'a> {
    pub(crate) fn prim(self) -> Option<&'a Prim> {
        match self {
            Self::Nothing => None,
            Self::Joined(prim) | Self::Again(prim) => Some(prim),
        }
    }
}

pub(crate) fn product(
    step: &mut Step<'_>,
    out: ViewId,
    factors: Factors<'_>,
    choices: (&Choice, &Choice),
    epilogue: &Epilogue,
) -> Result<(), Fault> {
    let x = match factors {
        Factors::Plain(a, _) => a,
        Factors::Quantized { x, .. } => x,
    };
    // Whoever reads the result of a norm itself waits for it.
    let others = epilogue.as_ref().map_or(&[][..], |fused| &fused.ins);
    let is_read = others.iter().any(|view| step.shape(*view).buf == step.shape(x).buf);
    if let Some(norm) = step.waiting_norm(x).filter(|_| !is_read)
        && (quant_row(step, out, factors, choices, epilogue, Before::Again(norm))?
            || matmul_row(step, out, factors, choices, epilogue, Some(norm)))
    {
        step.recomputed = Some(norm);
        return Ok(());
    }
    if quant_row(step, out, factors, choices, epilogue, Before::Nothing)?
        || matmul_row(step, out, factors, choices, epilogue, None)
    {
        return Ok(());
    }
    let shape = step.shape(out).shape.clone();
    let [.., rows, columns] = *shape.as_slice() else {
        return Err(Fault::Contract("a product has two axes"));
    };
    let matrices = shape.iter().rev().skip(2).product();
    let takes_epilogue = match factors {
        Factors::Plain(..) => is_few(step, [matrices, rows, columns]),
        Factors::Quantized { x, w, transpose } => takes_epilogue(step, (x, w, transpose), choices.1),
    };
    let fused = epilogue.as_ref().filter(|_| takes_epilogue);
    let then = fused.and_then(|fused| Then::of(step, &fused.ins, &fused.expr));
    let later = epilogue.as_ref().filter(|_| then.is_none());
    let mut to = Product { view: step.view(out), dtype: step.dtype(out), matrices, rows, columns, then };
    if let Some(fused) = later {
        let bytes = shape.iter().try_fold(fused.dtype.size(), |bytes, size| bytes.checked_mul(*size));
        let address = step.scratch(bytes.ok_or(NumberFault::TooLarge)?)?;
        (to.view, to.dtype) = (ViewArg::row_major(address, fused.dtype, &shape), fused.dtype);
    }
    match factors {
        Factors::Plain(a, b) => matmul(step, &to, (a, b), choices)?,
        Factors::Quantized { x, w, transpose } => quant_matmul(step, &to, (x, w, transpose), choices)?,
    }
    let Some(fused) = later else { return Ok(()) };
    let others = fused.ins.iter().map(|view| step.view(*view));
    let ins: Vec<ViewArg> = std::iter::once(to.view).chain(others).collect();
    map::launch(step, step.view(out), &ins, &fused.expr)
}
