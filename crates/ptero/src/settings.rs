//! How tokens are sampled: what was asked for, else what the model's makers recommend, else our defaults.

use crate::error::Result;
use crate::format::GenerationConfig;
use ptero_engine::{Engine, SampleOptions, Sampling};

/// For models that recommend nothing.
const DEFAULTS: Defaults = Defaults { temperature: 0.8, top_k: 40, top_p: 0.95 };
/// The values of fields that a generation config leaves out, as in transformers.
const UNSET: Defaults = Defaults { temperature: 1.0, top_k: 50, top_p: 1.0 };

/// Settings of a chat or generator; `None` is what was not asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) seed: Option<i64>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) host_sampling: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Defaults {
    temperature: f32,
    top_k: i64,
    top_p: f32,
}

impl Defaults {
    fn of(config: &GenerationConfig) -> Self {
        let GenerationConfig { do_sample, temperature, top_k, top_p, .. } = config;
        let has_recommendation = do_sample.is_some() || temperature.is_some() || top_k.is_some() || top_p.is_some();
        let unset = if has_recommendation { UNSET } else { DEFAULTS };
        let temperature = if *do_sample == Some(false) { 0.0 } else { temperature.unwrap_or(unset.temperature) };
        Self { temperature, top_k: top_k.unwrap_or(unset.top_k), top_p: top_p.unwrap_or(unset.top_p) }
    }
}

impl Settings {
    /// Checks the settings and fills in defaults. A random seed is chosen here, so that it can be shown before the first token
    /// (S1.5).
    pub(crate) fn sample_options(&self, config: &GenerationConfig, engine: &Engine) -> Result<SampleOptions> {
        let defaults = Defaults::of(config);
        let sampling = if self.host_sampling { Sampling::HostAllowed } else { Sampling::InProgramOnly };
        // The host filters only if asked to, so that the seed alone repeats a text.
        let has_filters = engine.samples_itself();
        let mut options = SampleOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.or_else(|| has_filters.then_some(defaults.top_k)).filter(|top_k| *top_k != 0),
            top_p: self.top_p.or_else(|| has_filters.then_some(defaults.top_p)),
            seed: self.seed,
            sampling,
        };
        options.seed = options.schedule(engine)?.seed();
        // The request is checked; from here on the seed is ours to pass on.
        options.sampling = Sampling::HostAllowed;
        Ok(options)
    }
}

/// Implements the setters of [`Settings`] for a builder with a field `settings`.
macro_rules! setters {
    ($builder:ident) => {
        impl $builder {
            /// Divides the logits: above 1 flattens the distribution, below 1 sharpens it, 0 takes the most likely token.
            /// The default is the model's, or 0.8.
            pub fn temperature(mut self, temperature: f32) -> Self {
                self.settings.temperature = Some(temperature);
                self
            }

            /// Samples from the `top_k` most likely tokens; 0 keeps all. The default is the model's, or 40.
            pub fn top_k(mut self, top_k: i64) -> Self {
                self.settings.top_k = Some(top_k);
                self
            }

            /// Samples from the most likely tokens whose probabilities add up to `top_p`; 1 keeps all. The default is the
            /// model's, or 0.95.
            pub fn top_p(mut self, top_p: f32) -> Self {
                self.settings.top_p = Some(top_p);
                self
            }

            /// Sets the seed: the same seed gives the same text. The default is a random one.
            pub fn seed(mut self, seed: i64) -> Self {
                self.settings.seed = Some(seed);
                self
            }

            /// Limits the number of tokens of a text.
            pub fn max_tokens(mut self, max_tokens: usize) -> Self {
                self.settings.max_tokens = Some(max_tokens);
                self
            }

            /// Ends a text at these strings, which are not returned.
            pub fn stop<S: Into<String>>(mut self, strings: impl IntoIterator<Item = S>) -> Self {
                self.settings.stop.extend(strings.into_iter().map(Into::into));
                self
            }

            /// Continues after tokens that would end a text.
            pub fn ignore_eos(mut self, ignore_eos: bool) -> Self {
                self.settings.ignore_eos = ignore_eos;
                self
            }

            /// Lets the host sample with top-k, top-p and seed if the program returns logits; the tokens are the same.
            pub fn host_sampling(mut self, host_sampling: bool) -> Self {
                self.settings.host_sampling = host_sampling;
                self
            }
        }
    };
}
pub(crate) use setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_come_from_the_model_as_far_as_it_recommends_any() {
        let of = |json: &str| {
            let Defaults { temperature, top_k, top_p } = Defaults::of(&serde_json::from_str(json).unwrap());
            (temperature, top_k, top_p)
        };
        assert_eq!(of(r#"{"eos_token_id": [1, 2]}"#), (0.8, 40, 0.95), "nothing about sampling");
        assert_eq!(of(r#"{"do_sample": true}"#), (1.0, 50, 1.0), "transformers' own");
        assert_eq!(of(r#"{"temperature": 0.6, "top_k": 20}"#), (0.6, 20, 1.0));
        assert_eq!(of(r#"{"do_sample": false, "temperature": 0.6}"#), (0.0, 50, 1.0), "greedy");
    }
}
