//! What happens between two steps of a lane: `follow.cu`.

use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::{Fault, Follow};
use ptero_plan::plan::{Input, Plan};
use ptero_plan::prim::ViewId;

pub(crate) static FOLLOW: Part = part!("follow", "FollowArgs");

/// The most inputs that are counted, tokens that end a lane, and numbers that change from step to step; as in follow.cu.
const MOST_COUNTED: usize = 2;
const MOST_ENDS: usize = 16;
const MOST_NUMBERS: usize = 64;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FollowArgs {
    launch: Launch,
    token: ViewArg,
    feed: ViewArg,
    counted: [ViewArg; MOST_COUNTED],
    taken: u64,
    step: u32,
    counted_count: u32,
    ends_count: u32,
    numbers_count: u32,
    goes_on: u32,
    unused: u32,
    ends: [u32; MOST_ENDS],
    numbers: [i64; MOST_NUMBERS],
}

const _: () = assert!(size_of::<FollowArgs>() == 1232, "the layout of `FollowArgs` in follow.cu");

/// A step in a run, and what comes after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next<'a> {
    /// The number of the step in its run.
    pub(crate) step: usize,
    /// Tokens that end the lane.
    pub(crate) ends: &'a [u32],
    /// Another step follows, whose numbers the host has noted.
    pub(crate) goes_on: bool,
}

/// The view of the output that is the token; `None` if the host computes it.
pub(crate) fn token_view(plan: &Plan, follow: &Follow<'_>) -> Option<ViewId> {
    plan.outputs.get(follow.token)?.tensor()
}

/// Launches what comes between a step and the next.
pub(crate) fn follow(step: &mut Step<'_>, follow: &Follow<'_>, token: ViewId, next: &Next<'_>) -> Result<(), Fault> {
    let mut counted = [ViewArg::zeroed(); MOST_COUNTED];
    for (to, input) in counted.iter_mut().zip(follow.count_up) {
        *to = input_view(step, *input)?;
    }
    let mut args = FollowArgs {
        launch: step.launch(),
        token: step.view(token),
        feed: input_view(step, follow.feed)?,
        counted,
        taken: step.memory.taken_address(),
        step: small(next.step),
        counted_count: small(follow.count_up.len()),
        ends_count: small(next.ends.len()),
        numbers_count: small(step.memory.numbers().len()),
        goes_on: next.goes_on.into(),
        unused: 0,
        ends: [0; MOST_ENDS],
        numbers: [0; MOST_NUMBERS],
    };
    args.ends.iter_mut().zip(next.ends).for_each(|(to, end)| *to = *end);
    args.numbers.iter_mut().zip(step.memory.numbers()).for_each(|(to, number)| *to = *number);
    step.run_part(&FOLLOW, Variant::default(), Grid::new(1, 32), &args);
    Ok(())
}

/// Returns `true` if the kernel has room for everything that a run needs.
pub(crate) fn has_room(follow: &Follow<'_>, ends: &[u32], numbers: usize) -> bool {
    follow.count_up.len() <= MOST_COUNTED && ends.len() <= MOST_ENDS && numbers <= MOST_NUMBERS
}

/// The one element of an input.
fn input_view(step: &Step<'_>, input: usize) -> Result<ViewArg, Fault> {
    match step.program.plan.inputs.get(input) {
        Some(Input::Tensor { buf, .. }) => Ok(step.first_element(*buf)),
        Some(Input::Int(_)) | None => Err(Fault::Contract("what changes between steps is a tensor")),
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
