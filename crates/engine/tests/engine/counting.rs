//! What a batch asks of its device, counted: calls, their lanes, new states and copies of states.

use crate::tiny::{device, exact, model, ways};
use ptero_backend::{Backend, Executable, InputValue, Lane, OutputValue, Result, State, Steps};
use ptero_engine::{Batch, BatchEvent, BatchLimits, BatchText, Engine, TokenId};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use std::any::Any;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// The lanes of each run.
    runs: Vec<usize>,
    states: usize,
    forks: usize,
}

type Shared = Arc<Mutex<Counts>>;

/// A device that counts.
struct Counting(Box<dyn Backend>, Shared);

struct CountingExecutable(Box<dyn Executable>, Shared);

struct CountingState(Box<dyn State>, Shared);

impl Backend for Counting {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(CountingExecutable(self.0.compile(graph)?, Arc::clone(&self.1))))
    }
}

impl Executable for CountingExecutable {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        self.1.lock().unwrap().states += 1;
        Ok(Box::new(CountingState(self.0.state(seed)?, Arc::clone(&self.1))))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        self.1.lock().unwrap().runs.push(lanes.len());
        let inner = lanes.iter_mut().map(|lane| {
            let (tokens, state): (_, &mut dyn Any) = (std::mem::take(&mut lane.tokens), &mut *lane.state);
            let state = state.downcast_mut::<CountingState>().unwrap().0.as_mut();
            Lane { state, wanted: lane.wanted, ends: lane.ends, tokens, fault: None }
        });
        let mut inner: Vec<Lane<'_>> = inner.collect();
        let ran = self.0.run(&mut inner, steps);
        let results: Vec<_> = inner.into_iter().map(|lane| (lane.tokens, lane.fault)).collect();
        lanes.iter_mut().zip(results).for_each(|(lane, result)| (lane.tokens, lane.fault) = result);
        ran
    }
}

impl State for CountingState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.0.write(input, value)
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        self.0.read_into(output, value)
    }

    fn reset(&mut self) -> Result<()> {
        self.0.reset()
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        self.1.lock().unwrap().forks += 1;
        Ok(Box::new(Self(self.0.fork(seed)?, Arc::clone(&self.1))))
    }
}

const CHUNK: usize = 16;

/// A batch on a device that counts.
fn batch(name: &str) -> (Batch, Shared) {
    let counts = Shared::default();
    let engine: Engine = model(name, &exact(true), &Counting(device(), Arc::clone(&counts)));
    let limits = BatchLimits { lanes: 8, chunk: CHUNK, state_bytes: u64::MAX, prefix_bytes: 1 << 30 };
    (Batch::new(engine, limits), counts)
}

fn text(prompt: Vec<TokenId>) -> BatchText {
    let (more_ends, ignores_ends, logit_bias, filter) = (Vec::new(), true, Vec::new(), None);
    let (options, max_new_tokens, text_start, asks_logits) = (ways(1)[0], 3, None, false);
    BatchText { prompt, options, max_new_tokens, more_ends, ignores_ends, logit_bias, filter, text_start, asks_logits }
}

/// Takes steps until all texts have ended; returns what happened, and what was counted since the last time.
fn run(batch: &mut Batch, counts: &Shared) -> (Vec<BatchEvent>, Counts) {
    let mut events = Vec::new();
    while !batch.is_empty() {
        events.extend(batch.step().into_iter().map(|(_, event)| event));
    }
    (events, std::mem::take(&mut *counts.lock().unwrap()))
}

/// The number of tokens of prompts that were processed.
fn processed(events: &[BatchEvent]) -> usize {
    let ends = events.iter().filter_map(|event| if let BatchEvent::End(finish) = event { Some(finish) } else { None });
    ends.map(|finish| finish.timings.prompt_tokens).sum()
}

fn tokens(first: TokenId, count: usize) -> Vec<TokenId> {
    (first..).map(|token| token % 90).take(count).collect()
}

#[test]
fn prompts_are_processed_together_and_the_longer_ones_go_on() {
    for name in ["llama", "qwen3_5_moe"] {
        let (mut batch, counts) = batch(name);
        for (first, length) in [(1, 9), (20, 12), (40, 12), (60, 9)] {
            batch.add(text(tokens(first, length))).unwrap();
        }
        let (_, counted) = run(&mut batch, &counts);
        // Nine tokens of all four, three more of two, and two further tokens of each text.
        assert_eq!(counted, Counts { runs: vec![4, 2, 4, 4], states: 4, forks: 0 }, "{name}");
    }
}

#[test]
fn texts_that_come_at_once_share_the_beginning_of_their_prompts() {
    for name in ["llama", "qwen3_5_moe"] {
        let (mut batch, counts) = batch(name);
        let shared = tokens(3, 2 * CHUNK);
        for last in 0..4 {
            batch.add(text([shared.as_slice(), &[last, 5]].concat())).unwrap();
        }
        let (events, counted) = run(&mut batch, &counts);
        assert_eq!(processed(&events), 2 * CHUNK + 4 * 2, "{name}");
        // Recurrent state is kept at the end of each of the two pieces, too.
        let forks = if name == "llama" { 3 } else { 5 };
        assert_eq!((counted.states, counted.forks), (1, forks), "{name}");
    }
}

#[test]
fn a_conversation_that_goes_on_copies_no_state() {
    let (mut batch, counts) = batch("llama");
    let mut conversation = tokens(3, 40);
    batch.add(text(conversation.clone())).unwrap();
    for turn in 0..3 {
        let (events, counted) = run(&mut batch, &counts);
        assert_eq!((counted.states, counted.forks), (usize::from(turn == 0), 0));
        // The last token of the reply is not processed yet.
        assert_eq!(processed(&events), if turn == 0 { 40 } else { 4 });
        let reply = events
            .iter()
            .filter_map(|event| if let BatchEvent::Token { token, .. } = event { Some(*token) } else { None });
        conversation.extend(reply);
        conversation.extend([7, 8, 9]);
        batch.add(text(conversation.clone())).unwrap();
    }
    // Another reply to the same prompt: the earlier one stays.
    conversation.truncate(40);
    run(&mut batch, &counts);
    batch.add(text(conversation)).unwrap();
    assert_eq!(run(&mut batch, &counts).1.forks, 1);
}
