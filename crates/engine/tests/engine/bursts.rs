//! Bursts of steps on the device give the tokens of single steps, however a text ends.

use crate::breaking::Breaking;
use crate::tiny::{GenerateWith, PROMPT, device, endless, exact, model, seeded, text, ways};
use ptero_backend::Fault;
use ptero_engine::{Engine, Reason, SampleOptions, Session, TokenSettings};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

const ON: ControlFlow<()> = ControlFlow::Continue(());
/// Caches, and caches with a window: states that can go back.
const MODELS: [&str; 2] = ["llama", "mistral"];
const BURSTS: [usize; 6] = [0, 2, 3, 5, 8, 1000];

/// A text, and how it ended.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    text: Vec<u32>,
    /// Why it ended, the token that was not given and the number of new tokens; or the error.
    end: Result<(Reason, Option<u32>, usize), String>,
    position: usize,
}

/// Continues with a prompt, until the caller has taken the number of tokens it wants.
fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: &SampleOptions,
    most: usize,
    breaks_at: Option<usize>,
) -> Outcome {
    let mut text = Vec::new();
    let finish = session.generate_with(prompt, options, most, |token| {
        text.push(token);
        if breaks_at == Some(text.len()) { ControlFlow::Break(()) } else { ON }
    });
    let end = finish.map(|finish| (finish.reason, finish.pending, finish.timings.new_tokens));
    Outcome { text, end: end.map_err(|error| error.to_string()), position: session.position() }
}

/// The text, and how the session goes on after it.
fn generate_twice(
    session: &mut Session,
    options: &SampleOptions,
    most: usize,
    breaks_at: Option<usize>,
) -> [Outcome; 2] {
    session.reset().unwrap();
    let first = generate(session, &PROMPT, options, most, breaks_at);
    let next = match &first.end {
        Ok((_, Some(pending), _)) => *pending,
        _ => *first.text.last().unwrap_or(&7),
    };
    let second = generate(session, &[next, 12], &seeded(3), 5, None);
    [first, second]
}

/// A session on a device with bursts, and what the longest was in the end.
fn check_bursts(name: &str, mut check: impl FnMut(&mut Session, usize)) {
    for burst in BURSTS {
        let device = Breaking::bursts(burst);
        check(&mut model(name, &exact(true), &device).session().unwrap(), burst);
        let longest = device.longest.load(Ordering::Relaxed);
        assert!(longest <= burst.max(1) && (longest > 1 || burst < 2), "{name}, bursts of {burst}: {longest}");
    }
}

#[test]
fn s1_8_bursts_give_the_text_of_single_steps() {
    for name in MODELS {
        let mut single = model(name, &exact(true), device().as_ref()).session().unwrap();
        let options = [ways(5), ways(-2)].concat();
        let wanted = |session: &mut Session, options: &SampleOptions| {
            [0, 1, 2, 6, 20].map(|most| generate_twice(session, options, most, None))
        };
        let expected: Vec<_> = options.iter().map(|options| wanted(&mut single, options)).collect();
        check_bursts(name, |session, burst| {
            for (options, expected) in options.iter().zip(&expected) {
                assert_eq!(wanted(session, options), *expected, "{name}, bursts of {burst}: {options:?}");
            }
        });
    }
}

#[test]
fn an_end_in_the_middle_of_a_burst_ends_the_text_there() {
    for name in MODELS {
        let mut single = model(name, &exact(true), device().as_ref()).session().unwrap();
        let whole = text(&mut single, &seeded(4), 16);
        let expected: Vec<_> = whole
            .iter()
            .map(|end| {
                single.end_also_at(&[*end]);
                generate_twice(&mut single, &seeded(4), 16, None)
            })
            .collect();
        for (end, [first, _]) in whole.iter().zip(&expected) {
            assert_eq!(first.end, Ok((Reason::Eos, Some(*end), first.text.len())));
        }
        check_bursts(name, |session, burst| {
            for (end, expected) in whole.iter().zip(&expected) {
                session.end_also_at(&[*end]);
                assert_eq!(generate_twice(session, &seeded(4), 16, None), *expected, "{name}, bursts of {burst}");
            }
        });
    }
}

#[test]
fn a_caller_that_wants_no_more_in_the_middle_of_a_burst_leaves_the_session_there() {
    for name in MODELS {
        let mut single = model(name, &exact(true), device().as_ref()).session().unwrap();
        let expected: Vec<_> = (1..12).map(|at| generate_twice(&mut single, &seeded(4), 16, Some(at))).collect();
        for (at, [first, _]) in (1..).zip(&expected) {
            assert_eq!(first.end, Ok((Reason::Caller, first.text.last().copied(), at)));
            assert_eq!(first.position, PROMPT.len() + at - 1, "the last token is not given");
        }
        check_bursts(name, |session, burst| {
            for (at, expected) in (1..).zip(&expected) {
                let outcome = generate_twice(session, &seeded(4), 16, Some(at));
                assert_eq!(outcome, *expected, "{name}, bursts of {burst}: token {at}");
            }
        });
    }
}

#[test]
fn a_stop_in_the_middle_of_a_burst_ends_the_text_there() {
    for name in MODELS {
        let mut single = model(name, &exact(true), device().as_ref()).session().unwrap();
        let whole = text(&mut single, &seeded(4), 16);
        check_bursts(name, |session, burst| {
            for at in 1..12 {
                session.reset().unwrap();
                let (flag, mut seen) = (session.stop_flag(), Vec::new());
                let finish = session.generate_with(&PROMPT, &seeded(4), 16, |token| {
                    seen.push(token);
                    if seen.len() == at {
                        flag.stop();
                    }
                    ON
                });
                let finish = finish.unwrap();
                assert_eq!((finish.reason, finish.pending), (Reason::Stopped, seen.last().copied()), "{name}, {burst}");
                assert_eq!((&seen[..], session.position()), (&whole[..at], PROMPT.len() + at - 1), "{name}, {burst}");
                flag.clear();
                let step = i64::try_from(at).unwrap();
                let rest = generate(session, &[whole[at - 1]], &seeded(4 + step), 16 - at, None);
                assert_eq!(rest.text, whole[at..], "{name}, bursts of {burst}: stopped after {at}");
            }
        });
    }
}

#[test]
fn a_context_that_is_full_in_the_middle_of_a_burst_ends_the_text_there() {
    for name in MODELS {
        let mut single = model(name, &exact(true), device().as_ref()).session().unwrap();
        let context = single.engine().context();
        let fill = |session: &mut Session, prompt: usize| {
            session.reset().unwrap();
            let outcome = generate(session, &vec![7; prompt], &seeded(4), usize::MAX, None);
            // Nothing fits any more, or the last position takes the token that is left.
            let error = session.generate_with(&[1, 2], &seeded(4), 1, |_| ON).unwrap_err().to_string();
            (outcome, error, session.prefill(&[3], &TokenSettings::GREEDY).ok(), session.position())
        };
        let prompts = [1, context - 9, context - 3, context - 2, context - 1];
        let expected = prompts.map(|prompt| fill(&mut single, prompt));
        for (prompt, (outcome, ..)) in prompts.into_iter().zip(&expected) {
            assert_eq!(outcome.end.as_ref().unwrap().0, Reason::ContextFull);
            assert_eq!((prompt + outcome.text.len(), outcome.position), (context, context - 1));
        }
        check_bursts(name, |session, burst| {
            assert_eq!(prompts.map(|prompt| fill(session, prompt)), expected, "{name}, bursts of {burst}");
        });
    }
}

#[test]
fn a_fault_in_the_middle_of_a_burst_comes_after_the_tokens_before_it() {
    let faults = [Fault::Cancelled, Fault::IndexOutside { index: 9, size: 4 }];
    for (name, fault) in MODELS.into_iter().flat_map(|name| faults.clone().map(|fault| (name, fault))) {
        let program = endless(name, &exact(true));
        for at in [1, 2, 3, 4, 5, 8, 11] {
            let outcome = |burst| {
                let device = Breaking { at, fault: fault.clone(), ..Breaking::bursts(burst) };
                let mut session = Engine::new(&program, &device, &[]).unwrap().session().unwrap();
                generate_twice(&mut session, &seeded(4), 16, None)
            };
            let expected = outcome(1);
            assert_eq!(expected[0].text.len(), at - 1, "{name}, {fault}");
            match &expected[0].end {
                Ok((reason, ..)) => assert_eq!((*reason, &fault), (Reason::Stopped, &Fault::Cancelled)),
                Err(error) => assert_eq!(*error, fault.to_string()),
            }
            for burst in BURSTS {
                assert_eq!(outcome(burst), expected, "{name}, bursts of {burst}: {fault} at step {at}");
            }
        }
    }
}

#[test]
fn states_that_cannot_go_back_and_programs_that_return_logits_run_step_by_step() {
    for (name, sample) in [("qwen3_5_moe", true), ("qwen3_5_moe", false), ("llama", false)] {
        let wanted = text(&mut model(name, &exact(sample), device().as_ref()).session().unwrap(), &seeded(6), 12);
        let device = Breaking::bursts(8);
        let mut session = model(name, &exact(sample), &device).session().unwrap();
        assert_eq!(text(&mut session, &seeded(6), 12), wanted, "{name}");
        assert_eq!(device.longest.load(Ordering::Relaxed), 1, "{name}");
    }
}
