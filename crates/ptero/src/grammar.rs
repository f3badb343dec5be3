//! Texts that follow a grammar: what was asked for, and the filter that draws only what it allows.

use crate::error::Result;
use crate::model::Model;
use ptero_engine::{FilterError, TokenFilter, TokenId};
use ptero_text::{Grammar, Matcher};

/// What a text has to follow.
#[derive(Clone, Debug)]
pub(crate) enum GrammarSource {
    JsonSchema(String),
    JsonObject,
    Regex(String),
    Lark(String),
}

impl GrammarSource {
    fn read(&self) -> Result<Grammar> {
        let limits = ptero_text::Limits::default();
        Ok(match self {
            Self::JsonSchema(source) => Grammar::json_schema(source, &limits)?,
            Self::JsonObject => Grammar::json_object(&limits)?,
            Self::Regex(source) => Grammar::regex(source, &limits)?,
            Self::Lark(source) => Grammar::lark(source, &limits)?,
        })
    }

    /// A filter for the texts of a model.
    pub(crate) fn filter(&self, model: &Model) -> Result<GrammarFilter> {
        // Checked before the vocabulary is prepared, which takes longer.
        let grammar = self.read()?;
        Ok(GrammarFilter(Matcher::new(&grammar, &model.grammar_vocabulary()?, &model.end_tokens())?))
    }
}

/// Allows the tokens with which a text can go on to follow its grammar. A clone continues from the same text.
#[derive(Clone, Debug)]
pub(crate) struct GrammarFilter(Matcher);

impl TokenFilter for GrammarFilter {
    fn allowed(&mut self) -> Result<&[u32], FilterError> {
        Ok(self.0.mask()?)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), FilterError> {
        Ok(self.0.accept(token)?)
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
