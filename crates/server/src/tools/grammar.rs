//! Grammars of calls that have to be made: the frame of the format, and in it arguments that follow their schema.

use super::parse::is_text;
use super::{CallFormat, Function};
use crate::error::ApiError;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Keywords of an object's schema that its parameters can be written one by one for, and those that only describe.
const PLAIN_OBJECT: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "title",
    "description",
];
/// Keywords of a string's schema that values without quotes can follow, and those that only describe.
const PLAIN_TEXT: &[&str] = &["type", "enum", "const", "title", "description", "default", "examples"];

/// Returns the Lark grammar of one call, or of several if they are allowed and the format can separate them.
pub(super) fn lark<'a>(
    format: CallFormat,
    functions: impl Iterator<Item = &'a Function>,
    allows_several: bool,
) -> Result<String, ApiError> {
    let (mut rules, mut names) = (String::new(), Vec::new());
    for (function, number) in functions.zip(0..) {
        names.push(format!("call_{number}"));
        call(&mut rules, format, function, number)?;
    }
    // What comes before the calls, between two, and after them. Special tokens are not text, so only texts can separate calls.
    let (before, between, after) = match format {
        CallFormat::Hermes | CallFormat::Parameters => ("", Some("\n</tool_call>\n<tool_call>\n"), "\n</tool_call>"),
        CallFormat::MistralList => ("[", Some(", "), "]"),
        CallFormat::Llama | CallFormat::MistralArguments | CallFormat::Gemma => ("", None, ""),
    };
    let more = between.filter(|_| allows_several).map(|between| format!("({} call)*", literal(between)));
    let start = [literal(before), "call".to_owned(), more.unwrap_or_default(), literal(after)].join(" ");
    Ok(format!("start: {start}\ncall: {}\n{rules}", names.join(" | ")))
}

/// Writes the rules of a call of a function.
fn call(rules: &mut String, format: CallFormat, function: &Function, number: usize) -> Result<(), ApiError> {
    let name = &function.name;
    let (before, after) = match format {
        CallFormat::Parameters => return parameters(rules, function, number),
        CallFormat::Hermes | CallFormat::MistralList => (format!("{{\"name\": \"{name}\", \"arguments\": "), "}"),
        CallFormat::Llama => (format!("{{\"name\": \"{name}\", \"parameters\": "), "}"),
        CallFormat::MistralArguments => (format!("{name}[ARGS]"), ""),
        CallFormat::Gemma => (name.clone(), ""),
    };
    line(rules, &format!("call_{number}: {} arguments_{number} {}", literal(&before), literal(after)));
    line(rules, &format!("arguments_{number}: %json {}", compact(object(function)?.into())));
    Ok(())
}

/// Writes the rules of a call whose arguments are elements.
fn parameters(rules: &mut String, function: &Function, number: usize) -> Result<(), ApiError> {
    let schema = object(function)?;
    if let Some(keyword) = schema.keys().find(|key| !PLAIN_OBJECT.contains(&key.as_str())) {
        return Err(cannot_follow(function, keyword));
    }
    let listed = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let unlisted = required.iter().filter(|name| !listed.contains_key(**name));
    let all = listed.iter().map(|(name, schema)| (name.as_str(), schema.clone()));
    let all: Vec<(&str, Value)> = all.chain(unlisted.map(|name| (*name, json!({})))).collect();
    let mut call = format!("call_{number}: {}", literal(&format!("<function={}>\n", function.name)));
    for ((name, property), index) in all.into_iter().zip(0..) {
        if name.is_empty() || name.contains(|character: char| character == '>' || character.is_whitespace()) {
            return Err(cannot_follow(function, name));
        }
        let rule = format!("{number}_{index}");
        let mark = if required.contains(&name) { "" } else { "?" };
        let _ = write!(call, " parameter_{rule}{mark}");
        let opening = literal(&format!("<parameter={name}>\n"));
        line(rules, &format!("parameter_{rule}: {opening} value_{rule} \"\\n\""));
        value(rules, &rule, property, &schema).map_err(|keyword| cannot_follow(function, &keyword))?;
    }
    line(rules, &format!("{call} {}", literal("</function>")));
    Ok(())
}

/// Writes the rule of a value and the end of its element, or returns the keyword that cannot be followed.
fn value(rules: &mut String, rule: &str, schema: Value, root: &Map<String, Value>) -> Result<(), String> {
    let end = "\n</parameter>";
    if !is_text(&schema) {
        let mut schema = schema;
        if let Value::Object(schema) = &mut schema {
            // References are resolved from the outermost schema.
            for name in ["$defs", "definitions"] {
                schema.extend(root.get(name).map(|definitions| (name.to_owned(), definitions.clone())));
            }
        }
        line(rules, &format!("value_{rule}: json_{rule} {}", literal(end)));
        line(rules, &format!("json_{rule}: %json {}", compact(schema)));
        return Ok(());
    }
    let keywords = schema.as_object().into_iter().flat_map(Map::keys);
    if let Some(keyword) = keywords.into_iter().find(|key| !PLAIN_TEXT.contains(&key.as_str())) {
        return Err(keyword.clone());
    }
    let listed = schema.get("enum").and_then(Value::as_array).cloned();
    let choices = schema.get("const").cloned().map(|only| vec![only]).or(listed);
    match choices {
        Some(choices) => {
            let texts: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            // As it is read back: one line break at either end belongs to the element.
            if texts.iter().any(|text| text.contains("</parameter>")) {
                return Err("enum".to_owned());
            }
            let texts: Vec<String> = texts.iter().map(|text| literal(&format!("{text}{end}"))).collect();
            line(rules, &format!("value_{rule}: {}", texts.join(" | ")));
        }
        None => line(rules, &format!("value_{rule}[suffix=\"</parameter>\"]: /(?s:.*)/")),
    }
    Ok(())
}

/// Returns the schema of a function's arguments, which are an object without others than it lists.
fn object(function: &Function) -> Result<Map<String, Value>, ApiError> {
    let mut schema = function.parameters.clone().unwrap_or_default();
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Err(cannot_follow(function, "type"));
    }
    schema.entry("type").or_insert_with(|| "object".into());
    let is_merged =
        ["$ref", "allOf", "anyOf", "oneOf", "patternProperties"].iter().any(|key| schema.contains_key(*key));
    if !is_merged {
        schema.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    Ok(schema)
}

fn cannot_follow(function: &Function, keyword: &str) -> ApiError {
    let name = &function.name;
    let message =
        format!("`tools`: a call of `{name}` cannot be enforced in this model's format, because of `{keyword}`");
    ApiError::bad(message).param("tools")
}

/// Returns a schema whose JSON has the white space of `json.dumps`, which is what models are shown.
fn compact(schema: Value) -> Value {
    let white_space = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    let mut schema = if schema == Value::Bool(true) { json!({}) } else { schema };
    if let Value::Object(schema) = &mut schema {
        schema.insert("x-guidance".to_owned(), white_space);
    }
    schema
}

/// Returns a literal of Lark; nothing for an empty text.
fn literal(text: &str) -> String {
    if text.is_empty() { String::new() } else { Value::from(text).to_string() }
}

fn line(rules: &mut String, rule: &str) {
    rules.push_str(rule);
    rules.push('\n');
}
