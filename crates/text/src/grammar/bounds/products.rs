//! How large the derivatives of intersections are. llguidance counts each only after it is complete.
//!
//! A derivative lists sets of bytes and what follows them. That of an intersection has every combination of one entry of each
//! part whose sets have a byte in common, so its size is at most the product of how many sets of each part overlap.

use super::resolve;
use crate::error::at_most;
use crate::{Limits, Result};
use serde_json::Value;
use std::collections::HashMap;

const PRODUCTS: &str = "combinations of character classes in an intersection";

/// Checks all patterns of a schema that must hold at once.
pub(super) fn schema(schema: &Value, limits: &Limits) -> Result<()> {
    let product = Schemas { root: schema, known: HashMap::new() }.product(schema);
    at_most(PRODUCTS, product, limits.grammar_products)
}

/// Checks all intersections of a Lark grammar.
pub(super) fn lark(source: &str, limits: &Limits) -> Result<()> {
    if !source.contains('&') {
        return Ok(());
    }
    let mut definitions: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut name = "";
    for line in source.lines() {
        name = defined(line).unwrap_or(name);
        definitions.entry(name).or_default().push(line);
    }
    let mut terminals = Terminals { definitions: &definitions, known: HashMap::new(), largest: 0 };
    definitions.keys().for_each(|name| {
        terminals.overlaps(name);
    });
    at_most(PRODUCTS, terminals.largest, limits.grammar_products)
}

/// The number of sets of bytes in a regular expression that may overlap, at most: classes, and one for all single bytes.
fn overlaps(regex: &str) -> usize {
    1 + regex.bytes().filter(|byte| b"[.\\".contains(byte)).count()
}

struct Schemas<'a> {
    root: &'a Value,
    /// The product of each reference's target; 1 while it is computed.
    known: HashMap<&'a str, usize>,
}

impl<'a> Schemas<'a> {
    /// The product of the patterns that hold for one value, at most: those beside each other, and any others inside of each.
    fn product(&mut self, schema: &'a Value) -> usize {
        match schema {
            Value::Object(object) => {
                let (mut together, mut inside) = (1_usize, 1);
                for (key, value) in object {
                    match (key.as_str(), value) {
                        ("pattern", Value::String(pattern)) => together = together.saturating_mul(overlaps(pattern)),
                        ("$ref", Value::String(reference)) => {
                            together = together.saturating_mul(self.target(reference));
                        }
                        ("allOf", Value::Array(list)) => {
                            together = list.iter().fold(together, |all, part| all.saturating_mul(self.product(part)));
                        }
                        _ => inside = self.product(value).max(inside),
                    }
                }
                together.saturating_mul(inside)
            }
            Value::Array(list) => list.iter().map(|value| self.product(value)).max().unwrap_or(1),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => 1,
        }
    }

    fn target(&mut self, reference: &'a str) -> usize {
        if let Some(product) = self.known.get(reference) {
            return *product;
        }
        self.known.insert(reference, 1);
        let product = resolve(self.root, reference).map_or(1, |target| self.product(target));
        self.known.insert(reference, product);
        product
    }
}

/// The name that a line of a Lark grammar defines, if it does not continue the last definition.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches(['?', '!']);
    let name = line.split(|other: char| !is_of_name(other)).next().filter(|name| !name.is_empty())?;
    // After the name there may be a priority or a list of attributes.
    let rest = line.get(name.len()..)?.trim_start();
    rest.starts_with([':', '.', '[', '{']).then_some(name)
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '-'
}

struct Terminals<'a> {
    definitions: &'a HashMap<&'a str, Vec<&'a str>>,
    /// How many sets of each terminal overlap; 1 while it is computed.
    known: HashMap<&'a str, usize>,
    /// The largest intersection.
    largest: usize,
}

impl<'a> Terminals<'a> {
    fn overlaps(&mut self, name: &str) -> usize {
        let Some((name, lines)) = self.definitions.get_key_value(name) else { return 0 };
        if let Some(overlaps) = self.known.get(name) {
            return *overlaps;
        }
        self.known.insert(name, 1);
        let body = lines.join("\n");
        let body = body.get(body.find(':').unwrap_or(0)..).unwrap_or_default();
        let mut parts = body.split('&').map(|part| {
            let used = part.split(|other: char| !is_of_name(other));
            used.fold(overlaps(part), |all, used| all.saturating_add(self.overlaps(used)))
        });
        let product = parts.by_ref().fold(1_usize, usize::saturating_mul);
        if body.contains('&') {
            self.largest = self.largest.max(product);
        }
        self.known.insert(name, product);
        product
    }
}
