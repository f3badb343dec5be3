//! Reads what changes the logits of a row.
#![allow(clippy::indexing_slicing, reason = "`memory` checks that all elements of a view lie inside its bytes")]

use super::{Sources, Tensor, one};
use crate::element::{self, Element};
use ptero_backend::Fault;
use ptero_plan::prim::Adjust;
use ptero_sampling::adjust::Adjustments;
use ptero_sampling::settings::Penalties;

/// What changes the logits, as far as it is copied. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct AdjustInputs {
    penalties: Penalties,
    /// The number of tokens of the history that count.
    length: usize,
    prompt_end: usize,
    /// The biases that are not 0.
    biases: Vec<(i32, f32)>,
    /// Copies of what is not contiguous.
    history: Vec<i32>,
    mask: Vec<i32>,
    tokens: Vec<i32>,
    values: Vec<f32>,
}

impl AdjustInputs {
    /// Reads what is one number each.
    pub(super) fn read(&mut self, sources: &Sources<'_>, views: &Adjust, rows: usize) -> Result<(), Fault> {
        if rows != 1 {
            return Err(NOT_ONE_ROW);
        }
        let position = |number: i64| usize::try_from(number.max(0)).unwrap_or(usize::MAX);
        self.length = position(one::<i64>(sources, views.last)?.saturating_add(1));
        self.prompt_end = position(one(sources, views.prompt_end)?);
        self.penalties = Penalties {
            repetition: one(sources, views.repetition)?,
            presence: one(sources, views.presence)?,
            frequency: one(sources, views.frequency)?,
        };
        Ok(())
    }

    /// The most changes that any call can ask for.
    pub(super) fn most_events(sources: &Sources<'_>, views: &Adjust) -> Result<usize, Fault> {
        Ok(sources.tensor(&views.history)?.view.count() + sources.tensor(&views.bias_tokens)?.view.count())
    }

    /// What changes the logits: in place if possible, else copied.
    pub(super) fn adjustments<'a>(
        &'a mut self,
        sources: &Sources<'a>,
        views: &Adjust,
    ) -> Result<Adjustments<'a>, Fault> {
        let Self { penalties, length, prompt_end, biases, history, mask, tokens, values } = self;
        let tokens = elements(&sources.tensor(&views.bias_tokens)?, usize::MAX, tokens);
        let values = elements(&sources.tensor(&views.bias_values)?, usize::MAX, values);
        biases.clear();
        biases.reserve(tokens.len());
        biases.extend(tokens.iter().copied().zip(values.iter().copied()).filter(|(_, bias)| *bias != 0.0));
        Ok(Adjustments {
            penalties: *penalties,
            history: elements(&sources.tensor(&views.history)?, *length, history),
            prompt_end: *prompt_end,
            biases,
            mask: elements(&sources.tensor(&views.mask)?, usize::MAX, mask),
        })
    }
}

/// At most `most` elements of a tensor, in row-major order: in place if possible, else copied.
fn elements<'a, E: Element>(tensor: &Tensor<'a>, most: usize, copy: &'a mut Vec<E>) -> &'a [E] {
    let (view, all) = (&tensor.view, element::elements::<E>(tensor.bytes));
    let count = view.count().min(most);
    if view.is_contiguous() {
        return &all[view.offset..view.offset + count];
    }
    copy.clear();
    copy.reserve(view.count());
    copy.extend((0..count).map(|at| all[view.offset_of(at)]));
    copy
}

const NOT_ONE_ROW: Fault = Fault::Contract("logits that are changed before the draw are one row");
