//! Draws on a device against the reference. The tests are ignored unless asked for (`just cuda`), and then fail without a device.
//!
//! `PTERO_CASES=100000` sets the number of random cases. The executable needs nothing of this folder.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::stream;
use half::{bf16, f16};
use ptero_cuda::{Buffer, Error, LogitType, Logits, Request, Sampler, SoftmaxSampler, Stream};
use ptero_sampling::cases::{Case, Seeds};
use ptero_sampling::categorical::softmax_sample;
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::DType;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

fn cases(default: u64) -> u64 {
    std::env::var("PTERO_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// Logits of any type, on the device.
enum Rows {
    F32(Buffer<f32>),
    F16(Buffer<f16>),
    Bf16(Buffer<bf16>),
}

impl Rows {
    fn new(stream: &Stream, dtype: DType, logits: &[f32]) -> Self {
        let narrow = |logits: &[f32]| logits.iter().map(|&logit| f16::from_f32(logit)).collect::<Vec<_>>();
        let brain = |logits: &[f32]| logits.iter().map(|&logit| bf16::from_f32(logit)).collect::<Vec<_>>();
        match dtype {
            DType::F16 => Self::F16(Buffer::from_slice(stream, &narrow(logits)).unwrap()),
            DType::Bf16 => Self::Bf16(Buffer::from_slice(stream, &brain(logits)).unwrap()),
            _ => Self::F32(Buffer::from_slice(stream, logits).unwrap()),
        }
    }

    fn logits(&self) -> Logits<'_> {
        match self {
            Self::F32(buffer) => Logits::F32(buffer),
            Self::F16(buffer) => Logits::F16(buffer),
            Self::Bf16(buffer) => Logits::Bf16(buffer),
        }
    }
}

/// Settings and seeds on the device.
struct Controls {
    temperature: Buffer<f32>,
    top_k: Buffer<i64>,
    top_p: Buffer<f32>,
    seed: Option<Buffer<i64>>,
}

impl Controls {
    fn new(stream: &Stream, settings: &[Settings], seeds: Option<&[i64]>) -> Self {
        fn put<T: bytemuck::Pod>(stream: &Stream, of: impl Iterator<Item = T>) -> Buffer<T> {
            Buffer::from_slice(stream, &of.collect::<Vec<_>>()).unwrap()
        }
        Self {
            temperature: put(stream, settings.iter().map(|settings| settings.temperature)),
            top_k: put(stream, settings.iter().map(|settings| settings.top_k)),
            top_p: put(stream, settings.iter().map(|settings| settings.top_p)),
            seed: seeds.map(|seeds| put(stream, seeds.iter().copied())),
        }
    }

    fn request<'b>(&'b self, logits: Logits<'b>) -> Request<'b> {
        let Self { temperature, top_k, top_p, seed } = self;
        Request { logits, temperature, top_k, top_p, seed: seed.as_ref() }
    }
}

fn seeds(case: &Case) -> &[i64] {
    match &case.seeds {
        Seeds::Shared(seed) => std::slice::from_ref(seed),
        Seeds::PerRow(seeds) => seeds,
    }
}

/// One for each type of logits.
struct PerType<S>([S; 3]);

impl<S> PerType<S> {
    fn new(make: impl Fn(LogitType) -> S) -> Self {
        Self([LogitType::F32, LogitType::F16, LogitType::Bf16].map(make))
    }

    fn of(&self, dtype: DType) -> &S {
        match dtype {
            DType::F16 => &self.0[1],
            DType::Bf16 => &self.0[2],
            _ => &self.0[0],
        }
    }
}

fn draw(sampler: &Sampler, stream: &Stream, case: &Case) -> Vec<u32> {
    let rows = Rows::new(stream, case.dtype, &case.logits);
    let controls = Controls::new(stream, &case.settings, Some(seeds(case)));
    let mut workspace = sampler.workspace(stream, case.rows, case.vocabulary).unwrap();
    let mut tokens = Buffer::zeroed(stream, case.rows).unwrap();
    sampler.launch(stream, controls.request(rows.logits()), &mut workspace, &mut tokens).unwrap();
    let first = tokens.read().unwrap();
    // A workspace is left as it was found.
    sampler.launch(stream, controls.request(rows.logits()), &mut workspace, &mut tokens).unwrap();
    assert_eq!(tokens.read().unwrap(), first, "case {} drawn twice", case.number);
    first
}

/// Compares cases of a kind, on all threads of the machine, each with a stream of its own.
fn compare(count: u64, make: fn(u64) -> Case) {
    let stream = stream();
    let device = stream.device();
    let samplers = || PerType::new(|logits| Sampler::new(device, logits).unwrap());
    // Compiled once; the others find them in the cache.
    drop(samplers());
    let threads = thread::available_parallelism().map_or(2, usize::from).min(8);
    let (wrong, rows) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |first: u64| {
        let (samplers, stream) = (samplers(), device.stream().unwrap());
        for case in (first..count).step_by(threads).map(make) {
            rows.fetch_add(case.rows, Relaxed);
            let tokens = draw(samplers.of(case.dtype), &stream, &case);
            wrong.fetch_add(report(&case, &tokens), Relaxed);
            assert!(wrong.load(Relaxed) < 40, "too many differ");
        }
    };
    thread::scope(|scope| {
        for first in (0..).take(threads) {
            let work = &work;
            scope.spawn(move || work(first));
        }
    });
    assert_eq!(wrong.into_inner(), 0);
    println!("{count} cases, {} rows: all equal", rows.into_inner());
}

/// Prints the rows whose token is not that of the reference, and counts them.
fn report(case: &Case, tokens: &[u32]) -> usize {
    let expected = case.expected();
    let mut wrong = 0;
    for (row, (ours, theirs)) in tokens.iter().zip(&expected).enumerate().filter(|(_, (a, b))| a != b) {
        let (settings, kind) = (case.settings_of_rows()[row], case.kinds[row]);
        println!(
            "case {} row {row} of {} x {}, {:?} {kind:?}, {settings:?}: {ours}, not {theirs}",
            case.number, case.rows, case.vocabulary, case.dtype
        );
        wrong += 1;
    }
    wrong
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn s0_7_random_cases_give_the_tokens_of_the_reference() {
    compare(cases(2000), Case::number);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn settings_without_meaning_give_the_tokens_of_the_reference() {
    compare(cases(2000) / 10, Case::without_meaning);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn s3_1_softmax_sample_gives_the_tokens_of_the_reference() {
    let stream = stream();
    let samplers = PerType::new(|logits| SoftmaxSampler::new(stream.device(), logits).unwrap());
    for number in 0..cases(2000) / 10 {
        let case = Case::number(number);
        let sampler = samplers.of(case.dtype);
        let temperature = case.settings[0].temperature.max(0.01);
        let random: Vec<f32> = (0..case.rows).map(|row| ((row * 37 + 11) % 128) as f32 / 128.0).collect();
        let rows = Rows::new(&stream, case.dtype, &case.logits);
        let mut workspace = sampler.workspace(&stream, case.rows, case.vocabulary).unwrap();
        let expected = softmax_sample(&case.logits, case.vocabulary, temperature, &random);
        let drawn = sampler.draw(&stream, rows.logits(), temperature, &random, &mut workspace);
        match (drawn, expected) {
            (Ok(drawn), Ok(expected)) => assert_eq!(drawn, expected, "case {number}"),
            (Err(Error::Refused(refused)), Err(expected)) => assert_eq!(refused, expected, "case {number}"),
            (drawn, expected) => panic!("case {number}: {drawn:?}, not {expected:?}"),
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn s3_2_refusals_name_the_argument_and_its_value() {
    let stream = stream();
    let sampler = SoftmaxSampler::new(stream.device(), LogitType::F32).unwrap();
    let logits = Buffer::from_slice(&stream, &[1.0_f32; 6]).unwrap();
    let mut workspace = sampler.workspace(&stream, 2, 3).unwrap();
    let mut refusal = |temperature, random: &[f32]| {
        sampler.draw(&stream, Logits::F32(&logits), temperature, random, &mut workspace).unwrap_err().to_string()
    };
    assert_eq!(refusal(0.0, &[0.5; 2]), "`temperature` is 0; it must be above 0");
    assert_eq!(refusal(1.0, &[0.5, 1.0]), "`random` is 1; it must be at least 0 and below 1");
    assert_eq!(refusal(1.0, &[0.5]), "`random` has 1 elements for 2 rows");
    assert_eq!(sampler.workspace(&stream, 0, 3).unwrap_err().to_string(), "cannot draw 0 rows");
    let short = Buffer::from_slice(&stream, &[1.0_f32; 5]).unwrap();
    let error = sampler.draw(&stream, Logits::F32(&short), 1.0, &[0.5; 2], &mut workspace).unwrap_err();
    assert_eq!(error.to_string(), "`logits` has 5 elements, and 6 are needed");
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_captured_draw_reads_settings_and_seeds_anew() {
    let stream = stream();
    let sampler = Sampler::new(stream.device(), LogitType::F32).unwrap();
    let logits: Vec<f32> = (0..5000).map(|at| ((at * 7919) % 1000) as f32 / 100.0).collect();
    let rows = Buffer::from_slice(&stream, &logits).unwrap();
    let mut controls = Controls::new(&stream, &[Settings::PLAIN], Some(&[0]));
    let mut workspace = sampler.workspace(&stream, 1, logits.len()).unwrap();
    let mut tokens = Buffer::zeroed(&stream, 1).unwrap();
    let mut graph = stream
        .capture(|stream| sampler.launch(stream, controls.request(Logits::F32(&rows)), &mut workspace, &mut tokens))
        .unwrap();
    let several = [(0.0, 1, 1.0), (1.0, 40, 0.9), (2.0, 5000, 0.5), (1.0, 4000, 0.99), (0.7, i64::MAX, 1.0)];
    for (seed, (temperature, top_k, top_p)) in (0..200).zip(several.into_iter().cycle()) {
        controls.temperature.write(0, &[temperature]).unwrap();
        controls.top_k.write(0, &[top_k]).unwrap();
        controls.top_p.write(0, &[top_p]).unwrap();
        controls.seed.as_mut().unwrap().write(0, &[seed]).unwrap();
        graph.launch().unwrap();
        let settings = Settings { temperature, top_k, top_p };
        let key = ptero_sampling::noise::seed_key(seed);
        assert_eq!(tokens.read().unwrap(), sample(&logits, logits.len(), &[settings], Keys::Shared(key)), "{seed}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn draws_without_a_seed_follow_the_sequence_of_keys() {
    let stream = stream();
    let sampler = Sampler::new(stream.device(), LogitType::F32).unwrap();
    let logits = vec![0.0_f32; 3 * 1001];
    let rows = Buffer::from_slice(&stream, &logits).unwrap();
    let mut workspace = sampler.workspace(&stream, 3, 1001).unwrap();
    let mut tokens = Buffer::zeroed(&stream, 3).unwrap();
    workspace.start_sequence(7).unwrap();
    let mut keys = KeySequence::new(7);
    for settings in
        [Settings::PLAIN, Settings { top_p: 0.5, ..Settings::PLAIN }, Settings { top_k: 5, ..Settings::PLAIN }]
    {
        let controls = Controls::new(&stream, &[settings], None);
        sampler.launch(&stream, controls.request(Logits::F32(&rows)), &mut workspace, &mut tokens).unwrap();
        assert_eq!(tokens.read().unwrap(), sample(&logits, 1001, &[settings], Keys::Shared(keys.next_key())));
    }
}
