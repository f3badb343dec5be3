//! Prepares `tokenizer.json` for the library: what would make it panic, hang or be random is removed or refused.

use super::parse::{self, Model, Outer};
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
/// Steps of a section; ten in practice.
const MOST_STEPS: usize = 256;

/// A section that is a step, or a list of them.
struct Section {
    key: &'static str,
    name: &'static str,
    /// The key of the list.
    list: &'static str,
}

/// The sections; [`growth::factor`] knows their steps.
const SECTIONS: &[Section] = &[
    Section { key: "normalizer", name: "normalizer", list: "normalizers" },
    Section { key: "pre_tokenizer", name: "pre-tokenizer", list: "pretokenizers" },
    Section { key: "post_processor", name: "post-processor", list: "processors" },
];

/// The parts of `tokenizer.json` that are read here.
pub(super) struct File<'a> {
    /// The rest, for the library, with an empty model.
    pub(super) json: Vec<u8>,
    /// The decoder, which is ours.
    pub(super) stages: Vec<Stage>,
    /// Added tokens with the numbers that the file gives them.
    pub(super) added: Vec<(AddedToken, u64)>,
    /// How many times longer a text becomes at most before it is tokenized.
    pub(super) growth: usize,
    /// The model, not checked.
    pub(super) model: Model<'a>,
}

pub(super) fn read<'a>(bytes: &'a [u8], limits: &Limits) -> Result<File<'a>> {
    at_most("bytes of `tokenizer.json`", bytes.len(), limits.json_bytes)?;
    let not_json = |source| Error::NotJson { file: TOKENIZER, source };
    let outer: Option<Outer<'_>> = parse::read(bytes).map_err(not_json)?;
    let outer = outer.ok_or(Error::NotAnObject(TOKENIZER))?;
    let mut parts = outer.parts;
    let stages = read_decoder(parts.get("decoder"), limits)?;
    for key in ["truncation", "padding", "decoder"] {
        parts.insert(key.to_owned(), Value::Null);
    }
    let added = added(parts.remove("added_tokens").as_ref())?;
    let normalized = added.iter().map(|(token, _)| token).filter(|token| token.normalized);
    let added_bytes: usize = normalized.map(|token| token.content.len() + 1).sum();
    let mut growth = 1_usize;
    for section in SECTIONS {
        let mut walk = Walk { section, steps: 0, growth: 1, limits };
        walk.check(parts.get(section.key).unwrap_or(&Value::Null), 0)?;
        growth = growth.saturating_mul(walk.growth);
        if section.key == "normalizer" {
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
    let tokens: Option<SpecialTokens> = parse::read(bytes).map_err(|source| Error::NotJson { file: CONFIG, source })?;
    tokens.ok_or(Error::NotAnObject(CONFIG))
}

/// A walk over the steps of a section.
struct Walk<'a> {
    section: &'a Section,
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
            let list = step.get(self.section.list).and_then(Value::as_array);
            let list = list.ok_or(Error::Malformed { field: self.section.list, wanted: "a list" })?;
            return list.iter().try_for_each(|step| self.check(step, depth + 1));
        }
        let unsupported = || Error::Unsupported { part: self.section.name, kind: kind.to_owned() };
        let factor = growth::factor(self.section.key, kind, step)?.ok_or_else(unsupported)?;
        if kind == "TemplateProcessing" {
            template(step)?;
        }
        // The factors of consecutive steps multiply.
        self.growth = self.growth.saturating_mul(factor);
        at_most("times longer by replacements", self.growth, self.limits.growth)
    }
}

/// Checks that every special token that a template adds to a text is described there under its name.
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
