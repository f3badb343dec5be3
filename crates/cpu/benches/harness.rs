//! Repeats, medians, and what the machine can do at most.

use ptero_cpu::pool::{Pool, Scratch, Workers};
use ptero_cpu::simd::{Isa, probe};
use std::hint::black_box;
use std::time::Instant;

/// What the command line asks for: `--json` prints lines for `benches/ledger.jsonl`, `--isa NAME` takes another instruction set
/// than the best, `--threads N`, and any other word selects the cases whose name contains it.
pub(crate) struct Options {
    pub(crate) is_json: bool,
    filter: Option<String>,
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
}

impl Options {
    pub(crate) fn read() -> Self {
        let mut options = Self { is_json: false, filter: None, isa: Isa::best(), threads: 2 };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--json" => options.is_json = true,
                "--threads" => {
                    options.threads = words.next().and_then(|count| count.parse().ok()).unwrap_or(options.threads);
                }
                "--isa" => {
                    let name = words.next();
                    let found = Isa::available().into_iter().find(|isa| Some(isa.name()) == name.as_deref());
                    options.isa = found.unwrap_or(options.isa);
                }
                _ => options.filter = Some(word),
            }
        }
        options
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }
}

/// Of a measurement; odd, so that the median is one of them.
const REPEATS: usize = 21;

/// Seconds of one run.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Runs the work some times to warm up, then [`REPEATS`] times.
pub(crate) fn measure(mut work: impl FnMut()) -> Spread {
    for _ in 0..3 {
        work();
    }
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let at = |at: usize| seconds.get(at).copied().unwrap_or(f64::NAN);
    Spread { median: at(REPEATS / 2), least: at(0), most: at(REPEATS - 1) }
}

/// The machine's limits on all threads.
pub(crate) struct Machine {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    /// Bytes read from memory per second.
    pub(crate) bandwidth: f64,
    /// Floating-point operations per second.
    pub(crate) peak: f64,
}

impl Machine {
    pub(crate) fn new(isa: Isa, pool: &Pool) -> Self {
        let mut scratch = Scratch::default();
        let mut workers = Workers { pool, scratch: &mut scratch };
        let words = vec![1_u64; 32 << 20];
        let chunk = 32 << 10;
        let read = measure(|| {
            workers.each(words.len() / chunk, |task, _| {
                let part = words.get(task * chunk..(task + 1) * chunk).unwrap_or_default();
                black_box(probe::read(isa, part));
            });
        });
        let (rounds, threads) = (2_000_000, pool.threads());
        let multiply_adds = measure(|| {
            workers.each(threads, |_, _| {
                black_box(probe::multiply_adds(isa, rounds));
            });
        });
        Self {
            isa,
            threads,
            bandwidth: (8 * words.len()) as f64 / read.median,
            peak: (threads * probe::multiply_adds(isa, rounds)) as f64 / multiply_adds.median,
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { isa, threads, bandwidth, peak } = self;
        write!(f, "{}, {threads} threads: reads {:.2} GB/s, {:.1} GFLOP/s", isa.name(), 1e-9 * bandwidth, 1e-9 * peak)
    }
}

/// One line of the table, or of the ledger.
pub(crate) struct Figure<'a> {
    pub(crate) bench: &'a str,
    pub(crate) name: &'a str,
    pub(crate) spread: Spread,
    /// Bytes that must be read or written.
    pub(crate) bytes: f64,
    /// Floating-point operations.
    pub(crate) operations: f64,
}

impl Figure<'_> {
    pub(crate) fn print(&self, machine: &Machine, is_json: bool) {
        let Spread { median, least, most } = self.spread;
        let (bandwidth, peak) = (self.bytes / median, self.operations / median);
        let (of_bandwidth, of_peak) = (100.0 * bandwidth / machine.bandwidth, 100.0 * peak / machine.peak);
        if is_json {
            println!(
                r#"{{"bench": "{}", "case": "{}", "isa": "{}", "threads": {}, "us": {{"median": {:.1}, "least": {:.1}, "most": {:.1}}}, "gb_per_s": {:.2}, "machine_gb_per_s": {:.2}, "gflop_per_s": {:.1}, "machine_gflop_per_s": {:.1}}}"#,
                self.bench,
                self.name,
                machine.isa.name(),
                machine.threads,
                1e6 * median,
                1e6 * least,
                1e6 * most,
                1e-9 * bandwidth,
                1e-9 * machine.bandwidth,
                1e-9 * peak,
                1e-9 * machine.peak,
            );
        } else {
            println!(
                "{:44} {:9.1} us ({:9.1} .. {:9.1})  {:6.2} GB/s {of_bandwidth:4.0} %  {:7.1} GFLOP/s {of_peak:4.0} %",
                self.name,
                1e6 * median,
                1e6 * least,
                1e6 * most,
                1e-9 * bandwidth,
                1e-9 * peak,
            );
        }
    }
}
