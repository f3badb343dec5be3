//! The kinds of tokenizers: the values of `tokenizer.ggml.model`.

use super::super::keys::Keys;
use super::json::{Bpe, Tokenizer, Tokens, byte_level, marked_spaces, unmarked_spaces};
use super::pieces;
use super::pre::{self, PreTokenizer};
use super::vocabulary::Vocabulary;
use crate::Result;
use serde_json::{Value as Json, json};

/// The value in a file without a tokenizer.
pub(super) const NO_VOCABULARY: &str = "no_vocab";

/// A kind of tokenizer.
pub(super) struct TokenizerKind {
    pub(super) name: &'static str,
    /// Default ids of the first and last token of a text, and of the unknown token.
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) unknown: Option<u64>,
    /// `true` if a text starts with the first token whatever the file says.
    pub(super) always_starts: bool,
    /// The default if the file does not say.
    pub(super) starts: fn(&Keys<'_>) -> Result<bool>,
    /// The parts of `tokenizer.json` that depend on the kind.
    pub(super) tokenizer: for<'a> fn(&Keys<'_>, &'a Vocabulary) -> Result<Tokenizer<'a>>,
}

/// The defaults of a kind.
const PLAIN: TokenizerKind = TokenizerKind {
    name: "",
    first: None,
    last: None,
    unknown: None,
    always_starts: false,
    starts: |_| Ok(true),
    tokenizer: bytes,
};

const KINDS: &[TokenizerKind] = &[
    // Pairs of byte-level texts, as in GPT-2.
    TokenizerKind { name: "gpt2", starts: |keys| Ok(pre_tokenizer(keys)?.starts), ..PLAIN },
    // The pieces of SentencePiece, joined by their scores.
    TokenizerKind { name: "llama", first: Some(1), last: Some(2), unknown: Some(0), tokenizer: scored_pieces, ..PLAIN },
    // The pieces of SentencePiece, joined by a list of pairs.
    // Early files say that texts do not start with a token; they do.
    TokenizerKind { name: "gemma4", always_starts: true, tokenizer: paired_pieces, ..PLAIN },
];

/// The kind of this name.
pub(super) fn kind(name: &str) -> Option<&'static TokenizerKind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// The names of all kinds.
pub(crate) fn known_tokenizers() -> String {
    KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

fn pre_tokenizer(keys: &Keys<'_>) -> Result<&'static PreTokenizer> {
    pre::find(keys, keys.text(pre::KEY)?.unwrap_or(pre::DEFAULT))
}

fn bytes<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Tokenizer<'a>> {
    let pre_tokenizer = pre_tokenizer(keys)?;
    let merges = pieces::listed(keys, vocabulary)?;
    Ok(Tokenizer {
        normalizer: if pre_tokenizer.composes { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: pre_tokenizer.json(),
        decoder: byte_level(true),
        model: Bpe { ignore_merges: pre_tokenizer.whole_words, ..bpe(vocabulary, merges) },
        ..Tokenizer::default()
    })
}

fn scored_pieces<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Tokenizer<'a>> {
    let before = keys.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let merges = pieces::scored(keys, vocabulary)?;
    Ok(Tokenizer {
        normalizer: marked_spaces(before),
        decoder: unmarked_spaces(before),
        model: with_bytes(keys, vocabulary, Some(0), merges)?,
        ..Tokenizer::default()
    })
}

fn paired_pieces<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Tokenizer<'a>> {
    let merges = pieces::listed(keys, vocabulary)?;
    Ok(Tokenizer {
        normalizer: marked_spaces(false),
        // As in Hugging Face; spaces are `▁` by now, so nothing is cut.
        pre_tokenizer: json!({
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false,
        }),
        decoder: unmarked_spaces(false),
        model: with_bytes(keys, vocabulary, None, merges)?,
        ..Tokenizer::default()
    })
}

fn bpe<'a>(vocabulary: &'a Vocabulary, merges: Vec<(&'a str, &'a str)>) -> Bpe<'a> {
    Bpe { r#type: "BPE", vocab: Tokens(&vocabulary.tokens), merges, ..Bpe::default() }
}

/// A character without a token becomes its bytes, and a byte without a token the unknown token.
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
