//! A session that keeps a common prefix processes only what is new, and gives the text of a session that processes everything.

use crate::tiny::{GenerateWith, MODELS, PROMPT, exact, seeded, session, text};
use ptero_engine::{Reason, Session};
use std::ops::ControlFlow;

const ON: ControlFlow<()> = ControlFlow::Continue(());

/// The tokens that follow a text, and how many tokens were processed for them.
fn follow(session: &mut Session, text: &[u32], seed: i64) -> (Vec<u32>, usize) {
    let kept = session.keep_prefix(text).unwrap();
    let mut tokens = Vec::new();
    let finish = session.generate_with(&text[kept..], &seeded(seed), 6, |token| {
        tokens.push(token);
        ON
    });
    let finish = finish.unwrap();
    assert_eq!(session.tokens(), [text, &tokens[..5]].concat(), "the last token is pending");
    assert_eq!(finish.pending, tokens.last().copied());
    (tokens, finish.timings.prompt_tokens)
}

#[test]
fn a_conversation_costs_what_is_new_and_says_the_same() {
    for name in MODELS {
        let mut kept = session(name, &exact(true));
        let can_rewind = kept.engine().can_rewind();
        let fresh = |text: &[u32]| follow(&mut session(name, &exact(true)), text, 3).0;
        let (reply, given) = follow(&mut kept, &PROMPT, 3);
        assert_eq!((given, &reply), (PROMPT.len(), &fresh(&PROMPT)));
        // The text goes on: all but the reply's last token is there.
        let longer = [&PROMPT[..], &reply, &[7, 8]].concat();
        assert_eq!(follow(&mut kept, &longer, 3), (fresh(&longer), 3), "{name}");
        // The same text once more, another reply: its last token is processed again.
        let (other, given) = follow(&mut kept, &longer, 4);
        assert_ne!(other, fresh(&longer));
        assert_eq!(given, if can_rewind { 1 } else { longer.len() }, "{name}");
        // A text that leaves the path in the middle.
        let mut changed = longer.clone();
        changed[4] = 2;
        let (reply, given) = follow(&mut kept, &changed, 3);
        assert_eq!(reply, fresh(&changed), "{name}");
        assert_eq!(given, if can_rewind { longer.len() - 4 } else { longer.len() });
        kept.reset().unwrap();
        assert_eq!(kept.position(), 0);
        assert_eq!(follow(&mut kept, &PROMPT, 3), (fresh(&PROMPT), PROMPT.len()));
    }
}

#[test]
fn a_session_that_was_stopped_goes_on() {
    for name in MODELS {
        let mut kept = session(name, &exact(true));
        let whole = follow(&mut session(name, &exact(true)), &PROMPT, 3).0;
        let flag = kept.stop_flag();
        let stopped = kept.generate_with(&PROMPT, &seeded(3), 6, |_| {
            flag.stop();
            ON
        });
        assert_eq!(stopped.unwrap().reason, Reason::Stopped);
        flag.clear();
        assert_eq!(follow(&mut kept, &PROMPT, 3).0, whole, "{name}");
        // What is refused leaves a session that can be used.
        let error = kept.generate(&[], &seeded(3), 6).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "the prompt is empty; at least one token is wanted");
        assert_eq!(follow(&mut kept, &PROMPT, 3).0, whole, "{name}");
    }
}

#[test]
fn a_generation_that_nobody_asks_for_tokens_changes_nothing() {
    let mut session = session("llama", &exact(true));
    let whole = text(&mut session, &seeded(4), 12);
    let tokens = session.tokens().to_vec();
    drop(session.generate(&[1], &seeded(4), 12).unwrap());
    assert_eq!(session.tokens(), tokens);
    assert_eq!(text(&mut session, &seeded(4), 12), whole);
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
