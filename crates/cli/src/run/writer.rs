//! Prints a text while it is generated, and notes on standard error.

use super::RunArgs;
use super::interrupt::Interrupt;
use super::report::{self, Note, decimal};
use super::settings::Logprobs;
use anyhow::Result;
use ptero::{Finish, Model, Piece, SampleOptions, StopFlag, Text, TokenId};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Only the text.
    Plain,
    /// The text, without control characters.
    Terminal,
    /// One JSON object per line.
    Json,
}

/// Prints the texts of a model.
pub(crate) struct Writer<'a> {
    pub(crate) args: &'a RunArgs,
    model: &'a Model,
    form: Form,
    interrupt: Option<Interrupt>,
    /// The time to load the model; shown once.
    load: Option<Duration>,
    /// When the user started to wait.
    since: Instant,
    is_introduced: bool,
    /// The number of the text, if there are several.
    choice: Option<u32>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(args: &'a RunArgs, model: &'a Model, load: Duration) -> Self {
        let form = match args.json {
            true => Form::Json,
            false if io::stdout().is_terminal() => Form::Terminal,
            false => Form::Plain,
        };
        let (interrupt, is_introduced, choice) = (None, false, None);
        Self { args, model, form, interrupt, load: Some(load), since: Instant::now(), is_introduced, choice }
    }

    /// Starts the clock at the start of the command, without the time to read the prompt.
    pub(crate) fn loaded(&mut self) {
        let load = self.load.unwrap_or_default();
        self.since = Instant::now().checked_sub(load).unwrap_or(self.since);
    }

    /// Begins the next text; it has a number if there are several from one prompt.
    pub(crate) fn begin_choice(&mut self, number: Option<u32>) {
        (self.choice, self.is_introduced) = (number, false);
    }

    /// Starts the clock now.
    pub(crate) fn restart_clock(&mut self) {
        self.since = Instant::now();
    }

    /// Lets Ctrl-C stop the text from now on.
    pub(crate) fn listen(&mut self, flag: StopFlag) -> Result<()> {
        self.interrupt = Some(Interrupt::listen(flag)?);
        Ok(())
    }

    /// Shows the seed and the settings (S1.5), once.
    pub(crate) fn introduce(&mut self, options: &SampleOptions, prompt_tokens: usize) -> Result<()> {
        if std::mem::replace(&mut self.is_introduced, true) {
            return Ok(());
        }
        if self.choice.is_none_or(|number| number == 0) && !self.model.unfollowed().is_empty() {
            let unfollowed = self.model.unfollowed().join(", ");
            self.note(&format!("the model recommends {unfollowed}, which is not supported here"));
        }
        self.show_note(&report::start(self.model, options, prompt_tokens))
    }

    fn show_note(&self, note: &Note) -> Result<()> {
        match self.form {
            Form::Json => writeln!(io::stdout(), "{}", self.numbered(note.json.clone()))?,
            Form::Plain | Form::Terminal => self.note(&note.text),
        }
        Ok(())
    }

    /// Prints a text while it is generated; on a terminal, the prompt `echo` comes first.
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
                self.show(&mut out, &piece?)?;
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
        let load = self.load.take();
        self.show_note(&report::end(&finish, load, first_token))?;
        Ok(finish)
    }

    /// Prints a dimmed line on standard error, unless `--quiet` is given.
    pub(crate) fn note(&self, text: &str) {
        if !self.args.quiet {
            // The text goes on even if standard error is closed.
            let _ = writeln!(anstream::stderr(), "\x1b[2m{text}\x1b[0m");
        }
    }

    fn show(&self, out: &mut impl Write, piece: &Piece) -> Result<()> {
        match self.form {
            Form::Plain => out.write_all(piece.text.as_bytes())?,
            Form::Terminal => out.write_all(without_control_characters(&piece.text).as_bytes())?,
            Form::Json => writeln!(out, "{}", self.numbered(self.event(piece)?))?,
        }
        Ok(out.flush()?)
    }

    /// The event of a piece.
    fn event(&self, piece: &Piece) -> Result<Value> {
        let Piece { token, text, log_probabilities } = piece;
        let Some(id) = token else { return Ok(json!({"event": "text", "text": text})) };
        let mut event = json!({"event": "token", "id": id, "text": text});
        if let (Some(row), Some(Logprobs { count, .. })) = (log_probabilities, self.args.sampling.logprobs) {
            let shown = |&(id, logprob): &(TokenId, f32)| {
                let text = self.model.decode(&[id]).unwrap_or_default();
                json!({"id": id, "text": text, "logprob": decimal(logprob)})
            };
            let top = row.likeliest.iter().take(count).filter(|(_, logprob)| logprob.is_finite());
            event["logprob"] = decimal(row.token);
            event["top_logprobs"] = top.map(shown).collect();
        }
        Ok(event)
    }

    /// Adds the number of the text to an event, if there are several.
    fn numbered(&self, mut event: Value) -> Value {
        if let Some(number) = self.choice {
            event["choice"] = number.into();
        }
        event
    }
}

/// Replaces control characters: models are not trusted, and their text may contain escape sequences.
fn without_control_characters(text: &str) -> String {
    let is_control = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    text.chars().map(|letter| if is_control(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(without_control_characters("a\x1b[2Jb\r\u{9b}31m\tc\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}31m\tc\n");
    }
}
