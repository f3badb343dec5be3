//! The arguments that give the prompt.

use crate::with;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptero::{ChatBuilder, Model, TokenId};
use serde_json::{Map, Value};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;

/// The largest prompt in bytes; tokenizers have a lower limit of their own.
const MOST_BYTES: u64 = 64 << 20;

/// The prompt, or how to get it.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct PromptArgs {
    /// Prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "input", "tokens"], allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// Read the prompt from a file
    #[arg(short, long, alias = "prompt_file", value_name = "FILE", conflicts_with_all = ["input", "tokens"])]
    pub file: Option<PathBuf>,

    /// Read the prompt from standard input; the default if it is a pipe
    #[arg(value_name = "-", value_parser = dash, conflicts_with = "tokens")]
    pub input: Option<String>,

    /// Prompt as token ids, separated by commas or spaces
    #[arg(long, value_name = "IDS", value_parser = ids, conflicts_with_all = ["system", "chat"])]
    pub tokens: Option<Ids>,

    /// Continue the prompt without applying the chat template
    #[arg(long, alias = "raw_prompt", conflicts_with_all = ["system", "chat"])]
    pub raw: bool,

    /// Start a conversation in the terminal
    #[arg(long)]
    pub chat: bool,

    /// System message (needs a chat template)
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Additional variables for the chat template, such as '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Token ids that are one argument; clap would parse a `Vec` as several.
type Ids = Vec<TokenId>;

fn dash(text: &str) -> Result<String> {
    ensure!(text == "-", "a prompt is given with `-p`, a model with `-m`, and `-` is standard input");
    Ok(text.to_owned())
}

fn ids(text: &str) -> Result<Ids> {
    let words = text.split([',', ' ', '\n', '\t']).filter(|word| !word.is_empty());
    let id = |word: &str| word.parse().with_context(|| format!("`{word}` is not a token id"));
    words.map(id).collect()
}

fn object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).context("not a JSON object")
}

/// What to generate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Continue these tokens.
    Tokens(Vec<TokenId>),
    /// Continue a text.
    Continue(String),
    /// Start a text without a prompt.
    Begin,
    /// Reply to one message.
    Reply(String),
    /// Hold a conversation, which may begin with a message.
    Chat(Option<String>),
}

impl PromptArgs {
    /// Reads the prompt. Without one on a terminal, a model with a chat template starts a conversation, any other a text.
    pub(crate) fn task(&self, model: &Model) -> Result<Task> {
        let has_template = model.has_chat_template();
        for (flag, is_given) in [("--chat", self.chat), ("--system", self.system.is_some())] {
            ensure!(
                has_template || !is_given,
                "{flag} needs a chat template, and the model has none\nhint: give one with `--chat-template FILE`, or leave {flag} out"
            );
        }
        if let Some(tokens) = &self.tokens {
            return Ok(Task::Tokens(tokens.clone()));
        }
        let is_dash = self.input.is_some() || self.prompt.as_deref() == Some("-");
        let text = match (&self.prompt, &self.file) {
            (Some(text), _) if !is_dash => Some(text.clone()),
            (_, Some(path)) => {
                let text = std::fs::File::open(path).map_err(anyhow::Error::from).and_then(read);
                Some(text.with_context(|| format!("could not read {}", path.display()))?)
            }
            _ if !is_dash && (self.chat || std::io::stdin().is_terminal()) => None,
            _ => Some(read(std::io::stdin()).context("could not read standard input")?),
        };
        if text.as_ref().is_some_and(String::is_empty) {
            bail!("the prompt is empty\nhint: give one with `-p`, `-f` or standard input");
        }
        Ok(match text {
            first if self.chat => Task::Chat(first),
            Some(text) if has_template && !self.raw => Task::Reply(text),
            Some(text) => Task::Continue(text),
            None if has_template && !self.raw => Task::Chat(None),
            None => Task::Begin,
        })
    }

    /// Returns a chat with the system message and the variables of the template.
    pub(crate) fn chat(&self, model: &Model) -> ChatBuilder {
        let chat = with(model.chat(), self.system.as_deref(), ChatBuilder::system);
        let variables = self.chat_template_kwargs.iter().flatten();
        variables.fold(chat, |chat, (name, value)| chat.template_variable(name, value.clone()))
    }
}

/// Reads a text without its last line break, which editors and `echo` add.
fn read(from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST_BYTES, "it is longer than {MOST_BYTES} bytes");
    let mut text = String::from_utf8(bytes).ok().context("it is not UTF-8")?;
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.strip_suffix('\r').map_or(text.len(), str::len));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_separated_by_commas_or_spaces() {
        assert_eq!(ids("1, 2 3,\n4").unwrap(), vec![1, 2, 3, 4]);
        assert_eq!(ids("1 x").unwrap_err().to_string(), "`x` is not a token id");
    }

    #[test]
    fn one_line_break_at_the_end_is_not_part_of_a_prompt() {
        let text = |bytes: &[u8]| read(bytes).map_err(|error| error.to_string());
        assert_eq!(text(b"a\n\n").unwrap(), "a\n");
        assert_eq!(text(b"a\r\n").unwrap(), "a");
        assert_eq!(text(b"a").unwrap(), "a");
        assert_eq!(text(b"\xff").unwrap_err(), "it is not UTF-8");
    }
}
