//! How long draws take on a device, as replays of a captured graph.
//!
//! A graph holds [`DRAWS`] draws, one after another; the time of a replay, by events on the stream, is divided by their number.
//! `warm`: all draws read the same logits, which the caches then hold, as they do after a language-model head. `cold`: each reads
//! logits that were not read for longer than the caches last. Bytes are those of the logits, read once.
//!
//! `--json` prints lines for `benches/ledger.jsonl`; any other word selects the cases whose name contains it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark stops where something fails")]

use half::bf16;
use ptero_cuda::{Buffer, Device, LogitType, Logits, Request, Sampler, SoftmaxSampler, Stream};
use ptero_sampling::noise::gumbel;
use ptero_sampling::threefry::words;

/// Draws in a graph.
const DRAWS: usize = 32;
/// Replays that are timed; odd, so that the median is one of them.
const REPEATS: usize = 51;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_json = arguments.iter().any(|word| word == "--json");
    let filter = arguments.iter().find(|word| !word.starts_with("--"));
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let stream = device.stream().unwrap();
    if !is_json {
        println!("{}, {} multiprocessors", device.info().name, device.info().multiprocessors);
        println!("{:44} {:>9} {:>9} {:>9} {:>9}", "", "median us", "least", "most", "GB/s");
    }
    let bench = Bench { stream, is_json, filter: filter.cloned() };
    bench.sample();
    bench.categorical();
}

struct Bench {
    stream: Stream,
    is_json: bool,
    filter: Option<String>,
}

const SETTINGS: [(&str, f32, i64, f32); 6] = [
    ("greedy", 0.0, i64::MAX, 1.0),
    ("plain", 1.0, i64::MAX, 1.0),
    ("top-k 50 top-p 0.95", 0.8, 50, 0.95),
    ("top-k 50", 0.8, 50, 1.0),
    ("top-k 1000 top-p 0.95", 0.8, 1000, 0.95),
    ("top-p 0.95", 0.8, i64::MAX, 0.95),
];

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
        let names = cases.map(|(settings, cold)| {
            let state = if cold { "cold" } else { "warm" };
            (format!("{} {rows} x {vocabulary} f32 {distribution} {state}", settings.0), settings, cold)
        });
        let mut made = None;
        for (name, &(_, temperature, top_k, top_p), cold) in names.filter(|(name, ..)| self.wants(name)) {
            let sets = made.get_or_insert_with(|| self.logits(rows, vocabulary, distribution));
            let put = |value| Buffer::from_slice(&self.stream, &[value]).unwrap();
            let (temperature, top_p) = (put(temperature), put(top_p));
            let top_k = Buffer::from_slice(&self.stream, &[top_k]).unwrap();
            // Each draw has seeds of its own: what a draw costs depends on what comes out.
            let seeds: Vec<Buffer<i64>> = (0..DRAWS).map(|draw| self.seeds(draw, rows)).collect();
            let mut workspace = sampler.workspace(&self.stream, rows, vocabulary).unwrap();
            let mut tokens = Buffer::zeroed(&self.stream, rows).unwrap();
            let graph = self.stream.capture(|stream| {
                for at in 0..DRAWS {
                    let logits = Logits::F32(&sets[if cold { at % sets.len() } else { 0 }]);
                    let request = Request {
                        logits,
                        temperature: &temperature,
                        top_k: &top_k,
                        top_p: &top_p,
                        seed: Some(&seeds[at]),
                    };
                    sampler.launch(stream, request, &mut workspace, &mut tokens)?;
                }
                Ok(())
            });
            self.time(&name, graph.unwrap(), rows * vocabulary * 4);
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
        let mut workspace = sampler.workspace(&self.stream, rows, vocabulary).unwrap();
        let mut tokens = Buffer::zeroed(&self.stream, rows).unwrap();
        let graph = self.stream.capture(|stream| {
            (0..DRAWS).try_for_each(|_| {
                let logits = Logits::Bf16(&logits);
                let request =
                    Request { logits, temperature: &temperature, top_k: &top_k, top_p: &top_p, seed: Some(&seed) };
                sampler.launch(stream, request, &mut workspace, &mut tokens)
            })
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
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }

    fn time(&self, name: &str, mut graph: ptero_cuda::Captured, bytes: usize) {
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
