//! How tokens are sampled: what was asked for, else what the model's makers recommend, else our defaults.

use crate::error::Result;
use crate::format::GenerationConfig;
use crate::grammar::GrammarSource;
use ptero_engine::{Engine, LogProbabilities, SampleOptions, Sampling, TokenId};

/// For models that recommend nothing.
const DEFAULTS: Defaults = Defaults { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: None, repetition_penalty: None };
/// The values of fields that a generation config leaves out, as in transformers.
const UNSET: Defaults = Defaults { temperature: 1.0, top_k: 50, top_p: 1.0, ..DEFAULTS };

/// Settings of a chat or generator; `None` is what was not asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) exact_tail: bool,
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
    pub(crate) log_probabilities: LogProbabilities,
    pub(crate) grammar: Option<GrammarSource>,
    pub(crate) seed: Option<i64>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) shown: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) host_sampling: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Defaults {
    temperature: f32,
    top_k: i64,
    top_p: f32,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl Defaults {
    pub(crate) fn of(config: &GenerationConfig) -> Self {
        let GenerationConfig { do_sample, temperature, top_k, top_p, min_p, repetition_penalty, .. } = *config;
        let numbers = [temperature, top_p, min_p];
        let has_recommendation = do_sample.is_some() || top_k.is_some() || numbers.iter().any(Option::is_some);
        let unset = if has_recommendation { UNSET } else { DEFAULTS };
        let temperature = if do_sample == Some(false) { 0.0 } else { temperature.unwrap_or(unset.temperature) };
        let (top_k, top_p) = (top_k.unwrap_or(unset.top_k), top_p.unwrap_or(unset.top_p));
        Self { temperature, top_k, top_p, min_p, repetition_penalty }
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
        // What a config recommends is followed where the program can; the model says where it cannot.
        let has_all = has_filters && engine.has_full_sampler();
        let mut options = SampleOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.or_else(|| has_filters.then_some(defaults.top_k)).filter(|top_k| *top_k != 0),
            top_p: self.top_p.or_else(|| has_filters.then_some(defaults.top_p)),
            min_p: self.min_p.or(defaults.min_p.filter(|_| has_all)),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty.filter(|_| has_all)),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            exact_tail: self.exact_tail,
            log_probabilities: self.log_probabilities,
            seed: self.seed,
            sampling,
        };
        options.seed = options.schedule(engine)?.seed();
        // The request is checked; from here on the seed is ours to pass on.
        options.sampling = Sampling::HostAllowed;
        Ok(options)
    }

    /// Returns the strings that end a text: those asked for, and those of the model unless nothing of the model ends it.
    pub(crate) fn stops(&self, config: &GenerationConfig) -> Vec<String> {
        let recommended = if self.ignore_eos { &[] } else { config.stop_strings() };
        self.stop.iter().chain(recommended).cloned().collect()
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

            /// Samples from tokens that are at least `min_p` as likely as the most likely one; 0 keeps all. The default is the
            /// model's, or 0.
            ///
            /// This setting, penalties, biases, an exact tail, log-probabilities and grammars need the full sampling head:
            /// [`Options::full_sampler`](crate::Options::full_sampler).
            pub fn min_p(mut self, min_p: f32) -> Self {
                self.settings.min_p = Some(min_p);
                self
            }

            /// Divides the positive logits of tokens of the prompt and the text by `penalty`, and multiplies the negative ones;
            /// 1 changes nothing. The default is the model's, or 1.
            pub fn repetition_penalty(mut self, penalty: f32) -> Self {
                self.settings.repetition_penalty = Some(penalty);
                self
            }

            /// Subtracts `penalty` from the logits of tokens that the text has; 0 changes nothing.
            pub fn presence_penalty(mut self, penalty: f32) -> Self {
                self.settings.presence_penalty = Some(penalty);
                self
            }

            /// Subtracts `penalty` from the logits of tokens of the text, as often as it has them; 0 changes nothing.
            pub fn frequency_penalty(mut self, penalty: f32) -> Self {
                self.settings.frequency_penalty = Some(penalty);
                self
            }

            /// Draws very unlikely tokens, too, as often as they should be, down to probabilities of 2^-60: with 64 random bits for
            /// each token. Without it, tokens less likely than about 2^-24 are drawn too rarely or never, which no reader
            /// will notice.
            pub fn exact_tail(mut self, exact_tail: bool) -> Self {
                self.settings.exact_tail = exact_tail;
                self
            }

            /// Adds numbers to the logits of tokens: 100 makes a token all but certain, -100 excludes it.
            pub fn logit_bias(mut self, biases: impl IntoIterator<Item = (crate::TokenId, f32)>) -> Self {
                self.settings.logit_bias.extend(biases);
                self
            }

            /// Returns log-probabilities with each [`Piece`](crate::Piece): of the model's own distribution, or of what is left
            /// of it after all other settings.
            pub fn log_probabilities(mut self, which: crate::LogProbabilities) -> Self {
                self.settings.log_probabilities = which;
                self
            }

            /// Makes texts JSON that a JSON Schema allows.
            pub fn json_schema(mut self, schema: impl Into<String>) -> Self {
                self.settings.grammar = Some(crate::grammar::GrammarSource::JsonSchema(schema.into()));
                self
            }

            /// Makes texts JSON objects of any kind.
            pub fn json_object(mut self) -> Self {
                self.settings.grammar = Some(crate::grammar::GrammarSource::JsonObject);
                self
            }

            /// Makes texts match a regular expression as a whole.
            pub fn regex(mut self, regex: impl Into<String>) -> Self {
                self.settings.grammar = Some(crate::grammar::GrammarSource::Regex(regex.into()));
                self
            }

            /// Makes texts follow a Lark grammar, in the dialect of [llguidance](https://docs.rs/llguidance).
            pub fn lark_grammar(mut self, grammar: impl Into<String>) -> Self {
                self.settings.grammar = Some(crate::grammar::GrammarSource::Lark(grammar.into()));
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

            /// Ends a text at these strings, which are not returned, as those are that the model recommends.
            pub fn stop<S: Into<String>>(mut self, strings: impl IntoIterator<Item = S>) -> Self {
                self.settings.stop.extend(strings.into_iter().map(Into::into));
                self
            }

            /// Shows these special tokens in texts, which otherwise have none: those that mark thoughts or calls, for example.
            pub fn show_tokens<S: Into<String>>(mut self, tokens: impl IntoIterator<Item = S>) -> Self {
                self.settings.shown.extend(tokens.into_iter().map(Into::into));
                self
            }

            /// Continues after tokens and recommended stop strings that would end a text.
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
            let Defaults { temperature, top_k, top_p, .. } = Defaults::of(&serde_json::from_str(json).unwrap());
            (temperature, top_k, top_p)
        };
        assert_eq!(of(r#"{"eos_token_id": [1, 2]}"#), (0.8, 40, 0.95), "nothing about sampling");
        assert_eq!(of(r#"{"do_sample": true}"#), (1.0, 50, 1.0), "transformers' own");
        assert_eq!(of(r#"{"temperature": 0.6, "top_k": 20}"#), (0.6, 20, 1.0));
        let config: GenerationConfig = serde_json::from_str(r#"{"stop_strings": "END"}"#).unwrap();
        let settings = Settings { stop: vec!["stop".to_owned()], ..Settings::default() };
        assert_eq!(settings.stops(&config), ["stop", "END"]);
        assert_eq!(Settings { ignore_eos: true, ..settings }.stops(&config), ["stop"]);
        assert_eq!(of(r#"{"do_sample": false, "temperature": 0.6}"#), (0.0, 50, 1.0), "greedy");
    }
}
