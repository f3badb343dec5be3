//! Texts as JSON, in the shapes of OpenAI's API.

use crate::error::ApiError;
use crate::reply::{Part, ReplyReader, add};
use crate::server::App;
use ptero::{Finish, FinishReason, Model, Piece, RowLogProbabilities, TextEvent, TokenId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What is put where a log-probability is not a number of JSON.
const IMPOSSIBLE: f32 = -9999.0;
/// Characters of the id of a call. Mistral's template wants exactly these.
const CALL_ID_LENGTH: usize = 9;
const CALL_ID_CHARACTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

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
    pub(crate) created: u64,
    pub(crate) model: Model,
    pub(crate) fingerprint: String,
    pub(crate) seed: Option<i64>,
    /// The number of likeliest tokens to show with each token, if any are asked for.
    likeliest: Option<usize>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    pub(crate) seed: Option<i64>,
    choices: Vec<ShownChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
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
}

/// A message, or what is new in one.
#[derive(Default, Serialize)]
struct ShownMessage {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// `null` in a message that has calls only; left out in a part that has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ShownCall>,
}

/// A call, or a piece of one: first its name, then its arguments.
#[derive(Serialize)]
struct ShownCall {
    /// In a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: ShownFunction,
}

#[derive(Serialize)]
struct ShownFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
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
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
}

/// A text as far as it is generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Finds thoughts and calls in the text, if there can be any.
    reader: Option<ReplyReader>,
    /// Not shown yet.
    pub(crate) parts: Vec<Part>,
    has_calls: bool,
    /// Calls that were shown.
    pub(crate) calls: usize,
    logprobs: Vec<TokenLogprob>,
    characters: usize,
    pub(crate) reason: Option<&'static str>,
    new_tokens: usize,
    reasoning_tokens: usize,
    processed_tokens: usize,
}

impl Answer {
    pub(crate) fn new(app: &App, kind: Kind, id: &str, seed: Option<i64>, likeliest: Option<usize>) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = created.map_or(0, |time| time.as_secs());
        let (model, fingerprint) = (app.config.model.clone(), app.fingerprint.clone());
        Self { kind, id: format!("{prefix}-{id}"), created, model, fingerprint, seed, likeliest }
    }

    /// Takes what happened to a text. Returns `true` if it has ended.
    pub(crate) fn take(&self, choice: Option<&mut Choice>, event: TextEvent) -> Result<bool, ApiError> {
        let choice = choice.ok_or_else(ApiError::internal)?;
        match event {
            TextEvent::Piece(piece) => self.add(choice, piece).map(|()| false),
            TextEvent::End(finish) => {
                choice.end(&finish);
                Ok(true)
            }
            TextEvent::Failed(error) => Err(error.into()),
        }
    }

    /// Adds a piece to its text.
    fn add(&self, choice: &mut Choice, piece: Piece) -> Result<(), ApiError> {
        choice.new_tokens += usize::from(piece.token.is_some());
        if let (Some(token), Some(row), Some(count)) = (piece.token, piece.log_probabilities, self.likeliest) {
            choice.logprobs.push(self.token_logprob(token, &row, count, choice.characters)?);
        }
        choice.characters += piece.text.chars().count();
        choice.read(&piece.text, piece.token.is_some());
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
        let content = Some(Some(String::new()));
        let opening = ShownMessage { role: Some("assistant"), content, ..ShownMessage::default() };
        let choice =
            ShownChoice { index, message: None, delta: Some(opening), text: None, logprobs: None, finish_reason: None };
        (self.kind == Kind::Chat).then(|| self.json(true, vec![choice], None))
    }

    /// Returns what is new in a text, if anything is, in the order in which it came.
    pub(crate) fn parts(&self, index: usize, choice: &mut Choice) -> Vec<String> {
        let reason = choice.reason.take();
        let mut shown = Vec::new();
        for part in std::mem::take(&mut choice.parts) {
            // A call is announced, and then made.
            let deltas = match (self.kind, part) {
                (Kind::Completion, part) => vec![Delta::Text(part.into_text())],
                (Kind::Chat, Part::Content(text)) => {
                    vec![Delta::Message(ShownMessage { content: Some(Some(text)), ..ShownMessage::default() })]
                }
                (Kind::Chat, Part::Reasoning(text)) => {
                    vec![Delta::Message(ShownMessage { reasoning_content: Some(text), ..ShownMessage::default() })]
                }
                (Kind::Chat, Part::Call(call)) => {
                    let number = choice.calls;
                    choice.calls += 1;
                    let name = ShownFunction { name: Some(call.name), arguments: String::new() };
                    let arguments = ShownFunction { name: None, arguments: call.arguments };
                    let (id, kind) = (Some(self.call_id(index, number)), Some("function"));
                    let name = ShownCall { index: Some(number), id, kind, function: name };
                    let arguments = ShownCall { index: Some(number), id: None, kind: None, function: arguments };
                    [name, arguments]
                        .map(|call| Delta::Message(ShownMessage { tool_calls: vec![call], ..ShownMessage::default() }))
                        .into()
                }
            };
            shown.extend(deltas.into_iter().map(|delta| self.delta(index, choice, delta)));
        }
        if shown.is_empty() && (!choice.logprobs.is_empty() || reason.is_some()) {
            let nothing = match self.kind {
                Kind::Completion => Delta::Text(String::new()),
                Kind::Chat => Delta::Message(ShownMessage::default()),
            };
            shown.push(self.delta(index, choice, nothing));
        }
        if let Some(last) = shown.last_mut() {
            last.finish_reason = reason;
        }
        shown.into_iter().map(|choice| self.json(true, vec![choice], None)).collect()
    }

    /// Returns a part of a text, with the log-probabilities that were not shown yet.
    fn delta(&self, index: usize, choice: &mut Choice, delta: Delta) -> ShownChoice {
        let logprobs = std::mem::take(&mut choice.logprobs);
        let logprobs = self.likeliest.map(|_| self.logprobs(logprobs));
        let (text, delta) = match delta {
            Delta::Text(text) => (Some(text), None),
            Delta::Message(message) => (None, Some(message)),
        };
        ShownChoice { index, message: None, delta, text, logprobs, finish_reason: None }
    }

    /// Returns the id of a call, which no other call has.
    pub(crate) fn call_id(&self, index: usize, number: usize) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.id, index, number).hash(&mut hasher);
        let mut rest = hasher.finish();
        let mut character = || {
            let digit = usize::try_from(rest % 36).unwrap_or_default();
            rest /= 36;
            CALL_ID_CHARACTERS.get(digit).copied().map_or('0', char::from)
        };
        (0..CALL_ID_LENGTH).map(|_| character()).collect()
    }

    /// Returns the last part of a stream.
    pub(crate) fn closing(&self, usage: Usage) -> String {
        self.json(true, Vec::new(), Some(usage))
    }

    /// Returns a whole answer.
    pub(crate) fn whole(&self, choices: &mut [Choice], usage: Usage) -> String {
        let shown = choices.iter_mut().enumerate().map(|(index, choice)| self.shown(index, choice));
        self.json(false, shown.collect(), Some(usage))
    }

    /// Returns a whole text.
    fn shown(&self, index: usize, choice: &mut Choice) -> ShownChoice {
        let (parts, logprobs) = (std::mem::take(&mut choice.parts), std::mem::take(&mut choice.logprobs));
        let logprobs = self.likeliest.map(|_| self.logprobs(logprobs));
        let (mut content, mut thoughts, mut tool_calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Content(text) => content.push_str(&text),
                Part::Reasoning(text) => thoughts.push_str(&text),
                Part::Call(call) => {
                    let function = ShownFunction { name: Some(call.name), arguments: call.arguments };
                    let id = Some(self.call_id(index, tool_calls.len()));
                    tool_calls.push(ShownCall { index: None, id, kind: Some("function"), function });
                }
            }
        }
        let (mut message, mut text) = (None, None);
        match self.kind {
            Kind::Completion => text = Some(content),
            Kind::Chat => {
                let content = Some(Some(content).filter(|content| tool_calls.is_empty() || !content.is_empty()));
                let reasoning_content = Some(thoughts).filter(|thoughts| !thoughts.is_empty());
                message = Some(ShownMessage { role: Some("assistant"), content, reasoning_content, tool_calls });
            }
        }
        ShownChoice { index, message, delta: None, text, logprobs, finish_reason: choice.reason }
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

    fn json(&self, is_part: bool, choices: Vec<ShownChoice>, usage: Option<Usage>) -> String {
        let object = match (self.kind, is_part) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        };
        let Self { id, created, model, fingerprint, seed, .. } = self;
        let (model, system_fingerprint) = (model.name(), fingerprint);
        let shown = Envelope { id, object, created: *created, model, system_fingerprint, seed: *seed, choices, usage };
        // All of it is strings and finite numbers.
        serde_json::to_string(&shown).unwrap_or_default()
    }
}

/// What is new in a text.
enum Delta {
    Text(String),
    Message(ShownMessage),
}

impl Choice {
    /// Starts a text that is read by a reader.
    pub(crate) fn new(reader: Option<ReplyReader>) -> Self {
        Self { reader, ..Self::default() }
    }

    fn read(&mut self, text: &str, is_token: bool) {
        let Some(reader) = &mut self.reader else {
            return add(&mut self.parts, Part::Content(text.to_owned()));
        };
        let was_thinking = reader.is_thinking();
        let known = self.parts.len();
        reader.push(text, &mut self.parts);
        self.has_calls |= self.parts.iter().skip(known).any(|part| matches!(part, Part::Call(_)));
        self.reasoning_tokens += usize::from(is_token && (was_thinking || reader.is_thinking()));
    }

    /// Notes how the text ended.
    pub(crate) fn end(&mut self, finish: &Finish) {
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut self.parts);
            self.has_calls |= self.parts.iter().any(|part| matches!(part, Part::Call(_)));
        }
        self.reason = Some(match finish.reason {
            FinishReason::EndOfText | FinishReason::StopString | FinishReason::Stopped if self.has_calls => {
                "tool_calls"
            }
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
        let reasoning_tokens = texts.iter().map(|choice| choice.reasoning_tokens).sum();
        let completion_tokens_details = CompletionDetails { reasoning_tokens };
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details, completion_tokens_details }
    }

    pub(crate) fn new_tokens(texts: &[Choice]) -> usize {
        texts.iter().map(|choice| choice.new_tokens).sum()
    }
}
