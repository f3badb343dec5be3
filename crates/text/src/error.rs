//! Errors in files and arguments.

use thiserror::Error;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong, where, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// More than a limit allows.
    #[error("{found} {what} are more than the limit of {limit}")]
    TooMany {
        /// What is counted, with its unit.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A file that is not JSON.
    #[error("`{file}` is not JSON: {source}")]
    NotJson {
        /// Which file.
        file: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A file whose outermost value is no object.
    #[error("`{0}` is not a JSON object")]
    NotAnObject(&'static str),
    /// A part of `tokenizer.json` that is there, but not in the form it must have.
    #[error("`tokenizer.json`: `{field}` is not {wanted}")]
    Malformed {
        /// The path to the part.
        field: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// A step of `tokenizer.json` that ptero does not know.
    #[error("`tokenizer.json`: the {part} `{kind}` is not supported")]
    Unsupported {
        /// What part of the tokenizer it is.
        part: &'static str,
        /// Its type, as the file has it.
        kind: String,
    },
    /// Steps of a decoder in an order that cannot be streamed.
    #[error("`tokenizer.json`: the decoder `{0}` cannot follow one that joins all tokens")]
    AfterFuse(&'static str),
    /// An added token whose number is not the one that it gets.
    #[error("`tokenizer.json`: the added token `{token}` says it is {told}, but is {found:?}")]
    AddedId {
        /// The token's text.
        token: String,
        /// The number in the file.
        told: u64,
        /// The number that follows from the vocabulary.
        found: Option<u32>,
    },
    /// The reader of tokenizers refuses the file, or a text.
    #[error("the tokenizer cannot {doing}: {reason}")]
    Tokenizer {
        /// What was to be done.
        doing: &'static str,
        /// Its own words.
        reason: String,
    },
    /// The reader of tokenizers met something in the file that it does not expect.
    #[error("the tokenizer broke while it was to {doing}: `tokenizer.json` contradicts itself")]
    Broken {
        /// What was to be done.
        doing: &'static str,
    },
    /// A template that cannot be read, or fails.
    #[error("the chat template{}: {reason}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// The line of the template, where it is known.
        line: Option<usize>,
        /// Why.
        reason: String,
    },
    /// The template called `raise_exception`.
    #[error("the chat template refuses the conversation: {0}")]
    Refused(String),
    /// A stop string without characters.
    #[error("a stop string is empty\nhint: leave it out")]
    EmptyStop,
}

/// Refuses more than the limit.
pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Error::TooMany { what, found, limit }) } else { Ok(()) }
}
