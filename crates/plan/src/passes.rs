//! Passes: rewrites of a plan that change how fast it runs and not what it computes, to the bit; where upstream leaves a
//! result to rounding, `docs/SEMANTICS.md` says what a pass makes of it.
//!
//! A pass is one file here and one line in [`PASSES`]. Each can be switched off by name; a pass that declines says why.

mod branch;
mod fuse_gated_delta;
mod fuse_maps;
mod fuse_sampler;
mod tidy;

use crate::plan::{HostOp, Output, Plan, PlanStep};
use crate::prim::{Buf, View};

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    run: fn(&mut Plan, &mut Notes),
}

/// The passes, in the order in which they run.
pub const PASSES: &[Pass] = &[
    Pass { name: "fuse-sampler", help: "the steps that draw a token become one", run: fuse_sampler::run },
    Pass {
        name: "fuse-gated-delta",
        help: "a loop over tokens that is the gated delta rule becomes one step",
        run: fuse_gated_delta::run,
    },
    Pass {
        name: "fuse-maps",
        help: "elementwise steps that feed only one other become part of it",
        run: fuse_maps::run,
    },
];

/// What the passes have to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Rewrites and refusals, each with the instruction it concerns.
    pub lines: Vec<String>,
}

impl Notes {
    fn say(&mut self, pass: &str, (chain, index): (u32, u32), what: &str) {
        self.lines.push(format!("{pass}: {chain}.{index}: {what}"));
    }
}

/// Runs all passes but those named.
pub fn optimize(plan: &mut Plan, skip: &[String]) -> Notes {
    let mut notes = Notes::default();
    for pass in PASSES.iter().filter(|pass| !skip.iter().any(|name| name == pass.name)) {
        (pass.run)(plan, &mut notes);
    }
    notes
}

/// How often each buffer is read and written.
pub(crate) struct Uses {
    reads: Vec<u32>,
    writes: Vec<u32>,
}

impl Uses {
    /// Over all blocks, and by who reads the outputs.
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut uses = Self::of_blocks(plan, &(0..plan.blocks.len()).collect::<Vec<_>>());
        for output in &plan.outputs {
            if let Output::Tensor(view) = output {
                count(&mut uses.reads, view);
            }
        }
        uses
    }

    /// Over these blocks alone.
    fn of_blocks(plan: &Plan, blocks: &[usize]) -> Self {
        let mut uses = Self { reads: vec![0; plan.buffers.len()], writes: vec![0; plan.buffers.len()] };
        let blocks = blocks.iter().filter_map(|block| plan.blocks.get(*block));
        for step in blocks.flat_map(|block| &block.steps) {
            match step {
                PlanStep::Device(prim) => {
                    prim.reads().into_iter().for_each(|view| count(&mut uses.reads, view));
                    prim.writes().into_iter().for_each(|view| count(&mut uses.writes, view));
                }
                PlanStep::Host { op: HostOp::Item(view), .. } => count(&mut uses.reads, view),
                PlanStep::Host { .. } | PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => {}
            }
        }
        uses
    }

    pub(crate) fn reads(&self, buf: Buf) -> u32 {
        self.reads.get(buf.0 as usize).copied().unwrap_or(0)
    }

    pub(crate) fn writes(&self, buf: Buf) -> u32 {
        self.writes.get(buf.0 as usize).copied().unwrap_or(0)
    }
}

fn count(counts: &mut [u32], view: &View) {
    counts.iter_mut().skip(view.buf.0 as usize).take(1).for_each(|count| *count += 1);
}
