//! What is counted, in the text format of Prometheus.

use crate::models::ModelEntry;
use axum::http::StatusCode;
use ptero::{BatchOptions, BatchStats};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of times, in milliseconds.
const BOUNDS_MS: [u32; 14] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000];

/// Times by size.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS_MS.len()],
    count: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_MS) {
            if time <= Duration::from_millis(bound.into()) {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, label: &str) {
        let (count, sum) = (self.count.load(Ordering::Relaxed), self.microseconds.load(Ordering::Relaxed));
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_MS) {
            let seconds = f64::from(bound) / 1000.0;
            let _ = writeln!(text, "{name}_bucket{{{label},le=\"{seconds}\"}} {}", bucket.load(Ordering::Relaxed));
        }
        let seconds = Duration::from_micros(sum).as_secs_f64();
        let _ = writeln!(text, "{name}_bucket{{{label},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum{{{label}}} {seconds}\n{name}_count{{{label}}} {count}");
    }
}

/// Times of the texts of a model.
#[derive(Debug, Default)]
pub(crate) struct TokenTimes {
    pub(crate) first: Histogram,
    pub(crate) next: Histogram,
}

/// Counts of requests; the batchers count tokens.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By model, if a request chose one, and status; 0 is a client that left before there was one.
    requests: Mutex<BTreeMap<(Option<String>, u16), u64>>,
}

/// The numbers of a model.
struct Row<'a> {
    label: String,
    is_loaded: bool,
    stats: BatchStats,
    options: BatchOptions,
    times: &'a TokenTimes,
}

impl<'a> Row<'a> {
    fn of(model: &'a ModelEntry, options: BatchOptions) -> Self {
        let loaded = model.loaded();
        let stats = loaded.as_ref().map(|loaded| loaded.batcher.stats()).unwrap_or_default();
        Self { label: label(model.name()), is_loaded: loaded.is_some(), stats, options, times: &model.times }
    }
}

/// Name, type, description, value.
type Number = (&'static str, &'static str, &'static str, fn(&Row<'_>) -> u64);

const NUMBERS: [Number; 9] = [
    ("ptero_model_loaded", "gauge", "1 if the model is loaded, otherwise 0.", |row| row.is_loaded.into()),
    ("ptero_queue_length", "gauge", "Texts that wait.", |row| row.stats.waiting as u64),
    ("ptero_queue_limit", "gauge", "Texts that may wait.", |row| row.options.queue as u64),
    ("ptero_lanes_running", "gauge", "Texts that are generated.", |row| row.stats.running as u64),
    ("ptero_lanes_limit", "gauge", "Texts that may be generated at once.", |row| row.options.lanes as u64),
    ("ptero_steps_total", "counter", "Steps of all running texts together.", |row| row.stats.steps),
    ("ptero_prompt_tokens_total", "counter", "Tokens of prompts.", |row| row.stats.prompt_tokens),
    ("ptero_prefix_tokens_total", "counter", "Tokens of prompts not processed again.", |row| row.stats.reused_tokens),
    ("ptero_generated_tokens_total", "counter", "Tokens generated.", |row| row.stats.new_tokens),
];

/// Name, description, times.
type Times = (&'static str, &'static str, fn(&TokenTimes) -> &Histogram);

const HISTOGRAMS: [Times; 2] = [
    ("ptero_first_token_seconds", "From a request to its first token.", |times| &times.first),
    ("ptero_next_token_seconds", "From a token to the next.", |times| &times.next),
];

/// Returns the label of a model. Names have no line breaks.
fn label(model: &str) -> String {
    format!("model=\"{}\"", model.replace('\\', "\\\\").replace('"', "\\\""))
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl Metrics {
    pub(crate) fn request(&self, model: Option<&str>, status: Option<StatusCode>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (model.map(str::to_owned), status.map_or(0, |status| status.as_u16()));
        *requests.entry(key).or_default() += 1;
    }

    pub(crate) fn text(&self, models: &[ModelEntry], options: &BatchOptions) -> String {
        let mut text = String::new();
        let rows: Vec<_> = models.iter().map(|model| Row::of(model, *options)).collect();
        for (name, kind, help, number) in NUMBERS {
            head(&mut text, name, kind, help);
            for row in &rows {
                let _ = writeln!(text, "{name}{{{}}} {}", row.label, number(row));
            }
        }
        let name = "ptero_requests_total";
        head(&mut text, name, "counter", "Requests by status; 0: the client left.");
        for ((model, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let model = model.as_ref().map(|model| label(model) + ",").unwrap_or_default();
            let _ = writeln!(text, "{name}{{{model}status=\"{status}\"}} {count}");
        }
        for (name, help, histogram) in HISTOGRAMS {
            head(&mut text, name, "histogram", help);
            rows.iter().for_each(|row| histogram(row.times).write(&mut text, name, &row.label));
        }
        text
    }
}
