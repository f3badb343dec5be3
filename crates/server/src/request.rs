//! What may be asked. Fields that are not listed here are refused by name.

use crate::error::ApiError;
use crate::tools::{CallRequest, Tool, ToolChoice, function_message};
use ptero::{LogProbabilities, Message, TokenId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The most stop strings of a request.
const MOST_STOPS: usize = 16;
/// The most likeliest tokens per token.
const MOST_LOGPROBS: u32 = 20;

/// Reads a request.
///
/// # Errors
/// When it is not JSON, or a field is unknown or of the wrong type: the error names the field.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, message) = (error.path().to_string(), error.inner().to_string());
        // What is not known of the path is shown as a question mark, and a path of nothing as a dot.
        let path = path.trim_end_matches('?').trim_end_matches('.');
        // Serde lists all fields that it knows.
        match message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) {
            Some(name) => {
                let is_named = path == name || path.ends_with(&format!(".{name}"));
                let param = if is_named { path.to_owned() } else { format!("{path}.{name}") };
                ApiError::bad(format!("`{name}` is not a field that this server supports"))
                    .param(param.trim_start_matches('.'))
                    .code("unknown_field")
            }
            None if path.is_empty() => ApiError::bad(format!("the body is not a valid request: {message}")),
            None => ApiError::bad(format!("`{path}`: {message}")).param(path),
        }
    })?;
    json.end().map_err(|error| ApiError::bad(format!("the body is not a valid request: {error}")))?;
    Ok(parsed)
}

/// Defines a request: its own fields, and those of both kinds.
macro_rules! requests {
    ($($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$meta])* pub(crate) $field: $type,)*
            pub(crate) model: Option<String>,
            stream: Option<bool>,
            stream_options: Option<StreamOptions>,
            n: Option<usize>,
            stop: Option<Stop>,
            seed: Option<i64>,
            max_tokens: Option<usize>,
            temperature: Option<f32>,
            top_p: Option<f32>,
            top_k: Option<i64>,
            min_p: Option<f32>,
            exact_tail: Option<bool>,
            repetition_penalty: Option<f32>,
            presence_penalty: Option<f32>,
            frequency_penalty: Option<f32>,
            logit_bias: Option<BTreeMap<String, f32>>,
            response_format: Option<ResponseFormat>,
            ignore_eos: Option<bool>,
            return_token_ids: Option<bool>,
            /// Names the client's user; nothing here depends on users.
            #[serde(rename = "user")]
            _user: Option<String>,
            /// Nothing is stored.
            #[serde(rename = "store")]
            _store: Option<bool>,
            /// For what is stored.
            #[serde(rename = "metadata")]
            _metadata: Option<Map<String, Value>>,
        }

        impl $name {
            /// Takes the fields of both kinds.
            pub(crate) fn shared(&mut self) -> Shared {
                Shared {
                    streams: self.stream.unwrap_or(false),
                    includes_usage: self.stream_options.take().is_some_and(|options| options.include_usage),
                    choices: self.n.unwrap_or(1),
                    stop: self.stop.take().map(|stop| stop.0).unwrap_or_default(),
                    seed: self.seed,
                    max_tokens: self.max_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    exact_tail: self.exact_tail.unwrap_or(false),
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    logit_bias: self.logit_bias.take().unwrap_or_default(),
                    format: self.response_format.take().unwrap_or_default(),
                    ignores_eos: self.ignore_eos.unwrap_or(false),
                    returns_token_ids: self.return_token_ids.unwrap_or(false),
                }
            }
        }
    )*};
}

requests! {
    /// A request for the next message of a conversation.
    ChatRequest {
        messages: Vec<ChatMessage>,
        max_completion_tokens: Option<usize>,
        logprobs: Option<bool>,
        top_logprobs: Option<u32>,
        chat_template_kwargs: Option<Map<String, Value>>,
        enable_thinking: Option<bool>,
        reasoning_effort: Option<Effort>,
        tools: Option<Vec<Tool>>,
        tool_choice: Option<ToolChoice>,
        parallel_tool_calls: Option<bool>,
    }

    /// A request for the continuation of a text.
    CompletionRequest {
        prompt: Prompt,
        logprobs: Option<u32>,
        text_start: Option<usize>,
    }
}

/// The fields of all kinds of request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) streams: bool,
    pub(crate) includes_usage: bool,
    pub(crate) choices: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) seed: Option<i64>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) exact_tail: bool,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: BTreeMap<String, f32>,
    pub(crate) format: ResponseFormat,
    pub(crate) ignores_eos: bool,
    pub(crate) returns_token_ids: bool,
}

impl Shared {
    /// Returns the biases by token.
    pub(crate) fn biases(&self) -> Result<Vec<(TokenId, f32)>, ApiError> {
        biases(&self.logit_bias)
    }
}

/// Returns biases by token.
pub(crate) fn biases(named: &BTreeMap<String, f32>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let parsed: Option<Vec<_>> = named.iter().map(|(token, bias)| Some((token.parse().ok()?, *bias))).collect();
    parsed.ok_or_else(|| ApiError::bad("`logit_bias`: a key is not a token id").param("logit_bias"))
}

/// Refuses a start of the text that lies outside the tokens that it is in.
pub(crate) fn check_text_start(text_start: usize, tokens: usize) -> Result<(), ApiError> {
    let message = format!("`text_start` is {text_start}; there are {tokens} tokens");
    if text_start <= tokens { Ok(()) } else { Err(ApiError::bad(message).param("text_start")) }
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    /// Padding against observers of the sizes of packets; the pieces of a stream have none.
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: bool,
}

/// What the text has to be.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ResponseFormat {
    /// Anything.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// JSON that a schema allows.
    JsonSchema {
        /// The schema.
        json_schema: NamedSchema,
    },
}

impl Default for ResponseFormat {
    fn default() -> Self {
        Self::Text {}
    }
}

/// A schema with a name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedSchema {
    pub(crate) schema: Value,
    /// Names and descriptions are for models that are shown the schema; here it is followed whatever they are.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Schemas are always followed strictly.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// A stop string, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
struct Stop(Vec<String>);

impl TryFrom<Value> for Stop {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let stops = match value {
            Value::String(stop) => vec![stop],
            Value::Array(stops) => {
                let text =
                    |stop| if let Value::String(stop) = stop { Ok(stop) } else { Err("not a string".to_owned()) };
                stops.into_iter().map(text).collect::<Result<_, _>>()?
            }
            _ => return Err("neither a string nor a list of strings".to_owned()),
        };
        let is_fine = stops.len() <= MOST_STOPS && stops.iter().all(|stop| !stop.is_empty());
        if is_fine {
            Ok(Self(stops))
        } else {
            Err(format!("up to {MOST_STOPS} strings are possible, none of them empty"))
        }
    }
}

/// One or several texts, or tokens, to continue.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Prompt(pub(crate) Vec<OnePrompt>);

/// What a text continues.
#[derive(Clone, Debug)]
pub(crate) enum OnePrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

impl TryFrom<Value> for Prompt {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        const WANTED: &str = "neither a string nor tokens, nor a list of either";
        let tokens = |values: &[Value]| {
            let token = |value: &Value| value.as_u64().and_then(|token| TokenId::try_from(token).ok());
            values.iter().map(token).collect::<Option<Vec<_>>>().ok_or(WANTED)
        };
        let one = |value: Value| match value {
            Value::String(text) => Ok(OnePrompt::Text(text)),
            Value::Array(values) => Ok(OnePrompt::Tokens(tokens(&values)?)),
            _ => Err(WANTED),
        };
        match value {
            Value::Array(values) if values.first().is_some_and(|value| !value.is_number()) => {
                Ok(Self(values.into_iter().map(one).collect::<Result<_, _>>()?))
            }
            value => Ok(Self(vec![one(value)?])),
        }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    pub(crate) content: Option<Content>,
    name: Option<String>,
    /// What the assistant thought.
    pub(crate) reasoning_content: Option<String>,
    pub(crate) tool_calls: Option<Vec<CallRequest>>,
    /// The call that a tool answers.
    pub(crate) tool_call_id: Option<String>,
    /// Clients that send back what they got have it, without a value.
    #[serde(rename = "refusal")]
    _refusal: Option<()>,
}

/// Who says something.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// How much a model is to think. Templates know only whether it does.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effort {
    None,
}

/// A text, or parts that are texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Content(pub(crate) String);

impl TryFrom<Value> for Content {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        // OpenAI's Responses have other names for texts, and more about those of the assistant.
        #[derive(Deserialize)]
        #[serde(tag = "type", deny_unknown_fields)]
        enum Part {
            #[serde(rename = "text", alias = "input_text")]
            Text { text: String },
            #[serde(rename = "output_text", alias = "reasoning_text")]
            Output {
                text: String,
                #[serde(rename = "annotations")]
                _annotations: Option<Vec<Value>>,
                #[serde(rename = "logprobs")]
                _logprobs: Option<Vec<Value>>,
            },
        }
        match value {
            Value::String(text) => Ok(Self(text)),
            parts @ Value::Array(_) => {
                let parts: Vec<Part> = serde_json::from_value(parts).map_err(|error| error.to_string())?;
                let text = |(Part::Text { text } | Part::Output { text, .. })| text;
                Ok(Self(parts.into_iter().map(text).collect::<Vec<_>>().join("\n")))
            }
            _ => Err("neither a string nor a list of parts".to_owned()),
        }
    }
}

impl ChatMessage {
    /// A message of a role.
    pub(crate) fn new(role: Role, content: Option<Content>) -> Self {
        let (name, reasoning_content, tool_calls, tool_call_id) = (None, None, None, None);
        Self { role, content, name, reasoning_content, tool_calls, tool_call_id, _refusal: None }
    }

    /// Returns the message as templates read it; calls as a part of the content, unless `shows_calls`.
    pub(crate) fn message(self, shows_calls: bool) -> Result<Message, (&'static str, &'static str)> {
        let role = match self.role {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        match (self.role, &self.tool_call_id, &self.tool_calls) {
            (Role::Tool, None, _) => return Err(("tool_call_id", "is missing")),
            (Role::System | Role::Developer | Role::User | Role::Assistant, Some(_), _) => {
                return Err(("tool_call_id", "is for the role `tool`"));
            }
            (Role::System | Role::Developer | Role::User | Role::Tool, _, Some(_)) => {
                return Err(("tool_calls", "is for the role `assistant`"));
            }
            (Role::Tool, Some(_), None) | (_, None, _) => {}
        }
        let mut content = self.content.map(|content| content.0).unwrap_or_default();
        let calls: Vec<Value> = self.tool_calls.into_iter().flatten().map(CallRequest::shown).collect();
        if !shows_calls {
            content = function_message(&content, &calls);
        }
        let mut message = Message::new(role, &content);
        let texts =
            [("name", self.name), ("reasoning_content", self.reasoning_content), ("tool_call_id", self.tool_call_id)];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), Value::String(text?))));
        message.more.extend(texts);
        if shows_calls && !calls.is_empty() {
            message.more.insert("tool_calls".to_owned(), calls.into());
        }
        Ok(message)
    }
}

impl ChatRequest {
    /// Takes the conversation.
    pub(crate) fn messages(&mut self, shows_calls: bool) -> Result<Vec<Message>, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::bad("`messages` is empty").param("messages"));
        }
        let messages = std::mem::take(&mut self.messages).into_iter().enumerate();
        let named = |(index, message): (usize, ChatMessage)| {
            message.message(shows_calls).map_err(|(field, reason)| {
                let param = format!("messages[{index}].{field}");
                ApiError::bad(format!("`{param}` {reason}")).param(param)
            })
        };
        messages.map(named).collect()
    }

    /// Returns whether the model is to think, if the request says so.
    pub(crate) fn is_thinking(&self) -> Option<bool> {
        self.enable_thinking.or(self.reasoning_effort.map(|Effort::None| false))
    }

    /// Returns the most tokens of the reply.
    pub(crate) fn most_tokens(&self) -> Result<Option<usize>, ApiError> {
        match (self.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                Err(ApiError::bad("`max_tokens` and `max_completion_tokens` differ").param("max_completion_tokens"))
            }
            (old, new) => Ok(new.or(old)),
        }
    }

    /// Returns the number of likeliest tokens that are wanted with each token.
    pub(crate) fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, Some(count)) if count > 0 => {
                Err(ApiError::bad("`top_logprobs` needs `logprobs`").param("top_logprobs"))
            }
            (false, _) => Ok(None),
            (true, count) => likeliest(count.unwrap_or(0), "top_logprobs").map(Some),
        }
    }
}

impl CompletionRequest {
    /// Returns the number of likeliest tokens that are wanted with each token.
    pub(crate) fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        self.logprobs.map(|count| likeliest(count, "logprobs")).transpose()
    }
}

fn likeliest(count: u32, name: &str) -> Result<usize, ApiError> {
    let count = usize::try_from(count).ok().filter(|_| count <= MOST_LOGPROBS);
    count.ok_or_else(|| ApiError::bad(format!("`{name}` is at most {MOST_LOGPROBS}")).param(name))
}

/// Returns which log-probabilities have to be computed.
pub(crate) fn log_probabilities(likeliest: Option<usize>) -> LogProbabilities {
    if likeliest.is_some() { LogProbabilities::Model } else { LogProbabilities::None }
}
