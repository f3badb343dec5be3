//! The decoder in `tokenizer.json`.

use super::Stage;
use crate::error::at_most;
use crate::{Error, Limits, Result};
use serde_json::Value;

/// Decoders inside each other; the library nests one list of them in practice.
const DEEPEST: usize = 8;
/// Steps of a decoder; four in practice.
const MOST_STAGES: usize = 32;

/// The stages of a decoder. Without one, tokens have spaces between them.
pub(crate) fn read(decoder: Option<&Value>, limits: &Limits) -> Result<Vec<Stage>> {
    let Some(decoder) = decoder.filter(|decoder| !decoder.is_null()) else {
        return Ok(vec![Stage::Between { first: true }]);
    };
    let mut reader = Reader { stages: Vec::new(), joined: false, growth: 1, limits };
    reader.read(decoder, 0)?;
    Ok(reader.stages)
}

struct Reader<'a> {
    stages: Vec<Stage>,
    /// `true` after a step that joins all tokens.
    joined: bool,
    growth: usize,
    limits: &'a Limits,
}

impl Reader<'_> {
    fn read(&mut self, decoder: &Value, depth: usize) -> Result<()> {
        at_most("decoders inside each other", depth, DEEPEST)?;
        at_most("steps of a decoder", self.stages.len(), MOST_STAGES)?;
        let kind = decoder.get("type").and_then(Value::as_str).unwrap_or("without a type");
        let stage = match kind {
            "Sequence" => {
                let decoders = decoder.get("decoders").and_then(Value::as_array);
                let decoders = decoders.ok_or(malformed("decoder.decoders", "a list"))?;
                at_most("steps of a decoder", decoders.len(), MOST_STAGES)?;
                return decoders.iter().try_for_each(|decoder| self.read(decoder, depth + 1));
            }
            "Fuse" => {
                self.joined = true;
                return Ok(());
            }
            "ByteLevel" => {
                self.check_apart("ByteLevel")?;
                self.joined = true;
                Stage::ByteLevel { begun: Vec::new() }
            }
            "ByteFallback" => self.check_apart("ByteFallback").map(|()| Stage::ByteFallback { begun: Vec::new() })?,
            "Metaspace" => self.check_apart("Metaspace").and_then(|()| metaspace(decoder))?,
            "Replace" => self.replace(decoder)?,
            "Strip" => self.strip(decoder)?,
            _ => return Err(Error::Unsupported { part: "decoder", kind: kind.to_owned() }),
        };
        self.stages.push(stage);
        Ok(())
    }

    /// Checks that a step that works on single tokens comes before they are joined.
    fn check_apart(&self, kind: &'static str) -> Result<()> {
        if self.joined { Err(Error::AfterFuse(kind)) } else { Ok(()) }
    }

    fn replace(&mut self, decoder: &Value) -> Result<Stage> {
        let pattern = decoder.pointer("/pattern/String").and_then(Value::as_str);
        let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else {
            return Err(malformed("decoder.pattern", "a text (regular expressions are not supported here)"));
        };
        if pattern.chars().nth(1).is_some() {
            self.check_apart("Replace")?;
        }
        let content = decoder.get("content").and_then(Value::as_str);
        let content = content.ok_or(malformed("decoder.content", "a text"))?;
        self.growth = self.growth.saturating_mul(content.len().max(1));
        at_most("times longer by replacements", self.growth, self.limits.growth)?;
        Ok(Stage::Replace { pattern: pattern.to_owned(), content: content.to_owned() })
    }

    fn strip(&self, decoder: &Value) -> Result<Stage> {
        let count = |key: &str, field| {
            let count = decoder.get(key).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
            count.ok_or(malformed(field, "a number"))
        };
        let content = character(decoder.get("content"), "decoder.content")?;
        let (start, stop) = (count("start", "decoder.start")?, count("stop", "decoder.stop")?);
        match (self.joined, stop) {
            (false, _) => Ok(Stage::Strip { content, start, stop }),
            (true, 0) => Ok(Stage::StripText { content, left: start }),
            (true, _) => Err(Error::AfterFuse("Strip, with `stop`")),
        }
    }
}

fn metaspace(decoder: &Value) -> Result<Stage> {
    let mark = character(decoder.get("replacement"), "decoder.replacement")?;
    // Older files have `add_prefix_space` alone.
    let drop = match decoder.get("prepend_scheme").and_then(Value::as_str) {
        Some(scheme) => scheme != "never",
        None => decoder.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true),
    };
    Ok(Stage::Metaspace { mark, drop })
}

fn character(value: Option<&Value>, field: &'static str) -> Result<char> {
    let mut characters = value.and_then(Value::as_str).unwrap_or_default().chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) => Ok(character),
        _ => Err(malformed(field, "one character")),
    }
}

fn malformed(field: &'static str, wanted: &'static str) -> Error {
    Error::Malformed { field, wanted }
}
