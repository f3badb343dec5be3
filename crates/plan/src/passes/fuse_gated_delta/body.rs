//! The body of a loop, made simple before it is looked at, and elementwise functions but for where they round.

use crate::dim::{Dim, Var};
use crate::expr::{Expr, Scalar};
use crate::passes::branch::{Declined, Matched};
use crate::passes::tidy;
use crate::plan::{Block, Check, PlanStep};
use crate::prim::{Prim, View};
use ptero_tensor::DType;

/// The steps of a block but its checks, and those.
pub(super) fn without_checks(block: &Block, index: Var, why: &'static str) -> Matched<(Block, Vec<PlanStep>)> {
    let (mut rest, mut checks) = (Block::default(), Vec::new());
    for (step, at) in block.steps.iter().zip(&block.origin) {
        let depends = |dims: &[&Dim]| dims.iter().any(|dim| tidy::mentions(dim, index));
        match step {
            PlanStep::Device(_) => {
                rest.steps.push(step.clone());
                rest.origin.push(*at);
            }
            PlanStep::Check(Check::Equal(a, b, _)) if !depends(&[a, b]) => checks.push(step.clone()),
            PlanStep::Check(Check::Within { value, low, high, .. }) if !depends(&[value, low, high]) => {
                checks.push(step.clone());
            }
            PlanStep::Check(_) | PlanStep::Host { .. } | PlanStep::If { .. } | PlanStep::Loop { .. } => {
                return Err(Declined { at: *at, why });
            }
        }
    }
    Ok((rest, checks))
}

/// A state that is written more than once in a round is read from what was last copied to it; only the last copy stays.
pub(super) fn settled(mut block: Block) -> Block {
    let mut copies: Vec<(View, View)> = Vec::new();
    for step in &mut block.steps {
        let PlanStep::Device(prim) = step else { continue };
        for view in prim.reads_mut() {
            if let Some((_, from)) = copies.iter().find(|(out, _)| out == view) {
                *view = from.clone();
            }
        }
        let is_kept = |view: &View| prim.writes().iter().all(|written| written.buf != view.buf);
        copies.retain(|(out, from)| is_kept(out) && is_kept(from));
        copies.extend(copy_of(prim).map(|(out, from)| (out.clone(), from.clone())));
    }
    let is_needed: Vec<bool> = (0..block.steps.len()).map(|at| !is_overwritten(&block, at)).collect();
    let steps = block.steps.into_iter().zip(block.origin).zip(is_needed);
    let (steps, origin) = steps.filter(|(_, is_needed)| *is_needed).map(|(step, _)| step).unzip();
    Block { steps, origin }
}

/// Whether a step is a copy that another step overwrites before anything reads of it.
fn is_overwritten(block: &Block, at: usize) -> bool {
    fn device(step: &PlanStep) -> Option<&Prim> {
        if let PlanStep::Device(prim) = step { Some(prim) } else { None }
    }
    let Some((out, _)) = block.steps.get(at).and_then(device).and_then(copy_of) else { return false };
    let mut later = block.steps.iter().skip(at + 1).filter_map(device);
    let touched = later.find(|prim| prim.reads().into_iter().chain(prim.writes()).any(|view| view.buf == out.buf));
    touched.is_some_and(|prim| prim.out() == out && prim.reads().iter().all(|view| view.buf != out.buf))
}

pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// The step behind conversions from floats to floats: these only round.
pub(super) fn behind_casts(expr: &Expr, mut step: usize) -> Option<(&Scalar, [u16; 3])> {
    loop {
        let this = expr.steps.get(step)?;
        if !is_float(this.dtype) {
            return None;
        }
        match this.op {
            Scalar::Cast => step = usize::from(*this.args.first()?),
            _ => return Some((&this.op, this.args)),
        }
    }
}

/// Which input a step is, but for rounding.
pub(super) fn input(expr: &Expr, step: usize) -> Option<usize> {
    match behind_casts(expr, step)? {
        (Scalar::Load(input), _) => Some(usize::from(*input)),
        _ => None,
    }
}

/// The operand of an elementwise step that gives just that, rounded.
pub(super) fn copy_of(prim: &Prim) -> Option<(&View, &View)> {
    let Prim::Map { out, ins, expr } = prim else { return None };
    let from = ins.get(input(expr, expr.steps.len().checked_sub(1)?)?)?;
    Some((out, from))
}
