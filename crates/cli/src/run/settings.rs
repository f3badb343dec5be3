//! Arguments of the sampler, and the text that shows its settings.

use anyhow::{Context, Result};
use clap::Args;
use ptero::{LogProbabilities, SampleOptions, TokenId};
use ptero_engine::MOST_LIKELIEST;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

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

    /// Sample from tokens at least P times as likely as the most likely one; 0 for all [default: the model's, or 0]
    #[arg(long, alias = "min_p", value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,

    /// Penalize tokens of the prompt and the text: divide their logits by X, or multiply negative ones; 1 for none
    /// [default: the model's, or 1]
    #[arg(long, aliases = ["repetition_penalty", "repeat-penalty", "repeat_penalty"], value_name = "X")]
    #[arg(allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,

    /// Subtract X from the logits of tokens that the text has [default: 0]
    #[arg(long, alias = "presence_penalty", value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,

    /// Subtract X from the logits of tokens of the text, as often as it has them [default: 0]
    #[arg(long, alias = "frequency_penalty", value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,

    /// Add X to the logit of a token, such as 1234=-5 or 1234-5; can be repeated
    #[arg(long, alias = "logit_bias", value_name = "ID=X", value_parser = bias)]
    pub logit_bias: Vec<(TokenId, f32)>,

    /// Draw very unlikely tokens, too, as often as they should be: with 64 random bits for each token. Otherwise those below a
    /// probability of about 2^-24 are drawn too rarely or never
    #[arg(long, alias = "exact_tail")]
    pub exact_tail: bool,

    /// Generate JSON that the JSON Schema in a file allows
    #[arg(long, value_name = "FILE", group = "structure")]
    pub json_schema: Option<PathBuf>,

    /// Generate text that matches a regular expression as a whole
    #[arg(long, value_name = "REGEX", group = "structure", allow_hyphen_values = true)]
    pub regex: Option<String>,

    /// Generate text that follows the Lark grammar in a file
    #[arg(long, value_name = "FILE", group = "structure")]
    pub grammar: Option<PathBuf>,

    /// Seed of the sampler; -1 for a random one [default: random, and printed]
    #[arg(short, long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,

    /// Generate N texts from one prompt: the first with the seed, the others with seeds that follow from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    #[arg(conflicts_with = "chat", hide_default_value = true)]
    pub choices: u32,

    /// Print log-probabilities of each token and of the N likeliest ones, up to 20; `N,processed` for those after all of the
    /// above
    #[arg(long, value_name = "N", value_parser = logprobs, requires = "json")]
    pub logprobs: Option<Logprobs>,

    /// Sample on the host if the program returns logits; the tokens are the same
    #[arg(long, alias = "host_sampling")]
    pub host_sampling: bool,
}

/// What a text has to follow, read from files.
pub(super) struct Structure {
    pub(super) json_schema: Option<String>,
    pub(super) grammar: Option<String>,
}

/// The largest file of a schema or a grammar in bytes; reading them has a lower limit of its own.
const MOST_SOURCE_BYTES: u64 = 64 << 20;

fn read_source(path: &Path) -> Result<String> {
    let mut source = String::new();
    let file = File::open(path).with_context(|| format!("could not read {}", path.display()))?;
    let read = file.take(MOST_SOURCE_BYTES).read_to_string(&mut source);
    read.with_context(|| format!("could not read {}", path.display()))?;
    Ok(source)
}

/// The value of `--logprobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logprobs {
    /// The number of tokens that are printed.
    pub count: usize,
    /// Which log-probabilities.
    pub which: LogProbabilities,
}

fn logprobs(text: &str) -> Result<Logprobs> {
    let (count, which) = match text.split_once(',') {
        Some((count, "processed")) => (count, LogProbabilities::Processed),
        None if text == "processed" => ("0", LogProbabilities::Processed),
        _ => (text, LogProbabilities::Model),
    };
    let count = count.parse().ok().filter(|count| *count <= MOST_LIKELIEST);
    let count = count.with_context(|| format!("a number from 0 to {MOST_LIKELIEST}, or `N,processed`"))?;
    Ok(Logprobs { count, which })
}

/// Parses `ID=X`, and as in llama.cpp `ID+X` and `ID-X`.
fn bias(text: &str) -> Result<(TokenId, f32)> {
    let at = text.find(['=', '+', '-']).context("a token id and a number, such as 1234=-5")?;
    let (token, bias) = text.split_at(at);
    let token = token.parse().with_context(|| format!("`{token}` is not a token id"))?;
    let bias = bias.strip_prefix('=').unwrap_or(bias);
    Ok((token, bias.parse().with_context(|| format!("`{bias}` is not a number"))?))
}

impl SamplingArgs {
    /// Returns the contents of the files that are named.
    pub(super) fn structure(&self) -> Result<Structure> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(read_source).transpose();
        Ok(Structure { json_schema: read(&self.json_schema)?, grammar: read(&self.grammar)? })
    }

    /// Returns `true` if an option needs the full sampling head. The host can do all of them with logits.
    pub(super) fn needs_full_sampler(&self) -> bool {
        let is_set = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
        let is_needed = is_set(self.min_p, 0.0)
            || is_set(self.repetition_penalty, 1.0)
            || is_set(self.presence_penalty, 0.0)
            || is_set(self.frequency_penalty, 0.0)
            || self.exact_tail
            || !self.logit_bias.is_empty()
            || self.logprobs.is_some()
            || self.json_schema.is_some()
            || self.regex.is_some()
            || self.grammar.is_some();
        is_needed && !self.host_sampling
    }
}

/// Describes settings.
pub(super) fn words(options: &SampleOptions) -> String {
    let SampleOptions { temperature, top_k, top_p, min_p, .. } = *options;
    let mut words = vec![if temperature == 0.0 { "greedy".to_owned() } else { format!("temperature {temperature}") }];
    if temperature != 0.0 {
        words.extend(top_k.map(|top_k| format!("top-k {top_k}")));
        words.extend(top_p.filter(|top_p| *top_p < 1.0).map(|top_p| format!("top-p {top_p}")));
        words.extend(min_p.filter(|min_p| *min_p > 0.0).map(|min_p| format!("min-p {min_p}")));
        words.extend(options.exact_tail.then(|| "exact tail".to_owned()));
    }
    let penalties = [
        ("repetition", options.repetition_penalty, 1.0),
        ("presence", options.presence_penalty, 0.0),
        ("frequency", options.frequency_penalty, 0.0),
    ];
    for (name, penalty, neutral) in penalties {
        let penalty = penalty.filter(|penalty| *penalty != neutral);
        words.extend(penalty.map(|penalty| format!("{name} penalty {penalty}")));
    }
    words.join(", ")
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
        let more = SampleOptions { min_p: Some(0.05), presence_penalty: Some(0.5), top_p: None, ..all };
        assert_eq!(words(more), "temperature 0.8, top-k 40, min-p 0.05, presence penalty 0.5");
        assert_eq!(
            words(SampleOptions { exact_tail: true, ..all }),
            "temperature 0.8, top-k 40, top-p 0.95, exact tail"
        );
        let greedy = SampleOptions { temperature: 0.0, repetition_penalty: Some(1.1), ..all };
        assert_eq!(words(greedy), "greedy, repetition penalty 1.1");
    }

    #[test]
    fn biases_and_log_probabilities_are_parsed() {
        assert_eq!(bias("12=-5").unwrap(), (12, -5.0));
        assert_eq!((bias("12-5").unwrap(), bias("12+0.5").unwrap()), ((12, -5.0), (12, 0.5)));
        for text in ["12", "x=1", "=1", "12=x", "-12=1", "12="] {
            assert!(bias(text).is_err(), "{text}");
        }
        let (model, processed) = (LogProbabilities::Model, LogProbabilities::Processed);
        assert_eq!(logprobs("5").unwrap(), Logprobs { count: 5, which: model });
        assert_eq!(logprobs("20,processed").unwrap(), Logprobs { count: 20, which: processed });
        assert_eq!(logprobs("processed").unwrap(), Logprobs { count: 0, which: processed });
        for text in ["21", "-1", "x", "5,", "5,x", ""] {
            assert!(logprobs(text).is_err(), "{text}");
        }
    }
}
