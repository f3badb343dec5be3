//! What llguidance does not bound by itself: recursion, copies of schemas, comparisons of pairs, long runs of optional parts, and
//! what it does before it counts.

mod products;

use super::message;
use crate::error::at_most;
use crate::{Limits, Result};
use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::LexerSpec;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Keywords that only describe; beside them, a reference stays a reference.
const ANNOTATIONS: &[&str] =
    &["$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "description"];
/// Also only descriptions.
const MORE_ANNOTATIONS: &[&str] = &["deprecated", "examples", "id", "readOnly", "title", "writeOnly", "x-guidance"];

const LEVELS: &str = "schemas, rules and groups inside each other";
const COPIES: &str = "schemas, with those that references are merged with,";
const OPTIONAL: &str = "optional or repeated parts of regular expressions";
const REMAINDERS: &str = "remainders of `multipleOf`";
const PAIRED: &str = "keywords whose values are compared in pairs";

/// Checks a schema and returns how deep its reader may have to go.
pub(super) fn schema(schema: &Value, limits: &Limits) -> Result<usize> {
    let mut walk = Walk { references: HashSet::new(), paired: 0, optional: 0, divisor: 1 };
    walk.visit(schema);
    at_most(PAIRED, walk.paired, limits.grammar_pairs)?;
    at_most(OPTIONAL, walk.optional, limits.grammar_optional)?;
    at_most(REMAINDERS, walk.divisor, limits.grammar_remainders)?;
    // Every referenced schema is read once, while the one that refers to it is still being read.
    let mut levels = depth(schema);
    at_most(LEVELS, levels + walk.references.len(), limits.grammar_depth)?;
    for reference in walk.references {
        levels += resolve(schema, reference).map_or(1, depth);
        at_most(LEVELS, levels, limits.grammar_depth)?;
    }
    Ok(levels)
}

/// Checks how large a schema becomes; as recursive as its reader.
pub(super) fn copies(schema: &Value, limits: &Limits) -> Result<()> {
    let size = Copies { root: schema, sizes: HashMap::new(), limit: limits.grammar_size }.size(schema, false);
    at_most(COPIES, size, limits.grammar_size)?;
    products::schema(schema, limits)
}

/// Checks how large the intersections of terminals become; recursive along terminals that use others.
pub(super) fn intersections(source: &str, limits: &Limits) -> Result<()> {
    products::lark(source, limits)
}

/// Reads the first byte of every part of a grammar. The parser does so, too, when it starts, but does not count: after that byte it
/// looks for a text that an intersection allows, which may be any number of steps away.
pub(super) fn first_bytes(kind: &'static str, parts: &LexerSpec, mut limits: ParserLimits) -> Result<()> {
    let steps = limits.initial_lexer_fuel;
    let mut states = parts.to_regex_vec(&mut limits).map_err(|error| message::error(kind, &error))?;
    states.set_fuel(steps);
    let start = states.initial_state(&parts.all_lexemes());
    for byte in 0..=u8::MAX {
        states.transition(start, byte);
    }
    states.get_error().map_or(Ok(()), |error| Err(message::error(kind, &error)))
}

/// Checks a regular expression.
pub(super) fn regex(source: &str, limits: &Limits) -> Result<()> {
    at_most(OPTIONAL, optional(source), limits.grammar_optional)
}

/// Checks a Lark grammar and returns how deep its reader may have to go, and the schemas in it.
pub(super) fn lark(source: &str, limits: &Limits) -> Result<(usize, Vec<Value>)> {
    // Schemas are counted as schemas; what is left is rules and expressions.
    let (mut schemas, mut rules, mut rest) = (Vec::new(), String::new(), source);
    while let Some((before, after)) = rest.split_once("%json") {
        rules.push_str(before);
        let mut json = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        // What is not JSON is an error later, or part of a comment.
        let schema = json.next().and_then(|schema| schema.ok());
        rest = schema.as_ref().and_then(|_| after.get(json.byte_offset()..)).unwrap_or(after);
        schemas.extend(schema);
    }
    rules.push_str(rest);
    // A rule is a line.
    let mut levels = rules.bytes().filter(|byte| b"\n([{".contains(byte)).count() + 1;
    at_most(LEVELS, levels, limits.grammar_depth)?;
    regex(&rules, limits)?;
    for nested in &schemas {
        levels += schema(nested, limits)?;
        at_most(LEVELS, levels, limits.grammar_depth)?;
    }
    Ok((levels, schemas))
}

/// The number of parts that can be left out or repeated, at most. The derivative of `n` such parts in a row has up to `n`²
/// parts.
fn optional(regex: &str) -> usize {
    let quantifiers = regex.bytes().filter(|byte| b"?*{".contains(byte)).count();
    quantifiers + ["(|", "||", "|)"].iter().map(|empty| regex.matches(empty).count()).sum::<usize>()
}

fn depth(value: &Value) -> usize {
    1 + match value {
        Value::Object(object) => object.values().map(depth).max().unwrap_or(0),
        Value::Array(list) => list.iter().map(depth).max().unwrap_or(0),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => 0,
    }
}

/// What is counted over a whole schema.
struct Walk<'a> {
    references: HashSet<&'a str>,
    paired: usize,
    optional: usize,
    /// A common multiple of all `multipleOf`, as integers of their last digits.
    divisor: usize,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, value: &'a Value) {
        match value {
            Value::Object(object) => object.iter().for_each(|(key, value)| self.entry(key, value)),
            Value::Array(list) => list.iter().for_each(|value| self.visit(value)),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
    }

    fn entry(&mut self, key: &'a str, value: &'a Value) {
        match (key, value) {
            ("$ref", Value::String(reference)) => {
                self.references.insert(reference);
            }
            ("pattern", Value::String(pattern)) => self.optional += optional(pattern),
            ("patternProperties", Value::Object(patterns)) => {
                self.paired += patterns.len();
                self.optional += patterns.keys().map(|pattern| optional(pattern)).sum::<usize>();
            }
            ("oneOf", Value::Array(options)) => self.paired += options.len(),
            ("multipleOf", Value::Number(number)) => {
                let digits: String = number.as_f64().unwrap_or(f64::MAX).abs().to_string().replace('.', "");
                let divisor = digits.parse().unwrap_or(usize::MAX).max(1);
                self.divisor = (self.divisor / common_divisor(self.divisor, divisor)).saturating_mul(divisor);
            }
            _ => {}
        }
        self.visit(value);
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Counts how large a schema becomes: where several schemas must hold at once, those that they refer to are copied.
struct Copies<'a> {
    root: &'a Value,
    /// The size of each reference's target with everything in it; `None` while it is computed.
    sizes: HashMap<&'a str, Option<usize>>,
    limit: usize,
}

impl<'a> Copies<'a> {
    fn size(&mut self, schema: &'a Value, is_merged: bool) -> usize {
        let mut size = 1_usize;
        match schema {
            Value::Object(object) => {
                let keywords = object.keys().filter(|key| is_keyword(key)).count();
                for (key, value) in object {
                    let is_merged = is_merged || keywords > 1 && is_in_place(key) || is_conjunction(key, value);
                    size = size.saturating_add(match value {
                        Value::String(reference) if key == "$ref" && is_merged => self.target(reference),
                        _ => self.size(value, is_merged && !is_separate(key)),
                    });
                }
            }
            Value::Array(list) => {
                for value in list {
                    size = size.saturating_add(self.size(value, is_merged));
                }
            }
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
        size.min(self.limit.saturating_add(1))
    }

    fn target(&mut self, reference: &'a str) -> usize {
        if let Some(size) = self.sizes.get(reference) {
            // A cycle of references that must be merged is an error later.
            return size.unwrap_or(1);
        }
        self.sizes.insert(reference, None);
        let size = resolve(self.root, reference).map_or(1, |target| self.size(target, true));
        self.sizes.insert(reference, Some(size));
        size
    }
}

/// Definitions are not part of the schema that they stand in.
fn is_separate(key: &str) -> bool {
    matches!(key, "$defs" | "definitions")
}

fn is_keyword(key: &str) -> bool {
    !ANNOTATIONS.contains(&key) && !MORE_ANNOTATIONS.contains(&key)
}

/// Keywords whose schemas are merged with the keywords beside them.
fn is_in_place(key: &str) -> bool {
    matches!(key, "$ref" | "allOf" | "anyOf" | "oneOf")
}

fn is_conjunction(key: &str, value: &Value) -> bool {
    key == "allOf" && value.as_array().is_some_and(|list| list.len() > 1)
}

/// The schema that a reference names.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference {
        "#" | "#/" => Some(root),
        _ => reference.strip_prefix("#/")?.split('/').try_fold(root, |value, segment| match value {
            Value::Array(list) => list.get(segment.parse::<usize>().ok()?),
            Value::Object(object) => object.get(segment),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => None,
        }),
    }
}
