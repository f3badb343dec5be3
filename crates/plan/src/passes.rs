//! Passes: rewrites of a graph. A pass is one file here and one line in a list. Each can be disabled by name; a pass that declines
//! says why.

mod fuse_epilogue;
mod fuse_gated_delta;
mod fuse_maps;
mod fuse_sampler;
mod matcher;

use crate::cache::KvCache;
use crate::capabilities::Capabilities;
use crate::error::PlanError;
pub use crate::graph::drop_unused;
use crate::graph::{BlockId, Graph, Node, Op, Origin, Place};
use crate::lower::{Options, lower};
use ptero_pte::VerifiedDelegate;
use rustc_hash::FxHashMap;

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Rewrites a graph, and returns `true` if unused operations may be left.
    run: fn(&mut Graph, &mut Notes) -> bool,
}

/// Passes that may change rounding, in the order in which they run: the same for all our devices. `docs/SEMANTICS.md` defines the
/// results.
pub const CANONICALISATIONS: &[Pass] = &[
    Pass { name: "fuse-sampler", help: "the operations that draw a token become one", run: fuse_sampler::run },
    Pass { name: "fuse-gated-delta", help: "a loop over tokens becomes one operation", run: fuse_gated_delta::run },
];

/// Passes that preserve every bit, in the order in which they run, after the canonicalisations.
pub const OPTIMISATIONS: &[Pass] = &[
    Pass { name: "fuse-maps", help: "functions of elements that feed only one other join it", run: fuse_maps::run },
    Pass { name: FUSE_EPILOGUE, help: "functions of a product join the product", run: fuse_epilogue::run },
];

/// Only for devices with epilogues.
const FUSE_EPILOGUE: &str = "fuse-epilogue";

/// The names of all passes.
pub fn names() -> impl Iterator<Item = &'static str> {
    CANONICALISATIONS.iter().chain(OPTIMISATIONS).map(|pass| pass.name)
}

/// What passes did and declined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Rewrites and refusals, each with the instruction it concerns.
    pub lines: Vec<String>,
    /// The pass that runs.
    pass: &'static str,
}

impl Notes {
    fn add(&mut self, (chain, index): Origin, what: &str) {
        self.lines.push(format!("{}: {chain}.{index}: {what}", self.pass));
    }
}

/// Lowers a delegate and runs the passes for a device, except those named in `skip`: all that happens to a program before a
/// device gets it.
///
/// # Errors
/// Same as [`lower`].
pub fn prepare(
    delegate: VerifiedDelegate<'_>,
    kv_cache: Option<KvCache>,
    capabilities: &Capabilities,
    skip: &[String],
) -> Result<(Graph, Notes), PlanError> {
    let mut graph = lower(delegate, &Options { kv_cache, keeps_foreign: capabilities.foreign_kernels })?;
    let notes = run(&mut graph, capabilities, skip);
    Ok((graph, notes))
}

/// Runs the passes that are for a device, except those named in `skip`. Unused operations are removed first, and after each pass.
pub fn run(graph: &mut Graph, capabilities: &Capabilities, skip: &[String]) -> Notes {
    let mut notes = Notes::default();
    drop_unused(graph);
    let canonicalisations = CANONICALISATIONS.iter().filter(|_| !capabilities.is_inexact);
    let can_run = |pass: &&Pass| pass.name != FUSE_EPILOGUE || capabilities.epilogues;
    let passes = canonicalisations.chain(OPTIMISATIONS.iter().filter(can_run));
    for pass in passes.filter(|pass| !skip.iter().any(|name| name == pass.name)) {
        notes.pass = pass.name;
        if (pass.run)(graph, &mut notes) {
            drop_unused(graph);
        }
        debug_assert_eq!(graph.verify(), Ok(()), "after `{}`:\n{graph}", pass.name);
    }
    notes
}

/// The operations of a kind, with their places.
fn operations(graph: &Graph, is_it: impl Fn(&Op) -> bool) -> Vec<(Place, Node)> {
    let blocks = (0..).map(BlockId).zip(&graph.blocks);
    let nodes = blocks.flat_map(|(id, block)| (0..).zip(&block.nodes).map(move |(index, node)| ((id, index), node)));
    nodes.filter(|(_, node)| is_it(&node.op)).map(|(place, node)| (place, node.clone())).collect()
}

/// Replaces operations by others, and returns `true` if there were any.
fn replace(graph: &mut Graph, mut edits: FxHashMap<Place, Vec<Node>>) -> bool {
    let is_changed = !edits.is_empty();
    for (id, block) in (0..).map(BlockId).zip(&mut graph.blocks).filter(|_| is_changed) {
        let nodes = std::mem::take(&mut block.nodes).into_iter().enumerate();
        let new = |(index, node)| edits.remove(&(id, index)).unwrap_or_else(|| vec![node]);
        block.nodes = nodes.flat_map(new).collect();
    }
    is_changed
}
