//! Launches of a call, captured: a call with sizes that came before is one launch of a graph.
//!
//! What changes from call to call is read from memory (numbers from the table of the lane, inputs from their buffers), so that a graph
//! stays as it is.

use crate::device::CudaState;
use crate::program::device;
use crate::run::Runner;
use crate::stream::Captured;
use ptero_backend::RunningLane;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most graphs that a lane keeps: prompts come in few sizes, and decoding in one.
const MOST_GRAPHS: usize = 4;

/// The graphs of a lane. The most recent comes first.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Vec<Graph>);

/// The launches of calls with these sizes.
#[derive(Debug)]
struct Graph {
    sizes: Vec<i64>,
    /// How often memory had moved when it was captured.
    moves: u64,
    /// `None` until the second call: the first compiles kernels and allocates memory, and may be the only one.
    captured: Option<Captured>,
}

impl Graphs {
    /// That of these sizes, which becomes the first; `None` if they are new, and noted.
    fn find(&mut self, sizes: &[i64]) -> Option<&mut Graph> {
        match self.0.iter().position(|graph| graph.sizes == sizes) {
            Some(index) => {
                self.0.get_mut(..=index)?.rotate_right(1);
                self.0.first_mut()
            }
            None => {
                self.0.truncate(MOST_GRAPHS - 1);
                self.0.insert(0, Graph { sizes: sizes.to_vec(), moves: 0, captured: None });
                None
            }
        }
    }
}

/// Runs the main block for a lane: launch by launch when its sizes are new, and captured from the second call on.
pub(crate) fn run_captured(runner: &mut Runner<'_>, lane: &mut RunningLane<'_, CudaState>, stop: &AtomicBool) {
    if lane.fault.is_some() {
        return;
    }
    let main = runner.program.plan.main;
    let sizes = lane.state.numbers.bound().map(|bound| bound.sizes().to_vec()).unwrap_or_default();
    let is_known = lane.state.graphs.find(&sizes).is_some();
    if !is_known {
        runner.rehearse(main, lane);
    }
    if !is_known || stop.load(Ordering::Relaxed) {
        return runner.block(main, std::slice::from_mut(lane), stop);
    }
    let moves = lane.state.track.scratch().moves() + lane.state.memory.moves();
    let is_current = |graph: &Graph| graph.captured.is_some() && graph.moves == moves;
    if !lane.state.graphs.0.first().is_some_and(is_current) {
        let stream = lane.state.track.stream.clone();
        let captured = stream.capture(|_| {
            runner.block(main, std::slice::from_mut(lane), stop);
            Ok(())
        });
        // What cannot be captured runs launch by launch, and shows there why.
        let captured = captured.ok().filter(|_| lane.fault.is_none());
        if captured.is_none() {
            *lane.fault = None;
            return runner.block(main, std::slice::from_mut(lane), stop);
        }
        if let Some(graph) = lane.state.graphs.0.first_mut() {
            (graph.captured, graph.moves) = (captured, moves);
        }
    }
    let graph = lane.state.graphs.0.first_mut().and_then(|graph| graph.captured.as_mut());
    let launched = graph.map_or(Ok(()), |graph| device(graph.launch()));
    *lane.fault = launched.err().map(Into::into);
}
