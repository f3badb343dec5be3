//! A session that knows what it was given, so that a text which begins like the last one costs only what is new.

use crate::error::Result;
use crate::generate::{Finish, Reason};
use crate::options::SampleOptions;
use crate::session::Session;
use std::ops::ControlFlow;

/// A session and its tokens. For conversations: each prompt is the whole text so far, and what the state already holds of it
/// is not given again.
#[derive(Debug)]
pub struct Transcript {
    session: Session,
    /// The tokens of all positions.
    given: Vec<i64>,
}

impl Transcript {
    /// Starts with an empty text, whatever the session held.
    ///
    /// # Errors
    /// When the device fails.
    pub fn new(mut session: Session) -> Result<Self> {
        // A new session's state is memory that nobody has touched yet, and should stay so until it is needed.
        if session.position() > 0 {
            session.reset()?;
        }
        Ok(Self { session, given: Vec::new() })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Makes `text` the text so far and goes on from there, like [`Session::generate`] of a session that was reset; the
    /// timings tell how many tokens were given for it. The result is the same up to rounding: a prompt in other pieces is
    /// added up in another order.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn generate(
        &mut self,
        text: &[i64],
        options: &SampleOptions,
        max_new_tokens: usize,
        mut on_token: impl FnMut(i64) -> ControlFlow<()>,
    ) -> Result<Finish> {
        let kept = self.keep(text)?;
        let given = &mut self.given;
        given.extend(text.get(kept..).unwrap_or_default());
        let finish = self.session.generate(text.get(kept..).unwrap_or_default(), options, max_new_tokens, |token| {
            given.push(token);
            on_token(token)
        });
        // The last token drawn is not part of the state yet, nor is what came after an error.
        self.given.truncate(self.session.position());
        let is_whole = matches!(&finish, Ok(finish) if finish.reason != Reason::Stopped);
        if !is_whole && !self.session.model().can_rewind() {
            // A call that ended halfway may have torn state that keeps no earlier positions.
            self.clear()?;
        }
        finish
    }

    /// Forgets everything.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear(&mut self) -> Result<()> {
        self.given.clear();
        self.session.reset()
    }

    /// Goes back to the longest start of `text` that the state can hold, short of all of it: a call takes at least a token.
    fn keep(&mut self, text: &[i64]) -> Result<usize> {
        let same = self.given.iter().zip(text).take_while(|(given, wanted)| given == wanted).count();
        let mut kept = same.min(text.len().saturating_sub(1));
        if kept < self.given.len() && !self.session.model().can_rewind() {
            kept = 0;
        }
        if kept < self.given.len() {
            self.session.rewind(kept)?;
            self.given.truncate(kept);
        }
        Ok(kept)
    }
}
