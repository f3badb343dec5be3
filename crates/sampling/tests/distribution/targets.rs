//! What is drawn from, and the probabilities that it should be drawn with: in f64, by a sort and sums, with nothing of the crate
//! under test.

use ptero_sampling::adjust::Adjustments;
use ptero_sampling::settings::{Penalties, Settings};

/// Tokens of a row.
pub const VOCABULARY: usize = 64;

/// A distribution of 64 tokens.
#[derive(Clone)]
pub struct Shape {
    pub name: &'static str,
    pub logits: Vec<f32>,
}

/// The distributions.
pub fn shapes() -> Vec<Shape> {
    let shape = |name, logit: fn(u8) -> f64| {
        #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
        let logits = (0..64).map(|at| logit(at) as f32).collect();
        Shape { name, logits }
    };
    vec![
        shape("uniform", |_| 1.0),
        shape("geometric", |at| -0.25 * f64::from(at)),
        shape("zipf", |at| -(f64::from(at) + 1.0).ln()),
        // One token has 84 %.
        shape("peaked", |at| if at == 40 { (63.0_f64 * 0.84 / 0.16).ln() } else { 0.0 }),
        shape("two-level", |at| if at % 8 == 3 { 2.0 } else { 0.0 }),
        // Bell-shaped with deviation 2.5, in no order, and two peaks.
        shape("realistic", |at| match at {
            17 => 8.5,
            50 => 7.25,
            _ => {
                let at = f64::from(at);
                let unit = |step: f64| (at * step).fract() - 0.5;
                2.5 * (unit(0.618_033_988_75) + unit(0.754_877_666_25) + unit(0.569_840_290_998)) * 2.0
            }
        }),
    ]
}

pub fn shape(name: &str) -> Shape {
    shapes().into_iter().find(|shape| shape.name == name).expect("a shape of that name")
}

/// The settings that each distribution is drawn with.
pub const FILTERS: [(&str, Settings); 9] = [
    ("none", Settings::PLAIN),
    ("top-k", Settings { top_k: 10, ..Settings::PLAIN }),
    ("top-p", Settings { top_p: 0.9, ..Settings::PLAIN }),
    ("both", Settings { top_k: 20, top_p: 0.8, ..Settings::PLAIN }),
    ("cold", Settings { temperature: 0.5, ..Settings::PLAIN }),
    ("hot", Settings { temperature: 2.0, ..Settings::PLAIN }),
    ("min-p", Settings { min_p: 0.031, ..Settings::PLAIN }),
    ("all", Settings { temperature: 1.3, top_k: 30, top_p: 0.97, min_p: 0.043, exact_tail: false }),
    ("exact tail", Settings { exact_tail: true, ..Settings::PLAIN }),
];

pub fn filter(name: &str) -> Settings {
    FILTERS.into_iter().find(|(filter, _)| *filter == name).expect("a filter of that name").1
}

/// The probability of each token; 0 exactly where a filter removed it.
pub fn probabilities(logits: &[f32], settings: &Settings) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / f64::from(settings.temperature)).collect();
    let softmax = |keep: &dyn Fn(f64) -> bool| {
        let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let masses: Vec<f64> = scaled.iter().map(|&s| if keep(s) { (s - largest).exp() } else { 0.0 }).collect();
        let total: f64 = masses.iter().sum();
        masses.into_iter().map(|mass| mass / total).collect::<Vec<_>>()
    };
    let sorted = |numbers: &[f64]| {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        sorted
    };
    let count = usize::try_from(settings.top_k).unwrap_or(usize::MAX).min(logits.len());
    let least = sorted(&scaled)[count - 1];
    let left = softmax(&|s| s >= least);
    let top_p = f64::from(settings.top_p);
    let (mut before, mut least) = (0.0, 1.0);
    for p in sorted(&left) {
        assert!((before - top_p).abs() > 1e-6 || top_p == 1.0, "a boundary that rounding may move");
        if before > top_p {
            break;
        }
        (before, least) = (before + p, p);
    }
    let likely = f64::from(settings.min_p) * left.iter().copied().fold(0.0, f64::max);
    assert!(left.iter().all(|p| (p - likely).abs() > 1e-7 || likely == 0.0), "a boundary that rounding may move");
    let least = least.max(likely);
    let total: f64 = left.iter().filter(|&&p| p >= least).sum();
    left.into_iter().map(|p| if p >= least { p / total } else { 0.0 }).collect()
}

/// What changes the logits of [`adjusted`].
pub const ADJUSTMENTS: Adjustments<'_> = Adjustments {
    penalties: Penalties { repetition: 1.3, presence: 0.4, frequency: 0.25 },
    history: &[17, 50, 3, 9, 9, 60, 9, 50, 63],
    prompt_end: 4,
    biases: &[(20, 3.5), (21, -2.0), (9, 1.0), (20, 0.5)],
    mask: &[-1, 0x7fff_fffb],
};

/// A distribution after [`ADJUSTMENTS`], with nothing of the crate under test.
pub fn adjusted(shape: &Shape) -> Shape {
    let seen = [17, 50, 3, 9, 60, 63];
    let (counts, biases) = ([(9, 2.0), (60, 1.0), (50, 1.0), (63, 1.0)], [(20, 4.0), (21, -2.0), (9, 1.0)]);
    let of = |table: &[(usize, f64)], token: usize| table.iter().find(|(at, _)| *at == token).map_or(0.0, |(_, x)| *x);
    let logit = |(token, &logit): (usize, &f32)| {
        let logit = f64::from(logit);
        let punished = if logit < 0.0 { logit * 1.3 } else { logit / 1.3 };
        let logit = if seen.contains(&token) { punished } else { logit };
        let count = of(&counts, token);
        let logit = logit - count * 0.25 - if count > 0.0 { 0.4 } else { 0.0 } + of(&biases, token);
        #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
        if token == 34 || token == 63 { f32::NEG_INFINITY } else { logit as f32 }
    };
    Shape { name: "adjusted", logits: shape.logits.iter().enumerate().map(logit).collect() }
}

#[test]
fn probabilities_of_a_small_example() {
    let row = [4.0_f32, 1.0, 2.0, 1.0].map(f32::ln);
    let of = |top_k, top_p, temperature| {
        let exact = probabilities(&row, &Settings { temperature, top_k, top_p, ..Settings::PLAIN });
        exact.into_iter().map(|p| (p * 840.0).round()).collect::<Vec<_>>()
    };
    assert_eq!(of(9, 1.0, 1.0), [420.0, 105.0, 210.0, 105.0]);
    assert_eq!(of(2, 1.0, 1.0), [560.0, 0.0, 280.0, 0.0]);
    assert_eq!(of(3, 1.0, 1.0), [420.0, 105.0, 210.0, 105.0]);
    assert_eq!(of(9, 0.4, 1.0), [840.0, 0.0, 0.0, 0.0]);
    assert_eq!(of(9, 0.6, 1.0), [560.0, 0.0, 280.0, 0.0]);
    assert_eq!(of(2, 0.6, 1.0), [840.0, 0.0, 0.0, 0.0]);
    assert_eq!(of(9, 0.8, 1.0), [420.0, 105.0, 210.0, 105.0]);
    // Squares: 16, 1, 4, 1 of 22.
    assert_eq!(of(9, 1.0, 0.5), [611.0, 38.0, 153.0, 38.0]);
}
