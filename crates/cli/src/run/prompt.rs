//! Where the prompt comes from.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptero::{ChatBuilder, Model, TokenId};
use serde_json::{Map, Value};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;

/// The most bytes of a prompt; tokenizers have their own, lower limit.
const MOST_BYTES: u64 = 64 << 20;

/// What to continue.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct PromptArgs {
    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "input", "tokens"], allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// Read the prompt from a file
    #[arg(short, long, alias = "prompt_file", value_name = "FILE", conflicts_with_all = ["input", "tokens"])]
    pub file: Option<PathBuf>,

    /// `-` reads the prompt from standard input, as does a pipe without any of these
    #[arg(value_name = "-", value_parser = dash, conflicts_with = "tokens")]
    pub input: Option<String>,

    /// A prompt of token ids, separated by commas or spaces
    #[arg(long, value_name = "IDS", value_parser = ids, conflicts_with_all = ["system", "chat"])]
    pub tokens: Option<Ids>,

    /// Continue the text as it is, without the chat template
    #[arg(long, alias = "raw_prompt", conflicts_with_all = ["system", "chat"])]
    pub raw: bool,

    /// Talk with the model: a conversation in the terminal
    #[arg(long)]
    pub chat: bool,

    /// What the model is told before anything else (needs a chat template)
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// More variables for the chat template, such as '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub chat_template_kwargs: Option<Variables>,
}

/// Token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids(pub Vec<TokenId>);

/// Variables of a template.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(pub Map<String, Value>);

fn dash(text: &str) -> Result<String> {
    ensure!(text == "-", "a prompt is given with `-p`, a model with `-m`, and `-` is standard input");
    Ok(text.to_owned())
}

fn ids(text: &str) -> Result<Ids> {
    let words = text.split([',', ' ', '\n', '\t']).filter(|word| !word.is_empty());
    let id = |word: &str| word.parse().with_context(|| format!("`{word}` is not a token id"));
    Ok(Ids(words.map(id).collect::<Result<_>>()?))
}

fn object(text: &str) -> Result<Variables> {
    Ok(Variables(serde_json::from_str(text).context("a JSON object is wanted")?))
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Go on from these tokens.
    Tokens(Vec<TokenId>),
    /// Go on from a text.
    Continue(String),
    /// Begin a text.
    Begin,
    /// Answer a message.
    Reply(String),
    /// Talk, beginning with a message if there is one.
    Chat(Option<String>),
}

impl PromptArgs {
    /// Decides what to do, and reads the prompt. With nothing given on a terminal, a model with a chat template begins a
    /// conversation, any other a text.
    pub(crate) fn task(&self, model: &Model) -> Result<Task> {
        let has_template = model.has_chat_template();
        for (flag, is_given) in [("--chat", self.chat), ("--system", self.system.is_some())] {
            ensure!(
                has_template || !is_given,
                "{flag} needs a chat template, and the model has none\nhint: give one with `--chat-template FILE`, or leave {flag} out"
            );
        }
        if let Some(Ids(tokens)) = &self.tokens {
            return Ok(Task::Tokens(tokens.clone()));
        }
        let is_person = std::io::stdin().is_terminal();
        let is_dash = self.input.is_some() || self.prompt.as_deref() == Some("-");
        let text = match (&self.prompt, &self.file) {
            _ if is_dash => Some(read(std::io::stdin()).context("could not read standard input")?),
            (Some(text), _) => Some(text.clone()),
            (_, Some(path)) => {
                let file = std::fs::File::open(path).with_context(|| format!("could not read {}", path.display()))?;
                Some(read(file).with_context(|| format!("could not read {}", path.display()))?)
            }
            _ if self.chat || is_person => None,
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

    /// Begins a conversation.
    pub(crate) fn chat(&self, model: &Model) -> ChatBuilder {
        let chat = self.system.iter().fold(model.chat(), |chat, system| chat.system(system));
        let variables = self.chat_template_kwargs.iter().flat_map(|variables| &variables.0);
        variables.fold(chat, |chat, (name, value)| chat.template_variable(name, value.clone()))
    }
}

/// Reads a text, without the line break that editors and `echo` put at its end.
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
        assert_eq!(ids("1, 2 3,\n4").unwrap(), Ids(vec![1, 2, 3, 4]));
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
