//! A second sampler, written without the reference, that can be made wrong in one way at a time.

use std::sync::atomic::{AtomicU32, Ordering};

use half::bf16;
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The uniform number may be 1.
    NoCap,
    /// The uniform number has the upper 16 bits of the word only.
    SixteenBits,
    /// The uniform number is rounded to bf16.
    HalfNoise,
    /// The noise has the wrong sign.
    Sign,
    /// Top-p drops the token that crosses the boundary.
    CrossingDropped,
    /// Top-k and top-p keep no ties.
    TiesDropped,
    /// Top-p sums in bf16.
    HalfMasses,
    /// Min-p is relative to all that is left, not to the largest.
    MinPOfAll,
    /// Logits are multiplied by the temperature.
    Multiplied,
    /// The last of the largest wins.
    LastOfTies,
    /// The lowest bit of the seed is lost.
    SeedBitLost,
    /// All rows of a batch have the noise of the first.
    RowIgnored,
    /// Noise depends on what was drawn before.
    Stateful,
}

/// The sampler with a fault.
pub fn sampler(fault: Fault) -> impl Fn(&[f32], usize, &Settings, Keys<'_>) -> Vec<u32> + Sync {
    let state = AtomicU32::new(0);
    move |logits, vocabulary, settings, keys| {
        let rows = logits.chunks_exact(vocabulary).enumerate();
        rows.map(|(at, row)| {
            let (mut key, count, start) = match keys {
                Keys::Shared(key) => (key, logits.len(), at * vocabulary),
                Keys::PerRow(keys) => (keys[at], vocabulary, 0),
            };
            match fault {
                Fault::SeedBitLost => key[1] &= !1,
                Fault::Stateful => key[0] ^= state.fetch_add(1, Ordering::Relaxed),
                _ => {}
            }
            let start = if fault == Fault::RowIgnored { 0 } else { start };
            let noise_of = |index: usize| match settings.exact_tail {
                true => exact_noise(
                    threefry::word(key, 2 * count, start + index),
                    threefry::word(key, 2 * count, count + start + index),
                ),
                false => noise(threefry::word(key, count, start + index), fault),
            };
            token(row, settings, noise_of, fault)
        })
        .collect()
    }
}

fn token(row: &[f32], settings: &Settings, noise: impl Fn(usize) -> f32, fault: Fault) -> u32 {
    let scores: Vec<f32> = if settings.temperature == 0.0 {
        row.to_vec()
    } else {
        let scale = |logit: &f32| match fault {
            Fault::Multiplied => logit * settings.temperature,
            _ => logit / settings.temperature,
        };
        let scaled: Vec<f32> = row.iter().map(scale).collect();
        let keep = kept(&scaled, settings, fault);
        let score = |at: usize| if keep[at] { scaled[at] + noise(at) } else { f32::NEG_INFINITY };
        (0..row.len()).map(score).collect()
    };
    let mut best = 0;
    for (at, &score) in scores.iter().enumerate() {
        if score > scores[best] || fault == Fault::LastOfTies && score == scores[best] {
            best = at;
        }
    }
    u32::try_from(best).expect("a small vocabulary")
}

#[allow(clippy::cast_precision_loss, reason = "the contract rounds to f32")]
fn noise(word: u32, fault: Fault) -> f32 {
    let cap = f32::from_bits(0x3f7f_ffff);
    let u = match fault {
        Fault::NoCap => word as f32 / u32::MAX as f32,
        Fault::SixteenBits => ((word >> 16) as f32 / 65_535.0).min(cap),
        Fault::HalfNoise => bf16::from_f32((word as f32 / u32::MAX as f32).min(cap)).to_f32(),
        _ => (word as f32 / u32::MAX as f32).min(cap),
    };
    let gumbel = -(-u.ln()).ln();
    if fault == Fault::Sign { -gumbel } else { gumbel }
}

/// The noise of the distance from 1, of 64 bits.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "rounded to f32 at the end")]
fn exact_noise(high: u32, low: u32) -> f32 {
    let distance = (u64::from(high) << 32 | u64::from(low)) as f64 / 2.0_f64.powi(64);
    -(-(-distance.min(1.0 - 2.0_f64.powi(-24))).ln_1p()).ln() as f32
}

/// Which tokens the filters leave.
fn kept(scaled: &[f32], settings: &Settings, fault: Fault) -> Vec<bool> {
    let count = usize::try_from(settings.top_k).unwrap_or(usize::MAX).min(scaled.len());
    let mut keep = vec![true; scaled.len()];
    if count == scaled.len() && settings.top_p == 1.0 && settings.min_p == 0.0 {
        return keep;
    }
    let mut order: Vec<usize> = (0..scaled.len()).collect();
    order.sort_by(|&a, &b| scaled[b].total_cmp(&scaled[a]));
    let ties = fault != Fault::TiesDropped;
    let least = scaled[order[count - 1]];
    order = order
        .into_iter()
        .enumerate()
        .filter(|&(at, token)| at < count || ties && scaled[token] >= least)
        .map(|(_, token)| token)
        .collect();

    let round = |x: f64| if fault == Fault::HalfMasses { bf16::from_f64(x).to_f64() } else { x };
    let mass = |token: usize| (f64::from(scaled[token]) - f64::from(scaled[order[0]])).exp();
    let total: f64 = order.iter().map(|&token| mass(token)).sum();
    let (mut before, mut left) = (0.0, 0);
    for &token in &order {
        let p = round(mass(token) / total);
        let reach = if fault == Fault::CrossingDropped { before + p } else { before };
        if reach > f64::from(settings.top_p) && left > 0 {
            break;
        }
        (before, left) = (round(before + p), left + 1);
    }
    let whole = if fault == Fault::MinPOfAll { total } else { 1.0 };
    let likely = order.iter().take_while(|token| mass(**token) / whole >= f64::from(settings.min_p)).count();
    left = left.min(likely.max(1));
    let least = scaled[order[left - 1]];
    keep.fill(false);
    for (at, token) in order.into_iter().enumerate() {
        keep[token] = at < left || ties && scaled[token] == least;
    }
    keep
}
