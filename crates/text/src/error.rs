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
    /// A grammar that cannot be followed.
    #[error("the {kind}{}: {reason}", place.as_ref().map(ToString::to_string).unwrap_or_default())]
    Grammar {
        /// What kind of grammar it is.
        kind: &'static str,
        /// Where, if that is known.
        place: Option<Place>,
        /// Why.
        reason: String,
    },
    /// A grammar that no text follows.
    #[error("no text follows the {0}: it contradicts itself")]
    NoText(&'static str),
    /// The reader of grammars met something in the grammar that it does not expect.
    #[error("the {0} cannot be followed: its reader failed")]
    BrokenGrammar(&'static str),
    /// The system has no thread for reading a grammar.
    #[error("the system has no thread with a stack of {bytes} bytes for reading the grammar")]
    NoThread {
        /// The size of the stack.
        bytes: usize,
    },
    /// A token that the grammar does not allow.
    #[error("the {kind} does not allow token {token} after {tokens} tokens")]
    NotAllowed {
        /// What kind of grammar it is.
        kind: &'static str,
        /// The token.
        token: u32,
        /// How many tokens the text has so far.
        tokens: usize,
    },
    /// A text that no token can continue and that may not end.
    #[error(
        "no token can follow the {tokens} tokens so far, and the {kind} does not let the text end here\n\
         hint: the vocabulary lacks tokens for what must follow"
    )]
    DeadEnd {
        /// What kind of grammar it is.
        kind: &'static str,
        /// How many tokens the text has so far.
        tokens: usize,
    },
    /// A stop string without characters.
    #[error("a stop string is empty\nhint: leave it out")]
    EmptyStop,
}

/// Where something is in a grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a text.
    Line {
        /// The line, from 1 on.
        line: usize,
        /// The column, from 1 on.
        column: usize,
    },
    /// In a JSON document: a pointer as in `$ref`.
    Pointer(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line { line, column } => write!(f, ", line {line}, column {column}"),
            Self::Pointer(pointer) => write!(f, ", at `{pointer}`"),
        }
    }
}

/// Refuses more than the limit.
pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Error::TooMany { what, found, limit }) } else { Ok(()) }
}
