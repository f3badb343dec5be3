//! What may be asked of `/v1/responses`.

use crate::error::ApiError;
use crate::models::LoadedModel;
use crate::prepare::{ChatPrompt, Prepared, TextRequest, shows_calls};
use crate::request::{ChatMessage, Content, Effort, NamedSchema, ResponseFormat, Role, Shared};
use crate::tools::{CallRequest, Function, Tool, ToolChoice};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A request for a response.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponsesRequest {
    model: Option<String>,
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    exact_tail: Option<bool>,
    seed: Option<i64>,
    text: Option<TextOptions>,
    stream: Option<bool>,
    tools: Option<Vec<FlatTool>>,
    tool_choice: Option<ToolChoice>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    enable_thinking: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Nothing is stored, so there is none.
    previous_response_id: Option<String>,
    #[serde(rename = "store")]
    _store: Option<bool>,
    #[serde(rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
    #[serde(rename = "user")]
    _user: Option<String>,
    #[serde(rename = "truncation")]
    _truncation: Option<Truncation>,
}

/// Conversations that are too long are refused, never cut.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Truncation {
    Disabled,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<TextFormat>,
}

/// Same as [`ResponseFormat`], with the schema beside its type.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum TextFormat {
    Text {},
    JsonObject {},
    JsonSchema(NamedSchema),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<Effort>,
}

/// A function, with its fields beside its type.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FlatTool {
    Function(Function),
}

/// What the model replies to: a text of the user, or items.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
struct Input(Vec<Item>);

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Item {
    Message {
        role: Role,
        content: Content,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: Value,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    FunctionCallOutput {
        call_id: String,
        output: Content,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    Reasoning {
        content: Option<Content>,
        #[serde(rename = "summary")]
        _summary: Option<Vec<Value>>,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
        /// Nothing is encrypted.
        #[serde(rename = "encrypted_content")]
        _encrypted_content: Option<()>,
    },
}

impl TryFrom<Value> for Input {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let items = match value {
            Value::String(text) => {
                let (role, content) = (Role::User, Content(text));
                return Ok(Self(vec![Item::Message { role, content, _id: None, _status: None }]));
            }
            Value::Array(items) => items,
            _ => return Err("neither a string nor a list of items".to_owned()),
        };
        let read = |(index, mut item): (usize, Value)| {
            if let Value::Object(item) = &mut item {
                item.entry("type").or_insert_with(|| "message".into());
            }
            serde_json::from_value(item).map_err(|error| format!("item {index}: {error}"))
        };
        items.into_iter().enumerate().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl Input {
    /// Returns the items as messages of a conversation: what the assistant thought, said and called is one message.
    fn messages(self) -> Result<Vec<ChatMessage>, String> {
        let mut messages: Vec<ChatMessage> = Vec::new();
        let mut thoughts: Option<String> = None;
        for item in self.0 {
            let calls = |message: &&mut ChatMessage| message.role == Role::Assistant;
            match item {
                Item::Reasoning { content, .. } => thoughts = content.map(|content| content.0),
                Item::Message { role, content, .. } => {
                    let mut message = ChatMessage::new(role, Some(content));
                    if role == Role::Assistant {
                        message.reasoning_content = thoughts.take();
                    }
                    messages.push(message);
                }
                Item::FunctionCall { call_id, name, arguments, .. } => {
                    let call = CallRequest::new(call_id, name, arguments)?;
                    match messages.last_mut().filter(calls) {
                        Some(message) => message.tool_calls.get_or_insert_default().push(call),
                        None => {
                            let mut message = ChatMessage::new(Role::Assistant, None);
                            message.reasoning_content = thoughts.take();
                            message.tool_calls = Some(vec![call]);
                            messages.push(message);
                        }
                    }
                }
                Item::FunctionCallOutput { call_id, output, .. } => {
                    let mut message = ChatMessage::new(Role::Tool, Some(output));
                    message.tool_call_id = Some(call_id);
                    messages.push(message);
                }
            }
        }
        Ok(messages)
    }
}

impl TextRequest for ResponsesRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn prepare(self, loaded: &LoadedModel) -> Result<Prepared, ApiError> {
        let model = &loaded.model;
        if self.previous_response_id.is_some() {
            let message = "`previous_response_id`: responses are not stored; send the whole conversation in `input`";
            return Err(ApiError::bad(message).param("previous_response_id"));
        }
        let bad_input = |reason: String| ApiError::bad(format!("`input`: {reason}")).param("input");
        let mut messages = self.input.messages().map_err(bad_input)?;
        if let Some(instructions) = self.instructions {
            messages.insert(0, ChatMessage::new(Role::System, Some(Content(instructions))));
        }
        if messages.is_empty() {
            return Err(bad_input("there are no messages".to_owned()));
        }
        let shows_calls = shows_calls(model);
        let messages = messages.into_iter().map(|message| message.message(shows_calls));
        let messages = messages.collect::<Result<_, _>>();
        let messages = messages.map_err(|(field, reason)| bad_input(format!("`{field}` {reason}")))?;
        let format = self.text.and_then(|text| text.format).map(|format| match format {
            TextFormat::Text {} => ResponseFormat::Text {},
            TextFormat::JsonObject {} => ResponseFormat::JsonObject {},
            TextFormat::JsonSchema(json_schema) => ResponseFormat::JsonSchema { json_schema },
        });
        let tools = self.tools.map(|tools| tools.into_iter().map(|FlatTool::Function(tool)| Tool::new(tool)).collect());
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let chat = ChatPrompt {
            messages,
            variables: self.chat_template_kwargs.unwrap_or_default(),
            is_thinking: self.enable_thinking.or(effort.map(|Effort::None| false)),
            tools: crate::tools::Tools::new(model, tools, self.tool_choice, self.parallel_tool_calls)?,
        };
        let shared = Shared {
            streams: self.stream.unwrap_or(false),
            choices: 1,
            seed: self.seed,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            exact_tail: self.exact_tail.unwrap_or(false),
            format: format.unwrap_or_default(),
            ..Shared::default()
        };
        chat.prepare(loaded, shared, self.max_output_tokens, None)
    }
}
