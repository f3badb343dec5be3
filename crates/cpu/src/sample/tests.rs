//! Compares with the reference, on the cases shared by all devices. `PTERO_SAMPLING_CASES` sets their number.

use super::*;
use crate::pool::{Pool, Scratch, Workers};
use crate::simd::Isa;
use half::{bf16, f16};
use ptero_sampling::adjust::{Adjustments, OwnedAdjustments};
use ptero_sampling::cases::{Case, Seeds};

/// Checks cases on every instruction set, each time with another number of threads.
fn check(cases: impl Iterator<Item = Case>) {
    let mut teams: Vec<(Pool, Scratch)> = [1, 2, 5].map(|threads| (Pool::new(threads), Scratch::default())).into();
    for (number, case) in cases.enumerate() {
        let halves: Vec<f16> = case.logits.iter().map(|logit| f16::from_f32(*logit)).collect();
        let brains: Vec<bf16> = case.logits.iter().map(|logit| bf16::from_f32(*logit)).collect();
        let elements = match case.dtype {
            DType::F16 => Elements::F16(&halves),
            DType::Bf16 => Elements::Bf16(&brains),
            _ => Elements::F32(&case.logits),
        };
        let (rows, expected) = (LogitRows::contiguous(elements, case.vocabulary), case.expected());
        let seeds: Vec<Key> = match &case.seeds {
            Seeds::Shared(seed) => vec![seed_key(*seed)],
            Seeds::PerRow(seeds) => seeds.iter().copied().map(seed_key).collect(),
        };
        let adjustments: Vec<Adjustments<'_>> = case.adjustments.iter().map(OwnedAdjustments::borrowed).collect();
        let which = [LogProbabilities::None, LogProbabilities::Model, LogProbabilities::Processed][number % 3];
        let log_probabilities = case.log_probabilities(which, &expected);
        let is_shared = matches!(case.seeds, Seeds::Shared(_));
        for (at, isa) in Isa::available().into_iter().enumerate() {
            let (pool, scratch) = &mut teams[(number + at) % 3];
            let keys = if is_shared { Keys::Shared(seeds[0]) } else { Keys::PerRow(&seeds) };
            let parameters =
                Parameters { settings: &case.settings, keys, adjustments: &adjustments, log_probabilities: which };
            let mut drawn = vec![Drawn::NONE; case.rows];
            sample_rows(&mut Workers { pool, scratch }, isa, &rows, &parameters, &mut drawn);
            let [isa, threads] = [isa.name(), &pool.threads().to_string()];
            for (row, drawn) in drawn.iter().enumerate() {
                let settings = case.settings_of_rows()[row];
                let what =
                    format!("case {}, row {row}, {settings:?}, {isa}, {threads} threads, {which:?}", case.number);
                assert_eq!(drawn.token, expected[row], "{what}");
                assert_eq!(drawn.log_probabilities, log_probabilities[row], "{what}");
            }
        }
    }
}

fn tokens(drawn: &[Drawn]) -> Vec<u32> {
    drawn.iter().map(|drawn| drawn.token).collect()
}

fn count(usual: u64) -> u64 {
    std::env::var("PTERO_SAMPLING_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

#[test]
fn rows_get_the_tokens_of_the_reference() {
    check((0..count(2000)).map(Case::number));
}

#[test]
fn settings_without_meaning_mean_what_the_reference_says() {
    check((0..count(1000)).map(Case::without_meaning));
}

#[test]
fn temperatures_may_be_any_above_zero() {
    const ENDS: [f32; 7] = [f32::MAX, f32::MIN_POSITIVE, 1e-38, 1e-40, 1.5e38, 1.701_411_8e38, 2.8e-45];
    let number = |number: u64| {
        let mut case = Case::number(number);
        for (settings, at) in case.settings.iter_mut().zip(number..) {
            // Covers every exponent, and powers of two.
            let bits = (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % u64::from(f32::INFINITY.to_bits() - 1) + 1;
            let bits = u32::try_from(bits).unwrap();
            settings.temperature = match at % 4 {
                0 => f32::from_bits(bits),
                1 => f32::from_bits((bits & 0x7f80_0000).max(1)),
                2 => 2_f32.powi(i32::try_from(at % 277).unwrap() - 149),
                _ => ENDS[usize::try_from(at / 4).unwrap() % ENDS.len()],
            };
        }
        case
    };
    check((0..count(1000)).map(number));
}

#[test]
fn rows_that_are_too_many_to_be_worked_on_together_are_taken_in_groups() {
    let (count, vocabulary) = (40, 100_003);
    let logits: Vec<f32> = (0..count * vocabulary).map(|at| ((at * 7919) % 100_019) as f32 / 10_000.0).collect();
    let settings = [Settings { temperature: 0.9, top_k: 300, top_p: 0.99, ..Settings::PLAIN }];
    let mut drawn = vec![Drawn::NONE; count];
    let (pool, mut scratch) = (Pool::new(2), Scratch::default());
    let mut workers = Workers { pool: &pool, scratch: &mut scratch };
    let rows = LogitRows::contiguous(Elements::F32(&logits), vocabulary);
    let parameters = Parameters::new(&settings, Keys::Shared([1, 2]));
    sample_rows(&mut workers, Isa::best(), &rows, &parameters, &mut drawn);
    assert_eq!(tokens(&drawn), ptero_sampling::reference::sample(&logits, vocabulary, &settings, Keys::Shared([1, 2])));
}

#[test]
fn rows_may_lie_apart_or_be_one() {
    let logits: Vec<f32> = (0..7000_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 8) as f32 / 1e6).collect();
    let (pool, mut scratch) = (Pool::new(1), Scratch::default());
    for (first, stride) in [(5, 1700), (3000, 0), (0, 1500)] {
        let row = |row: usize| &logits[first + row * stride..][..1500];
        let gathered: Vec<f32> = (0..4).flat_map(|number| row(number).iter().copied()).collect();
        let settings = [Settings { temperature: 2.0, ..Settings::PLAIN }];
        let expected = ptero_sampling::reference::sample(&gathered, 1500, &settings, Keys::Shared([3, 4]));
        let rows = LogitRows { elements: Elements::F32(&logits), first, stride, vocabulary: 1500 };
        let mut workers = Workers { pool: &pool, scratch: &mut scratch };
        let mut drawn = vec![Drawn::NONE; 4];
        let parameters = Parameters::new(&settings, Keys::Shared([3, 4]));
        sample_rows(&mut workers, Isa::best(), &rows, &parameters, &mut drawn);
        assert_eq!(tokens(&drawn), expected);
    }
}

/// Tokens beside one of logit 0: minus the power of two of their probability, and how many of them. Of 10^8 draws, each kind has 38
/// or more, so that a kind that is missing is found.
const TAIL: [(u8, usize); 3] = [(20, 256), (28, 128), (32, 1664)];

#[test]
fn very_unlikely_tokens_are_drawn_as_often_as_they_should_be() {
    // `PTERO_TAIL_DRAWS=100000000` (`just tail`) counts tokens of 2^-28 and 2^-32, too; in a release build that takes minutes.
    let draws = std::env::var("PTERO_TAIL_DRAWS").map_or(200_000, |draws| draws.parse().unwrap());
    // NaN is never drawn. It keeps unlikely tokens out of the chunk of the likely one, which finds the noise of its tokens one by one.
    let mut row = vec![f32::NAN; noise::CHUNK];
    row[0] = 0.0;
    let first = row.len();
    row.extend(TAIL.iter().flat_map(|(power, count)| vec![-f32::from(*power) * std::f32::consts::LN_2; *count]));
    let settings = [Settings { exact_tail: true, ..Settings::PLAIN }];
    let rows = LogitRows { elements: Elements::F32(&row), first: 0, stride: 0, vocabulary: row.len() };
    let (pool, mut scratch) = (Pool::new(2), Scratch::default());
    let (mut counts, mut drawn) = (vec![0_u32; row.len()], vec![Drawn::NONE; 512]);
    for call in 0..draws / 512 {
        let parameters = Parameters::new(&settings, Keys::Shared([call, 16]));
        sample_rows(&mut Workers { pool: &pool, scratch: &mut scratch }, Isa::best(), &rows, &parameters, &mut drawn);
        drawn.iter().for_each(|drawn| counts[drawn.token as usize] += 1);
    }
    assert!(counts[1..first].iter().all(|count| *count == 0), "NaN is never drawn");
    let mut first = first;
    for (power, count) in TAIL {
        let found: u32 = counts[first..first + count].iter().sum();
        let expected = f64::from(draws / 512 * 512) * count as f64 * 0.5_f64.powi(power.into());
        println!("{count} tokens of 2^-{power}: {found} of {expected:.1}");
        // Of Poisson's distribution; not once in a million tests by chance.
        assert!((f64::from(found) - expected).abs() <= 5.0 * expected.sqrt() + 5.0, "2^-{power}: {found}, {expected}");
        first += count;
    }
}
