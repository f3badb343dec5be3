//! Sessions decoded together: the same tokens and states as alone, whoever joins and leaves (S1.8).

use crate::corpus::{self, prompt};
use crate::tiny::{PROMPT, all, backends, exact, model, rounded, threaded, ways};
use ptero_engine::{CallLane, Engine, Error, Session, StopFlag, TokenId, TokenSettings, call_together};
use ptero_export::{Recipe, Storage};
use ptero_reference::Reference;
use ptero_tensor::SplitMix64;

fn below(rng: &mut SplitMix64, most: usize) -> usize {
    usize::try_from(rng.below(most as u64)).unwrap()
}

/// A session with what it has decoded, and the next token that it is given.
struct Text {
    session: Session,
    prompt: Vec<TokenId>,
    seed: i64,
    tokens: Vec<TokenId>,
    logits: Vec<Vec<f32>>,
    left: usize,
}

impl Text {
    /// A text at a random position, which leaves after a random number of tokens.
    fn new(engine: &Engine, rng: &mut SplitMix64) -> Self {
        let tokens = prompt(engine);
        let length = 1 + below(rng, tokens.len());
        let start = below(rng, tokens.len() - length + 1);
        let prompt = tokens[start..start + length].to_vec();
        let mut text = Self {
            session: engine.session().unwrap(),
            prompt,
            seed: rng.below(1 << 20).cast_signed(),
            tokens: Vec::new(),
            logits: Vec::new(),
            left: 1 + below(rng, 9),
        };
        let sampling = text.sampling();
        text.tokens.push(text.session.prefill(&text.prompt, &sampling).unwrap());
        text
    }

    /// How the next token is drawn; every way of sampling appears.
    fn sampling(&self) -> TokenSettings {
        let step = self.tokens.len();
        let options = ways(self.seed)[(usize::try_from(self.seed).unwrap() + step) % 6];
        options.schedule(self.session.engine()).unwrap().at_step(step as u64)
    }

    fn note(&mut self, next: TokenId) {
        self.tokens.push(next);
        self.logits.extend(self.session.logits().map(<[f32]>::to_vec));
        self.left -= 1;
    }

    /// The same text, decoded alone.
    fn alone(&self, engine: &Engine) -> (Vec<TokenId>, Vec<Vec<f32>>) {
        let mut text = Self {
            session: engine.session().unwrap(),
            prompt: self.prompt.clone(),
            tokens: Vec::new(),
            logits: Vec::new(),
            left: usize::MAX,
            ..*self
        };
        let sampling = text.sampling();
        text.tokens.push(text.session.prefill(&self.prompt, &sampling).unwrap());
        while text.tokens.len() < self.tokens.len() {
            let (last, sampling) = (*text.tokens.last().unwrap(), text.sampling());
            let next = text.session.decode(last, &sampling).unwrap();
            text.note(next);
        }
        (text.tokens, text.logits)
    }
}

/// Decodes texts that join and leave, and compares each with itself alone.
fn check(name: &str, engine: &Engine, alone: &Engine) {
    let mut rng = SplitMix64::new(engine.context() as u64 + name.len() as u64);
    let (mut texts, mut done): (Vec<Text>, Vec<Text>) = (Vec::new(), Vec::new());
    let mut most = 0;
    for step in 0..14 {
        if step < 6 {
            (0..1 + rng.below(3)).for_each(|_| texts.push(Text::new(engine, &mut rng)));
        }
        most = most.max(texts.len());
        let mut lanes = Vec::new();
        for text in &mut texts {
            let sampling = text.sampling();
            lanes.push(CallLane::new(&mut text.session, text.tokens.last_chunk::<1>().unwrap(), sampling));
        }
        call_together(&mut lanes, &StopFlag::default());
        let next: Vec<TokenId> = lanes.into_iter().map(|lane| lane.next.unwrap()).collect();
        texts.iter_mut().zip(next).for_each(|(text, next)| text.note(next));
        let (stay, leave) = texts.into_iter().partition(|text| text.left > 0);
        texts = stay;
        done.extend::<Vec<Text>>(leave);
    }
    assert!(done.len() >= 6 && most >= 3, "{} texts, at most {most} at once", done.len());
    for text in done.into_iter().chain(texts) {
        assert_eq!((text.tokens.clone(), text.logits.clone()), text.alone(alone), "{name}: {:?}", text.prompt);
    }
}

#[test]
fn s1_8_lanes_that_join_and_leave_give_the_bits_of_texts_alone() {
    let int4 = |sample| Recipe { linear: Storage::Int4, ..rounded(sample) };
    for name in all() {
        for recipe in [exact(false), rounded(true), int4(false)] {
            // Three threads: lanes are shared out unevenly.
            let engine = model(&name, &recipe, threaded(3).as_ref());
            check(&name, &engine, &model(&name, &recipe, threaded(1).as_ref()));
        }
    }
}

/// Upstream exports programs for one text at a time.
#[test]
fn s1_8_upstreams_programs_give_lanes_the_bits_of_texts_alone() {
    for path in corpus::programs() {
        let [engine, alone] = [3, 1].map(|threads| corpus::model(&path, threaded(threads).as_ref()));
        check(&path.display().to_string(), &engine, &alone);
    }
}

#[test]
fn s1_8_lanes_give_the_tokens_of_the_reference() {
    for name in ["llama", "mistral", "qwen3_5_moe"] {
        let reference = model(name, &exact(true), &Reference);
        for backend in backends() {
            check(name, &model(name, &exact(true), backend.as_ref()), &reference);
        }
    }
}

#[test]
fn s1_8_an_error_ends_its_own_lane_only() {
    let engine = model("llama", &exact(true), threaded(2).as_ref());
    let mut sessions = [(); 4].map(|()| engine.session().unwrap());
    for session in &mut sessions {
        session.prefill(&PROMPT, &TokenSettings::GREEDY).unwrap();
    }
    let expected = sessions[0].fork().unwrap().decode(5, &TokenSettings::GREEDY).unwrap();
    sessions[2].stop_flag().stop();
    let tokens = [5, TokenId::MAX, 5, 5];
    let mut lanes = Vec::new();
    for (session, token) in sessions.iter_mut().zip(&tokens) {
        lanes.push(CallLane::new(session, std::slice::from_ref(token), TokenSettings::GREEDY));
    }
    call_together(&mut lanes, &StopFlag::default());
    let [Ok(first), Err(Error::TokenOutside { .. }), Err(Error::Stopped), Ok(last)] =
        lanes.iter().map(|lane| &lane.next).collect::<Vec<_>>()[..]
    else {
        panic!("{:?}", lanes.iter().map(|lane| &lane.next).collect::<Vec<_>>());
    };
    assert_eq!([first, last], [&expected; 2]);
    let stop = StopFlag::default();
    stop.stop();
    lanes.iter_mut().for_each(|lane| lane.tokens = &[6]);
    call_together(&mut lanes, &stop);
    assert!(lanes.iter().all(|lane| matches!(lane.next, Err(Error::Stopped))));
    assert_eq!(sessions.map(|session| session.position()), [12, 11, 11, 12]);
}

#[test]
fn sessions_of_another_engine_are_refused() {
    let engines = [(); 2].map(|()| model("llama", &exact(true), threaded(1).as_ref()));
    let mut sessions = engines.map(|engine| engine.session().unwrap());
    let lanes = sessions.iter_mut().map(|session| CallLane::new(session, &[5], TokenSettings::GREEDY));
    let mut lanes: Vec<CallLane<'_>> = lanes.collect();
    call_together(&mut lanes, &StopFlag::default());
    assert!(lanes.iter().all(|lane| matches!(lane.next, Err(Error::Backend(_)))), "{lanes:?}");
}
