//! What was measured: the names that `--json` promises.

use super::BenchArgs;
use super::setup::{Device, Source};
use ptero_cpu::machine::Spread;
use ptero_engine::{Engine, Settings};
use serde::Serialize;

/// How `bytes_per_step` is counted.
pub(super) const BYTES_COUNTED: &str = "what the steps of the plan read for one token: weights (of an embedding the rows looked up, of experts as many as are chosen) and state (keys and values up to the position, recurrent state); the mean over the positions of the test; without writes and without what lives only within a step";

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub model: String,
    /// Bytes of the file, and of its data files, where the model is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_bytes: Option<u64>,
    /// Whether tokens are drawn in the program; otherwise on the host.
    pub samples_in_program: bool,
    /// How many tokens there are.
    pub vocabulary: usize,
    /// How many positions there are.
    pub context: usize,
    /// The most tokens of one call; longer prompts go in several.
    pub max_prefill: usize,
    /// Where it ran.
    pub device: String,
    /// The instructions of the host.
    pub instructions: &'static str,
    /// How often each test was run, after once to warm up.
    pub repeats: u32,
    /// The version of ptero.
    pub version: &'static str,
    /// One for each number of threads.
    pub runs: Vec<Run>,
    /// Tests that did not fit.
    pub skipped: Vec<Skipped>,
    /// How `bytes_per_step` is counted.
    pub bytes_counted: &'static str,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        source: &Source,
        device: &Device,
        model: &Engine,
        skipped: Vec<Skipped>,
    ) -> Self {
        Self {
            model: source.program.name().to_owned(),
            model_bytes: source.bytes,
            samples_in_program: model.samples_itself(),
            vocabulary: model.vocabulary(),
            context: model.context(),
            max_prefill: model.max_prefill(),
            device: device.name.to_owned(),
            instructions: device.instructions(),
            repeats: args.repeat,
            version: env!("CARGO_PKG_VERSION"),
            runs: Vec::new(),
            skipped,
            bytes_counted: BYTES_COUNTED,
        }
    }
}

/// With so many threads.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// How many.
    pub threads: usize,
    /// Mapping and checking the file.
    pub open_ms: f64,
    /// Lowering and compiling.
    pub compile_ms: f64,
    /// The first prompt of all, before anything was warm.
    pub first_token: FirstToken,
    /// The tests, in the order in which they ran.
    pub tests: Vec<Test>,
    /// With `--sampling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Comparison>,
}

/// From a compiled program to the first token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FirstToken {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Making the state, and the prompt.
    pub ms: f64,
}

/// A median with the range around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each field is what it is called")]
pub struct Figures {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Figures {
    /// So many per second.
    pub(super) fn rate(count: f64, seconds: Spread) -> Self {
        let Spread { median, least, most } = seconds;
        Self { median: count / median, least: count / most, most: count / least }
    }

    /// Each as milliseconds of one of so many.
    pub(super) fn milliseconds(count: f64, seconds: Spread) -> Self {
        let [median, least, most] = [seconds.median, seconds.least, seconds.most].map(|seconds| 1e3 * seconds / count);
        Self { median, least, most }
    }
}

/// A test.
#[derive(Clone, Debug, Serialize)]
pub struct Test {
    /// `prefill` or `decode`.
    pub test: &'static str,
    /// Tokens of the prompt, or steps of decoding.
    pub tokens: usize,
    /// Positions that were filled before decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// The figure.
    pub tokens_per_s: Figures,
    /// The same, the other way round.
    pub ms_per_token: Figures,
    /// How near decoding comes to what memory allows.
    #[serde(flatten)]
    pub traffic: Option<Traffic>,
}

/// What a step of decoding reads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traffic {
    /// Bytes.
    pub bytes_per_step: Bytes,
    /// Those over the median time.
    pub gb_per_s: f64,
    /// What as many threads read from memory, measured after the test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_gb_per_s: Option<f64>,
    /// The one over the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_bandwidth: Option<f64>,
}

/// Bytes of a step, the mean over its positions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bytes {
    /// Weights.
    pub weights: u64,
    /// State.
    pub state: u64,
}

/// A test that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// `prefill` or `decode`.
    pub test: &'static str,
    /// As in [`Test`].
    pub tokens: usize,
    /// As in [`Test`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Why.
    pub reason: String,
}

/// Drawing tokens in the program, beside drawing them on the host.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// As it is.
    pub temperature: f32,
    /// As it is; 0 is all tokens.
    pub top_k: i64,
    /// As it is.
    pub top_p: f32,
    /// Steps of decoding per round.
    pub tokens: usize,
    /// Positions that were filled before.
    pub depth: usize,
    /// Rounds; within one, all samplers decode the same text, some steps each in turns.
    pub rounds: u32,
    /// Whether the program returned logits and was given the head that samples.
    pub grafted: bool,
    /// The program first. All drew the same tokens: it is an error if not.
    pub samplers: Vec<Sampled>,
}

impl Comparison {
    /// The settings in words.
    pub(super) fn settings(&self) -> String {
        let top_k = if self.top_k == 0 { "all".to_owned() } else { self.top_k.to_string() };
        format!("temperature {}, top-k {top_k}, top-p {}", self.temperature, self.top_p)
    }

    pub(super) fn with(settings: Settings) -> Self {
        let Settings { temperature, top_k, top_p } = settings;
        let top_k = if top_k == Settings::PLAIN.top_k { 0 } else { top_k };
        Self { temperature, top_k, top_p, tokens: 0, depth: 0, rounds: 0, grafted: false, samplers: Vec::new() }
    }
}

/// One of the ways.
#[derive(Clone, Debug, Serialize)]
pub struct Sampled {
    /// `program`, `host_fast` or `host_reference`.
    pub sampler: &'static str,
    /// What that is.
    pub what: &'static str,
    /// Of a step: the median of each round, and of those the median and the range.
    pub ms_per_token: Figures,
    /// By how much the program decodes faster than this, round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_is_faster_percent: Option<Figures>,
}
