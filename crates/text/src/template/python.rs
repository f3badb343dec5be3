//! Values written as Python writes them.

use serde_json::Value;

/// How `json.dumps` writes.
pub(super) struct Dump {
    /// `true` if all characters but ASCII are escaped.
    pub(super) ascii: bool,
    /// Spaces per level; without it, all on one line.
    pub(super) indent: Option<usize>,
    pub(super) sorted: bool,
    /// Between items, and between a key and its value.
    pub(super) separators: Option<(String, String)>,
}

impl Dump {
    pub(super) fn text(&self, value: &Value) -> String {
        let mut out = String::new();
        self.write(value, 0, &mut out);
        out
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&float_text(float)),
                None => out.push_str(&number.to_string()),
            },
            Value::String(text) => self.quote(text, out),
            Value::Array(items) => {
                let items = items.iter().map(|item| (None, item));
                self.group(('[', ']'), items, depth, out);
            }
            Value::Object(map) => {
                let mut items: Vec<_> = map.iter().map(|(key, item)| (Some(key.as_str()), item)).collect();
                if self.sorted {
                    items.sort_by_key(|(key, _)| *key);
                }
                self.group(('{', '}'), items.into_iter(), depth, out);
            }
        }
    }

    fn group<'a>(
        &self,
        (open, close): (char, char),
        items: impl Iterator<Item = (Option<&'a str>, &'a Value)>,
        depth: usize,
        out: &mut String,
    ) {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth)));
            }
        };
        let usual = if self.indent.is_some() { "," } else { ", " };
        let (between, colon) = self.separators.as_ref().map_or((usual, ": "), |(item, key)| (item, key));
        out.push(open);
        let mut empty = true;
        for (key, item) in items {
            if !empty {
                out.push_str(between);
            }
            empty = false;
            line(depth + 1, out);
            if let Some(key) = key {
                self.quote(key, out);
                out.push_str(colon);
            }
            self.write(item, depth + 1, out);
        }
        if !empty {
            line(depth, out);
        }
        out.push(close);
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
                _ if self.ascii && !matches!(character, ' '..='~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// Python's `repr` of a float: the shortest digits, with an exponent where it is below -4 or above 15.
pub(super) fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = float.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
