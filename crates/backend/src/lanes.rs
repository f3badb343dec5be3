//! Runs of several steps on the device, for several sessions at once.

use crate::error::{Error, Fault, Result};
use crate::lists::ListMemory;
use crate::traits::State;
use std::sync::atomic::AtomicBool;

/// The number of steps to run, and what changes between two of them.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// The most steps to run.
    pub count: usize,
    /// After each step: the token it drew, and what the next step gets. Without it, one step runs and no tokens are taken.
    pub follow: Option<Follow<'a>>,
    /// Ends the run when it is set, which any thread may do.
    pub stop: &'a AtomicBool,
}

/// How a step follows another.
#[derive(Clone, Copy, Debug)]
pub struct Follow<'a> {
    /// The output that is the token: one element of type `i64`, `i32` or `u32`.
    pub token: usize,
    /// The input that gets the token: a tensor with one element of type `i64` or `i32`.
    pub feed: usize,
    /// Inputs whose one element, of type `i64` or `i32`, grows by one: positions, seeds.
    pub count_up: &'a [usize],
}

/// A session's part in a run.
pub struct Lane<'a> {
    /// Its state; the inputs of the first step are written.
    pub state: &'a mut dyn State,
    /// The most tokens that it wants.
    pub wanted: usize,
    /// Tokens that end it.
    pub ends: &'a [u32],
    /// The tokens it got in this run, one per step.
    pub tokens: Vec<u32>,
    /// What ended it early.
    pub fault: Option<Error>,
}

impl<'a> Lane<'a> {
    /// A lane that takes part in every step.
    pub fn new(state: &'a mut dyn State) -> Self {
        Self { state, wanted: usize::MAX, ends: &[], tokens: Vec::new(), fault: None }
    }
}

/// One step with no token taken: the whole of a run for programs that are not called again and again.
///
/// # Errors
/// What ended the step.
pub fn run_once(executable: &dyn crate::Executable, state: &mut dyn State, stop: &AtomicBool) -> Result<()> {
    let mut lanes = [Lane::new(state)];
    executable.run(&mut lanes, &Steps { count: 1, follow: None, stop })?;
    let [lane] = lanes;
    lane.fault.map_or(Ok(()), Err)
}

/// Refuses lanes whose states are not an executable's own.
///
/// # Errors
/// When one is of another kind, or belongs to another executable.
pub fn check_lanes<S: State>(lanes: &[Lane<'_>], is_own: impl Fn(&S) -> bool) -> Result<()> {
    let is_ours = |lane: &Lane<'_>| {
        let state: &dyn std::any::Any = &*lane.state;
        state.downcast_ref::<S>().is_some_and(&is_own)
    };
    let is_right = lanes.iter().all(is_ours);
    is_right.then_some(()).ok_or(Fault::Contract("a lane is a state of the executable that runs it").into())
}

/// The state of a device that runs step by step, for [`run_steps`].
pub trait StepState: State + Sized {
    /// Runs a step on the inputs.
    fn step(&mut self, stop: &AtomicBool) -> Result<()>;

    /// Runs a step of several lanes. Lanes that fail get their fault.
    fn step_together(lanes: &mut [RunningLane<'_, Self>], stop: &AtomicBool) {
        lanes.iter_mut().for_each(|lane| *lane.fault = lane.state.step(stop).err());
    }

    /// The one element of an output of the last step, an integer. A device whose steps never follow each other needs none.
    fn token(&self, output: usize) -> Result<i64> {
        let _ = output;
        Err(NO_STEPS.into())
    }

    /// Adds to the one element of an input, an integer, or replaces it.
    fn set(&mut self, input: usize, change: Change) -> Result<()> {
        let _ = (input, change);
        Err(NO_STEPS.into())
    }
}

const NO_STEPS: Fault = Fault::Contract("steps of this device do not follow each other");

/// How an input changes between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It becomes this integer.
    To(i64),
    /// It grows by one.
    Up,
}

/// A lane while its steps run.
#[derive(Debug)]
pub struct RunningLane<'a, S> {
    /// Its state.
    pub state: &'a mut S,
    /// What ended it early.
    pub fault: &'a mut Option<Error>,
    ends: &'a [u32],
    tokens: Option<&'a mut Vec<u32>>,
    /// The number of steps that it still takes.
    left: usize,
}

/// The memory of the list of running lanes, which stays between runs.
pub type RunningLanes<S> = ListMemory<RunningLane<'static, S>>;

impl<'a, S: State> RunningLane<'a, S> {
    /// A lane that takes one step, and no token.
    pub fn once(state: &'a mut S, fault: &'a mut Option<Error>) -> Self {
        Self { state, fault, ends: &[], tokens: None, left: 1 }
    }

    fn new(lane: &'a mut Lane<'_>, steps: &Steps<'_>) -> Option<Self> {
        let left = if steps.follow.is_some() { steps.count.min(lane.wanted) } else { steps.count.min(1) };
        let state: &mut dyn std::any::Any = lane.state;
        let (ends, tokens) = (lane.ends, Some(&mut lane.tokens));
        state.downcast_mut::<S>().map(|state| Self { state, fault: &mut lane.fault, ends, tokens, left })
    }
}

impl<S: StepState> RunningLane<'_, S> {
    /// Takes the token of a step, and sets the inputs of the next.
    fn follow(&mut self, follow: Option<Follow<'_>>) -> Result<()> {
        self.left -= 1;
        let (Some(follow), Some(tokens)) = (follow, &mut self.tokens) else { return Ok(()) };
        let token = self.state.token(follow.token)?;
        let id = u32::try_from(token).map_err(|_| Fault::NotAToken(token))?;
        tokens.push(id);
        if self.ends.contains(&id) {
            self.left = 0;
        }
        if self.left > 0 {
            self.state.set(follow.feed, Change::To(token))?;
            follow.count_up.iter().try_for_each(|input| self.state.set(*input, Change::Up))?;
        }
        Ok(())
    }
}

/// [`crate::Executable::run`] for a device whose states run step by step: a step of all lanes, then the next. Runs of as many lanes
/// as an earlier one with the same `memory` allocate nothing here.
///
/// # Errors
/// As `run`.
pub fn run_steps<S: StepState>(lanes: &mut [Lane<'_>], steps: &Steps<'_>, memory: &RunningLanes<S>) -> Result<()> {
    check_lanes::<S>(lanes, |_| true)?;
    // One lane, as in most runs, needs no list.
    if let [lane] = lanes {
        RunningLane::<S>::new(lane, steps).into_iter().for_each(|lane| run_all(&mut [lane], steps));
    } else {
        let mut running: Vec<RunningLane<'_, S>> = memory.take();
        running.extend(lanes.iter_mut().filter_map(|lane| RunningLane::new(lane, steps)));
        run_all(&mut running, steps);
        memory.put_back(running);
    }
    Ok(())
}

fn run_all<S: StepState>(mut lanes: &mut [RunningLane<'_, S>], steps: &Steps<'_>) {
    loop {
        lanes = split(lanes, |lane| lane.left > 0 && lane.fault.is_none()).0;
        if lanes.is_empty() {
            return;
        }
        S::step_together(lanes, steps.stop);
        for lane in lanes.iter_mut().filter(|lane| lane.fault.is_none()) {
            *lane.fault = lane.follow(steps.follow).err();
        }
    }
}

/// Moves the lanes for which a condition holds before the others.
pub(crate) fn split<L>(lanes: &mut [L], mut is_first: impl FnMut(&mut L) -> bool) -> (&mut [L], &mut [L]) {
    let mut count = 0;
    for at in 0..lanes.len() {
        if lanes.get_mut(at).is_some_and(&mut is_first) {
            lanes.swap(count, at);
            count += 1;
        }
    }
    lanes.split_at_mut(count)
}
