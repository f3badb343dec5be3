//! A text in the making: tokens become pieces of text, up to a stop string.

use crate::error::Result;
use crate::pieces::Pieces;
use ptero_engine::{Finish as EngineFinish, Generation, Reason, RowLogProbabilities, Timings, TokenId};
use ptero_text::Message;
use std::fmt;

/// A piece of a text: what one token adds to it. It may be empty, as when a character takes several tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token; `None` for what was held back at the end of the text.
    pub token: Option<TokenId>,
    /// The text that it adds.
    pub text: String,
    /// The log-probabilities of the token and of the likeliest ones, if they were asked for.
    pub log_probabilities: Option<RowLogProbabilities>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    EndOfText,
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// It reached a stop string.
    StopString,
    /// The stop flag was set, or the caller stopped taking pieces.
    Stopped,
}

impl FinishReason {
    /// Returns its name in events and results: `eos`, `length`, `context`, `stop`, `interrupted`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "eos",
            Self::Length => "length",
            Self::ContextFull => "context",
            Self::StopString => "stop",
            Self::Stopped => "interrupted",
        }
    }

    pub(crate) fn new(reason: Reason, is_stop_string: bool) -> Self {
        match reason {
            _ if is_stop_string => Self::StopString,
            Reason::Eos => Self::EndOfText,
            Reason::Length => Self::Length,
            Reason::ContextFull => Self::ContextFull,
            Reason::Stopped | Reason::Caller => Self::Stopped,
        }
    }
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The whole text.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// The seed of its first token; `None` if the program takes no seed.
    pub seed: Option<i64>,
    /// Tokens and times.
    pub timings: Timings,
}

/// The place of a reply in a conversation.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) messages: &'a mut Vec<Message>,
    /// `true` if the last message was sent for this reply. It is not part of the conversation if there is no reply.
    pub(crate) is_new: bool,
}

impl Turn<'_> {
    /// Ends the turn without a reply.
    pub(crate) fn cancel(self) {
        if self.is_new {
            self.messages.pop();
        }
    }
}

/// A text in the making: an iterator over its pieces, each sampled when it is asked for. Dropped early, the text ends there.
///
/// ```
/// let model = ptero::Model::included()?;
/// let mut generator = model.generator().seed(1).max_tokens(8).start()?;
/// let mut text = generator.generate("Once upon a time")?;
/// for piece in &mut text {
///     print!("{}", piece?);
/// }
/// let finish = text.finish();
/// println!("\n{:?} after {} tokens, seed {:?}", finish.reason, finish.timings.new_tokens, finish.seed);
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Debug)]
pub struct Text<'a> {
    generation: Generation<'a>,
    pieces: Pieces,
    has_failed: bool,
    /// The seed of the next text.
    next_seed: &'a mut Option<i64>,
    /// The turn of a conversation, until the text is added to it.
    turn: Option<Turn<'a>>,
}

impl<'a> Text<'a> {
    pub(crate) fn new(
        generation: Generation<'a>,
        pieces: Pieces,
        next_seed: &'a mut Option<i64>,
        turn: Option<Turn<'a>>,
    ) -> Self {
        Self { generation, pieces, has_failed: false, next_seed, turn }
    }

    /// Returns the number of prompt tokens that are processed for this text.
    pub fn prompt_tokens(&self) -> usize {
        self.generation.prompt_tokens()
    }

    /// Returns the rest of the text as one string.
    ///
    /// # Errors
    /// When the device fails.
    pub fn text(mut self) -> Result<String> {
        self.by_ref().map(|piece| Ok(piece?.text)).collect()
    }

    /// Ends the text here, and returns how it ended.
    pub fn finish(mut self) -> Finish {
        self.end();
        let EngineFinish { reason, seed, timings, .. } = self.generation.so_far().clone();
        let reason = FinishReason::new(reason, self.pieces.is_stop_string());
        Finish { text: self.pieces.take_text(), reason, seed, timings }
    }

    /// Advances the seed and adds the text to the conversation, once.
    fn end(&mut self) {
        self.pieces.end();
        self.advance_seed();
        let is_unread = self.has_failed || self.generation.so_far().timings.prompt_tokens == 0;
        match self.turn.take() {
            Some(turn) if is_unread => turn.cancel(),
            Some(turn) => turn.messages.push(Message::new("assistant", self.pieces.text())),
            None => {}
        }
    }

    fn advance_seed(&mut self) {
        let finish = self.generation.so_far();
        let sampled = finish.timings.new_tokens + usize::from(finish.reason == Reason::Eos);
        *self.next_seed = finish.seed.map(|seed| seed.wrapping_add_unsigned(sampled as u64));
    }
}

impl Iterator for Text<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.pieces.is_over() {
            return None;
        }
        match self.generation.next() {
            Some(Ok(token)) => {
                let text = self.pieces.push(token);
                if self.pieces.is_over() {
                    self.end();
                }
                let log_probabilities = self.generation.log_probabilities().cloned();
                Some(Ok(Piece { token: Some(token), text, log_probabilities }))
            }
            Some(Err(error)) => {
                self.has_failed = true;
                self.end();
                Some(Err(error.into()))
            }
            None => {
                let text = self.pieces.finish();
                self.end();
                (!text.is_empty()).then(|| Ok(Piece { token: None, text, log_probabilities: None }))
            }
        }
    }
}

impl Drop for Text<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
