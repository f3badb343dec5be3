//! Functions and calls as clients send them.

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The longest name of a function: OpenAI's limit.
const LONGEST_NAME: usize = 64;

/// A tool of a request; all are functions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    #[serde(rename = "type")]
    _kind: FunctionKind,
    pub(crate) function: Function,
}

impl Tool {
    pub(crate) fn new(function: Function) -> Self {
        Self { _kind: FunctionKind::Function, function }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FunctionKind {
    Function,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// The JSON Schema of its arguments.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Calls that have to be made follow the schema in any case.
    #[serde(rename = "strict")]
    pub(crate) _strict: Option<bool>,
}

impl Function {
    /// Returns the function as chat templates show it.
    pub(super) fn shown(&self) -> Value {
        let mut shown = Map::new();
        shown.insert("name".to_owned(), self.name.as_str().into());
        shown.extend(self.description.as_deref().map(|text| ("description".to_owned(), text.into())));
        let parameters =
            self.parameters.clone().map_or_else(|| json!({"type": "object", "properties": {}}), Value::from);
        shown.insert("parameters".to_owned(), parameters);
        shown.into()
    }

    /// Returns the schema of an argument.
    pub(super) fn property(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }
}

/// Checks what is written into prompts and grammars.
pub(super) fn check(functions: &[Function]) -> Result<(), ApiError> {
    let refused = |message: String| Err(ApiError::bad(message).param("tools"));
    if functions.len() > super::MOST_TOOLS {
        return refused(format!("`tools` has {} functions; {} are possible", functions.len(), super::MOST_TOOLS));
    }
    let mut names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    names.sort_unstable();
    for name in &names {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
            let most = LONGEST_NAME;
            return refused(format!(
                "`tools`: {name:?} is not a name of up to {most} letters, digits, `_`, `-` and `.`"
            ));
        }
    }
    match names.windows(2).find_map(|pair| if let [one, same] = pair { (one == same).then_some(one) } else { None }) {
        Some(name) => refused(format!("`tools`: there are two functions `{name}`")),
        None => Ok(()),
    }
}

/// Whether a function has to be called, and which.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) enum ToolChoice {
    Auto,
    None,
    Required,
    Named(String),
}

/// A function by its name: OpenAI has the name inside `function` in conversations, and beside `type` in responses.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChosenFunction {
    #[serde(rename = "type")]
    _kind: FunctionKind,
    name: Option<String>,
    function: Option<FunctionName>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionName {
    name: String,
}

impl TryFrom<Value> for ToolChoice {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value.as_str() {
            Some("auto") => Ok(Self::Auto),
            Some("none") => Ok(Self::None),
            Some("required") => Ok(Self::Required),
            Some(other) => Err(format!("`{other}` is none of `auto`, `none`, `required` and a function")),
            None => {
                let chosen: ChosenFunction = serde_json::from_value(value).map_err(|error| error.to_string())?;
                let name = chosen.name.or(chosen.function.map(|function| function.name));
                name.map(Self::Named).ok_or_else(|| "the name of the function is missing".to_owned())
            }
        }
    }
}

/// A call in a message of the assistant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallRequest {
    id: String,
    #[serde(rename = "type")]
    _kind: FunctionKind,
    function: CalledFunction,
    /// The number of a call in a stream, which some clients keep.
    #[serde(rename = "index")]
    _index: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CalledFunction {
    name: String,
    arguments: Arguments,
}

/// Arguments of a call, which come as text. Templates want the object.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
struct Arguments(Map<String, Value>);

impl TryFrom<Value> for Arguments {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let object = match value {
            // No arguments.
            Value::String(text) if text.trim().is_empty() => return Ok(Self(Map::new())),
            Value::String(text) => serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))?,
            value => value,
        };
        if let Value::Object(object) = object { Ok(Self(object)) } else { Err("not a JSON object".to_owned()) }
    }
}

impl CallRequest {
    pub(crate) fn new(id: String, name: String, arguments: Value) -> Result<Self, String> {
        let function = CalledFunction { name, arguments: arguments.try_into()? };
        Ok(Self { id, _kind: FunctionKind::Function, function, _index: None })
    }

    /// Returns the call as templates read it.
    pub(crate) fn shown(self) -> Value {
        let CalledFunction { name, arguments } = self.function;
        json!({"id": self.id, "type": "function", "function": {"name": name, "arguments": arguments.0}})
    }
}

/// Returns calls as text, for templates that show what the assistant said, but not what it called.
pub(crate) fn function_message(content: &str, calls: &[Value]) -> String {
    let calls = calls.iter().filter_map(|call| call.get("function"));
    calls.fold(content.to_owned(), |text, call| {
        let gap = if text.is_empty() { "" } else { "\n" };
        format!("{text}{gap}<tool_call>\n{call}\n</tool_call>")
    })
}
