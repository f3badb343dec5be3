//! From a prompt to tokens, one by one, and why they end.

use crate::TokenId;
use crate::error::{Error, Result};
use crate::options::{SampleOptions, Schedule};
use crate::session::Session;
use ptero_sampling::log_probabilities::RowLogProbabilities;
use std::time::{Duration, Instant};

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: Reason,
    /// The seed of the first token (S1.5); `None` if the program takes no seed.
    pub seed: Option<i64>,
    /// The last token sampled, which is not part of the state yet: a prompt that continues the text starts with it.
    pub pending: Option<TokenId>,
    /// Where the time went.
    pub timings: Timings,
}

/// Where a text ends.
pub(crate) enum Ended {
    /// Before the last token sampled.
    Before(Reason),
    /// After it.
    After(Reason),
}

impl Finish {
    /// Nothing has happened yet.
    pub(crate) fn start(schedule: &Schedule, load: Duration) -> Self {
        let timings = Timings { load, ..Timings::default() };
        Self { reason: Reason::Caller, seed: schedule.seed(), pending: None, timings }
    }

    /// Counts a token that was sampled, and decides whether its text ends. `room` is what the context has left once the tokens
    /// before it are processed.
    pub(crate) fn pass(
        &mut self,
        token: TokenId,
        is_end: bool,
        is_complete: bool,
        most: usize,
        room: usize,
    ) -> Option<Ended> {
        if most == 0 {
            self.pending = None;
            return Some(Ended::Before(Reason::Length));
        }
        self.pending = Some(token);
        if is_end {
            return Some(Ended::Before(Reason::Eos));
        }
        self.timings.new_tokens += 1;
        if is_complete {
            Some(Ended::After(Reason::Eos))
        } else if self.timings.new_tokens == most {
            Some(Ended::After(Reason::Length))
        } else {
            (room <= 1).then_some(Ended::After(Reason::ContextFull))
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model sampled a token that ends texts; it is not returned.
    Eos,
    /// The text has as many tokens as were asked for.
    Length,
    /// The context has no position for another token.
    ContextFull,
    /// The session's stop flag was set.
    Stopped,
    /// The caller stopped taking tokens.
    Caller,
}

/// Where the time went, without the time that the caller takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Checking and compiling the program, once for all sessions.
    pub load: Duration,
    /// From the prompt to the first token.
    pub prefill: Duration,
    /// All decode steps.
    pub decode: Duration,
    /// Tokens of the prompt that were processed.
    pub prompt_tokens: usize,
    /// Tokens returned.
    pub new_tokens: usize,
    /// Completed decode steps.
    pub decode_steps: usize,
}

impl Timings {
    /// Returns the tokens of the prompt per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Returns the decoded tokens per second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of tokens are small")]
fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

impl Session {
    /// Continues the text so far with a prompt, and then with up to `max_new_tokens` sampled tokens, which the iterator
    /// returns one by one. Prompt and new tokens together fill the context at most. Nothing runs before the first token is
    /// asked for.
    ///
    /// # Errors
    /// When prompt or options are refused (S1.6).
    pub fn generate(
        &mut self,
        prompt: &[TokenId],
        options: &SampleOptions,
        max_new_tokens: usize,
    ) -> Result<Generation<'_>> {
        let schedule = options.schedule(self.engine())?;
        self.check_prompt(prompt)?;
        let finish = Finish::start(&schedule, self.engine().load_time());
        let prompt = Some(prompt.to_vec());
        self.forget_burst();
        Ok(Generation {
            session: self,
            schedule,
            prompt,
            max_new_tokens,
            taken: 0,
            failed: None,
            is_over: false,
            filter: None,
            finish,
        })
    }

    /// Refuses prompts that leave no room for a token, or that [`Session::prefill`] would refuse.
    ///
    /// # Errors
    /// When the prompt is refused (S1.6).
    pub fn check_prompt(&self, prompt: &[TokenId]) -> Result<()> {
        self.engine().check_prompt(prompt, self.position())?;
        self.check(prompt)
    }
}

/// The tokens of a text, sampled as they are asked for. Dropped early, it leaves the session after the last token returned.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    schedule: Schedule,
    /// Until it is processed.
    prompt: Option<Vec<TokenId>>,
    max_new_tokens: usize,
    /// Tokens of the session's burst that were returned.
    taken: usize,
    /// What ended the burst; reported after its tokens.
    failed: Option<Error>,
    is_over: bool,
    filter: Option<&'s mut dyn TokenFilter>,
    finish: Finish,
}

/// Decides which tokens a text may continue with; a grammar, for example.
pub trait TokenFilter: std::fmt::Debug {
    /// Returns the tokens that may come next: a bit for each token, from the lowest bit of the first word on.
    ///
    /// # Errors
    /// When no token may come next; the text ends with this error.
    fn allowed(&mut self) -> std::result::Result<&[u32], FilterError>;

    /// Takes the token that was drawn, which may be one that ends the text.
    ///
    /// # Errors
    /// When it is none of those that were allowed; the text ends with this error.
    fn accept(&mut self, token: TokenId) -> std::result::Result<(), FilterError>;

    /// Returns `true` if nothing can follow: the text then ends without a token that ends it.
    fn is_finished(&self) -> bool {
        false
    }
}

/// What a filter finds wrong.
pub type FilterError = Box<dyn std::error::Error + Send + Sync>;

impl<'s> Generation<'s> {
    /// Draws only tokens that a filter allows.
    ///
    /// # Errors
    /// When the program does not support it.
    pub fn with_filter(mut self, filter: &'s mut dyn TokenFilter) -> Result<Self> {
        if !self.session.engine().has_full_sampler() {
            return Err(Error::NeedsFullSampler("a grammar"));
        }
        self.filter = Some(filter);
        Ok(self)
    }

    /// Returns the log-probabilities of the last token, if they were asked for.
    pub fn log_probabilities(&self) -> Option<&RowLogProbabilities> {
        self.session.log_probabilities()
    }

    /// Returns the number of tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.as_ref().map_or(self.finish.timings.prompt_tokens, Vec::len)
    }

    /// Returns what is known so far; the seed is known from the start.
    pub fn so_far(&self) -> &Finish {
        &self.finish
    }

    /// Ends the text here, and says how it ended.
    pub fn finish(mut self) -> Finish {
        self.end();
        self.finish.clone()
    }

    /// Leaves the session after the last token returned. Later tokens of the burst are taken back.
    fn end(&mut self) {
        if !self.is_over {
            self.is_over = true;
            if self.filter.is_some() {
                // The program supports masks, or it would not have run.
                let _ = self.session.set_token_mask(None);
            }
            self.session.take_back(self.session.drawn().len().saturating_sub(self.taken));
        }
    }

    fn end_with(&mut self, reason: Reason) {
        self.finish.reason = reason;
        self.end();
    }

    /// Samples the next token that the filter allows; `None` if the session was stopped.
    fn sample(&mut self) -> Result<Option<TokenId>> {
        if let Some(filter) = &mut self.filter {
            let mask = filter.allowed().map_err(Error::Filter)?;
            self.session.set_token_mask(Some(mask))?;
        }
        let token = self.next_token()?;
        if let (Some(filter), Some(token)) = (&mut self.filter, token) {
            filter.accept(token).map_err(Error::Filter)?;
        }
        Ok(token)
    }

    /// Runs the next call, unless the last burst has tokens left.
    fn next_token(&mut self) -> Result<Option<TokenId>> {
        let start = Instant::now();
        if let Some(prompt) = self.prompt.take() {
            let token = self.session.prefill(&prompt, &self.schedule.at_step(0));
            self.finish.timings.prefill = start.elapsed();
            return match token {
                Ok(token) => {
                    self.finish.timings.prompt_tokens = prompt.len();
                    Ok(Some(token))
                }
                Err(Error::Stopped) => Ok(None),
                Err(error) => Err(error),
            };
        }
        if self.taken > 0 && self.session.stop_flag().is_set() {
            // What the burst has drawn beyond the last token returned is taken back.
            return Ok(None);
        }
        if self.taken == self.session.drawn().len() && self.failed.is_none() {
            self.decode(start);
        }
        match (self.session.drawn().get(self.taken), self.failed.take()) {
            (Some(token), failed) => {
                (self.taken, self.failed) = (self.taken + 1, failed);
                Ok(Some(*token))
            }
            (None, Some(Error::Stopped) | None) => Ok(None),
            (None, Some(error)) => Err(error),
        }
    }

    /// Runs the next burst.
    fn decode(&mut self, start: Instant) {
        let timings = &mut self.finish.timings;
        let (step, left) = (timings.new_tokens, self.max_new_tokens - timings.new_tokens);
        // The last token takes the last position, so that none is left for one after it.
        let most = left.min(self.session.room() - 1);
        let Some(token) = self.finish.pending else { return };
        self.failed = self.session.decode_burst(token, &self.schedule.at_step(step as u64), most).err();
        self.taken = 0;
        timings.decode += start.elapsed();
        timings.decode_steps += self.session.drawn().len();
    }

    /// Decides whether a token is returned, and whether the text ends with it.
    fn pass(&mut self, token: TokenId) -> Option<TokenId> {
        let ahead = self.session.drawn().len() - self.taken;
        let is_complete = self.filter.as_ref().is_some_and(|filter| filter.is_finished());
        let room = self.session.room() + ahead;
        let reason = self.finish.pass(token, self.session.is_end(token), is_complete, self.max_new_tokens, room);
        let is_part = !matches!(reason, Some(Ended::Before(_)));
        if let Some(Ended::Before(reason) | Ended::After(reason)) = reason {
            self.end_with(reason);
        }
        is_part.then_some(token)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<TokenId>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        match self.sample() {
            Ok(Some(token)) => self.pass(token).map(Ok),
            Ok(None) => {
                self.end_with(Reason::Stopped);
                None
            }
            Err(error) => {
                self.end();
                Some(Err(error))
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
