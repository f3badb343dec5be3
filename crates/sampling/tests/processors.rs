//! What the logits processors of Hugging Face transformers keep of random rows (`conformance/make_processors.py`).
#![allow(clippy::indexing_slicing, reason = "a test")]

use ptero_sampling::adjust::Adjustments;
use ptero_sampling::reference::kept;
use ptero_sampling::settings::{Penalties, Settings};
use ptero_tensor::SplitMix64;
use serde_json::Value;

/// A nucleus or a cut whose boundary is this near may be another, because transformers sums and compares probabilities in f32.
const NEAR: f64 = 1e-5;

/// Returns `true` if a probability is within rounding of a boundary.
fn boundary_is_near(scaled: &[f32], settings: &Settings) -> bool {
    let mut descending: Vec<f64> = scaled.iter().copied().map(f64::from).collect();
    descending.sort_unstable_by(|a, b| b.total_cmp(a));
    // Equal logits: transformers keeps some of those that ptero keeps or drops together.
    let is_tied = descending.windows(2).any(|pair| pair[0] == pair[1]);
    descending.truncate(settings.kept_of(scaled.len()));
    let ratios: Vec<f64> = descending.iter().map(|score| (score - descending[0]).exp()).collect();
    let total: f64 = ratios.iter().sum();
    let mut before = 0.0;
    let is_near_top_p = ratios.iter().any(|ratio| {
        let is_near = (before / total - f64::from(settings.top_p)).abs() < NEAR;
        before += ratio;
        is_near
    });
    let min_p = f64::from(settings.min_p);
    let is_near_min_p = ratios.iter().any(|ratio| (ratio - min_p).abs() < NEAR * min_p);
    is_tied || is_near_top_p || is_near_min_p
}

#[test]
fn what_is_kept_is_what_transformers_keeps() {
    let lines: Vec<Value> = serde_json::from_str(include_str!("processors.json")).expect("JSON");
    let mut near = 0;
    for line in &lines {
        let integer = |at: usize| line[at].as_u64().expect("an integer");
        #[allow(clippy::cast_possible_truncation, reason = "the file holds f32")]
        let single = |at: usize| line[at].as_f64().expect("a number") as f32;
        let (vocabulary, length) = (integer(1), integer(2));
        let mut rng = SplitMix64::new(integer(0));
        #[allow(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let mut logits: Vec<f32> = (0..vocabulary).map(|_| (rng.next_u64() >> 40) as f32 / 1_048_576.0 - 8.0).collect();
        let history: Vec<i32> =
            (0..length).map(|_| i32::try_from(rng.next_u64() % vocabulary).expect("a token")).collect();
        let penalties = Penalties { repetition: single(7), ..Penalties::NONE };
        Adjustments { penalties, history: &history, ..Adjustments::NONE }.apply(&mut logits);
        let top_k = integer(4).cast_signed();
        let settings =
            Settings { temperature: single(3), top_k, top_p: single(5), min_p: single(6), exact_tail: false };
        let scaled: Vec<f32> = logits.iter().map(|logit| logit / settings.temperature).collect();
        let mut digits = vec![0; logits.len().div_ceil(4)];
        kept(&scaled, &settings).for_each(|token| digits[token / 4] |= 1 << (token % 4));
        let found: String = digits.iter().map(|digit: &u32| format!("{digit:x}")).collect();
        if line[8] != found.as_str() {
            assert!(boundary_is_near(&scaled, &settings), "{line}: {found}");
            near += 1;
        }
    }
    println!("{} rows, {near} with a boundary within rounding", lines.len());
    assert!(lines.len() == 10_000 && near < 50, "{near} differ");
}
