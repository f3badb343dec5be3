//! llguidance's messages as errors of this crate.

use crate::Error;
use crate::error::Place;
use serde_json::Value;
use std::fmt::Display;

/// How the message about keywords that are not supported begins.
const UNIMPLEMENTED: &str = "Unimplemented keys: ";
/// The most characters of a message that are shown; some quote the source.
const LONGEST: usize = 300;

/// An error of llguidance about a grammar, without the excerpts of the source, the states and the backtraces that it appends.
pub(super) fn error(kind: &'static str, error: &impl Display) -> Error {
    let message = error.to_string();
    if message.starts_with("panic: ") {
        return Error::BrokenGrammar(kind);
    }
    let (place, message) = split_place(&message);
    let mut lines = message.lines().filter(|line| !line.starts_with('<') && !is_excerpt(line));
    let first: String = lines.next().unwrap_or_default().chars().take(LONGEST).collect();
    let rest = lines.map(str::trim).filter(|line| line.starts_with("while processing")).take(1);
    Error::Grammar { kind, place, reason: std::iter::once(first.as_str()).chain(rest).collect::<Vec<_>>().join(", ") }
}

/// Adds where in the schema a keyword stands that is not supported.
pub(super) fn locate(error: Error, schema: &Value) -> Error {
    match error {
        Error::Grammar { kind, place: None, reason } => {
            let keys =
                reason.strip_prefix(UNIMPLEMENTED).and_then(|keys| serde_json::from_str::<Vec<String>>(keys).ok());
            let Some(keys) = keys else { return Error::Grammar { kind, place: None, reason } };
            let place = find(schema, &keys, false).map(Place::Pointer);
            let (plural, keys) = (if keys.len() == 1 { "" } else { "s" }, keys.join("`, `"));
            Error::Grammar { kind, place, reason: format!("the keyword{plural} `{keys}` cannot be followed") }
        }
        error => error,
    }
}

/// The path to the first schema that has all of these keywords.
fn find(value: &Value, keys: &[String], is_named: bool) -> Option<String> {
    match value {
        Value::Object(object) => {
            if !is_named && keys.iter().all(|key| object.contains_key(key)) {
                return Some("#".to_owned());
            }
            object.iter().find_map(|(key, value)| {
                // The keys of these are names that the schema's author chose.
                let are_names =
                    !is_named && matches!(key.as_str(), "$defs" | "definitions" | "patternProperties" | "properties");
                find(value, keys, are_names).map(|path| path.replacen('#', &format!("#/{key}"), 1))
            })
        }
        Value::Array(list) => list.iter().enumerate().find_map(|(index, value)| {
            find(value, keys, false).map(|path| path.replacen('#', &format!("#/{index}"), 1))
        }),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => None,
    }
}

/// Splits `at 3(5): ` or `3(5): ` off: line and column.
fn split_place(message: &str) -> (Option<Place>, &str) {
    let read = || {
        let (place, rest) = message.strip_prefix("at ").unwrap_or(message).split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        Some((Place::Line { line: line.parse().ok()?, column: column.parse().ok()? }, rest))
    };
    read().map_or((None, message), |(place, rest)| (Some(place), rest))
}

/// Returns `true` for a line of the source with its number, and for the mark below.
fn is_excerpt(line: &str) -> bool {
    let after = line.trim_start().trim_start_matches(|digit: char| digit.is_ascii_digit());
    after.starts_with(" | ") || line.trim() == "^"
}
