//! What was measured: the fields of the JSON output.

use super::BenchArgs;
use super::profile::Profile;
use super::setup::{Device, Source};
use ptero_cpu::machine::Spread;
use ptero_engine::Engine;
use serde::Serialize;

/// How `bytes_per_step` is counted.
pub(super) const BYTES_COUNTED: &str = "what the steps of the plan read for one token: weights (of an embedding the rows looked up, of experts as many as are chosen) and state (keys and values up to the position, recurrent state); the mean over the positions of the test; without writes and without what lives only within a step";

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the model.
    pub model: String,
    /// The size of the program and its data files; `None` if the model is not a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_bytes: Option<u64>,
    /// `true` if the program samples its own tokens, `false` if the host samples them from logits.
    pub samples_in_program: bool,
    /// The size of the vocabulary.
    pub vocabulary: usize,
    /// The number of positions.
    pub context: usize,
    /// The maximum number of tokens per call; longer prompts are split.
    pub max_prefill: usize,
    /// The name of the device.
    pub device: String,
    /// The instruction set of the host.
    pub instructions: &'static str,
    /// The number of repetitions of each test, without the warm-up.
    pub repeats: u32,
    /// The version of ptero.
    pub version: &'static str,
    /// One run for each number of threads.
    pub runs: Vec<Run>,
    /// Tests that do not fit the context.
    pub skipped: Vec<Skipped>,
    /// How `bytes_per_step` is counted.
    pub bytes_counted: &'static str,
}

impl Report {
    pub(super) fn new(args: &BenchArgs, source: &Source, device: &Device, model: &Engine) -> Self {
        Self {
            model: source.program.name().to_owned(),
            model_bytes: source.bytes,
            samples_in_program: model.samples_itself(),
            vocabulary: model.vocabulary(),
            context: model.context(),
            max_prefill: model.max_prefill(),
            device: device.name.to_owned(),
            instructions: device.host.isa().name(),
            repeats: args.repeat,
            version: env!("CARGO_PKG_VERSION"),
            runs: Vec::new(),
            skipped: Vec::new(),
            bytes_counted: BYTES_COUNTED,
        }
    }
}

/// The tests with one number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The number of threads.
    pub threads: usize,
    /// The time to map and verify the file.
    pub open_ms: f64,
    /// The time to lower and compile the program.
    pub compile_ms: f64,
    /// The very first prompt, before any warm-up.
    pub first_token: FirstToken,
    /// The tests, in the order in which they ran.
    pub tests: Vec<Test>,
    /// The comparison of samplers, with `--sampling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Comparison>,
}

/// The time from a compiled program to the first token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FirstToken {
    /// The length of the prompt.
    pub prompt_tokens: usize,
    /// The time to create the state and to process the prompt.
    pub ms: f64,
}

/// A median and its range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each field is what it is called")]
pub struct Figures {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Figures {
    /// Applies an increasing function to the median and the range.
    pub(super) fn map(spread: Spread, function: impl Fn(f64) -> f64) -> Self {
        let [median, least, most] = [spread.median, spread.least, spread.most].map(function);
        Self { median, least, most }
    }
}

/// A test.
#[derive(Clone, Debug, Serialize)]
pub struct Test {
    /// `prefill` or `decode`.
    pub test: &'static str,
    /// The length of the prompt, or the number of decoding steps.
    pub tokens: usize,
    /// The number of positions that were filled before decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// The number of sessions that were decoded at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<usize>,
    /// Tokens per second, of all lanes together.
    pub tokens_per_s: Figures,
    /// Milliseconds per token of one lane.
    pub ms_per_token: Figures,
    /// The memory traffic of decoding.
    #[serde(flatten)]
    pub traffic: Option<Traffic>,
    /// Where the time goes, with `--profile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

impl Test {
    pub(super) fn new(test: &'static str, tokens: usize, depth: Option<usize>, seconds: Spread) -> Self {
        let count = tokens as f64;
        let Figures { median, least: most, most: least } = Figures::map(seconds, |seconds| count / seconds);
        let (tokens_per_s, ms_per_token) =
            (Figures { median, least, most }, Figures::map(seconds, |seconds| 1e3 * seconds / count));
        Self { test, tokens, depth, lanes: None, tokens_per_s, ms_per_token, traffic: None, profile: None }
    }

    /// The same test with several sessions at once, each of which decoded all tokens.
    pub(super) fn with_lanes(mut self, lanes: usize) -> Self {
        self.lanes = (lanes > 1).then_some(lanes);
        let Figures { median, least, most } = &mut self.tokens_per_s;
        [median, least, most].into_iter().for_each(|figure| *figure *= lanes as f64);
        self
    }
}

/// What a decoding step reads from memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traffic {
    /// The number of bytes.
    pub bytes_per_step: Bytes,
    /// The bytes divided by the median time.
    pub gb_per_s: f64,
    /// The read bandwidth of the same number of threads, measured after the test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_gb_per_s: Option<f64>,
    /// `gb_per_s` divided by `machine_gb_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_bandwidth: Option<f64>,
}

impl Traffic {
    pub(super) fn new(bytes_per_step: Bytes, ms: f64, bandwidth: Option<f64>) -> Self {
        let gb_per_s = 1e-6 * bytes_per_step.total() / ms;
        let machine_gb_per_s = bandwidth.map(|bandwidth| 1e-9 * bandwidth);
        let share_of_bandwidth = machine_gb_per_s.map(|machine| gb_per_s / machine);
        Self { bytes_per_step, gb_per_s, machine_gb_per_s, share_of_bandwidth }
    }
}

/// The bytes that a step reads, averaged over its positions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bytes {
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of state.
    pub state: u64,
}

impl Bytes {
    pub(super) fn total(self) -> f64 {
        (self.weights + self.state) as f64
    }
}

/// A test that was skipped.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// `prefill` or `decode`.
    pub test: &'static str,
    /// Same as [`Test::tokens`].
    pub tokens: usize,
    /// Same as [`Test::depth`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Why it was skipped.
    pub reason: String,
}

/// Sampling in the program, compared with sampling on the host.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The temperature.
    pub temperature: f32,
    /// Top-k; 0 keeps all tokens.
    pub top_k: i64,
    /// Top-p.
    pub top_p: f32,
    /// The number of decoding steps per round.
    pub tokens: usize,
    /// The number of positions that were filled before decoding.
    pub depth: usize,
    /// The number of rounds; in each, the samplers take turns to decode the same text.
    pub rounds: u32,
    /// `true` if the program returned logits and a sampling head was added to it.
    pub grafted: bool,
    /// The samplers, the program first. It is an error if their tokens differ.
    pub samplers: Vec<Sampled>,
}

/// How fast one sampler is.
#[derive(Clone, Debug, Serialize)]
pub struct Sampled {
    /// Its name.
    pub sampler: &'static str,
    /// Where and how it samples.
    pub what: &'static str,
    /// The median step of each round: the median and the range over the rounds.
    pub ms_per_token: Figures,
    /// By how much the program decodes faster than this sampler, compared round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_is_faster_percent: Option<Figures>,
}
