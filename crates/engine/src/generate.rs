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
        for step in 1.. {
            if max_new_tokens == 0 {
                finish.reason = Reason::Length;
                break;
            }
            finish.not_given = Some(token);
            if self.is_end(token) {
                finish.reason = Reason::Eos;
                break;
            }
            finish.timings.new_tokens += 1;
            if on_token(token).is_break() {
                finish.reason = Reason::Caller;
                break;
            }
            if finish.timings.new_tokens == max_new_tokens {
                finish.reason = Reason::Length;
                break;
            }
            // The token takes the last position, so that there is none for one after it.
            if self.room() <= 1 {
                finish.reason = Reason::ContextFull;
                break;
            }
            let Some(next) = self.timed(&[token], &schedule.draw(step), &mut finish.timings.decode)? else { break };
            finish.timings.decode_steps += 1;
            token = next;
        }
        Ok(finish)
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

    fn is_end(&self, token: i64) -> bool {
        !self.ignores_ends && (self.model().eos_ids().contains(&token) || self.more_ends.contains(&token))
    }
}
