//! A session: the state of one text, its tokens, and the calls that extend it.

mod adjusting;
mod values;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::options::{TokenSettings, entropy};
use crate::signature::Constant;
use adjusting::Adjusting;
use ptero_backend::{Fault, Follow, InputValue, Lane, OutputValue, State, Steps, run_once};
use ptero_sampling::inputs::SEED;
use ptero_sampling::log_probabilities::{LogProbabilities, RowLogProbabilities};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of one text. Sessions of an engine share nothing that changes.
pub struct Session {
    engine: Engine,
    state: Box<dyn State>,
    /// The tokens of all positions so far.
    tokens: Vec<TokenId>,
    /// `true` after a call that stopped halfway in a state that cannot be rewound.
    is_torn: bool,
    stop: StopFlag,
    /// Tokens that end a text in addition to the program's own.
    more_ends: Vec<TokenId>,
    ignores_ends: bool,
    /// All tokens that end a text.
    ends: Vec<TokenId>,
    /// The tokens drawn by the last burst.
    drawn: Vec<TokenId>,
    /// Reused buffers for inputs and outputs.
    bytes: Vec<u8>,
    output: OutputValue,
    logits: Vec<f32>,
    /// The position at which the text starts after its prompt.
    text_start: usize,
    adjusting: Adjusting,
    log_probabilities: Option<RowLogProbabilities>,
}

/// Positions for which a new session reserves memory, so that decoding does not allocate.
const RESERVED_TOKENS: usize = 1 << 16;

/// Stops a session from any thread. It stays set until it is cleared, so that no stop is lost.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Stops the running call between two steps, and refuses further calls.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Allows calls again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

impl Session {
    pub(crate) fn new(engine: Engine, mut state: Box<dyn State>) -> Result<Self> {
        for (at, constant) in &engine.signature().constants {
            let value = match constant {
                Constant::Int(value) => InputValue::Int(*value),
                Constant::Tensor { dtype, shape, bytes } => InputValue::Tensor { dtype: *dtype, shape, bytes },
            };
            state.write(*at, value)?;
        }
        let ends = engine.eos_ids().to_vec();
        Ok(Self::with(engine, state, Vec::new(), ends))
    }

    fn with(engine: Engine, state: Box<dyn State>, mut tokens: Vec<TokenId>, ends: Vec<TokenId>) -> Self {
        tokens.reserve(engine.context().min(RESERVED_TOKENS).saturating_sub(tokens.len()));
        Self {
            engine,
            state,
            tokens,
            is_torn: false,
            stop: StopFlag::default(),
            more_ends: Vec::new(),
            ignores_ends: false,
            ends,
            drawn: Vec::new(),
            bytes: Vec::new(),
            output: OutputValue::Int(0),
            logits: Vec::new(),
            text_start: 0,
            adjusting: Adjusting::default(),
            log_probabilities: None,
        }
    }

    /// Copies the session. From then on the two share nothing that changes; the copy has its own stop flag, which is clear.
    ///
    /// # Errors
    /// When there is no memory for the state, when the device cannot copy states, or when an earlier call stopped halfway and
    /// left a state that cannot be used.
    pub fn fork(&self) -> Result<Self> {
        if self.is_torn {
            return Err(Error::Torn);
        }
        let state = self.state.fork(entropy())?;
        let fork = Self::with(self.engine.clone(), state, self.tokens.clone(), self.ends.clone());
        let (more_ends, logits) = (self.more_ends.clone(), self.logits.clone());
        let (adjusting, log_probabilities) = (self.adjusting.unwritten(), self.log_probabilities.clone());
        let Self { ignores_ends, text_start, .. } = *self;
        Ok(Self { more_ends, ignores_ends, logits, text_start, adjusting, log_probabilities, ..fork })
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the tokens processed so far: one per position.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the number of tokens processed so far.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of tokens that still fit the context.
    pub fn room(&self) -> usize {
        self.engine.context().saturating_sub(self.position())
    }

    pub(crate) fn state_mut(&mut self) -> &mut dyn State {
        self.state.as_mut()
    }

    /// Gives memory back that only calls need.
    pub(crate) fn rest(&mut self) -> Result<()> {
        Ok(self.state.rest()?)
    }

    /// Returns the flag that stops this session from another thread.
    pub fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }

    /// Lets another flag stop this session, such as that of the session it was copied from.
    pub fn set_stop_flag(&mut self, flag: StopFlag) {
        self.stop = flag;
    }

    /// Also ends texts at these tokens.
    pub fn end_also_at(&mut self, tokens: &[TokenId]) {
        self.more_ends = tokens.to_vec();
        self.gather_ends();
    }

    /// Sets whether texts continue after tokens that would end them.
    pub fn ignore_ends(&mut self, ignores_ends: bool) {
        self.ignores_ends = ignores_ends;
        self.gather_ends();
    }

    fn gather_ends(&mut self) {
        self.ends.clear();
        if !self.ignores_ends {
            self.ends.extend_from_slice(self.engine.eos_ids());
            self.ends.extend_from_slice(&self.more_ends);
        }
    }

    /// Returns `true` if the token ends a text.
    pub(crate) fn is_end(&self, token: TokenId) -> bool {
        self.ends.contains(&token)
    }

    /// Returns the logits of the last call, if the program returns logits.
    pub fn logits(&self) -> Option<&[f32]> {
        Some(self.logits.as_slice()).filter(|logits| !logits.is_empty())
    }

    /// Returns the log-probabilities of the last token, if they were asked for ([`TokenSettings::log_probabilities`]).
    pub fn log_probabilities(&self) -> Option<&RowLogProbabilities> {
        self.log_probabilities.as_ref()
    }

    /// Returns the position at which the text starts after its prompt: where the last call of [`Session::prefill`] ended.
    /// Presence and frequency penalties count tokens from there on.
    pub fn text_start(&self) -> usize {
        self.text_start
    }

    pub(crate) fn set_text_start(&mut self, position: usize) {
        self.text_start = position;
    }

    /// Starts over at position 0.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset(&mut self) -> Result<()> {
        self.state.reset()?;
        self.logits.clear();
        self.tokens.clear();
        self.text_start = 0;
        self.is_torn = false;
        Ok(())
    }

    /// Rewinds to an earlier position. Every state can be rewound to 0; to other positions only if [`Engine::can_rewind`].
    ///
    /// # Errors
    /// When the state cannot be rewound, or the position was never reached; then nothing changes.
    pub fn rewind(&mut self, to: usize) -> Result<()> {
        let position = self.position();
        if to > position {
            return Err(Error::RewindAhead { to, position });
        }
        if to == 0 {
            self.reset()?;
        } else if to < position {
            if !self.engine.can_rewind() {
                return Err(Error::CannotRewind { to, position });
            }
            self.logits.clear();
            self.tokens.truncate(to);
            self.text_start = self.text_start.min(to);
        }
        Ok(())
    }

    /// Rewinds to the longest prefix that `text` shares with the tokens so far, and returns its length. At least one token of
    /// `text` is left, since a call takes at least one. For conversations: only what is new is processed again.
    ///
    /// # Errors
    /// When the device fails.
    pub fn keep_prefix(&mut self, text: &[TokenId]) -> Result<usize> {
        let shared = self.tokens.iter().zip(text).take_while(|(held, wanted)| held == wanted).count();
        let shared = shared.min(text.len().saturating_sub(1));
        let is_lost = self.is_torn || (shared < self.position() && !self.engine.can_rewind());
        let kept = if is_lost { 0 } else { shared };
        // A new session's state is untouched memory, and stays so until it is needed.
        if kept < self.position() || self.is_torn {
            self.rewind(kept)?;
        }
        Ok(kept)
    }

    /// Processes tokens, in as many calls as the program needs, and samples the next one (S1.3).
    ///
    /// # Errors
    /// When a token is invalid or the tokens do not fit, before anything is processed; or when a call fails or is stopped: the
    /// tokens of earlier calls then stay.
    pub fn prefill(&mut self, tokens: &[TokenId], sampling: &TokenSettings) -> Result<TokenId> {
        self.check_call(tokens, sampling)?;
        self.set_text_start(self.position() + tokens.len());
        let (chunk, mut token) = (self.engine.max_prefill(), 0);
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(chunk.min(rest.len()));
            // Tokens of earlier chunks are not used, so they should neither cost much nor use up keys.
            token =
                self.call(now, if later.is_empty() { sampling } else { &TokenSettings::GREEDY }, later.is_empty())?;
            rest = later;
        }
        Ok(token)
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Processes one token and samples the next. After the first call the engine does not allocate, unless the host samples.
    ///
    /// # Errors
    /// Same as [`Session::prefill`].
    pub fn decode(&mut self, token: TokenId, sampling: &TokenSettings) -> Result<TokenId> {
        self.check_call(&[token], sampling)?;
        self.call(&[token], sampling, true)
    }

    /// Refuses tokens that cannot be processed.
    pub(crate) fn check(&self, tokens: &[TokenId]) -> Result<()> {
        self.engine.check_tokens(tokens)?;
        if tokens.len() > self.room() {
            let (position, context) = (self.position(), self.engine.context());
            return Err(Error::ContextFull { tokens: tokens.len(), position, context });
        }
        if self.is_torn { Err(Error::Torn) } else { Ok(()) }
    }

    /// Calls the program once. If it returns logits, the host samples only when `is_wanted`.
    fn call(&mut self, tokens: &[TokenId], sampling: &TokenSettings, is_wanted: bool) -> Result<TokenId> {
        self.start(tokens, sampling)?;
        if let Err(error) = run_once(self.engine.executable(), self.state.as_mut(), &self.stop.0) {
            return Err(self.torn(error));
        }
        self.end(tokens, sampling, is_wanted)
    }

    /// Refuses tokens or settings that [`Session::prefill`] refuses.
    pub(crate) fn check_call(&self, tokens: &[TokenId], sampling: &TokenSettings) -> Result<()> {
        self.check(tokens)?;
        sampling.check(&self.engine)
    }

    /// Writes the inputs of a call that was checked.
    pub(crate) fn start(&mut self, tokens: &[TokenId], sampling: &TokenSettings) -> Result<()> {
        if self.stop.is_set() {
            return Err(Error::Stopped);
        }
        self.write_tokens(tokens)?;
        self.write_settings(sampling)
    }

    /// Takes the result of a call that ran.
    pub(crate) fn end(&mut self, tokens: &[TokenId], sampling: &TokenSettings, is_wanted: bool) -> Result<TokenId> {
        self.tokens.extend_from_slice(tokens);
        match (is_wanted, self.engine.samples_itself()) {
            (false, _) => Ok(0),
            (true, true) => {
                self.read_log_probabilities(sampling.log_probabilities)?;
                self.read_token()
            }
            (true, false) => {
                self.read_logits()?;
                Ok(self.sample_on_host(sampling))
            }
        }
    }

    /// Marks the state after a step that stopped halfway. Later positions may then hold anything, which a state with positions
    /// overwrites and any other has lost.
    pub(crate) fn torn(&mut self, error: ptero_backend::Error) -> Error {
        self.is_torn = !self.engine.can_rewind();
        if *error.fault() == Fault::Cancelled { Error::Stopped } else { error.into() }
    }

    /// Processes a token, samples the next, processes that one, and so on: up to `most` steps on the device, as many as pay
    /// off there. [`Session::drawn`] returns the tokens, also those before an error.
    pub(crate) fn decode_burst(&mut self, token: TokenId, sampling: &TokenSettings, most: usize) -> Result<()> {
        self.drawn.clear();
        self.check_call(&[token], sampling)?;
        let engine = self.engine.clone();
        let signature = engine.signature();
        // Log-probabilities of earlier tokens of a burst would be lost, and a mask is that of one token.
        let is_single = sampling.log_probabilities != LogProbabilities::None || self.adjusting.has_mask();
        let (Some(feed), true, false) = (signature.tokens, engine.samples_itself(), is_single) else {
            let token = self.call(&[token], sampling, true)?;
            self.drawn.push(token);
            return Ok(());
        };
        self.start(&[token], sampling)?;
        let seed = signature.sampler.get(SEED).and_then(|(at, _)| *at);
        let (count_up, counted) = match (signature.positions, seed) {
            (Some(positions), Some(seed)) => ([positions, seed], 2),
            (Some(input), None) | (None, Some(input)) => ([input, 0], 1),
            (None, None) => ([0, 0], 0),
        };
        let count_up = count_up.get(..counted).unwrap_or(&count_up);
        let count = engine.burst().min(most).min(self.room());
        let follow = Some(Follow { token: signature.output, feed, count_up });
        let tokens = std::mem::take(&mut self.drawn);
        let mut lanes = [Lane { wanted: count, ends: &self.ends, tokens, ..Lane::new(self.state.as_mut()) }];
        let run = engine.executable().run(&mut lanes, &Steps { count, follow, stop: &self.stop.0 });
        let [Lane { tokens: drawn, fault, .. }] = lanes;
        self.drawn = drawn;
        run?;
        if let Some((_last, processed)) = self.drawn.split_last() {
            self.tokens.push(token);
            self.tokens.extend_from_slice(processed);
        }
        fault.map_or(Ok(()), |error| Err(self.torn(error)))
    }

    /// Returns the tokens of the last burst.
    pub(crate) fn drawn(&self) -> &[TokenId] {
        &self.drawn
    }

    /// Forgets the tokens of the last burst, which belong to an earlier text.
    pub(crate) fn forget_burst(&mut self) {
        self.drawn.clear();
    }

    /// Takes back the last steps of a burst.
    pub(crate) fn take_back(&mut self, steps: usize) {
        // Bursts of more than one step need a state that can be rewound, which nothing else has to happen for.
        self.tokens.truncate(self.position().saturating_sub(steps));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("engine", &self.engine).field("position", &self.position()).field("is_torn", &self.is_torn);
        shown.finish_non_exhaustive()
    }
}
