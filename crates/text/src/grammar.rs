//! Structured output: texts that follow a JSON Schema, a regular expression or a Lark grammar.
//!
//! ```text
//! source ─ Grammar::json_schema, regex, lark ─▶ Grammar ─┐
//! Tokenizer ─ Vocabulary::new, once per model ─▶ Vocabulary ─┴─ Matcher::new ─▶ Matcher
//!
//! Matcher::mask ─▶ one bit per token ─▶ (a sampler) ─▶ token ─▶ Matcher::accept ─▶ …
//! ```
//!
//! A token is allowed if and only if its bytes can follow the text so far. How a text is cut into tokens is left to the model.
//! Special tokens are never allowed, except that end tokens are allowed exactly where the text may end.
//!
//! The work is done by [llguidance](https://docs.rs/llguidance): a JSON Schema or a Lark grammar becomes a context-free grammar
//! over regular expressions, which an Earley parser and derivatives follow while they walk the trie of all tokens. Its
//! documentation defines the dialects: [JSON Schema](https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md),
//! [Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), and regular expressions as in the crate
//! [regex](https://docs.rs/regex/latest/regex/#syntax), without lookaround and back-references.
//!
//! Sources are untrusted. llguidance catches its own panics and counts most of its work; [`bounds`] refuses beforehand what it
//! would not survive: recursion without end, and schemas that grow exponentially.

mod bounds;
mod matcher;
mod message;
mod vocabulary;

pub use matcher::Matcher;
pub use vocabulary::Vocabulary;

use crate::error::at_most;
use crate::{Error, Limits, Result};
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use serde_json::Value;
use std::panic::AssertUnwindSafe;

/// What is counted in the source of a grammar.
const SOURCE_BYTES: &str = "bytes of a grammar";
/// Stack for each of the levels that [`bounds`] counts: generous, since how much llguidance takes for one is not documented.
const LEVEL_BYTES: usize = 32 << 10;
/// What may stand between the tokens of JSON.
const WHITE_SPACE: &str = r" |\n[ \t]{0,20}";
/// Stack for everything else.
const STACK_BYTES: usize = 8 << 20;

/// The rules that a text must follow, read and checked.
#[derive(Clone)]
pub struct Grammar {
    kind: &'static str,
    compiled: GrammarInit,
    limits: ParserLimits,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Grammar {
    /// JSON that a JSON Schema describes. Properties come in the order of the schema; some white space is allowed between
    /// tokens: a space, or a line break and an indentation.
    ///
    /// The key `x-guidance` of the outermost schema changes that (`{"whitespace_flexible": false}`); see llguidance.
    ///
    /// # Errors
    /// When the schema is larger than the limits, is not JSON, contradicts itself, or has a keyword that cannot be followed.
    pub fn json_schema(source: &str, limits: &Limits) -> Result<Self> {
        const KIND: &str = "JSON Schema";
        at_most(SOURCE_BYTES, source.len(), limits.grammar_bytes)?;
        let schema: Value = serde_json::from_str(source).map_err(|source| Error::NotJson { file: KIND, source })?;
        let levels = bounds::schema(&schema, limits)?;
        let grammar = TopLevelGrammar::from_json_schema(with_white_space(schema.clone()));
        let check = || bounds::copies(&schema, limits);
        Self::new(KIND, grammar, levels, check, limits).map_err(|error| message::locate(error, &schema))
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// None but those of the limits.
    pub fn json_object(limits: &Limits) -> Result<Self> {
        Self::json_schema(r#"{"type": "object"}"#, limits)
    }

    /// Texts that a regular expression matches as a whole.
    ///
    /// # Errors
    /// When the expression is larger than the limits or is not valid.
    pub fn regex(source: &str, limits: &Limits) -> Result<Self> {
        const KIND: &str = "regular expression";
        at_most(SOURCE_BYTES, source.len(), limits.grammar_bytes)?;
        bounds::regex(source, limits)?;
        // llguidance drops a backslash at the end.
        if (source.len() - source.trim_end_matches('\\').len()) % 2 == 1 {
            return Err(Error::Grammar { kind: KIND, place: None, reason: "it ends within an escape".to_owned() });
        }
        let without_place = |error| match error {
            // That in the Lark grammar around it.
            Error::Grammar { kind, reason, .. } => Error::Grammar { kind, place: None, reason },
            error => error,
        };
        Self::new(KIND, TopLevelGrammar::from_regex(source), 0, || Ok(()), limits).map_err(without_place)
    }

    /// Texts that a Lark grammar describes, in llguidance's dialect.
    ///
    /// # Errors
    /// When the grammar is larger than the limits, is not valid, or names special tokens.
    pub fn lark(source: &str, limits: &Limits) -> Result<Self> {
        at_most(SOURCE_BYTES, source.len(), limits.grammar_bytes)?;
        let (levels, schemas) = bounds::lark(source, limits)?;
        let check = || {
            schemas.iter().try_for_each(|schema| bounds::copies(schema, limits))?;
            bounds::intersections(source, limits)
        };
        Self::new("Lark grammar", TopLevelGrammar::from_lark(source.to_owned()), levels, check, limits)
    }

    /// Reads a grammar after a check that goes as deep as the reader does.
    fn new(
        kind: &'static str,
        source: TopLevelGrammar,
        levels: usize,
        check: impl FnOnce() -> Result<()> + Send,
        limits: &Limits,
    ) -> Result<Self> {
        let parser_limits = ParserLimits {
            max_items_in_row: limits.grammar_items,
            initial_lexer_fuel: limits.grammar_steps,
            step_lexer_fuel: limits.mask_steps,
            step_max_items: limits.mask_items,
            max_lexer_states: limits.grammar_states,
            max_grammar_size: limits.grammar_size,
            // It would walk the whole vocabulary for every large expression before the first token.
            precompute_large_lexemes: false,
            // They would print whole grammars and texts.
            verbose_errors: false,
        };
        let (symbols, lexer) = with_stack(STACK_BYTES + levels * LEVEL_BYTES, || {
            check()?;
            let compile = || {
                let (symbols, lexer) = GrammarInit::Serialized(source).to_internal(None, parser_limits.clone())?;
                Ok((bounds::first_bytes(kind, &lexer, parser_limits.clone()), symbols, lexer))
            };
            let compiled = catch_unwind(AssertUnwindSafe(compile)).map_err(|error| message::error(kind, &error));
            let (checked, symbols, lexer) = compiled?;
            checked.map(|()| (symbols, lexer))
        })??;
        // Without a vocabulary, llguidance warns that it cannot look them up.
        if lexer.render_warnings().iter().any(|warning| warning.contains("no tokenizer")) {
            let reason = "special tokens and token numbers are not part of texts".to_owned();
            return Err(Error::Grammar { kind, place: None, reason });
        }
        let grammar = Self { kind, compiled: GrammarInit::Internal(symbols, lexer), limits: parser_limits };
        Matcher::new(&grammar, &Vocabulary::of_bytes()?, &[])?.check_start()?;
        Ok(grammar)
    }
}

/// Bounds white space, unless the schema says how much there may be: otherwise small models write nothing else.
fn with_white_space(mut schema: Value) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.entry("x-guidance").or_insert_with(|| serde_json::json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
}

/// Runs a function on a thread with a stack of this size. llguidance follows references recursively.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work);
        thread.ok().and_then(|thread| thread.join().ok()).ok_or(Error::NoThread { bytes })
    })
}
