//! Texts as JSON, in the shapes of OpenAI's API.

use crate::error::ApiError;
use crate::models::LoadedModel;
use crate::reply::{Part, ReplyReader, add};
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
    pub(crate) seed: Option<i64>,
    choices: Vec<ShownChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Of a conversation; completions, which may have several prompts, have them in each choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Default, Serialize)]
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
    tokens: Vec<TokenId>,
    /// `true` if an earlier part had the tokens of the prompt.
    has_prompt: bool,
    characters: usize,
    pub(crate) reason: Option<&'static str>,
    new_tokens: usize,
    reasoning_tokens: usize,
    processed_tokens: usize,
}

impl Answer {
    pub(crate) fn new(loaded: &LoadedModel, kind: Kind, id: &str, seed: Option<i64>, likeliest: Option<usize>) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = created.map_or(0, |time| time.as_secs());
        let (model, fingerprint) = (loaded.model.clone(), loaded.fingerprint.clone());
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
        choice.tokens.extend(piece.token.filter(|_| self.prompts.is_some()));
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
        let choice = ShownChoice { index, delta: Some(opening), ..ShownChoice::default() };
        (self.kind == Kind::Chat).then(|| self.json(true, vec![choice], None, self.chat_prompt()))
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
        if shown.is_empty() && (choice.has_tokens() || reason.is_some()) {
            let nothing = match self.kind {
                Kind::Completion => Delta::Text(String::new()),
                Kind::Chat => Delta::Message(ShownMessage::default()),
            };
            shown.push(self.delta(index, choice, nothing));
        }
        if let Some(last) = shown.last_mut() {
            last.finish_reason = reason;
        }
        shown.into_iter().map(|choice| self.json(true, vec![choice], None, None)).collect()
    }

    /// Returns a part of a text, with the tokens and log-probabilities that were not shown yet.
    fn delta(&self, index: usize, choice: &mut Choice, delta: Delta) -> ShownChoice {
        let logprobs = std::mem::take(&mut choice.logprobs);
        let logprobs = self.likeliest.map(|_| self.logprobs(logprobs));
        let (token_ids, prompt_token_ids) = self.token_ids(index, choice);
        let (text, delta) = match delta {
            Delta::Text(text) => (Some(text), None),
            Delta::Message(message) => (None, Some(message)),
        };
        ShownChoice { index, delta, text, logprobs, token_ids, prompt_token_ids, ..ShownChoice::default() }
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
        self.json(true, Vec::new(), Some(usage), None)
    }

    /// Returns a whole answer.
    pub(crate) fn whole(&self, choices: &mut [Choice], usage: Usage) -> String {
        let shown = choices.iter_mut().enumerate().map(|(index, choice)| self.shown(index, choice));
        self.json(false, shown.collect(), Some(usage), self.chat_prompt())
    }

    /// Returns the tokens of the one prompt of a conversation.
    fn chat_prompt(&self) -> Option<&[TokenId]> {
        let prompts = self.prompts.as_ref().filter(|_| self.kind == Kind::Chat)?;
        prompts.first().map(Vec::as_slice)
    }

    /// Takes the tokens of a choice that were not shown yet, and, once, those of the prompt of a completion.
    fn token_ids(&self, index: usize, choice: &mut Choice) -> (Option<Vec<TokenId>>, Option<Vec<TokenId>>) {
        let Some(prompts) = &self.prompts else { return (None, None) };
        let shows_prompt = self.kind == Kind::Completion && !std::mem::replace(&mut choice.has_prompt, true);
        let prompt = prompts.get(index / self.choices.max(1)).filter(|_| shows_prompt);
        (Some(std::mem::take(&mut choice.tokens)), prompt.cloned())
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
        let (token_ids, prompt_token_ids) = self.token_ids(index, choice);
        let finish_reason = choice.reason;
        ShownChoice { index, message, delta: None, text, logprobs, finish_reason, token_ids, prompt_token_ids }
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

    /// Returns `true` if tokens, or their log-probabilities, were not shown yet.
    fn has_tokens(&self) -> bool {
        !self.logprobs.is_empty() || !self.tokens.is_empty()
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
