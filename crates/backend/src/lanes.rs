//! Runs of several steps on the device, for several sessions at once.

use crate::error::{Error, Fault, Result};
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

/// The state of a device that runs one step of one session at a time, for [`run_in_turn`].
pub trait StepState: State {
    /// Runs a step on the inputs.
    fn step(&mut self, stop: &AtomicBool) -> Result<()>;

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

/// [`crate::Executable::run`] for a device whose states run one step at a time: lane after lane, step after step.
///
/// # Errors
/// As `run`.
pub fn run_in_turn<S: StepState>(lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
    check_lanes::<S>(lanes, |_| true)?;
    for lane in lanes {
        let state: &mut dyn std::any::Any = lane.state;
        if let Some(state) = state.downcast_mut::<S>() {
            lane.fault = run_lane(state, (lane.wanted, lane.ends), &mut lane.tokens, steps).err();
        }
    }
    Ok(())
}

fn run_lane<S: StepState>(
    state: &mut S,
    (wanted, ends): (usize, &[u32]),
    tokens: &mut Vec<u32>,
    steps: &Steps<'_>,
) -> Result<()> {
    let count = if steps.follow.is_some() { steps.count.min(wanted) } else { steps.count.min(1) };
    for left in (0..count).rev() {
        state.step(steps.stop)?;
        let Some(follow) = steps.follow else { return Ok(()) };
        let token = state.token(follow.token)?;
        let id = u32::try_from(token).map_err(|_| Fault::NotAToken(token))?;
        tokens.push(id);
        if left == 0 || ends.contains(&id) {
            return Ok(());
        }
        state.set(follow.feed, Change::To(token))?;
        follow.count_up.iter().try_for_each(|input| state.set(*input, Change::Up))?;
    }
    Ok(())
}
