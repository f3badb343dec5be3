//! An elementwise step whose result only one other elementwise step reads, element by element, becomes part of that one.
//! Each scalar step keeps the type it rounds to, so the result is the same to the bit.

use super::{Notes, Uses};
use crate::expr::{Expr, Scalar};
use crate::plan::{Block, BufferKind, Plan, PlanStep};
use crate::prim::{Buf, Prim, View};
use std::collections::{BTreeSet, HashMap};

/// More scalar steps than this are no longer one function but a program.
const MOST_STEPS: usize = 64;
/// More inputs than this would hold up each other.
const MOST_INPUTS: usize = 16;

pub(super) fn run(plan: &mut Plan, notes: &mut Notes) {
    let uses = Uses::of(plan);
    let buffers = std::mem::take(&mut plan.buffers);
    let is_link = |view: &View| {
        let kind = buffers.get(view.buf.0 as usize).map(|buffer| &buffer.kind);
        matches!(kind, Some(BufferKind::Temporary)) && uses.reads(view.buf) == 1 && uses.writes(view.buf) == 1
    };
    for block in &mut plan.blocks {
        fuse_block(block, &is_link, notes);
    }
    plan.buffers = buffers;
}

fn fuse_block(block: &mut Block, is_link: &dyn Fn(&View) -> bool, notes: &mut Notes) {
    // Steps that were taken into others leave a gap until the end.
    let mut steps: Vec<Option<PlanStep>> = std::mem::take(&mut block.steps).into_iter().map(Some).collect();
    let mut writers: HashMap<Buf, usize> = HashMap::new();
    for at in 0..steps.len() {
        let mut declined = BTreeSet::new();
        while let Some((from, input)) = producer(&steps, &writers, at, is_link, &declined) {
            let origin = block.origin.get(from).copied().unwrap_or_default();
            match fused(&steps, from, at, input) {
                Ok(step) => {
                    steps.iter_mut().skip(at).take(1).for_each(|old| *old = Some(step.clone()));
                    steps.iter_mut().skip(from).take(1).for_each(|old| *old = None);
                    notes.say("fuse-maps", origin, "fused into the step that reads it");
                }
                Err(why) => {
                    declined.insert(from);
                    notes.say("fuse-maps", origin, why);
                }
            }
        }
        if let Some((out, ..)) = map(&steps, at) {
            writers.insert(out.buf, at);
        }
    }
    let kept =
        steps.into_iter().zip(std::mem::take(&mut block.origin)).filter_map(|(step, origin)| Some((step?, origin)));
    (block.steps, block.origin) = kept.unzip();
}

fn map(steps: &[Option<PlanStep>], at: usize) -> Option<(&View, &[View], &Expr)> {
    match steps.get(at)? {
        Some(PlanStep::Device(Prim::Map { out, ins, expr })) => Some((out, ins, expr)),
        _ => None,
    }
}

/// The step before `at` whose whole result is an input of the step `at`, and which input.
fn producer(
    steps: &[Option<PlanStep>],
    writers: &HashMap<Buf, usize>,
    at: usize,
    is_link: &dyn Fn(&View) -> bool,
    declined: &BTreeSet<usize>,
) -> Option<(usize, usize)> {
    let (_, ins, _) = map(steps, at)?;
    ins.iter().enumerate().filter(|(_, view)| is_link(view)).find_map(|(input, view)| {
        let from = *writers.get(&view.buf)?;
        let (out, ..) = map(steps, from)?;
        (out == view && !declined.contains(&from) && is_unchanged(steps, from, at)).then_some((from, input))
    })
}

/// Whether what the step `from` reads is still there when the step `at` runs. Blocks in between may write anything.
fn is_unchanged(steps: &[Option<PlanStep>], from: usize, at: usize) -> bool {
    let Some((_, ins, _)) = map(steps, from) else { return false };
    let between = steps.get(from + 1..at).unwrap_or_default();
    between.iter().flatten().all(|step| match step {
        PlanStep::Device(prim) => prim.writes().iter().all(|out| ins.iter().all(|view| view.buf != out.buf)),
        PlanStep::Host { .. } | PlanStep::Check(_) => true,
        PlanStep::If { .. } | PlanStep::Loop { .. } => false,
    })
}

/// The step `at` with the step `from` in the place of its input.
fn fused(steps: &[Option<PlanStep>], from: usize, at: usize, input: usize) -> Result<PlanStep, &'static str> {
    let (Some((_, inner_ins, inner)), Some((out, ins, expr))) = (map(steps, from), map(steps, at)) else {
        return Err("not an elementwise step");
    };
    if inner.steps.len() + expr.steps.len() > MOST_STEPS {
        return Err("not fused: the function would be too long");
    }
    // What is written in place must be read at the same place, which the other inputs of the producer need not be.
    if inner_ins.iter().any(|view| view.buf == out.buf && view != out) {
        return Err("not fused: the result overwrites what is still to be read");
    }
    let mut all_ins: Vec<View> = Vec::new();
    let mut number = |view: &View| {
        let known = all_ins.iter().position(|other| other == view);
        let number = known.unwrap_or_else(|| {
            all_ins.push(view.clone());
            all_ins.len() - 1
        });
        u16::try_from(number).unwrap_or(u16::MAX)
    };
    let inner_numbers: Vec<u16> = inner_ins.iter().map(&mut number).collect();
    let numbers: Vec<u16> =
        ins.iter().enumerate().map(|(index, view)| if index == input { 0 } else { number(view) }).collect();
    if all_ins.len() > MOST_INPUTS {
        return Err("not fused: the function would have too many inputs");
    }
    let mut scalars = inner.steps.clone();
    for step in &mut scalars {
        renumber(&mut step.op, &inner_numbers);
    }
    let result = u16::try_from(scalars.len().saturating_sub(1)).unwrap_or(0);
    append(&mut scalars, expr, &numbers, u16::try_from(input).unwrap_or(u16::MAX), result);
    Ok(PlanStep::Device(Prim::Map { out: out.clone(), ins: all_ins, expr: Expr { steps: scalars } }))
}

fn renumber(op: &mut Scalar, numbers: &[u16]) {
    if let Scalar::Load(input) = op {
        *input = numbers.get(usize::from(*input)).copied().unwrap_or(*input);
    }
}

/// Adds the steps of a function, in which loading `input` means the step `result` that is there already.
fn append(steps: &mut Vec<crate::expr::Step>, expr: &Expr, numbers: &[u16], input: u16, result: u16) {
    let mut places: Vec<u16> = Vec::with_capacity(expr.steps.len());
    for step in &expr.steps {
        if step.op == Scalar::Load(input) {
            places.push(result);
            continue;
        }
        let mut step = step.clone();
        renumber(&mut step.op, numbers);
        for arg in &mut step.args {
            *arg = places.get(usize::from(*arg)).copied().unwrap_or(*arg);
        }
        places.push(u16::try_from(steps.len()).unwrap_or(u16::MAX));
        steps.push(step);
    }
}
