//! Tokens to pieces of text, up to a stop string.

use crate::error::Result;
use crate::model::Model;
use ptero_engine::TokenId;
use ptero_text::{Detokenizer, StopScanner};

/// A text that grows by tokens.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    /// Without one, tokens are shown as numbers.
    detokenizer: Option<Detokenizer>,
    /// Taken when the text has ended.
    stops: Option<StopScanner>,
    text: String,
    has_tokens: bool,
    is_stop_string: bool,
}

impl Pieces {
    /// Starts a text that continues a prompt.
    pub(crate) fn new(model: &Model, prompt: &[TokenId], stop: &[String], shown: &[String]) -> Result<Self> {
        let stops = Some(StopScanner::new(stop)?);
        let mut detokenizer = model.format().tokenizer.as_ref().map(|tokenizer| {
            let shown = shown.iter().filter_map(|token| tokenizer.token_to_id(token));
            tokenizer.detokenizer(true).showing(shown.collect())
        });
        // Some decoders treat the start of a text differently, and this is not the start.
        for token in prompt {
            detokenizer.as_mut().map(|detokenizer| detokenizer.push(*token));
        }
        Ok(Self { detokenizer, stops, text: String::new(), has_tokens: false, is_stop_string: false })
    }

    /// Adds a token, and returns the text that it adds as far as it is known not to be part of a stop string.
    pub(crate) fn push(&mut self, token: TokenId) -> String {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token).unwrap_or_default(),
            None if !self.has_tokens => token.to_string(),
            None => format!(" {token}"),
        };
        self.has_tokens = true;
        self.scan(&piece)
    }

    /// Ends the text, and returns what was held back.
    pub(crate) fn finish(&mut self) -> String {
        let last = self.detokenizer.take().and_then(Detokenizer::finish).unwrap_or_default();
        let mut rest = self.scan(&last);
        let held = self.stops.take().map(StopScanner::finish).unwrap_or_default();
        self.text.push_str(&held);
        rest.push_str(&held);
        rest
    }

    fn scan(&mut self, piece: &str) -> String {
        let Some(stops) = &mut self.stops else { return String::new() };
        let scanned = stops.push(piece);
        if scanned.stop.is_some() {
            self.is_stop_string = true;
            self.stops = None;
        }
        self.text.push_str(&scanned.text);
        scanned.text
    }

    /// Ends the text without what was held back.
    pub(crate) fn end(&mut self) {
        self.stops = None;
    }

    /// Returns `true` after the end.
    pub(crate) fn is_over(&self) -> bool {
        self.stops.is_none()
    }

    /// Returns `true` if the text reached a stop string.
    pub(crate) fn is_stop_string(&self) -> bool {
        self.is_stop_string
    }

    /// Returns the text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Takes the text.
    pub(crate) fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}
