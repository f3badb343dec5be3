//! The logits of a row after penalties, biases and a mask (`ptero_sampling::adjust`), without a changed copy of the row.
//!
//! The text so far and the biases name few tokens of a vocabulary. Their logits are computed once per call and ordered by block.
//! A reader of a part of the row gets it in place if nothing changes there, else a copy of the part with the changes.
//!
//! A token without biases is left as it is, though the contract adds 0 to it: that changes the sign of a zero at most, on which no
//! result depends.
#![allow(clippy::indexing_slicing, reason = "tokens are inside the row, and `starts` has an element more than there are blocks")]

use super::piece::{Elements, index};
use crate::simd::Isa;
use crate::simd::sample::{self as kernels, BLOCK};
use ptero_sampling::adjust::{Adjustments, MASK_BITS};
use ptero_sampling::settings::Penalties;
use std::ops::Range;

/// The changed logits of a row. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// What happens to tokens, ordered by block.
    events: Vec<(u32, Event)>,
    /// The tokens with penalties or biases, ordered by block.
    changed: Vec<Changed>,
    /// Where the changed tokens of each block start in `changed`, and where the last ones end.
    starts: Vec<u32>,
    /// A bit for each token, which is 0 for those that are excluded; empty if none is.
    mask: Vec<i32>,
}

/// A reason to change the logit of a token.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// It is in the prompt.
    Prompt,
    /// It is in the text.
    Text,
    /// It has a bias.
    Bias(f32),
}

/// A token and its changed logit.
#[derive(Clone, Copy, Debug)]
struct Changed {
    token: u32,
    logit: f32,
    /// It is in the prompt or the text.
    is_seen: bool,
    /// How often the text has it.
    count: u32,
    /// The sum of its biases.
    bias: f32,
}

impl Overlay {
    /// Replaces all changes by those of a row.
    pub(super) fn set(&mut self, row: Elements<'_>, length: usize, adjustments: &Adjustments<'_>) {
        self.set_mask(adjustments.mask, length);
        self.changed.clear();
        let events = Events::new(adjustments, length);
        if events.are_none() {
            return;
        }
        self.order(&events, length.div_ceil(BLOCK));
        self.join();
        for changed in &mut self.changed {
            let token = changed.token as usize;
            let is_excluded = self.mask.get(token / MASK_BITS).is_some_and(|word| word >> (token % MASK_BITS) & 1 == 0);
            let logit = changed.adjusted(row.float(token), &adjustments.penalties);
            changed.logit = if is_excluded { f32::NEG_INFINITY } else { logit };
        }
    }

    /// Keeps a mask only if it excludes a token.
    fn set_mask(&mut self, mask: &[i32], length: usize) {
        let mask = &mask[..mask.len().min(length.div_ceil(MASK_BITS))];
        self.mask.clear();
        let (whole, last) = mask.split_at(mask.len().min(length / MASK_BITS));
        let last_bits = (1 << (length % MASK_BITS)) - 1;
        if whole.iter().any(|word| *word != -1) || last.iter().any(|word| word & last_bits != last_bits) {
            self.mask.extend(mask);
        }
    }

    /// Orders events by block. Within a block they keep their order.
    fn order(&mut self, events: &Events<'_>, blocks: usize) {
        let Self { events: ordered, starts, .. } = self;
        starts.clear();
        starts.resize(blocks + 1, 0);
        events.for_each(|token, _| starts[token as usize / BLOCK] += 1);
        let mut sum = 0;
        for start in starts.iter_mut() {
            sum += std::mem::replace(start, sum);
        }
        ordered.clear();
        ordered.resize(sum as usize, (0, Event::Prompt));
        // Afterwards, each start is where its block ends.
        events.for_each(|token, event| {
            let next = &mut starts[token as usize / BLOCK];
            ordered[*next as usize] = (token, event);
            *next += 1;
        });
    }

    /// Joins the events of each token.
    fn join(&mut self) {
        let Self { events, changed, starts, .. } = self;
        // For each token of a block, one more than its index in `changed`, if it was added since the block began.
        let mut added = [0; BLOCK];
        let mut done = 0;
        for end in starts.iter_mut() {
            let first = changed.len();
            for &(token, event) in &events[done..*end as usize] {
                let added = &mut added[token as usize % BLOCK];
                if *added <= first {
                    changed.push(Changed { token, logit: 0.0, is_seen: false, count: 0, bias: 0.0 });
                    *added = changed.len();
                }
                changed[*added - 1].add(event);
            }
            done = std::mem::replace(end, index(first)) as usize;
        }
    }

    /// Returns `true` if it changes a row at all.
    pub(super) fn changes_any(&self) -> bool {
        !self.changed.is_empty() || !self.mask.is_empty()
    }

    /// Returns `true` if it changes a part of a row.
    pub(super) fn changes(&self, range: &Range<usize>) -> bool {
        let words = range.start / MASK_BITS..range.end.div_ceil(MASK_BITS).min(self.mask.len());
        !self.changed_near(range).is_empty() || self.mask.get(words).is_some_and(|words| words.iter().any(|word| *word != -1))
    }

    /// Changes a part of a row, which starts with token `first`.
    pub(super) fn apply(&self, isa: Isa, first: usize, logits: &mut [f32]) {
        if !self.mask.is_empty() {
            kernels::exclude(isa, &self.mask, first, logits);
        }
        for changed in self.changed_near(&(first..first + logits.len())) {
            if let Some(logit) = (changed.token as usize).checked_sub(first).and_then(|at| logits.get_mut(at)) {
                *logit = changed.logit;
            }
        }
    }

    /// The changed tokens of the blocks of a range.
    fn changed_near(&self, range: &Range<usize>) -> &[Changed] {
        if self.changed.is_empty() {
            return &[];
        }
        let start = |block: usize| self.starts[block] as usize;
        &self.changed[start(range.start / BLOCK)..start(range.end.div_ceil(BLOCK))]
    }
}

impl Changed {
    fn add(&mut self, event: Event) {
        match event {
            Event::Prompt => self.is_seen = true,
            Event::Text => (self.is_seen, self.count) = (true, self.count + 1),
            Event::Bias(bias) => self.bias += bias,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a context has fewer than 2^24 positions")]
    fn adjusted(&self, mut logit: f32, penalties: &Penalties) -> f32 {
        let Penalties { repetition, presence, frequency } = *penalties;
        if self.is_seen {
            logit = if logit < 0.0 { logit * repetition } else { logit / repetition };
        }
        if self.count > 0 {
            logit = logit - self.count as f32 * frequency - presence;
        }
        logit + self.bias
    }
}

/// The events of a row, in the order of the contract, without those that change nothing.
struct Events<'a> {
    prompt: &'a [i32],
    text: &'a [i32],
    biases: &'a [(i32, f32)],
    length: usize,
}

impl<'a> Events<'a> {
    fn new(adjustments: &Adjustments<'a>, length: usize) -> Self {
        let Adjustments { penalties: Penalties { repetition, presence, frequency }, history, biases, .. } = *adjustments;
        let (prompt, text) = history.split_at(adjustments.prompt_end.min(history.len()));
        let (repeats, counts) = (repetition != 1.0, presence != 0.0 || frequency != 0.0);
        let kept = |tokens, is_kept| if is_kept { tokens } else { [].as_slice() };
        Self { prompt: kept(prompt, repeats), text: kept(text, repeats || counts), biases, length }
    }

    fn are_none(&self) -> bool {
        self.prompt.is_empty() && self.text.is_empty() && self.biases.iter().all(|(_, bias)| *bias == 0.0)
    }

    fn for_each(&self, mut each: impl FnMut(u32, Event)) {
        let mut offer = |token: i32, event: Event| match u32::try_from(token) {
            Ok(token) if (token as usize) < self.length => each(token, event),
            _ => {}
        };
        self.prompt.iter().for_each(|token| offer(*token, Event::Prompt));
        self.text.iter().for_each(|token| offer(*token, Event::Text));
        let biases = self.biases.iter().filter(|(_, bias)| *bias != 0.0);
        biases.for_each(|(token, bias)| offer(*token, Event::Bias(*bias)));
    }
}
