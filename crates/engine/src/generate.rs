//! From a prompt to a text.

use crate::error::{Error, Result};
use crate::options::SampleOptions;
use crate::session::Session;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: Reason,
    /// The seed of the first token (S1.5); `None` where the program takes none.
    pub seed: Option<i64>,
    /// The last token drawn, which is not part of the state yet: a prompt that continues the text starts with it.
    pub not_given: Option<i64>,
    /// What it took.
    pub timings: Timings,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model drew a token that ends texts; it was not passed on.
    Eos,
    /// There are as many tokens as were asked for.
    Length,
    /// There is no position for another token.
    ContextFull,
    /// The session's flag was set.
    Stopped,
    /// Whoever got the tokens wanted no more.
    Caller,
}

/// Where the time went. Whoever got the tokens is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Checking and compiling the program, once for all sessions.
    pub load: Duration,
    /// From the prompt to the first token.
    pub prefill: Duration,
    /// All steps of decoding.
    pub decode: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were passed on.
    pub new_tokens: usize,
    /// Steps of decoding that were completed.
    pub decode_steps: usize,
}

impl Timings {
    /// Tokens of the prompt per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Tokens per second of decoding.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of tokens are small")]
fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

impl Session {
    /// Continues the text so far with a prompt, and then with up to `max_new_tokens` tokens, each of which `on_token` gets as
    /// soon as it is drawn. Prompt and new tokens together fill the context at most.
    ///
    /// # Errors
    /// For prompts and options that are refused (S1.6), before anything happens; and when a call fails.
    pub fn generate(
        &mut self,
        prompt: &[i64],
        options: &SampleOptions,
        max_new_tokens: usize,
        mut on_token: impl FnMut(i64) -> ControlFlow<()>,
    ) -> Result<Finish> {
        let schedule = options.schedule(self.model())?;
        self.check_prompt(prompt)?;
        let timings = Timings { load: self.model().load_time(), ..Timings::default() };
        let mut finish = Finish { reason: Reason::Stopped, seed: schedule.seed(), not_given: None, timings };
        let Some(mut token) = self.timed(prompt, &schedule.draw(0), &mut finish.timings.prefill)? else {
            return Ok(finish);
        };
        finish.timings.prompt_tokens = prompt.len();
        if max_new_tokens == 0 {
            finish.reason = Reason::Length;
            return Ok(finish);
        }
        if let Some(reason) = self.pass_on((token, 0), &mut finish, max_new_tokens, &mut on_token) {
            finish.reason = reason;
            return Ok(finish);
        }
        loop {
            let (step, left) = (finish.timings.new_tokens, max_new_tokens - finish.timings.new_tokens);
            // The last token takes the last position, so that there is none for one after it.
            let most = left.min(self.room() - 1);
            let start = Instant::now();
            let run = self.decode_burst(token, &schedule.draw(step as u64), most);
            finish.timings.decode += start.elapsed();
            finish.timings.decode_steps += self.burst().len();
            for at in 0..self.burst().len() {
                token = self.burst().get(at).copied().unwrap_or(token);
                let ahead = self.burst().len() - at - 1;
                if let Some(reason) = self.pass_on((token, ahead), &mut finish, max_new_tokens, &mut on_token) {
                    self.take_back(ahead);
                    finish.reason = reason;
                    return Ok(finish);
                }
            }
            match run {
                Ok(()) => {}
                Err(Error::Stopped) => return Ok(finish),
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes a token on, and says why the text ends with it, if it does. The session may be some steps ahead of it.
    fn pass_on(
        &self,
        (token, ahead): (i64, usize),
        finish: &mut Finish,
        max_new_tokens: usize,
        on_token: &mut impl FnMut(i64) -> ControlFlow<()>,
    ) -> Option<Reason> {
        finish.not_given = Some(token);
        if self.ends.contains(&token) {
            return Some(Reason::Eos);
        }
        finish.timings.new_tokens += 1;
        if on_token(token).is_break() {
            return Some(Reason::Caller);
        }
        if finish.timings.new_tokens == max_new_tokens {
            return Some(Reason::Length);
        }
        (self.room() + ahead <= 1).then_some(Reason::ContextFull)
    }

    /// Refuses prompts after which nothing can be generated, as [`Session::generate`] does.
    ///
    /// # Errors
    /// When the prompt is empty, has a token that is none, or leaves no room (S1.6).
    pub fn check_prompt(&self, prompt: &[i64]) -> Result<()> {
        match self.check(prompt) {
            Ok(()) if prompt.len() < self.room() => Ok(()),
            Ok(()) | Err(Error::ContextFull { .. }) => {
                let (position, context) = (self.position(), self.model().context());
                Err(Error::NoRoom { prompt: prompt.len(), position, context })
            }
            Err(error) => Err(error),
        }
    }

    /// Gives tokens and draws the next; `None` if the session was stopped.
    fn timed(&mut self, tokens: &[i64], draw: &crate::Draw, time: &mut Duration) -> Result<Option<i64>> {
        let start = Instant::now();
        let token = self.prefill(tokens, draw);
        *time += start.elapsed();
        match token {
            Ok(token) => Ok(Some(token)),
            Err(Error::Stopped) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
