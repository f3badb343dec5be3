//! A conversation in the terminal.

use super::interrupt;
use super::writer::Writer;
use crate::hint;
use anyhow::{Context, Result};
use ptero::{Chat, FinishReason};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "/clear           forget the conversation
/system TEXT     tell the model something before anything else, and start over
/retry           another reply to the last message
/exit            leave, as does Ctrl-D
A message may have several lines: end all but the last with a backslash. Ctrl-C ends a reply.";

/// What a user typed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Say(String),
    Clear,
    System(String),
    Retry,
    Help,
    Exit,
    Unknown(String),
}

impl Entry {
    fn of(line: &str) -> Self {
        let trimmed = line.trim();
        let (command, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
        match command {
            "/clear" | "/reset" => Self::Clear,
            "/system" => Self::System(rest.trim().to_owned()),
            "/retry" => Self::Retry,
            "/help" | "/?" => Self::Help,
            "/exit" | "/quit" | "/bye" => Self::Exit,
            other if other.starts_with('/') => Self::Unknown(other.to_owned()),
            _ => Self::Say(line.to_owned()),
        }
    }
}

/// Holds a conversation until the user leaves.
pub(crate) fn run(writer: &mut Writer<'_>, mut chat: Chat, first: Option<String>) -> Result<ExitCode> {
    writer.listen(chat.stop_flag())?;
    writer.introduce(chat.options(), 0)?;
    let mut lines = Lines::new()?;
    if lines.is_person() {
        writer.note("/help lists commands, Ctrl-D ends");
    }
    // The clock of a message that came with the command is running already.
    let mut is_first = first.is_some();
    let mut next = first.map(Entry::Say);
    loop {
        let entry = match next.take() {
            Some(entry) => entry,
            None => match lines.next()? {
                Next::Entry(line) if line.trim().is_empty() => continue,
                Next::Entry(line) => Entry::of(&line),
                Next::Interrupted => return Ok(interrupt::EXIT_CODE.into()),
                Next::End => return Ok(ExitCode::SUCCESS),
            },
        };
        if entry == Entry::Exit {
            return Ok(ExitCode::SUCCESS);
        }
        if !std::mem::take(&mut is_first) {
            writer.restart_clock();
        }
        match obey(writer, &mut chat, entry) {
            // A person goes on after stopping a reply; a script ends with it.
            Ok(Some(FinishReason::Stopped)) if !lines.is_person() => return Ok(interrupt::EXIT_CODE.into()),
            Ok(_) => {}
            // A person gets another chance; a script ends with the error.
            Err(error) if lines.is_person() && !is_broken_pipe(&error) => {
                let _ = writeln!(anstream::stderr(), "\x1b[31merror\x1b[0m: {}", hint::text(&error));
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Does what was typed; returns why the reply ended, if there was one.
fn obey(writer: &mut Writer<'_>, chat: &mut Chat, entry: Entry) -> Result<Option<FinishReason>> {
    let options = *chat.options();
    let forgotten = chat.forgotten();
    let reply = match entry {
        Entry::Say(text) => chat.send(&text)?,
        Entry::Retry => chat.retry()?,
        Entry::Clear => {
            chat.clear();
            return Ok(None);
        }
        Entry::System(text) => {
            chat.restart(&text);
            return Ok(None);
        }
        Entry::Help | Entry::Exit => {
            writer.note(HELP);
            return Ok(None);
        }
        Entry::Unknown(command) => {
            writer.note(&format!("no command {command}\n{HELP}"));
            return Ok(None);
        }
    };
    let reason = writer.write(&options, None, reply)?.reason;
    if !std::io::stdout().is_terminal() {
        // Replies are separated by what a person types, or else by a line break.
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

/// What the user typed next.
enum Next {
    Entry(String),
    Interrupted,
    End,
}

/// Lines of a terminal, with editing and history, or of a pipe.
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
    fn next(&mut self) -> Result<Next> {
        let mut message = String::new();
        loop {
            match self.line(if message.is_empty() { "> " } else { "… " })? {
                Next::Entry(line) => match line.strip_suffix('\\') {
                    Some(line) => {
                        message.push_str(line);
                        message.push('\n');
                    }
                    None => {
                        message.push_str(&line);
                        return Ok(Next::Entry(message));
                    }
                },
                // The message so far is discarded, or complete.
                Next::Interrupted if !message.is_empty() => message.clear(),
                Next::End if !message.is_empty() => return Ok(Next::Entry(message)),
                other => return Ok(other),
            }
        }
    }

    fn line(&mut self, sign: &str) -> Result<Next> {
        match self {
            Self::Person(editor) => match editor.readline(sign) {
                Ok(line) => {
                    // The history is a convenience.
                    let _ = editor.add_history_entry(&line);
                    Ok(Next::Entry(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Next::Interrupted),
                Err(ReadlineError::Eof) => Ok(Next::End),
                Err(error) => Err(error).context("could not read from the terminal"),
            },
            Self::Pipe(lines) => {
                let line = lines.next().transpose().context("could not read standard input")?;
                Ok(line.map_or(Next::End, Next::Entry))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_with_a_slash_and_everything_else_is_said() {
        assert_eq!(Entry::of("  hello /exit"), Entry::Say("  hello /exit".to_owned()));
        assert_eq!(Entry::of(" /bye "), Entry::Exit);
        assert_eq!(Entry::of("/system  Be brief. "), Entry::System("Be brief.".to_owned()));
        assert_eq!(Entry::of("/rety"), Entry::Unknown("/rety".to_owned()));
    }
}
