//! Runs of several steps, without waiting for tokens.
//!
//! The host knows the numbers of steps to come: positions and seeds count up, whatever the tokens are. So it puts several steps on the
//! stream, each followed by a launch that takes the token, feeds it to the next step and replaces the numbers ([`follow`]), and then waits
//! once. A lane that ends halts on the device: what was put on the stream after that changes nothing, and the host goes back to that step.

use crate::capture::run_captured;
use crate::device::CudaState;
use crate::kernels::follow::{Next, follow, has_room, token_view};
use crate::memory::{MOST_STEPS, Taken};
use crate::program::Program;
use crate::run::{Runner, fault_of};
use ptero_backend::{Change, Error, Follow, Lane, Result, RunningLane, StepState, Steps};
use ptero_plan::prim::ViewId;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A run whose steps follow each other on the device.
pub(crate) struct Ahead<'a> {
    follow: Follow<'a>,
    token: ViewId,
    stop: &'a AtomicBool,
}

impl<'a> Ahead<'a> {
    /// `None` if the host has to see each token: steps cannot be captured, or something depends on the token.
    pub(crate) fn new(program: &Program, steps: &Steps<'a>, lanes: &[Lane<'_>]) -> Option<Self> {
        let follow = steps.follow.filter(|_| steps.count > 1 && program.is_capturable)?;
        let token = token_view(&program.plan, &follow)?;
        let has_room = lanes.iter().all(|lane| has_room(&follow, lane.ends, program.slots.len()));
        let is_free = has_room && !program.types.host_reads(follow.feed);
        is_free.then_some(Self { follow, token, stop: steps.stop })
    }

    /// Runs a lane to its end.
    pub(crate) fn run(&self, lane: &mut Lane<'_>, count: usize) {
        let mut left = count.min(lane.wanted);
        let state: &mut dyn std::any::Any = lane.state;
        let Some(state) = state.downcast_mut::<CudaState>() else { return };
        while left > 0 && lane.fault.is_none() {
            let before = lane.tokens.len();
            let wanted = left.min(MOST_STEPS);
            match self.burst(state, wanted, lane.ends, &mut lane.tokens) {
                Ok(true) => return,
                Ok(false) => left -= lane.tokens.len() - before,
                Err(error) => lane.fault = Some(error),
            }
            if left > 0 && lane.fault.is_none() {
                lane.fault = self.advance(state, lane.tokens.last().copied()).err();
            }
        }
    }

    /// Sets the inputs of the step after the last one.
    fn advance(&self, state: &mut CudaState, token: Option<u32>) -> Result<()> {
        token.map_or(Ok(()), |token| state.set(self.follow.feed, Change::To(token.into())))?;
        self.follow.count_up.iter().try_for_each(|input| state.set(*input, Change::Up))
    }

    /// Runs up to `wanted` steps. Returns `true` if a token has ended the lane.
    fn burst(&self, state: &mut CudaState, wanted: usize, ends: &[u32], tokens: &mut Vec<u32>) -> Result<bool> {
        state.has_outputs = false;
        let before = (state.inputs.clone(), state.small_inputs.clone());
        let (launched, fault) = self.launch(state, wanted, ends);
        let Taken { status, count, tokens: taken } = state.memory.taken(launched)?;
        tokens.extend(taken.iter().take(count));
        // A step without a token is done all the same.
        let done = count + usize::from(status.is_no_token());
        let latched = fault_of(&state.program, status);
        let fault = latched.or(fault.filter(|_| !status.is_end()));
        let is_at_start = fault.is_some() && !status.is_no_token();
        if done < launched {
            (state.inputs, state.small_inputs) = before;
            self.replay(state, done, is_at_start)?;
        }
        let step = if is_at_start { done } else { done.saturating_sub(1) };
        if let Some(token) = step.checked_sub(1).and_then(|index| taken.get(index)) {
            state.note(self.follow.feed, Change::To((*token).into()))?;
        }
        state.has_outputs = !is_at_start;
        fault.map_or(Ok(status.is_end()), Err)
    }

    /// Puts steps on the stream. Returns their number, and why there are not more.
    fn launch(&self, state: &mut CudaState, wanted: usize, ends: &[u32]) -> (usize, Option<Error>) {
        let (opened, program) = (Arc::clone(&state.opened), Arc::clone(&state.program));
        let mut scratch = opened.scratch();
        let mut runner = Runner { opened: &opened, program: &program, scratch: &mut scratch };
        let mut launched = 0;
        let mut fault = state.start_step().err();
        while fault.is_none() && launched < wanted {
            run_captured(&mut runner, &mut RunningLane::once(state, &mut fault), self.stop);
            if fault.is_some() {
                break;
            }
            state.numbers.finish(&mut state.inputs);
            let next = Next { step: launched, ends, goes_on: launched + 1 < wanted };
            launched += 1;
            if next.goes_on {
                fault = self.start_next(state).err();
            }
            let put = runner.between(state, |step| follow(step, &self.follow, self.token, &next));
            fault = put.err().map(Into::into).or(fault);
        }
        (launched, fault)
    }

    /// Computes the numbers of the next step on the host. If that fails, its inputs are set all the same.
    fn start_next(&self, state: &mut CudaState) -> Result<()> {
        self.follow.count_up.iter().try_for_each(|input| state.note(*input, Change::Up).map(drop))?;
        state.start_on_host()
    }

    /// Goes through the steps that have run, on the host alone, from the inputs of the first: to the end of the last, or to the start of
    /// the one after it.
    fn replay(&self, state: &mut CudaState, done: usize, starts_next: bool) -> Result<()> {
        state.start_on_host()?;
        for step in 1..=done {
            state.numbers.finish(&mut state.inputs);
            if step < done || starts_next {
                self.start_next(state)?;
            }
        }
        Ok(())
    }
}
