//! One text: its state, its position, and the calls that take it further.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::{Draw, entropy};
use crate::signature::Constant;
use half::{bf16, f16};
use ptero_backend::{Fault, Follow, InputValue, Lane, OutputValue, State, Steps, cast, run_once};
use ptero_pte::DType;
use ptero_sampling::inputs::{SAMPLER_INPUTS, Scalar};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::sample_row;
use ptero_sampling::threefry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A text in the making. Sessions of a model share nothing that changes.
pub struct Session {
    model: Model,
    state: Box<dyn State>,
    position: usize,
    /// Whether a call ended halfway and left the state as no text leaves it.
    is_torn: bool,
    stop: StopFlag,
    /// Tokens that end a text beside the model's own.
    more_ends: Vec<i64>,
    ignores_ends: bool,
    /// All tokens that end a text.
    pub(crate) ends: Vec<i64>,
    /// Tokens of the last burst.
    tokens: Vec<i64>,
    /// Elements on their way in, and out.
    bytes: Vec<u8>,
    output: OutputValue,
    logits: Vec<f32>,
}

/// The seed's place in [`SAMPLER_INPUTS`].
const SEED: usize = SAMPLER_INPUTS.len() - 1;

/// Ends what a session does, from any thread. It stays set until it is cleared, so that no stop is lost.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Ends the call that is running, between two steps, and refuses others.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Allows calls again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Session {
    pub(crate) fn new(model: Model, mut state: Box<dyn State>) -> Result<Self> {
        for (at, constant) in &model.signature().constants {
            let value = match constant {
                Constant::Int(value) => InputValue::Int(*value),
                Constant::Tensor { dtype, shape, bytes } => InputValue::Tensor { dtype: *dtype, shape, bytes },
            };
            state.write(*at, value)?;
        }
        let (stop, output) = (StopFlag::default(), OutputValue::Int(0));
        let ends = model.eos_ids().to_vec();
        Ok(Self {
            model,
            state,
            position: 0,
            is_torn: false,
            stop,
            more_ends: Vec::new(),
            ignores_ends: false,
            ends,
            tokens: Vec::new(),
            bytes: Vec::new(),
            output,
            logits: Vec::new(),
        })
    }

    /// A second session at the same position, with all that was given to this one. From there on the two share nothing that
    /// changes; the new one has a stop flag of its own, which is not set.
    ///
    /// # Errors
    /// When there is no memory for its state, when the device cannot copy states, or when a call ended halfway and left a
    /// state that is no text's.
    pub fn fork(&self) -> Result<Self> {
        if self.is_torn {
            return Err(Error::Torn);
        }
        Ok(Self {
            model: self.model.clone(),
            state: self.state.fork(entropy())?,
            position: self.position,
            is_torn: false,
            stop: StopFlag::default(),
            more_ends: self.more_ends.clone(),
            ignores_ends: self.ignores_ends,
            ends: self.ends.clone(),
            tokens: Vec::new(),
            bytes: Vec::new(),
            output: OutputValue::Int(0),
            logits: self.logits.clone(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How many tokens were given so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many more tokens fit.
    pub fn room(&self) -> usize {
        self.model.context().saturating_sub(self.position)
    }

    /// What stops this session from another thread.
    pub fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }

    /// Ends texts at these tokens too.
    pub fn end_also_at(&mut self, tokens: &[i64]) {
        self.more_ends = tokens.to_vec();
        self.gather_ends();
    }

    /// Whether texts go on after tokens that end them, up to the length that is asked for.
    pub fn ignore_ends(&mut self, ignores_ends: bool) {
        self.ignores_ends = ignores_ends;
        self.gather_ends();
    }

    fn gather_ends(&mut self) {
        self.ends.clear();
        if !self.ignores_ends {
            self.ends.extend_from_slice(self.model.eos_ids());
            self.ends.extend_from_slice(&self.more_ends);
        }
    }

    /// The logits of the last call, of a program that returns them.
    pub fn logits(&self) -> Option<&[f32]> {
        Some(self.logits.as_slice()).filter(|logits| !logits.is_empty())
    }

    /// Starts over, with nothing left of what was given.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset(&mut self) -> Result<()> {
        self.state.reset()?;
        self.logits.clear();
        (self.position, self.is_torn) = (0, false);
        Ok(())
    }

    /// Goes back to an earlier position. To 0 any state can; to others only one that keeps them apart
    /// ([`Model::can_rewind`]).
    ///
    /// # Errors
    /// When the state cannot, or the position was never reached; then nothing changes.
    pub fn rewind(&mut self, to: usize) -> Result<()> {
        let position = self.position;
        if to > position {
            return Err(Error::RewindAhead { to, position });
        }
        if to == 0 {
            self.reset()?;
        } else if to < position {
            if !self.model.can_rewind() {
                return Err(Error::CannotRewind { to, position });
            }
            self.logits.clear();
            self.position = to;
        }
        Ok(())
    }

    /// Gives tokens, in as many calls as the program needs for them, and draws the next (S1.3).
    ///
    /// # Errors
    /// When a token or their number does not fit, before anything is given; or when a call fails or is stopped: then those
    /// of the calls before it stay given.
    pub fn prefill(&mut self, tokens: &[i64], draw: &Draw) -> Result<i64> {
        self.check(tokens)?;
        draw.settings.check()?;
        let (chunk, mut token) = (self.model.max_prefill(), 0);
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(chunk.min(rest.len()));
            // What earlier calls draw is not looked at, and should neither cost much nor use up keys.
            token = self.call(now, if later.is_empty() { draw } else { &Draw::GREEDY }, later.is_empty())?;
            rest = later;
        }
        Ok(token)
    }

    /// Gives one token and draws the next. After the first call it allocates nothing that the device does not, unless a token
    /// is drawn on the host.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: i64, draw: &Draw) -> Result<i64> {
        self.prefill(&[token], draw)
    }

    /// Refuses tokens that cannot be given, before anything happens.
    pub(crate) fn check(&self, tokens: &[i64]) -> Result<()> {
        let (vocabulary, context, position) = (self.model.vocabulary(), self.model.context(), self.position);
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let fits = |token: i64| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        if let Some((place, token)) = tokens.iter().enumerate().find(|(_, token)| !fits(**token)) {
            return Err(Error::TokenOutside { token: *token, place, vocabulary });
        }
        if tokens.len() > self.room() {
            return Err(Error::ContextFull { tokens: tokens.len(), position, context });
        }
        if self.is_torn { Err(Error::Torn) } else { Ok(()) }
    }

    /// One call of the program. The token is drawn on the host only where it is wanted.
    fn call(&mut self, tokens: &[i64], draw: &Draw, is_wanted: bool) -> Result<i64> {
        if self.stop.is_set() {
            return Err(Error::Stopped);
        }
        self.write_tokens(tokens)?;
        self.write_settings(draw)?;
        if let Err(error) = run_once(self.model.executable(), self.state.as_mut(), &self.stop.0) {
            return Err(self.torn(error));
        }
        self.position += tokens.len();
        match (is_wanted, self.model.samples_itself()) {
            (false, _) => Ok(0),
            (true, true) => self.read_token(),
            (true, false) => {
                self.read_logits()?;
                let (key, count) = (seed_key(draw.seed), self.logits.len());
                let token = sample_row(&self.logits, &draw.settings, |at| threefry::word(key, count, at));
                Ok(i64::try_from(token).unwrap_or(i64::MAX))
            }
        }
    }

    /// What a step that ended halfway leaves: positions not yet reached may hold anything; state without positions is lost.
    fn torn(&mut self, error: ptero_backend::Error) -> Error {
        self.is_torn = !self.model.can_rewind();
        if *error.fault() == Fault::Cancelled { Error::Stopped } else { error.into() }
    }

    /// Gives one token, draws the next, gives that one, and so on: up to `most` steps that follow each other on the device, as
    /// many as pay off there. The tokens are those of [`Session::burst`]; what ended the steps early comes after them.
    pub(crate) fn decode_burst(&mut self, token: i64, draw: &Draw, most: usize) -> Result<()> {
        self.tokens.clear();
        self.check(&[token])?;
        draw.settings.check()?;
        let model = self.model.clone();
        let signature = model.signature();
        let (Some(feed), true) = (signature.tokens, model.samples_itself()) else {
            let token = self.call(&[token], draw, true)?;
            self.tokens.push(token);
            return Ok(());
        };
        if self.stop.is_set() {
            return Err(Error::Stopped);
        }
        self.write_tokens(&[token])?;
        self.write_settings(draw)?;
        let seed = signature.sampler.get(SEED).and_then(|(at, _)| *at).filter(|_| signature.takes_seed());
        let (count_up, counted) = match (signature.positions, seed) {
            (Some(positions), Some(seed)) => ([positions, seed], 2),
            (Some(input), None) | (None, Some(input)) => ([input, 0], 1),
            (None, None) => ([0, 0], 0),
        };
        let count_up = count_up.get(..counted).unwrap_or_default();
        let count = model.burst().min(most).min(self.room());
        let follow = Some(Follow { token: signature.output, feed, count_up });
        let tokens = std::mem::take(&mut self.tokens);
        let mut lanes = [Lane { wanted: count, ends: &self.ends, tokens, ..Lane::new(self.state.as_mut()) }];
        let run = model.executable().run(&mut lanes, &Steps { count, follow, stop: &self.stop.0 });
        let [Lane { tokens, fault, .. }] = lanes;
        self.tokens = tokens;
        run?;
        self.position += self.tokens.len();
        fault.map_or(Ok(()), |error| Err(self.torn(error)))
    }

    /// The tokens of the last burst.
    pub(crate) fn burst(&self) -> &[i64] {
        &self.tokens
    }

    /// Takes back the last steps of a burst, which nobody wants.
    pub(crate) fn take_back(&mut self, steps: usize) {
        // Bursts of more than one step are for states that can go back.
        self.position -= steps.min(self.position);
    }

    fn write_tokens(&mut self, tokens: &[i64]) -> Result<()> {
        let Self { model, state, bytes, position, .. } = self;
        let (signature, count) = (model.signature(), tokens.len() as u64);
        let mut write = |at: Option<usize>, shape: &[u64], values: &mut dyn Iterator<Item = i64>| match at {
            Some(at) => {
                bytes.clear();
                values.for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                state.write(at, InputValue::Tensor { dtype: DType::I64, shape, bytes })
            }
            None => Ok(()),
        };
        write(signature.tokens, &[1, count], &mut tokens.iter().copied())?;
        let first = i64::try_from(*position).unwrap_or(i64::MAX);
        write(signature.positions, &[count], &mut (first..).take(tokens.len()))?;
        Ok(())
    }

    /// What the program's own head draws with.
    fn write_settings(&mut self, draw: &Draw) -> Result<()> {
        let Draw { settings, seed } = draw;
        let values: [Scalar; SAMPLER_INPUTS.len()] = [
            Scalar::F32(settings.temperature),
            Scalar::I64(settings.top_k),
            Scalar::F32(settings.top_p),
            Scalar::I64(*seed),
        ];
        for ((at, shape), value) in self.model.signature().sampler.iter().zip(values) {
            let Some(at) = *at else { continue };
            let (dtype, f32_bytes, i64_bytes);
            let bytes: &[u8] = match value {
                Scalar::F32(value) => {
                    (dtype, f32_bytes) = (DType::F32, value.to_le_bytes());
                    &f32_bytes
                }
                Scalar::I64(value) => {
                    (dtype, i64_bytes) = (DType::I64, value.to_le_bytes());
                    &i64_bytes
                }
            };
            self.state.write(at, InputValue::Tensor { dtype, shape, bytes })?;
        }
        Ok(())
    }

    /// Reads the output, in the type that it has for callers.
    fn read(&mut self) -> Result<(DType, &[u8])> {
        let signature = self.model.signature();
        self.state.read_into(signature.output, &mut self.output)?;
        let (declared, wanted) = (signature.output_dtype, signature.output_elements);
        let OutputValue::Tensor { dtype, bytes, .. } = &mut self.output else {
            return Err(Error::Output { dtype: declared, found: 0, wanted });
        };
        // A token is a whole number of any type; logits may have to be rounded.
        if *dtype != declared && declared != DType::I64 {
            (*bytes, *dtype) = (cast(bytes, *dtype, declared)?, declared);
        }
        let found = bytes.len() / usize::try_from(dtype.bytes()).unwrap_or(1).max(1);
        if found == wanted { Ok((*dtype, bytes)) } else { Err(Error::Output { dtype: *dtype, found, wanted }) }
    }

    fn read_token(&mut self) -> Result<i64> {
        let (dtype, bytes) = self.read()?;
        let wrong = Error::Output { dtype, found: 0, wanted: 1 };
        let token = match dtype {
            DType::I64 => bytes.first_chunk().map(|raw| i64::from_le_bytes(*raw)),
            DType::I32 => bytes.first_chunk().map(|raw| i32::from_le_bytes(*raw).into()),
            DType::U32 => bytes.first_chunk().map(|raw| u32::from_le_bytes(*raw).into()),
            _ => None,
        };
        token.ok_or(wrong)
    }

    fn read_logits(&mut self) -> Result<()> {
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        let (dtype, bytes) = self.read()?;
        match dtype {
            DType::F32 => logits.extend(bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw))),
            DType::F16 => logits.extend(bytes.as_chunks().0.iter().map(|raw| f16::from_le_bytes(*raw).to_f32())),
            DType::Bf16 => logits.extend(bytes.as_chunks().0.iter().map(|raw| bf16::from_le_bytes(*raw).to_f32())),
            dtype => return Err(Error::Output { dtype, found: 0, wanted: 0 }),
        }
        self.logits = logits;
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, position, is_torn, .. } = self;
        let mut shown = f.debug_struct("Session");
        shown.field("model", model).field("position", position).field("is_torn", is_torn).finish_non_exhaustive()
    }
}
