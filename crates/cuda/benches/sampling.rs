//! How long draws take on a device, as replays of a captured graph.
//!
//! A graph holds [`DRAWS`] draws, one after another; the time of a replay, by events on the stream, is divided by their number.
//! `warm`: all draws read the same logits, which the caches then hold, as they do after a language-model head. `cold`: each reads
//! logits that were not read for longer than the caches last. Bytes are those of the logits, read once.
//!
//! Options: `neutral` are all given but change nothing; `all` are penalties over a history of [`HISTORY`] tokens, [`BIASES`] biases, a
//! mask, min-p and log-probabilities of the model, or of what is drawn from.
//!
//! `--json` prints lines for `benches/ledger.jsonl`; other words select the cases whose name contains one of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark stops where something fails")]

use half::bf16;
use ptero_cuda::{
    Adjustments, Buffer, Device, LogitType, Logits, Request, Results, RowAdjustments, Sampler, SoftmaxSampler, Stream,
};
use ptero_sampling::log_probabilities::LogProbabilities;
use ptero_sampling::noise::gumbel;
use ptero_sampling::threefry::words;

/// Draws in a graph.
const DRAWS: usize = 32;
/// Replays that are timed; odd, so that the median is one of them.
const REPEATS: usize = 51;
/// Tokens so far, a quarter of them the prompt.
const HISTORY: u32 = 2048;
const BIASES: u32 = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_json = arguments.iter().any(|word| word == "--json");
    let filters = arguments.iter().filter(|word| !word.starts_with("--")).cloned().collect();
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let stream = device.stream().unwrap();
    if !is_json {
        println!("{}, {} multiprocessors", device.info().name, device.info().multiprocessors);
        println!("{:44} {:>9} {:>9} {:>9} {:>9}", "", "median us", "least", "most", "GB/s");
    }
    let bench = Bench { stream, is_json, filters };
    bench.sample();
    bench.options();
    bench.categorical();
}

struct Bench {
    stream: Stream,
    is_json: bool,
    filters: Vec<String>,
}

struct Settings {
    name: &'static str,
    temperature: f32,
    top_k: i64,
    top_p: f32,
}

const fn settings(name: &'static str, temperature: f32, top_k: i64, top_p: f32) -> Settings {
    Settings { name, temperature, top_k, top_p }
}

const SETTINGS: [Settings; 6] = [
    settings("greedy", 0.0, i64::MAX, 1.0),
    settings("plain", 1.0, i64::MAX, 1.0),
    settings("top-k 50 top-p 0.95", 0.8, 50, 0.95),
    settings("top-k 50", 0.8, 50, 1.0),
    settings("top-k 1000 top-p 0.95", 0.8, 1000, 0.95),
    settings("top-p 0.95", 0.8, i64::MAX, 0.95),
];

/// What is given beside the settings.
#[derive(Clone, Copy, PartialEq)]
enum Options {
    None,
    Neutral,
    ExactTail,
    All(LogProbabilities),
}

/// Options on the device.
struct Given {
    min_p: Buffer<f32>,
    exact_tail: Buffer<i64>,
    rows: Buffer<RowAdjustments>,
    history: Buffer<i32>,
    bias_tokens: Buffer<i32>,
    bias_values: Buffer<f32>,
    mask: Buffer<i32>,
    which: Buffer<i64>,
}

impl Given {
    fn new(stream: &Stream, rows: usize, vocabulary: usize, options: Options) -> Self {
        let (count, words) = (u32::try_from(rows).unwrap(), u32::try_from(vocabulary.div_ceil(32)).unwrap());
        let token = |word: &u32| i32::try_from((u64::from(*word) * vocabulary as u64) >> 32).unwrap();
        let tokens = |seed, each: u32| words_of(seed, rows * each as usize).iter().map(token).collect::<Vec<i32>>();
        let of_row = |row: u32| match options {
            Options::All(_) => RowAdjustments {
                history: [row * HISTORY, HISTORY],
                prompt_end: HISTORY / 4,
                biases: [row * BIASES, BIASES],
                mask: [row * words, words],
                penalties: [1.1, 0.2, 0.1],
            },
            Options::None | Options::Neutral | Options::ExactTail => RowAdjustments::NONE,
        };
        // One token in 32 is excluded.
        let mask: Vec<i32> = words_of(3, rows * words as usize).iter().map(|word| !(1 << (word & 31))).collect();
        let (min_p, which) = match options {
            Options::All(which) => (0.001, which),
            Options::None | Options::Neutral | Options::ExactTail => (0.0, LogProbabilities::None),
        };
        Self {
            min_p: Buffer::from_slice(stream, &[min_p]).unwrap(),
            exact_tail: Buffer::from_slice(stream, &[i64::from(options == Options::ExactTail)]).unwrap(),
            rows: Buffer::from_slice(stream, &(0..count).map(of_row).collect::<Vec<_>>()).unwrap(),
            history: Buffer::from_slice(stream, &tokens(1, HISTORY)).unwrap(),
            bias_tokens: Buffer::from_slice(stream, &tokens(2, BIASES)).unwrap(),
            bias_values: Buffer::from_slice(stream, &vec![-1.0; rows * BIASES as usize]).unwrap(),
            mask: Buffer::from_slice(stream, &mask).unwrap(),
            which: Buffer::from_slice(stream, &[which.code()]).unwrap(),
        }
    }

    fn adjustments(&self) -> Adjustments<'_> {
        let Self { rows, history, bias_tokens, bias_values, mask, .. } = self;
        Adjustments { rows, history, bias_tokens, bias_values, mask }
    }
}

fn words_of(seed: u32, count: usize) -> Vec<u32> {
    words([11, seed], count)
}

/// Draws that are timed.
struct Draws<'d> {
    name: String,
    settings: &'d Settings,
    options: Options,
    rows: usize,
    vocabulary: usize,
    is_cold: bool,
}

impl Bench {
    fn sample(&self) {
        let sampler = Sampler::new(self.stream.device(), LogitType::F32).unwrap();
        for vocabulary in [32_000, 151_936, 248_320, 262_144] {
            for rows in [1, 8, 64] {
                for distribution in ["model", "normal"] {
                    self.sample_rows(&sampler, rows, vocabulary, distribution);
                }
            }
        }
    }

    fn sample_rows(&self, sampler: &Sampler, rows: usize, vocabulary: usize, distribution: &str) {
        let cases = SETTINGS.iter().flat_map(|settings| [(settings, false), (settings, true)]);
        let mut made = None;
        for (settings, is_cold) in cases {
            let state = if is_cold { "cold" } else { "warm" };
            let name = format!("{} {rows} x {vocabulary} f32 {distribution} {state}", settings.name);
            let draws = Draws { name, settings, options: Options::None, rows, vocabulary, is_cold };
            self.draws(sampler, &draws, &mut made, distribution);
        }
    }

    /// What options cost.
    fn options(&self) {
        let sampler = Sampler::new(self.stream.device(), LogitType::F32).unwrap();
        let vocabulary = 248_320;
        for rows in [1, 8, 64] {
            let mut made = None;
            for settings in &SETTINGS {
                for (title, options) in [
                    ("no options", Options::None),
                    ("neutral", Options::Neutral),
                    ("exact tail", Options::ExactTail),
                    ("all, no log-probabilities", Options::All(LogProbabilities::None)),
                    ("all, of the model", Options::All(LogProbabilities::Model)),
                    ("all, of what is drawn from", Options::All(LogProbabilities::Processed)),
                ] {
                    let name = format!("options {} {rows} x {vocabulary}, {title}", settings.name);
                    let draws = Draws { name, settings, options, rows, vocabulary, is_cold: false };
                    self.draws(&sampler, &draws, &mut made, "model");
                }
            }
        }
    }

    /// Times draws, if they are wanted. Logits are made once for several.
    fn draws(&self, sampler: &Sampler, draws: &Draws<'_>, made: &mut Option<Vec<Buffer<f32>>>, distribution: &str) {
        let Draws { ref name, settings, options, rows, vocabulary, is_cold } = *draws;
        if !self.wants(name) {
            return;
        }
        let sets = made.get_or_insert_with(|| self.logits(rows, vocabulary, distribution));
        let put = |value| Buffer::from_slice(&self.stream, &[value]).unwrap();
        let (temperature, top_p) = (put(settings.temperature), put(settings.top_p));
        let top_k = Buffer::from_slice(&self.stream, &[settings.top_k]).unwrap();
        let given = (options != Options::None).then(|| Given::new(&self.stream, rows, vocabulary, options));
        // Each draw has seeds of its own: what a draw costs depends on what comes out.
        let seeds: Vec<Buffer<i64>> = (0..DRAWS).map(|draw| self.seeds(draw, rows)).collect();
        let mut workspace = sampler.workspace(&self.stream, rows, vocabulary, given.is_some()).unwrap();
        let mut results = Results::new(&self.stream, rows).unwrap();
        let graph = self.stream.capture(|stream| {
            for at in 0..DRAWS {
                let request = Request {
                    logits: Logits::F32(&sets[if is_cold { at % sets.len() } else { 0 }]),
                    temperature: &temperature,
                    top_k: &top_k,
                    top_p: &top_p,
                    min_p: given.as_ref().map(|given| &given.min_p),
                    exact_tail: given.as_ref().map(|given| &given.exact_tail),
                    seed: Some(&seeds[at]),
                    adjustments: given.as_ref().map(Given::adjustments),
                    log_probabilities: given.as_ref().map(|given| &given.which),
                };
                sampler.launch(stream, request, &mut workspace, &mut results)?;
            }
            Ok(())
        });
        match graph {
            Ok(graph) => self.time(name, graph, rows * vocabulary * 4),
            Err(error) => println!("{name:52} refused: {error}"),
        }
    }

    fn categorical(&self) {
        let sampler = SoftmaxSampler::new(self.stream.device(), LogitType::F32).unwrap();
        for (rows, vocabulary) in [(1, 151_936), (1, 248_320), (64, 248_320)] {
            let name = format!("softmax_sample {rows} x {vocabulary} f32 model warm");
            if !self.wants(&name) {
                continue;
            }
            let sets = self.logits(rows, vocabulary, "model");
            let mut workspace = sampler.workspace(&self.stream, rows, vocabulary).unwrap();
            sampler.draw(&self.stream, Logits::F32(&sets[0]), 1.0, &vec![0.3; rows], &mut workspace).unwrap();
            let graph = self.stream.capture(|stream| {
                (0..DRAWS).try_for_each(|_| sampler.launch(stream, Logits::F32(&sets[0]), 1.0, &mut workspace))
            });
            self.time(&name, graph.unwrap(), rows * vocabulary * 4);
        }
        let half = format!("plain 64 x 248320 {}", "bf16 model warm");
        if self.wants(&half) {
            self.half_precision(&half);
        }
    }

    fn half_precision(&self, name: &str) {
        let (rows, vocabulary) = (64, 248_320);
        let sampler = Sampler::new(self.stream.device(), LogitType::Bf16).unwrap();
        let logits: Vec<bf16> = model(rows * vocabulary, 0).into_iter().map(bf16::from_f32).collect();
        let logits = Buffer::from_slice(&self.stream, &logits).unwrap();
        let put = |value: f32| Buffer::from_slice(&self.stream, &[value]).unwrap();
        let (temperature, top_p) = (put(1.0), put(1.0));
        let top_k = Buffer::from_slice(&self.stream, &[i64::MAX]).unwrap();
        let seed = Buffer::from_slice(&self.stream, &(0..).take(rows).collect::<Vec<i64>>()).unwrap();
        let mut workspace = sampler.workspace(&self.stream, rows, vocabulary, false).unwrap();
        let mut results = Results::new(&self.stream, rows).unwrap();
        let request = Request {
            logits: Logits::Bf16(&logits),
            temperature: &temperature,
            top_k: &top_k,
            top_p: &top_p,
            min_p: None,
            exact_tail: None,
            seed: Some(&seed),
            adjustments: None,
            log_probabilities: None,
        };
        let graph = self.stream.capture(|stream| {
            (0..DRAWS).try_for_each(|_| sampler.launch(stream, request, &mut workspace, &mut results))
        });
        self.time(name, graph.unwrap(), rows * vocabulary * 2);
    }

    /// Enough sets of logits that by the time one comes round again, no cache holds it.
    fn logits(&self, rows: usize, vocabulary: usize, distribution: &str) -> Vec<Buffer<f32>> {
        let bytes = (rows * vocabulary * 4) as u64;
        let count = (3 * self.stream.device().info().l2_bytes).div_ceil(bytes).clamp(2, DRAWS as u64);
        let first = if distribution == "model" { model(rows * vocabulary, 0) } else { normal(rows * vocabulary, 1) };
        (0..count).map(|_| Buffer::from_slice(&self.stream, &first).unwrap()).collect()
    }

    /// A seed per row.
    fn seeds(&self, draw: usize, rows: usize) -> Buffer<i64> {
        let seeds: Vec<i64> = (0..).skip(draw * rows).take(rows).collect();
        Buffer::from_slice(&self.stream, &seeds).unwrap()
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    fn time(&self, name: &str, mut graph: ptero_cuda::Captured, bytes: usize) {
        if let Err(error) = graph.launch() {
            return println!("{name:52} refused: {error}");
        }
        let mut replay = || {
            let start = self.stream.record().unwrap();
            graph.launch().unwrap();
            let end = self.stream.record().unwrap();
            start.microseconds_until(&end).unwrap() / DRAWS as f64
        };
        for _ in 0..5 {
            replay();
        }
        let mut times: Vec<f64> = (0..REPEATS).map(|_| replay()).collect();
        times.sort_by(f64::total_cmp);
        let (median, least, most) = (times[REPEATS / 2], times[0], times[REPEATS - 1]);
        let rate = bytes as f64 / median / 1000.0;
        if self.is_json {
            println!(
                r#"{{"case": "{name}", "us": {{"median": {median:.2}, "least": {least:.2}, "most": {most:.2}}}, "gb_per_s": {rate:.0}}}"#
            );
        } else {
            println!("{name:52} {median:9.2} {least:9.2} {most:9.2} {rate:9.0}");
        }
    }
}

/// Normal numbers, by Box and Muller.
#[allow(clippy::cast_possible_truncation, reason = "rounded")]
fn normal(count: usize, seed: u32) -> Vec<f32> {
    let words = words([7, seed], 2 * count);
    let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| ((-2.0 * unit(pair[0]).ln()).sqrt() * (std::f64::consts::TAU * unit(pair[1])).cos()) as f32)
        .collect()
}

/// What models give: a broad bulk, and a long tail of a few that stand out.
fn model(count: usize, seed: u32) -> Vec<f32> {
    let tail = words([9, seed], count);
    let bulk = normal(count, seed);
    bulk.into_iter().zip(tail).map(|(bulk, word)| bulk * 2.0 + gumbel(word).max(0.0) * 0.8 - 4.0).collect()
}
