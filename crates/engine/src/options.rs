//! Options of the sampler, which of them are refused (S1.6), and the seed of each token (S1.4).

use crate::engine::Engine;
use crate::error::{Error, Result};
use ptero_sampling::log_probabilities::LogProbabilities;
use ptero_sampling::settings::{Penalties, Settings};

/// Options of the sampler. `None` is an option that was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleOptions {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Samples from this many of the most likely tokens, at least 1.
    pub top_k: Option<i64>,
    /// Samples from the most likely tokens whose probabilities add up to this, in (0, 1].
    pub top_p: Option<f32>,
    /// Samples from tokens at least this likely relative to the most likely one, in [0, 1].
    pub min_p: Option<f32>,
    /// Divides the positive logits of tokens of the prompt and the text, and multiplies the negative ones.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that the text has.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that the text has, as often as it has them.
    pub frequency_penalty: Option<f32>,
    /// Draws very unlikely tokens, too, as often as they should be.
    pub exact_tail: bool,
    /// Which log-probabilities are computed with each token.
    pub log_probabilities: LogProbabilities,
    /// The same seed gives the same text. Without one, a random seed is chosen and reported.
    pub seed: Option<i64>,
    /// Where tokens may be sampled.
    pub sampling: Sampling,
}

/// Where tokens may be sampled with top-k, top-p or a seed. With a temperature alone, the host always samples for a program
/// that returns logits (S1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// In the program only: a program that returns logits refuses these options (S1.6).
    #[default]
    InProgramOnly,
    /// Also on the host, with the same tokens.
    HostAllowed,
}

/// How the tokens of a text are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Those of a token, but for the seed.
    token: TokenSettings,
    seed: Option<i64>,
}

/// How one token is sampled: settings and a seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSettings {
    /// Temperature, top-k, top-p, min-p, exact tail.
    pub settings: Settings,
    /// Penalties for tokens that the session has processed; see [`Session::text_start`](crate::Session::text_start).
    pub penalties: Penalties,
    /// Which log-probabilities [`Session::log_probabilities`](crate::Session::log_probabilities) returns afterwards.
    pub log_probabilities: LogProbabilities,
    /// Its seed; only the low 32 bits count.
    pub seed: i64,
}

impl TokenSettings {
    /// The most likely token.
    pub const GREEDY: Self = Self {
        settings: Settings::GREEDY,
        penalties: Penalties::NONE,
        log_probabilities: LogProbabilities::None,
        seed: 0,
    };

    /// Samples with these settings and this seed, without penalties.
    pub const fn new(settings: Settings, seed: i64) -> Self {
        Self { settings, seed, ..Self::GREEDY }
    }

    /// Refuses invalid values, and settings that a program does not support (S1.6).
    pub(crate) fn check(&self, engine: &Engine) -> Result<()> {
        self.settings.check()?;
        self.penalties.check()?;
        if engine.has_full_sampler() {
            return Ok(());
        }
        let Penalties { repetition, presence, frequency } = self.penalties;
        let none = Penalties::NONE;
        let asked = [
            ("min-p", self.settings.min_p != Settings::PLAIN.min_p),
            ("a repetition penalty", repetition != none.repetition),
            ("a presence penalty", presence != none.presence),
            ("a frequency penalty", frequency != none.frequency),
            ("an exact tail", self.settings.exact_tail),
            ("log-probabilities", self.log_probabilities != LogProbabilities::None),
        ];
        asked.into_iter().find(|(_, is_asked)| *is_asked).map_or(Ok(()), |(what, _)| Err(Error::NeedsFullSampler(what)))
    }
}

impl SampleOptions {
    /// Checks the options and chooses a seed if none is given.
    ///
    /// # Errors
    /// For invalid values, and for options that the program does not support (S1.6).
    pub fn schedule(&self, engine: &Engine) -> Result<Schedule> {
        if !engine.samples_itself() && self.sampling == Sampling::InProgramOnly {
            let asked =
                [("top-k", self.top_k.is_some()), ("top-p", self.top_p.is_some()), ("a seed", self.seed.is_some())];
            if let Some((what, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
                return Err(Error::NeedsSampling(what));
            }
        }
        let (plain, none) = (Settings::PLAIN, Penalties::NONE);
        let settings = Settings {
            temperature: self.temperature,
            top_k: self.top_k.unwrap_or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
            min_p: self.min_p.unwrap_or(plain.min_p),
            exact_tail: self.exact_tail,
        };
        let penalties = Penalties {
            repetition: self.repetition_penalty.unwrap_or(none.repetition),
            presence: self.presence_penalty.unwrap_or(none.presence),
            frequency: self.frequency_penalty.unwrap_or(none.frequency),
        };
        let token = TokenSettings { settings, penalties, log_probabilities: self.log_probabilities, seed: 0 };
        token.check(engine)?;
        let seed = match (engine.takes_seed(), self.seed) {
            (true, seed) => Some(seed.unwrap_or_else(random_seed)),
            (false, None) => None,
            (false, Some(_)) => return Err(Error::TakesNoSeed),
        };
        Ok(Schedule { token, seed })
    }
}

impl Schedule {
    /// Returns temperature, top-k, top-p, min-p and exact tail.
    pub fn settings(&self) -> Settings {
        self.token.settings
    }

    /// Returns the seed of the first token: the given or a random one, to be printed so that the text can be repeated (S1.5).
    /// `None` if the program takes no seed.
    pub fn seed(&self) -> Option<i64> {
        self.seed
    }

    /// Returns how the token of a step is sampled: step 0 is the token after the prompt, step `i` that of the `i`-th decode
    /// step (S1.4). Seeds wrap around, and since only their low 32 bits count, at any width.
    pub fn at_step(&self, step: u64) -> TokenSettings {
        TokenSettings { seed: self.seed.unwrap_or(0).wrapping_add_unsigned(step), ..self.token }
    }
}

/// Returns a random number from the operating system.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Returns a random seed of 32 bits, since no more count.
fn random_seed() -> i64 {
    i64::try_from(entropy() >> 32).unwrap_or(0)
}
