//! Text to tokens.

mod file;
mod growth;
mod model;
mod parse;

use crate::detokenizer::{Detokenizer, Stage, bytes_within};
use crate::error::at_most;
use crate::{Error, Limits, Result};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokenizers::Model;

/// The action in errors about reading a file.
const READ: &str = "read the file";

/// What is counted where texts grow before they are tokenized.
const NORMALIZED: &str = "bytes of normalized text, at the most that `tokenizer.json` can make of it,";

/// The special tokens, by their names in `tokenizer_config.json` and templates (`bos_token`).
pub type SpecialTokens = BTreeMap<String, String>;

/// A tokenizer. Copies share the vocabulary.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    library: tokenizers::Tokenizer,
    stages: Vec<Stage>,
    special: SpecialTokens,
    growth: usize,
    text_bytes: usize,
    normalized_bytes: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.vocabulary_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and `tokenizer_config.json` if there is one, which names the special tokens.
    ///
    /// Truncation, padding and dropout, which files keep from their training, are left out.
    ///
    /// # Errors
    /// When a file is larger than the limit, is not sound, or has a step that ptero does not know.
    pub fn from_json(tokenizer: &[u8], config: Option<&[u8]>, limits: &Limits) -> Result<Self> {
        let file = file::read(tokenizer, limits)?;
        let special = config.map(|config| file::special_tokens(config, limits)).transpose()?.unwrap_or_default();
        let model = model::build(file.model)?;
        let library = guarded(READ, || {
            let mut library = tokenizers::Tokenizer::from_bytes(&file.json)?;
            // Ids of added tokens that the model does not have follow its own.
            library.with_model(model);
            library.add_tokens(file.added.iter().map(|(token, _)| token.clone()))?;
            Ok(library)
        })?;
        for (token, told) in file.added {
            let found = library.token_to_id(&token.content);
            if found.map(u64::from) != Some(told) {
                return Err(Error::AddedId { token: token.content, told, found });
            }
        }
        let Limits { text_bytes, normalized_bytes, .. } = *limits;
        let (stages, growth) = (file.stages, file.growth);
        Ok(Self(Arc::new(Inner { library, stages, special, growth, text_bytes, normalized_bytes })))
    }

    /// The tokens of a text. Added tokens in it (`<|im_end|>`) become one token each.
    ///
    /// `add_special` adds the special tokens that the tokenizer puts around texts; a rendered template already has them.
    ///
    /// # Errors
    /// When the text is longer than the limit, or has characters without a token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        at_most("bytes of text", text.len(), self.0.text_bytes)?;
        at_most(NORMALIZED, self.0.growth.saturating_mul(text.len() + 1), self.0.normalized_bytes)?;
        let encoding = guarded("encode", || self.0.library.encode_fast(text, add_special))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, the same as that of a [`Detokenizer`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = self.detokenizer(skip_special);
        let mut text: String = ids.iter().filter_map(|&id| detokenizer.push(id)).collect();
        text.extend(detokenizer.finish());
        text
    }

    /// Turns tokens into text as they come, without special tokens if `skip_special`.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special)
    }

    /// The id of a token, spelled as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// The token of an id, spelled as in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        let added = self.0.library.get_added_vocabulary().simple_id_to_token(id);
        added.or_else(|| self.0.library.get_model().id_to_token(id))
    }

    /// Returns `true` for special tokens, which are not text.
    pub fn is_special(&self, token: &str) -> bool {
        self.0.library.get_added_vocabulary().is_special_token(token)
    }

    /// The number of tokens, including the added ones.
    pub fn vocabulary_size(&self) -> usize {
        self.0.library.get_vocab_size(true)
    }

    /// The special tokens that the config names, for templates.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.0.special
    }

    /// The id of the token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.named("bos_token")
    }

    /// The id of the token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.named("eos_token")
    }

    fn named(&self, name: &str) -> Option<u32> {
        self.0.special.get(name).and_then(|token| self.token_to_id(token))
    }

    /// The bytes that a token adds to a text that has begun. Special tokens, also those that the config names, have none.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.id_to_token(id)?;
        let is_named = || self.0.special.values().any(|special| *special == token);
        if self.is_special(&token) || is_named() { None } else { Some(bytes_within(self.stages(), &token)) }
    }

    pub(crate) fn stages(&self) -> &[Stage] {
        &self.0.stages
    }
}

/// Calls the library. `file` refuses what is known to make it panic; any other panic becomes an error, too.
fn guarded<T>(doing: &'static str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| Error::Tokenizer { doing, reason: error.to_string() }),
        Err(_) => Err(Error::Broken { doing }),
    }
}

#[cfg(test)]
mod tests;
