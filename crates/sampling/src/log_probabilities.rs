//! Log-probabilities of a row: that of the token that was drawn, and the likeliest tokens with theirs.

use crate::categorical::log_probability;
use crate::mass::mass;
use crate::reference::kept;
use crate::settings::Settings;

/// How many of the likeliest tokens a program can return.
pub const MOST_LIKELIEST: usize = 20;

/// Which distribution log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogProbabilities {
    /// None are computed.
    #[default]
    None,
    /// The model's own: the softmax of its logits.
    Model,
    /// What tokens are drawn from: after penalties, biases, mask, temperature, top-k, top-p and min-p.
    Processed,
}

impl LogProbabilities {
    /// What a program takes for it.
    pub fn code(self) -> i64 {
        match self {
            Self::None => 0,
            Self::Model => 1,
            Self::Processed => 2,
        }
    }

    /// What a program takes a number for.
    pub fn from_code(code: i64) -> Self {
        match code {
            ..=0 => Self::None,
            1 => Self::Model,
            2.. => Self::Processed,
        }
    }
}

/// A row's log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLogProbabilities {
    /// That of the token.
    pub token: f32,
    /// The likeliest tokens and theirs, from the likeliest down; of equals, the lower index comes first. Tokens that cannot be
    /// drawn have minus infinity. A row with fewer elements repeats none: the rest are token 0 with minus infinity.
    pub likeliest: [(u32, f32); MOST_LIKELIEST],
}

impl RowLogProbabilities {
    /// What a program returns if it is not asked for any.
    pub const NONE: Self = Self { token: 0.0, likeliest: [(0, 0.0); MOST_LIKELIEST] };

    /// Those of the model's own distribution: of its logits, as they are.
    pub fn of_model(logits: &[f32], token: usize) -> Self {
        Self::of(logits, token)
    }

    /// Those of what is drawn from. `adjusted` are the logits after [`crate::adjust`].
    pub fn of_processed(adjusted: &[f32], settings: &Settings, token: usize) -> Self {
        if settings.is_greedy() {
            return Self::of(adjusted, token);
        }
        let scaled: Vec<f32> = adjusted.iter().map(|logit| logit / settings.temperature).collect();
        let mut left = vec![f32::NEG_INFINITY; scaled.len()];
        for index in kept(&scaled, settings) {
            if let (Some(left), Some(scaled)) = (left.get_mut(index), scaled.get(index)) {
                *left = *scaled;
            }
        }
        Self::of(&left, token)
    }

    /// Logarithms of the softmax. NaN counts as minus infinity.
    fn of(scores: &[f32], token: usize) -> Self {
        let scores: Vec<f32> =
            scores.iter().map(|score| if score.is_nan() { f32::NEG_INFINITY } else { *score }).collect();
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = scores.iter().map(|score| mass(*score, largest)).sum();
        let share = |score: f32| match score {
            f32::NEG_INFINITY => f32::NEG_INFINITY,
            _ => log_probability(score, largest, total),
        };
        let mut order: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
        // Stable, so that of equals the lower index comes first; not `total_cmp`: the two zeros are equal.
        order.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("NaN was replaced"));
        let mut likeliest = [(0, f32::NEG_INFINITY); MOST_LIKELIEST];
        for (to, (index, score)) in likeliest.iter_mut().zip(order) {
            *to = (index, share(score));
        }
        Self { token: scores.get(token).map_or(f32::NEG_INFINITY, |score| share(*score)), likeliest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    #[test]
    fn the_models_own_are_the_logarithm_of_the_softmax() {
        let logits = [1.0, 3.0, f32::NAN, 2.0, 3.0, -INF];
        let found = RowLogProbabilities::of_model(&logits, 3);
        let total: f64 = [1.0_f64, 3.0, 2.0, 3.0].iter().map(|x| x.exp()).sum();
        assert!((f64::from(found.token) - (2.0 - total.ln())).abs() < 1e-6);
        assert_eq!(found.likeliest.map(|(token, _)| token)[..6], [1, 4, 3, 0, 2, 5]);
        assert_eq!(found.likeliest[2].1, found.token);
        assert_eq!(found.likeliest[4..], [[(2, -INF), (5, -INF)].as_slice(), &[(0, -INF); 14]].concat());
    }

    #[test]
    fn processed_ones_are_of_what_is_drawn_from() {
        let settings = Settings { temperature: 0.5, top_k: 2, ..Settings::PLAIN };
        let found = RowLogProbabilities::of_processed(&[1.0, 2.0, 3.0], &settings, 1);
        assert!((found.token - (-2.0 - (1.0 + (-2.0_f32).exp()).ln())).abs() < 1e-6);
        assert_eq!(found.likeliest[2], (0, -INF));
        let greedy = RowLogProbabilities::of_processed(&[1.0, 2.0, 3.0], &Settings::GREEDY, 2);
        assert_eq!(greedy, RowLogProbabilities::of_model(&[1.0, 2.0, 3.0], 2));
    }

    #[test]
    fn a_row_of_nothing_has_none() {
        let found = RowLogProbabilities::of_model(&[f32::NAN, -INF], 0);
        assert_eq!((found.token, found.likeliest[0]), (-INF, (0, -INF)));
    }
}
