//! Which tokens a grammar allows, by brute force; what is refused; and that hostile sources are bounded.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

use proptest::prelude::*;
use ptero_text::{Error, Grammar, Limits, Matcher, Place, Tokenizer, Vocabulary};
use serde_json::json;
use std::collections::BTreeSet;

/// Tokens that are text, two of them as bytes that others have too.
const TOKENS: &[&str] = &[
    "a", "b", "c", "ab", "bb", "aa", "abc", "bca", "cab", "\"", "\"a", "b\"", "▁", "▁a", "<0x61>", "<0xC3>", "<0xA9>",
    "é", "<0xFF>", "{", "}", ":", "1", "x",
];
/// The special tokens come after them, then rows without a token.
const SPECIAL: u32 = TOKENS.len() as u32;
const END: u32 = SPECIAL + 1;
const PADDED: usize = TOKENS.len() + 2 + 45;

fn tokenizer(tokens: impl IntoIterator<Item = String>) -> Tokenizer {
    let vocabulary: serde_json::Map<_, _> = tokens.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let first = vocabulary.len() as u32;
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(first, "<|tool|>"), special(first + 1, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": []},
    });
    Tokenizer::from_json(&serde_json::to_vec(&file).unwrap(), None, &Limits::default()).unwrap()
}

fn vocabulary() -> Vocabulary {
    Vocabulary::new(&tokenizer(TOKENS.iter().map(|token| (*token).to_owned())), PADDED).unwrap()
}

/// The bytes of a token, written down once more.
fn bytes(token: u32) -> Vec<u8> {
    match TOKENS[token as usize] {
        "<0x61>" => vec![0x61],
        "<0xC3>" => vec![0xC3],
        "<0xA9>" => vec![0xA9],
        "<0xFF>" => vec![0xFF],
        text => text.replace('▁', " ").into_bytes(),
    }
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mask = matcher.mask().unwrap();
    assert_eq!(mask.len(), PADDED.div_ceil(32));
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

fn matcher(grammar: &Grammar, vocabulary: &Vocabulary) -> Matcher {
    Matcher::new(grammar, vocabulary, &[END, 100_000]).unwrap()
}

fn regex(source: &str) -> ptero_text::Result<Grammar> {
    Grammar::regex(source, &Limits::default())
}

fn schema(source: serde_json::Value) -> ptero_text::Result<Grammar> {
    Grammar::json_schema(&source.to_string(), &Limits::default())
}

fn lark(source: &str) -> ptero_text::Result<Grammar> {
    Grammar::lark(source, &Limits::default())
}

fn accept(matcher: &mut Matcher, tokens: &[&str]) {
    for token in tokens {
        let id = TOKENS.iter().position(|known| known == token).unwrap();
        matcher.accept(id as u32).unwrap_or_else(|error| panic!("{token}: {error}"));
    }
}

/// A regular expression and all texts that it matches.
type Finite = (String, BTreeSet<String>);

fn finite() -> impl Strategy<Value = Finite> {
    let leaf = prop::sample::select(vec!["a", "b", "c", "ab", "é", " ", "\"", "x"]);
    let leaf = leaf.prop_map(|text| (text.to_owned(), BTreeSet::from([text.to_owned()])));
    leaf.prop_recursive(4, 12, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let join = |parts: Vec<Finite>| parts.into_iter().reduce(concatenated).unwrap();
        let choose = |parts: Vec<Finite>| {
            let sources: Vec<&str> = parts.iter().map(|(source, _)| source.as_str()).collect();
            (format!("({})", sources.join("|")), parts.iter().flat_map(|(_, texts)| texts.clone()).collect())
        };
        let repeat = |(part, least, more): (Finite, usize, usize)| {
            let times = |count: usize| {
                (0..count)
                    .fold((String::new(), BTreeSet::from([String::new()])), |all, _| concatenated(all, part.clone()))
                    .1
            };
            (format!("({}){{{least},{}}}", part.0, least + more), (least..=least + more).flat_map(times).collect())
        };
        prop_oneof![
            list.clone().prop_map(join),
            list.prop_map(choose),
            (inner, 0..2_usize, 0..2_usize).prop_map(repeat)
        ]
    })
    .prop_filter("few texts", |(_, texts)| texts.len() < 400)
}

fn concatenated((left, first): Finite, (right, second): Finite) -> Finite {
    let texts = first.iter().flat_map(|start| second.iter().map(move |end| format!("{start}{end}"))).take(1000);
    (format!("{left}{right}"), texts.collect())
}

/// Walks along the grammar; at every step, exactly the tokens are allowed after which a text can still be completed.
fn check(grammar: &Grammar, texts: &BTreeSet<String>, picks: &[usize]) {
    let vocabulary = vocabulary();
    let mut matcher = matcher(grammar, &vocabulary);
    let mut text: Vec<u8> = Vec::new();
    for pick in picks {
        let is_complete = texts.iter().any(|full| full.as_bytes() == text);
        let may_follow = |token: &u32| {
            let next = [text.as_slice(), &bytes(*token)].concat();
            texts.iter().any(|full| full.as_bytes().starts_with(&next))
        };
        let mut expected: Vec<u32> = (0..SPECIAL).filter(may_follow).collect();
        let choices = expected.clone();
        expected.extend(is_complete.then_some(END));
        if expected.is_empty() {
            assert!(matches!(matcher.mask(), Err(Error::DeadEnd { .. })), "{text:?}");
            return;
        }
        assert_eq!(allowed(&mut matcher), expected, "after {:?}", String::from_utf8_lossy(&text));
        assert_eq!(matcher.is_complete().unwrap(), is_complete);
        let mut fork = matcher.clone();
        assert_eq!(allowed(&mut fork), expected);
        for refused in (0..PADDED as u32).filter(|id| !expected.contains(id)) {
            assert!(matches!(matcher.accept(refused), Err(Error::NotAllowed { .. })), "{refused}");
        }
        if choices.is_empty() {
            matcher.accept(END).unwrap();
            assert!(matcher.is_finished());
            return;
        }
        let token = choices[pick % choices.len()];
        matcher.accept(token).unwrap();
        assert_eq!(allowed(&mut fork), expected, "a fork goes its own way");
        text.extend(bytes(token));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exactly_the_tokens_are_allowed_that_can_follow((source, texts) in finite(), picks in prop::collection::vec(0..100_usize, 12)) {
        prop_assume!(texts.len() < 400);
        check(&regex(&source).unwrap(), &texts, &picks);
    }

    #[test]
    fn the_same_for_the_values_of_a_schema(values in prop::collection::btree_set("[abcx]{0,6}", 1..6), picks in prop::collection::vec(0..100_usize, 12)) {
        let texts = values.iter().map(|value| format!("\"{value}\"")).collect();
        check(&schema(json!({"enum": values, "x-guidance": {"whitespace_flexible": false}})).unwrap(), &texts, &picks);
    }
}

#[test]
fn sources_that_cannot_be_followed_are_refused() {
    let message = |grammar: ptero_text::Result<Grammar>| grammar.unwrap_err().to_string();
    let unsupported = json!({"properties": {"not": {"type": "string"}, "b": {"items": {"not": {"type": "null"}}}}});
    let Err(Error::Grammar { place: Some(Place::Pointer(place)), reason, .. }) = schema(unsupported) else { panic!() };
    assert_eq!((place.as_str(), reason.as_str()), ("#/properties/b/items", "the keyword `not` cannot be followed"));
    assert!(
        message(schema(json!({"type": "integer", "minimum": 5, "maximum": 4})))
            .starts_with("the JSON Schema: Unsatisfiable")
    );
    assert!(message(schema(json!(false))).contains("Unsatisfiable"));
    assert!(message(schema(json!({"type": "strange"}))).contains("strange"));
    assert!(matches!(schema(json!({"$ref": "#"})), Err(Error::NoText(_))));
    assert!(message(schema(json!({"$ref": "https://example.com/a.json"}))).contains("$ref"));
    assert!(matches!(Grammar::json_schema("{", &Limits::default()), Err(Error::NotJson { .. })));
    for wrong in ["(", "a\\", "(?=a)b", "a(?<!b)", r"(a)\1", "[z-a]", "a{2,1}"] {
        assert!(matches!(regex(wrong), Err(Error::Grammar { .. })), "{wrong}");
    }
    assert!(matches!(lark("start: A & B\nA: \"a\"\nB: \"b\"\n"), Err(Error::Grammar { .. })));
    assert!(matches!(lark("start: A\nA: \"a\" & \"b\"\n"), Err(Error::NoText("Lark grammar"))));
    let Err(Error::Grammar { place: Some(Place::Line { line: 2, .. }), reason, .. }) = lark("start: \"a\" b\nb: c\n")
    else {
        panic!()
    };
    assert!(reason.contains("unknown name: \"c\""), "{reason}");
    // Special tokens and ids are not text.
    for special in ["start: \"a\" <|tool|>\n", "start: <[3]>\n", "start: <[*]>\n", "start: <[^3]>\n"] {
        assert!(message(lark(special)).contains("special tokens"), "{special}");
    }
}

#[test]
fn dialects_are_those_of_llguidance() {
    let vocabulary = vocabulary();
    let after = |grammar: Grammar, tokens: &[&str]| {
        let mut matcher = matcher(&grammar, &vocabulary);
        accept(&mut matcher, tokens);
        let names = |id: &u32| if *id == END { "</s>" } else { TOKENS[*id as usize] };
        allowed(&mut matcher).iter().map(names).collect::<Vec<_>>()
    };
    let object = |more: serde_json::Value, flexible: bool| {
        let properties = json!({"a": {"const": 1}});
        schema(json!({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": more, "x-guidance": {"whitespace_flexible": flexible}})).unwrap()
    };
    // White space only where it is allowed, and never at the start.
    assert_eq!(after(object(json!(false), true), &[]), ["{"]);
    assert_eq!(after(object(json!(false), true), &["{"]), ["\"", "\"a", "▁"]);
    assert_eq!(after(object(json!(false), false), &["{"]), ["\"", "\"a"]);
    assert_eq!(after(object(json!(false), false), &["{", "\"a", "\"", ":", "1"]), ["}"]);
    assert_eq!(after(object(json!(false), false), &["{", "\"a", "\"", ":", "1", "}"]), ["</s>"]);
    // Anchors change nothing: a regular expression matches whole texts.
    assert_eq!(after(regex("^a$").unwrap(), &[]), ["a", "<0x61>"]);
    assert_eq!(after(regex("").unwrap(), &[]), ["</s>"]);
    assert_eq!(after(regex("(?i)A/x").unwrap(), &[]), ["a", "<0x61>"]);
    // Rules may be recursive; terminals in between are skipped where `%ignore` says so.
    let nested = "start: \"{\" start? \"}\"\n%ignore /[ ]/\n";
    assert_eq!(after(lark(nested).unwrap(), &["{", "{", "▁"]), ["▁", "{", "}"]);
    assert_eq!(after(lark(nested).unwrap(), &["{", "{", "}", "}"]).last(), Some(&"</s>"));
    let inner = "start: \"x\" value\nvalue: %json {\"const\": \"ab\"}\n";
    assert_eq!(after(lark(inner).unwrap(), &["x"]), ["\"", "\"a"]);
}

#[test]
fn patterns_of_different_properties_are_not_combined() {
    let object = |at: usize| json!({"properties": {format!("p{at}"): {"type": "string", "pattern": "^[a-z]+[0-9]*$"}}});
    let objects = |name: fn(usize) -> usize| (0..30).map(|at| object(name(at))).collect::<Vec<_>>();
    schema(json!({"type": "object", "allOf": objects(|at| at)})).unwrap();
    let referred = json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": {"allOf": objects(|at| at)}, "b": {"allOf": objects(|at| 100 + at)}}});
    schema(referred).unwrap();
    // Those of one property are, and so are those of all properties with each.
    assert!(matches!(schema(json!({"allOf": objects(|_| 7)})), Err(Error::TooMany { .. })));
    let any: Vec<_> = (0..30).map(|_| json!({"additionalProperties": {"pattern": "^[a-z]+[0-9]*$"}})).collect();
    assert!(matches!(schema(json!({"allOf": any})), Err(Error::TooMany { .. })));
}

/// Braces of schemas are not repetitions, however many there are: 100 functions with 20 arguments each.
#[test]
fn many_schemas_fit_in_a_lark_grammar() {
    let properties: serde_json::Map<_, _> =
        (0..20).map(|index| (format!("a{index}"), serde_json::json!({"type": "integer"}))).collect();
    let schema = serde_json::json!({"type": "object", "properties": properties});
    let rules: String = (0..100).map(|number| format!("call_{number}: \"f{number}\" %json {schema}\n")).collect();
    let names: Vec<String> = (0..100).map(|number| format!("call_{number}")).collect();
    lark(&format!("start: {}\n{rules}", names.join(" | "))).unwrap();
    let repetitions = lark(&format!("start: \"a\"{}\n", " \"b\"?".repeat(3000)));
    assert!(matches!(repetitions, Err(Error::TooMany { .. })), "{repetitions:?}");
}

#[test]
fn a_text_without_tokens_for_it_is_a_dead_end() {
    let (grammar, vocabulary) = (regex("a(bz|c)").unwrap(), vocabulary());
    let mut matcher = matcher(&grammar, &vocabulary);
    accept(&mut matcher, &["a", "b"]);
    for _ in 0..2 {
        assert!(matches!(matcher.mask(), Err(Error::DeadEnd { tokens: 2, .. })));
    }
}

type Read = fn(&str, &Limits) -> ptero_text::Result<Grammar>;

/// Follows a grammar for some tokens, of which each is a byte.
fn follow(grammar: ptero_text::Result<Grammar>, vocabulary: &Vocabulary) -> ptero_text::Result<()> {
    let mut matcher = Matcher::new(&grammar?, vocabulary, &[])?;
    for step in 0..40 {
        let mask = matcher.mask()?;
        let allowed: Vec<u32> = (0..256).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        // The largest closes brackets; another one every fourth time.
        let wanted = if step % 4 == 3 { allowed.len() / 2 } else { allowed.len().saturating_sub(1) };
        let Some(token) = allowed.get(wanted) else { break };
        matcher.accept(*token)?;
    }
    Ok(())
}

#[test]
fn hostile_sources_are_refused_or_take_bounded_work() {
    let chain = |count: usize, nested: usize| {
        let target = |next: usize| {
            format!("{}{{\"$ref\":\"#/$defs/a{next}\"}}{}", "{\"items\":".repeat(nested), "}".repeat(nested))
        };
        let all: String = (0..count).map(|index| format!("\"a{index}\":{},", target(index + 1))).collect();
        format!("{{\"$ref\":\"#/$defs/a0\",\"$defs\":{{{all}\"a{count}\":{{\"type\":\"null\"}}}}}}")
    };
    let laughs = |count: usize| {
        let both = |index: usize| {
            let side = format!("{{\"type\":\"object\",\"$ref\":\"#/$defs/a{index}\"}}");
            format!("\"a{}\":{{\"properties\":{{\"l\":{side},\"r\":{side}}}}},", index + 1)
        };
        let all: String = (0..count).map(both).collect();
        format!("{{\"$ref\":\"#/$defs/a{count}\",\"$defs\":{{{all}\"a0\":{{\"type\":\"object\"}}}}}}")
    };
    let list = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
    // Classes that all have one letter in common, so that an intersection has every combination.
    let overlapping = |index: usize| {
        (b'b'..b'f').map(|other| format!("[a{}]{index}", char::from(other))).collect::<Vec<_>>().join("|")
    };
    let schemas = [
        chain(2000, 0),
        chain(30_000, 0),
        chain(30, 100),
        chain(60, 110),
        laughs(8),
        laughs(40),
        format!("{}true{}", "{\"items\":".repeat(100), "}".repeat(100)),
        "{\"items\":".repeat(100_000),
        format!("{{\"enum\":[{}]}}", list(30_000, &|index| format!("\"value {index}\""))),
        format!("{{\"enum\":[{}]}}", list(5000, &|index| format!("{{\"value\":{index}}}"))),
        format!("{{\"oneOf\":[{}]}}", list(20_000, &|index| format!("{{\"const\":{index}}}"))),
        format!(
            "{{\"allOf\":[{}]}}",
            list(30, &|index| format!("{{\"anyOf\":[{{\"minLength\":{index}}},{{\"maxLength\":{index}}}]}}"))
        ),
        format!("{{\"patternProperties\":{{{}}}}}", list(1000, &|index| format!("\"^{index}x\":true"))),
        format!("{{\"patternProperties\":{{{}}}}}", list(100, &|index| format!("\"^{index}x\":true"))),
        "{\"type\":\"integer\",\"multipleOf\":99991}".to_owned(),
        "{\"type\":\"integer\",\"multipleOf\":100000007}".to_owned(),
        "{\"allOf\":[{\"multipleOf\":1e-300},{\"multipleOf\":9973},{\"multipleOf\":7.77}]}".to_owned(),
        "{\"type\":\"array\",\"minItems\":1000000000,\"items\":{\"type\":\"array\",\"minItems\":1000000000}}"
            .to_owned(),
        "{\"type\":\"string\",\"minLength\":1000000000,\"pattern\":\"(a.*b){1000}\"}".to_owned(),
        format!("{{\"allOf\":[{}]}}", list(30, &|index| format!("{{\"pattern\":\"^({})*$\"}}", overlapping(index)))),
        format!(
            "{{\"allOf\":[{}],\"$defs\":{{{}}}}}",
            list(30, &|index| format!("{{\"properties\":{{\"a\":{{\"$ref\":\"#/$defs/a{index}\"}}}}}}")),
            list(30, &|index| format!("\"a{index}\":{{\"pattern\":\"{}\"}}", overlapping(index)))
        ),
        format!("{{\"$ref\":{{\"x\":\"{}\"}}}}", "ä".repeat(200)),
        format!("{{\"minimum\":\"a{}\"}}", "ä".repeat(200)),
    ];
    let expressions = [
        "(a{1000}){1000}".to_owned(),
        "((a{1000}){1000}){1000}".to_owned(),
        "(a{1,1000}){1,1000}".to_owned(),
        "(.*){1000}".to_owned(),
        "(.*a.*){1000}".to_owned(),
        ".*a.{1000}".to_owned(),
        r"(\p{L}\p{N}?){1,1000}".to_owned(),
        "a?".repeat(900),
        "a?".repeat(100_000),
        "(a|)".repeat(100_000),
        "a?".repeat(900) + &"a".repeat(900),
        "abc".repeat(300_000),
        "(".repeat(100_000),
        r"\w".repeat(5000),
    ];
    let lines = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let larks = [
        format!("start: a0\n{}a3000: \"x\"\n", lines(3000, &|index| format!("a{index}: a{}\n", index + 1))),
        format!("start: a0\n{}a50000: \"x\"\n", lines(50_000, &|index| format!("a{index}: a{}\n", index + 1))),
        format!(
            "start: a0\n{}a130: \"x\"\n",
            lines(130, &|index| format!("a{index}: {}a{}{}\n", "(".repeat(27), index + 1, ")".repeat(27)))
        ),
        format!("start: A0\n{}A3000: \"x\"\n", lines(3000, &|index| format!("A{index}: A{}\n", index + 1))),
        format!("start: A30\nA0: /[a-z]+x/\n{}", lines(30, &|index| format!("A{}: A{index} A{index}\n", index + 1))),
        format!("start: A\nA: {}\n", (2..30).map(|count| format!("/(a{{{count}}})*/")).collect::<Vec<_>>().join(" & ")),
        format!(
            "start: A\nA: {}\n",
            (0..30).map(|index| format!("/{}/", overlapping(index))).collect::<Vec<_>>().join(" & ")
        ),
        format!(
            "start: A9\nA0: /{}/ & /{}/\n{}",
            overlapping(0),
            overlapping(1),
            lines(9, &|index| format!("A{}: (A{index} \"x\"?)\n  & (A{index} \"y\"?)\n", index + 1))
        ),
        "start: e\ne: e e e | e e | \"a\" |\n".to_owned(),
        "start: a~1000000\na: b~1000000\nb: \"x\"\n".to_owned(),
        format!("start: %json {}\n", laughs(40)),
        format!("start: %regex {{\"substring_chars\": \"{}\"}}\n", "ab c".repeat(100_000)),
        "start: A\nA: ~/.*a.{1000}/\n".to_owned(),
        "~".repeat(100_000),
        "start: \"\u{0}\"\n".to_owned(),
    ];
    let limits = Limits::default();
    let schemas = schemas.iter().map(|source| (source, Grammar::json_schema as Read));
    let expressions = expressions.iter().map(|source| (source, Grammar::regex as Read));
    let larks = larks.iter().map(|source| (source, Grammar::lark as Read));
    let bytes = tokenizer((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let vocabulary = Vocabulary::new(&bytes, 256).unwrap();
    for (source, read) in schemas.chain(expressions).chain(larks) {
        // Either is fine: the work is counted, so there is a result.
        if let Err(refusal) = follow(read(source, &limits), &vocabulary) {
            let message = refusal.to_string();
            assert!(
                message.len() < 1000 && !message.contains(|char: char| char.is_control() && char != '\n'),
                "{message}"
            );
        }
    }
}
