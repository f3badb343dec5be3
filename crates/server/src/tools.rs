//! Functions that a model may call, and how each family of models writes calls.

mod frame;
mod grammar;
mod parse;
mod request;

pub(crate) use frame::{Frame, Scan};
pub(crate) use request::{CallRequest, Function, Tool, ToolChoice, function_message};

use crate::error::ApiError;
use frame::Step;
use ptero::Model;
use serde_json::{Map, Value, json};

/// The most functions of a request: OpenAI's limit.
const MOST_TOOLS: usize = 128;

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3.
    Hermes,
    /// `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    Parameters,
    /// `{"name": "f", "parameters": {"a": 1}}`, and nothing else: Llama 3.
    Llama,
    /// `[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]`: Mistral.
    MistralList,
    /// `[TOOL_CALLS]f[ARGS]{"a": 1}`: Mistral since 2025.
    MistralArguments,
    /// `<|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
}

/// A row of the table of formats.
struct Row {
    format: CallFormat,
    /// What the chat templates of the format contain, all of it.
    signs: &'static [&'static str],
    /// What a call begins with; nothing, if the text has to begin with the call.
    opener: &'static str,
    /// What follows the opener.
    steps: &'static [Step],
    /// What is written after the opener before a call that is asked for.
    gap: &'static str,
    /// Special tokens that calls are written with.
    special: &'static [&'static str],
}

/// The formats; the first whose signs a template has is its format.
const FORMATS: [Row; 6] = [
    Row {
        format: CallFormat::Parameters,
        signs: &["<tool_call>", "<function="],
        opener: "<tool_call>",
        steps: &[
            Step::Space,
            Step::Literal("<function="),
            Step::Until("</function>"),
            Step::Space,
            Step::Literal("</tool_call>"),
        ],
        gap: "\n",
        special: &["<tool_call>", "</tool_call>"],
    },
    Row {
        format: CallFormat::Hermes,
        signs: &["<tool_call>"],
        opener: "<tool_call>",
        steps: &[Step::Space, Step::Literal("{"), Step::Brackets, Step::Space, Step::Literal("</tool_call>")],
        gap: "\n",
        special: &["<tool_call>", "</tool_call>"],
    },
    Row {
        format: CallFormat::MistralArguments,
        signs: &["[TOOL_CALLS]", "[ARGS]"],
        opener: "[TOOL_CALLS]",
        steps: &[Step::Until("[ARGS]"), Step::Space, Step::Literal("{"), Step::Brackets],
        gap: "",
        special: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    },
    Row {
        format: CallFormat::MistralList,
        signs: &["[TOOL_CALLS]"],
        opener: "[TOOL_CALLS]",
        steps: &[Step::Space, Step::Literal("["), Step::Brackets],
        gap: " ",
        special: &["[TOOL_CALLS]"],
    },
    Row {
        format: CallFormat::Gemma,
        signs: &["<|tool_call>"],
        opener: "<|tool_call>",
        steps: &[Step::Space, Step::Literal("call:"), Step::Until("<tool_call|>")],
        gap: "call:",
        special: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
    },
    Row {
        format: CallFormat::Llama,
        signs: &["\"parameters\": ", "<|start_header_id|>"],
        opener: "",
        steps: &[Step::Literal("{"), Step::Brackets],
        gap: "",
        special: &[],
    },
];

impl CallFormat {
    /// Returns the format of a chat template, if it has one.
    pub(crate) fn of(template: &str) -> Option<Self> {
        FORMATS.iter().find(|row| row.signs.iter().all(|sign| template.contains(sign))).map(|row| row.format)
    }

    fn row(self) -> &'static Row {
        let [first, ..] = &FORMATS;
        FORMATS.iter().find(|row| row.format == self).unwrap_or(first)
    }

    /// Returns what a call begins with.
    pub(crate) fn opener(self) -> &'static str {
        self.row().opener
    }

    fn steps(self) -> &'static [Step] {
        self.row().steps
    }
}

/// A call that a model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// The functions of a request, checked, and the format that the model calls them in.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    functions: Vec<Function>,
    pub(crate) format: CallFormat,
    /// `true` if there may be several calls.
    pub(crate) allows_several: bool,
    /// Whether, and which function, has to be called.
    forced: Option<Forced>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Forced {
    Any,
    Named(String),
}

impl Tools {
    /// Checks the functions of a request. Returns `None` if none may be called.
    pub(crate) fn new(
        model: &Model,
        tools: Option<Vec<Tool>>,
        choice: Option<ToolChoice>,
        allows_several: Option<bool>,
    ) -> Result<Option<Self>, ApiError> {
        let functions: Vec<Function> = tools.into_iter().flatten().map(|tool| tool.function).collect();
        if functions.is_empty() {
            return match choice {
                None | Some(ToolChoice::Auto | ToolChoice::None) => Ok(None),
                Some(ToolChoice::Required | ToolChoice::Named(_)) => {
                    Err(ApiError::bad("`tool_choice` needs `tools`").param("tool_choice"))
                }
            };
        }
        request::check(&functions)?;
        let format = model.chat_template().and_then(CallFormat::of);
        let format = format.ok_or_else(|| unknown_tools(model))?;
        let forced = match choice.unwrap_or(ToolChoice::Auto) {
            // The functions are not even shown.
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto => None,
            ToolChoice::Required => Some(Forced::Any),
            ToolChoice::Named(name) => {
                if !functions.iter().any(|function| function.name == name) {
                    let message = format!("`tool_choice`: there is no function `{name}` in `tools`");
                    return Err(ApiError::bad(message).param("tool_choice"));
                }
                Some(Forced::Named(name))
            }
        };
        let allows_several = allows_several.unwrap_or(true);
        Ok(Some(Self { functions, format, allows_several, forced }))
    }

    /// Adds the functions to the variables of the chat template.
    pub(crate) fn show(&self, template: &str, variables: &mut Map<String, Value>) {
        let shown: Vec<Value> = self.functions.iter().map(Function::shown).collect();
        // SmolLM3's name for them, without the envelope.
        if template.contains("xml_tools") {
            variables.insert("xml_tools".to_owned(), shown.into());
        } else {
            let tools = shown.into_iter().map(|function| json!({"type": "function", "function": function}));
            variables.insert("tools".to_owned(), tools.collect());
        }
    }

    /// Returns `true` if the model has to call a function.
    pub(crate) fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Returns what the prompt of a call that has to be made ends with.
    pub(crate) fn forced_opening(&self) -> String {
        let Row { opener, gap, .. } = self.format.row();
        format!("{opener}{gap}")
    }

    /// Returns the grammar that makes the text after [`Tools::forced_opening`] calls.
    pub(crate) fn grammar(&self) -> Result<Option<String>, ApiError> {
        let callable = |function: &&Function| match &self.forced {
            None | Some(Forced::Any) => true,
            Some(Forced::Named(name)) => function.name == *name,
        };
        let allows_several = self.allows_several && self.forced == Some(Forced::Any);
        let functions = self.functions.iter().filter(callable);
        self.is_forced().then(|| grammar::lark(self.format, functions, allows_several)).transpose()
    }

    /// Returns the special tokens that calls are written with.
    pub(crate) fn special_tokens(&self) -> &'static [&'static str] {
        self.format.row().special
    }

    /// Reads the calls in a frame. Returns `None` if it is something else.
    pub(crate) fn calls(&self, frame: &str) -> Option<Vec<Call>> {
        let body = frame.strip_prefix(self.format.opener())?;
        let calls =
            parse::calls(self.format, body, |name| self.functions.iter().find(|function| function.name == name));
        calls.filter(|calls| !calls.is_empty())
    }
}

/// Refuses functions that the model would not see.
pub(crate) fn unknown_tools(model: &Model) -> ApiError {
    let message = format!("`tools`: the chat template of `{}` knows no functions", model.name());
    ApiError::bad(message).param("tools").code("unsupported_tools")
}

#[cfg(test)]
mod tests;
