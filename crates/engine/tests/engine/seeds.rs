//! The same seed gives the same text, wherever it is sampled: S1.2, S1.4, S1.5, S1.8.

use crate::tiny::{
    GenerateWith, MODELS, PROMPT, all, backends, device, endless, exact, model, rounded, seeded, session, text,
    threaded, ways,
};
use ptero_engine::{Engine, SampleOptions, Settings, TokenSettings};
use ptero_export::{Graft, graft};
use ptero_plan::passes;
use ptero_sampling::inputs::Head;
use std::ops::ControlFlow;

#[test]
fn s1_2_the_host_draws_from_logits_what_the_program_draws_itself() {
    for (name, recipe) in MODELS.into_iter().flat_map(|name| [(name, exact as fn(bool) -> _), (name, rounded)]) {
        for backend in backends() {
            let mut sessions =
                [true, false].map(|sample| model(name, &recipe(sample), backend.as_ref()).session().unwrap());
            assert_eq!(sessions.each_ref().map(|session| session.engine().samples_itself()), [true, false]);
            for options in [0, 1, -7, i64::from(i32::MAX) - 1, 1 << 40, i64::MAX - 2].into_iter().flat_map(ways) {
                let [inside, outside] = sessions.each_mut().map(|session| text(session, &options, 6));
                assert_eq!(inside, outside, "{name} on {}: {options:?}", backend.name());
            }
            let plain = [3, 4].map(|seed| text(&mut sessions[0], &seeded(seed), 12));
            assert_ne!(plain[0], plain[1], "{name}: texts vary with the seed");
        }
    }
}

#[test]
fn s1_8_every_tiny_model_gives_the_same_text_with_either_sampler_and_the_same_seed() {
    let names = all();
    assert!(names.len() >= 18);
    for name in names {
        let mut sessions = [true, false].map(|sample| session(&name, &rounded(sample)));
        for options in [21, 22].into_iter().flat_map(ways) {
            let [inside, outside] = sessions.each_mut().map(|session| text(session, &options, 8));
            assert_eq!(inside, outside, "{name}: {options:?}");
            assert_eq!(text(&mut sessions[0], &options, 8), inside, "{name}: {options:?}");
        }
    }
}

#[test]
fn s1_8_a_text_depends_on_its_seed_and_not_on_runs_threads_or_passes() {
    for name in MODELS {
        for sample in [true, false] {
            let program = endless(name, &exact(sample));
            let options = seeded(11);
            let mut fresh = Engine::new(&program, device().as_ref(), &[]).unwrap().session().unwrap();
            let wanted = text(&mut fresh, &options, 24);
            assert_eq!(text(&mut fresh, &options, 24), wanted, "{name}: a second run");
            for threads in [1, 2, 3] {
                let model = Engine::new(&program, threaded(threads).as_ref(), &[]).unwrap();
                assert_eq!(text(&mut model.session().unwrap(), &options, 24), wanted, "{name}: {threads} threads");
            }
            let all: Vec<String> = passes::names().map(str::to_owned).collect();
            for without in all.iter().map(std::slice::from_ref).chain([all.as_slice()]) {
                let model = Engine::new(&program, device().as_ref(), without).unwrap();
                let got = text(&mut model.session().unwrap(), &options, 24);
                assert_eq!(got, wanted, "{name}: without {without:?}");
            }
        }
    }
}

#[test]
fn s1_4_the_prompt_draws_with_the_seed_and_step_i_with_the_seed_plus_i() {
    for sample in [true, false] {
        for seed in [0, 5, i64::from(i32::MAX) - 2, i64::from(u32::MAX) - 1, i64::MAX - 1] {
            let options = SampleOptions { temperature: 1.3, top_k: Some(50), ..seeded(seed) };
            let mut session = session("llama", &exact(sample));
            let wanted = text(&mut session, &options, 6);
            session.reset().unwrap();
            let settings = Settings { temperature: 1.3, top_k: 50, ..Settings::PLAIN };
            let draw = |step: i64| TokenSettings::new(settings, seed.wrapping_add(step));
            let mut got = vec![session.prefill(&PROMPT, &draw(0)).unwrap()];
            for step in 1..6 {
                got.push(session.decode(*got.last().unwrap(), &draw(step)).unwrap());
            }
            assert_eq!(got, wanted, "seed {seed}");
        }
    }
}

#[test]
fn s1_4_seeds_are_equal_modulo_two_to_the_32_and_wrap() {
    for sample in [true, false] {
        let mut session = session("llama", &exact(sample));
        let near_the_end = [i64::MAX - 2, (i64::from(u32::MAX) - 2), -3, i64::MIN + (1 << 32) - 3];
        let texts = near_the_end.map(|seed| text(&mut session, &seeded(seed), 10));
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    }
}

#[test]
fn s1_5_without_a_seed_a_random_one_is_chosen_and_reported_so_that_the_text_can_be_repeated() {
    for sample in [true, false] {
        let mut session = session("llama", &exact(sample));
        let unset = SampleOptions { seed: None, ..seeded(0) };
        let mut seeds = Vec::new();
        for _ in 0..8 {
            session.reset().unwrap();
            let mut drawn = Vec::new();
            let mut on_token = |token| {
                drawn.push(token);
                ControlFlow::Continue(())
            };
            let seed = session.generate_with(&PROMPT, &unset, 10, &mut on_token).unwrap().seed.unwrap();
            assert_eq!(text(&mut session, &seeded(seed), 10), drawn);
            seeds.push(seed);
        }
        seeds.sort_unstable();
        seeds.dedup();
        assert!(seeds.len() > 6, "{seeds:?}");
        let zero = [(); 2].map(|()| text(&mut session, &seeded(0), 10));
        assert_eq!(zero[0], zero[1], "0 is a seed like any other");
    }
}

#[test]
fn s1_5_a_program_that_samples_without_a_seed_takes_none_and_reports_none() {
    let how = Graft { method: "forward".to_owned(), output: None, head: Head::Unseeded };
    let program = graft(endless("llama", &exact(false)).into_program(), &how, &ptero_pte::Limits::DEFAULT).unwrap();
    let model = Engine::new(&program, device().as_ref(), &[]).unwrap();
    assert!(model.samples_itself() && !model.takes_seed());
    let mut session = model.session().unwrap();
    let error = session.generate_with(&PROMPT, &seeded(1), 4, |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), "this program draws without a seed, so none can be given");
    assert_eq!(session.position(), 0);
    let unset = SampleOptions { seed: None, ..seeded(0) };
    let finish = session.generate_with(&PROMPT, &unset, 4, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((finish.seed, finish.timings.new_tokens), (None, 4));
    let greedy = SampleOptions { temperature: 0.0, ..unset };
    let mut other = crate::tiny::session("llama", &exact(false));
    assert_eq!(text(&mut session, &greedy, 8), text(&mut other, &greedy, 8));
}
