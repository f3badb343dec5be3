//! Draws on a device against the reference. The tests are ignored unless asked for (`just cuda`), and then fail without a device.
//!
//! `PTERO_CASES=100000` sets the number of random cases. The executable needs nothing of this folder.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::stream;
use half::{bf16, f16};
use ptero_cuda::{
    Adjustments, Buffer, Error, LogitType, Logits, Request, Results, RowAdjustments, Sampler, SoftmaxSampler, Stream,
};
use ptero_sampling::adjust::MASK_BITS;
use ptero_sampling::cases::{Case, Seeds};
use ptero_sampling::categorical::softmax_sample;
use ptero_sampling::log_probabilities::{LogProbabilities, MOST_LIKELIEST, RowLogProbabilities};
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::{Penalties, Settings};
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
    min_p: Buffer<f32>,
    exact_tail: Buffer<i64>,
    seed: Option<Buffer<i64>>,
    adjustments: Option<Adjusting>,
    log_probabilities: Option<Buffer<i64>>,
}

/// What changes the logits of rows, on the device.
struct Adjusting {
    rows: Buffer<RowAdjustments>,
    history: Buffer<i32>,
    bias_tokens: Buffer<i32>,
    bias_values: Buffer<f32>,
    mask: Buffer<i32>,
}

impl Adjusting {
    /// One after another. A mask that excludes nothing is left out, or not.
    fn new(stream: &Stream, case: &Case) -> Self {
        let (mut rows, mut history, mut biases, mut mask) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let length = |length: usize| u32::try_from(length).unwrap();
        for row in &case.adjustments {
            let is_left_out = case.number.is_multiple_of(2) && row.mask.iter().all(|word| *word == -1);
            let words = if is_left_out { 0 } else { row.mask.len() };
            let Penalties { repetition, presence, frequency } = row.penalties;
            rows.push(RowAdjustments {
                history: [length(history.len()), length(row.history.len())],
                prompt_end: length(row.prompt_end),
                biases: [length(biases.len()), length(row.biases.len())],
                mask: [length(mask.len()), length(words)],
                penalties: [repetition, presence, frequency],
            });
            history.extend(&row.history);
            biases.extend(&row.biases);
            mask.extend(&row.mask);
        }
        let (tokens, values): (Vec<i32>, Vec<f32>) = biases.into_iter().unzip();
        Self {
            rows: Buffer::from_slice(stream, &rows).unwrap(),
            history: Buffer::from_slice(stream, &history).unwrap(),
            bias_tokens: Buffer::from_slice(stream, &tokens).unwrap(),
            bias_values: Buffer::from_slice(stream, &values).unwrap(),
            mask: Buffer::from_slice(stream, &mask).unwrap(),
        }
    }

    fn borrowed(&self) -> Adjustments<'_> {
        let Self { rows, history, bias_tokens, bias_values, mask } = self;
        Adjustments { rows, history, bias_tokens, bias_values, mask }
    }
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
            min_p: put(stream, settings.iter().map(|settings| settings.min_p)),
            exact_tail: put(stream, settings.iter().map(|settings| i64::from(settings.exact_tail))),
            seed: seeds.map(|seeds| put(stream, seeds.iter().copied())),
            adjustments: None,
            log_probabilities: None,
        }
    }

    /// All that a case asks for, and log-probabilities.
    fn of_case(stream: &Stream, case: &Case, which: &[LogProbabilities]) -> Self {
        let which: Vec<i64> = which.iter().map(|which| which.code()).collect();
        let adjustments = (!case.adjustments.is_empty()).then(|| Adjusting::new(stream, case));
        let log_probabilities = Some(Buffer::from_slice(stream, &which).unwrap());
        Self { adjustments, log_probabilities, ..Self::new(stream, &case.settings, Some(seeds(case))) }
    }

    fn request<'b>(&'b self, logits: Logits<'b>) -> Request<'b> {
        let Self { temperature, top_k, top_p, min_p, exact_tail, seed, adjustments, log_probabilities } = self;
        Request {
            logits,
            temperature,
            top_k,
            top_p,
            min_p: Some(min_p),
            exact_tail: Some(exact_tail),
            seed: seed.as_ref(),
            adjustments: adjustments.as_ref().map(Adjusting::borrowed),
            log_probabilities: log_probabilities.as_ref(),
        }
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

/// A token and log-probabilities for each row.
type Drawn = Vec<(u32, RowLogProbabilities)>;

fn read(results: &Results) -> Drawn {
    let (tokens, of_tokens) = (results.tokens.read().unwrap(), results.log_probability.read().unwrap());
    let (likeliest, of_likeliest) = (results.likeliest.read().unwrap(), results.of_likeliest.read().unwrap());
    let row = |row: usize| {
        let all = row * MOST_LIKELIEST..(row + 1) * MOST_LIKELIEST;
        let pairs =
            likeliest[all.clone()].iter().map(|token| u32::try_from(*token).unwrap()).zip(of_likeliest[all].to_vec());
        let likeliest = pairs.collect::<Vec<_>>().try_into().unwrap();
        (tokens[row], RowLogProbabilities { token: of_tokens[row], likeliest })
    };
    (0..tokens.len()).map(row).collect()
}

/// Which log-probabilities a case asks for: one for each row.
fn which(case: &Case) -> Vec<LogProbabilities> {
    let code = |row: u64| i64::try_from((case.number / 3 + row) % 3).unwrap();
    (0..case.rows as u64).map(|row| LogProbabilities::from_code(code(row))).collect()
}

fn draw(sampler: &Sampler, stream: &Stream, case: &Case) -> Drawn {
    let rows = Rows::new(stream, case.dtype, &case.logits);
    let controls = Controls::of_case(stream, case, &which(case));
    let adjusts = controls.adjustments.is_some();
    let mut workspace = sampler.workspace(stream, case.rows, case.vocabulary, adjusts).unwrap();
    let mut results = Results::new(stream, case.rows).unwrap();
    sampler.launch(stream, controls.request(rows.logits()), &mut workspace, &mut results).unwrap();
    let first = read(&results);
    // A workspace is left as it was found.
    sampler.launch(stream, controls.request(rows.logits()), &mut workspace, &mut results).unwrap();
    assert_eq!(read(&results), first, "case {} drawn twice", case.number);
    first
}

/// Compares cases of a kind, on all threads of the machine, each with a stream of its own.
fn compare(count: u64, make: fn(u64) -> Case) {
    let stream = stream();
    let device = stream.device();
    let samplers = || PerType::new(|logits| Sampler::new(device, logits).unwrap());
    // Compiled once; the others find them in the cache.
    drop(samplers());
    let threads = thread::available_parallelism().map_or(2, usize::from).min(16);
    let (wrong, rows) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |first: u64| {
        let (samplers, stream) = (samplers(), device.stream().unwrap());
        for case in (first..count).step_by(threads).map(make) {
            rows.fetch_add(case.rows, Relaxed);
            let drawn = draw(samplers.of(case.dtype), &stream, &case);
            wrong.fetch_add(report(&case, &drawn), Relaxed);
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

/// Prints the rows whose token or log-probabilities are not those of the reference, and counts them.
fn report(case: &Case, drawn: &Drawn) -> usize {
    let tokens = case.expected();
    let kinds = [LogProbabilities::None, LogProbabilities::Model, LogProbabilities::Processed];
    let expected = kinds.map(|which| case.log_probabilities(which, &tokens));
    let mut wrong = 0;
    for (row, which) in which(case).into_iter().enumerate() {
        let theirs = (tokens[row], expected[usize::try_from(which.code()).unwrap()][row].clone());
        if drawn[row] == theirs {
            continue;
        }
        let (settings, kind) = (case.settings_of_rows()[row], case.kinds[row]);
        println!(
            "case {} row {row} of {} x {}, {:?} {kind:?}, {settings:?}, adjusted: {}, {which:?}: {:?}, not {theirs:?}",
            case.number,
            case.rows,
            case.vocabulary,
            case.dtype,
            !case.adjustments.is_empty(),
            drawn[row]
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
    let mut workspace = sampler.workspace(&stream, 1, logits.len(), false).unwrap();
    let mut results = Results::new(&stream, 1).unwrap();
    let mut graph = stream
        .capture(|stream| sampler.launch(stream, controls.request(Logits::F32(&rows)), &mut workspace, &mut results))
        .unwrap();
    let several = [(0.0, 1, 1.0), (1.0, 40, 0.9), (2.0, 5000, 0.5), (1.0, 4000, 0.99), (0.7, i64::MAX, 1.0)];
    for (seed, (temperature, top_k, top_p)) in (0..200).zip(several.into_iter().cycle()) {
        controls.temperature.write(0, &[temperature]).unwrap();
        controls.top_k.write(0, &[top_k]).unwrap();
        controls.top_p.write(0, &[top_p]).unwrap();
        let min_p = if seed % 3 == 0 { 0.05 } else { 0.0 };
        controls.min_p.write(0, &[min_p]).unwrap();
        let exact_tail = seed % 4 == 3;
        controls.exact_tail.write(0, &[i64::from(exact_tail)]).unwrap();
        controls.seed.as_mut().unwrap().write(0, &[seed]).unwrap();
        graph.launch().unwrap();
        let settings = Settings { temperature, top_k, top_p, min_p, exact_tail };
        let key = ptero_sampling::noise::seed_key(seed);
        assert_eq!(
            results.tokens.read().unwrap(),
            sample(&logits, logits.len(), &[settings], Keys::Shared(key)),
            "{seed}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn draws_without_a_seed_follow_the_sequence_of_keys() {
    let stream = stream();
    let sampler = Sampler::new(stream.device(), LogitType::F32).unwrap();
    let logits = vec![0.0_f32; 3 * 1001];
    let rows = Buffer::from_slice(&stream, &logits).unwrap();
    let mut workspace = sampler.workspace(&stream, 3, 1001, false).unwrap();
    let mut results = Results::new(&stream, 3).unwrap();
    workspace.start_sequence(7).unwrap();
    let mut keys = KeySequence::new(7);
    for settings in
        [Settings::PLAIN, Settings { top_p: 0.5, ..Settings::PLAIN }, Settings { top_k: 5, ..Settings::PLAIN }]
    {
        let controls = Controls::new(&stream, &[settings], None);
        sampler.launch(&stream, controls.request(Logits::F32(&rows)), &mut workspace, &mut results).unwrap();
        assert_eq!(results.tokens.read().unwrap(), sample(&logits, 1001, &[settings], Keys::Shared(keys.next_key())));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_captured_text_reads_its_own_history_biases_and_mask_anew() {
    let stream = stream();
    let sampler = Sampler::new(stream.device(), LogitType::F32).unwrap();
    let vocabulary = 300_000;
    // Peaks are neighbours, so that a block has more of them than it publishes.
    let height = |at: usize| if at % 90_000 < 40 { 8.0 } else { 0.0 };
    let logits: Vec<f32> = (0..vocabulary).map(|at| height(at) + ((at * 7919) % 1000) as f32 / 500.0).collect();
    let settings = Settings { temperature: 0.8, top_k: 50, top_p: 0.95, min_p: 0.01, exact_tail: false };
    let mut controls = Controls::new(&stream, &[settings], Some(&[0]));
    let biases = [(90_001, 1.5), (7, -2.0), (90_001, 0.25), (-1, 9.0)];
    let mask: Vec<i32> =
        (0..vocabulary.div_ceil(MASK_BITS)).map(|word| if word % 3 == 0 { -1 } else { 0x5555_5555 }).collect();
    controls.log_probabilities = Some(Buffer::zeroed(&stream, 1).unwrap());
    controls.adjustments = Some(Adjusting {
        rows: Buffer::from_slice(&stream, &[RowAdjustments::NONE]).unwrap(),
        history: Buffer::zeroed(&stream, 200).unwrap(),
        bias_tokens: Buffer::from_slice(&stream, &biases.map(|(token, _)| token)).unwrap(),
        bias_values: Buffer::from_slice(&stream, &biases.map(|(_, value)| value)).unwrap(),
        mask: Buffer::from_slice(&stream, &mask).unwrap(),
    });
    let rows = Buffer::from_slice(&stream, &logits).unwrap();
    let mut workspace = sampler.workspace(&stream, 1, vocabulary, true).unwrap();
    let mut results = Results::new(&stream, 1).unwrap();
    let draw =
        |stream: &Stream| sampler.launch(stream, controls.request(Logits::F32(&rows)), &mut workspace, &mut results);
    let mut graph = stream.capture(draw).unwrap();
    let mut history: Vec<i32> = vec![3, 90_000, 90_000];
    for step in 0..150_u32 {
        let penalties = Penalties { repetition: 1.1, presence: 0.5, frequency: 0.1 };
        let penalties = if step % 5 == 4 { Penalties::NONE } else { penalties };
        let bias_count = if step % 2 == 0 { biases.len() } else { 0 };
        let words = if step % 3 == 0 { mask.len() } else { 0 };
        let which = LogProbabilities::from_code(i64::from(step % 3));
        let (device, length) = (controls.adjustments.as_mut().unwrap(), |length: usize| u32::try_from(length).unwrap());
        device.history.write(0, &history).unwrap();
        let row = RowAdjustments {
            history: [0, length(history.len())],
            prompt_end: 3,
            biases: [0, length(bias_count)],
            mask: [0, length(words)],
            penalties: [penalties.repetition, penalties.presence, penalties.frequency],
        };
        device.rows.write(0, &[row]).unwrap();
        controls.log_probabilities.as_mut().unwrap().write(0, &[which.code()]).unwrap();
        controls.seed.as_mut().unwrap().write(0, &[step.into()]).unwrap();
        graph.launch().unwrap();
        let mut adjusted = logits.clone();
        let (biases, mask) = (&biases[..bias_count], &mask[..words]);
        ptero_sampling::adjust::Adjustments { penalties, history: &history, prompt_end: 3, biases, mask }
            .apply(&mut adjusted);
        let token =
            sample(&adjusted, vocabulary, &[settings], Keys::Shared(ptero_sampling::noise::seed_key(step.into())))[0];
        let expected = match which {
            LogProbabilities::None => RowLogProbabilities::NONE,
            LogProbabilities::Model => RowLogProbabilities::of_model(&logits, token as usize),
            LogProbabilities::Processed => RowLogProbabilities::of_processed(&adjusted, &settings, token as usize),
        };
        assert_eq!(read(&results), [(token, expected)], "step {step}");
        history.push(i32::try_from(token).unwrap());
    }
}
