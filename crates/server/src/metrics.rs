//! What is counted, in the text format of Prometheus.

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

    fn write(&self, text: &mut String, name: &str, help: &str) {
        let (count, sum) = (self.count.load(Ordering::Relaxed), self.microseconds.load(Ordering::Relaxed));
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_MS) {
            let seconds = f64::from(bound) / 1000.0;
            let _ = writeln!(text, "{name}_bucket{{le=\"{seconds}\"}} {}", bucket.load(Ordering::Relaxed));
        }
        let seconds = Duration::from_micros(sum).as_secs_f64();
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}");
    }
}

/// Counts of requests and times of texts; the batcher counts tokens.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) first_token: Histogram,
    pub(crate) next_token: Histogram,
    /// By status; 0 is a client that left before there was one.
    requests: Mutex<BTreeMap<u16, u64>>,
}

impl Metrics {
    pub(crate) fn request(&self, status: Option<StatusCode>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry(status.map_or(0, |status| status.as_u16())).or_default() += 1;
    }

    pub(crate) fn text(&self, stats: &BatchStats, options: &BatchOptions) -> String {
        let mut text = String::new();
        let numbers = [
            ("ptero_queue_length", "gauge", "Texts that wait.", stats.waiting as u64),
            ("ptero_queue_limit", "gauge", "Texts that may wait.", options.queue as u64),
            ("ptero_lanes_running", "gauge", "Texts that are generated.", stats.running as u64),
            ("ptero_lanes_limit", "gauge", "Texts that may be generated at once.", options.lanes as u64),
            ("ptero_steps_total", "counter", "Steps of all running texts together.", stats.steps),
            ("ptero_prompt_tokens_total", "counter", "Tokens of prompts.", stats.prompt_tokens),
            ("ptero_prefix_tokens_total", "counter", "Tokens of prompts not processed again.", stats.reused_tokens),
            ("ptero_generated_tokens_total", "counter", "Tokens generated.", stats.new_tokens),
        ];
        for (name, kind, help, value) in numbers {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        let name = "ptero_requests_total";
        let _ = writeln!(text, "# HELP {name} Requests by status; 0: the client left.\n# TYPE {name} counter");
        for (status, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(text, "{name}{{status=\"{status}\"}} {count}");
        }
        self.first_token.write(&mut text, "ptero_first_token_seconds", "From a request to its first token.");
        self.next_token.write(&mut text, "ptero_next_token_seconds", "From a token to the next.");
        text
    }
}
