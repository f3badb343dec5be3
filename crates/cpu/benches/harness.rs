//! Repeats measurements and compares them with the limits of the machine.

use ptero_cpu::machine::{self, Spread, repeat};
use ptero_cpu::pool::Workers;
use ptero_cpu::simd::Isa;

/// The command line: `--json` prints lines for `benches/ledger.jsonl`, `--isa NAME` selects an instruction set other than the
/// best, `--threads N` the number of threads, and any other word the cases whose name contains it.
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

/// Repeats of a measurement; odd, so that the median is one of them.
const REPEATS: usize = 21;

/// Runs the work a few times to warm up, then [`REPEATS`] times.
pub(crate) fn measure(work: impl FnMut()) -> Spread {
    repeat(3, REPEATS, work)
}

/// The machine's limits on all threads.
pub(crate) struct Limits {
    /// Bytes read from memory per second.
    pub(crate) bandwidth: f64,
    /// Floating-point operations per second.
    pub(crate) peak: f64,
}

/// Measures limits, on as many threads as the benchmarks use.
pub(crate) struct Machine {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    machine: machine::Machine,
}

impl Machine {
    pub(crate) fn new(isa: Isa, threads: usize) -> Self {
        Self { isa, threads, machine: machine::Machine::new(isa) }
    }

    pub(crate) fn limits(&self, workers: &mut Workers<'_>) -> Limits {
        Limits { bandwidth: self.machine.bandwidth(workers), peak: self.machine.peak(workers) }
    }

    /// Prints instruction set and threads, unless every line does.
    pub(crate) fn print(&self, options: &Options) {
        if !options.is_json {
            println!("{}, {} threads", self.isa.name(), self.threads);
        }
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
    pub(crate) fn print(&self, machine: &Machine, limits: &Limits, is_json: bool) {
        let Spread { median, least, most } = self.spread;
        let (bandwidth, peak) = (self.bytes / median, self.operations / median);
        let (of_bandwidth, of_peak) = (100.0 * bandwidth / limits.bandwidth, 100.0 * peak / limits.peak);
        let [median, least, most] = [median, least, most].map(|seconds| 1e6 * seconds);
        let [bandwidth, peak] = [1e-9 * bandwidth, 1e-9 * peak];
        let [machine_bandwidth, machine_peak] = [1e-9 * limits.bandwidth, 1e-9 * limits.peak];
        if is_json {
            let (bench, name, isa, threads) = (self.bench, self.name, machine.isa.name(), machine.threads);
            println!(
                r#"{{"bench": "{bench}", "case": "{name}", "isa": "{isa}", "threads": {threads}, "us": {{"median": {median:.1}, "least": {least:.1}, "most": {most:.1}}}, "gb_per_s": {bandwidth:.2}, "machine_gb_per_s": {machine_bandwidth:.2}, "gflop_per_s": {peak:.1}, "machine_gflop_per_s": {machine_peak:.1}}}"#
            );
        } else {
            println!(
                "{:42} {median:9.1} us ({least:9.1} .. {most:9.1})  {bandwidth:6.2} of {machine_bandwidth:5.2} GB/s \
                 {of_bandwidth:4.0} %  {peak:6.1} of {machine_peak:5.1} GFLOP/s {of_peak:4.0} %",
                self.name
            );
        }
    }
}
