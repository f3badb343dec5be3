//! Runs of several steps, without waiting for tokens.
//!
//! A step is built on the token of the one before, which is still an array. The host reads that token while the step runs, so it
//! learns of an end, or of a fault, when one more step is under way; that step is undone.

use crate::bridge::lock;
use crate::session::{Launched, MlxState};
use ptero_backend::{Change, Fault, Follow, Lane, Result, Steps};
use ptero_sampling::threefry::KeySequence;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

/// Runs a lane to its end.
pub(crate) fn run(lane: &mut Lane<'_>, steps: &Steps<'_>) {
    let left = if steps.follow.is_some() { steps.count.min(lane.wanted) } else { steps.count.min(1) };
    let state: &mut dyn std::any::Any = lane.state;
    let Some(state) = state.downcast_mut::<MlxState>().filter(|_| left > 0) else { return };
    (state.outputs, state.runs_ahead) = (None, left > 1);
    let outcome = match steps.follow {
        None => once(state, steps.stop),
        Some(follow) => Run::new(state, follow, lane.ends, &mut lane.tokens).steps(left, steps.stop),
    };
    lane.fault = outcome.err();
}

/// One step, waited for.
fn once(state: &mut MlxState, stop: &AtomicBool) -> Result<()> {
    let _guard = lock();
    let outcome = match state.launch(0, stop) {
        Err(error) => state.undo(0).and(Err(error)),
        Ok(launched) => match state.finish(&launched) {
            Err(error) => state.take_back(&launched).and(Err(error)),
            Ok(()) => {
                state.outputs = Some(launched.outputs);
                Ok(())
            }
        },
    };
    state.forget();
    outcome
}

/// What the host had before a step.
struct Before {
    session_ints: Vec<i64>,
    keys: KeySequence,
}

/// A step under way.
struct Flight {
    launched: Launched,
    before: Before,
}

/// A run of steps that follow each other.
struct Run<'a, 'b> {
    state: &'a mut MlxState,
    follow: Follow<'b>,
    ends: &'a [u32],
    tokens: &'a mut Vec<u32>,
    /// The number of tokens before the first step.
    first: usize,
    /// The counted inputs before the first step.
    counts: Vec<i64>,
    /// Steps under way, oldest first: at most two.
    flights: VecDeque<Flight>,
}

/// Whether a run goes on.
enum Landed {
    Goes,
    Ends,
}

impl<'a, 'b> Run<'a, 'b> {
    fn new(state: &'a mut MlxState, follow: Follow<'b>, ends: &'a [u32], tokens: &'a mut Vec<u32>) -> Self {
        let counts = follow.count_up.iter().map(|input| state.integer_input(*input)).collect();
        let first = tokens.len();
        Self { state, follow, ends, tokens, first, counts, flights: VecDeque::new() }
    }

    fn steps(mut self, left: usize, stop: &AtomicBool) -> Result<()> {
        // The token may stay on the device if the host does not read what it is fed to.
        let ahead = usize::from(!self.state.compiled.inputs.host_reads(self.follow.feed));
        let mut failed = None;
        let outcome = loop {
            // Held for a step at a time, so that other sessions get their turns.
            let _guard = lock();
            let next = self.done() + self.flights.len();
            if failed.is_none() && next < left && self.flights.len() <= ahead {
                failed = self.launch(next, stop).err();
                continue;
            }
            let Some(flight) = self.flights.pop_front() else {
                // A step could not even be built: its inputs are what they were when it began.
                break match failed {
                    Some(error) => self.set_inputs(self.done()).and(Err(error)),
                    None => Ok(()),
                };
            };
            match self.land(&flight) {
                Ok(Landed::Goes) if self.done() < left => {}
                Ok(Landed::Goes | Landed::Ends) => break self.end(flight),
                Err(error) if matches!(error.fault(), Fault::NotAToken(_)) => break self.end(flight).and(Err(error)),
                Err(error) => {
                    let step = self.done();
                    break self.state.take_back(&flight.launched).and_then(|()| self.set_inputs(step)).and(Err(error));
                }
            }
        };
        let _guard = lock();
        self.state.forget();
        outcome
    }

    /// The number of steps whose tokens are known.
    fn done(&self) -> usize {
        self.tokens.len() - self.first
    }

    /// Builds step `number` on the token of the one before.
    fn launch(&mut self, number: usize, stop: &AtomicBool) -> Result<()> {
        let half = u32::from(number % 2 == 1);
        let before =
            Before { session_ints: self.state.inputs.session_ints_mut().to_vec(), keys: self.state.keys.clone() };
        if number == self.done() && number > 0 {
            self.set_inputs(number)?;
        } else if number > 0 {
            self.count(number)?;
            self.state.feed(1 - half, self.follow.token, self.follow.feed)?;
        }
        match self.state.launch(half, stop) {
            Ok(launched) => self.flights.push_back(Flight { launched, before }),
            Err(error) => return self.state.undo(half).and(Err(error)),
        }
        Ok(())
    }

    /// Waits for a step, and takes its token.
    fn land(&mut self, flight: &Flight) -> Result<Landed> {
        self.state.finish(&flight.launched)?;
        let token = self.state.token(&flight.launched, self.follow.token)?;
        let id = u32::try_from(token).map_err(|_| Fault::NotAToken(token))?;
        self.tokens.push(id);
        Ok(if self.ends.contains(&id) { Landed::Ends } else { Landed::Goes })
    }

    /// Ends with a step that succeeded: undoes the one after it.
    fn end(&mut self, flight: Flight) -> Result<()> {
        if let Some(overrun) = self.flights.pop_front() {
            self.state.undo(overrun.launched.outputs.half)?;
            self.state.inputs.session_ints_mut().copy_from_slice(&overrun.before.session_ints);
            self.state.keys = overrun.before.keys;
        }
        self.state.outputs = Some(flight.launched.outputs);
        // Without a token, the step is still the last one.
        self.set_inputs(self.done().saturating_sub(1))
    }

    /// Sets the counted inputs to those of a step.
    fn count(&mut self, step: usize) -> Result<()> {
        let step = i64::try_from(step).unwrap_or(0);
        for (input, count) in self.follow.count_up.iter().zip(&self.counts) {
            self.state.set_input(*input, Change::To(count.wrapping_add(step)))?;
        }
        Ok(())
    }

    /// Sets all inputs that change to those of a step, whose token is known.
    fn set_inputs(&mut self, step: usize) -> Result<()> {
        self.count(step)?;
        match step.checked_sub(1).and_then(|before| self.tokens.get(self.first + before)) {
            Some(token) => self.state.set_input(self.follow.feed, Change::To((*token).into())),
            None => {
                self.state.unfeed(self.follow.feed);
                Ok(())
            }
        }
    }
}
