//! The gated delta rule that exporters write as a loop over tokens becomes one [`Prim::GatedDelta`].
//!
//! The loop rounds each product and sum to the type of its operands, and the state after each token to its own type. The
//! primitive computes in `f32` and rounds results and the last state once, as upstream's own kernel for the same rule does
//! (`docs/SEMANTICS.md`, "Gated delta rule").

mod around;
mod body;
mod pattern;

use super::branch::{Declined, origin};
use super::{Notes, Uses, tidy};
use crate::dim::{Dim, Var};
use crate::plan::{Plan, PlanStep};
use crate::prim::Buf;
use std::collections::BTreeSet;

const NAME: &str = "fuse-gated-delta";

/// A loop of a plan: where it stands, and what it runs.
struct Round {
    block: usize,
    step: usize,
    index: Var,
    count: Dim,
    body: usize,
}

pub(super) fn run(plan: &mut Plan, notes: &mut Notes) {
    let (mut seen, mut unread, mut is_changed) = (BTreeSet::new(), BTreeSet::new(), false);
    while let Some(round) = next_loop(plan, &seen) {
        seen.insert(round.body);
        let at = origin(plan, round.block, round.step);
        match pattern::find(plan, &round) {
            Ok(found) => {
                notes.say(NAME, at, "the loop became one step");
                let mut changes = around::outside(plan, &round, found);
                unread.append(&mut changes.unread);
                apply(plan, &round, changes);
                is_changed = true;
            }
            Err(Declined { at, why }) => notes.say(NAME, at, why),
        }
    }
    if is_changed {
        drop_unread(plan, &unread);
        tidy::drop_unreachable_blocks(plan);
    }
}

/// The first loop whose body was not looked at. Loops are taken in order: what one leaves behind, the next one reads.
fn next_loop(plan: &Plan, seen: &BTreeSet<usize>) -> Option<Round> {
    let reached = tidy::reached(plan);
    let blocks = plan.blocks.iter().enumerate().filter(|(block, _)| reached.contains(block));
    let mut steps = blocks.flat_map(|(block, what)| what.steps.iter().enumerate().map(move |step| (block, step)));
    steps.find_map(|(block, (step, what))| match what {
        PlanStep::Loop { index, count, body } if !seen.contains(body) => {
            Some(Round { block, step, index: *index, count: count.clone(), body: *body })
        }
        _ => None,
    })
}

/// Puts the steps in the place of the loop, and takes out the others that they stand for.
fn apply(plan: &mut Plan, round: &Round, changes: around::Changes) {
    let around::Changes { steps, gone, .. } = changes;
    plan.blocks.iter_mut().skip(round.body).take(1).for_each(|body| *body = Default::default());
    let at = origin(plan, round.block, round.step);
    if let Some(block) = plan.blocks.get_mut(round.block) {
        let old = std::mem::take(&mut block.steps).into_iter().zip(std::mem::take(&mut block.origin)).enumerate();
        for (number, pair) in old {
            let added = if number == round.step { steps.clone() } else { Vec::new() };
            let kept = number != round.step && !gone.contains(&number);
            for (step, origin) in added.into_iter().map(|step| (step, at)).chain(kept.then_some(pair)) {
                block.steps.push(step);
                block.origin.push(origin);
            }
        }
    }
}

/// Removes the copies into these buffers that nothing reads. One may have been the last reader of another.
fn drop_unread(plan: &mut Plan, unread: &BTreeSet<Buf>) {
    loop {
        let uses = Uses::of(plan);
        let is_dead = |buf: &Buf| uses.reads(*buf) == 0 && uses.writes(*buf) > 0;
        let dead: BTreeSet<Buf> = unread.iter().copied().filter(is_dead).collect();
        if dead.is_empty() {
            return;
        }
        // Each is a temporary that one step writes, a copy.
        tidy::retain(plan, |step| !matches!(step, PlanStep::Device(prim) if dead.contains(&prim.out().buf)));
    }
}
