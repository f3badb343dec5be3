//! OpenAI's Responses: items that are thoughts, messages and calls, whole or as events.

mod request;

pub use request::ResponsesRequest;

use crate::answer::{Answer, Choice, Usage};
use crate::error::ApiError;
use crate::reply::Part;
use crate::stream::EventWriter;
use crate::tools::Call;
use serde_json::{Map, Value, json};

/// Fields of the request that the response repeats, with what they are if the request has none.
const REPEATED: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", "null"),
    ("temperature", "null"),
    ("text", r#"{"format": {"type": "text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// Writes a response: the events of a stream, and the whole that they build.
pub(crate) struct ResponseWriter {
    answer: Answer,
    id: String,
    /// Fields of the request.
    repeated: Map<String, Value>,
    /// Items that are complete.
    output: Vec<Value>,
    /// The item in progress.
    item: Option<Item>,
    /// The number of the next event.
    sequence: usize,
    status: &'static str,
    incomplete: Value,
    error: Value,
    usage: Value,
}

/// An item in progress: a text.
struct Item {
    is_message: bool,
    id: String,
    text: String,
}

impl Item {
    fn part(&self, text: &str) -> Value {
        if self.is_message {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        } else {
            json!({"type": "reasoning_text", "text": text})
        }
    }

    fn shown(&self, status: &str, content: Vec<Value>) -> Value {
        if self.is_message {
            json!({"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content})
        } else {
            json!({"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content})
        }
    }

    fn event(&self, suffix: &str) -> String {
        let name = if self.is_message { "output_text" } else { "reasoning_text" };
        format!("response.{name}.{suffix}")
    }
}

impl ResponseWriter {
    /// Starts a response that repeats fields of its request.
    pub(crate) fn new(answer: Answer, id: &str, repeated: Map<String, Value>) -> Self {
        let (output, item, sequence) = (Vec::new(), None, 0);
        let [incomplete, error, usage] = [const { Value::Null }; 3];
        let id = format!("resp_{id}");
        Self { answer, id, repeated, output, item, sequence, status: "in_progress", incomplete, error, usage }
    }

    /// Returns the response so far.
    pub(crate) fn response(&self) -> Value {
        let response = json!({
            "id": self.id, "object": "response", "created_at": self.answer.created, "status": self.status,
            "model": self.answer.model.name(), "output": self.output, "error": self.error,
            "incomplete_details": self.incomplete, "usage": self.usage, "store": false, "background": false,
            "system_fingerprint": self.answer.fingerprint, "seed": self.answer.seed,
        });
        merged(response, self.repeated.clone().into())
    }

    fn event(&mut self, kind: &str, more: Value) -> String {
        let data = merged(json!({"type": kind, "sequence_number": self.sequence}), more);
        self.sequence += 1;
        format!("event: {kind}\ndata: {data}\n\n")
    }

    fn response_event(&mut self, kind: &str) -> String {
        let response = self.response();
        self.event(kind, json!({"response": response}))
    }

    /// Adds to the text of a message or of thoughts.
    fn text(&mut self, is_message: bool, text: &str, events: &mut Vec<String>) {
        if self.item.as_ref().is_none_or(|item| item.is_message != is_message) {
            self.close(events);
            self.open(is_message, events);
        }
        let index = self.output.len();
        let Some(item) = &mut self.item else { return };
        item.text.push_str(text);
        let (kind, id) = (item.event("delta"), item.id.clone());
        let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        events.push(self.event(&kind, with_logprobs(is_message, delta)));
    }

    fn open(&mut self, is_message: bool, events: &mut Vec<String>) {
        let index = self.output.len();
        let prefix = if is_message { "msg" } else { "rs" };
        let item = Item { is_message, id: self.item_id(prefix), text: String::new() };
        let (shown, part) = (item.shown("in_progress", Vec::new()), item.part(""));
        events.push(self.event("response.output_item.added", json!({"output_index": index, "item": shown})));
        let added = json!({"item_id": item.id, "output_index": index, "content_index": 0, "part": part});
        events.push(self.event("response.content_part.added", added));
        self.item = Some(item);
    }

    /// Ends the item in progress.
    fn close(&mut self, events: &mut Vec<String>) {
        let Some(item) = self.item.take() else { return };
        let (index, part) = (self.output.len(), item.part(&item.text));
        let id = &item.id;
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": item.text});
        events.push(self.event(&item.event("done"), with_logprobs(item.is_message, done)));
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        events.push(self.event("response.content_part.done", done));
        let status = if self.incomplete.is_null() { "completed" } else { "incomplete" };
        self.add_item(item.shown(status, vec![part]), events);
    }

    fn add_item(&mut self, item: Value, events: &mut Vec<String>) {
        let index = self.output.len();
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item.clone()})));
        self.output.push(item);
    }

    fn call(&mut self, call: Call, number: usize, events: &mut Vec<String>) {
        self.close(events);
        let (index, id) = (self.output.len(), self.item_id("fc"));
        let call_id = self.answer.call_id(0, number);
        let item = |status: &str, arguments: &str| {
            json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": call.name,
                "arguments": arguments,
            })
        };
        let added = json!({"output_index": index, "item": item("in_progress", "")});
        events.push(self.event("response.output_item.added", added));
        let (name, arguments) = (&call.name, &call.arguments);
        let delta = json!({"item_id": id, "output_index": index, "delta": arguments});
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
        events.push(self.event("response.function_call_arguments.done", done));
        self.add_item(item("completed", &call.arguments), events);
    }

    fn item_id(&self, prefix: &str) -> String {
        let request = self.id.strip_prefix("resp_").unwrap_or(&self.id);
        format!("{prefix}_{request}_{}", self.output.len())
    }
}

/// Returns the fields of a valid request that the response repeats.
pub(crate) fn repeated(body: &[u8]) -> Map<String, Value> {
    let mut asked: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let field = |(name, default): (&str, &str)| {
        let asked = asked.remove(name).filter(|value| !value.is_null());
        (name.to_owned(), asked.or_else(|| serde_json::from_str(default).ok()).unwrap_or_default())
    };
    REPEATED.into_iter().map(field).collect()
}

/// Returns an object with the fields of another.
pub(crate) fn merged(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// Adds the log-probabilities that events of messages have to have; there are none.
fn with_logprobs(is_message: bool, event: Value) -> Value {
    if is_message { merged(event, json!({"logprobs": []})) } else { event }
}

impl EventWriter for ResponseWriter {
    fn answer(&self) -> &Answer {
        &self.answer
    }

    fn opening(&mut self, _texts: usize) -> Vec<String> {
        vec![self.response_event("response.created"), self.response_event("response.in_progress")]
    }

    fn parts(&mut self, _index: usize, choice: &mut Choice) -> Vec<String> {
        let mut events = Vec::new();
        for part in std::mem::take(&mut choice.parts) {
            match part {
                Part::Content(text) => self.text(true, &text, &mut events),
                Part::Reasoning(text) => self.text(false, &text, &mut events),
                Part::Call(call) => {
                    self.call(call, choice.calls, &mut events);
                    choice.calls += 1;
                }
            }
        }
        if choice.reason == Some("length") {
            self.incomplete = json!({"reason": "max_output_tokens"});
        }
        events
    }

    fn closing(&mut self, usage: Usage) -> Vec<String> {
        let mut events = Vec::new();
        if self.output.is_empty() && self.item.is_none() {
            self.open(true, &mut events);
        }
        self.close(&mut events);
        self.usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        });
        self.status = if self.incomplete.is_null() { "completed" } else { "incomplete" };
        let kind = format!("response.{}", self.status);
        events.push(self.response_event(&kind));
        events
    }

    fn failure(&mut self, error: &ApiError) -> Vec<String> {
        self.status = "failed";
        self.error = json!({"code": error.code.unwrap_or("server_error"), "message": error.message});
        vec![self.response_event("response.failed")]
    }
}
