//! Arguments of the sampler, and how settings are shown.

use anyhow::{Result, ensure};
use clap::Args;
use ptero::{SampleOptions, Settings};
use std::fmt;

/// How to sample: arguments of every command that generates.
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

impl SamplingArgs {
    /// Refuses what no program has.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.min_p.is_none_or(|min_p| min_p == 0.0),
            "min-p is not part of the sampler, which has temperature, top-k and top-p\nhint: use `--top-p`"
        );
        Ok(())
    }
}

/// Shows settings in words.
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

    #[test]
    fn settings_are_shown_in_words() {
        let words = |options: SampleOptions| Words(&options).to_string();
        let all = SampleOptions { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), ..SampleOptions::default() };
        assert_eq!(words(all), "temperature 0.8, top-k 40, top-p 0.95");
        assert_eq!(words(SampleOptions { top_k: None, top_p: Some(1.0), ..all }), "temperature 0.8");
        assert_eq!(words(SampleOptions { temperature: 0.0, ..all }), "greedy");
    }
}
