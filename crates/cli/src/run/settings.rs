//! What tokens are drawn with: what was asked for, else what the model's makers recommend, else our defaults.

use crate::model::GenerationConfig;
use anyhow::{Result, bail};
use clap::Args;
use ptero_engine::{Model, SampleOptions, Sampling, Settings};
use std::fmt;

/// For models that recommend nothing.
const DEFAULTS: Defaults = Defaults { temperature: 0.8, top_k: 40, top_p: 0.95 };
/// What a generation config means by what it leaves out.
const UNSAID: Defaults = Defaults { temperature: 1.0, top_k: 50, top_p: 1.0 };

/// How to draw tokens: arguments of every command that generates.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Flattens the distribution above 1, sharpens it below; 0 takes the most likely token [default: the model's, or 0.8]
    #[arg(long, visible_alias = "temp", value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Draw among the K most likely tokens; 0 is all [default: the model's, or 40]
    #[arg(long, alias = "top_k", value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,

    /// Draw among the likeliest tokens that together have this probability; 1 is all [default: the model's, or 0.95]
    #[arg(long, alias = "top_p", value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Not supported by the programs' sampler; here to say so
    #[arg(long, alias = "min_p", value_name = "P", hide = true, allow_negative_numbers = true)]
    pub min_p: Option<f32>,

    /// The same seed gives the same text; -1 is a random one [default: random, and printed]
    #[arg(short, long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,

    /// Let the host draw with top-k, top-p and seed if the program returns logits; the tokens are the same
    #[arg(long, alias = "host_sampling")]
    pub host_sampling: bool,
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
        let says_something = do_sample.is_some() || temperature.is_some() || top_k.is_some() || top_p.is_some();
        let unsaid = if says_something { UNSAID } else { DEFAULTS };
        let temperature = if *do_sample == Some(false) { 0.0 } else { temperature.unwrap_or(unsaid.temperature) };
        Self { temperature, top_k: top_k.unwrap_or(unsaid.top_k), top_p: top_p.unwrap_or(unsaid.top_p) }
    }
}

impl SamplingArgs {
    /// What to draw with, and with which seed: a random one is chosen here, so that it can be told before the first token
    /// (S1.5).
    ///
    /// # Errors
    /// For what makes no sense, or the program cannot do (S1.6).
    pub fn options(&self, config: &GenerationConfig, model: &Model) -> Result<SampleOptions> {
        if self.min_p.is_some_and(|min_p| min_p != 0.0) {
            bail!("min-p is not part of the sampler, which has temperature, top-k and top-p\nhint: use `--top-p`");
        }
        let defaults = Defaults::of(config);
        let sampling = if self.host_sampling { Sampling::HostAllowed } else { Sampling::InProgramOnly };
        // A recommendation is no request: a host that draws filters only when asked to, so that the seed alone repeats a text.
        let has_filters = model.samples_itself();
        let mut options = SampleOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.or_else(|| has_filters.then_some(defaults.top_k)).filter(|top_k| *top_k != 0),
            top_p: self.top_p.or_else(|| has_filters.then_some(defaults.top_p)),
            seed: self.seed.filter(|seed| *seed != -1),
            sampling,
        };
        options.seed = options.schedule(model)?.seed();
        // What was asked for has been checked; from here on the seed is ours to give.
        options.sampling = Sampling::HostAllowed;
        Ok(options)
    }
}

/// Settings in words.
pub(crate) struct Words<'a>(pub(crate) &'a SampleOptions);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SampleOptions { temperature, top_k, top_p, .. } = self.0;
        if *temperature == 0.0 {
            return f.write_str("greedy");
        }
        write!(f, "temperature {temperature}")?;
        top_k.map_or(Ok(()), |top_k| write!(f, ", top-k {top_k}"))?;
        top_p.filter(|top_p| *top_p < Settings::PLAIN.top_p).map_or(Ok(()), |top_p| write!(f, ", top-p {top_p}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> GenerationConfig {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn defaults_come_from_the_model_as_far_as_it_says_something() {
        let of = |json: &str| {
            let Defaults { temperature, top_k, top_p } = Defaults::of(&config(json));
            (temperature, top_k, top_p)
        };
        assert_eq!(of(r#"{"eos_token_id": [1, 2]}"#), (0.8, 40, 0.95), "nothing about drawing");
        assert_eq!(of(r#"{"do_sample": true}"#), (1.0, 50, 1.0), "transformers' own");
        assert_eq!(of(r#"{"temperature": 0.6, "top_k": 20}"#), (0.6, 20, 1.0));
        assert_eq!(of(r#"{"do_sample": false, "temperature": 0.6}"#), (0.0, 50, 1.0), "greedy");
    }

    #[test]
    fn settings_are_told_in_words_that_are_true() {
        let words = |options: SampleOptions| Words(&options).to_string();
        let all = SampleOptions { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), ..SampleOptions::default() };
        assert_eq!(words(all), "temperature 0.8, top-k 40, top-p 0.95");
        assert_eq!(words(SampleOptions { top_k: None, top_p: Some(1.0), ..all }), "temperature 0.8");
        assert_eq!(words(SampleOptions { temperature: 0.0, ..all }), "greedy");
    }
}
