//! Tokens to text, as they come.

mod decoder;
mod stage;

pub(crate) use decoder::read as read_decoder;
pub(crate) use stage::{Stage, bytes_within};

use crate::Tokenizer;
use stage::feed;

/// Turns tokens into text, one at a time.
///
/// Returned text is final: it has no partial characters, and no later token changes it. The pieces together equal the text
/// that the `tokenizers` library decodes from all ids at once, with one exception. Where tokens are single bytes (`<0x41>`) and a
/// run of them is not UTF-8, the library writes a replacement character for every byte of the run, which is not known before
/// the run ends. Here complete characters stay, and only other bytes are replaced, one character per byte.
///
/// A token costs what its text costs; nothing is decoded twice.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Special tokens that are text all the same.
    shown: Vec<u32>,
    stages: Vec<Stage>,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let stages = tokenizer.stages().to_vec();
        Self { tokenizer, skip_special, shown: Vec::new(), stages }
    }

    /// Shows these special tokens, which mark parts of a text for whoever reads it.
    pub fn showing(self, tokens: Vec<u32>) -> Self {
        Self { shown: tokens, ..self }
    }

    /// Takes a token and returns the text that is now final, if any. An unknown id has no text.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let token = self.tokenizer.id_to_token(id)?;
        if self.skip_special && self.tokenizer.is_special(&token) && !self.shown.contains(&id) {
            return None;
        }
        let mut text = String::new();
        feed(&mut self.stages, &token, &mut text);
        Some(text).filter(|text| !text.is_empty())
    }

    /// Ends the text and returns the rest. An incomplete character becomes a replacement character.
    pub fn finish(mut self) -> Option<String> {
        let mut text = String::new();
        let mut rest = self.stages.as_mut_slice();
        while let Some((stage, after)) = rest.split_first_mut() {
            stage.finish(|piece| feed(after, piece, &mut text));
            rest = after;
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests;
