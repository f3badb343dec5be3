//! The states of sessions, and the steps that they take.

use crate::block::Builder;
use crate::bridge::ffi::{self, Values};
use crate::bridge::lock;
use crate::compiled::{Compiled, number};
use crate::device::spend;
use crate::frame::{Frame, IndexCheck, NONE, Sizes, device, verdict};
use crate::kind::kind;
use cxx::UniquePtr;
use ptero_backend::{
    Change, Executable, Fault, InputValue, Inputs, Lane, OutputValue, Place, Result, State, Steps, check_lanes,
    check_steps, integer,
};
use ptero_plan::graph::{Graph, Input, Output};
use ptero_sampling::threefry::KeySequence;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub(crate) struct Shared(pub(crate) Arc<Compiled>);

impl Executable for Shared {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let _guard = lock();
        Ok(Box::new(MlxState::new(&self.0, seed)))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        check_steps(&self.0.graph, steps)?;
        check_lanes(lanes, |state: &MlxState| Arc::ptr_eq(&state.compiled, &self.0))?;
        lanes.iter_mut().for_each(|lane| crate::run::run(lane, steps));
        Ok(())
    }
}

/// The state of a session.
pub(crate) struct MlxState {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) values: UniquePtr<Values>,
    pub(crate) inputs: Inputs,
    /// The bytes of each input that is a tensor.
    pub(crate) given: Vec<Given>,
    pub(crate) keys: KeySequence,
    /// Steps may be made before the tokens of those before them are known.
    pub(crate) runs_ahead: bool,
    /// The outputs of the last step, if it succeeded.
    pub(crate) outputs: Option<Outputs>,
}

/// An input that is a tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) bytes: Vec<u8>,
    /// MLX has an array of it.
    is_stored: bool,
    /// Only MLX has its elements: it is the output of a step under way.
    is_fed: bool,
}

/// The outputs of a step: which half of the slots they are in, and their sizes or numbers.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    pub(crate) half: u32,
    pub(crate) each: Vec<Produced>,
}

#[derive(Clone, Debug)]
pub(crate) enum Produced {
    Tensor(Vec<u64>),
    Int(i64),
}

/// A step that was handed to MLX.
pub(crate) struct Launched {
    pub(crate) outputs: Outputs,
    checks: Vec<IndexCheck>,
    /// The integers of the session once it had started.
    at_start: Vec<i64>,
}

impl MlxState {
    fn new(compiled: &Arc<Compiled>, seed: u64) -> Self {
        Self {
            values: compiled.values.copy(),
            inputs: Inputs::new(Arc::clone(&compiled.inputs)),
            given: vec![Given::default(); compiled.graph.inputs.len()],
            keys: KeySequence::new(seed),
            runs_ahead: false,
            outputs: None,
            compiled: Arc::clone(compiled),
        }
    }

    /// The states that a step keeps as they were, to be undone: all of them if another step may follow before its end is known.
    fn saved(&self) -> Vec<u32> {
        let saved = &self.compiled.saved;
        let is_ahead = self.runs_ahead && !saved.is_empty();
        if is_ahead { (0..number(self.compiled.graph.states.len())).collect() } else { saved.clone() }
    }

    /// Builds a step on the inputs, and hands it to MLX. Its outputs go to one half of their slots.
    pub(crate) fn launch(&mut self, half: u32, stop: &AtomicBool) -> Result<Launched> {
        let compiled = Arc::clone(&self.compiled);
        let (graph, slots) = (&*compiled.graph, compiled.slots);
        let states = number(graph.states.len());
        for state in self.saved() {
            self.values.pin_mut().alias(slots.saved + half * states + state, slots.states + state).map_err(device)?;
        }
        let start = Instant::now();
        let built = self.build(&compiled, half, stop);
        let building = start.elapsed();
        self.values.pin_mut().clear_each(&compiled.made);
        self.values.pin_mut().clear(slots.temporaries, NONE);
        let (launched, written) = built?;
        let mut wanted: Vec<u32> = Vec::new();
        for (index, output) in (0..).zip(&launched.outputs.each) {
            if matches!(output, Produced::Tensor(_)) {
                wanted.push(slots.outputs + half * number(graph.outputs.len()) + index);
            }
        }
        wanted.extend((slots.states..).zip(written).filter(|(_, written)| *written).map(|(slot, _)| slot));
        if !launched.checks.is_empty() {
            wanted.push(slots.checks + half);
        }
        self.values.pin_mut().async_eval(&wanted).map_err(device)?;
        spend(building, start.elapsed().saturating_sub(building));
        Ok(launched)
    }

    fn build(&mut self, compiled: &Compiled, half: u32, stop: &AtomicBool) -> Result<(Launched, Vec<bool>)> {
        let graph = &*compiled.graph;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Fault::Cancelled.into());
        }
        let mut host = vec![0; graph.host.len()];
        self.inputs.start(&mut host)?;
        let later = host.iter_mut().zip(&compiled.host).zip(&compiled.is_early).filter(|(_, is_early)| !**is_early);
        later.for_each(|((number, at_init), _)| *number = *at_init);
        let mut frame = Frame::new(compiled, self.values.pin_mut(), host, &mut self.keys);
        let builder = Builder { inputs: &self.inputs, stop };
        builder.advance(&mut frame, &compiled.advance)?;
        if let Some(folding) = &compiled.folding {
            let is_known = |input: usize| self.given.get(input).is_some_and(|given| !given.is_fed);
            frame.fold(folding.items(&self.inputs, |input| self.given.get(input).map(|given| &*given.bytes), is_known));
        }
        for (index, (input, given)) in graph.inputs.iter().zip(&mut self.given).enumerate() {
            let Input::Tensor(value) = input else { continue };
            let here = |fault: Fault| fault.at(Place::Input(index));
            if !given.is_stored {
                let (shape, kind) = (frame.shape(*value).map_err(here)?, frame.kind(*value).map_err(here)?);
                frame.arrays().store(value.0, &given.bytes, &shape, kind).map_err(device).map_err(here)?;
                given.is_stored = true;
            }
        }
        let [at_start, at_end] = [true, false].map(|is_start| -> Vec<i64> {
            let numbers = graph.session_ints.iter().map(|int| if is_start { &int.at_start } else { &int.at_end });
            numbers.map(|number| number.eval(&frame.host)).collect()
        });
        self.inputs.session_ints_mut().copy_from_slice(&at_start);
        let builder = Builder { inputs: &self.inputs, stop };
        if let Err(error) = builder.block(&mut frame, graph.main) {
            // A fault of the device in an earlier node comes first.
            frame.settle()?;
            return Err(error);
        }
        let each = collect(&mut frame, graph, half)?;
        let slot = compiled.slots.checks + half;
        frame.arrays().take_checks(slot).map_err(device)?;
        let (checks, written) = (frame.checks, frame.written);
        self.inputs.session_ints_mut().copy_from_slice(&at_end);
        Ok((Launched { outputs: Outputs { half, each }, checks, at_start }, written))
    }

    /// Waits for a step.
    ///
    /// # Errors
    /// The first of its indices that was outside its axis.
    pub(crate) fn finish(&mut self, launched: &Launched) -> Result<()> {
        if launched.checks.is_empty() {
            return Ok(());
        }
        let mut bytes = vec![0; launched.checks.len() * 16];
        let slot = self.compiled.slots.checks + launched.outputs.half;
        self.values.pin_mut().read(slot, &mut bytes).map_err(device)?;
        verdict(&launched.checks, &bytes)
    }

    /// Takes the states back to before a step, if they were kept.
    pub(crate) fn undo(&mut self, half: u32) -> Result<()> {
        let (slots, states) = (self.compiled.slots, number(self.compiled.graph.states.len()));
        for state in self.saved() {
            self.values.pin_mut().alias(slots.states + state, slots.saved + half * states + state).map_err(device)?;
        }
        Ok(())
    }

    /// Takes back a step that failed while it ran: what it did to the host, but that it had started, and to the states.
    pub(crate) fn take_back(&mut self, launched: &Launched) -> Result<()> {
        self.inputs.session_ints_mut().copy_from_slice(&launched.at_start);
        self.undo(launched.outputs.half)
    }

    /// Lets go of states that were kept.
    pub(crate) fn forget(&mut self) {
        let (saved, states) = (self.compiled.slots.saved, number(self.compiled.graph.states.len()));
        self.values.pin_mut().clear(saved, saved + 2 * states);
    }

    /// The one element of an input, an integer; 0 if it is none.
    pub(crate) fn integer_input(&self, input: usize) -> i64 {
        let (given, declared) = (self.given.get(input), self.compiled.graph.inputs.get(input));
        let (Some(given), Some(Input::Tensor(value))) = (given, declared) else { return 0 };
        let dtype = self.compiled.graph.ty(*value).dtype;
        if given.bytes.len() == dtype.size() { integer(dtype, &given.bytes) } else { 0 }
    }

    /// Changes the one element of an input.
    pub(crate) fn set_input(&mut self, input: usize, change: Change) -> Result<()> {
        let count = self.given.len();
        let given = self.given.get_mut(input).ok_or(Fault::NoSuch { what: "input", index: input, count })?;
        let (next, width) = self.inputs.change(input, change, &given.bytes)?;
        given.bytes.clear();
        given.bytes.extend(next.iter().take(width));
        (given.is_stored, given.is_fed) = (false, false);
        Ok(())
    }

    /// Makes an output of a step that is under way the array of an input.
    pub(crate) fn feed(&mut self, half: u32, token: usize, feed: usize) -> Result<()> {
        let (slot, compiled) = (self.output_slot(half, token), Arc::clone(&self.compiled));
        let Some(Input::Tensor(value)) = compiled.graph.inputs.get(feed) else { return Ok(()) };
        let ty = compiled.graph.ty(*value);
        let shape: Sizes = ty.shape.iter().map(|_| 1).collect();
        self.values.pin_mut().reshape(value.0, slot, &shape).map_err(device)?;
        self.values.pin_mut().cast(value.0, value.0, kind(ty.dtype)?).map_err(device)?;
        self.given.get_mut(feed).into_iter().for_each(|given| (given.is_stored, given.is_fed) = (true, true));
        Ok(())
    }

    /// Forgets what was fed to an input: its bytes count again.
    pub(crate) fn unfeed(&mut self, feed: usize) {
        self.given.get_mut(feed).into_iter().for_each(|given| (given.is_stored, given.is_fed) = (false, false));
    }

    /// The token of a step. Waits for it.
    pub(crate) fn token(&mut self, launched: &Launched, output: usize) -> Result<i64> {
        let here = |fault: Fault| fault.at(Place::Output(output));
        let one = match launched.outputs.each.get(output) {
            Some(Produced::Tensor(sizes)) => sizes.iter().product::<u64>() == 1,
            Some(Produced::Int(_)) | None => false,
        };
        if !one {
            return Err(here(Fault::Contract("a token is one element")));
        }
        let slot = self.output_slot(launched.outputs.half, output);
        self.values.pin_mut().item(slot).map_err(device).map_err(here)
    }

    /// The slot of an output.
    fn output_slot(&self, half: u32, output: usize) -> u32 {
        self.compiled.slots.outputs + half * number(self.compiled.graph.outputs.len()) + number(output)
    }

    fn output(&self, output: usize) -> Result<(u32, &Produced)> {
        let count = self.compiled.graph.outputs.len();
        if output >= count {
            return Err(Fault::NoSuch { what: "output", index: output, count }.into());
        }
        let found = self.outputs.as_ref().and_then(|outputs| Some((outputs.half, outputs.each.get(output)?)));
        found.ok_or_else(|| Fault::NotRun.at(Place::Output(output)))
    }
}

/// Moves the outputs of a step to their slots.
fn collect(frame: &mut Frame<'_>, graph: &Graph, half: u32) -> Result<Vec<Produced>> {
    let mut each = Vec::with_capacity(graph.outputs.len());
    for (index, output) in graph.outputs.iter().enumerate() {
        each.push(match output {
            Output::Int(number) => Produced::Int(frame.eval(number)),
            Output::Tensor(value) => {
                let here = |fault: Fault| fault.at(Place::Output(index));
                let slot = frame.compiled.slots.outputs + half * number(graph.outputs.len()) + number(index);
                let shape = frame.shape(*value).map_err(here)?;
                frame.arrays().alias(slot, value.0).map_err(device).map_err(here)?;
                Produced::Tensor(shape.iter().map(|&size| u64::try_from(size).unwrap_or(0)).collect())
            }
        });
    }
    Ok(each)
}

impl State for MlxState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        let bytes = self.inputs.accept(input, value)?;
        if let (Some(given), Some(bytes)) = (self.given.get_mut(input), bytes) {
            given.bytes.clear();
            given.bytes.extend_from_slice(bytes);
            (given.is_stored, given.is_fed) = (false, false);
        }
        self.outputs = None;
        Ok(())
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        let (half, produced) = self.output(output)?;
        match (produced, self.compiled.graph.outputs.get(output)) {
            (Produced::Tensor(sizes), Some(Output::Tensor(declared))) => {
                let dtype = self.compiled.graph.ty(*declared).dtype;
                let (mut shape, mut bytes) = value.take_memory();
                shape.extend(sizes);
                let count = sizes.iter().product::<u64>() * dtype.bytes();
                bytes.resize(usize::try_from(count).unwrap_or(0), 0);
                let _guard = lock();
                // Reading evaluates, which changes a copy: arrays are shared.
                let mut copy = ffi::new_values(1);
                self.values.give(copy.pin_mut(), 0, self.output_slot(half, output)).map_err(device)?;
                copy.pin_mut().read(0, &mut bytes).map_err(device)?;
                *value = OutputValue::tensor(dtype, shape, bytes);
            }
            (Produced::Int(number), _) => *value = OutputValue::Int(*number),
            (Produced::Tensor(_), _) => return Err(Fault::NotRun.at(Place::Output(output))),
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        let _guard = lock();
        let (slots, states) = (self.compiled.slots, number(self.compiled.graph.states.len()));
        for state in slots.states..slots.states + states {
            self.compiled.values.give(self.values.pin_mut(), state, state).map_err(device)?;
        }
        self.inputs.session_ints_mut().fill(0);
        self.outputs = None;
        Ok(())
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let _guard = lock();
        let (compiled, values) = (Arc::clone(&self.compiled), self.values.copy());
        let (inputs, given) = (self.inputs.clone(), self.given.clone());
        let keys = KeySequence::new(seed);
        Ok(Box::new(MlxState { compiled, values, inputs, given, keys, runs_ahead: false, outputs: None }))
    }
}
