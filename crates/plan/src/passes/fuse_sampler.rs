//! The sampling head that exporters write, a branch on the temperature with two sorts and reads of scalars by the host, becomes one
//! [`Prim::Sample`].
//!
//! The tokens are the same, with these exceptions (`docs/SEMANTICS.md`, "Sampling"): at the border of a nucleus, where the
//! separate steps depend on the rounding of sums; logits that are not numbers, which never win; and values of `top_k` and
//! `top_p` that mean nothing.

mod pattern;

use super::branch::origin;
use super::{Notes, Uses, tidy};
use crate::dim::Dim;
use crate::plan::{Buffer, BufferKind, Plan, PlanStep};
use crate::prim::{Buf, Prim, Sample, View};
use pattern::{Parameter, Sampler};
use ptero_tensor::DType;
use std::collections::BTreeSet;

const NAME: &str = "fuse-sampler";

/// A branch of a plan: where it stands, and its blocks.
struct Fork {
    block: usize,
    step: usize,
    condition: Dim,
    then: usize,
    otherwise: usize,
}

pub(super) fn run(plan: &mut Plan, notes: &mut Notes) {
    let mut gone = BTreeSet::new();
    for fork in forks(plan) {
        match pattern::find(plan, &fork) {
            Ok(sampler) => {
                notes.say(NAME, origin(plan, fork.block, fork.step), "the branches that draw a token became one step");
                gone.extend([Some(sampler.condition), sampler.seed_var].into_iter().flatten());
                replace(plan, &fork, sampler);
            }
            Err(declined) => notes.say(NAME, declined.at, declined.why),
        }
    }
    for at in bits_outside_forks(plan) {
        notes.say(NAME, at, "not fused: random bits outside a branch on the temperature");
    }
    if !gone.is_empty() {
        tidy::drop_unreachable_blocks(plan);
        tidy::drop_unused(plan, &gone);
    }
}

/// The branches of which the first draws random bits.
fn forks(plan: &Plan) -> Vec<Fork> {
    let steps = plan
        .blocks
        .iter()
        .enumerate()
        .flat_map(|(block, steps)| steps.steps.iter().enumerate().map(move |(step, what)| (block, step, what)));
    let fork = |(block, step, what): (usize, usize, &PlanStep)| match what {
        PlanStep::If { condition, then, otherwise } if !bits(plan, *then).is_empty() => {
            Some(Fork { block, step, condition: condition.clone(), then: *then, otherwise: *otherwise })
        }
        _ => None,
    };
    steps.filter_map(fork).collect()
}

/// Where a block draws random bits.
fn bits(plan: &Plan, block: usize) -> Vec<usize> {
    let is_bits = |step: &PlanStep| matches!(step, PlanStep::Device(Prim::RandomBits { .. }));
    let steps = plan.blocks.get(block).map(|block| block.steps.as_slice()).unwrap_or_default();
    steps.iter().enumerate().filter(|(_, step)| is_bits(step)).map(|(at, _)| at).collect()
}

fn bits_outside_forks(plan: &Plan) -> Vec<(u32, u32)> {
    let then: BTreeSet<usize> = plan
        .blocks
        .iter()
        .flat_map(|block| &block.steps)
        .filter_map(|step| if let PlanStep::If { then, .. } = step { Some(*then) } else { None })
        .collect();
    // The branches of a sampler that was fused are not run by anyone, but still there.
    let reached = tidy::reached(plan);
    let blocks = (0..plan.blocks.len()).filter(|block| reached.contains(block) && !then.contains(block));
    blocks.flat_map(|block| bits(plan, block).into_iter().map(move |step| origin(plan, block, step))).collect()
}

/// Puts the sampler in the place of the branch.
fn replace(plan: &mut Plan, fork: &Fork, sampler: Sampler) {
    let Sampler { out, logits, temperature, top_k, top_p, seed, .. } = sampler;
    let top_k = parameter(plan, top_k, DType::I64, |value| value.to_le_bytes().to_vec());
    let top_p = parameter(plan, top_p, DType::F32, |value| value.to_le_bytes().to_vec());
    let seed = seed.map(|seed| parameter(plan, seed, DType::I64, |value| value.to_le_bytes().to_vec()));
    let sample = PlanStep::Device(Prim::Sample(Box::new(Sample { out, logits, temperature, top_k, top_p, seed })));
    let block = plan.blocks.get_mut(fork.block);
    block.and_then(|block| block.steps.get_mut(fork.step)).into_iter().for_each(|step| *step = sample.clone());
}

/// A parameter as a tensor; one whose value is known becomes a constant.
fn parameter<T>(plan: &mut Plan, parameter: Parameter<T>, dtype: DType, bytes: fn(T) -> Vec<u8>) -> View {
    match parameter {
        Parameter::Tensor(view) => view,
        Parameter::Known(value) => {
            let buf = Buf(u32::try_from(plan.buffers.len()).expect("a plan has fewer than 2^32 buffers"));
            let kind = BufferKind::Constant(bytes(value).into());
            plan.buffers.push(Buffer { dtype, elements: Dim::fixed(1), kind });
            View::row_major(buf, dtype, Vec::new())
        }
    }
}
