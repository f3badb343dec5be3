//! Copies of sessions: each goes on from where the first was, and none meets another (S1.8).

use crate::breaking::Breaking;
use crate::tiny::{GenerateWith, PROMPT, backends, device, endless, exact, model, seeded, session};
use ptero_engine::{Engine, Error, Reason, SampleOptions, Session, TokenSettings};
use ptero_export::{Graft, graft};
use ptero_sampling::inputs::Head;
use std::ops::ControlFlow;

/// Caches, sliding-window caches, caches that layers share, recurrent state beside caches.
const MODELS: [&str; 5] = ["llama", "mistral", "gemma4_shared", "qwen3", "qwen3_5_moe"];

const TURN: [u32; 4] = [7, 33, 12, 58];
const OTHER_TURN: [u32; 6] = [90, 2, 61, 61, 18, 40];

/// The tokens with which a session continues.
fn more(session: &mut Session, turn: &[u32], options: &SampleOptions) -> Vec<u32> {
    let mut text = Vec::new();
    let on_token = |token| {
        text.push(token);
        ControlFlow::Continue(())
    };
    session.generate_with(turn, options, 8, on_token).unwrap();
    text
}

/// A session that was given the prompt and has said something.
fn started(model: &Engine) -> Session {
    let mut session = model.session().unwrap();
    more(&mut session, &PROMPT, &seeded(1));
    session
}

#[test]
fn s1_8_a_fork_continues_like_the_first_session_with_the_same_seed() {
    for name in MODELS {
        for sample in [true, false] {
            for backend in backends() {
                let model = model(name, &exact(sample), backend.as_ref());
                let expected = more(&mut started(&model), &TURN, &seeded(4));
                let mut first = started(&model);
                let mut fork = first.fork().unwrap();
                assert_eq!((fork.position(), fork.room()), (first.position(), first.room()));
                assert_eq!(fork.logits(), first.logits());
                let mut again = fork.fork().unwrap();
                let said = [&mut first, &mut fork, &mut again].map(|session| more(session, &TURN, &seeded(4)));
                assert!(said.iter().all(|said| *said == expected), "{name} on {}: {said:?}", backend.name());
            }
        }
    }
}

#[test]
fn s1_8_forks_that_go_different_ways_do_not_meet() {
    for name in MODELS {
        for backend in backends() {
            let model = model(name, &exact(true), backend.as_ref());
            let ways = [(&TURN[..], seeded(4)), (&OTHER_TURN[..], seeded(5))];
            let alone = ways.map(|(turn, options)| more(&mut started(&model), turn, &options));
            assert_ne!(alone[0], alone[1], "{name}");
            let first = started(&model);
            let mut sessions = [first.fork().unwrap(), first.fork().unwrap()];
            // The first is gone, or starts over, while its forks go on.
            drop(first);
            let schedules = ways.map(|(_, options)| options.schedule(&model).unwrap());
            let mut texts = [Vec::new(), Vec::new()];
            for step in 0..8 {
                for (at, session) in sessions.iter_mut().enumerate() {
                    let draw = schedules[at].at_step(step);
                    let token = match texts[at].last() {
                        None => session.prefill(ways[at].0, &draw),
                        Some(last) => session.decode(*last, &draw),
                    };
                    texts[at].push(token.unwrap());
                }
            }
            assert_eq!(texts, alone, "{name} on {}", backend.name());
            let mut late = sessions[0].fork().unwrap();
            let expected = more(&mut late, &TURN, &seeded(6));
            let mut late = sessions[0].fork().unwrap();
            sessions[0].reset().unwrap();
            more(&mut sessions[0], &OTHER_TURN, &seeded(7));
            assert_eq!(more(&mut late, &TURN, &seeded(6)), expected, "{name}: its first session started over");
        }
    }
}

#[test]
fn s1_8_forks_on_several_threads_give_the_texts_they_give_alone() {
    for name in ["llama", "gemma4_shared", "qwen3_5_moe"] {
        let model = model(name, &exact(true), device().as_ref());
        let alone = [1, 2, 3, 4].map(|seed| more(&mut started(&model), &TURN, &seeded(seed)));
        let first = started(&model);
        let threads = [1, 2, 3, 4].map(|seed| {
            let mut fork = first.fork().unwrap();
            std::thread::spawn(move || more(&mut fork, &TURN, &seeded(seed)))
        });
        assert_eq!(threads.map(|thread| thread.join().unwrap()), alone, "{name}");
    }
}

#[test]
fn a_fork_of_a_session_without_a_text_is_a_new_session() {
    let first = session("qwen3_5_moe", &exact(true));
    let mut fork = first.fork().unwrap();
    assert_eq!((fork.position(), fork.logits()), (0, None));
    let expected = more(&mut first.engine().session().unwrap(), &PROMPT, &seeded(3));
    assert_eq!(more(&mut fork, &PROMPT, &seeded(3)), expected);
}

#[test]
fn forks_of_a_program_that_draws_without_a_seed_draw_apart() {
    let how = Graft { method: "forward".to_owned(), output: None, head: Head::Unseeded };
    let program = graft(endless("llama", &exact(false)).into_program(), &how, &ptero_pte::Limits::DEFAULT).unwrap();
    let mut first = Engine::new(&program, device().as_ref(), &[]).unwrap().session().unwrap();
    let unset = SampleOptions { seed: None, ..seeded(0) };
    more(&mut first, &PROMPT, &unset);
    let forks = [first.fork().unwrap(), first.fork().unwrap(), first];
    let said = forks.map(|mut session| more(&mut session, &TURN, &unset));
    assert!(said[0] != said[1] && said[0] != said[2] && said[1] != said[2], "{said:?}");
}

#[test]
fn a_fork_has_the_same_ends_and_a_stop_flag_of_its_own() {
    let model = model("llama", &exact(true), device().as_ref());
    let mut first = started(&model);
    let said = more(&mut first.fork().unwrap(), &TURN, &seeded(4));
    first.end_also_at(&said[2..3]);
    first.stop_flag().stop();
    let mut fork = first.fork().unwrap();
    assert!(!fork.stop_flag().is_set());
    let finish = fork.generate_with(&TURN, &seeded(4), 8, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(finish.reason, Reason::Eos);
    assert!(finish.timings.new_tokens <= 3, "{:?}", finish.timings);
    first.stop_flag().clear();
    fork.stop_flag().stop();
    assert_eq!(more(&mut first.fork().unwrap(), &TURN, &seeded(4))[..2], said[..2]);
    assert!(matches!(fork.decode(1, &TokenSettings::GREEDY), Err(Error::Stopped)));
}

#[test]
fn a_session_whose_call_ended_halfway_is_forked_only_where_the_call_can_be_repeated() {
    for name in MODELS {
        let model = Engine::new(&endless(name, &exact(true)), &Breaking::stopped(2), &[]).unwrap();
        let mut session = model.session().unwrap();
        let token = session.prefill(&PROMPT, &TokenSettings::GREEDY).unwrap();
        assert!(matches!(session.decode(token, &TokenSettings::GREEDY), Err(Error::Stopped)));
        let fork = session.fork();
        if model.can_rewind() {
            let mut fork = fork.unwrap();
            assert_eq!(
                fork.decode(token, &TokenSettings::GREEDY).unwrap(),
                session.decode(token, &TokenSettings::GREEDY).unwrap()
            );
        } else {
            assert_eq!(
                fork.unwrap_err().to_string(),
                "an earlier call stopped halfway, and this model's state cannot be repaired; reset the session"
            );
            session.reset().unwrap();
            assert_eq!(session.fork().unwrap().position(), 0, "{name}");
        }
    }
}
