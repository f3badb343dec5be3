//! The steps from tokens to text, each with what it must remember.

/// The character for bytes that are none.
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
    /// Texts inside a piece.
    Replace { pattern: String, content: String },
    /// Up to so many of a character at the start and the end of each token.
    Strip { content: char, start: usize, stop: usize },
    /// Up to so many of a character at the start of the text.
    StripText { content: char, left: usize },
    /// A space between tokens.
    Between { first: bool },
}

/// Sends a piece through the stages.
pub(super) fn feed(stages: &mut [Stage], piece: &str, out: &mut String) {
    match stages.split_first_mut() {
        None => out.push_str(piece),
        Some((stage, rest)) => stage.push(piece, |piece| feed(rest, piece, out)),
    }
}

impl Stage {
    fn push(&mut self, piece: &str, mut next: impl FnMut(&str)) {
        match self {
            Self::ByteLevel { begun } => {
                let bytes: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
                begun.extend(bytes.as_deref().unwrap_or(piece.as_bytes()));
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
                // Once something else came, nothing is stripped any more.
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

    /// Nothing follows.
    pub(super) fn finish(&mut self, mut next: impl FnMut(&str)) {
        match self {
            Self::ByteLevel { begun } => abandon(begun, 1, &mut next),
            Self::ByteFallback { begun } => abandon(begun, usize::MAX, &mut next),
            Self::Metaspace { .. }
            | Self::Replace { .. }
            | Self::Strip { .. }
            | Self::StripText { .. }
            | Self::Between { .. } => {}
        }
    }
}

/// Gives the characters that are complete, and up to `most` replacements for bytes that cannot become one.
fn settle(begun: &mut Vec<u8>, most: usize, mut next: impl FnMut(&str)) {
    let mut rest = begun.as_slice();
    let mut text = String::new();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, after) = rest.split_at_checked(error.valid_up_to()).unwrap_or((rest, &[]));
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                rest = after;
                let Some(bad) = error.error_len() else { break };
                text.push_str(&REPLACEMENT.repeat(bad.min(most)));
                rest = rest.get(bad..).unwrap_or_default();
            }
        }
    }
    let settled = begun.len() - rest.len();
    begun.drain(..settled);
    if !text.is_empty() {
        next(&text);
    }
}

/// Gives up to `most` replacements for the start of a character that nothing completes.
fn abandon(begun: &mut Vec<u8>, most: usize, next: &mut impl FnMut(&str)) {
    if !begun.is_empty() {
        next(&REPLACEMENT.repeat(begun.len().min(most)));
        begun.clear();
    }
}

/// The byte that GPT-2's character stands for: printable ones for themselves, the others from 256 on in their order.
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
    let mut rest = token;
    for _ in 0..start {
        let Some(shorter) = rest.strip_prefix(content) else { break };
        rest = shorter;
    }
    for _ in 0..stop {
        let Some(shorter) = rest.strip_suffix(content) else { break };
        rest = shorter;
    }
    rest
}
