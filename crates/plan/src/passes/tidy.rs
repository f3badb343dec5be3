//! What is left behind when a branch or a loop is gone, and what numbers depend on.

use super::Uses;
use crate::dim::{Dim, Var};
use crate::plan::{BufferKind, Check, HostOp, Output, Plan, PlanStep};
use crate::prim::{Buf, Prim, View};
use std::collections::{BTreeMap, BTreeSet};

/// The blocks that run at load or at a call.
pub(super) fn reached(plan: &Plan) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<usize> = plan.init.into_iter().chain([plan.main]).collect();
    while let Some(block) = ahead.pop() {
        if reached.insert(block) {
            let steps = plan.blocks.get(block).into_iter().flat_map(|block| &block.steps);
            steps.for_each(|step| ahead.extend(called(step)));
        }
    }
    reached
}

pub(super) fn called(step: &PlanStep) -> Vec<usize> {
    match step {
        PlanStep::If { then, otherwise, .. } => vec![*then, *otherwise],
        PlanStep::Loop { body, .. } => vec![*body],
        PlanStep::Device(_) | PlanStep::Host { .. } | PlanStep::Check(_) => Vec::new(),
    }
}

/// Removes the blocks that nothing runs; the others move up.
pub(super) fn drop_unreachable_blocks(plan: &mut Plan) {
    let kept = reached(plan);
    let numbers: BTreeMap<usize, usize> = kept.iter().copied().zip(0..).collect();
    let renumber = |block: &mut usize| *block = numbers.get(block).copied().unwrap_or(*block);
    let blocks = std::mem::take(&mut plan.blocks).into_iter().enumerate();
    plan.blocks = blocks.filter(|(number, _)| kept.contains(number)).map(|(_, block)| block).collect();
    for step in plan.blocks.iter_mut().flat_map(|block| &mut block.steps) {
        match step {
            PlanStep::If { then, otherwise, .. } => {
                renumber(then);
                renumber(otherwise);
            }
            PlanStep::Loop { body, .. } => renumber(body),
            PlanStep::Device(_) | PlanStep::Host { .. } | PlanStep::Check(_) => {}
        }
    }
    renumber(&mut plan.main);
    plan.init.iter_mut().for_each(renumber);
}

/// Removes the reads of those host values that nothing uses any more, and the steps that computed what they read.
pub(super) fn drop_unused(plan: &mut Plan, vars: &BTreeSet<Var>) {
    let used = used_vars(plan, &[]);
    let mut read = BTreeSet::new();
    retain(plan, |step| match step {
        PlanStep::Host { out, op: HostOp::Item(view) } if vars.contains(out) && !used.contains(out) => {
            read.insert(view.buf);
            false
        }
        _ => true,
    });
    let uses = Uses::of(plan);
    let kinds: Vec<bool> = plan.buffers.iter().map(|buffer| matches!(buffer.kind, BufferKind::Temporary)).collect();
    let is_dead =
        |buf: Buf| read.contains(&buf) && uses.reads(buf) == 0 && kinds.get(buf.0 as usize).copied().unwrap_or(false);
    retain(plan, |step| !matches!(step, PlanStep::Device(Prim::Map { out, .. }) if is_dead(out.buf)));
}

pub(super) fn retain(plan: &mut Plan, mut is_kept: impl FnMut(&PlanStep) -> bool) {
    for block in &mut plan.blocks {
        let steps = std::mem::take(&mut block.steps).into_iter().zip(std::mem::take(&mut block.origin));
        (block.steps, block.origin) = steps.filter(|(step, _)| is_kept(step)).unzip();
    }
}

/// The host values that a plan uses, but for what these blocks do.
pub(super) fn used_vars(plan: &Plan, without: &[usize]) -> BTreeSet<Var> {
    let mut used = BTreeSet::new();
    let mut dim = |dim: &Dim| {
        dim.fold((), |(), vars, _| used.extend(vars));
    };
    let blocks = plan.blocks.iter().enumerate().filter(|(number, _)| !without.contains(number));
    for step in blocks.flat_map(|(_, block)| &block.steps) {
        match step {
            PlanStep::Device(prim) => {
                prim.reads().into_iter().chain(prim.writes()).flat_map(dims).for_each(&mut dim);
                prim.numbers().into_iter().for_each(&mut dim);
            }
            PlanStep::Host { op, .. } => match op {
                HostOp::Item(view) => dims(view).for_each(&mut dim),
                HostOp::Copy(value) => dim(value),
                HostOp::FloorDiv(a, b) | HostOp::Mod(a, b) | HostOp::Min(a, b) => [a, b].into_iter().for_each(&mut dim),
                HostOp::Max(a, b) | HostOp::Clamp(a, b) | HostOp::ClampBackward(a, b) => {
                    [a, b].into_iter().for_each(&mut dim);
                }
            },
            PlanStep::Check(Check::Equal(a, b, _)) => [a, b].into_iter().for_each(&mut dim),
            PlanStep::Check(Check::Within { value, low, high, .. }) => {
                [value, low, high].into_iter().for_each(&mut dim);
            }
            PlanStep::If { condition, .. } => dim(condition),
            PlanStep::Loop { count, .. } => dim(count),
        }
    }
    for output in &plan.outputs {
        match output {
            Output::Tensor(view) => dims(view).for_each(&mut dim),
            Output::Int(value) => dim(value),
        }
    }
    plan.buffers.iter().for_each(|buffer| dim(&buffer.elements));
    used
}

/// The host values that tell where a view lies.
pub(super) fn vars(view: &View) -> BTreeSet<Var> {
    let mut vars = BTreeSet::new();
    dims(view).for_each(|dim| {
        dim.fold((), |(), factors, _| vars.extend(factors));
    });
    vars
}

fn dims(view: &View) -> impl Iterator<Item = &Dim> {
    view.shape.iter().chain(&view.strides).chain([&view.offset])
}

/// Whether a number depends on a host value.
pub(super) fn mentions(dim: &Dim, var: Var) -> bool {
    dim.fold(false, |found, vars, _| found || vars.contains(&var)).unwrap_or(true)
}

/// A number as a sum: what does not depend on a host value, and what is multiplied by it.
pub(super) fn linear(dim: &Dim, var: Var) -> Option<(Dim, Dim)> {
    let start = Some((Dim::fixed(0), Dim::fixed(0)));
    let parts = dim.fold(start, |parts, vars, factor| {
        let (rest, times) = parts?;
        let others = vars.iter().filter(|other| **other != var);
        let term = others.clone().fold(Dim::fixed(factor), |product, other| &product * &Dim::var(*other));
        match vars.len() - others.count() {
            0 => Some((&rest + &term, times)),
            1 => Some((rest, &times + &term)),
            _ => None,
        }
    });
    parts.flatten()
}
