//! What a user may ask of the sampler, what is refused (S1.6), and the seed that each token is drawn with (S1.4).

use crate::error::{Error, Result};
use crate::model::Model;
use ptero_sampling::settings::Settings;

/// What a user asked of the sampler. `None` is what was not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleOptions {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Draw among this many of the likeliest tokens, at least 1.
    pub top_k: Option<i64>,
    /// Draw among the likeliest tokens that together have this mass, in (0, 1].
    pub top_p: Option<f32>,
    /// The same seed gives the same text. Without one, a random one is taken, and told.
    pub seed: Option<i64>,
    /// Who may draw.
    pub sampling: Sampling,
}

/// Who may draw with top-k, top-p or a seed. With a temperature alone, the token of a program that returns logits is always
/// drawn on the host (S1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Only the program: one that returns logits refuses them (S1.6).
    #[default]
    InProgramOnly,
    /// Also the host, which gives the same tokens.
    HostAllowed,
}

/// How all tokens of a text are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    settings: Settings,
    seed: Option<i64>,
}

/// How one token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// What it is drawn among.
    pub settings: Settings,
    /// Its seed, of which the low 32 bits count.
    pub seed: i64,
}

impl Draw {
    /// The most likely token.
    pub const GREEDY: Self = Self { settings: Settings::GREEDY, seed: 0 };
}

impl SampleOptions {
    /// The schedule of a text, if the model can do what is asked.
    ///
    /// # Errors
    /// For settings without meaning, and for what the program cannot do (S1.6).
    pub fn schedule(&self, model: &Model) -> Result<Schedule> {
        if !model.samples_itself() && self.sampling == Sampling::InProgramOnly {
            let asked =
                [("top-k", self.top_k.is_some()), ("top-p", self.top_p.is_some()), ("a seed", self.seed.is_some())];
            if let Some((what, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
                return Err(Error::NeedsSampling(what));
            }
        }
        let plain = Settings::PLAIN;
        let settings = Settings {
            temperature: self.temperature,
            top_k: self.top_k.unwrap_or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
        };
        settings.check()?;
        let seed = match (model.takes_seed(), self.seed) {
            (true, seed) => Some(seed.unwrap_or_else(random_seed)),
            (false, None) => None,
            (false, Some(_)) => return Err(Error::TakesNoSeed),
        };
        Ok(Schedule { settings, seed })
    }
}

impl Schedule {
    /// What tokens are drawn among.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The seed of the first token: the one that was given, or a random one, to be printed so that the run can be repeated
    /// (S1.5). `None` where the program takes none.
    pub fn seed(&self) -> Option<i64> {
        self.seed
    }

    /// How the token of a step is drawn: 0 is the one after the prompt, `i` that of the `i`-th step of decoding (S1.4). Seeds
    /// wrap; since only their low 32 bits count, where they do makes no difference.
    pub fn draw(&self, step: u64) -> Draw {
        Draw { settings: self.settings, seed: self.seed.unwrap_or(0).wrapping_add_unsigned(step) }
    }
}

/// A number that nobody chose.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// A seed that nobody chose: 32 bits, since no more count.
fn random_seed() -> i64 {
    i64::try_from(entropy() >> 32).unwrap_or(0)
}
