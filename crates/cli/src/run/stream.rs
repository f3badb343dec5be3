//! Tokens become text on stdout, piece by piece, as whole characters and up to a stop string.

use anyhow::Result;
use ptero_text::{Detokenizer, StopScanner};
use serde_json::json;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// How output looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The text and nothing else.
    Text,
    /// The text, without what a terminal would obey.
    Terminal,
    /// One JSON object a line.
    Json,
}

/// One text on its way out.
pub(crate) struct Stream<'a> {
    out: &'a mut dyn Write,
    form: Form,
    /// Without one, tokens are shown as numbers.
    detokenizer: Option<Detokenizer>,
    stops: StopScanner,
    text: String,
    is_stopped: bool,
    error: Option<io::Error>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        out: &'a mut dyn Write,
        form: Form,
        detokenizer: Option<Detokenizer>,
        stops: StopScanner,
    ) -> Self {
        Self { out, form, detokenizer, stops, text: String::new(), is_stopped: false, error: None }
    }

    /// Takes a token; tells whether more are wanted.
    pub(crate) fn push(&mut self, token: i64) -> ControlFlow<()> {
        let piece = match (&mut self.detokenizer, u32::try_from(token)) {
            (Some(detokenizer), Ok(id)) => detokenizer.push(id).unwrap_or_default(),
            (Some(_), Err(_)) => String::new(),
            (None, _) if self.text.is_empty() => token.to_string(),
            (None, _) => format!(" {token}"),
        };
        let scanned = self.stops.push(&piece);
        self.is_stopped = scanned.stop.is_some();
        if let Err(error) = self.write(Some(token), &scanned.text) {
            self.error = Some(error);
            return ControlFlow::Break(());
        }
        if self.is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The text ends here: what was held back comes out. Gives all of it, and whether a stop string ended it.
    pub(crate) fn finish(mut self) -> Result<(String, bool)> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        let last = self.detokenizer.take().and_then(Detokenizer::finish).unwrap_or_default();
        let scanned = self.stops.push(&last);
        self.is_stopped = scanned.stop.is_some();
        let stops = std::mem::replace(&mut self.stops, StopScanner::new::<&str>(&[])?);
        let rest = if self.is_stopped { scanned.text } else { scanned.text + &stops.finish() };
        if !rest.is_empty() {
            self.write(None, &rest)?;
        }
        Ok((self.text, self.is_stopped))
    }

    fn write(&mut self, token: Option<i64>, text: &str) -> io::Result<()> {
        self.text.push_str(text);
        match self.form {
            Form::Text => self.out.write_all(text.as_bytes())?,
            Form::Terminal => self.out.write_all(tame(text).as_bytes())?,
            Form::Json => match token {
                Some(id) => writeln!(self.out, "{}", json!({"event": "token", "id": id, "text": text}))?,
                None => writeln!(self.out, "{}", json!({"event": "text", "text": text}))?,
            },
        }
        self.out.flush()
    }
}

/// A text that a terminal only shows: a model is somebody else's, and so are the escapes that it may write.
fn tame(text: &str) -> String {
    let is_obeyed = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    text.chars().map(|letter| if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_model_writes() {
        assert_eq!(tame("a\x1b[2Jb\r\u{9b}31m\tc\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}31m\tc\n");
    }

    fn shown(form: Form, tokens: &[i64], stop: &[&str]) -> (String, String, bool) {
        let mut out = Vec::new();
        let mut stream = Stream::new(&mut out, form, None, StopScanner::new(stop).unwrap());
        let _ = tokens.iter().try_for_each(|token| stream.push(*token));
        let (text, is_stopped) = stream.finish().unwrap();
        (String::from_utf8(out).unwrap(), text, is_stopped)
    }

    #[test]
    fn without_a_tokenizer_tokens_are_numbers() {
        assert_eq!(shown(Form::Text, &[5, 17, 80], &[]), ("5 17 80".to_owned(), "5 17 80".to_owned(), false));
    }

    #[test]
    fn a_stop_string_ends_the_text_and_is_not_shown() {
        let (out, text, is_stopped) = shown(Form::Text, &[5, 17, 80, 9], &["7 8"]);
        assert_eq!((out.as_str(), text.as_str(), is_stopped), ("5 1", "5 1", true));
    }

    #[test]
    fn what_was_held_back_for_a_stop_string_comes_out_at_the_end() {
        assert_eq!(shown(Form::Text, &[5, 17], &["7 8"]).0, "5 17");
        let (out, ..) = shown(Form::Json, &[5, 17], &["7 8"]);
        let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[1], json!({"event": "token", "id": 17, "text": " 1"}));
        assert_eq!(lines[2], json!({"event": "text", "text": "7"}));
    }

    #[test]
    fn a_reader_that_left_ends_the_text_with_its_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut gone = Gone;
        let mut stream = Stream::new(&mut gone, Form::Text, None, StopScanner::new::<&str>(&[]).unwrap());
        assert!(stream.push(5).is_break());
        assert!(stream.finish().is_err());
    }
}
