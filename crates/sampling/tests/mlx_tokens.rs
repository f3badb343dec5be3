//! The tokens of MLX 0.32.4: the operations of a sampling head, run by MLX itself (`conformance/make_sampling.py`).
#![allow(clippy::indexing_slicing, reason = "a test")]

use ptero_sampling::noise::{gumbel, seed_key};
use ptero_sampling::reference::{Keys, kept, sample};
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::{key, word};
use serde_json::Value;

/// Scores this close may swap their order, because the two logarithms differ in the last bits.
const NEAR_SCORES_ULPS: u32 = 4;
/// A nucleus whose boundary is this near may be another, because MLX sums probabilities in f32.
const NEAR_BOUNDARY: f64 = 1e-5;

/// What a line of the file says.
pub(crate) struct Case {
    pub(crate) rows: usize,
    pub(crate) vocabulary: usize,
    pub(crate) logits: Vec<f32>,
    pub(crate) settings: Settings,
    pub(crate) seed: i64,
    pub(crate) tokens: Vec<u32>,
}

fn case(line: &Value) -> Case {
    let integer = |at: usize| line[at].as_i64().expect("an integer");
    let index = |at: usize| usize::try_from(integer(at)).expect("a count");
    #[allow(clippy::cast_possible_truncation, reason = "the file holds f32")]
    let single = |at: usize| line[at].as_f64().expect("a number") as f32;
    let (rows, vocabulary) = (index(0), index(1));
    let count = rows * vocabulary;
    let (logits_key, shift, power) = (key(integer(2).cast_unsigned()), integer(3), integer(4));
    #[allow(clippy::cast_precision_loss, reason = "the rule of the file rounds to f32")]
    let logit = |at: usize| {
        let u = (word(logits_key, count.next_multiple_of(2), at) >> shift) as f32 / (1_u64 << (32 - shift)) as f32;
        (0..power).fold(single(5), |product, _| product * u) - single(6)
    };
    let tokens = line[11].as_array().expect("tokens").iter();
    Case {
        rows,
        vocabulary,
        logits: (0..count).map(logit).collect(),
        settings: Settings { temperature: single(7), top_k: integer(8), top_p: single(9), ..Settings::PLAIN },
        seed: integer(10),
        tokens: tokens.map(|token| token.as_u64().expect("a token").try_into().expect("32 bits")).collect(),
    }
}

/// All cases of the file.
pub(crate) fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(include_str!("mlx_tokens.json")).expect("JSON");
    let cases = file["cases"].as_array().expect("cases");
    assert!(cases.len() >= 500);
    cases.iter().map(case).collect()
}

/// How many f32 lie between two.
fn ulps_apart(a: f32, b: f32) -> u32 {
    let ordered = |x: f32| if x < 0.0 { -(i64::from(x.to_bits() & 0x7fff_ffff)) } else { i64::from(x.to_bits()) };
    ordered(a).abs_diff(ordered(b)).try_into().unwrap_or(u32::MAX)
}

/// Returns `true` if MLX may keep other tokens: somewhere the mass before a token is within rounding of top-p.
fn boundary_is_near(scaled: &[f32], settings: &Settings) -> bool {
    let mut descending: Vec<f32> = kept(scaled, &Settings { top_p: 1.0, ..*settings }).map(|at| scaled[at]).collect();
    descending.sort_unstable_by(|a, b| b.total_cmp(a));
    let masses: Vec<f64> =
        descending.iter().map(|&scaled| (f64::from(scaled) - f64::from(descending[0])).exp()).collect();
    let total: f64 = masses.iter().sum();
    let mut before = 0.0;
    masses.iter().any(|mass| {
        let near = (before / total - f64::from(settings.top_p)).abs() < NEAR_BOUNDARY;
        before += mass;
        near
    })
}

#[test]
fn s0_8_tokens_are_those_of_mlx() {
    let cases = cases();
    let (mut rows, mut near_scores, mut near_boundaries, mut filtered) = (0, 0, 0, 0);
    for (at, case) in cases.into_iter().enumerate() {
        let Case { rows: count, vocabulary, logits, settings, seed, tokens } = case;
        let ours = sample(&logits, vocabulary, &[settings], Keys::Shared(seed_key(seed)));
        assert_eq!((ours.len(), tokens.len()), (count, count));
        rows += count;
        let unfiltered = Settings { temperature: settings.temperature, ..Settings::PLAIN };
        let freely = sample(&logits, vocabulary, &[unfiltered], Keys::Shared(seed_key(seed)));
        filtered += freely.iter().zip(&tokens).filter(|(freely, theirs)| freely != theirs).count();
        for (row, (&ours, &theirs)) in ours.iter().zip(&tokens).enumerate() {
            if ours == theirs {
                continue;
            }
            let scaled: Vec<f32> =
                logits[row * vocabulary..][..vocabulary].iter().map(|logit| logit / settings.temperature).collect();
            let score = |token: u32| {
                let index = row * vocabulary + token as usize;
                scaled[token as usize] + gumbel(word(seed_key(seed), logits.len(), index))
            };
            let apart = ulps_apart(score(ours), score(theirs));
            let both_kept = kept(&scaled, &settings).any(|index| index == theirs as usize);
            if both_kept && apart <= NEAR_SCORES_ULPS {
                near_scores += 1;
            } else if boundary_is_near(&scaled, &settings) {
                near_boundaries += 1;
            } else {
                panic!("case {at}, row {row}: token {ours}, MLX {theirs}, {settings:?}, scores {apart} ulp apart");
            }
        }
    }
    println!(
        "{rows} rows: {near_scores} with near scores, {near_boundaries} with a near boundary, {filtered} decided by a filter"
    );
    assert!(filtered * 10 > rows, "the filters decided only {filtered} of {rows} rows");
    assert!((near_scores + near_boundaries) * 100 < rows, "{near_scores} + {near_boundaries} of {rows} rows differ");
}
