//! Batches: texts join and leave at any step, share the states of their prompts, and are the texts they would be alone (S1.8).

use crate::tiny::{MODELS, device, exact, model, threaded, ways};
use ptero_engine::{
    Batch, BatchEvent, BatchLimits, BatchText, Engine, Error, FilterError, Finish, Reason, SampleOptions, TextId,
    TokenFilter, TokenId,
};
use ptero_export::Recipe;
use ptero_sampling::inputs::Head;
use ptero_tensor::SplitMix64;
use std::collections::BTreeMap;

const LIMITS: BatchLimits = BatchLimits { lanes: 5, chunk: 8, state_bytes: u64::MAX, prefix_bytes: 1 << 30 };

fn engine(name: &str) -> Engine {
    let recipe = Recipe { sample: Some(Head::Full), ..exact(true) };
    model(name, &recipe, threaded(2).as_ref())
}

fn text(prompt: Vec<TokenId>, options: SampleOptions, max_new_tokens: usize) -> BatchText {
    let (more_ends, ignores_ends, logit_bias, filter) = (Vec::new(), false, Vec::new(), None);
    let (text_start, asks_logits) = (None, false);
    BatchText { prompt, options, max_new_tokens, more_ends, ignores_ends, logit_bias, filter, text_start, asks_logits }
}

/// The same text without a batch.
fn alone(engine: &Engine, text: &BatchText) -> (Vec<TokenId>, Reason) {
    let mut session = engine.session().unwrap();
    session.end_also_at(&text.more_ends);
    session.set_logit_bias(&text.logit_bias).unwrap();
    let mut generation = session.generate(&text.prompt, &text.options, text.max_new_tokens).unwrap();
    let tokens = generation.by_ref().map(|token| token.unwrap()).collect();
    (tokens, generation.finish().reason)
}

/// What the texts of a batch have got so far.
#[derive(Default)]
struct Log {
    tokens: BTreeMap<TextId, Vec<TokenId>>,
    logits: BTreeMap<TextId, Vec<f32>>,
    ended: BTreeMap<TextId, Finish>,
    failed: BTreeMap<TextId, Error>,
}

impl Log {
    fn step(&mut self, batch: &mut Batch) {
        for (id, event) in batch.step() {
            match event {
                BatchEvent::Token { token, .. } => self.tokens.entry(id).or_default().push(token),
                BatchEvent::Logits(logits) => drop(self.logits.insert(id, logits)),
                BatchEvent::End(finish) => drop(self.ended.insert(id, finish)),
                BatchEvent::Failed(error) => drop(self.failed.insert(id, error)),
            }
        }
    }

    fn run(&mut self, batch: &mut Batch) {
        while !batch.is_empty() {
            self.step(batch);
        }
    }

    fn of(&self, id: TextId) -> Vec<TokenId> {
        self.tokens.get(&id).cloned().unwrap_or_default()
    }
}

fn random_tokens(rng: &mut SplitMix64, count: usize) -> Vec<TokenId> {
    (0..count).map(|_| TokenId::try_from(rng.below(90)).unwrap()).collect()
}

/// A prompt that may begin like the others.
fn random_text(rng: &mut SplitMix64, beginnings: &[Vec<TokenId>; 2]) -> BatchText {
    let number = |rng: &mut SplitMix64, below| usize::try_from(rng.below(below)).unwrap();
    let mut prompt = beginnings[number(rng, 2)].clone();
    prompt.truncate(1 + number(rng, 24));
    let more = number(rng, 6);
    prompt.extend(random_tokens(rng, more));
    let options = ways(rng.below(1 << 40).cast_signed())[number(rng, 6)];
    let bias = if rng.below(3) == 0 { vec![(7, 2.0), (40, -3.0)] } else { Vec::new() };
    let penalties = SampleOptions { repetition_penalty: Some(1.2), presence_penalty: Some(0.3), ..options };
    let options = if rng.below(3) == 0 { penalties } else { options };
    BatchText { logit_bias: bias, more_ends: vec![3], ..text(prompt, options, number(rng, 9)) }
}

#[test]
fn s1_8_texts_of_a_batch_are_the_texts_alone() {
    for name in MODELS {
        let engine = engine(name);
        let mut rng = SplitMix64::new(name.len() as u64);
        let beginnings = [(); 2].map(|()| random_tokens(&mut rng, 24));
        let (mut batch, mut log, mut given) = (Batch::new(engine.clone(), LIMITS), Log::default(), Vec::new());
        let (mut waiting, mut reused) = (16, 0);
        while waiting > 0 || !batch.is_empty() {
            while waiting > 0 && batch.has_room(0) && rng.below(2) == 0 {
                let text = random_text(&mut rng, &beginnings);
                let expected = alone(&engine, &text);
                given.push((text.prompt.len(), expected, batch.add(text).unwrap()));
                waiting -= 1;
            }
            assert!(batch.len() <= LIMITS.lanes);
            log.step(&mut batch);
        }
        for (prompt, (tokens, reason), id) in given {
            let finish = &log.ended[&id];
            assert_eq!((log.of(id), finish.reason), (tokens, reason), "{name}");
            reused += prompt - finish.timings.prompt_tokens;
        }
        assert!(reused > 0, "{name}: no state was used again");
    }
}

#[test]
fn a_prefix_is_processed_once_and_kept_within_its_bytes() {
    for name in MODELS {
        let engine = engine(name);
        let mut rng = SplitMix64::new(1);
        let shared = random_tokens(&mut rng, 24);
        let with = |last: TokenId| text([shared.as_slice(), &[last]].concat(), ways(1)[0], 2);
        let processed = |limits: BatchLimits| {
            let (mut batch, mut log) = (Batch::new(engine.clone(), limits), Log::default());
            let first = batch.add(with(1)).unwrap();
            log.run(&mut batch);
            // Three at once, and none of them first.
            let others = [2, 3, 4].map(|last| batch.add(with(last)).unwrap());
            log.run(&mut batch);
            let count = |id: TextId| log.ended[&id].timings.prompt_tokens;
            (count(first), others.map(count))
        };
        // The first piece of a prompt ends at a multiple of the chunk, where recurrent state is kept.
        assert_eq!(processed(LIMITS), (25, [1; 3]), "{name}");
        assert_eq!(processed(BatchLimits { prefix_bytes: 0, ..LIMITS }), (25, [25; 3]), "{name}");
        assert_eq!(processed(BatchLimits { prefix_bytes: 1, ..LIMITS }).0, 25, "{name}");
    }
}

#[test]
fn a_long_prompt_delays_the_others_by_a_chunk_at_a_time() {
    let engine = engine("llama");
    let mut rng = SplitMix64::new(2);
    let (mut batch, mut log) = (Batch::new(engine, LIMITS), Log::default());
    let first = batch.add(text(random_tokens(&mut rng, 3), ways(1)[0], 20)).unwrap();
    log.step(&mut batch);
    assert_eq!(log.of(first).len(), 2, "its first token, and one more");
    let long = batch.add(text(random_tokens(&mut rng, 30), ways(2)[0], 20)).unwrap();
    for step in 1..=4 {
        assert!(log.of(long).is_empty());
        log.step(&mut batch);
        assert_eq!(log.of(first).len(), 2 + step, "a token in every step");
    }
    assert_eq!(log.of(long).len(), 2, "30 tokens are four chunks of eight");
}

#[test]
fn texts_join_as_lanes_and_memory_allow_and_leave_when_they_are_removed() {
    let engine = engine("llama");
    let one = || text(vec![1, 2, 3], ways(1)[0], 5);
    let bytes = one().state_bytes(&engine);
    let mut batch = Batch::new(engine.clone(), BatchLimits { state_bytes: 2 * bytes, ..LIMITS });
    assert!(batch.has_room(u64::MAX), "a text that is alone may need any memory");
    let first = batch.add(one()).unwrap();
    assert!(batch.has_room(bytes) && !batch.has_room(bytes + 1));
    let second = batch.add(one()).unwrap();
    assert!(!batch.has_room(bytes));
    let mut log = Log::default();
    log.step(&mut batch);
    batch.remove(first);
    assert!(batch.has_room(bytes));
    log.run(&mut batch);
    assert_eq!((log.of(first).len(), log.of(second)), (2, alone(&engine, &one()).0));
    assert!(!log.ended.contains_key(&first));
    let refused = batch.add(text(vec![TokenId::MAX], ways(1)[0], 5));
    assert!(matches!(refused, Err(Error::TokenOutside { .. })));
    assert!(matches!(batch.add(text(Vec::new(), ways(1)[0], 5)), Err(Error::EmptyPrompt)));
    assert!(matches!(batch.add(text(vec![1; 4096], ways(1)[0], 5)), Err(Error::NoRoom { .. })));
}

/// Allows one token, and fails after the second.
#[derive(Debug)]
struct Stubborn(Vec<u32>, usize);

impl TokenFilter for Stubborn {
    fn allowed(&mut self) -> Result<&[u32], FilterError> {
        self.1 += 1;
        if self.1 < 3 { Ok(&self.0) } else { Err("enough".into()) }
    }

    fn accept(&mut self, _token: TokenId) -> Result<(), FilterError> {
        Ok(())
    }
}

#[test]
fn a_filter_that_fails_ends_its_own_text_only() {
    let engine = engine("llama");
    let mut batch = Batch::new(engine.clone(), LIMITS);
    let mut mask = vec![0; engine.vocabulary().div_ceil(32)];
    mask[0] = 1 << 9;
    let other = || text(vec![5, 6], ways(3)[0], 6);
    let filter: Option<Box<dyn TokenFilter + Send>> = Some(Box::new(Stubborn(mask, 0)));
    let filtered = batch.add(BatchText { filter, ..text(vec![5, 6], ways(3)[0], 6) }).unwrap();
    let free = batch.add(other()).unwrap();
    let mut log = Log::default();
    log.run(&mut batch);
    assert_eq!(log.of(filtered), [9, 9]);
    assert!(matches!(log.failed[&filtered], Error::Filter(_)));
    assert_eq!(log.of(free), alone(&engine, &other()).0);
}

#[test]
fn logits_after_a_prompt_are_those_that_the_token_is_drawn_from() {
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    for name in MODELS {
        let (full, plain) = (engine(name), model(name, &exact(false), threaded(2).as_ref()));
        // A head that runs node by node keeps none.
        assert_eq!((full.keeps_logits(), plain.keeps_logits()), (!device().capabilities().is_inexact, true));
        if !full.keeps_logits() {
            continue;
        }
        let (mut batch, mut log) = (Batch::new(full.clone(), LIMITS), Log::default());
        let prompt: Vec<TokenId> = (5..35).collect();
        let running = batch.add(text(prompt.clone(), ways(3)[1], 12)).unwrap();
        let asked: Vec<_> = (1..=prompt.len()).step_by(7).collect();
        let asked: Vec<_> = asked
            .into_iter()
            .map(|length| {
                let asks = BatchText { asks_logits: true, ..text(prompt[..length].to_vec(), ways(3)[0], 1) };
                (length, batch.add(asks).unwrap())
            })
            .collect();
        log.run(&mut batch);
        for (length, id) in asked {
            let mut session = plain.session().unwrap();
            session.prefill(&prompt[..length], &ptero_engine::TokenSettings::GREEDY).unwrap();
            assert_eq!(bits(&log.logits[&id]), bits(session.logits().unwrap()), "{name} {length}");
            assert!(log.of(id).is_empty() && log.ended.contains_key(&id));
        }
        assert_eq!(log.of(running), alone(&full, &text(prompt, ways(3)[1], 12)).0, "{name}");
    }
    let other = model("llama", &Recipe { sample: Some(Head::Plain), ..exact(true) }, device().as_ref());
    let asks = BatchText { asks_logits: true, ..text(vec![5], ways(3)[0], 1) };
    assert!(matches!(asks.check(&other), Err(Error::KeepsNoLogits)));
}

#[test]
fn a_text_that_goes_on_from_any_of_its_tokens_is_the_same_with_any_penalty() {
    for name in MODELS {
        let engine = engine(name);
        let penalties = SampleOptions { presence_penalty: Some(0.7), frequency_penalty: Some(0.4), ..ways(9)[2] };
        let options = SampleOptions { repetition_penalty: Some(1.3), seed: Some(40), ..penalties };
        let prompt: Vec<TokenId> = vec![5, 9, 5, 60];
        let (whole, _) = alone(&engine, &text(prompt.clone(), options, 14));
        let (mut batch, mut log) = (Batch::new(engine, LIMITS), Log::default());
        let forks: Vec<_> = (0..whole.len())
            .map(|at| {
                let options = SampleOptions { seed: Some(40 + i64::try_from(at).unwrap()), ..options };
                let known = [&prompt[..], &whole[..at]].concat();
                let rest = BatchText { text_start: Some(prompt.len()), ..text(known, options, 14 - at) };
                (at, batch.add(rest).unwrap())
            })
            .collect();
        log.run(&mut batch);
        for (at, id) in forks {
            assert_eq!(log.of(id), whole[at..], "{name} {at}");
        }
    }
}
