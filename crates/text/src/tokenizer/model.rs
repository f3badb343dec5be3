//! Builds the model of `tokenizer.json` for the library: what would make it panic or be random is left out or refused.

use super::parse::{Merge, Model, Vocabulary};
use super::{READ, guarded};
use crate::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::borrow::Cow;
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::{BpeBuilder, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;

const BAD_VOCABULARY: Error =
    Error::Malformed { field: "model.vocab", wanted: "an object of tokens and their numbers" };
const BAD_MERGES: Error = Error::Malformed { field: "model.merges", wanted: "a list of pairs that make tokens" };

pub(super) fn build(model: Model<'_>) -> Result<ModelWrapper> {
    // Old files have no type.
    let usual = match &model {
        Model { merges: Some(_), .. } => "BPE",
        Model { vocabulary: Some(Vocabulary::Other(Value::Array(_))), .. } => "Unigram",
        _ => "WordPiece",
    };
    let kind = model.options.get("type").and_then(Value::as_str).unwrap_or(usual).to_owned();
    match kind.as_str() {
        "BPE" => byte_pairs(model),
        "Unigram" => by_library::<Unigram>(model),
        "WordLevel" => by_library::<WordLevel>(model),
        "WordPiece" => by_library::<WordPiece>(model),
        _ => Err(Error::Unsupported { part: "model", kind }),
    }
}

/// A model of a kind without large vocabularies: the library reads it from a value.
fn by_library<M: DeserializeOwned + Into<ModelWrapper>>(model: Model<'_>) -> Result<ModelWrapper> {
    let mut object = model.options;
    object.remove("type");
    if let Some(vocabulary) = model.vocabulary {
        object.insert("vocab".to_owned(), value(vocabulary)?);
    }
    guarded(READ, || Ok(M::into(serde_json::from_value(Value::Object(object))?)))
}

fn value(vocabulary: Vocabulary<'_>) -> Result<Value> {
    let tokens = match vocabulary {
        Vocabulary::Numbered(tokens) => tokens,
        Vocabulary::Other(value) => return Ok(value),
    };
    let entry = |(token, number): (Cow<'_, str>, Option<u32>)| Some((token.into_owned(), number?.into()));
    let object: Option<Map<String, Value>> = tokens.into_iter().map(entry).collect();
    object.map(Value::Object).ok_or(BAD_VOCABULARY)
}

/// The options of a BPE model. Without `dropout`, which would skip pairs at random.
#[derive(Deserialize)]
struct Options {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

fn byte_pairs(model: Model<'_>) -> Result<ModelWrapper> {
    let options: Options = guarded(READ, || Ok(serde_json::from_value(Value::Object(model.options))?))?;
    let Some(Vocabulary::Numbered(tokens)) = model.vocabulary else { return Err(BAD_VOCABULARY) };
    let longest = tokens.iter().map(|(token, _)| token.len()).max().unwrap_or(0);
    let prefix = options.continuing_subword_prefix.as_deref().unwrap_or_default();
    let merges = merges(model.merges.ok_or(BAD_MERGES)?, prefix, longest)?;
    let mut vocabulary = Vocab::with_capacity(tokens.len());
    for (token, number) in tokens {
        vocabulary.insert(token.into_owned(), number.ok_or(BAD_VOCABULARY)?);
    }
    let mut builder = BpeBuilder::new()
        .vocab_and_merges(vocabulary, merges)
        .fuse_unk(options.fuse_unk.unwrap_or_default())
        .byte_fallback(options.byte_fallback.unwrap_or_default())
        .ignore_merges(options.ignore_merges.unwrap_or_default());
    if let Some(token) = options.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = options.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = options.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    guarded(READ, || builder.build().map(Into::into))
}

/// The library removes the prefix of the second text of a pair without checking, and assumes that the result is not longer
/// than a token.
fn merges(merges: Vec<Merge<'_>>, prefix: &str, longest: usize) -> Result<Merges> {
    let fits = |left: &str, right: &str| {
        right.strip_prefix(prefix).is_some_and(|rest| left.len().saturating_add(rest.len()) <= longest)
    };
    let mut pairs = Merges::with_capacity(merges.len());
    for merge in merges {
        let (left, right) = match merge {
            // The first line of the files that such lists were once kept in.
            Merge::Line(line) if line.starts_with("#version") => continue,
            Merge::Line(line) => match line.split_once(' ') {
                Some((left, right)) if !right.contains(' ') => (left.to_owned(), right.to_owned()),
                _ => return Err(BAD_MERGES),
            },
            Merge::Pair(left, right) => (left.into_owned(), right.into_owned()),
            Merge::Other => return Err(BAD_MERGES),
        };
        if !fits(&left, &right) {
            return Err(BAD_MERGES);
        }
        pairs.push((left, right));
    }
    Ok(pairs)
}
