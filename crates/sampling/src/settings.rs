//! What a user may ask of the sampler.

/// How to draw. The numbers are those of the user, and [`Settings::check`] refuses invalid ones. Devices do not fail on invalid
/// numbers; each field documents how they treat them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Divides the logits. 0 takes the largest logit; so do numbers that are not above 0, on devices.
    pub temperature: f32,
    /// Keeps the tokens whose logit is at least the `top_k`-th largest. More than the vocabulary keeps all; so does less than 1, on
    /// devices.
    pub top_k: i64,
    /// Keeps the likeliest tokens until their mass exceeds this. 1 keeps all. Devices take what is not above 0 as keeping only
    /// the largest, and what is above 1 as 1.
    pub top_p: f32,
    /// Keeps the tokens that are at least this likely relative to the likeliest one. 0 keeps all; so do negative numbers and NaN,
    /// on devices, which take what is above 1 as 1.
    pub min_p: f32,
    /// Draws also tokens that are less likely than about 2^-24 as often as they should be; see [`crate::noise`].
    pub exact_tail: bool,
}

impl Settings {
    /// The most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, ..Self::PLAIN };

    /// The model's own distribution.
    pub const PLAIN: Self = Self { temperature: 1.0, top_k: i64::MAX, top_p: 1.0, min_p: 0.0, exact_tail: false };

    /// Refuses invalid settings.
    pub fn check(&self) -> Result<(), Refused> {
        let Self { temperature, top_k, top_p, min_p, exact_tail: _ } = *self;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Refused::Temperature(temperature));
        }
        if top_k < 1 {
            return Err(Refused::TopK(top_k));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Refused::TopP(top_p));
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Refused::MinP(min_p));
        }
        Ok(())
    }

    /// Returns `true` if the most likely token is taken, without drawing.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature <= 0.0
    }

    /// The number of tokens that top-k keeps of a vocabulary, without ties.
    pub fn kept_of(&self, vocabulary: usize) -> usize {
        match usize::try_from(self.top_k) {
            Ok(count) if count >= 1 => count.min(vocabulary),
            _ => vocabulary,
        }
    }
}

/// Lowers the logits of tokens that the text so far has. The numbers are those of the user, and [`Penalties::check`] refuses
/// invalid ones; devices compute with whatever they get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive logits of tokens of the prompt and the text, and multiplies negative ones. 1 changes nothing.
    pub repetition: f32,
    /// Subtracted once from the logits of tokens of the text.
    pub presence: f32,
    /// Subtracted from the logits of tokens of the text, as often as the text has them.
    pub frequency: f32,
}

impl Penalties {
    /// Changes nothing.
    pub const NONE: Self = Self { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// Refuses invalid penalties.
    pub fn check(&self) -> Result<(), Refused> {
        let Self { repetition, presence, frequency } = *self;
        if !(repetition > 0.0 && repetition.is_finite()) {
            return Err(Refused::Repetition(repetition));
        }
        for (name, penalty) in [("presence", presence), ("frequency", frequency)] {
            if !penalty.is_finite() {
                return Err(Refused::Penalty { name, penalty });
            }
        }
        Ok(())
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self::NONE
    }
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Negative, infinite or NaN.
    #[error("temperature is {0}; it must be 0 (always the most likely token) or above")]
    Temperature(f32),
    /// Below 1.
    #[error("top-k is {0}; it must be at least 1 (values above the vocabulary keep every token)")]
    TopK(i64),
    /// Outside (0, 1].
    #[error("top-p is {0}; it must be above 0 and at most 1 (1 keeps every token)")]
    TopP(f32),
    /// Outside [0, 1].
    #[error("min-p is {0}; it must be at least 0 (which keeps every token) and at most 1")]
    MinP(f32),
    /// Zero, negative, infinite or NaN.
    #[error("repetition penalty is {0}; it must be above 0 (1 changes nothing)")]
    Repetition(f32),
    /// Infinite or NaN.
    #[error("{name} penalty is {penalty}; it must be finite (0 changes nothing)")]
    Penalty {
        /// Which penalty.
        name: &'static str,
        /// Its value.
        penalty: f32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(temperature: f32, top_k: i64, top_p: f32) -> Result<(), String> {
        Settings { temperature, top_k, top_p, ..Settings::PLAIN }.check().map_err(|refused| refused.to_string())
    }

    #[test]
    fn s0_5_and_s0_6_settings_without_meaning_are_refused_by_name_and_value() {
        for good in [(0.0, 1, 1.0), (-0.0, 1, 1.0), (1e-4, 40, 1e-6), (100.0, i64::MAX, 0.95)] {
            assert_eq!(with(good.0, good.1, good.2), Ok(()));
        }
        for (temperature, text) in [(-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let message = with(temperature, 1, 1.0).unwrap_err();
            assert!(message.starts_with(&format!("temperature is {text};")), "{message}");
        }
        for top_k in [0, -1, i64::MIN] {
            let message = with(1.0, top_k, 1.0).unwrap_err();
            assert!(message.starts_with(&format!("top-k is {top_k};")), "{message}");
        }
        for (top_p, text) in [(0.0, "0"), (-0.5, "-0.5"), (1.5, "1.5"), (f32::NAN, "NaN")] {
            let message = with(1.0, 1, top_p).unwrap_err();
            assert!(message.starts_with(&format!("top-p is {text};")), "{message}");
        }
    }

    #[test]
    fn min_p_and_penalties_without_meaning_are_refused_by_name_and_value() {
        for (min_p, text) in [(-0.1, "-0.1"), (1.5, "1.5"), (f32::NAN, "NaN")] {
            let message = Settings { min_p, ..Settings::PLAIN }.check().unwrap_err().to_string();
            assert!(message.starts_with(&format!("min-p is {text};")), "{message}");
        }
        let message = |penalties: Penalties| penalties.check().unwrap_err().to_string();
        assert!(message(Penalties { repetition: 0.0, ..Penalties::NONE }).starts_with("repetition penalty is 0;"));
        assert!(
            message(Penalties { presence: f32::INFINITY, ..Penalties::NONE }).starts_with("presence penalty is inf;")
        );
        assert!(message(Penalties { frequency: f32::NAN, ..Penalties::NONE }).starts_with("frequency penalty is NaN;"));
        assert_eq!(Penalties { repetition: 1.3, presence: -2.0, frequency: 2.0 }.check(), Ok(()));
    }

    #[test]
    fn s0_6_top_k_above_the_vocabulary_keeps_everything() {
        let kept = |top_k| Settings { top_k, ..Settings::PLAIN }.kept_of(10);
        assert_eq!([1, 9, 10, 11, i64::MAX, 0, -3].map(kept), [1, 9, 10, 10, 10, 10, 10]);
    }
}
