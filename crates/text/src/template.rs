//! Chat templates: Jinja as models ship it and Hugging Face's transformers runs it.

mod budget;
mod date;
mod python;
mod rewrite;

use crate::error::at_most;
use crate::{Error, Limits, Result, SpecialTokens};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The name of the one template.
const NAME: &str = "chat";

/// A turn of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The content: a text, or anything else that the template can read (a list of parts).
    #[serde(default)]
    pub content: serde_json::Value,
    /// Other fields of the message (`tool_calls`).
    #[serde(flatten)]
    pub more: Map<String, serde_json::Value>,
}

impl Message {
    /// A message that is a text.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.into(), more: Map::new() }
    }
}

/// The inputs of a prompt.
#[derive(Clone, Debug, Default)]
pub struct Conversation<'a> {
    /// The turns.
    pub messages: &'a [Message],
    /// `true` if the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// What else the template may read (`tools`, `documents`, `enable_thinking`); `tools` and `documents` are none
    /// unless given.
    pub variables: Map<String, serde_json::Value>,
    /// The time, in seconds since 1970 of the local clock. Without it, `strftime_now` is not defined.
    pub now: Option<i64>,
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    special: SpecialTokens,
    limits: Limits,
}

impl ChatTemplate {
    /// Reads a template; `special` are variables in it (`bos_token`).
    ///
    /// # Errors
    /// When it is longer than the limit or not a template.
    pub fn new(source: &str, special: &SpecialTokens, limits: &Limits) -> Result<Self> {
        at_most("bytes of chat template", source.len(), limits.template_bytes)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failed(&error))?);
        environment.set_fuel(Some(limits.template_steps));
        environment.set_recursion_limit(limits.template_depth);
        budget::install(&mut environment, limits);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
            },
        );
        environment.add_template_owned(NAME, rewrite::rewrite(source)?).map_err(|error| failed(&error))?;
        Ok(Self { source: source.to_owned(), environment, special: special.clone(), limits: limits.clone() })
    }

    /// The template as it was read.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// When the template fails or refuses the conversation, or does more than the limits allow.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String> {
        let mut context: Map<String, serde_json::Value> = Map::new();
        context.insert("tools".to_owned(), serde_json::Value::Null);
        context.insert("documents".to_owned(), serde_json::Value::Null);
        context.extend(self.special.iter().map(|(name, token)| (name.clone(), token.as_str().into())));
        context.extend(conversation.variables.clone());
        context.insert("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into());
        let mut values: Vec<(String, Value)> =
            context.into_iter().map(|(name, value)| (name, Value::from(Serde(value)))).collect();
        values.push(("messages".to_owned(), Value::from(Serde(conversation.messages))));
        if let Some(now) = conversation.now {
            values
                .push(("strftime_now".to_owned(), Value::from_function(move |format: &str| date::format(now, format))));
        }
        let template = self.environment.get_template(NAME).map_err(|error| failed(&error))?;
        let mut output = Bounded { text: Vec::new(), limit: self.limits.output_bytes };
        let context = Value::from_pairs(values);
        // Jinja's own code panics on some of what templates may ask for, such as an empty text backwards.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(context, &mut output).map(drop)));
        let panicked = || Error::Template { line: None, reason: "the template engine panicked".to_owned() };
        rendered.map_err(|_| panicked())?.map_err(|error| failed(&error))?;
        String::from_utf8(output.text).map_err(|_| Error::Template { line: None, reason: "not UTF-8".to_owned() })
    }
}

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A text up to a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(std::io::Error::other(format!("more than {} bytes of output", self.limit)));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The error in our words; what `raise_exception` said may be wrapped in others.
fn failed(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut reason =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return Error::Refused(message.clone());
        }
        cause = inner.source();
        if let (Some(last), None) = (cause, cause.and_then(std::error::Error::source)) {
            reason = format!("{reason}: {last}");
        }
    }
    Error::Template { line: error.line(), reason }
}

#[cfg(test)]
mod tests;
