//! The tokens of a file and their uses.

use super::super::keys::Keys;
use super::json::{AddedToken, Special};
use crate::{Fault, Result, Value};
use std::collections::{BTreeSet, HashMap};

/// What a token is for: the numbers of llama.cpp's `llama_token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenUse {
    /// A part of texts.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// A control token; never shown.
    Control,
    /// A text that is always one token.
    UserDefined,
    /// A byte of a character that has no token.
    Byte,
}

impl TokenUse {
    fn of(number: Option<u64>) -> Self {
        match number {
            Some(2) => TokenUse::Unknown,
            Some(3) => TokenUse::Control,
            Some(4) => TokenUse::UserDefined,
            Some(6) => TokenUse::Byte,
            // Unused tokens (5) have an id but never occur.
            _ => TokenUse::Normal,
        }
    }
}

/// The tokens by number.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    uses: Vec<TokenUse>,
    /// Ids of special tokens that the metadata names.
    named: BTreeSet<usize>,
}

impl Vocabulary {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self> {
        let key = "tokenizer.ggml.tokens";
        let mut tokens = keys.required(key, keys.texts(key)?)?;
        for (id, token) in tokens.iter_mut().enumerate() {
            if token.is_empty() {
                *token = format!("[EMPTY_{id}]");
            }
        }
        let named: BTreeSet<usize> = named(keys).filter(|id| *id < tokens.len()).collect();
        let uses = match keys.array("tokenizer.ggml.token_type")? {
            Some(types) => types.iter().map(|value| TokenUse::of(value.as_u64())).collect(),
            // Older files do not have types; special tokens are no text.
            None => (0..tokens.len())
                .map(|id| if named.contains(&id) { TokenUse::Control } else { TokenUse::Normal })
                .collect(),
        };
        let vocabulary = Self { tokens, uses, named };
        if vocabulary.uses.len() < vocabulary.tokens.len() {
            return keys.refuse("tokenizer.ggml.token_type", Fault::NotOfType("as long as the list of tokens"));
        }
        Ok(vocabulary)
    }

    /// Tokens with their numbers and uses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &str, TokenUse)> {
        self.tokens.iter().zip(&self.uses).enumerate().map(|(id, (token, used))| (id, token.as_str(), *used))
    }

    /// The id of each text; for a duplicate text the last one.
    pub(super) fn ids(&self) -> HashMap<&str, usize> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect()
    }

    /// The token of this id, if there is one.
    pub(super) fn special(&self, id: u64) -> Option<Special<'_>> {
        let text = self.tokens.get(usize::try_from(id).ok()?)?;
        Some(Special { id, text })
    }

    /// The tokens that are matched in a text before all others.
    pub(super) fn added(&self) -> Vec<AddedToken<'_>> {
        let added = |(id, content, used)| {
            let special = match used {
                TokenUse::Normal | TokenUse::Byte => return None,
                TokenUse::UserDefined => self.named.contains(&id),
                TokenUse::Unknown | TokenUse::Control => true,
            };
            Some(AddedToken { id, content, special, ..AddedToken::default() })
        };
        self.iter().filter_map(added).collect()
    }
}

/// The ids of all tokens that the metadata names.
fn named(keys: &Keys<'_>) -> impl Iterator<Item = usize> {
    let named = |key: &str| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    let ids = keys.metadata.iter().filter(move |(key, _)| named(key)).filter_map(|(_, value)| Value::as_u64(value));
    ids.filter_map(|id| usize::try_from(id).ok())
}
