//! The shape of `tokenizer.json`.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value as Json, json};

#[derive(Default, Serialize)]
pub(super) struct Tokenizer<'a> {
    pub(super) version: &'static str,
    pub(super) truncation: (),
    pub(super) padding: (),
    pub(super) added_tokens: Vec<AddedToken<'a>>,
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) post_processor: Json,
    pub(super) decoder: Json,
    pub(super) model: Bpe<'a>,
}

#[derive(Default, Serialize)]
pub(super) struct AddedToken<'a> {
    pub(super) id: usize,
    pub(super) content: &'a str,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

/// Pairs of neighbours become one token, the earliest pair of the list first.
#[derive(Default, Serialize)]
pub(super) struct Bpe<'a> {
    pub(super) r#type: &'static str,
    pub(super) dropout: (),
    pub(super) unk_token: Option<&'a str>,
    pub(super) continuing_subword_prefix: (),
    pub(super) end_of_word_suffix: (),
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) vocab: Tokens<'a>,
    pub(super) merges: Vec<(&'a str, &'a str)>,
}

/// A map of each text to its number.
#[derive(Default)]
pub(super) struct Tokens<'a>(pub(super) &'a [String]);

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, token) in self.0.iter().enumerate() {
            map.serialize_entry(token, &id)?;
        }
        map.end()
    }
}

/// A special token.
#[derive(Clone, Copy)]
pub(super) struct Special<'a> {
    pub(super) id: u64,
    pub(super) text: &'a str,
}

/// The post-processor that gives every text a first and a last token.
pub(super) fn template(first: Option<Special<'_>>, last: Option<Special<'_>>) -> Json {
    if first.is_none() && last.is_none() {
        return Json::Null;
    }
    let special = |token: Option<Special<'_>>, text: u8| {
        token.map(|token| json!({"SpecialToken": {"id": token.text, "type_id": text}}))
    };
    let around = |name: &str, text: u8| {
        let sequence = json!({"Sequence": {"id": name, "type_id": text}});
        special(first, text).into_iter().chain([sequence]).chain(special(last, text)).collect::<Vec<_>>()
    };
    let (single, second) = (around("A", 0), around("B", 1));
    let pair: Vec<_> = single.iter().chain(&second).cloned().collect();
    let tokens = [first, last].into_iter().flatten();
    let tokens: Map<String, Json> = tokens
        .map(|token| (token.text.to_owned(), json!({"id": token.text, "ids": [token.id], "tokens": [token.text]})))
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
}

/// The normalizer that writes a space as `▁`, with one before the text if `before`.
pub(super) fn marked_spaces(before: bool) -> Json {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    if before {
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]})
    } else {
        replace
    }
}

/// The decoder that undoes it, and joins bytes to characters.
pub(super) fn unmarked_spaces(before: bool) -> Json {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if before {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// The step that writes every byte as a character, cutting words as GPT-2 does if `cuts`.
pub(super) fn byte_level(cuts: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts})
}

/// The step that cuts a text before and after each match.
pub(super) fn cut(pattern: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}
