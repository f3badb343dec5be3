//! The steps from tokens to text, each with its state.

use std::borrow::Cow;

/// The character for invalid bytes.
const REPLACEMENT: &str = "\u{fffd}";

/// A step. Pieces go in and out; before the tokens are joined a piece is a token, after it any part of the text.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Characters that stand for bytes, as GPT-2 has them; joins all tokens.
    ByteLevel {
        /// The start of a character.
        begun: Vec<u8>,
    },
    /// Tokens `<0x00>` to `<0xFF>` are bytes.
    ByteFallback { begun: Vec<u8> },
    /// A character that stands for a space; in the first token it may stand for nothing.
    Metaspace { mark: char, drop: bool },
    /// Replaces a text inside a piece.
    Replace { pattern: String, content: String },
    /// Removes up to `start` and `stop` of a character at the start and the end of each token.
    Strip { content: char, start: usize, stop: usize },
    /// Removes up to `left` of a character at the start of the text.
    StripText { content: char, left: usize },
    /// Puts a space between tokens.
    Between { first: bool },
}

/// Sends a piece through the stages.
pub(super) fn feed(stages: &mut [Stage], piece: &str, out: &mut String) {
    match stages.split_first_mut() {
        None => out.push_str(piece),
        Some((stage, rest)) => stage.push(piece, |piece| feed(rest, piece, out)),
    }
}

/// The bytes that a token adds to a text that has begun.
pub(crate) fn bytes_within(stages: &[Stage], token: &str) -> Vec<u8> {
    let mut bytes = token.as_bytes().to_vec();
    for stage in stages {
        // Part of a character is not changed by later steps.
        let Ok(piece) = std::str::from_utf8(&bytes) else { break };
        bytes = stage.bytes_within(piece).into_owned();
    }
    bytes
}

impl Stage {
    fn bytes_within<'a>(&self, piece: &'a str) -> Cow<'a, [u8]> {
        match self {
            Self::ByteLevel { .. } => level_bytes(piece),
            Self::ByteFallback { .. } => match fallback_byte(piece) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(piece.as_bytes()),
            },
            Self::Metaspace { mark, .. } => Cow::Owned(piece.replace(*mark, " ").into_bytes()),
            Self::Replace { pattern, content } => Cow::Owned(piece.replace(pattern.as_str(), content).into_bytes()),
            Self::Strip { content, start, stop } => Cow::Borrowed(strip(piece, *content, *start, *stop).as_bytes()),
            Self::StripText { .. } => Cow::Borrowed(piece.as_bytes()),
            Self::Between { .. } => Cow::Owned(format!(" {piece}").into_bytes()),
        }
    }

    fn push(&mut self, piece: &str, mut next: impl FnMut(&str)) {
        match self {
            Self::ByteLevel { begun } => {
                begun.extend_from_slice(&level_bytes(piece));
                settle(begun, 1, next);
            }
            Self::ByteFallback { begun } => {
                if let Some(byte) = fallback_byte(piece) {
                    begun.push(byte);
                    // Every bad byte gets a character of its own.
                    settle(begun, usize::MAX, next);
                } else {
                    abandon(begun, usize::MAX, &mut next);
                    next(piece);
                }
            }
            Self::Metaspace { mark, drop } => {
                next(&piece.replace(*mark, if *drop { "" } else { " " }));
                *drop = false;
            }
            Self::Replace { pattern, content } => next(&piece.replace(pattern.as_str(), content)),
            Self::Strip { content, start, stop } => next(strip(piece, *content, *start, *stop)),
            Self::StripText { content, left } => {
                let rest = strip(piece, *content, *left, 0);
                // After any other character, nothing is stripped any more.
                *left = if rest.is_empty() { *left - piece.chars().count() } else { 0 };
                next(rest);
            }
            Self::Between { first } => {
                if !std::mem::take(first) {
                    next(" ");
                }
                next(piece);
            }
        }
    }

    /// Passes on what is left at the end of the text.
    pub(super) fn finish(&mut self, mut next: impl FnMut(&str)) {
        match self {
            Self::ByteLevel { begun } => abandon(begun, 1, &mut next),
            Self::ByteFallback { begun } => abandon(begun, usize::MAX, &mut next),
            Self::Metaspace { .. } | Self::Replace { .. } | Self::Between { .. } => {}
            Self::Strip { .. } | Self::StripText { .. } => {}
        }
    }
}

/// Passes on the complete characters, and up to `most` replacements for each sequence of bytes that cannot become one.
fn settle(begun: &mut Vec<u8>, most: usize, mut next: impl FnMut(&str)) {
    let (mut text, mut settled) = (String::new(), 0);
    for chunk in begun.utf8_chunks() {
        let bad = chunk.invalid();
        text.push_str(chunk.valid());
        settled += chunk.valid().len();
        let is_start = std::str::from_utf8(bad).is_err_and(|error| error.error_len().is_none());
        if is_start && settled + bad.len() == begun.len() {
            break;
        }
        text.push_str(&REPLACEMENT.repeat(bad.len().min(most)));
        settled += bad.len();
    }
    begun.drain(..settled);
    if !text.is_empty() {
        next(&text);
    }
}

/// Passes on up to `most` replacements for the start of a character that is never completed.
fn abandon(begun: &mut Vec<u8>, most: usize, next: &mut impl FnMut(&str)) {
    if !begun.is_empty() {
        next(&REPLACEMENT.repeat(begun.len().min(most)));
        begun.clear();
    }
}

/// The bytes that characters of GPT-2 stand for. A token with any other character is the text itself.
fn level_bytes(piece: &str) -> Cow<'_, [u8]> {
    let bytes: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
    bytes.map_or(Cow::Borrowed(piece.as_bytes()), Cow::Owned)
}

/// The byte that a character of GPT-2 stands for: printable ones for themselves, the others from 256 on in order.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // A sign would be read as a number too; the library takes `+A`, and so do we.
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> &str {
    let leading = token.chars().take(start).take_while(|found| *found == content).count();
    let rest = token.get(leading * content.len_utf8()..).unwrap_or_default();
    let trailing = rest.chars().rev().take(stop).take_while(|found| *found == content).count();
    rest.get(..rest.len() - trailing * content.len_utf8()).unwrap_or_default()
}
