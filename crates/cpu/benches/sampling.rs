//! Measures sampling from one row of logits, for common vocabularies, against a sampler that sorts.
//!
//! Bytes are those of the logits, read once. Calls rotate through several rows, so that branch predictors do not learn them;
//! together they are larger than the caches of a core.

mod harness;

use half::bf16;
use harness::{Figure, Machine, Options, measure};
use ptero_cpu::pool::{Pool, Scratch, Workers};
use ptero_cpu::sample::{Drawn, Elements, LogitRows, Parameters, sample_rows};
use ptero_sampling::adjust::Adjustments;
use ptero_sampling::log_probabilities::LogProbabilities;
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::{Penalties, Settings};
use ptero_sampling::threefry::key;
use ptero_tensor::SplitMix64;
use std::hint::black_box;

const VOCABULARIES: [usize; 4] = [32_000, 151_936, 248_320, 262_144];
/// Rows that calls rotate through.
const ROWS: usize = 8;
/// Calls of a measurement.
const CALLS: usize = 16;

/// A row like those of language models: normally distributed with a standard deviation of 2.5, plus a few likely tokens. The
/// script that measures llama.cpp uses the same numbers.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers for measurements")]
fn logits(vocabulary: usize, seed: u64, peaks: u8) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed);
    let mut unit = move || ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let mut row: Vec<f32> = (0..vocabulary)
        .map(|_| 2.5 * ((-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()) as f32)
        .collect();
    for rank in 0..peaks {
        let token = (unit() * vocabulary as f64) as usize;
        if let Some(logit) = row.get_mut(token) {
            *logit = 18.0 - 0.5 * f32::from(rank) + unit() as f32;
        }
    }
    row
}

/// The sampler to compare with: sorts all tokens, computes the softmax and its running sum, and draws from what is kept.
fn sorted(row: &[f32], settings: &Settings, uniform: f32, order: &mut Vec<(f32, u32)>) -> u32 {
    order.clear();
    order.extend(row.iter().map(|logit| logit / settings.temperature).zip(0_u32..));
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    order.truncate(settings.kept_of(row.len()));
    let largest = order.first().map_or(0.0, |first| first.0);
    order.iter_mut().for_each(|token| token.0 = (token.0 - largest).exp());
    let total: f32 = order.iter().map(|token| token.0).sum();
    let mut sum = 0.0;
    let kept = order.iter().take_while(|token| {
        let is_kept = sum <= settings.top_p * total;
        sum += token.0;
        is_kept
    });
    let kept = kept.count();
    order.truncate(kept);
    let target = uniform * order.iter().map(|token| token.0).sum::<f32>();
    let mut sum = 0.0;
    let found = order.iter().find(|token| {
        sum += token.0;
        sum > target
    });
    found.or(order.last()).map_or(0, |token| token.1)
}

fn cases() -> [(&'static str, Settings); 5] {
    [
        ("greedy", Settings::GREEDY),
        ("plain", Settings::PLAIN),
        ("top-k 40, top-p 0.95, temp 0.8", Settings { temperature: 0.8, top_k: 40, top_p: 0.95, ..Settings::PLAIN }),
        ("top-p 0.95", Settings { top_p: 0.95, ..Settings::PLAIN }),
        ("top-k 50", Settings { top_k: 50, ..Settings::PLAIN }),
    ]
}

/// What is asked for beside the settings.
#[derive(Clone, Default)]
struct Extras {
    /// Penalized, if there is any; half of it is the prompt.
    history: Vec<i32>,
    mask: Vec<i32>,
    which: LogProbabilities,
}

impl Extras {
    /// Penalties over 1,000 tokens; the same with masks like those of a grammar: few tokens are allowed, or nearly all;
    /// log-probabilities.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "tokens and words of masks")]
    fn all(vocabulary: usize) -> [(&'static str, Self); 6] {
        let mut rng = SplitMix64::new(7);
        let history = (0..1000).map(|_| (rng.next_u64() % vocabulary as u64) as i32).collect();
        let mut mask = |is_allowed: fn(u64) -> bool| {
            let mut word = |_| (0..32).fold(0, |word, bit| word | i32::from(is_allowed(rng.next_u64() % 100)) << bit);
            (0..vocabulary.div_ceil(32)).map(&mut word).collect::<Vec<i32>>()
        };
        let (few, most) = (mask(|percent| percent < 2), mask(|percent| percent < 95));
        let penalized = Self { history, ..Self::default() };
        let log_probabilities = |which| Self { which, ..Self::default() };
        [
            ("neutral", Self { mask: vec![-1; vocabulary.div_ceil(32)], ..Self::default() }),
            ("penalties, min-p", penalized.clone()),
            ("penalties, min-p, few allowed", Self { mask: few, ..penalized.clone() }),
            ("penalties, min-p, most allowed", Self { mask: most, ..penalized }),
            ("log-probabilities", log_probabilities(LogProbabilities::Model)),
            ("processed log-probabilities", log_probabilities(LogProbabilities::Processed)),
        ]
    }

    fn adjustments(&self) -> Adjustments<'_> {
        let penalties = Penalties { repetition: 1.1, presence: 0.5, frequency: 0.25 };
        Adjustments { penalties, history: &self.history, prompt_end: 500, biases: &[], mask: &self.mask }
    }
}

struct Bench {
    options: Options,
    machine: Machine,
    pool: Pool,
}

impl Bench {
    fn case<E>(&self, name: &str, rows: &[Vec<E>], mut work: impl FnMut(&[E], u64)) {
        if !self.options.wants(name) {
            return;
        }
        let mut number = 0;
        let mut spread = measure(|| {
            for row in rows.iter().cycle().take(CALLS) {
                number += 1;
                work(row, number);
            }
        });
        for seconds in [&mut spread.median, &mut spread.least, &mut spread.most] {
            *seconds /= CALLS as f64;
        }
        let bytes = rows.first().map_or(0, |row| size_of::<E>() * row.len()) as f64;
        let limits = self.machine.limits(&mut Workers { pool: &self.pool, scratch: &mut Scratch::default() });
        let figure = Figure { bench: "sampling", name, spread, bytes, operations: 0.0 };
        figure.print(&self.machine, &limits, self.options.is_json);
    }

    fn vocabulary(&self, vocabulary: usize) {
        let rows = |peaks: u8| (0..ROWS as u64).map(|seed| logits(vocabulary, seed, peaks)).collect::<Vec<_>>();
        let (rows, flat) = (rows(20), rows(0));
        cases().into_iter().for_each(|(name, settings)| self.draw(name, &rows, settings, &Extras::default()));
        // Without likely tokens, the nucleus has tens of thousands of tokens.
        for (name, settings) in cases() {
            self.draw(&format!("flat: {name}"), &flat, settings, &Extras::default());
        }
        for (name, settings) in cases().into_iter().skip(1) {
            let exact = Settings { exact_tail: true, ..settings };
            self.draw(&format!("exact tail: {name}"), &rows, exact, &Extras::default());
        }
        for (name, extras) in Extras::all(vocabulary) {
            let (of, settings) = cases()[2];
            let min_p = if extras.history.is_empty() { 0.0 } else { 0.05 };
            self.draw(&format!("{name}: {of}"), &rows, Settings { min_p, ..settings }, &extras);
        }
        let (mut order, (name, settings)) = (Vec::new(), cases()[2]);
        self.halves(name, &rows, settings);
        self.case(&format!("sorted: {name}, {vocabulary}"), &rows, |row, number| {
            let uniform = (number % 1000) as f32 / 1000.0;
            black_box(sorted(row, &settings, uniform, &mut order));
        });
    }

    /// Logits in bfloat16, as many models compute them.
    fn halves(&self, name: &str, rows: &[Vec<f32>], settings: Settings) {
        let vocabulary = rows.first().map_or(0, Vec::len);
        let brains: Vec<Vec<bf16>> =
            rows.iter().map(|row| row.iter().map(|logit| bf16::from_f32(*logit)).collect()).collect();
        let (mut scratch, mut drawn) = (Scratch::default(), [Drawn::NONE]);
        self.case(&format!("bf16: {name}, {vocabulary}"), &brains, |row, number| {
            let mut workers = Workers { pool: &self.pool, scratch: &mut scratch };
            let rows = LogitRows::contiguous(Elements::Bf16(row), vocabulary);
            let settings = [settings];
            let parameters = Parameters::new(&settings, Keys::Shared(key(number)));
            sample_rows(&mut workers, self.options.isa, &rows, &parameters, &mut drawn);
            black_box(&drawn);
        });
    }

    fn draw(&self, name: &str, rows: &[Vec<f32>], settings: Settings, extras: &Extras) {
        let vocabulary = rows.first().map_or(0, Vec::len);
        let name = format!("{name}, {vocabulary}");
        if !self.options.wants(&name) {
            return;
        }
        let mut scratch = Scratch::default();
        let (isa, mut drawn) = (self.options.isa, [Drawn::NONE]);
        let (settings, adjustments) = ([settings], [extras.adjustments()]);
        let expected = rows.first().map(|row| {
            let mut row = row.clone();
            extras.adjustments().apply(&mut row);
            sample(&row, vocabulary, &settings, Keys::Shared(key(1)))
        });
        self.case(&name, rows, |row, number| {
            let mut workers = Workers { pool: &self.pool, scratch: &mut scratch };
            let rows = LogitRows::contiguous(Elements::F32(row), vocabulary);
            let plain = Parameters::new(&settings, Keys::Shared(key(number)));
            let parameters = Parameters { adjustments: &adjustments, log_probabilities: extras.which, ..plain };
            sample_rows(&mut workers, isa, &rows, &parameters, &mut drawn);
            assert!(number > 1 || expected.as_deref() == Some(&[drawn[0].token]), "not the reference's token");
            black_box(&drawn);
        });
    }
}

fn main() {
    let options = Options::read();
    let machine = Machine::new(options.isa, options.threads);
    machine.print(&options);
    let pool = Pool::new(options.threads);
    let bench = Bench { options, machine, pool };
    VOCABULARIES.into_iter().for_each(|vocabulary| bench.vocabulary(vocabulary));
}
