//! The helpers that llguidance's own tests call, over ptero's grammars and masks. `check_llguidance.py` builds this as the crate
//! `llg_test_utils`.
//!
//! A text is accepted if at each step the mask has its next token, and it may end after the last one. It is cut in two ways: into
//! bytes, and into long pieces of a vocabulary that has all bytes and the pieces of the text. A trace is cut already, and names tokens
//! that the mask must not have. What it says of tokens that are forced, of temperatures and of captures is not about masks.

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
    /// Those for a text.
    fn of_text(text: &[u8]) -> Self {
        Self::new([2, 3, 5, 8].iter().flat_map(|length| text.chunks(*length)).filter(|piece| piece.len() > 1))
    }

    fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let bytes = (0..=255).map(|byte| vec![byte]);
        let mut pieces: Vec<Vec<u8>> = bytes.chain(pieces.map(<[u8]>::to_vec)).collect();
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

    /// The number of a piece.
    fn id(&self, piece: &[u8]) -> u32 {
        1 + self.pieces.iter().position(|other| other == piece).unwrap() as u32
    }

    fn matcher(&self, grammar: &Grammar) -> Matcher {
        let vocabulary = Vocabulary::new(&self.tokenizer, self.pieces.len() + 1).unwrap();
        Matcher::new(grammar, &vocabulary, &[END]).unwrap()
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
            tokens.push(self.id(piece));
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
    let tokens = Tokens::of_text(text);
    let mut matcher = tokens.matcher(grammar);
    for token in tokens.cut(text, is_long) {
        let is_allowed = allows(&mut matcher, token);
        assert_eq!(matcher.accept(token).is_ok(), is_allowed, "the mask and the parser differ");
        if !is_allowed {
            return (false, false);
        }
    }
    (true, allows(&mut matcher, END))
}

/// Whether the mask has a token.
fn allows(matcher: &mut Matcher, token: u32) -> bool {
    match matcher.mask() {
        Ok(mask) => mask[token as usize / 32] >> (token % 32) & 1 == 1,
        Err(Error::DeadEnd { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Follows a trace: strings of tokens, each behind a dot, or behind a cross if it must not be allowed. A prompt comes before the text;
/// where it and the text share a token, the text has the rest of it.
fn trace(source: &str, prompt: &str, output: &[&str]) {
    const OUT: char = '✖';
    let mut steps: Vec<(bool, &str)> = Vec::new();
    for part in output.iter().filter(|part| !part.is_empty()) {
        assert!(!part.contains('↶'), "tokens are never taken back");
        let mut rest = *part;
        let mut is_allowed = true;
        while let Some(at) = rest.find(['‧', OUT]) {
            steps.extend((at > 0).then_some((is_allowed, &rest[..at])));
            is_allowed = !rest[at..].starts_with(OUT);
            rest = &rest[at + '‧'.len_utf8()..];
        }
        steps.push((is_allowed, rest));
    }
    let mut prompt = prompt;
    for (_, piece) in &mut steps {
        let shared = piece.len().min(prompt.len());
        assert_eq!(piece[..shared], prompt[..shared]);
        (*piece, prompt) = (&piece[shared..], &prompt[shared..]);
    }
    steps.retain(|(_, piece)| !piece.is_empty());
    let tokens = Tokens::new(steps.iter().map(|(_, piece)| piece.as_bytes()));
    let mut matcher = tokens.matcher(&lark(source).unwrap());
    for (at, (is_allowed, piece)) in steps.iter().enumerate() {
        let token = if *piece == "≺EOS≻" { END } else { tokens.id(piece.as_bytes()) };
        let found = allows(&mut matcher, token);
        assert_eq!(found, *is_allowed, "step {at}, {piece:?}: {source} {output:?}");
        if found {
            matcher.accept(token).unwrap();
        } else {
            matcher.accept(token).unwrap_err();
        }
    }
    let is_ended = steps.last().is_some_and(|(_, piece)| *piece == "≺EOS≻");
    assert!(is_ended || allows(&mut matcher, END), "the text may end: {source} {output:?}");
}

fn check(grammar: &Grammar, should_accept: bool, text: &str) {
    check_cut(grammar, should_accept, text, &[false, true]);
}

fn check_cut(grammar: &Grammar, should_accept: bool, text: &str, cuts: &[bool]) {
    let (text, is_prefix) = match text.strip_prefix("FINAL_REJECT:") {
        Some(text) => (text, true),
        None => (text, false),
    };
    for &is_long in cuts {
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
    // Where tokens are counted, bytes are nearest to what the test had in mind.
    let cuts: &[bool] = if source.contains("max_tokens") { &[false] } else { &[false, true] };
    check_cut(&lark(source).unwrap(), should_accept, text, cuts);
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

/// What a trace leaves behind.
pub struct Trace;

pub fn check_lark_grammar(source: &str, output: &[&str]) -> Trace {
    check_lark_grammar_prompt(source, "", output)
}

pub fn check_lark_grammar_prompt(source: &str, prompt: &str, output: &[&str]) -> Trace {
    trace(source, prompt, output);
    Trace
}

pub fn check_lark_grammar_nested(source: &str, nested: &str, output: &[&str]) -> Trace {
    check_lark_grammar(&source.replace("@sub", &format!("%lark {{\n{nested}\n}}")), output)
}

pub fn check_lark_json(source: &str, schema: Value, output: &[&str]) -> Trace {
    check_lark_grammar(&source.replace("@sub", &format!("%json {schema}")), output)
}

pub fn check_capture(_: &Trace, _: &str, _: &str) {}
