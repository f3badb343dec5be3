//! Texts as JSON, in the shapes of OpenAI's API.

use crate::error::ApiError;
use crate::server::App;
use ptero::{Finish, FinishReason, Model, Piece, RowLogProbabilities, TokenId};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is put where a log-probability is not a number of JSON.
const IMPOSSIBLE: f32 = -9999.0;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// What all parts of an answer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    id: String,
    created: u64,
    model: Model,
    fingerprint: String,
    seed: Option<i64>,
    /// The number of likeliest tokens to show with each token, if any are asked for.
    likeliest: Option<usize>,
    /// The tokens of each prompt, if tokens are asked for.
    prompts: Option<Vec<Vec<TokenId>>>,
    /// The choices of each prompt.
    choices: usize,
}

#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    seed: Option<i64>,
    choices: Vec<ShownChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Of a conversation; completions, which may have several prompts, have them in each choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize)]
struct ShownChoice {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<ShownMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<ShownMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Option<ShownLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
}

#[derive(Serialize)]
struct ShownMessage {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ShownLogprobs {
    Chat {
        content: Vec<TokenLogprob>,
    },
    Completion {
        tokens: Vec<String>,
        token_logprobs: Vec<f32>,
        top_logprobs: Vec<BTreeMap<String, f32>>,
        text_offset: Vec<usize>,
    },
}

/// A token with its log-probability and those of the likeliest tokens.
#[derive(Clone, Debug, Serialize)]
struct TokenLogprob {
    #[serde(flatten)]
    own: OneLogprob,
    top_logprobs: Vec<OneLogprob>,
    /// Characters of the text before it.
    #[serde(skip)]
    offset: usize,
}

#[derive(Clone, Debug, Serialize)]
struct OneLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// A text as far as it is generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Not shown yet.
    text: String,
    logprobs: Vec<TokenLogprob>,
    tokens: Vec<TokenId>,
    /// `true` if an earlier part had the tokens of the prompt.
    has_prompt: bool,
    characters: usize,
    reason: Option<&'static str>,
    new_tokens: usize,
    processed_tokens: usize,
}

impl Answer {
    pub(crate) fn new(app: &App, kind: Kind, id: &str, seed: Option<i64>, likeliest: Option<usize>) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = created.map_or(0, |time| time.as_secs());
        let (model, fingerprint) = (app.config.model.clone(), app.fingerprint.clone());
        Self {
            kind,
            id: format!("{prefix}-{id}"),
            created,
            model,
            fingerprint,
            seed,
            likeliest,
            prompts: None,
            choices: 1,
        }
    }

    /// Shows the tokens of texts and of their prompts, too, if there are any here.
    pub(crate) fn with_token_ids(self, prompts: Option<Vec<Vec<TokenId>>>, choices: usize) -> Self {
        Self { prompts, choices, ..self }
    }

    /// Adds a piece to its text.
    pub(crate) fn add(&self, choice: &mut Choice, piece: Piece) -> Result<(), ApiError> {
        choice.new_tokens += usize::from(piece.token.is_some());
        choice.tokens.extend(piece.token.filter(|_| self.prompts.is_some()));
        if let (Some(token), Some(row), Some(count)) = (piece.token, piece.log_probabilities, self.likeliest) {
            choice.logprobs.push(self.token_logprob(token, &row, count, choice.characters)?);
        }
        choice.characters += piece.text.chars().count();
        choice.text.push_str(&piece.text);
        Ok(())
    }

    fn token_logprob(
        &self,
        token: TokenId,
        row: &RowLogProbabilities,
        count: usize,
        offset: usize,
    ) -> Result<TokenLogprob, ApiError> {
        let one = |token: TokenId, logprob: f32| {
            let bytes = self.model.token_bytes(token)?;
            let logprob = if logprob.is_finite() { logprob } else { IMPOSSIBLE };
            Ok::<_, ApiError>(OneLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes })
        };
        let likeliest = row.likeliest.iter().take(count).map(|(token, share)| one(*token, *share));
        Ok(TokenLogprob { own: one(token, row.token)?, top_logprobs: likeliest.collect::<Result<_, _>>()?, offset })
    }

    /// Returns the first part of a text in a stream, which has no text.
    pub(crate) fn opening(&self, index: usize) -> Option<String> {
        let opening = ShownMessage { role: Some("assistant"), content: Some(String::new()) };
        let choice = ShownChoice {
            index,
            message: None,
            delta: Some(opening),
            text: None,
            logprobs: None,
            finish_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        };
        let prompt = self.chat_prompt();
        (self.kind == Kind::Chat).then(|| self.json(true, vec![choice], None, prompt))
    }

    /// Returns what is new in a text, if anything is.
    pub(crate) fn part(&self, index: usize, choice: &mut Choice) -> Option<String> {
        let has_tokens = !choice.logprobs.is_empty() || !choice.tokens.is_empty();
        let is_new = !choice.text.is_empty() || has_tokens || choice.reason.is_some();
        is_new.then(|| self.json(true, vec![self.shown(index, choice, true)], None, None))
    }

    /// Returns the last part of a stream.
    pub(crate) fn closing(&self, usage: Usage) -> String {
        self.json(true, Vec::new(), Some(usage), None)
    }

    /// Returns a whole answer.
    pub(crate) fn whole(&self, choices: &mut [Choice], usage: Usage) -> String {
        let shown = choices.iter_mut().enumerate().map(|(index, choice)| self.shown(index, choice, false));
        self.json(false, shown.collect(), Some(usage), self.chat_prompt())
    }

    /// Returns the tokens of the one prompt of a conversation.
    fn chat_prompt(&self) -> Option<&[TokenId]> {
        let prompts = self.prompts.as_ref().filter(|_| self.kind == Kind::Chat)?;
        prompts.first().map(Vec::as_slice)
    }

    /// Returns the tokens of the prompt of a choice, once.
    fn own_prompt(&self, index: usize, choice: &mut Choice) -> Option<Vec<TokenId>> {
        let prompts = self.prompts.as_ref().filter(|_| self.kind == Kind::Completion)?;
        let is_first = !std::mem::replace(&mut choice.has_prompt, true);
        prompts.get(index / self.choices.max(1)).filter(|_| is_first).cloned()
    }

    /// Takes what is new in a text.
    fn shown(&self, index: usize, choice: &mut Choice, is_part: bool) -> ShownChoice {
        let (text, logprobs) = (std::mem::take(&mut choice.text), std::mem::take(&mut choice.logprobs));
        let logprobs = self.likeliest.map(|_| self.logprobs(logprobs));
        let token_ids = self.prompts.as_ref().map(|_| std::mem::take(&mut choice.tokens));
        let prompt_token_ids = self.own_prompt(index, choice);
        let (mut message, mut delta, mut shown_text) = (None, None, None);
        match (self.kind, is_part) {
            (Kind::Completion, _) => shown_text = Some(text),
            (Kind::Chat, false) => message = Some(ShownMessage { role: Some("assistant"), content: Some(text) }),
            (Kind::Chat, true) => {
                delta = Some(ShownMessage { role: None, content: Some(text).filter(|text| !text.is_empty()) });
            }
        }
        let finish_reason = choice.reason;
        ShownChoice { index, message, delta, text: shown_text, logprobs, finish_reason, token_ids, prompt_token_ids }
    }

    fn logprobs(&self, tokens: Vec<TokenLogprob>) -> ShownLogprobs {
        match self.kind {
            Kind::Chat => ShownLogprobs::Chat { content: tokens },
            Kind::Completion => ShownLogprobs::Completion {
                tokens: tokens.iter().map(|token| token.own.token.clone()).collect(),
                token_logprobs: tokens.iter().map(|token| token.own.logprob).collect(),
                text_offset: tokens.iter().map(|token| token.offset).collect(),
                top_logprobs: {
                    let named = |all: Vec<OneLogprob>| all.into_iter().map(|one| (one.token, one.logprob)).collect();
                    tokens.into_iter().map(|token| named(token.top_logprobs)).collect()
                },
            },
        }
    }

    fn json(
        &self,
        is_part: bool,
        choices: Vec<ShownChoice>,
        usage: Option<Usage>,
        prompt_token_ids: Option<&[TokenId]>,
    ) -> String {
        let object = match (self.kind, is_part) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        };
        let Self { id, created, model, fingerprint, seed, .. } = self;
        let shown = Envelope {
            id,
            object,
            created: *created,
            model: model.name(),
            system_fingerprint: fingerprint,
            seed: *seed,
            choices,
            usage,
            prompt_token_ids,
        };
        // All of it is strings and finite numbers.
        serde_json::to_string(&shown).unwrap_or_default()
    }
}

impl Choice {
    /// Notes how the text ended.
    pub(crate) fn end(&mut self, finish: &Finish) {
        self.reason = Some(match finish.reason {
            FinishReason::EndOfText | FinishReason::StopString | FinishReason::Stopped => "stop",
            FinishReason::Length | FinishReason::ContextFull => "length",
        });
        self.processed_tokens = finish.timings.prompt_tokens;
    }
}

impl Usage {
    /// Counts the tokens of texts, which come in groups of `choices` that have one prompt.
    pub(crate) fn of(texts: &[Choice], choices: usize, prompt_tokens: usize) -> Self {
        let completion_tokens = texts.iter().map(|choice| choice.new_tokens).sum();
        // The first text of a prompt processes what is new in it; the others find all of it.
        let processed: usize = texts.iter().step_by(choices.max(1)).map(|choice| choice.processed_tokens).sum();
        let prompt_tokens_details = PromptDetails { cached_tokens: prompt_tokens.saturating_sub(processed) };
        let total_tokens = prompt_tokens + completion_tokens;
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }

    pub(crate) fn new_tokens(texts: &[Choice]) -> usize {
        texts.iter().map(|choice| choice.new_tokens).sum()
    }
}
