//! The full sampling head: min-p, penalties, biases, masks and log-probabilities inside the program, as on the host.

use crate::tiny::{MODELS, PROMPT, all, backends, device, endless, exact, model, rounded, seeded, session, text, ways};
use ptero_engine::{
    CallLane, Engine, Error, FilterError, LogProbabilities, Reason, RowLogProbabilities, SampleOptions, Session,
    StopFlag, TokenFilter, TokenId, call_together,
};
use ptero_export::{Graft, Recipe, graft};
use ptero_pte::{Limits, Program};
use ptero_sampling::inputs::Head;

fn full(recipe: Recipe) -> Recipe {
    Recipe { sample: Some(Head::Full), ..recipe }
}

/// Many ways to draw that need the full head.
fn full_ways(seed: i64) -> Vec<SampleOptions> {
    let plain = seeded(seed);
    let mut ways = vec![
        SampleOptions { min_p: Some(0.3), ..plain },
        SampleOptions { exact_tail: true, ..plain },
        SampleOptions { repetition_penalty: Some(1.8), temperature: 0.4, ..plain },
        SampleOptions { presence_penalty: Some(1.5), frequency_penalty: Some(0.5), ..plain },
        SampleOptions { frequency_penalty: Some(-0.7), temperature: 0.0, ..plain },
        SampleOptions { repetition_penalty: Some(0.6), temperature: 0.0, ..plain },
        SampleOptions {
            top_k: Some(30),
            top_p: Some(0.9),
            min_p: Some(0.02),
            exact_tail: true,
            repetition_penalty: Some(1.2),
            presence_penalty: Some(-0.4),
            frequency_penalty: Some(0.3),
            ..plain
        },
    ];
    for (way, which) in ways.iter_mut().zip([LogProbabilities::Model, LogProbabilities::Processed].iter().cycle()) {
        way.log_probabilities = *which;
    }
    ways
}

/// A text and the log-probabilities of its tokens.
type RichText = (Vec<TokenId>, Vec<Option<RowLogProbabilities>>);

/// Compares tokens, and log-probabilities within the rounding of one operation after another.
fn assert_alike(found: &RichText, wanted: &RichText, what: &str) {
    assert_eq!(found.0, wanted.0, "{what}");
    for (found, wanted) in found.1.iter().flatten().zip(wanted.1.iter().flatten()) {
        assert!((found.token - wanted.token).abs() < 1e-4, "{what}: {found:?} {wanted:?}");
        let same = |(a, b): (&(u32, f32), &(u32, f32))| a.1 == b.1 || (a.1 - b.1).abs() < 1e-4;
        assert!(found.likeliest.iter().zip(&wanted.likeliest).all(same), "{what}: {found:?} {wanted:?}");
    }
}

fn rich_text(session: &mut Session, options: &SampleOptions, count: usize) -> RichText {
    session.reset().unwrap();
    let (mut text, mut more) = (Vec::new(), Vec::new());
    let mut tokens = session.generate(&PROMPT, options, count).unwrap();
    while let Some(token) = tokens.next() {
        text.push(token.unwrap());
        more.push(tokens.log_probabilities().cloned());
    }
    (text, more)
}

const BIASES: [(TokenId, f32); 4] = [(3, 2.5), (17, -100.0), (40, 1.0), (3, 0.25)];

/// Every third token.
fn mask(vocabulary: usize) -> Vec<u32> {
    let bits =
        |word: usize| (0..32).filter(|bit| (32 * word + bit).is_multiple_of(3)).fold(0, |word, bit| word | 1 << bit);
    (0..vocabulary.div_ceil(32)).map(bits).collect()
}

#[test]
fn every_option_draws_in_the_program_what_the_host_draws_from_logits() {
    for name in MODELS {
        for backend in backends() {
            let [mut inside, mut outside] = [full(exact(true)), exact(false)]
                .map(|recipe| model(name, &recipe, backend.as_ref()).session().unwrap());
            assert!(inside.engine().samples_itself() && inside.engine().has_full_sampler());
            for (round, options) in [1, 99].into_iter().flat_map(full_ways).enumerate() {
                for session in [&mut inside, &mut outside] {
                    session.set_logit_bias(if round % 2 == 1 { &BIASES } else { &[] }).unwrap();
                    let mask = mask(session.engine().vocabulary());
                    session.set_token_mask((round % 3 == 2).then_some(mask.as_slice())).unwrap();
                }
                let [found, wanted] = [&mut inside, &mut outside].map(|session| rich_text(session, &options, 8));
                let what = format!("{name} on {}: {options:?}", backend.name());
                if backend.capabilities().is_inexact {
                    assert_alike(&found, &wanted, &what);
                } else {
                    assert_eq!(found, wanted, "{what}");
                }
                assert!(found.1.iter().all(Option::is_some) && found.0.len() == 8);
            }
        }
    }
}

#[test]
fn without_options_the_full_head_draws_what_the_plain_one_draws() {
    for name in all() {
        let mut sessions = [session(&name, &rounded(true)), session(&name, &full(rounded(true)))];
        for options in [21, 22].into_iter().flat_map(ways) {
            let [plain, full] = sessions.each_mut().map(|session| text(session, &options, 8));
            assert_eq!(plain, full, "{name}: {options:?}");
        }
    }
}

#[test]
fn a_grafted_head_is_that_of_the_exporter() {
    for name in MODELS {
        for sample in [true, false] {
            let program = endless(name, &exact(sample));
            let how = Graft { head: Head::Full, ..Graft::default() };
            let grafted = graft(Program::clone(&program), &how, &Limits::DEFAULT).unwrap();
            let mut grafted = Engine::new(&grafted, device().as_ref(), &[]).unwrap().session().unwrap();
            let mut exported = session(name, &full(exact(true)));
            for options in full_ways(5) {
                let [found, wanted] = [&mut grafted, &mut exported].map(|session| rich_text(session, &options, 6));
                assert_eq!(found, wanted, "{name}, with a head {sample}: {options:?}");
            }
        }
    }
}

#[test]
fn step_by_step_the_full_head_draws_the_same_tokens() {
    for name in MODELS {
        let program = endless(name, &full(exact(true)));
        let without = ["fuse-sampler".to_owned()];
        for backend in backends() {
            let mut fused = Engine::new(&program, backend.as_ref(), &[]).unwrap().session().unwrap();
            let mut steps = Engine::new(&program, backend.as_ref(), &without).unwrap().session().unwrap();
            for options in full_ways(3) {
                let [found, wanted] = [&mut steps, &mut fused].map(|session| rich_text(session, &options, 6));
                assert_alike(&found, &wanted, &format!("{name} on {}: {options:?}", backend.name()));
            }
        }
    }
}

#[test]
fn penalties_count_the_tokens_that_are_left_after_rewinding_and_forking() {
    let options = SampleOptions { frequency_penalty: Some(1.5), repetition_penalty: Some(1.4), ..seeded(8) };
    for name in MODELS {
        let mut sessions = [session(name, &full(exact(true))), session(name, &exact(false))];
        let [inside, outside] = sessions.each_mut().map(|session| {
            let schedule = options.schedule(session.engine()).unwrap();
            let mut token = session.prefill(&PROMPT, &schedule.at_step(0)).unwrap();
            assert_eq!(session.text_start(), PROMPT.len());
            for step in 1..7 {
                token = session.decode(token, &schedule.at_step(step)).unwrap();
            }
            let mut fork = session.fork().unwrap();
            let mut tokens = vec![fork.decode(token, &schedule.at_step(7)).unwrap()];
            if session.engine().can_rewind() {
                session.rewind(PROMPT.len() + 2).unwrap();
                assert_eq!(session.text_start(), PROMPT.len());
                tokens.push(session.decode(5, &schedule.at_step(3)).unwrap());
                session.rewind(4).unwrap();
                assert_eq!(session.text_start(), 4);
                tokens.push(session.decode(9, &schedule.at_step(3)).unwrap());
            }
            tokens
        });
        assert_eq!(inside, outside, "{name}");
    }
}

#[test]
fn sessions_decoded_together_draw_with_their_own_penalties_biases_and_masks() {
    for name in MODELS {
        let engine = model(name, &full(exact(true)), device().as_ref());
        let schedules: Vec<_> = full_ways(4).iter().map(|options| options.schedule(&engine).unwrap()).collect();
        let start = || {
            let sessions = schedules.iter().enumerate().map(|(at, schedule)| {
                let mut session = engine.session().unwrap();
                session.set_logit_bias(if at % 2 == 0 { &BIASES } else { &[] }).unwrap();
                let mask = mask(engine.vocabulary());
                session.set_token_mask((at % 3 == 0).then_some(mask.as_slice())).unwrap();
                let token = session.prefill(&PROMPT[at..], &schedule.at_step(0)).unwrap();
                (session, token)
            });
            sessions.collect::<Vec<_>>()
        };
        let (mut alone, mut together) = (start(), start());
        for step in 1..6 {
            for ((session, token), schedule) in alone.iter_mut().zip(&schedules) {
                *token = session.decode(*token, &schedule.at_step(step)).unwrap();
            }
            let lanes = together.iter_mut().zip(&schedules);
            let lanes = lanes.map(|((session, token), schedule)| {
                CallLane::new(session, std::slice::from_ref(token), schedule.at_step(step))
            });
            let mut lanes: Vec<CallLane<'_>> = lanes.collect();
            call_together(&mut lanes, &StopFlag::default());
            let next: Vec<TokenId> = lanes.into_iter().map(|lane| lane.next.unwrap()).collect();
            for ((lane, next), own) in together.iter_mut().zip(next).zip(&alone) {
                assert_eq!(next, own.1, "{name}");
                assert_eq!(lane.0.log_probabilities(), own.0.log_probabilities(), "{name}");
                lane.1 = next;
            }
        }
    }
}

#[test]
fn s1_6_a_plain_head_refuses_the_options_of_the_full_one_by_name() {
    let mut session = session("llama", &exact(true));
    let fine = seeded(1);
    for (options, wanted) in [
        (SampleOptions { min_p: Some(0.1), ..fine }, "min-p"),
        (SampleOptions { repetition_penalty: Some(1.1), ..fine }, "a repetition penalty"),
        (SampleOptions { presence_penalty: Some(1.0), ..fine }, "a presence penalty"),
        (SampleOptions { frequency_penalty: Some(1.0), ..fine }, "a frequency penalty"),
        (SampleOptions { exact_tail: true, ..fine }, "an exact tail"),
        (SampleOptions { log_probabilities: LogProbabilities::Model, ..fine }, "log-probabilities"),
    ] {
        let error = session.generate(&PROMPT, &options, 3).err().unwrap();
        assert!(matches!(error, Error::NeedsFullSampler(what) if what == wanted), "{error}");
    }
    assert!(matches!(session.set_logit_bias(&[(1, 1.0)]), Err(Error::NeedsFullSampler("a logit bias"))));
    assert!(matches!(session.set_token_mask(Some(&[1])), Err(Error::NeedsFullSampler("a mask of tokens"))));
    let neutral = SampleOptions { min_p: Some(0.0), repetition_penalty: Some(1.0), ..fine };
    assert_eq!(text(&mut session, &neutral, 5), text(&mut session, &fine, 5), "neutral values need nothing");
}

#[test]
fn s1_6_biases_without_meaning_are_refused() {
    let mut session = session("llama", &full(exact(true)));
    let vocabulary = session.engine().vocabulary();
    let outside = TokenId::try_from(vocabulary).unwrap();
    assert!(matches!(session.set_logit_bias(&[(outside, 1.0)]), Err(Error::BiasOutside { .. })));
    assert!(matches!(session.set_logit_bias(&[(1, f32::NAN)]), Err(Error::Bias { token: 1, .. })));
    assert!(matches!(session.set_logit_bias(&[(1, 1.0); 1025]), Err(Error::TooManyBiases(1025))));
    let settings = SampleOptions { repetition_penalty: Some(0.0), ..seeded(1) };
    assert!(matches!(session.generate(&PROMPT, &settings, 3), Err(Error::Refused(_))));
}

/// Allows the next token of a list, and then an end.
#[derive(Debug)]
struct Dictated {
    rest: Vec<TokenId>,
    mask: Vec<u32>,
    ends_itself: bool,
}

impl TokenFilter for Dictated {
    fn allowed(&mut self) -> Result<&[u32], FilterError> {
        let next = *self.rest.last().ok_or("nothing may follow")? as usize;
        self.mask = vec![0; next / 32 + 1];
        self.mask[next / 32] = 1 << (next % 32);
        Ok(&self.mask)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), FilterError> {
        if self.rest.pop() == Some(token) { Ok(()) } else { Err("not allowed".into()) }
    }

    fn is_finished(&self) -> bool {
        self.ends_itself && self.rest.is_empty()
    }
}

#[test]
fn a_filter_decides_what_may_be_drawn() {
    for recipe in [full(exact(true)), exact(false)] {
        let mut session = session("qwen3_5_moe", &recipe);
        let plain = text(&mut session, &seeded(3), 4);
        session.reset().unwrap();
        let mut filter = Dictated { rest: vec![31, 63, 64, 7], mask: Vec::new(), ends_itself: false };
        let tokens = session.generate(&PROMPT, &seeded(3), 4).unwrap().with_filter(&mut filter).unwrap();
        assert_eq!(tokens.map(Result::unwrap).collect::<Vec<_>>(), [7, 64, 63, 31]);
        assert_eq!(text(&mut session, &seeded(3), 4), plain, "the next text has no filter");
        session.reset().unwrap();
        let mut filter = Dictated { rest: vec![31], mask: Vec::new(), ends_itself: false };
        let mut tokens = session.generate(&PROMPT, &seeded(3), 4).unwrap().with_filter(&mut filter).unwrap();
        assert_eq!(tokens.next().unwrap().unwrap(), 31);
        assert_eq!(tokens.next().unwrap().unwrap_err().to_string(), "nothing may follow");
        assert!(tokens.next().is_none());
        drop(tokens);
        session.reset().unwrap();
        let mut filter = Dictated { rest: vec![31], mask: Vec::new(), ends_itself: true };
        let mut tokens = session.generate(&PROMPT, &seeded(3), 4).unwrap().with_filter(&mut filter).unwrap();
        assert_eq!(tokens.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [31]);
        assert_eq!(tokens.finish().reason, Reason::Eos);
    }
    let mut plain = session("llama", &exact(true));
    let mut filter = Dictated { rest: vec![31], mask: Vec::new(), ends_itself: false };
    let refused = plain.generate(&PROMPT, &seeded(3), 4).unwrap().with_filter(&mut filter);
    assert!(matches!(refused, Err(Error::NeedsFullSampler("a grammar"))));
}
