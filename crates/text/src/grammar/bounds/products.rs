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
    /// The products of each reference's target; none while they are computed.
    known: HashMap<&'a str, Products<'a>>,
}

/// Products of patterns that hold at once, at most.
#[derive(Clone)]
struct Products<'a> {
    /// For the value itself.
    own: usize,
    /// Inside of each property, by its name.
    properties: HashMap<&'a str, usize>,
    /// Inside of anything else, which may be any property.
    other: usize,
}

impl<'a> Products<'a> {
    fn none() -> Self {
        Self { own: 1, properties: HashMap::new(), other: 1 }
    }

    /// Of a value for which these and others hold. Properties of different names have nothing in common.
    fn and(&mut self, others: &Self) {
        self.own = self.own.saturating_mul(others.own);
        self.other = self.other.saturating_mul(others.other);
        for (name, product) in &others.properties {
            let all = self.properties.entry(name).or_insert(1);
            *all = all.saturating_mul(*product);
        }
    }

    fn largest(&self) -> usize {
        let properties = self.properties.values().copied().max().unwrap_or(1);
        self.own.max(properties).saturating_mul(self.other)
    }
}

impl<'a> Schemas<'a> {
    /// The largest product of a schema.
    fn product(&mut self, schema: &'a Value) -> usize {
        self.products(schema).largest()
    }

    fn products(&mut self, schema: &'a Value) -> Products<'a> {
        let mut found = Products::none();
        match schema {
            Value::Object(object) => {
                let mut inside = 1;
                for (key, value) in object {
                    match (key.as_str(), value) {
                        ("pattern", Value::String(pattern)) => found.own = found.own.saturating_mul(overlaps(pattern)),
                        ("$ref", Value::String(reference)) => found.and(&self.target(reference)),
                        ("allOf", Value::Array(list)) => list.iter().for_each(|part| found.and(&self.products(part))),
                        ("properties", Value::Object(properties)) => {
                            for (name, value) in properties {
                                let product = self.product(value);
                                let all = found.properties.entry(name).or_insert(1);
                                *all = all.saturating_mul(product);
                            }
                        }
                        _ => inside = self.product(value).max(inside),
                    }
                }
                found.other = found.other.saturating_mul(inside);
            }
            Value::Array(list) => found.other = list.iter().map(|value| self.product(value)).max().unwrap_or(1),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
        found
    }

    fn target(&mut self, reference: &'a str) -> Products<'a> {
        if let Some(products) = self.known.get(reference) {
            return products.clone();
        }
        self.known.insert(reference, Products::none());
        let products = resolve(self.root, reference).map_or_else(Products::none, |target| self.products(target));
        self.known.insert(reference, products.clone());
        products
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
