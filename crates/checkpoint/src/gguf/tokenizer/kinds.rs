//! The kinds of tokenizers: what `tokenizer.ggml.model` may say.

use super::super::keys::Keys;
use super::json::{Bpe, Tokens, byte_level, marked_spaces, unmarked_spaces};
use super::pieces;
use super::pre::{self, PreTokenizer};
use super::vocabulary::Vocabulary;
use crate::Result;
use serde_json::{Value as Json, json};

/// What a file without a tokenizer says.
pub(super) const NO_VOCABULARY: &str = "no_vocab";

/// A kind of tokenizer.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Tokens that a file need not name: the first and last of a text, and the one for what has none.
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) unknown: Option<u64>,
    /// Whether a text starts with the first token whatever the file says.
    pub(super) always_starts: bool,
    /// Whether it does where the file does not say.
    pub(super) starts: fn(&Keys<'_>) -> Result<bool>,
    pub(super) parts: for<'a> fn(&Keys<'_>, &'a Vocabulary) -> Result<Parts<'a>>,
}

/// What differs from kind to kind in a `tokenizer.json`.
pub(super) struct Parts<'a> {
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) decoder: Json,
    pub(super) model: Bpe<'a>,
}

const KINDS: &[Kind] = &[
    // Pairs of byte-level texts, as GPT-2 has them.
    Kind {
        name: "gpt2",
        first: None,
        last: None,
        unknown: None,
        always_starts: false,
        starts: |keys| Ok(pre_tokenizer(keys)?.starts),
        parts: bytes,
    },
    // The pieces of SentencePiece, joined by their scores.
    Kind {
        name: "llama",
        first: Some(1),
        last: Some(2),
        unknown: Some(0),
        always_starts: false,
        starts: |_| Ok(true),
        parts: scored_pieces,
    },
    // The pieces of SentencePiece, joined by a list of pairs.
    // Early files say that texts do not start with a token; they do.
    Kind {
        name: "gemma4",
        first: None,
        last: None,
        unknown: None,
        always_starts: true,
        starts: |_| Ok(true),
        parts: paired_pieces,
    },
];

/// The kind of this name.
pub(super) fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// The names of all kinds.
pub(crate) fn known_tokenizers() -> String {
    KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

fn pre_tokenizer(keys: &Keys<'_>) -> Result<&'static PreTokenizer> {
    pre::find(keys, keys.text(pre::KEY)?.unwrap_or(pre::DEFAULT))
}

fn bytes<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Parts<'a>> {
    let pre_tokenizer = pre_tokenizer(keys)?;
    let merges = pieces::listed(keys, vocabulary)?;
    Ok(Parts {
        normalizer: if pre_tokenizer.composes { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: pre_tokenizer.json(),
        decoder: byte_level(true),
        model: Bpe { ignore_merges: pre_tokenizer.whole_words, ..bpe(vocabulary, merges) },
    })
}

fn scored_pieces<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Parts<'a>> {
    let before = keys.truth("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let merges = pieces::scored(keys, vocabulary)?;
    Ok(Parts {
        normalizer: marked_spaces(before),
        pre_tokenizer: Json::Null,
        decoder: unmarked_spaces(before),
        model: with_bytes(keys, vocabulary, Some(0), merges)?,
    })
}

fn paired_pieces<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Parts<'a>> {
    let merges = pieces::listed(keys, vocabulary)?;
    Ok(Parts {
        normalizer: marked_spaces(false),
        // As Hugging Face has it; spaces are `▁` by now, so nothing is cut.
        pre_tokenizer: json!({
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false,
        }),
        decoder: unmarked_spaces(false),
        model: with_bytes(keys, vocabulary, None, merges)?,
    })
}

fn bpe<'a>(vocabulary: &'a Vocabulary, merges: Vec<(&'a str, &'a str)>) -> Bpe<'a> {
    Bpe {
        r#type: "BPE",
        dropout: (),
        unk_token: None,
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: false,
        vocab: Tokens(&vocabulary.tokens),
        merges,
    }
}

/// A character without a token becomes its bytes, and what has none of these the unknown token.
fn with_bytes<'a>(
    keys: &Keys<'_>,
    vocabulary: &'a Vocabulary,
    unknown: Option<u64>,
    merges: Vec<(&'a str, &'a str)>,
) -> Result<Bpe<'a>> {
    let unknown = keys.number("tokenizer.ggml.unknown_token_id")?.or(unknown);
    let unk_token = unknown.and_then(|id| vocabulary.special(id)).map(|token| token.text);
    Ok(Bpe { unk_token, fuse_unk: true, byte_fallback: true, ..bpe(vocabulary, merges) })
}
