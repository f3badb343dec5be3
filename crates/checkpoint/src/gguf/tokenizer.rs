//! GGUF's vocabulary as Hugging Face's `tokenizer.json` and `tokenizer_config.json`.
//!
//! Both are made on demand, so that opening a file stays fast.

mod json;
mod kinds;
mod pieces;
mod pre;
mod vocabulary;

pub(crate) use kinds::known_tokenizers;
pub(crate) use pre::known_pre_tokenizers;

use super::keys::Keys;
use crate::{Fault, Metadata, Result};
use kinds::{NO_VOCABULARY, TokenizerKind, kind};
use ptero_tensor::Bytes;
use serde_json::Map;
use vocabulary::Vocabulary;

/// The key of the kind of tokenizer.
const MODEL: &str = "tokenizer.ggml.model";

/// The file of this name that a folder would hold, if it can be made from the metadata.
///
/// # Errors
/// When the tokenizer is of a kind that ptero does not know, or its parts do not fit each other.
pub(crate) fn side_file(name: &str, metadata: &Metadata) -> Result<Option<Bytes>> {
    let make: fn(&Keys<'_>, &TokenizerKind) -> Result<Vec<u8>> = match name {
        "tokenizer.json" => tokenizer,
        "tokenizer_config.json" => tokenizer_config,
        _ => return Ok(None),
    };
    let keys = Keys { metadata, what: "tokenizer", name: "" };
    match keys.text(MODEL)? {
        None | Some(NO_VOCABULARY) => Ok(None),
        Some(found) => {
            let Some(kind) = kind(found) else {
                return keys.refuse(MODEL, Fault::UnknownTokenizer(found.to_owned()));
            };
            make(&Keys { name: kind.name, ..keys }, kind).map(|bytes| Some(Bytes::from(bytes)))
        }
    }
}

fn tokenizer(keys: &Keys<'_>, kind: &TokenizerKind) -> Result<Vec<u8>> {
    let vocabulary = Vocabulary::read(keys)?;
    let (first, last) = ends(keys, kind, &vocabulary)?;
    let tokenizer = json::Tokenizer {
        version: "1.0",
        added_tokens: vocabulary.added(),
        post_processor: json::template(first, last),
        ..(kind.tokenizer)(keys, &vocabulary)?
    };
    serde_json::to_vec(&tokenizer).map_err(|error| Fault::from(error).into())
}

/// The tokens that are added at the start and the end of every text.
fn ends<'a>(
    keys: &Keys<'_>,
    kind: &TokenizerKind,
    vocabulary: &'a Vocabulary,
) -> Result<(Option<json::Special<'a>>, Option<json::Special<'a>>)> {
    let added = |which: &str, usual: bool, usual_id: Option<u64>| -> Result<_> {
        let told = keys.flag(&format!("tokenizer.ggml.add_{which}_token"))?;
        let id = keys.number(&format!("tokenizer.ggml.{which}_token_id"))?.or(usual_id);
        let wanted = kind.always_starts && which == "bos" || told.unwrap_or(usual);
        Ok(id.filter(|_| wanted).and_then(|id| vocabulary.special(id)))
    };
    Ok((added("bos", (kind.starts)(keys)?, kind.first)?, added("eos", false, kind.last)?))
}

/// The contents of `tokenizer_config.json`.
fn tokenizer_config(keys: &Keys<'_>, kind: &TokenizerKind) -> Result<Vec<u8>> {
    let vocabulary = Vocabulary::read(keys)?;
    let mut config = Map::new();
    for (key, told, usual) in [
        ("bos_token", "bos", kind.first),
        ("eos_token", "eos", kind.last),
        ("unk_token", "unknown", kind.unknown),
        ("pad_token", "padding", None),
    ] {
        let id = keys.number(&format!("tokenizer.ggml.{told}_token_id"))?.or(usual);
        if let Some(token) = id.and_then(|id| vocabulary.special(id)) {
            config.insert(key.to_owned(), serde_json::Value::from(token.text));
        }
    }
    let (first, last) = ends(keys, kind, &vocabulary)?;
    config.insert("add_bos_token".to_owned(), first.is_some().into());
    config.insert("add_eos_token".to_owned(), last.is_some().into());
    config.insert("clean_up_tokenization_spaces".to_owned(), false.into());
    config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
    if let Some(template) = keys.text("tokenizer.chat_template")? {
        config.insert("chat_template".to_owned(), template.into());
    }
    serde_json::to_vec(&config).map_err(|error| Fault::from(error).into())
}
