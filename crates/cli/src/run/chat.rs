//! A conversation in the terminal.

use super::interrupt;
use super::writer::Writer;
use crate::hint;
use anyhow::{Context, Result};
use ptero::{Chat, FinishReason, Text};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "/clear           forget the conversation
/system TEXT     set the system message and start over
/retry           another reply to the last message
/exit            leave, as does Ctrl-D
A message may have several lines: end all but the last with a backslash. Ctrl-C ends a reply.";

/// Holds a conversation until the user leaves.
pub(crate) fn run(writer: &mut Writer<'_>, mut chat: Chat, mut first: Option<String>) -> Result<ExitCode> {
    writer.listen(chat.stop_flag())?;
    writer.introduce(chat.options(), 0)?;
    let mut lines = Lines::new()?;
    if lines.is_person() {
        writer.note("/help lists commands, Ctrl-D ends");
    }
    loop {
        let result = if let Some(message) = first.take() {
            reply(writer, &mut chat, |chat| chat.send(&message))
        } else {
            let line = match lines.message() {
                Ok(line) if line.trim().is_empty() => continue,
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(interrupt::EXIT_CODE.into()),
                Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
                Err(error) => return Err(error).context("could not read the next message"),
            };
            writer.restart_clock();
            match command(&line) {
                Some(("/exit" | "/quit" | "/bye", _)) => return Ok(ExitCode::SUCCESS),
                Some((name, argument)) => run_command(writer, &mut chat, name, argument),
                None => reply(writer, &mut chat, |chat| chat.send(&line)),
            }
        };
        match result {
            // A person goes on after stopping a reply; a script ends with it.
            Ok(Some(FinishReason::Stopped)) if !lines.is_person() => return Ok(interrupt::EXIT_CODE.into()),
            Ok(_) => {}
            // A person can try again; a script ends with the error.
            Err(error) if lines.is_person() && !hint::is_broken_pipe(&error) => hint::print(&error),
            Err(error) => return Err(error),
        }
    }
}

/// Splits a line that begins with a slash into a command and its argument.
fn command(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    name.starts_with('/').then_some((name, argument.trim()))
}

fn run_command(writer: &mut Writer<'_>, chat: &mut Chat, name: &str, argument: &str) -> Result<Option<FinishReason>> {
    match name {
        "/clear" | "/reset" => chat.clear(),
        "/system" => chat.restart(argument),
        "/retry" => return reply(writer, chat, Chat::retry),
        "/help" | "/?" => writer.note(HELP),
        _ => writer.note(&format!("no command {name}\n{HELP}")),
    }
    Ok(None)
}

/// Prints a reply and returns why it ended.
fn reply(
    writer: &mut Writer<'_>,
    chat: &mut Chat,
    start: impl FnOnce(&mut Chat) -> ptero::Result<Text<'_>>,
) -> Result<Option<FinishReason>> {
    let (options, forgotten) = (*chat.options(), chat.forgotten());
    let reason = writer.write(&options, None, start(chat)?)?.reason;
    if !std::io::stdout().is_terminal() {
        // On a terminal, the lines that the user types separate replies.
        writeln!(std::io::stdout())?;
    }
    let forgotten = chat.forgotten() - forgotten;
    if forgotten > 0 {
        writer.note(&format!("the {forgotten} oldest messages do not fit the context and were forgotten"));
    }
    if reason == FinishReason::ContextFull {
        writer.note("the reply was cut; the next one forgets the oldest messages");
    }
    Ok(Some(reason))
}

/// Reads lines from a terminal, with editing and history, or from a pipe.
enum Lines {
    Person(Box<DefaultEditor>),
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn new() -> Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Person(Box::new(DefaultEditor::new().context("could not open the terminal")?)));
        }
        Ok(Self::Pipe(std::io::stdin().lines()))
    }

    fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// Reads the next message: lines up to one that does not end with a backslash.
    fn message(&mut self) -> Result<String, ReadlineError> {
        let mut message = String::new();
        loop {
            match self.line(if message.is_empty() { "> " } else { "… " }) {
                Ok(line) => {
                    message += line.strip_suffix('\\').unwrap_or(&line);
                    if !line.ends_with('\\') {
                        return Ok(message);
                    }
                    message.push('\n');
                }
                // Ctrl-C discards an incomplete message, the end of the input completes it.
                Err(ReadlineError::Interrupted) if !message.is_empty() => message.clear(),
                Err(ReadlineError::Eof) if !message.is_empty() => return Ok(message),
                Err(error) => return Err(error),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<String, ReadlineError> {
        match self {
            Self::Person(editor) => {
                let line = editor.readline(prompt)?;
                // The conversation goes on without a history.
                let _ = editor.add_history_entry(&line);
                Ok(line)
            }
            Self::Pipe(lines) => Ok(lines.next().ok_or(ReadlineError::Eof)??),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_with_a_slash() {
        assert_eq!(command("  hello /exit"), None);
        assert_eq!(command(" /bye "), Some(("/bye", "")));
        assert_eq!(command("/system  Be brief. "), Some(("/system", "Be brief.")));
    }
}
