//! Text to tokens and back: the tokenizer, the chat template, the streaming detokenizer, the scanner for stop strings.
//!
//! ```text
//! messages ─ ChatTemplate::render ─▶ text ─ Tokenizer::encode ─▶ ids ─▶ (a model)
//!     text ◀─ StopScanner::push ◀─ pieces ◀─ Detokenizer::push ◀─ ids ◀──┘
//! ```
//!
//! Invariant: this crate knows no device and no graph and does no I/O: it takes bytes. `tokenizer.json`, its config and
//! the template are untrusted: whatever they contain, the outcome is a result or an [`Error`], after bounded work in bounded
//! memory ([`Limits`]).
#![forbid(unsafe_code)]

mod detokenizer;
mod error;
mod grammar;
mod limits;
mod stop;
mod template;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::{Error, Place, Result};
pub use grammar::{Grammar, Matcher, Vocabulary};
pub use limits::Limits;
pub use stop::{Scanned, StopScanner};
pub use template::{ChatTemplate, Conversation, Message};
pub use tokenizer::{SpecialTokens, Tokenizer};
