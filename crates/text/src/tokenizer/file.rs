//! `tokenizer.json` before the library sees it: what would make it panic, hang or be random is taken out or refused.

use super::parse::{self, Model};
use super::{NORMALIZED, READ, SpecialTokens, growth};
use crate::detokenizer::{Stage, read_decoder};
use crate::error::at_most;
use crate::{Error, Limits, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::AddedToken;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// Lists of steps inside each other; one in practice.
const DEEPEST: usize = 8;
/// Steps of a part; ten in practice.
const MOST_STEPS: usize = 256;

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
pub(super) struct File<'a> {
    /// What is left for the library, with an empty model.
    pub(super) json: Vec<u8>,
    /// The decoder, which is ours.
    pub(super) stages: Vec<Stage>,
    /// Added tokens with the numbers that the file gives them.
    pub(super) added: Vec<(AddedToken, u64)>,
    /// How many times longer a text becomes at most before its tokens are looked for.
    pub(super) growth: usize,
    /// The model, not looked at.
    pub(super) model: Model<'a>,
}

pub(super) fn read<'a>(bytes: &'a [u8], limits: &Limits) -> Result<File<'a>> {
    at_most("bytes of `tokenizer.json`", bytes.len(), limits.json_bytes)?;
    let not_json = |source| Error::NotJson { file: TOKENIZER, source };
    let outer = parse::tokenizer(bytes).map_err(not_json)?.ok_or(Error::NotAnObject(TOKENIZER))?;
    let mut parts = outer.parts;
    let stages = read_decoder(parts.get("decoder"), limits)?;
    for key in ["truncation", "padding", "decoder"] {
        parts.insert(key.to_owned(), Value::Null);
    }
    let added = added(parts.remove("added_tokens").as_ref())?;
    let normalized = added.iter().map(|(token, _)| token).filter(|token| token.normalized);
    let added_bytes: usize = normalized.map(|token| token.content.len() + 1).sum();
    let mut growth = 1_usize;
    for part in PARTS {
        let mut walk = Walk { part, steps: 0, growth: 1, limits };
        walk.check(parts.get(part.key).unwrap_or(&Value::Null), 0)?;
        growth = growth.saturating_mul(walk.growth);
        if part.key == "normalizer" {
            at_most(NORMALIZED, growth.saturating_mul(added_bytes), limits.added_bytes)?;
        }
    }
    let model = outer.model.ok_or(Error::Malformed { field: "model", wanted: "an object" })?;
    parts.insert("model".to_owned(), json!({"type": "BPE", "vocab": {}, "merges": []}));
    let json =
        serde_json::to_vec(&parts).map_err(|error| Error::Tokenizer { doing: READ, reason: error.to_string() })?;
    Ok(File { json, stages, added, growth, model })
}

/// The tokens that the config names: a text, or an object with its `content`.
pub(super) fn special_tokens(bytes: &[u8], limits: &Limits) -> Result<SpecialTokens> {
    at_most("bytes of `tokenizer_config.json`", bytes.len(), limits.json_bytes)?;
    let tokens = parse::config(bytes).map_err(|source| Error::NotJson { file: CONFIG, source })?;
    tokens.ok_or(Error::NotAnObject(CONFIG))
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
        if kind == "TemplateProcessing" {
            template(step)?;
        }
        // Steps one after the other multiply.
        self.growth = self.growth.saturating_mul(growth::factor(kind, step)?);
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

fn added(tokens: Option<&Value>) -> Result<Vec<(AddedToken, u64)>> {
    let Some(tokens) = tokens else { return Ok(Vec::new()) };
    let read = |token: &Value| {
        let number = token.get("id")?.as_u64()?;
        let token = AddedToken::deserialize(token).ok().filter(|token| !token.content.is_empty())?;
        Some((token, number))
    };
    let tokens = tokens.as_array().and_then(|tokens| tokens.iter().map(read).collect());
    tokens.ok_or(Error::Malformed {
        field: "added_tokens",
        wanted: "a list of tokens with `id`, `content`, `special`, `normalized`, `single_word`, `lstrip` and `rstrip`",
    })
}
