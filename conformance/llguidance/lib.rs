//! The helpers that llguidance's own tests call, over ptero's grammars and masks. `check_llguidance.py` builds this as the crate
//! `llg_test_utils`.
//!
//! A text is accepted if at each step the mask has its next token, and it may end after the last one. It is cut in two ways: into
//! bytes, and into random tokens of a vocabulary that has all bytes and the pieces of the text.

use ptero_text::{Error, Grammar, Limits, Matcher, Tokenizer, Vocabulary};
use serde_json::{json, Value};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumericBounds {
    Inclusive,
    Exclusive,
}

const END: u32 = 0;

/// A tokenizer whose tokens are the end, all bytes, and these pieces.
struct Tokens {
    tokenizer: Tokenizer,
    pieces: Vec<Vec<u8>>,
}

impl Tokens {
    fn new(text: &[u8]) -> Self {
        let mut pieces: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        for length in [2, 3, 5, 8] {
            pieces.extend(text.chunks(length).filter(|piece| piece.len() > 1).map(<[u8]>::to_vec));
        }
        pieces.sort();
        pieces.dedup();
        let name = |bytes: &[u8]| bytes.iter().map(|byte| visible(*byte)).collect::<String>();
        let mut vocabulary: BTreeMap<String, usize> =
            pieces.iter().enumerate().map(|(at, piece)| (name(piece), at + 1)).collect();
        vocabulary.insert("<end>".to_owned(), 0);
        let special = json!({"id": 0, "content": "<end>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        let file = json!({"version": "1.0", "added_tokens": [special], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "truncation": null, "padding": null});
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None, &Limits::default()).unwrap();
        Self { tokenizer, pieces }
    }

    /// Cuts a text, bytes first or long pieces first.
    fn cut(&self, text: &[u8], is_long: bool) -> Vec<u32> {
        let (mut at, mut tokens) = (0, Vec::new());
        while at < text.len() {
            let fits = |piece: &&Vec<u8>| text[at..].starts_with(piece);
            let piece = self.pieces.iter().filter(fits).max_by_key(|piece| {
                if is_long {
                    piece.len()
                } else {
                    usize::from(piece.len() == 1)
                }
            });
            let piece = piece.unwrap();
            tokens.push(1 + self.pieces.iter().position(|other| other == piece).unwrap() as u32);
            at += piece.len();
        }
        tokens
    }
}

/// The letter that stands for a byte in byte-level vocabularies.
fn visible(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if is_printed(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_printed(*byte)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

/// Follows a text: whether all its tokens are allowed, and then whether it may end.
fn follow(grammar: &Grammar, text: &[u8], is_long: bool) -> (bool, bool) {
    let tokens = Tokens::new(text);
    let vocabulary = Vocabulary::new(&tokens.tokenizer, tokens.pieces.len() + 1).unwrap();
    let mut matcher = Matcher::new(grammar, &vocabulary, &[END]).unwrap();
    for token in tokens.cut(text, is_long) {
        let is_allowed = match matcher.mask() {
            Ok(mask) => mask[token as usize / 32] >> (token % 32) & 1 == 1,
            Err(Error::DeadEnd { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(matcher.accept(token).is_ok(), is_allowed, "the mask and the parser differ");
        if !is_allowed {
            return (false, false);
        }
    }
    let may_end = match matcher.mask() {
        Ok(mask) => mask[0] & 1 == 1,
        Err(Error::DeadEnd { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    (true, may_end)
}

fn check(grammar: &Grammar, should_accept: bool, text: &str) {
    let (text, is_prefix) = match text.strip_prefix("FINAL_REJECT:") {
        Some(text) => (text, true),
        None => (text, false),
    };
    for is_long in [false, true] {
        let (is_followed, may_end) = follow(grammar, text.as_bytes(), is_long);
        if should_accept {
            assert!(is_followed && may_end, "{text:?} should be accepted: followed {is_followed}, may end {may_end}");
        } else if is_prefix {
            assert!(
                is_followed && !may_end,
                "{text:?} should be a beginning: followed {is_followed}, may end {may_end}"
            );
        } else {
            assert!(!(is_followed && may_end), "{text:?} should be rejected");
        }
    }
}

fn lark(source: &str) -> Result<Grammar, Error> {
    Grammar::lark(source, &Limits::default())
}

pub fn lark_ok(source: &str) {
    lark(source).unwrap();
}

pub fn lark_err_test(source: &str, _: &str) {
    lark(source).unwrap_err();
}

pub fn lark_str_test(source: &str, should_accept: bool, text: &str, _: bool) {
    check(&lark(source).unwrap(), should_accept, text);
}

pub fn lark_str_test_many_quiet(source: &str, passing: &[&str], failing: &[&str]) {
    let grammar = lark(source).unwrap();
    passing.iter().for_each(|text| check(&grammar, true, text));
    failing.iter().for_each(|text| check(&grammar, false, text));
}

pub fn lark_str_test_many(source: &str, passing: &[&str], failing: &[&str]) {
    lark_str_test_many_quiet(source, passing, failing);
}

fn schema(schema: &Value) -> Result<Grammar, Error> {
    Grammar::json_schema(&schema.to_string(), &Limits::default())
}

pub fn json_schema_check(source: &Value, value: &Value, should_accept: bool) {
    let text = value.to_string();
    let grammar = schema(source).unwrap();
    for is_long in [false, true] {
        let (is_followed, may_end) = follow(&grammar, text.as_bytes(), is_long);
        assert_eq!(is_followed && may_end, should_accept, "{source}: {text}");
    }
}

pub fn json_err_test(source: &Value, _: &str) {
    schema(source).unwrap_err();
}

pub fn json_test_many(source: &Value, passing: &[Value], failing: &[Value]) {
    passing.iter().for_each(|value| json_schema_check(source, value, true));
    failing.iter().for_each(|value| json_schema_check(source, value, false));
}
