//! From values to buffers: where everything lies.
//!
//! View operations become strides, and cost a copy only where strides cannot say them. A state that is read, changed and
//! written again is changed in place; what still shows its old elements afterwards is copied first. Results go where they are
//! wanted: into their part of a concatenation, of a branch's result, of a state. What each of these takes to be safe is found
//! out before anything is emitted ([`flow::Flow`]).

mod emit;
mod flow;
mod target;

use crate::bound::Schedule;
use crate::dim::Dim;
use crate::error::{Fault, PlanError};
use crate::graph::{Graph, Origin};
use crate::plan::Plan;
use crate::prim::{View, ViewId};
use emit::Emitter;
use flow::Flow;

/// Gives every value of a graph its place. Temporaries start at multiples of `align` bytes.
///
/// # Errors
/// When a size depends on too many values to be followed, or the graph has a kernel that the program brings.
pub fn bufferize(graph: &Graph, align: u64) -> Result<Plan, PlanError> {
    let flow = Flow::of(graph);
    let mut plan = Emitter::new(graph, &flow).plan()?;
    check_sizes(&plan)?;
    plan.placement = plan.place(align);
    plan.schedule = Schedule::of(&plan);
    Ok(plan)
}

/// Refuses sizes, strides and offsets that were given up on.
fn check_sizes(plan: &Plan) -> Result<(), PlanError> {
    let dims = |view: ViewId| {
        let View { shape, strides, offset, .. } = plan.view(view);
        shape.iter().chain(strides).chain([offset])
    };
    let is_lost = |view: ViewId| dims(view).any(Dim::is_too_large);
    let mut steps = plan.blocks.iter().flat_map(|block| block.steps.iter().zip(&block.origin));
    match steps.find(|(step, _)| step.views().into_iter().any(is_lost)) {
        Some((step, origin)) => Err(at(*origin, step.name(), Fault::TooLarge)),
        None => Ok(()),
    }
}

fn at((chain, index): Origin, node: &'static str, fault: Fault) -> PlanError {
    PlanError { chain: chain as usize, index: index as usize, node, fault }
}
