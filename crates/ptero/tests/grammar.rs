//! Texts of the included model that follow a grammar, and grammars that are refused.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use ptero::{Error, FinishReason, GeneratorBuilder, Model, Options};
use serde_json::Value;

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 3, "maximum": 99},
        "colors": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3}
    },
    "required": ["name", "age"],
    "additionalProperties": false,
    "x-guidance": {"whitespace_flexible": false}
}"#;
const DATE: &str = "[0-9]{4}-[0-9]{2}-[0-9]{2}";
const WALK: &str = "start: \"go \" turn (\", \" turn)~0..4 \".\"\nturn: (\"left\" | \"right\") \" \" /[1-9][0-9]?/\n";

type Follows = fn(&str) -> bool;

fn model() -> Model {
    Options::new().threads(1).full_sampler(true).included_model().unwrap()
}

fn follows_schema(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap();
    let object = value.as_object().unwrap();
    let colors = object.get("colors").map(|colors| colors.as_array().unwrap());
    object.keys().all(|key| ["name", "age", "colors"].contains(&key.as_str()))
        && (1..=12).contains(&value["name"].as_str().unwrap().chars().count())
        && (3..=99).contains(&value["age"].as_u64().unwrap())
        && colors
            .is_none_or(|colors| colors.len() <= 3 && colors.iter().all(|color| color == "red" || color == "green"))
}

fn is_date(text: &str) -> bool {
    let is_wanted =
        |(index, byte): (usize, u8)| if [4, 7].contains(&index) { byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.bytes().enumerate().all(is_wanted)
}

fn is_walk(text: &str) -> bool {
    let turns: Vec<&str> = text.strip_prefix("go ").unwrap().strip_suffix('.').unwrap().split(", ").collect();
    let is_turn = |turn: &&str| {
        let (side, steps) = turn.split_once(' ').unwrap();
        ["left", "right"].contains(&side)
            && (1..=99).contains(&steps.parse().unwrap())
            && !steps.starts_with(['0', '+'])
    };
    turns.len() <= 5 && turns.iter().all(is_turn)
}

#[test]
fn texts_that_the_model_ends_follow_their_grammar() {
    let model = model();
    let ask = || model.generator().temperature(1.5).top_k(0).top_p(1.0).max_tokens(200);
    let grammars: [(GeneratorBuilder, Follows); 3] = [
        (ask().json_schema(SCHEMA), follows_schema),
        (ask().regex(DATE), is_date),
        (ask().lark_grammar(WALK), is_walk),
    ];
    for (builder, follows) in grammars {
        let mut different = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let mut generator = builder.clone().seed(seed).start().unwrap();
            let mut text = generator.generate("Once upon a time").unwrap();
            text.by_ref().for_each(|piece| assert!(piece.is_ok(), "{piece:?}"));
            let finish = text.finish();
            assert_eq!(finish.reason, FinishReason::EndOfText, "{}", finish.text);
            assert!(follows(&finish.text), "{}", finish.text);
            different.insert(finish.text);
        }
        assert!(different.len() > 15, "seeds give different texts: {different:?}");
    }
}

#[test]
fn a_generator_applies_its_grammar_to_every_text_and_to_forks() {
    let mut generator = model().generator().regex(DATE).seed(1).start().unwrap();
    for prompt in ["The", "He was born on", "The"] {
        let text = generator.generate(prompt).unwrap().text().unwrap();
        assert!(is_date(&text), "{text}");
    }
    // A fork in the middle of a text starts its own.
    assert!(generator.generate("The").unwrap().next().unwrap().is_ok());
    let text = generator.fork().unwrap().generate("The").unwrap().text().unwrap();
    assert!(is_date(&text), "{text}");
}

#[test]
fn grammars_are_refused_before_anything_runs() {
    let model = model();
    let refused = |builder: GeneratorBuilder| {
        let checked = builder.check().unwrap_err();
        let started = builder.start().map(drop).unwrap_err();
        assert!(matches!((&checked, &started), (Error::Text(_), Error::Text(_))), "{checked} {started}");
        assert_eq!(checked.to_string(), started.to_string());
        checked.to_string()
    };
    let contradiction = r#"{"type": "integer", "minimum": 5, "maximum": 4}"#;
    assert!(refused(model.generator().json_schema(contradiction)).contains("the JSON Schema: Unsatisfiable"));
    assert!(refused(model.generator().json_schema("{")).contains("JSON Schema"));
    assert!(refused(model.generator().regex("(")).contains("the regular expression"));
    assert!(refused(model.generator().lark_grammar("start: other\n")).contains("the Lark grammar"));
}

#[test]
fn a_model_without_the_full_sampler_refuses_grammars() {
    let model = Options::new().threads(1).included_model().unwrap();
    let builder = model.generator().regex(DATE);
    let message = "a grammar needs a program with the full sampling head, and this one has another";
    assert_eq!(builder.check().unwrap_err().to_string(), message);
    assert_eq!(builder.start().map(drop).unwrap_err().to_string(), message);
}
