//! Arguments of the sampler, and the text that shows its settings.

use anyhow::{Result, ensure};
use clap::Args;
use ptero::{SampleOptions, Settings};

/// Arguments of the sampler.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Sampling temperature; 0 is greedy [default: the model's, or 0.8]
    #[arg(long, visible_alias = "temp", value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Sample from the K most likely tokens; 0 for all [default: the model's, or 40]
    #[arg(long, alias = "top_k", value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,

    /// Sample from the most likely tokens whose probabilities add up to P; 1 for all [default: the model's, or 0.95]
    #[arg(long, alias = "top_p", value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Not supported by the sampler; accepted so that the error can say so
    #[arg(long, alias = "min_p", value_name = "P", hide = true, allow_negative_numbers = true)]
    pub min_p: Option<f32>,

    /// Seed of the sampler; -1 for a random one [default: random, and printed]
    #[arg(short, long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,

    /// Sample on the host if the program returns logits; the tokens are the same
    #[arg(long, alias = "host_sampling")]
    pub host_sampling: bool,
}

impl SamplingArgs {
    /// Refuses settings that no program supports.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.min_p.is_none_or(|min_p| min_p == 0.0),
            "min-p is not part of the sampler, which has temperature, top-k and top-p\nhint: use `--top-p`"
        );
        Ok(())
    }
}

/// Describes settings.
pub(super) fn words(options: &SampleOptions) -> String {
    let SampleOptions { temperature, top_k, top_p, .. } = options;
    if *temperature == 0.0 {
        return "greedy".to_owned();
    }
    let top_k = top_k.map(|top_k| format!(", top-k {top_k}")).unwrap_or_default();
    let top_p = top_p.filter(|top_p| *top_p < Settings::PLAIN.top_p);
    format!("temperature {temperature}{top_k}{}", top_p.map(|top_p| format!(", top-p {top_p}")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_in_words() {
        let words = |options: SampleOptions| words(&options);
        let all = SampleOptions { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), ..SampleOptions::default() };
        assert_eq!(words(all), "temperature 0.8, top-k 40, top-p 0.95");
        assert_eq!(words(SampleOptions { top_k: None, top_p: Some(1.0), ..all }), "temperature 0.8");
        assert_eq!(words(SampleOptions { temperature: 0.0, ..all }), "greedy");
    }
}
