//! Launches of a call, captured: a call of the same lanes with sizes that came before is one launch of a graph.
//!
//! What changes from call to call is read from memory (numbers from the table of the lane, inputs from their buffers), so that a graph
//! stays as it is.

use crate::device::CudaState;
use crate::program::device;
use crate::run::Runner;
use crate::stream::Captured;
use ptero_backend::RunningLane;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most graphs that a program keeps: prompts come in few sizes, and decoding in one, but lanes come and go.
const MOST_GRAPHS: usize = 32;

/// The graphs of a program. The most recent comes first.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Vec<Graph>);

/// What the launches of a call depend on.
#[derive(Debug)]
struct Key {
    /// The addresses of the lanes.
    lanes: Vec<u64>,
    sizes: Vec<i64>,
}

/// The launches of calls of these lanes with these sizes.
#[derive(Debug)]
struct Graph {
    key: Key,
    /// How often memory had moved when it was captured.
    moves: u64,
    /// `None` until the second call: the first compiles kernels and allocates memory, and may be the only one.
    captured: Option<Captured>,
}

impl Key {
    fn new(lanes: &[RunningLane<'_, CudaState>]) -> Self {
        let addresses = lanes.iter().map(|lane| lane.state.memory.address()).collect();
        Self { lanes: addresses, sizes: lanes.first().map_or_else(Vec::new, |lane| sizes(lane).to_vec()) }
    }

    fn is_of(&self, lanes: &[RunningLane<'_, CudaState>]) -> bool {
        let are_same = self.lanes.iter().copied().eq(lanes.iter().map(|lane| lane.state.memory.address()));
        are_same && lanes.first().is_none_or(|lane| sizes(lane) == self.sizes)
    }
}

impl Graphs {
    /// Makes the graph of these lanes the first; returns `false` if it is new, and noted.
    fn find(&mut self, lanes: &[RunningLane<'_, CudaState>]) -> bool {
        let known = self.0.iter().position(|graph| graph.key.is_of(lanes));
        match known.and_then(|index| self.0.get_mut(..=index)) {
            Some(until) => until.rotate_right(1),
            None => {
                self.0.truncate(MOST_GRAPHS - 1);
                self.0.insert(0, Graph { key: Key::new(lanes), moves: 0, captured: None });
            }
        }
        known.is_some()
    }

    /// A lane ends: its memory goes.
    pub(crate) fn forget(&mut self, lane: u64) {
        self.0.retain(|graph| !graph.key.lanes.contains(&lane));
    }
}

/// Runs the main block for lanes, those of equal sizes together: launch by launch when they are new, and captured from the second call on.
pub(crate) fn run_captured(runner: &mut Runner<'_>, lanes: &mut [RunningLane<'_, CudaState>], stop: &AtomicBool) {
    lanes.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
    let running = lanes.partition_point(|lane| lane.fault.is_none());
    let (running, _) = lanes.split_at_mut(running);
    for equal in running.chunk_by_mut(|a, b| sizes(a) == sizes(b)) {
        run_equal(runner, equal, stop);
    }
}

/// Lanes that have failed come last; others by their sizes.
fn order<'l>(lane: &'l RunningLane<'_, CudaState>) -> (bool, &'l [i64], u64) {
    (lane.fault.is_some(), sizes(lane), lane.state.memory.address())
}

fn sizes<'l>(lane: &'l RunningLane<'_, CudaState>) -> &'l [i64] {
    lane.state.numbers.bound().map_or(&[], |bound| bound.sizes())
}

/// As [`run_captured`], for lanes of equal sizes.
fn run_equal(runner: &mut Runner<'_>, lanes: &mut [RunningLane<'_, CudaState>], stop: &AtomicBool) {
    let main = runner.program.plan.main;
    let is_known = runner.program.graphs().find(lanes);
    if !is_known {
        runner.rehearse(main, lanes);
    }
    if !is_known || stop.load(Ordering::Relaxed) {
        return runner.block(main, lanes, stop);
    }
    let moves = runner.scratch.moves() + lanes.iter().map(|lane| lane.state.memory.moves()).sum::<u64>();
    let is_current = |graph: &Graph| graph.captured.is_some() && graph.moves == moves;
    if !runner.program.graphs().0.first().is_some_and(is_current) {
        let captured = runner.stream.clone().capture(|_| {
            runner.block(main, lanes, stop);
            Ok(())
        });
        // What cannot be captured runs launch by launch, and shows there why.
        let captured = captured.ok().filter(|_| lanes.iter().all(|lane| lane.fault.is_none()));
        if captured.is_none() {
            lanes.iter_mut().for_each(|lane| *lane.fault = None);
            return runner.block(main, lanes, stop);
        }
        if let Some(graph) = runner.program.graphs().0.first_mut() {
            (graph.captured, graph.moves) = (captured, moves);
        }
    }
    let mut graphs = runner.program.graphs();
    let graph = graphs.0.first_mut().and_then(|graph| graph.captured.as_mut());
    if let Err(fault) = graph.map_or(Ok(()), |graph| device(graph.launch())) {
        lanes.iter_mut().for_each(|lane| *lane.fault = Some(fault.clone().into()));
    }
}
