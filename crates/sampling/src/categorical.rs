//! `softmax_sample`: one token and its log-probability, drawn with a uniform number of the caller's.

use crate::mass::{LONGEST_ROW, ONE, limit, mass};
use ptero_arithmetic::ln;

/// The result of a draw: eight bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// The logarithm of its probability.
    pub log_probability: f32,
}

/// Why a draw is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to draw from.
    #[error("`logits` has no elements")]
    Empty,
    /// More than fits the sums.
    #[error("`logits` has {0} elements; at most {LONGEST_ROW} can be drawn from")]
    TooLong(usize),
    /// Not rows of the stated length.
    #[error("`logits` has {logits} elements, which are not rows of `vocabulary` {vocabulary}")]
    Rows {
        /// The number of logits.
        logits: usize,
        /// The length of a row.
        vocabulary: usize,
    },
    /// Another number of random numbers than of rows.
    #[error("`random` has {random} elements for {rows} rows")]
    Random {
        /// The number of random numbers.
        random: usize,
        /// The number of rows.
        rows: usize,
    },
    /// Zero, negative, infinite or NaN.
    #[error("`temperature` is {0}; it must be above 0")]
    Temperature(f32),
    /// Outside [0, 1).
    #[error("`random` is {0}; it must be at least 0 and below 1")]
    Uniform(f32),
    /// All logits are minus infinity or NaN.
    #[error("`logits` row {0} has no element above minus infinity: there is no distribution to draw from")]
    NoDistribution(usize),
}

/// Refuses arguments from which nothing can be drawn. Devices check the same before they start.
pub fn check(logits: usize, vocabulary: usize, temperature: f32, random: &[f32]) -> Result<(), Refused> {
    if logits == 0 || vocabulary == 0 {
        return Err(Refused::Empty);
    }
    if vocabulary > LONGEST_ROW {
        return Err(Refused::TooLong(vocabulary));
    }
    if !logits.is_multiple_of(vocabulary) {
        return Err(Refused::Rows { logits, vocabulary });
    }
    if random.len() != logits / vocabulary {
        return Err(Refused::Random { random: random.len(), rows: logits / vocabulary });
    }
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(Refused::Temperature(temperature));
    }
    match random.iter().find(|random| !(0.0..1.0).contains(*random)) {
        Some(&random) => Err(Refused::Uniform(random)),
        None => Ok(()),
    }
}

/// One draw per row from `softmax(logits / temperature)`: the first token, in order of index, whose cumulative mass exceeds the
/// row's `random` share of the total.
pub fn softmax_sample(
    logits: &[f32],
    vocabulary: usize,
    temperature: f32,
    random: &[f32],
) -> Result<Vec<Drawn>, Refused> {
    check(logits.len(), vocabulary, temperature, random)?;
    let rows = logits.chunks_exact(vocabulary).zip(random).enumerate();
    rows.map(|(at, (row, &random))| draw(row, temperature, random).ok_or(Refused::NoDistribution(at))).collect()
}

fn draw(logits: &[f32], temperature: f32, random: f32) -> Option<Drawn> {
    let scaled = || logits.iter().map(|logit| logit / temperature);
    let largest = scaled().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return None;
    }
    let masses = || scaled().map(|scaled| if scaled.is_nan() { 0 } else { mass(scaled, largest) });
    let total: u64 = masses().sum();
    let target = limit(random, total);
    let mut sum = 0;
    let (token, scaled) = scaled().zip(masses()).enumerate().find_map(|(token, (scaled, mass))| {
        sum += mass;
        (sum > target).then_some((token, scaled))
    })?;
    let log_probability = log_probability(scaled, largest, total);
    Some(Drawn { token: u32::try_from(token).ok()?, log_probability })
}

/// The logarithm of a token's share of the total.
#[allow(clippy::cast_precision_loss, reason = "rounded once, as every device does")]
pub fn log_probability(scaled: f32, largest: f32, total: u64) -> f32 {
    let distance = if scaled == largest { 0.0 } else { scaled - largest };
    distance - ln(total as f32 / ONE as f32)
}

#[cfg(test)]
mod tests;
