//! A transcript gives only what is new, and says what a session says that is given everything.

use crate::tiny::{MODELS, PROMPT, exact, seeded, session, text};
use ptero_engine::{Reason, Transcript};
use std::ops::ControlFlow;

const ON: ControlFlow<()> = ControlFlow::Continue(());

/// The tokens that follow a text, and how many were given for them.
fn follow(transcript: &mut Transcript, text: &[i64], seed: i64) -> (Vec<i64>, usize) {
    let mut tokens = Vec::new();
    let finish = transcript.generate(text, &seeded(seed), 6, |token| {
        tokens.push(token);
        ON
    });
    let finish = finish.unwrap();
    assert_eq!(transcript.session().position(), text.len() + 5, "the last token is not given");
    (tokens, finish.timings.prompt_tokens)
}

#[test]
fn a_conversation_costs_what_is_new_and_says_the_same() {
    for name in MODELS {
        let mut transcript = Transcript::new(session(name, &exact(true))).unwrap();
        let can_rewind = transcript.session().model().can_rewind();
        let fresh = |text: &[i64]| follow(&mut Transcript::new(session(name, &exact(true))).unwrap(), text, 3).0;
        let (reply, given) = follow(&mut transcript, &PROMPT, 3);
        assert_eq!((given, &reply), (PROMPT.len(), &fresh(&PROMPT)));
        // The text goes on: all but the reply's last token is there.
        let longer = [&PROMPT[..], &reply, &[7, 8]].concat();
        assert_eq!(follow(&mut transcript, &longer, 3), (fresh(&longer), 3), "{name}");
        // The same text once more, another reply: its last token is given again.
        let (other, given) = follow(&mut transcript, &longer, 4);
        assert_ne!(other, fresh(&longer));
        assert_eq!(given, if can_rewind { 1 } else { longer.len() }, "{name}");
        // A text that leaves the path in the middle.
        let mut changed = longer.clone();
        changed[4] = 2;
        let (reply, given) = follow(&mut transcript, &changed, 3);
        assert_eq!(reply, fresh(&changed), "{name}");
        assert_eq!(given, if can_rewind { longer.len() - 4 } else { longer.len() });
        transcript.clear().unwrap();
        assert_eq!(transcript.session().position(), 0);
        assert_eq!(follow(&mut transcript, &PROMPT, 3), (fresh(&PROMPT), PROMPT.len()));
    }
}

#[test]
fn a_transcript_that_was_stopped_goes_on() {
    for name in MODELS {
        let mut transcript = Transcript::new(session(name, &exact(true))).unwrap();
        let whole = follow(&mut Transcript::new(session(name, &exact(true))).unwrap(), &PROMPT, 3).0;
        let flag = transcript.session().stop_flag();
        let stopped = transcript.generate(&PROMPT, &seeded(3), 6, |_| {
            flag.stop();
            ON
        });
        assert_eq!(stopped.unwrap().reason, Reason::Stopped);
        flag.clear();
        assert_eq!(follow(&mut transcript, &PROMPT, 3).0, whole, "{name}");
        // What is refused leaves a transcript that can be used.
        let error = transcript.generate(&[], &seeded(3), 6, |_| ON).unwrap_err();
        assert_eq!(error.to_string(), "the prompt is empty; at least one token is wanted");
        assert_eq!(follow(&mut transcript, &PROMPT, 3).0, whole, "{name}");
    }
}

#[test]
fn ends_can_be_ignored() {
    let mut session = session("llama", &exact(true));
    let whole = text(&mut session, &seeded(4), 12);
    session.end_also_at(&whole);
    session.reset().unwrap();
    assert_eq!(text(&mut session, &seeded(4), 12), [0; 0]);
    session.ignore_ends(true);
    session.reset().unwrap();
    assert_eq!(text(&mut session, &seeded(4), 12), whole);
}
