//! What changes logits before a token is drawn, apart from penalties: biases, and a mask of tokens.

use super::Session;
use crate::TokenId;
use crate::error::{Error, Result};
use crate::options::TokenSettings;
use ptero_sampling::adjust::{Adjustments, MASK_BITS};
use ptero_sampling::log_probabilities::{LogProbabilities, RowLogProbabilities};
use ptero_sampling::noise::{Stream, seed_key};
use ptero_sampling::reference::sample_row;
use ptero_sampling::settings::Penalties;

/// Biases and a mask, and whether the device has them. Programs keep their inputs from call to call, so that these, which may be
/// long, are written only if they have changed.
#[derive(Debug, Default)]
pub(super) struct Adjusting {
    pub(super) biases: Vec<(i32, f32)>,
    /// A bit for each token; empty if all are allowed.
    pub(super) mask: Vec<i32>,
    pub(super) are_biases_written: bool,
    pub(super) is_mask_written: bool,
}

impl Adjusting {
    /// The same, for another state.
    pub(super) fn unwritten(&self) -> Self {
        let Self { biases, mask, .. } = self;
        Self { biases: biases.clone(), mask: mask.clone(), ..Self::default() }
    }

    pub(super) fn has_mask(&self) -> bool {
        !self.mask.is_empty()
    }
}

impl Session {
    /// Adds numbers to the logits of tokens from now on; an empty list changes nothing.
    ///
    /// # Errors
    /// When the program does not support it, a token is not in the vocabulary, a number is not finite, or there are too many.
    pub fn set_logit_bias(&mut self, biases: &[(TokenId, f32)]) -> Result<()> {
        self.adjusting.biases = self.engine.check_biases(biases)?;
        self.adjusting.are_biases_written = false;
        Ok(())
    }

    /// Allows only some tokens from now on: a bit for each token of the vocabulary, from the lowest bit of the first word on.
    /// `None` allows all.
    ///
    /// # Errors
    /// When the program does not support it.
    pub fn set_token_mask(&mut self, mask: Option<&[u32]>) -> Result<()> {
        if mask.is_some() && !self.engine.has_full_sampler() {
            return Err(Error::NeedsFullSampler("a mask of tokens"));
        }
        let Adjusting { mask: held, is_mask_written, .. } = &mut self.adjusting;
        if mask.is_none() && held.is_empty() {
            return Ok(());
        }
        held.clear();
        held.extend(mask.unwrap_or_default().iter().map(|word| word.cast_signed()));
        *is_mask_written = false;
        Ok(())
    }

    /// Samples from the logits of the last call.
    pub(super) fn sample_on_host(&mut self, sampling: &TokenSettings) -> TokenId {
        let TokenSettings { settings, penalties, log_probabilities, seed } = *sampling;
        let Adjusting { biases, mask, .. } = &self.adjusting;
        let (mut adjusted, history);
        let mut scores = self.logits.as_slice();
        if penalties != Penalties::NONE || !biases.is_empty() || !mask.is_empty() {
            adjusted = self.logits.clone();
            // Tokens were checked against the vocabulary, which is smaller than 2^31.
            history = self.tokens.iter().map(|token| token.cast_signed()).collect::<Vec<i32>>();
            Adjustments { penalties, history: &history, prompt_end: self.text_start, biases, mask }
                .apply(&mut adjusted);
            let excluded = adjusted.get_mut(mask.len() * MASK_BITS..).filter(|_| !mask.is_empty());
            excluded.into_iter().for_each(|rest| rest.fill(f32::NEG_INFINITY));
            scores = &adjusted;
        }
        let token = sample_row(scores, &settings, &Stream::of_row(seed_key(seed), scores.len()));
        self.log_probabilities = match log_probabilities {
            LogProbabilities::None => None,
            LogProbabilities::Model => Some(RowLogProbabilities::of_model(&self.logits, token)),
            LogProbabilities::Processed => Some(RowLogProbabilities::of_processed(scores, &settings, token)),
        };
        TokenId::try_from(token).unwrap_or(TokenId::MAX)
    }
}
