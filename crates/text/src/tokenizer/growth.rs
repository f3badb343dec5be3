//! How many times longer a step of `tokenizer.json` makes a text at most, in bytes.

use crate::{Error, Result};
use serde_json::Value;

const BAD_MAP: Error =
    Error::Malformed { field: "normalizer.precompiled_charsmap", wanted: "a map of characters, in base 64" };

/// The factor of a step of a section, or `None` if the step is not known. What a step adds once before or after a text is
/// counted as if the text had one byte more.
pub(super) fn factor(section: &str, kind: &str, step: &Value) -> Result<Option<usize>> {
    let text = |key: &str| step.get(key).and_then(Value::as_str).map_or(0, str::len);
    Ok(Some(match (section, kind) {
        ("normalizer", "Replace") => replaced(step.pointer("/pattern/String").and_then(Value::as_str), text("content")),
        ("normalizer", "Prepend") => text("prepend").saturating_add(1),
        ("pre_tokenizer", "Metaspace") => text("replacement").saturating_add(1),
        ("normalizer", "Precompiled") => longest(step.get("precompiled_charsmap").and_then(Value::as_str))?.max(1),
        // A byte above 127 becomes a character of two, and a space may be added.
        (_, "ByteLevel") => 3,
        // As Unicode guarantees.
        ("normalizer", "NFC" | "NFD") => 3,
        ("normalizer", "NFKC" | "NFKD") => 11,
        ("normalizer", "Lowercase") => 2,
        // Lower case, and NFD or a space on both sides.
        ("normalizer", "BertNormalizer") => 6,
        // The others remove, cut, or replace a character by one that is not longer.
        ("normalizer", "Strip" | "StripAccents" | "Nmt") => 1,
        ("pre_tokenizer", "BertPreTokenizer" | "CharDelimiterSplit" | "Whitespace" | "WhitespaceSplit") => 1,
        ("pre_tokenizer", "Split" | "Punctuation" | "Digits" | "UnicodeScripts") => 1,
        ("post_processor", "BertProcessing" | "RobertaProcessing" | "TemplateProcessing") => 1,
        _ => return Ok(None),
    }))
}

/// An empty pattern matches between all characters; so may a regular expression.
fn replaced(pattern: Option<&str>, content: usize) -> usize {
    match pattern {
        Some(text) if !text.is_empty() => content.div_ceil(text.len()).max(1),
        _ => content.saturating_add(1),
    }
}

/// The longest text that a map has for a character: a size, a trie of that size, and texts that end with a zero.
fn longest(map: Option<&str>) -> Result<usize> {
    let bytes = map.and_then(base64).ok_or(BAD_MAP)?;
    let (size, rest) = bytes.split_first_chunk().ok_or(BAD_MAP)?;
    // The library allocates this size without checking it.
    let texts = usize::try_from(u32::from_le_bytes(*size)).ok().and_then(|size| rest.get(size..)).ok_or(BAD_MAP)?;
    Ok(texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let values: Option<Vec<u8>> = text.trim_end_matches('=').bytes().map(value).collect();
    let bytes = |four: &[u8]| {
        let bits = four.iter().fold(0_u32, |bits, six| (bits << 6) | u32::from(*six)) << (6 * (4 - four.len()));
        bits.to_be_bytes().into_iter().skip(1).take(four.len().saturating_sub(1)).collect::<Vec<u8>>()
    };
    values.map(|values| values.chunks(4).flat_map(bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_map_grows_as_its_longest_text_does() {
        // No trie; "ab", "c" and "defg".
        let map = |text: &str| {
            factor("normalizer", "Precompiled", &json!({"precompiled_charsmap": text})).map(Option::unwrap)
        };
        assert_eq!(map("AAAAAGFiAGMAZGVmZwA=").unwrap(), 4);
        assert_eq!(map("AAAAAA==").unwrap(), 1);
        // A size that is not there, one that is cut off, and no map.
        for wrong in ["/////2Fi", "AAA=", "", "A A"] {
            assert!(matches!(map(wrong), Err(Error::Malformed { .. })), "{wrong}");
        }
    }

    #[test]
    fn replacements_grow_by_what_they_match() {
        let replace = |pattern: Value| {
            let step = json!({"pattern": pattern, "content": "▁▁"});
            factor("normalizer", "Replace", &step).unwrap().unwrap()
        };
        assert_eq!(replace(json!({"String": " "})), 6);
        assert_eq!(replace(json!({"String": "abcd"})), 2);
        // Between all characters, which stay.
        assert_eq!(replace(json!({"String": ""})), 7);
        assert_eq!(replace(json!({"Regex": "x*"})), 7);
    }
}
