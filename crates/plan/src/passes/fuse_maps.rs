//! An elementwise step whose result only one other elementwise step reads, element by element, becomes part of that one.
//! Each scalar step keeps the type it rounds to, so the result is the same to the bit.

use super::{Notes, Uses};
use crate::expr::{Expr, Scalar};
use crate::plan::{Block, BufferKind, Plan, PlanStep};
use crate::prim::{Prim, View};

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
    let mut at = 0;
    while at < block.steps.len() {
        match producer(block, at, is_link) {
            None => at += 1,
            Some((from, input)) => {
                let fused = fused(block, from, at, input);
                let origin = block.origin.get(from).copied().unwrap_or_default();
                match fused {
                    Ok(step) => {
                        block.steps.splice(at..=at, [step]);
                        block.steps.remove(from);
                        block.origin.remove(from);
                        notes.say("fuse-maps", origin, "fused into the step that reads it");
                        // The step has moved one place back, and may have more to take in.
                        at -= 1;
                    }
                    Err(why) => {
                        notes.say("fuse-maps", origin, why);
                        at += 1;
                    }
                }
            }
        }
    }
}

fn map(block: &Block, at: usize) -> Option<(&View, &[View], &Expr)> {
    match block.steps.get(at)? {
        PlanStep::Device(Prim::Map { out, ins, expr }) => Some((out, ins, expr)),
        _ => None,
    }
}

/// The step before `at` whose whole result is an input of the step `at`, and which input.
fn producer(block: &Block, at: usize, is_link: &dyn Fn(&View) -> bool) -> Option<(usize, usize)> {
    let (_, ins, _) = map(block, at)?;
    ins.iter().enumerate().filter(|(_, view)| is_link(view)).find_map(|(input, view)| {
        let from = (0..at).rev().find(|from| map(block, *from).is_some_and(|(out, ..)| out.buf == view.buf))?;
        let (out, ..) = map(block, from)?;
        (out == view && is_unchanged(block, from, at)).then_some((from, input))
    })
}

/// Whether what the step `from` reads is still there when the step `at` runs. Blocks in between may write anything.
fn is_unchanged(block: &Block, from: usize, at: usize) -> bool {
    let Some((_, ins, _)) = map(block, from) else { return false };
    let between = block.steps.get(from + 1..at).unwrap_or_default();
    between.iter().all(|step| match step {
        PlanStep::Device(prim) => prim.writes().iter().all(|out| ins.iter().all(|view| view.buf != out.buf)),
        PlanStep::Host { .. } | PlanStep::Check(_) => true,
        PlanStep::If { .. } | PlanStep::Loop { .. } => false,
    })
}

/// The step `at` with the step `from` in the place of its input.
fn fused(block: &Block, from: usize, at: usize, input: usize) -> Result<PlanStep, &'static str> {
    let (Some((_, inner_ins, inner)), Some((out, ins, expr))) = (map(block, from), map(block, at)) else {
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
    let mut steps = inner.steps.clone();
    for step in &mut steps {
        renumber(&mut step.op, &inner_numbers);
    }
    let result = u16::try_from(steps.len().saturating_sub(1)).unwrap_or(0);
    append(&mut steps, expr, &numbers, u16::try_from(input).unwrap_or(u16::MAX), result);
    Ok(PlanStep::Device(Prim::Map { out: out.clone(), ins: all_ins, expr: Expr { steps } }))
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
