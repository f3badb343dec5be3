//! `tokenizer.json` before the library sees it: what would make it panic, hang or be random is taken out or refused.

use super::SpecialTokens;
use crate::detokenizer::{Stage, read_decoder};
use crate::error::at_most;
use crate::{Error, Limits, Result};
use serde_json::{Map, Value};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// Lists of steps inside each other; one in practice.
const DEEPEST: usize = 8;
/// Steps of a part; ten in practice.
const MOST_STEPS: usize = 256;

const MODELS: &[&str] = &["BPE", "Unigram", "WordLevel", "WordPiece"];

/// A part that is a step, or a list of them.
struct Part {
    key: &'static str,
    name: &'static str,
    /// What the key of the list is.
    list: &'static str,
    kinds: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        key: "normalizer",
        name: "normalizer",
        list: "normalizers",
        kinds: &[
            "BertNormalizer",
            "Strip",
            "StripAccents",
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Lowercase",
            "Nmt",
            "Precompiled",
            "Replace",
            "Prepend",
            "ByteLevel",
        ],
    },
    Part {
        key: "pre_tokenizer",
        name: "pre-tokenizer",
        list: "pretokenizers",
        kinds: &[
            "BertPreTokenizer",
            "ByteLevel",
            "CharDelimiterSplit",
            "Metaspace",
            "Whitespace",
            "Split",
            "Punctuation",
            "WhitespaceSplit",
            "Digits",
            "UnicodeScripts",
        ],
    },
    Part {
        key: "post_processor",
        name: "post-processor",
        list: "processors",
        kinds: &["BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing"],
    },
];

/// What is read of `tokenizer.json` here.
pub(super) struct File {
    /// What is left for the library.
    pub(super) json: Vec<u8>,
    /// The decoder, which is ours.
    pub(super) stages: Vec<Stage>,
    /// Added tokens with the numbers that the file gives them.
    pub(super) added: Vec<(String, u64)>,
}

pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<File> {
    let mut object = object(TOKENIZER, "bytes of `tokenizer.json`", bytes, limits)?;
    let stages = read_decoder(object.get("decoder"), limits)?;
    for key in ["truncation", "padding", "decoder"] {
        object.insert(key.to_owned(), Value::Null);
    }
    for part in PARTS {
        let mut walk = Walk { part, steps: 0, growth: 1, limits };
        walk.check(object.get(part.key).unwrap_or(&Value::Null), 0)?;
    }
    let added = added(object.get("added_tokens"))?;
    model(&mut object)?;
    let json = serde_json::to_vec(&object).map_err(|source| Error::NotJson { file: TOKENIZER, source })?;
    Ok(File { json, stages, added })
}

/// The tokens that the config names: a text, or an object with its `content`.
pub(super) fn special_tokens(bytes: &[u8], limits: &Limits) -> Result<SpecialTokens> {
    let object = object(CONFIG, "bytes of `tokenizer_config.json`", bytes, limits)?;
    let named = object.into_iter().filter(|(name, _)| name.ends_with("_token"));
    let text = |value: Value| value.get("content").unwrap_or(&value).as_str().map(str::to_owned);
    Ok(named.filter_map(|(name, value)| Some((name, text(value)?))).collect())
}

fn object(file: &'static str, what: &'static str, bytes: &[u8], limits: &Limits) -> Result<Map<String, Value>> {
    at_most(what, bytes.len(), limits.json_bytes)?;
    match serde_json::from_slice(bytes).map_err(|source| Error::NotJson { file, source })? {
        Value::Object(object) => Ok(object),
        _ => Err(Error::NotAnObject(file)),
    }
}

/// The way through a part.
struct Walk<'a> {
    part: &'a Part,
    steps: usize,
    growth: usize,
    limits: &'a Limits,
}

impl Walk<'_> {
    fn check(&mut self, step: &Value, depth: usize) -> Result<()> {
        if step.is_null() && depth == 0 {
            return Ok(());
        }
        at_most("lists of steps inside each other", depth, DEEPEST)?;
        self.steps += 1;
        at_most("steps of a part of `tokenizer.json`", self.steps, MOST_STEPS)?;
        let kind = step.get("type").and_then(Value::as_str).unwrap_or("without a type");
        if kind == "Sequence" {
            let list = step.get(self.part.list).and_then(Value::as_array);
            let list = list.ok_or(Error::Malformed { field: self.part.list, wanted: "a list" })?;
            return list.iter().try_for_each(|step| self.check(step, depth + 1));
        }
        if !self.part.kinds.contains(&kind) {
            return Err(Error::Unsupported { part: self.part.name, kind: kind.to_owned() });
        }
        match kind {
            "Precompiled" if !step.get("precompiled_charsmap").is_some_and(Value::is_string) => {
                return Err(Error::Malformed { field: "normalizer.precompiled_charsmap", wanted: "a text" });
            }
            "TemplateProcessing" => template(step)?,
            _ => {}
        }
        // Replacements one after the other multiply; a pattern may match everywhere, between characters too.
        let content = ["content", "prepend"].iter().filter_map(|key| step.get(key).and_then(Value::as_str));
        let factor: usize = content.map(|text| text.len().max(1)).product();
        // A byte above 127 becomes a character of two bytes, each time.
        let factor = factor.saturating_mul(if kind == "ByteLevel" { 2 } else { 1 });
        self.growth = self.growth.saturating_mul(factor);
        at_most("times longer by replacements", self.growth, self.limits.growth)
    }
}

/// Every special token that a template puts round a text is described there, by the name that it has.
fn template(step: &Value) -> Result<()> {
    let described = step.get("special_tokens").and_then(Value::as_object);
    let pieces = ["single", "pair"].into_iter().filter_map(|key| step.get(key)?.as_array()).flatten();
    let mut names = pieces.filter_map(|piece| piece.get("SpecialToken")?.get("id")?.as_str());
    let same = |name: &str| described.and_then(|all| all.get(name)?.get("id")?.as_str()) == Some(name);
    if names.all(same) {
        return Ok(());
    }
    Err(Error::Malformed {
        field: "post_processor.special_tokens",
        wanted: "a description of every token in the template",
    })
}

fn added(tokens: Option<&Value>) -> Result<Vec<(String, u64)>> {
    let Some(tokens) = tokens.filter(|tokens| !tokens.is_null()) else { return Ok(Vec::new()) };
    let malformed = Error::Malformed { field: "added_tokens", wanted: "a list of tokens with `id` and `content`" };
    let read = |token: &Value| Some((token.get("content")?.as_str()?.to_owned(), token.get("id")?.as_u64()?));
    let tokens = tokens.as_array().and_then(|tokens| tokens.iter().map(read).collect::<Option<Vec<_>>>());
    tokens.filter(|tokens| tokens.iter().all(|(text, _)| !text.is_empty())).ok_or(malformed)
}

fn model(object: &mut Map<String, Value>) -> Result<()> {
    let malformed = Error::Malformed { field: "model", wanted: "an object" };
    let model = object.get_mut("model").and_then(Value::as_object_mut).ok_or(malformed)?;
    let lists = |key: &str| model.get(key).is_some_and(|value| value.is_array());
    // Files of old have no type.
    let usual = if model.contains_key("merges") {
        "BPE"
    } else if lists("vocab") {
        "Unigram"
    } else {
        "WordPiece"
    };
    let kind = model.get("type").and_then(Value::as_str).unwrap_or(usual).to_owned();
    if !MODELS.contains(&kind.as_str()) {
        return Err(Error::Unsupported { part: "model", kind });
    }
    if kind == "BPE" {
        merges(model)?;
    }
    model.insert("type".to_owned(), kind.into());
    if let Some(dropout) = model.get_mut("dropout") {
        // It would leave pairs out at random.
        *dropout = Value::Null;
    }
    Ok(())
}

/// The library cuts the prefix off the second text of a pair without looking, and trusts the result to be a token's length.
fn merges(model: &Map<String, Value>) -> Result<()> {
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    let vocabulary = model.get("vocab").and_then(Value::as_object);
    let longest = vocabulary.and_then(|vocabulary| vocabulary.keys().map(String::len).max()).unwrap_or(0);
    let texts = |merge: &Value| match merge {
        Value::String(pair) => pair.split_once(' ').map(|(left, right)| (left.len(), right.to_owned())),
        pair => Some((pair.get(0)?.as_str()?.len(), pair.get(1)?.as_str()?.to_owned())),
    };
    let fits = |merge: &Value| {
        texts(merge).is_some_and(|(left, right)| {
            right.strip_prefix(prefix).is_some_and(|rest| left.saturating_add(rest.len()) <= longest)
        })
    };
    let merges = model.get("merges").and_then(Value::as_array);
    if merges.is_some_and(|merges| !merges.iter().all(fits)) {
        return Err(Error::Malformed { field: "model.merges", wanted: "a list of pairs that make tokens" });
    }
    Ok(())
}
