//! Why texts end, and what is reported about them.

use crate::tiny::{GenerateWith, PROMPT, device, exact, exported, seeded, session, text, verified};
use ptero_engine::{Engine, Reason};
use ptero_export::metadata;
use std::ops::ControlFlow;

const ON: ControlFlow<()> = ControlFlow::Continue(());

#[test]
fn a_text_ends_at_the_length_that_was_asked_for() {
    let mut session = session("llama", &exact(true));
    for count in [0, 1, 5] {
        session.reset().unwrap();
        let mut seen = Vec::new();
        let finish = session.generate_with(&PROMPT, &seeded(4), count, |token| {
            seen.push(token);
            ON
        });
        let finish = finish.unwrap();
        assert_eq!((finish.reason, seen.len(), finish.seed), (Reason::Length, count, Some(4)));
        assert_eq!(finish.pending, seen.last().copied());
        let timings = finish.timings;
        let counts = (timings.prompt_tokens, timings.new_tokens, timings.decode_steps);
        assert_eq!(counts, (PROMPT.len(), count, count.saturating_sub(1)));
        assert!(timings.load > std::time::Duration::ZERO && timings.prefill_rate() > 0.0);
        assert_eq!(timings.decode_rate() > 0.0, count > 1);
        assert_eq!(session.position(), PROMPT.len() + count.saturating_sub(1));
    }
}

#[test]
fn s1_6_a_full_context_is_an_orderly_end_with_a_position_for_every_token() {
    for sample in [true, false] {
        let mut session = session("llama", &exact(sample));
        for prompt in [1, 40, 62, 63] {
            session.reset().unwrap();
            let mut count = 0;
            let finish = session.generate_with(&vec![7; prompt], &seeded(4), usize::MAX, |_| {
                count += 1;
                ON
            });
            assert_eq!(finish.unwrap().reason, Reason::ContextFull);
            assert_eq!(prompt + count, 64, "prompt and text fill the context");
        }
        session.reset().unwrap();
        let finish = session.generate_with(&[7; 60], &seeded(4), 4, |_| ON).unwrap();
        assert_eq!(finish.reason, Reason::Length, "whoever got all that was asked for is not told of the context");
    }
}

#[test]
fn a_text_ends_at_the_models_tokens_and_at_the_callers() {
    let mut endless = session("llama", &exact(true));
    let whole = text(&mut endless, &seeded(4), 12);
    let first = whole.iter().position(|token| *token == whole[7]).unwrap();
    let check = |session: &mut ptero_engine::Session| {
        assert_eq!(text(session, &seeded(4), 12), whole[..first], "the end itself is not passed on");
        session.reset().unwrap();
        let finish = session.generate_with(&PROMPT, &seeded(4), 12, |_| ON).unwrap();
        assert_eq!((finish.reason, finish.pending), (Reason::Eos, Some(whole[7])));
    };
    endless.end_also_at(&[whole[7], 1000]);
    check(&mut endless);
    for ends in [metadata::ints("get_eos_ids", &[-1, whole[7].into()]), metadata::int("get_eos_id", whole[7].into())] {
        let mut program = exported("llama", &exact(true));
        program.methods.retain(|method| method.name != "get_eos_ids");
        program.methods.push(ends);
        let model = Engine::new(&verified(program), device().as_ref(), &[]).unwrap();
        assert_eq!(model.eos_ids().last(), Some(&whole[7]));
        check(&mut model.session().unwrap());
    }
}

#[test]
fn a_text_ends_when_the_caller_wants_no_more_and_can_be_continued() {
    let mut session = session("qwen3_5_moe", &exact(true));
    let whole = text(&mut session, &seeded(4), 12);
    session.reset().unwrap();
    let mut seen = Vec::new();
    let finish = session.generate_with(&PROMPT, &seeded(4), 12, |token| {
        seen.push(token);
        if seen.len() == 5 { ControlFlow::Break(()) } else { ON }
    });
    let finish = finish.unwrap();
    assert_eq!((finish.reason, finish.pending), (Reason::Caller, Some(whole[4])));
    let on_token = |token| {
        seen.push(token);
        ON
    };
    session.generate_with(&[whole[4]], &seeded(4 + 5), 7, on_token).unwrap();
    assert_eq!(seen, whole, "the token that was not given, and the next seed, go on where it ended");
}
