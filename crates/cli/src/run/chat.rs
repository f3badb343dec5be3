//! A conversation in the terminal.

use super::interrupt;
use super::report::End;
use super::speaker::Speaker;
use crate::hint;
use anyhow::{Context, Result, ensure};
use ptero_text::Message;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "/clear           forget the conversation
/system TEXT     tell the model something before anything else, and start over
/retry           another reply to the last message
/exit            leave, as does Ctrl-D
A message may have several lines: end all but the last with a backslash. Ctrl-C ends a reply.";

/// What a person typed.
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

/// Talks until the person leaves.
pub(crate) fn run(speaker: &mut Speaker<'_>, first: Option<String>) -> Result<ExitCode> {
    let mut talk = Talk { messages: speaker.args.prompt.opening(), speaker, is_first: first.is_some() };
    let mut lines = Lines::new()?;
    talk.speaker.introduce(0)?;
    if lines.is_person() {
        talk.speaker.say_beside("/help lists commands, Ctrl-D ends", true);
    }
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
        match talk.take(entry) {
            // A person goes on after a reply that they ended; a script ends with it.
            Ok(Some(End::Interrupted)) if !lines.is_person() => return Ok(interrupt::EXIT_CODE.into()),
            Ok(_) => {}
            // Someone who types gets another chance; a script wants to know.
            Err(error) if lines.is_person() && !has_lost_its_reader(&error) => {
                let _ = writeln!(anstream::stderr(), "\x1b[31merror\x1b[0m: {}", hint::text(&error));
            }
            Err(error) => return Err(error),
        }
        talk.is_first = false;
    }
}

fn has_lost_its_reader(error: &anyhow::Error) -> bool {
    let broken = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(broken)
}

struct Talk<'a, 'b> {
    speaker: &'a mut Speaker<'b>,
    messages: Vec<Message>,
    /// Whether the message came with the command, whose clock then runs already.
    is_first: bool,
}

impl Talk<'_, '_> {
    /// Does what was asked for; tells how the reply ended, if there was one.
    fn take(&mut self, entry: Entry) -> Result<Option<End>> {
        if !self.is_first {
            self.speaker.restart_clock();
        }
        match entry {
            Entry::Say(text) => return self.reply_to(&text).map(Some),
            Entry::Clear => self.start_over(None)?,
            Entry::System(text) => self.start_over(Some(&text))?,
            Entry::Retry => {
                self.messages.pop_if(|last| last.role == "assistant");
                ensure!(
                    self.messages.last().is_some_and(|last| last.role == "user"),
                    "there is no message to reply to"
                );
                return self.reply().map(Some);
            }
            Entry::Help => self.speaker.say_beside(HELP, true),
            Entry::Unknown(command) => self.speaker.say_beside(&format!("no command {command}\n{HELP}"), true),
            Entry::Exit => {}
        }
        Ok(None)
    }

    fn start_over(&mut self, system: Option<&str>) -> Result<()> {
        match system {
            None => self.messages.retain(|message| message.role == "system"),
            Some("") => self.messages.clear(),
            Some(system) => self.messages = vec![Message::new("system", system)],
        }
        self.speaker.clear()
    }

    fn reply_to(&mut self, text: &str) -> Result<End> {
        self.messages.push(Message::new("user", text));
        let replied = self.reply();
        if replied.is_err() {
            // What could not be answered was not said.
            self.messages.pop();
        }
        replied
    }

    fn reply(&mut self) -> Result<End> {
        let prompt = self.prompt()?;
        let said = self.speaker.say(&prompt, usize::MAX)?;
        if !std::io::stdout().is_terminal() {
            // Between replies that nobody types something between.
            writeln!(std::io::stdout())?;
        }
        self.messages.push(Message::new("assistant", &said.text));
        if said.end == End::Context {
            self.speaker.say_beside("the reply was cut; the next one forgets the oldest messages", true);
        }
        Ok(said.end)
    }

    /// The tokens of the conversation. Where it has outgrown the context, its oldest turns are forgotten.
    fn prompt(&mut self) -> Result<Vec<i64>> {
        let room = self.speaker.context().saturating_mul(3) / 4;
        // Changed only once it is known to fit.
        let mut messages = self.messages.clone();
        loop {
            let tokens = self.speaker.args.prompt.render(self.speaker.voice, &messages)?;
            let oldest = messages.iter().position(|message| message.role != "system").unwrap_or(0);
            let next = messages.iter().skip(oldest + 1).position(|message| message.role == "user");
            match next {
                Some(next) if tokens.len() > room => drop(messages.drain(oldest..=oldest + next)),
                _ if tokens.len() >= self.speaker.context() => return Ok(tokens),
                _ => {
                    let forgotten = self.messages.len() - messages.len();
                    if forgotten > 0 {
                        let note = format!("the {forgotten} oldest messages do not fit the context and were forgotten");
                        self.speaker.say_beside(&note, true);
                    }
                    self.messages = messages;
                    return Ok(tokens);
                }
            }
        }
    }
}

/// What comes next from whoever talks.
enum Next {
    Entry(String),
    Interrupted,
    End,
}

/// Lines of a person, with editing and history, or of a pipe.
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

    /// The next message: lines up to one that does not end with a backslash.
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
                // What was typed so far is given up, or was all.
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
                    // A history without this line is no reason to end.
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
