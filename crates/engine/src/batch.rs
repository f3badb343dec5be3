//! Texts that are generated together: they join and leave between two steps, and each gets the tokens that it would get alone.
//!
//! A step first processes a piece of the prompts that are not processed yet, oldest text first, and then decodes a token of
//! every text that has one. So a prompt of any length delays the other texts by a piece at a time.

mod prefixes;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generate::{Ended, Finish, Reason, TokenFilter};
use crate::options::{SampleOptions, Schedule};
use crate::session::{Session, StopFlag};
use crate::together::{DecodeLane, decode_together};
use prefixes::{Prefixes, usable_prefix};
use ptero_sampling::log_probabilities::RowLogProbabilities;
use std::time::Instant;

/// How much a [`Batch`] does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most texts at once, at least 1.
    pub lanes: usize,
    /// Tokens of prompts per step, at least 1.
    pub chunk: usize,
    /// The most bytes of state that texts may need, at the lengths they may reach. A text that is alone may need more.
    pub state_bytes: u64,
    /// The most bytes of state that are kept for prompts that begin like an earlier text; 0 keeps none.
    pub prefix_bytes: u64,
}

/// A text to generate.
#[derive(Debug)]
pub struct BatchText {
    /// The tokens that it continues.
    pub prompt: Vec<TokenId>,
    /// How its tokens are sampled.
    pub options: SampleOptions,
    /// The most tokens that it gets.
    pub max_new_tokens: usize,
    /// Tokens that end it, in addition to the program's own.
    pub more_ends: Vec<TokenId>,
    /// `true` if it continues after tokens that would end it.
    pub ignores_ends: bool,
    /// Numbers that are added to the logits of tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Decides which tokens it may continue with.
    pub filter: Option<Box<dyn TokenFilter + Send>>,
    /// The position from which tokens of the prompt count as tokens of the text, for penalties; without one, none do.
    pub text_start: Option<usize>,
    /// `true` if only the logits after the prompt are asked for: the text then ends before its first token.
    pub asks_logits: bool,
}

impl BatchText {
    /// Refuses what an engine cannot generate.
    ///
    /// # Errors
    /// When prompt, options or biases are refused (S1.6).
    pub fn check(&self, engine: &Engine) -> Result<()> {
        self.options.schedule(engine)?;
        engine.check_prompt(&self.prompt, 0)?;
        engine.check_biases(&self.logit_bias)?;
        if self.asks_logits && !engine.keeps_logits() {
            return Err(Error::KeepsNoLogits);
        }
        let is_supported = self.filter.is_none() || engine.has_full_sampler();
        if is_supported { Ok(()) } else { Err(Error::NeedsFullSampler("a grammar")) }
    }

    /// Returns the bytes of state that it needs at most.
    pub fn state_bytes(&self, engine: &Engine) -> u64 {
        let length = self.prompt.len().saturating_add(self.max_new_tokens).min(engine.context());
        engine.step_bytes(length.saturating_sub(1)).state
    }
}

/// A text of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(u64);

/// What happened to a text.
#[derive(Debug)]
pub enum BatchEvent {
    /// It got a token.
    Token {
        /// The token.
        token: TokenId,
        /// Its log-probabilities, if they were asked for.
        log_probabilities: Option<Box<RowLogProbabilities>>,
    },
    /// The logits after its prompt, if it asks for them; the end follows.
    Logits(Vec<f32>),
    /// It ended, and has left the batch.
    End(Finish),
    /// It failed, and has left the batch.
    Failed(Error),
}

/// Texts that are generated together.
pub struct Batch {
    engine: Engine,
    limits: BatchLimits,
    /// Oldest first.
    lanes: Vec<BatchLane>,
    prefixes: Prefixes,
    next_id: u64,
}

struct BatchLane {
    id: TextId,
    text: BatchText,
    schedule: Schedule,
    state_bytes: u64,
    /// From its first piece of prompt on.
    session: Option<Session>,
    started: Instant,
    finish: Finish,
}

impl Batch {
    /// Starts without texts.
    pub fn new(engine: Engine, limits: BatchLimits) -> Self {
        let chunk = limits.chunk.min(engine.max_prefill()).max(1);
        let limits = BatchLimits { lanes: limits.lanes.max(1), chunk, ..limits };
        Self { prefixes: Prefixes::new(limits.prefix_bytes), engine, limits, lanes: Vec::new(), next_id: 0 }
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Returns `true` if there are no texts.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns `true` if a text that needs `state_bytes` can join now.
    pub fn has_room(&self, state_bytes: u64) -> bool {
        let held: u64 = self.lanes.iter().map(|lane| lane.state_bytes).sum();
        let fits = held.saturating_add(state_bytes) <= self.limits.state_bytes;
        self.lanes.is_empty() || self.lanes.len() < self.limits.lanes && fits
    }

    /// Lets a text join.
    ///
    /// # Errors
    /// Same as [`BatchText::check`].
    pub fn add(&mut self, text: BatchText) -> Result<TextId> {
        text.check(&self.engine)?;
        let schedule = text.options.schedule(&self.engine)?;
        let state_bytes = text.state_bytes(&self.engine);
        let finish = Finish::start(&schedule, self.engine.load_time());
        let id = TextId(self.next_id);
        self.next_id += 1;
        self.lanes.push(BatchLane { id, text, schedule, state_bytes, session: None, started: Instant::now(), finish });
        Ok(id)
    }

    /// Removes a text, as when nobody waits for it any more. Returns how it ended, unless it has left already.
    pub fn remove(&mut self, id: TextId) -> Option<Finish> {
        let at = self.lanes.iter().position(|lane| lane.id == id)?;
        let lane = self.lanes.remove(at);
        self.keep(lane.session);
        Some(lane.finish)
    }

    /// Removes all texts and everything that is kept, as after a fault that may have left any of it half changed. Returns the
    /// texts.
    pub fn clear(&mut self) -> Vec<TextId> {
        self.prefixes = Prefixes::new(self.limits.prefix_bytes);
        self.lanes.drain(..).map(|lane| lane.id).collect()
    }

    /// Takes a step: a piece of the prompts, and a token of every text whose prompt is processed.
    pub fn step(&mut self) -> Vec<(TextId, BatchEvent)> {
        let mut events = Vec::new();
        self.process_prompts(&mut events);
        self.decode(&mut events);
        events
    }

    /// Processes prompts, oldest first, until the tokens of a step are used up.
    fn process_prompts(&mut self, events: &mut Vec<(TextId, BatchEvent)>) {
        let mut left = self.limits.chunk;
        while let Some(at) = self.lanes.iter().position(|lane| !lane.is_decoding()).filter(|_| left > 0) {
            if self.lanes.get(at).is_some_and(|lane| lane.session.is_none()) {
                let begun = self.begin(at);
                if let Err(error) = begun {
                    self.fail(at, error, events);
                    continue;
                }
            }
            let Some(lane) = self.lanes.get_mut(at) else { return };
            let (processed, outcome) = lane.process_prompt(self.limits.chunk);
            left = left.saturating_sub(processed.max(1));
            match outcome {
                Ok(Some(token)) => {
                    let ended = lane.pass(token, events);
                    self.leave_if(at, ended, events);
                }
                Ok(None) => self.snapshot(at),
                Err(error) => self.fail(at, error, events),
            }
        }
    }

    /// Gives a text its session: a copy of the state with the longest prefix of its prompt, or a new one.
    fn begin(&mut self, at: usize) -> Result<()> {
        let Some(prompt) = self.lanes.get(at).map(|lane| lane.text.prompt.as_slice()) else { return Ok(()) };
        // A state that keeps positions can be copied while its text goes on.
        let running = self.lanes.iter().filter_map(|lane| lane.session.as_ref()).filter(|_| self.engine.can_rewind());
        let running = running.filter(|_| self.limits.prefix_bytes > 0).max_by_key(|held| usable_prefix(held, prompt));
        let kept = self.prefixes.find(prompt);
        let best = running.into_iter().chain(kept).max_by_key(|held| usable_prefix(held, prompt));
        let mut session = match best.filter(|held| usable_prefix(held, prompt) > 0) {
            Some(held) => held.fork()?,
            None => self.engine.session()?,
        };
        session.keep_prefix(prompt)?;
        session.set_token_mask(None)?;
        if let Some(lane) = self.lanes.get_mut(at) {
            session.end_also_at(&lane.text.more_ends);
            session.ignore_ends(lane.text.ignores_ends);
            session.set_logit_bias(&lane.text.logit_bias)?;
            lane.finish.timings.prompt_tokens = lane.text.prompt.len() - session.position();
            lane.session = Some(session);
        }
        Ok(())
    }

    /// Keeps the state of a prompt at the end of a chunk, if it cannot be rewound to there later.
    fn snapshot(&mut self, at: usize) {
        let session = self.lanes.get(at).and_then(|lane| lane.session.as_ref());
        let session = session.filter(|session| session.position().is_multiple_of(self.limits.chunk));
        if let Some(session) = session.filter(|_| !self.engine.can_rewind()) {
            self.prefixes.insert(session);
        }
    }

    /// Decodes a token of every text whose prompt is processed.
    fn decode(&mut self, events: &mut Vec<(TextId, BatchEvent)>) {
        // From the last on, so that indices stay right when one leaves.
        for at in (0..self.lanes.len()).rev() {
            let lane = self.lanes.get_mut(at).filter(|lane| lane.is_decoding());
            if let Some(error) = lane.and_then(|lane| lane.set_mask().err()) {
                self.fail(at, error, events);
            }
        }
        let mut decoding = Vec::new();
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let (Some(token), Some(session)) = (lane.finish.pending, &mut lane.session) else { continue };
            let sampling = lane.schedule.at_step(lane.finish.timings.new_tokens as u64);
            decoding.push((at, DecodeLane { session, token, sampling, next: Ok(0) }));
        }
        let (indices, mut decoding): (Vec<usize>, Vec<DecodeLane<'_>>) = decoding.into_iter().unzip();
        let start = Instant::now();
        decode_together(&mut decoding, &StopFlag::default());
        let time = start.elapsed();
        let drawn = decoding.into_iter().map(|lane| lane.next).collect::<Vec<_>>();
        for (at, drawn) in indices.into_iter().zip(drawn).rev() {
            match (drawn, self.lanes.get_mut(at)) {
                (Ok(token), Some(lane)) => {
                    lane.finish.timings.decode += time;
                    lane.finish.timings.decode_steps += 1;
                    let ended = lane.pass(token, events);
                    self.leave_if(at, ended, events);
                }
                (Err(error), _) => self.fail(at, error, events),
                (Ok(_), None) => {}
            }
        }
    }

    fn fail(&mut self, at: usize, error: Error, events: &mut Vec<(TextId, BatchEvent)>) {
        let lane = self.lanes.remove(at);
        events.push((lane.id, BatchEvent::Failed(error)));
    }

    fn leave_if(&mut self, at: usize, ended: Result<Option<Reason>>, events: &mut Vec<(TextId, BatchEvent)>) {
        match ended {
            Ok(None) => {}
            Ok(Some(reason)) => {
                let mut lane = self.lanes.remove(at);
                lane.finish.reason = reason;
                events.push((lane.id, BatchEvent::End(lane.finish)));
                self.keep(lane.session);
            }
            Err(error) => self.fail(at, error, events),
        }
    }

    /// Keeps the state of a text that has left.
    fn keep(&mut self, session: Option<Session>) {
        session.iter().for_each(|session| self.prefixes.insert(session));
    }
}

impl BatchLane {
    fn is_decoding(&self) -> bool {
        self.finish.pending.is_some()
    }

    /// Processes the next piece of the prompt, up to a multiple of `chunk`. Returns its length, and after the last piece the
    /// first token of the text.
    fn process_prompt(&mut self, chunk: usize) -> (usize, Result<Option<TokenId>>) {
        let Some(session) = &mut self.session else { return (0, Err(Error::EmptyPrompt)) };
        let rest = self.text.prompt.get(session.position()..).unwrap_or_default();
        let count = rest.len().min(chunk - session.position() % chunk);
        let (piece, later) = rest.split_at(count);
        if !later.is_empty() {
            return (count, session.process(piece).map(|()| None));
        }
        let token = self.set_mask().and_then(|()| self.draw_first(count));
        (count, token.map(Some))
    }

    /// Processes the last piece of the prompt.
    fn draw_first(&mut self, count: usize) -> Result<TokenId> {
        let session = self.session.as_mut().ok_or(Error::EmptyPrompt)?;
        let piece = self.text.prompt.get(self.text.prompt.len() - count..).unwrap_or_default();
        let text_start = self.text.text_start.unwrap_or(self.text.prompt.len());
        let token = session.prefill_text(piece, text_start, &self.schedule.at_step(0))?;
        self.finish.timings.prefill = self.started.elapsed();
        Ok(token)
    }

    /// Allows only the tokens that the filter allows next.
    fn set_mask(&mut self) -> Result<()> {
        match (&mut self.text.filter, &mut self.session) {
            (Some(filter), Some(session)) => session.set_token_mask(Some(filter.allowed().map_err(Error::Filter)?)),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }

    /// Takes a token that was drawn, and returns why the text ends, if it does.
    fn pass(&mut self, token: TokenId, events: &mut Vec<(TextId, BatchEvent)>) -> Result<Option<Reason>> {
        let Some(session) = &mut self.session else { return Ok(None) };
        if self.text.asks_logits {
            let logits = session.fetch_logits()?.ok_or(Error::KeepsNoLogits)?;
            events.push((self.id, BatchEvent::Logits(logits)));
            return Ok(Some(Reason::Length));
        }
        let filter = self.text.filter.as_mut();
        let is_complete = filter.map_or(Ok(false), |filter| filter.accept(token).map(|()| filter.is_finished()));
        let (is_complete, is_end) = (is_complete.map_err(Error::Filter)?, session.is_end(token));
        let ended = self.finish.pass(token, is_end, is_complete, self.text.max_new_tokens, session.room());
        if let Some(Ended::Before(reason)) = ended {
            return Ok(Some(reason));
        }
        let log_probabilities = session.log_probabilities().cloned().map(Box::new);
        events.push((self.id, BatchEvent::Token { token, log_probabilities }));
        Ok(ended.map(|(Ended::Before(reason) | Ended::After(reason))| reason))
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("limits", &self.limits).field("texts", &self.len()).finish_non_exhaustive()
    }
}
