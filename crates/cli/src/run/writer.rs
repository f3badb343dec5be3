//! Prints a text as it is made, and what is shown beside it.

use super::RunArgs;
use super::interrupt::Interrupt;
use super::report::{Report, Start};
use anyhow::Result;
use ptero::{Finish, Model, Piece, SampleOptions, StopFlag, Text};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How a text is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The text and nothing else.
    Plain,
    /// The text, without control characters.
    Terminal,
    /// One JSON object per line.
    Json,
}

/// Prints texts of one model.
pub(crate) struct Writer<'a> {
    pub(crate) args: &'a RunArgs,
    model: &'a Model,
    form: Form,
    interrupt: Option<Interrupt>,
    /// Shown once.
    load: Option<Duration>,
    /// When the user began to wait.
    since: Instant,
    is_introduced: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(args: &'a RunArgs, model: &'a Model, load: Duration) -> Self {
        let form = match args.json {
            true => Form::Json,
            false if io::stdout().is_terminal() => Form::Terminal,
            false => Form::Plain,
        };
        let (interrupt, is_introduced) = (None, false);
        Self { args, model, form, interrupt, load: Some(load), since: Instant::now(), is_introduced }
    }

    /// Starts the clock at the start of the command, without the time that the prompt took to arrive.
    pub(crate) fn loaded(&mut self) {
        let load = self.load.unwrap_or_default();
        self.since = Instant::now().checked_sub(load).unwrap_or(self.since);
    }

    /// Starts the clock now.
    pub(crate) fn restart_clock(&mut self) {
        self.since = Instant::now();
    }

    /// From now on, Ctrl-C stops the text.
    pub(crate) fn listen(&mut self, flag: StopFlag) -> Result<()> {
        self.interrupt = Some(Interrupt::listen(flag)?);
        Ok(())
    }

    /// Shows what tokens will be sampled with (S1.5), once.
    pub(crate) fn introduce(&mut self, options: &SampleOptions, prompt_tokens: usize) -> Result<()> {
        if std::mem::replace(&mut self.is_introduced, true) {
            return Ok(());
        }
        let start = Start { model: self.model, options, prompt_tokens };
        match self.form {
            Form::Json => writeln!(io::stdout(), "{}", start.json())?,
            Form::Plain | Form::Terminal => self.note(&start.to_string()),
        }
        Ok(())
    }

    /// Prints a text as it is made, after its prompt if a person would otherwise read half a text.
    pub(crate) fn write(&mut self, options: &SampleOptions, echo: Option<&str>, mut text: Text<'_>) -> Result<Finish> {
        self.introduce(options, text.prompt_tokens())?;
        if let Some(prompt) = echo.filter(|_| self.form == Form::Terminal && !self.args.quiet) {
            let _ = write!(anstream::stderr(), "\x1b[2m{prompt}\x1b[0m");
        }
        let mut first_token = None;
        let mut print = || -> Result<()> {
            let mut out = io::stdout().lock();
            for piece in &mut text {
                first_token.get_or_insert_with(|| self.since.elapsed());
                show(&mut out, self.form, &piece?)?;
            }
            Ok(())
        };
        match &self.interrupt {
            Some(interrupt) => interrupt.during(print)?,
            None => print()?,
        }
        let finish = text.finish();
        if self.form == Form::Terminal && !finish.text.ends_with('\n') {
            writeln!(io::stdout())?;
        }
        let report = Report { finish: &finish, load: self.load.take(), first_token };
        match self.form {
            Form::Json => writeln!(io::stdout(), "{}", report.json())?,
            Form::Plain | Form::Terminal => self.note(&report.to_string()),
        }
        Ok(finish)
    }

    /// Shows a line on standard error, dimmed, unless the user wants none.
    pub(crate) fn note(&self, text: &str) {
        if !self.args.quiet {
            // The text goes on even if nobody reads standard error.
            let _ = writeln!(anstream::stderr(), "\x1b[2m{text}\x1b[0m");
        }
    }
}

fn show(out: &mut impl Write, form: Form, piece: &Piece) -> io::Result<()> {
    let Piece { token, text } = piece;
    match (form, token) {
        (Form::Plain, _) => out.write_all(text.as_bytes())?,
        (Form::Terminal, _) => out.write_all(without_control_characters(text).as_bytes())?,
        (Form::Json, Some(id)) => writeln!(out, "{}", json!({"event": "token", "id": id, "text": text}))?,
        (Form::Json, None) => writeln!(out, "{}", json!({"event": "text", "text": text}))?,
    }
    out.flush()
}

/// Replaces what a terminal would obey: the model may be anybody's, and so are the escape sequences that it may write.
fn without_control_characters(text: &str) -> String {
    let is_obeyed = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    text.chars().map(|letter| if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_model_writes() {
        assert_eq!(without_control_characters("a\x1b[2Jb\r\u{9b}31m\tc\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}31m\tc\n");
    }

    #[test]
    fn json_has_an_event_per_token_and_one_for_the_rest() {
        let mut out = Vec::new();
        show(&mut out, Form::Json, &Piece { token: Some(17), text: " 1".to_owned() }).unwrap();
        show(&mut out, Form::Json, &Piece { token: None, text: "7".to_owned() }).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [json!({"event": "token", "id": 17, "text": " 1"}), json!({"event": "text", "text": "7"})]);
    }

    #[test]
    fn a_reader_that_left_is_an_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(show(&mut Gone, Form::Plain, &Piece { token: None, text: "a".to_owned() }).is_err());
    }
}
