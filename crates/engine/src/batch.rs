//! Texts that are generated together: they join and leave between two steps, and each gets the tokens that it would get alone.
//!
//! A step first processes a piece of the prompts that are not processed yet, oldest text first, and then decodes a token of
//! every text that has one. So a prompt of any length delays the other texts by a piece at a time.

mod prefixes;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generate::{Ended, Finish, Reason, TokenFilter};
use crate::options::{SampleOptions, Schedule, TokenSettings};
use crate::session::{Session, StopFlag};
use crate::together::{CallLane, call_together};
use prefixes::{Prefixes, SHORTEST, shared_length, usable_prefix};
use ptero_sampling::log_probabilities::RowLogProbabilities;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

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
        self.call(|_, lane| lane.is_decoding(), 1, &mut events);
        events
    }

    /// Processes prompts, oldest first, until the tokens of a step are used up.
    fn process_prompts(&mut self, events: &mut Vec<(TextId, BatchEvent)>) {
        let waiting = self.lanes.iter().filter(|lane| !lane.is_decoding()).count();
        // While no text waits for its next token, each prompt gets a piece.
        let pieces = if waiting == self.lanes.len() { waiting } else { 1 };
        let most = self.engine.max_prefill().max(self.limits.chunk);
        let mut left = self.limits.chunk.saturating_mul(pieces).min(most);
        while left > 0 {
            self.begin_texts(events);
            let (group, count) = self.next_pieces(left);
            if group.is_empty() {
                return;
            }
            left = left.saturating_sub(group.len() * count);
            self.call(|at, _| group.contains(&at), count, events);
        }
    }

    /// Gives texts their sessions, except those whose prompts begin like one that is not processed so far yet.
    fn begin_texts(&mut self, events: &mut Vec<(TextId, BatchEvent)>) {
        let mut at = 0;
        while let Some(lane) = self.lanes.get(at) {
            let is_next = lane.session.is_none() && !self.waits(at);
            match if is_next { self.begin(at) } else { Ok(()) } {
                Ok(()) => at += 1,
                Err(error) => self.fail(at, error, events),
            }
        }
    }

    /// Returns `true` if a text can soon have the state of an older one, with a longer part of its prompt than any state now.
    fn waits(&self, at: usize) -> bool {
        let (older, rest) = self.lanes.split_at(at);
        let Some(prompt) = rest.first().map(|lane| lane.text.prompt.as_slice()) else { return false };
        let step = if self.engine.can_rewind() { 1 } else { self.limits.chunk };
        let later = older.iter().filter(|lane| !lane.is_decoding() && self.limits.prefix_bytes > 0);
        let later = later.map(|lane| shared_length(&lane.text.prompt, prompt) / step * step).max().unwrap_or(0);
        later >= SHORTEST
            && later > self.running().map(|held| usable_prefix(held, prompt)).max().unwrap_or(0)
            && later > self.prefixes.longest(prompt)
    }

    /// The sessions of running texts that can be copied while their texts go on: those that keep positions.
    fn running(&self) -> impl Iterator<Item = &Session> {
        let is_copied = self.engine.can_rewind() && self.limits.prefix_bytes > 0;
        self.lanes.iter().filter(move |_| is_copied).filter_map(|lane| lane.session.as_ref())
    }

    /// Chooses texts whose next pieces of prompts are processed together, the oldest first: equally many tokens of each, so that
    /// they share the reading of weights; at most `left` in all, unless the oldest's piece is longer.
    fn next_pieces(&self, left: usize) -> (Vec<usize>, usize) {
        let (mut group, mut count) = (Vec::new(), self.limits.chunk);
        for (at, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| !lane.is_decoding()) {
            let Some(position) = lane.session.as_ref().map(Session::position) else { continue };
            let piece = self.limits.chunk - position % self.limits.chunk;
            let shorter = count.min(piece).min(lane.text.prompt.len().saturating_sub(position));
            if group.is_empty() || shorter * (group.len() + 1) <= left {
                group.push(at);
                count = shorter;
            }
        }
        (group, count)
    }

    /// Calls some texts together: for the next `count` tokens of their prompts, or for their next token.
    fn call(
        &mut self,
        is_called: impl Fn(usize, &BatchLane) -> bool,
        count: usize,
        events: &mut Vec<(TextId, BatchEvent)>,
    ) {
        let start = Instant::now();
        let (mut indices, mut calls, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            match is_called(at, lane).then(|| lane.next_call(count)) {
                Some(Ok(call)) => {
                    indices.push(at);
                    calls.push(call);
                }
                Some(Err(error)) => outcomes.push((at, Err(error))),
                None => {}
            }
        }
        call_together(&mut calls, &StopFlag::default());
        let time = start.elapsed();
        let results = calls.into_iter().map(|call| call.next.map(|token| call.is_wanted.then_some(token)));
        outcomes.extend(indices.into_iter().zip(results));
        // From the last on, so that indices stay right when one leaves.
        outcomes.sort_by_key(|(at, _)| Reverse(*at));
        for (at, outcome) in outcomes {
            match (outcome, self.lanes.get_mut(at)) {
                (Ok(Some(token)), Some(lane)) => {
                    lane.note(time);
                    let ended = lane.pass(token, events);
                    self.leave_if(at, ended, events);
                }
                (Ok(_), _) => self.snapshot(at),
                (Err(error), _) => self.fail(at, error, events),
            }
        }
    }

    /// Gives a text its session: the state with the longest prefix of its prompt, or a new one.
    fn begin(&mut self, at: usize) -> Result<()> {
        let Some(prompt) = self.lanes.get(at).map(|lane| lane.text.prompt.as_slice()) else { return Ok(()) };
        let kept = self.prefixes.longest(prompt);
        let running = self.running().map(|held| (usable_prefix(held, prompt), held)).max_by_key(|(length, _)| *length);
        let found = match running.filter(|(length, _)| *length > kept) {
            Some((_, held)) => Some(held.fork()?),
            None => self.prefixes.get(prompt)?,
        };
        let mut session = found.map_or_else(|| self.engine.session(), Ok)?;
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
        let session = session.filter(|session| !self.engine.can_rewind() && self.prefixes.wants(session));
        // Without a copy, the next prompt is processed from its start.
        if let Some(Ok(copy)) = session.map(Session::fork) {
            self.prefixes.insert(copy);
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
        if let Some(mut session) = session.filter(|session| self.prefixes.wants(session))
            // The bytes that are counted are those of the state alone.
            && session.rest().is_ok()
        {
            self.prefixes.insert(session);
        }
    }
}

impl BatchLane {
    fn is_decoding(&self) -> bool {
        self.finish.pending.is_some()
    }

    /// What is to be processed next: at most `count` tokens of the prompt, and after the prompt the last token.
    fn next_call(&mut self, count: usize) -> Result<CallLane<'_>> {
        let position = self.session.as_ref().map_or(0, Session::position);
        let is_wanted = self.is_decoding() || position + count >= self.text.prompt.len();
        let sampling = if is_wanted {
            self.schedule.at_step(self.finish.timings.new_tokens as u64)
        } else {
            TokenSettings::GREEDY
        };
        if is_wanted {
            self.set_mask()?;
        }
        let piece = self.text.prompt.get(position..).unwrap_or_default();
        let piece = piece.get(..count).unwrap_or(piece);
        let tokens = self.finish.pending.as_ref().map_or(piece, std::slice::from_ref);
        let session = self.session.as_mut().ok_or(Error::EmptyPrompt)?;
        session.set_text_start(self.text.text_start.unwrap_or(self.text.prompt.len()));
        Ok(CallLane { session, tokens, sampling, is_wanted, next: Ok(0) })
    }

    /// Notes the time of a call that drew a token.
    fn note(&mut self, time: Duration) {
        let is_first = !self.is_decoding();
        let timings = &mut self.finish.timings;
        if is_first {
            timings.prefill = self.started.elapsed();
        } else {
            timings.decode += time;
            timings.decode_steps += 1;
        }
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
