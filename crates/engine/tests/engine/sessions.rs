//! Sessions of one model: apart from each other, and back to where they were: S1.8.

use crate::breaking::Breaking;
use crate::tiny::{GenerateWith, MODELS, PROMPT, backends, device, endless, exact, model, seeded, session, text};
use ptero_engine::{Engine, Error, Reason, SampleOptions, Session, TokenSettings};
use std::ops::ControlFlow;

const ON: ControlFlow<()> = ControlFlow::Continue(());

#[test]
fn models_are_shared_by_threads_and_sessions_move_between_them() {
    fn shared<T: Send + Sync + Clone>() {}
    fn moved<T: Send>() {}
    shared::<Engine>();
    moved::<Session>();
}

#[test]
fn s1_8_sessions_that_take_turns_do_not_meet() {
    for name in MODELS {
        for sample in [true, false] {
            for backend in backends() {
                let model = model(name, &exact(sample), backend.as_ref());
                let options = [seeded(1), SampleOptions { temperature: 0.6, top_k: Some(20), ..seeded(2) }];
                let alone = options.map(|options| text(&mut model.session().unwrap(), &options, 10));
                let schedules = options.map(|options| options.schedule(&model).unwrap());
                let mut sessions = [(); 2].map(|()| model.session().unwrap());
                let mut texts = [Vec::new(), Vec::new()];
                for step in 0..10 {
                    for ((session, schedule), text) in sessions.iter_mut().zip(&schedules).zip(&mut texts) {
                        let token = match text.last() {
                            None => session.prefill(&PROMPT, &schedule.at_step(step)),
                            Some(last) => session.decode(*last, &schedule.at_step(step)),
                        };
                        text.push(token.unwrap());
                    }
                }
                assert_eq!(texts, alone, "{name} on {}", backend.name());
            }
        }
    }
}

#[test]
fn s1_8_sessions_on_several_threads_give_the_texts_they_give_alone() {
    let model = model("qwen3_5_moe", &exact(true), device().as_ref());
    let alone = [1, 2, 3].map(|seed| text(&mut model.session().unwrap(), &seeded(seed), 20));
    let threads = [1, 2, 3].map(|seed| {
        let model = model.clone();
        std::thread::spawn(move || text(&mut model.session().unwrap(), &seeded(seed), 20))
    });
    assert_eq!(threads.map(|thread| thread.join().unwrap()), alone);
}

#[test]
fn caches_go_back_to_any_position_and_recurrent_state_only_to_the_start() {
    for name in MODELS {
        for backend in backends() {
            let model = model(name, &exact(true), backend.as_ref());
            assert_eq!(model.can_rewind(), name != "qwen3_5_moe", "{name}");
            let mut session = model.session().unwrap();
            let first = text(&mut session, &seeded(5), 20);
            let reached = session.position();
            let error = session.rewind(reached + 1).unwrap_err();
            assert!(matches!(error, Error::RewindAhead { .. }), "{error}");
            session.rewind(reached).unwrap();
            if model.can_rewind() {
                session.rewind(PROMPT.len() - 1).unwrap();
                let mut again = Vec::new();
                let rest = &PROMPT[PROMPT.len() - 1..];
                let on_token = |token| {
                    again.push(token);
                    ON
                };
                session.generate_with(rest, &seeded(5), 20, on_token).unwrap();
                assert_eq!(again, first, "{name} on {}", backend.name());
            } else {
                assert_eq!(
                    session.rewind(4).unwrap_err().to_string(),
                    format!(
                        "cannot go back to position 4 of {reached}: this model's state keeps no earlier positions, only 0"
                    )
                );
                assert_eq!(session.position(), reached);
            }
            session.rewind(0).unwrap();
            assert_eq!(session.position(), 0);
            assert_eq!(text(&mut session, &seeded(5), 20), first, "{name}");
        }
    }
}

#[test]
fn a_session_is_stopped_from_another_thread_and_goes_on_when_the_flag_is_cleared() {
    for name in MODELS {
        let mut session = session(name, &exact(true));
        let whole = text(&mut session, &seeded(8), 12);
        session.reset().unwrap();
        let (flag, mut seen) = (session.stop_flag(), Vec::new());
        let finish = session.generate_with(&PROMPT, &seeded(8), 12, |token| {
            seen.push(token);
            if seen.len() == 3 {
                let flag = flag.clone();
                std::thread::spawn(move || flag.stop()).join().unwrap();
            }
            ON
        });
        assert_eq!(finish.unwrap().reason, Reason::Stopped);
        assert_eq!(seen, whole[..3]);
        assert!(matches!(session.decode(seen[2], &TokenSettings::GREEDY), Err(Error::Stopped)), "it stays set");
        let finish = session.generate_with(&[seen[2]], &seeded(11), 9, |_| panic!("it stays set")).unwrap();
        assert_eq!((finish.reason, finish.timings.new_tokens), (Reason::Stopped, 0));
        flag.clear();
        let on_token = |token| {
            seen.push(token);
            ON
        };
        session.generate_with(&[whole[2]], &seeded(11), 9, on_token).unwrap();
        assert_eq!(seen, whole, "{name}: nothing had begun, so nothing is lost");
    }
}

#[test]
fn a_run_that_ends_halfway_is_repeated_on_caches_and_needs_a_reset_on_recurrent_state() {
    for name in MODELS {
        let program = endless(name, &exact(true));
        // The fourth run of the session: the third step of decoding.
        let model = Engine::new(&program, &Breaking::stopped(4), &[]).unwrap();
        let whole = text(&mut Engine::new(&program, device().as_ref(), &[]).unwrap().session().unwrap(), &seeded(8), 9);
        let (mut session, mut seen) = (model.session().unwrap(), Vec::new());
        let finish = session.generate_with(&PROMPT, &seeded(8), 9, |token| {
            seen.push(token);
            ON
        });
        assert_eq!((finish.unwrap().reason, seen.len()), (Reason::Stopped, 3));
        assert_eq!(session.position(), PROMPT.len() + 2);
        let mut on_token = |token| {
            seen.push(token);
            ON
        };
        let more = session.generate_with(&[whole[2]], &seeded(8 + 3), 6, &mut on_token);
        if model.can_rewind() {
            assert_eq!(more.unwrap().reason, Reason::Length);
            assert_eq!(seen, whole, "{name}");
        } else {
            assert!(matches!(more, Err(Error::Torn)), "{more:?}");
            assert_eq!(text(&mut session, &seeded(8), 9), whole, "{name}: a reset repairs it");
        }
    }
}
