//! What is refused, with which message, before anything runs: S1.6.

use crate::tiny::{GenerateWith, PROMPT, exact, session, text};
use ptero_engine::{Error, SampleOptions, Sampling, Session, TokenSettings};
use std::ops::ControlFlow;

/// The message of a refusal, after which the session is what it was.
fn refusal(session: &mut Session, prompt: &[u32], options: SampleOptions) -> String {
    let before = session.position();
    let error = session.generate_with(prompt, &options, 4, |_| panic!("nothing is generated")).unwrap_err();
    assert_eq!(session.position(), before);
    error.to_string()
}

#[test]
fn s1_6_settings_without_meaning_are_refused() {
    let fine = SampleOptions { temperature: 1.0, sampling: Sampling::HostAllowed, ..SampleOptions::default() };
    for mut session in [true, false].map(|sample| session("llama", &exact(sample))) {
        for (options, wanted) in [
            (
                SampleOptions { temperature: -0.5, ..fine },
                "temperature is -0.5; it must be 0 (always the most likely token) or above",
            ),
            (
                SampleOptions { temperature: f32::NAN, ..fine },
                "temperature is NaN; it must be 0 (always the most likely token) or above",
            ),
            (
                SampleOptions { temperature: f32::INFINITY, ..fine },
                "temperature is inf; it must be 0 (always the most likely token) or above",
            ),
            (
                SampleOptions { top_k: Some(0), ..fine },
                "top-k is 0; it must be at least 1 (values above the vocabulary keep every token)",
            ),
            (
                SampleOptions { top_k: Some(-3), ..fine },
                "top-k is -3; it must be at least 1 (values above the vocabulary keep every token)",
            ),
            (
                SampleOptions { top_p: Some(0.0), ..fine },
                "top-p is 0; it must be above 0 and at most 1 (1 keeps every token)",
            ),
            (
                SampleOptions { top_p: Some(1.5), ..fine },
                "top-p is 1.5; it must be above 0 and at most 1 (1 keeps every token)",
            ),
            (
                SampleOptions { top_p: Some(f32::NAN), ..fine },
                "top-p is NaN; it must be above 0 and at most 1 (1 keeps every token)",
            ),
        ] {
            assert_eq!(refusal(&mut session, &PROMPT, options), wanted);
        }
        let bad = TokenSettings::new(ptero_engine::Settings { top_p: 2.0, ..TokenSettings::GREEDY.settings }, 0);
        assert!(matches!(session.prefill(&PROMPT, &bad), Err(Error::Refused(_))), "the single steps refuse them too");
    }
}

#[test]
fn s1_6_top_k_top_p_and_seed_need_a_program_that_samples_unless_the_host_may() {
    let none = SampleOptions { temperature: 0.7, ..SampleOptions::default() };
    let asked = [
        (SampleOptions { top_k: Some(3), ..none }, "top-k"),
        (SampleOptions { top_p: Some(0.5), ..none }, "top-p"),
        (SampleOptions { seed: Some(0), ..none }, "a seed"),
    ];
    let mut logits = session("llama", &exact(false));
    let mut samples = session("llama", &exact(true));
    for (options, what) in asked {
        assert_eq!(
            refusal(&mut logits, &PROMPT, options),
            format!("{what} needs a program that samples, and this one returns logits")
        );
        assert_eq!(text(&mut samples, &options, 4).len(), 4);
        samples.reset().unwrap();
        let allowed = SampleOptions { sampling: Sampling::HostAllowed, ..options };
        assert_eq!(text(&mut logits, &allowed, 4).len(), 4);
        logits.reset().unwrap();
    }
    assert_eq!(text(&mut logits, &none, 4).len(), 4, "a temperature alone is the host's (S1.2)");
}

#[test]
fn s1_6_prompts_that_cannot_be_continued_are_refused() {
    for mut session in [true, false].map(|sample| session("llama", &exact(sample))) {
        let options = SampleOptions::default();
        assert_eq!(refusal(&mut session, &[], options), "the prompt is empty; at least one token is wanted");
        for token in [96, u32::MAX] {
            assert_eq!(
                refusal(&mut session, &[5, token], options),
                format!("token {token} at index 1 of the prompt is outside the vocabulary of 96")
            );
        }
        for count in [64, 65, 1000] {
            assert_eq!(
                refusal(&mut session, &vec![1; count], options),
                format!(
                    "a prompt of {count} tokens at position 0 leaves no room to generate; the context is 64 tokens"
                )
            );
        }
        session.generate_with(&[1; 60], &options, 1, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(
            refusal(&mut session, &[1; 4], options),
            "a prompt of 4 tokens at position 60 leaves no room to generate; the context is 64 tokens"
        );
        let error = session.prefill(&[1; 5], &TokenSettings::GREEDY).unwrap_err();
        assert_eq!(error.to_string(), "5 tokens at position 60 do not fit the context of 64");
        session.prefill(&[1; 4], &TokenSettings::GREEDY).unwrap();
        let error = session.decode(1, &TokenSettings::GREEDY).unwrap_err();
        assert!(matches!(error, Error::ContextFull { tokens: 1, position: 64, context: 64 }), "{error}");
    }
}
