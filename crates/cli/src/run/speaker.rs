//! A model that writes: tokens in, text on stdout, and what is said beside it.

use super::RunArgs;
use super::interrupt::Interrupt;
use super::report::{End, Report, Start};
use super::stream::{Form, Stream};
use crate::model::Voice;
use anyhow::Result;
use ptero_engine::{Model, SampleOptions, Transcript};
use ptero_text::StopScanner;
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) struct Speaker<'a> {
    pub(crate) args: &'a RunArgs,
    pub(crate) voice: &'a Voice,
    name: &'a str,
    transcript: Transcript,
    options: SampleOptions,
    interrupt: Interrupt,
    /// Told once.
    load: Option<Duration>,
    /// When what the user waits for began.
    since: Instant,
}

/// A text that was written.
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) end: End,
}

impl<'a> Speaker<'a> {
    pub(crate) fn new(
        args: &'a RunArgs,
        name: &'a str,
        model: &Model,
        voice: &'a Voice,
        options: SampleOptions,
    ) -> Result<Self> {
        let mut session = model.session()?;
        session.end_also_at(&voice.ends());
        session.ignore_ends(args.length.ignore_eos);
        let interrupt = Interrupt::listen(session.stop_flag())?;
        let transcript = Transcript::new(session)?;
        Ok(Self { args, voice, name, transcript, options, interrupt, load: None, since: Instant::now() })
    }

    /// Tells how long loading took, with the first text, whose clock runs since the command began but for the time that the
    /// prompt took to come.
    pub(crate) fn loaded_in(&mut self, load: Duration) {
        self.load = Some(load);
        self.since = Instant::now().checked_sub(load).unwrap_or(self.since);
    }

    /// Refuses prompts after which nothing can be written, before anything is said.
    pub(crate) fn check(&self, prompt: &[i64]) -> Result<()> {
        Ok(self.transcript.session().check_prompt(prompt)?)
    }

    /// How many tokens a text may have, with its prompt.
    pub(crate) fn context(&self) -> usize {
        self.transcript.session().model().context()
    }

    /// Forgets the text so far.
    pub(crate) fn clear(&mut self) -> Result<()> {
        Ok(self.transcript.clear()?)
    }

    /// Shows a prompt before its continuation, to a person who would otherwise read half a text.
    pub(crate) fn echo(&self, text: &str) {
        if self.args.form() == Form::Terminal {
            self.say_beside(text, false);
        }
    }

    /// Says what tokens will be drawn with (S1.5).
    pub(crate) fn introduce(&self, prompt_tokens: usize) -> Result<()> {
        let (model, options) = (self.transcript.session().model(), &self.options);
        let start = Start { name: self.name, device: &self.args.device.device, model, options };
        match self.args.form() {
            Form::Json => writeln!(std::io::stdout(), "{}", start.json(prompt_tokens))?,
            Form::Text | Form::Terminal => self.say_beside(&start.to_string(), true),
        }
        Ok(())
    }

    /// Goes on from a text, of which the state may hold a part already. The seeds of later texts go on where this one's ended.
    pub(crate) fn say(&mut self, prompt: &[i64], most: usize) -> Result<Said> {
        let Self { args, voice, transcript, options, interrupt, since, .. } = self;
        let mut detokenizer = voice.tokenizer.as_ref().map(|tokenizer| tokenizer.detokenizer(true));
        // Some decoders treat the start of a text in their own way, and this is not it.
        for id in prompt.iter().filter_map(|token| u32::try_from(*token).ok()) {
            detokenizer.as_mut().map(|detokenizer| detokenizer.push(id));
        }
        let mut out = std::io::stdout().lock();
        let mut stream = Stream::new(&mut out, args.form(), detokenizer, StopScanner::new(&args.length.stop)?);
        let mut first_token = None;
        let most = args.length.most(most);
        let finish = interrupt.during(|| {
            transcript.generate(prompt, options, most, |token| {
                first_token.get_or_insert_with(|| since.elapsed());
                stream.push(token)
            })
        })?;
        let (text, is_stopped) = stream.finish()?;
        if args.form() == Form::Terminal && !text.ends_with('\n') {
            writeln!(out)?;
        }
        drop(out);
        let end = if is_stopped { End::Stop } else { End::of(finish.reason) };
        let drawn = u64::try_from(finish.timings.decode_steps).unwrap_or(u64::MAX).saturating_add(1);
        self.options.seed = self.options.seed.map(|seed| seed.wrapping_add_unsigned(drawn));
        let report = Report { finish: &finish, end, load: self.load.take(), first_token };
        match self.args.form() {
            Form::Json => writeln!(std::io::stdout(), "{}", report.json())?,
            Form::Text | Form::Terminal => self.say_beside(&report.to_string(), true),
        }
        Ok(Said { text, end })
    }

    /// The clock of what the user waits for starts now.
    pub(crate) fn restart_clock(&mut self) {
        self.since = Instant::now();
    }

    /// Says something on standard error, dimmed, unless nothing was to be said.
    pub(crate) fn say_beside(&self, text: &str, is_line: bool) {
        if !self.args.quiet {
            // Text must not end for want of someone to read what is beside it.
            let _ = write!(anstream::stderr(), "\x1b[2m{text}\x1b[0m{}", if is_line { "\n" } else { "" });
        }
    }
}
