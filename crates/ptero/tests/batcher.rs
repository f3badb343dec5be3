//! Many texts at once: each is the text it would be alone, and those that nobody waits for end.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use ptero::{
    BatchOptions, Batcher, Error, Finish, FinishReason, GeneratorBuilder, Model, Options, TextEvent, TextSink,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

const OPTIONS: BatchOptions =
    BatchOptions { lanes: 3, queue: 8, chunk: 8, state_bytes: 1 << 30, prefix_bytes: 1 << 24 };

fn model() -> Model {
    Options::new().threads(2).full_sampler(true).included_model().unwrap()
}

/// Returns the end of a text, after checking that its pieces add up to it.
fn finished(events: &Receiver<TextEvent>) -> Finish {
    let mut text = String::new();
    loop {
        match events.recv().unwrap() {
            TextEvent::Piece(piece) => text.push_str(&piece.text),
            TextEvent::End(finish) => {
                assert_eq!(finish.text, text);
                return finish;
            }
            TextEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn submit(batcher: &Batcher, settings: &GeneratorBuilder, prompt: &str) -> Receiver<TextEvent> {
    let (sender, receiver) = channel();
    let prompt = settings_model(settings).encode(prompt).unwrap();
    batcher.submit(settings, &prompt, vec![Box::new(sender)]).unwrap();
    receiver
}

fn settings_model(settings: &GeneratorBuilder) -> Model {
    settings.clone().start().unwrap().model().clone()
}

#[test]
fn s1_8_texts_are_what_they_would_be_alone() {
    let model = model();
    let batcher = Batcher::new(&model, &OPTIONS);
    let base = || model.generator().max_tokens(12);
    let ways = [
        base().seed(1),
        base().seed(2).temperature(1.3).stop(["."]),
        base().seed(3).min_p(0.1).repetition_penalty(1.2),
        base().seed(4).json_object().max_tokens(6),
        base().temperature(0.0).logit_bias([(5, 1.5)]),
        base().seed(5).max_tokens(0),
    ];
    let prompts = ["Once upon a time, there was a little girl who had a", "Once upon a time, there was a", "The"];
    let all = ways.iter().flat_map(|settings| prompts.map(|prompt| (settings, prompt)));
    // As many as may wait, in turns.
    for some in all.collect::<Vec<_>>().chunks(6) {
        let events = some.iter().map(|(settings, prompt)| submit(&batcher, settings, prompt)).collect::<Vec<_>>();
        for ((settings, prompt), events) in some.iter().zip(events) {
            let (found, mut generator) = (finished(&events), (*settings).clone().start().unwrap());
            let mut alone = generator.generate(prompt).unwrap();
            alone.by_ref().for_each(|piece| drop(piece.unwrap()));
            let alone = alone.finish();
            assert_eq!(
                (found.text, found.reason, found.timings.new_tokens),
                (alone.text, alone.reason, alone.timings.new_tokens)
            );
        }
    }
    let stats = batcher.stats();
    assert!(stats.new_tokens > 100 && stats.prompt_tokens > 100 && stats.steps > 20, "{stats:?}");
    assert_eq!((stats.waiting, stats.running), (0, 0));
}

#[test]
fn several_texts_of_one_prompt_are_the_choices_of_a_generator() {
    let model = model();
    let batcher = Batcher::new(&model, &OPTIONS);
    let settings = model.generator().seed(9).temperature(1.0).max_tokens(8);
    let prompt = model.encode("The king").unwrap();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| channel()).unzip();
    let sinks = senders.into_iter().map(|sender| Box::new(sender) as Box<dyn TextSink>).collect();
    let submitted = batcher.submit(&settings, &prompt, sinks).unwrap();
    assert_eq!((submitted.prompt_tokens, submitted.seed), (prompt.len(), Some(9)));
    let mut generator = settings.start().unwrap();
    for (events, number) in receivers.iter().zip(0..) {
        let mut choice = generator.choice(&prompt, number).unwrap();
        assert_eq!(finished(events).text, choice.generate_tokens(&prompt).unwrap().text().unwrap());
    }
}

/// A sink whose reader can go away.
struct Leaving {
    is_gone: Arc<AtomicBool>,
    events: std::sync::mpsc::Sender<TextEvent>,
}

impl TextSink for Leaving {
    fn send(&mut self, event: TextEvent) {
        self.events.send(event).unwrap();
    }

    fn is_wanted(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }
}

#[test]
fn a_text_that_nobody_waits_for_ends_and_a_full_queue_refuses() {
    let model = model();
    let batcher = Batcher::new(&model, &BatchOptions { lanes: 1, queue: 1, ..OPTIONS });
    let endless = model.generator().seed(1).ignore_eos(true);
    let prompt = model.encode("Once").unwrap();
    let is_gone = Arc::<AtomicBool>::default();
    let leaving = || {
        let (events, receiver) = channel();
        (Box::new(Leaving { is_gone: Arc::clone(&is_gone), events }), receiver)
    };
    let (first, first_events) = leaving();
    batcher.submit(&endless, &prompt, vec![first]).unwrap();
    assert!(matches!(first_events.recv().unwrap(), TextEvent::Piece(_)), "it has started");
    let (second, second_events) = leaving();
    batcher.submit(&endless, &prompt, vec![second]).unwrap();
    let (third, _) = leaving();
    let refused = batcher.submit(&endless, &prompt, vec![third]);
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 1 })), "{refused:?}");
    is_gone.store(true, Ordering::Relaxed);
    // Both made room, and this one is generated.
    let last = submit(&batcher, &model.generator().seed(2).max_tokens(3), "The");
    assert_eq!(finished(&last).reason, FinishReason::Length);
    assert!(first_events.iter().all(|event| matches!(event, TextEvent::Piece(_))), "it never ended by itself");
    assert!(second_events.try_iter().next().is_none(), "it never started");
    batcher.close();
    let (late, _) = channel();
    assert!(matches!(batcher.submit(&endless, &prompt, vec![Box::new(late)]), Err(Error::Closed)));
}

#[test]
fn what_is_wrong_with_a_text_is_known_before_it_waits() {
    let model = Options::new().threads(1).included_model().unwrap();
    let batcher = Batcher::new(&model, &OPTIONS);
    let refuse = |settings: GeneratorBuilder, prompt: &[u32]| {
        let (sender, _) = channel();
        batcher.submit(&settings, prompt, vec![Box::new(sender)]).unwrap_err().to_string()
    };
    assert!(refuse(model.generator(), &[]).contains("empty"));
    assert!(refuse(model.generator(), &[u32::MAX]).contains("vocabulary"));
    assert!(refuse(model.generator(), &vec![1; model.context()]).contains("no room"));
    assert!(refuse(model.generator().top_p(2.0), &[1]).contains("top-p"));
    assert!(refuse(model.generator().json_object(), &[1]).contains("full sampling head"));
    assert!(refuse(model.generator().stop([""]), &[1]).contains("stop"));
    assert_eq!(model.fingerprint().unwrap().len(), "0123456789abcdef-a1".len());
}
