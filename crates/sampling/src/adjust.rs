//! What changes the logits of a row before anything is drawn: penalties for tokens that the text has, then biases, then a mask.
//!
//! The numbers are f32, each operation rounds once:
//!
//! 1. A token of the prompt or the text: `x / repetition`, or `x * repetition` if `x` is below 0.
//! 2. A token that the text has `count` times: `x - count * frequency`, then that minus `presence`.
//! 3. A token with biases: plus their sum, which starts at 0 and adds them in order.
//! 4. A token that the mask excludes: minus infinity.

use crate::settings::Penalties;

/// The most biases of a row.
pub const MOST_BIASES: usize = 1024;

/// Tokens of a word of a mask.
pub const MASK_BITS: usize = 32;

/// What changes the logits of a row. Tokens outside the vocabulary change nothing.
#[derive(Clone, Copy, Debug)]
pub struct Adjustments<'a> {
    /// The penalties.
    pub penalties: Penalties,
    /// The tokens so far: the prompt, then the text.
    pub history: &'a [i32],
    /// The length of the prompt. The text starts there, or at the end if there is none yet.
    pub prompt_end: usize,
    /// Tokens and what is added to their logits.
    pub biases: &'a [(i32, f32)],
    /// A bit for each token, from the lowest of the first word on: 1 for those that may be drawn. Missing words exclude nothing.
    pub mask: &'a [i32],
}

impl Adjustments<'_> {
    /// Changes nothing.
    pub const NONE: Self = Self { penalties: Penalties::NONE, history: &[], prompt_end: 0, biases: &[], mask: &[] };

    /// Changes the logits of a row.
    pub fn apply(&self, logits: &mut [f32]) {
        self.penalize(logits);
        let mut sums = vec![0.0; logits.len()];
        for &(token, bias) in self.biases {
            if let Some(sum) = at(&mut sums, token) {
                *sum += bias;
            }
        }
        for (logit, bias) in logits.iter_mut().zip(sums) {
            *logit += bias;
        }
        for (logits, word) in logits.chunks_mut(MASK_BITS).zip(self.mask) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a context has fewer than 2^24 positions")]
    fn penalize(&self, logits: &mut [f32]) {
        let Penalties { repetition, presence, frequency } = self.penalties;
        let (mut is_seen, mut counts) = (vec![false; logits.len()], vec![0_u32; logits.len()]);
        for (position, &token) in self.history.iter().enumerate() {
            at(&mut is_seen, token).into_iter().for_each(|is_seen| *is_seen = true);
            if position >= self.prompt_end {
                at(&mut counts, token).into_iter().for_each(|count| *count += 1);
            }
        }
        for ((logit, is_seen), count) in logits.iter_mut().zip(is_seen).zip(counts) {
            if is_seen {
                *logit = if *logit < 0.0 { *logit * repetition } else { *logit / repetition };
            }
            if count > 0 {
                *logit = *logit - count as f32 * frequency - presence;
            }
        }
    }
}

/// The same as [`Adjustments`], with memory of its own.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields of the borrowed form")]
pub struct OwnedAdjustments {
    pub penalties: Penalties,
    pub history: Vec<i32>,
    pub prompt_end: usize,
    pub biases: Vec<(i32, f32)>,
    pub mask: Vec<i32>,
}

impl OwnedAdjustments {
    /// The borrowed form.
    pub fn borrowed(&self) -> Adjustments<'_> {
        let Self { penalties, history, prompt_end, biases, mask } = self;
        Adjustments { penalties: *penalties, history, prompt_end: *prompt_end, biases, mask }
    }
}

/// The element of a token, if it is in the vocabulary.
fn at<T>(elements: &mut [T], token: i32) -> Option<&mut T> {
    elements.get_mut(usize::try_from(token).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    fn adjusted(logits: &[f32], adjustments: Adjustments<'_>) -> Vec<f32> {
        let mut logits = logits.to_vec();
        adjustments.apply(&mut logits);
        logits
    }

    #[test]
    fn repetition_counts_prompt_and_text_once_each() {
        let penalties = Penalties { repetition: 2.0, ..Penalties::NONE };
        let adjustments = Adjustments { penalties, history: &[0, 1, 1, 4, -1], prompt_end: 2, ..Adjustments::NONE };
        assert_eq!(adjusted(&[3.0, -3.0, 3.0, -3.0], adjustments), [1.5, -6.0, 3.0, -3.0]);
        assert_eq!(adjusted(&[0.0, -INF, 1.0, INF], adjustments), [0.0, -INF, 1.0, INF]);
    }

    #[test]
    fn presence_and_frequency_count_the_text_alone() {
        let penalties = Penalties { presence: 0.5, frequency: 0.25, ..Penalties::NONE };
        let adjustments = Adjustments { penalties, history: &[0, 1, 1, 2, 1], prompt_end: 2, ..Adjustments::NONE };
        assert_eq!(adjusted(&[1.0; 4], adjustments), [1.0, 0.0, 0.25, 1.0]);
        let only_prompt = Adjustments { prompt_end: 9, ..adjustments };
        assert_eq!(adjusted(&[1.0; 4], only_prompt), [1.0; 4]);
    }

    #[test]
    fn biases_add_up_and_the_mask_comes_last() {
        let biases = [(1, 1.5), (2, -4.0), (1, 1.0), (7, 9.0), (-3, 9.0)];
        let adjustments = Adjustments { biases: &biases, mask: &[0b0111], ..Adjustments::NONE };
        assert_eq!(adjusted(&[1.0; 4], adjustments), [1.0, 3.5, -3.0, -INF]);
        let long: Vec<f32> = adjusted(&[1.0; 65], Adjustments { mask: &[-1, i32::MIN], ..Adjustments::NONE });
        let kept: Vec<usize> = (0..65).filter(|at| long[*at] == 1.0).collect();
        assert_eq!(kept, (0..32).chain([63, 64]).collect::<Vec<usize>>(), "a missing word excludes nothing");
    }

    #[test]
    fn penalties_come_before_biases() {
        let penalties = Penalties { repetition: 2.0, presence: 1.0, frequency: 0.0 };
        let adjustments = Adjustments { penalties, history: &[0], biases: &[(0, 10.0)], ..Adjustments::NONE };
        assert_eq!(adjusted(&[4.0], adjustments), [11.0]);
    }
}
