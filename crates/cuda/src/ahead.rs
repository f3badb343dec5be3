//! Runs of several steps, without waiting for tokens.
//!
//! The host knows the numbers of steps to come: positions and seeds count up, whatever the tokens are. So it puts several steps on the
//! stream, each followed by a launch that takes the token, feeds it to the next step and replaces the numbers ([`follow`]), and then waits
//! once for each lane. A lane that ends halts on the device: what was put on the stream after that changes nothing, and the host goes back to that step.

use crate::capture::run_captured;
use crate::device::CudaState;
use crate::kernels::follow::{Next, follow, has_room, token_view};
use crate::memory::{MOST_STEPS, Taken};
use crate::program::Program;
use crate::run::{Runner, fault_of};
use ptero_backend::{Change, Error, Follow, Inputs, Lane, Result, RunningLane, StepState, Steps};
use ptero_plan::prim::ViewId;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A run whose steps follow each other on the device.
pub(crate) struct Ahead<'a> {
    follow: Follow<'a>,
    token: ViewId,
    stop: &'a AtomicBool,
}

/// Steps of a lane that are on its stream.
struct Burst {
    launched: usize,
    /// Why there are not more.
    fault: Option<Error>,
    /// The inputs of the first.
    before: (Inputs, Vec<Vec<u8>>),
}

impl Burst {
    fn new(state: &mut CudaState) -> Self {
        state.has_outputs = false;
        Self { launched: 0, fault: None, before: (state.inputs.clone(), state.small_inputs.clone()) }
    }
}

/// A lane while it runs.
struct Running<'l> {
    state: &'l mut CudaState,
    tokens: &'l mut Vec<u32>,
    fault: &'l mut Option<Error>,
    ends: &'l [u32],
    /// The number of steps that it still takes.
    left: usize,
    has_run: bool,
    burst: Option<Burst>,
}

impl<'l> Running<'l> {
    /// `None` for a lane that takes no steps.
    fn new(lane: &'l mut Lane<'_>, count: usize) -> Option<Self> {
        let left = count.min(lane.wanted);
        let Lane { state, ends, tokens, fault, .. } = lane;
        let state: &mut dyn std::any::Any = &mut **state;
        let state = state.downcast_mut().filter(|_| left > 0 && fault.is_none())?;
        Some(Self { state, tokens, fault, ends, left, has_run: false, burst: None })
    }

    /// The number of steps of its next burst.
    fn wanted(&self) -> usize {
        self.left.min(MOST_STEPS)
    }

    /// The lane, if this is the next step of its burst.
    fn at(&mut self, step: usize) -> Option<RunningLane<'_, CudaState>> {
        let wanted = self.wanted();
        let burst = self.burst.as_mut().filter(|burst| burst.fault.is_none() && burst.launched == step)?;
        (step < wanted).then(|| RunningLane::once(self.state, &mut burst.fault))
    }
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

    /// Runs lanes to their ends. What comes next for all is put on the stream before the first of them is waited for.
    pub(crate) fn run(&self, lanes: &mut [Lane<'_>], count: usize) {
        let mut running: SmallVec<[Running<'_>; 8]> =
            lanes.iter_mut().filter_map(|lane| Running::new(lane, count)).collect();
        while !running.is_empty() {
            for lane in &mut running {
                let goes_on = lane.has_run.then(|| self.advance(lane.state, lane.tokens.last().copied()));
                match goes_on.unwrap_or(Ok(())) {
                    Ok(()) => lane.burst = Some(Burst::new(lane.state)),
                    Err(error) => *lane.fault = Some(error),
                }
            }
            self.launch(&mut running);
            running.retain(|lane| self.finish(lane));
        }
    }

    /// Takes the tokens of a burst. Returns `true` if the lane goes on.
    fn finish(&self, lane: &mut Running<'_>) -> bool {
        let Some(burst) = lane.burst.take() else { return false };
        lane.has_run = true;
        let before = lane.tokens.len();
        match self.take(lane.state, burst, lane.tokens) {
            Ok(true) => false,
            Ok(false) => {
                lane.left -= lane.tokens.len() - before;
                lane.left > 0
            }
            Err(error) => {
                *lane.fault = Some(error);
                false
            }
        }
    }

    /// Sets the inputs of the step after the last one.
    fn advance(&self, state: &mut CudaState, token: Option<u32>) -> Result<()> {
        token.map_or(Ok(()), |token| state.set(self.follow.feed, Change::To(token.into())))?;
        self.follow.count_up.iter().try_for_each(|input| state.set(*input, Change::Up))
    }

    /// Takes the tokens of a burst. Returns `true` if a token has ended the lane.
    fn take(&self, state: &mut CudaState, burst: Burst, tokens: &mut Vec<u32>) -> Result<bool> {
        let Burst { launched, fault, before } = burst;
        let opened = Arc::clone(&state.opened);
        let turn = opened.turn();
        let Taken { status, count, tokens: taken } = state.memory.taken(launched)?;
        drop(turn);
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

    /// Puts up to [`MOST_STEPS`] steps on the stream: a step of all lanes, then the next.
    fn launch(&self, running: &mut [Running<'_>]) {
        let Some(first) = running.first() else { return };
        let (opened, program) = (Arc::clone(&first.state.opened), Arc::clone(&first.state.program));
        let mut turn = opened.turn();
        let mut runner = Runner::new(&opened, &program, &mut turn);
        for Running { state, burst, .. } in running.iter_mut() {
            if let Some(burst) = burst {
                burst.fault = state.start_step().err();
            }
        }
        for step in 0..MOST_STEPS {
            let mut lanes: SmallVec<[RunningLane<'_, CudaState>; 8]> =
                running.iter_mut().filter_map(|lane| lane.at(step)).collect();
            if lanes.is_empty() {
                return;
            }
            run_captured(&mut runner, &mut lanes, self.stop);
            drop(lanes);
            running.iter_mut().for_each(|lane| self.end_step(&mut runner, lane, step));
            if let Err(fault) = runner.flush() {
                let bursts = running.iter_mut().filter_map(|lane| lane.burst.as_mut());
                bursts.for_each(|burst| burst.fault = Some(fault.clone().into()));
            }
        }
    }

    /// Lets a launch wait that ends a step of a lane, and prepares the next step.
    fn end_step(&self, runner: &mut Runner<'_>, lane: &mut Running<'_>, step: usize) {
        if lane.at(step).is_none() {
            return;
        }
        let goes_on = step + 1 < lane.wanted();
        let (state, ends, Some(burst)) = (&mut *lane.state, lane.ends, &mut lane.burst) else { return };
        state.numbers.finish(&mut state.inputs);
        let next = Next { step, ends, goes_on };
        burst.launched += 1;
        if goes_on {
            burst.fault = self.start_next(state).err();
        }
        let put = runner.between(state, |step| follow(step, &self.follow, self.token, &next));
        if let Err(fault) = put {
            burst.fault = Some(fault.into());
        }
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
