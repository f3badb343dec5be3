//! Following a grammar token by token.

use super::vocabulary::{is_set, set};
use super::{Grammar, Vocabulary, message};
use crate::{Error, Result};
use llguidance::api::StopReason;
use llguidance::{Logger, Matcher as Parser};
use std::fmt::Display;

/// The message of [`StopReason::NoExtensionBias`], which the parser keeps as a text only.
const NOTHING_FOLLOWS: &str = "NoExtensionBias";

/// A text that follows a grammar, and the tokens that may continue it.
///
/// A clone is a fork: from then on the two texts are independent. To go back, keep a clone.
#[derive(Clone)]
pub struct Matcher {
    kind: &'static str,
    vocabulary: Vocabulary,
    parser: Parser,
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// The allowed tokens, a bit each.
    mask: Vec<u32>,
    /// `true` if `mask` is that of the text so far.
    is_mask_current: bool,
    /// The number of tokens so far.
    tokens: usize,
    has_ended: bool,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("kind", &self.kind).field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl Matcher {
    /// A text without tokens. `ends` are the tokens that end a text of the model; those outside of the vocabulary are ignored.
    ///
    /// # Errors
    /// When the grammar is larger than its limits.
    pub fn new(grammar: &Grammar, vocabulary: &Vocabulary, ends: &[u32]) -> Result<Self> {
        let (compiled, limits) = (grammar.compiled.clone(), grammar.limits.clone());
        let parsers = vocabulary.parsers();
        let parser = parsers.create_parser_from_init_ext(compiled, Logger::new(0, 0), Default::default(), limits);
        let parser = parser.map_err(|error| message::error(grammar.kind, &error))?;
        Ok(Self {
            kind: grammar.kind,
            vocabulary: vocabulary.clone(),
            parser: Parser::new(Ok(parser)),
            ends: ends.iter().copied().filter(|end| index(*end) < vocabulary.size()).collect(),
            mask: vec![0; vocabulary.size().div_ceil(32)],
            is_mask_current: false,
            tokens: 0,
            has_ended: false,
        })
    }

    /// The tokens that may come next: bit `i % 32` of word `i / 32` for token `i`. After the end of the text there are none.
    ///
    /// # Errors
    /// When no token can follow and the text may not end here, or when following the grammar takes more than the limits.
    pub fn mask(&mut self) -> Result<&[u32]> {
        if !self.is_mask_current {
            self.find_allowed()?;
            self.is_mask_current = true;
        }
        Ok(&self.mask)
    }

    fn find_allowed(&mut self) -> Result<()> {
        self.mask.fill(0);
        if self.has_ended {
            return Ok(());
        }
        if !self.is_finished() {
            let allowed = self.parser.compute_mask().map_err(|error| self.failure(&error))?;
            let text = allowed.as_slice().iter().zip(self.vocabulary.text());
            self.mask.iter_mut().zip(text).for_each(|(mask, (allowed, text))| *mask = allowed & text);
        }
        let is_complete = self.is_complete()?;
        for end in &self.ends {
            if let Some(word) = self.mask.get_mut(index(*end) / 32) {
                *word &= !(1 << (end % 32));
            }
            if is_complete {
                set(&mut self.mask, index(*end));
            }
        }
        if !is_complete && self.mask.iter().all(|word| *word == 0) {
            return Err(Error::DeadEnd { kind: self.kind, tokens: self.tokens });
        }
        Ok(())
    }

    /// Continues the text with a token.
    ///
    /// # Errors
    /// When the token is not allowed, which leaves the text as it was, or when following the grammar takes more than the limits.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        let not_allowed = Error::NotAllowed { kind: self.kind, token, tokens: self.tokens };
        if self.ends.contains(&token) {
            if self.has_ended || !self.is_complete()? {
                return Err(not_allowed);
            }
            self.has_ended = true;
        } else if self.is_finished() || !is_set(self.vocabulary.text(), index(token)) {
            return Err(not_allowed);
        } else {
            let accepted = self.parser.try_consume_tokens(&[token]);
            if accepted.map_err(|error| self.failure(&error))? == 0 {
                return Err(not_allowed);
            }
        }
        self.tokens += 1;
        self.is_mask_current = false;
        Ok(())
    }

    /// Returns `true` if the text may end here.
    ///
    /// # Errors
    /// When following the grammar takes more than the limits.
    pub fn is_complete(&mut self) -> Result<bool> {
        if self.is_finished() {
            return Ok(true);
        }
        self.parser.is_accepting().map_err(|error| self.failure(&error))
    }

    /// Returns `true` if the text has ended: after an end token, or as soon as nothing but an end token can follow.
    pub fn is_finished(&self) -> bool {
        self.has_ended || self.parser.stop_reason() == StopReason::NoExtension
    }

    /// An error of the parser. After one, it repeats it.
    fn failure(&self, error: &impl Display) -> Error {
        if error.to_string().starts_with(NOTHING_FOLLOWS) {
            return Error::DeadEnd { kind: self.kind, tokens: self.tokens };
        }
        message::error(self.kind, error)
    }

    /// Checks that there is a text at all.
    pub(super) fn check_start(&mut self) -> Result<()> {
        match self.mask() {
            Err(Error::DeadEnd { kind, .. }) => Err(Error::NoText(kind)),
            checked => checked.map(|_| ()),
        }
    }
}

fn index(token: u32) -> usize {
    usize::try_from(token).unwrap_or(usize::MAX)
}
