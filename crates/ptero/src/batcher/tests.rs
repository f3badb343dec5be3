//! Panics on the batcher's thread, and how long a prompt waits, counted in steps.

use super::*;
use crate::options::Options;
use ptero_engine::{FilterError, SampleOptions};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};

fn model() -> Model {
    Options::new().threads(1).full_sampler(true).included_model().unwrap()
}

/// A grammar in which everything may follow, until it panics.
#[derive(Debug)]
struct Panics {
    words: Vec<u32>,
    left: usize,
}

impl TokenFilter for Panics {
    fn allowed(&mut self) -> std::result::Result<&[u32], FilterError> {
        assert!(self.left > 0, "a test of panics");
        Ok(&self.words)
    }

    fn accept(&mut self, _: TokenId) -> std::result::Result<(), FilterError> {
        self.left -= 1;
        Ok(())
    }
}

#[test]
fn issue_19_a_panic_in_a_step_fails_the_texts_of_the_batch_and_no_later_one() {
    let model = model();
    let batcher = Batcher::new(&model, &BatchOptions { lanes: 2, ..BatchOptions::default() });
    let prompt = model.encode("The king").unwrap();
    let endless = |filter| {
        let text = BatchText {
            prompt: prompt.clone(),
            options: SampleOptions { seed: Some(1), ..SampleOptions::default() },
            max_new_tokens: usize::MAX,
            more_ends: Vec::new(),
            ignores_ends: true,
            logit_bias: Vec::new(),
            filter,
            text_start: None,
            asks_logits: false,
        };
        let (sender, events) = channel();
        let pieces = Pieces::new(&model, &prompt, &[], &[]).unwrap();
        (waiting(&model, text, pieces, Box::new(sender)).unwrap(), events)
    };
    let settings = model.generator().seed(3).max_tokens(20).ignore_eos(true);
    let alone = settings.clone().start().unwrap().generate_tokens(&prompt).unwrap().text().unwrap();
    let last = |events: Receiver<TextEvent>| events.iter().last().unwrap();
    for left in 0..3 {
        let words = vec![u32::MAX; model.vocabulary().div_ceil(32)];
        let (other, other_events) = endless(None);
        let (panics, events) = endless(Some(Box::new(Panics { words, left })));
        batcher.enqueue([other, panics].into()).unwrap();
        // There is no lane for it yet.
        let (sender, later_events) = channel();
        batcher.submit(&settings, &prompt, vec![Box::new(sender)]).unwrap();
        for events in [other_events, events] {
            assert!(matches!(last(events), TextEvent::Failed(Error::Panicked)), "{left}");
        }
        assert!(matches!(last(later_events), TextEvent::End(finish) if finish.text == alone), "{left}");
    }
}

/// Eight texts that decode, and another that is submitted on the batcher's thread, so that steps can be counted from there on.
struct StepTest {
    batcher: OnceLock<Batcher>,
    settings: GeneratorBuilder,
    late_prompt: Vec<TokenId>,
    is_late_submitted: AtomicBool,
    /// Tokens of each text that decodes since then.
    steps: [AtomicUsize; 8],
    /// Gets these numbers when the late text has its first token.
    first: Sender<Vec<usize>>,
}

struct Decoding {
    index: usize,
    tokens: usize,
    test: &'static StepTest,
}

struct Late(&'static StepTest);

impl TextSink for Decoding {
    fn send(&mut self, event: TextEvent) {
        let TextEvent::Piece(Piece { token: Some(_), .. }) = event else { return };
        let Self { index, test, .. } = *self;
        self.tokens += 1;
        if test.is_late_submitted.load(Ordering::Relaxed) {
            test.steps[index].fetch_add(1, Ordering::Relaxed);
        } else if index == 0 && self.tokens == 10 {
            let batcher = test.batcher.get().unwrap();
            batcher.submit(&test.settings, &test.late_prompt, vec![Box::new(Late(test))]).unwrap();
            test.is_late_submitted.store(true, Ordering::Relaxed);
        }
    }
}

impl TextSink for Late {
    fn send(&mut self, event: TextEvent) {
        if matches!(event, TextEvent::Piece(Piece { token: Some(_), .. })) {
            let steps = self.0.steps.iter().map(|steps| steps.load(Ordering::Relaxed));
            // Nobody takes those of its later tokens.
            let _ = self.0.first.send(steps.collect());
        }
    }
}

#[test]
fn issue_19_a_prompt_waits_for_at_most_two_steps_of_eight_texts_and_its_own_chunks() {
    const CHUNK: usize = 16;
    let model = model();
    for length in [1, 5, CHUNK, 3 * CHUNK + 1] {
        let (first, steps) = channel();
        // For good: the batcher's thread uses it, and must not be the one that drops the batcher.
        let test: &'static StepTest = Box::leak(Box::new(StepTest {
            batcher: OnceLock::new(),
            settings: model.generator().seed(5).ignore_eos(true).max_tokens(200),
            late_prompt: vec![7; length],
            is_late_submitted: AtomicBool::new(false),
            steps: Default::default(),
            first,
        }));
        let options = BatchOptions { lanes: 9, chunk: CHUNK, prefix_bytes: 0, ..BatchOptions::default() };
        test.batcher.set(Batcher::new(&model, &options)).unwrap();
        let sinks = (0..8).map(|index| Box::new(Decoding { index, tokens: 0, test }) as Box<dyn TextSink>);
        test.batcher.get().unwrap().submit(&test.settings, &[3, 4], sinks.collect()).unwrap();
        let steps = steps.recv().unwrap();
        let most = 2 + length.div_ceil(CHUNK) - 1;
        assert!(steps.iter().all(|steps| *steps <= most), "{length} tokens: {steps:?}, at most {most}");
        // The others go on meanwhile: a step for each chunk but the last.
        assert!(steps.iter().all(|steps| *steps >= length.div_ceil(CHUNK) - 1), "{length} tokens: {steps:?}");
        test.batcher.get().unwrap().close();
    }
}
