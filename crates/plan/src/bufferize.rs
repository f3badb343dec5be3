//! From values to buffers: assigns memory.
//!
//! View operations become strides, and cost a copy only if there are no strides for them. A state that is read, changed and
//! written again is changed in place; views of its old elements that are read later are copied first. Results are written
//! directly where they are needed: into a concatenation, the result of a branch, a state. [`flow::Flow`] finds out where this is
//! safe, before anything is emitted.

mod emit;
mod flow;
mod target;

use crate::bound::Schedule;
use crate::dim::Dim;
use crate::error::{Fault, PlanError};
use crate::graph::Graph;
use crate::place::Arena;
use crate::plan::Plan;
use crate::prim::{View, ViewId};
use emit::Emitter;
use flow::Flow;

/// Assigns memory to every value of a graph.
///
/// # Errors
/// If a size depends on too many values, or the graph has a kernel that the program carries.
pub fn bufferize(graph: &Graph, arena: Arena) -> Result<Plan, PlanError> {
    let flow = Flow::of(graph);
    let mut plan = Emitter::new(graph, &flow).plan()?;
    check_sizes(&plan)?;
    plan.placement = plan.place(arena);
    plan.schedule = Schedule::of(&plan);
    Ok(plan)
}

/// Refuses sizes, strides and offsets that are too large to represent.
fn check_sizes(plan: &Plan) -> Result<(), PlanError> {
    let dims = |view: ViewId| {
        let View { shape, strides, offset, .. } = plan.view(view);
        shape.iter().chain(strides).chain([offset])
    };
    let is_lost = |view: ViewId| dims(view).any(Dim::is_too_large);
    let mut steps = plan.blocks.iter().flat_map(|block| block.steps.iter().zip(&block.origin));
    match steps.find(|(step, _)| step.views().into_iter().any(is_lost)) {
        Some((step, origin)) => Err(PlanError::new(*origin, step.name(), Fault::TooLarge)),
        None => Ok(()),
    }
}
