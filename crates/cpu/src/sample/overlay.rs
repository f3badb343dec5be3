//! The logits of a row after penalties, biases and a mask (`ptero_sampling::adjust`), without a changed copy of the row.
//!
//! The text so far and the biases name few tokens of a vocabulary. Their logits are computed once per call and listed by block. A
//! reader of a part of the row gets it in place if nothing changes there, else a copy of the part with the changes. The maxima of
//! blocks are those of the row itself, corrected.
//!
//! A token without biases is left as it is, though the contract adds 0 to it: that changes the sign of a zero at most, on which no
//! result depends.
#![allow(clippy::indexing_slicing, reason = "tokens are inside the row; lists and the table hold indices of `changed`")]

use super::piece::{Elements, Logits, PIECE, Piece, index};
use crate::simd::Isa;
use crate::simd::sample::{self as kernels, BLOCK};
use ptero_sampling::adjust::{Adjustments, MASK_BITS};
use ptero_sampling::settings::Penalties;
use std::ops::Range;

/// The changed logits of a row. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// The tokens with penalties or biases.
    changed: Vec<Changed>,
    /// A hash table of `changed`: indices plus 1, or 0.
    table: Vec<u32>,
    /// The first changed token of each block: its index plus 1, or 0.
    lists: Vec<u32>,
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

/// A token with penalties or biases.
#[derive(Clone, Copy, Debug)]
struct Changed {
    token: u32,
    /// The next of its block: its index plus 1, or 0.
    next: u32,
    /// How often the text has it.
    count: u32,
    /// It is in the prompt or the text.
    is_seen: bool,
    /// The sum of its biases.
    bias: f32,
    /// Its logit before, or minus infinity if it is excluded.
    before: f32,
    /// Its logit now.
    logit: f32,
}

impl Overlay {
    /// Allocates memory for a number of events.
    pub(super) fn reserve(&mut self, events: usize, length: usize) {
        let events = events.min(length);
        self.changed.clear();
        self.changed.reserve(events);
        self.table.clear();
        self.table.reserve(table_length(events));
        self.lists.clear();
        self.lists.reserve(length.div_ceil(BLOCK));
        self.mask.clear();
        self.mask.reserve(length.div_ceil(MASK_BITS));
    }

    /// Replaces all changes by those of a row.
    pub(super) fn set(&mut self, row: Elements<'_>, length: usize, adjustments: &Adjustments<'_>) {
        self.set_mask(adjustments.mask, length);
        self.changed.clear();
        let events = Events::new(adjustments, length);
        if events.count() == 0 {
            return;
        }
        self.table.clear();
        self.table.resize(table_length(events.count().min(length)), 0);
        events.for_each(|token, event| self.token(token).add(event));
        self.lists.clear();
        self.lists.resize(length.div_ceil(BLOCK), 0);
        for (changed, number) in self.changed.iter_mut().zip(1..) {
            let token = changed.token as usize;
            let is_excluded = self.mask.get(token / MASK_BITS).is_some_and(|word| word >> (token % MASK_BITS) & 1 == 0);
            changed.next = std::mem::replace(&mut self.lists[token / BLOCK], number);
            (changed.before, changed.logit) = match row.float(token) {
                _ if is_excluded => (f32::NEG_INFINITY, f32::NEG_INFINITY),
                logit => (logit, changed.adjusted(logit, &adjustments.penalties)),
            };
        }
    }

    /// Keeps a mask only if it excludes a token.
    fn set_mask(&mut self, mask: &[i32], length: usize) {
        let words = length.div_ceil(MASK_BITS);
        let mask = &mask[..mask.len().min(words)];
        self.mask.clear();
        let (whole, last) = mask.split_at(mask.len().min(length / MASK_BITS));
        let last_bits = !(-1 << (length % MASK_BITS));
        let are_all = |words: &[i32]| words.iter().fold(-1, |all, word| all & word) == -1;
        if !whole.chunks(256).all(are_all) || last.iter().any(|word| word & last_bits != last_bits) {
            self.mask.extend(mask);
            self.mask.resize(words, -1);
        }
    }

    /// Finds a token in the table, or adds it.
    fn token(&mut self, token: u32) -> &mut Changed {
        let Self { changed, table, .. } = self;
        let mut at = token.wrapping_mul(0x9E37_79B9) as usize >> (32 - table.len().ilog2());
        let found = loop {
            match table[at] as usize {
                0 => {
                    changed.push(Changed {
                        token,
                        next: 0,
                        count: 0,
                        is_seen: false,
                        bias: 0.0,
                        before: 0.0,
                        logit: 0.0,
                    });
                    table[at] = index(changed.len());
                    break changed.len();
                }
                found if changed[found - 1].token == token => break found,
                _ => at = (at + 1) & (table.len() - 1),
            }
        };
        &mut changed[found - 1]
    }

    /// Returns `true` if it changes a row at all.
    pub(super) fn changes_any(&self) -> bool {
        !self.changed.is_empty() || !self.mask.is_empty()
    }

    /// Returns `true` if it changes a part of a row.
    pub(super) fn changes(&self, range: &Range<usize>) -> bool {
        let is_excluding = || {
            let words = self.mask.get(range.start / MASK_BITS..range.end.div_ceil(MASK_BITS));
            words.is_some_and(|words| words.iter().any(|word| *word != -1))
        };
        self.lists_of(range).iter().any(|first| *first > 0) || is_excluding()
    }

    /// Changes a part of a row, which starts with token `start`.
    pub(super) fn apply(&self, isa: Isa, start: usize, logits: &mut [f32]) {
        if !self.mask.is_empty() {
            kernels::exclude(isa, &self.mask, start, logits);
        }
        for first in self.lists_of(&(start..start + logits.len())) {
            let mut next = *first;
            while next > 0 {
                let changed = &self.changed[next as usize - 1];
                if let Some(logit) = (changed.token as usize).checked_sub(start).and_then(|at| logits.get_mut(at)) {
                    *logit = changed.logit;
                }
                next = changed.next;
            }
        }
    }

    /// The lists of the blocks of a range.
    fn lists_of(&self, range: &Range<usize>) -> &[u32] {
        if self.changed.is_empty() { &[] } else { &self.lists[range.start / BLOCK..range.end.div_ceil(BLOCK)] }
    }

    /// The words of the mask for a range that starts with a word; `None` if no token is excluded.
    pub(super) fn mask_of(&self, range: &Range<usize>) -> Option<&[i32]> {
        self.mask.get(range.start / MASK_BITS..range.end.div_ceil(MASK_BITS))
    }

    /// Corrects maxima of the row without penalties and biases. `logits` are those with them.
    pub(super) fn correct_maxima(&self, logits: &Logits<'_>, pieces: &mut [Piece]) {
        let mut room = [0.0; 1024];
        for changed in &self.changed {
            let token = changed.token as usize;
            let most = &mut pieces[token / PIECE].maxima[token % PIECE / BLOCK];
            // The largest may have become smaller, or NaN. It is searched with all changes of the block.
            if changed.before == *most && (changed.logit < *most || changed.logit.is_nan()) {
                let start = token / BLOCK * BLOCK;
                let block = logits.floats(start..logits.len().min(start + BLOCK), &mut room);
                *most = kernels::largest(logits.isa, block);
            } else {
                *most = most.max(changed.logit);
            }
        }
    }
}

/// The length of a hash table, at most a quarter of which is used.
fn table_length(most: usize) -> usize {
    (4 * most).next_power_of_two().max(16)
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
            // Both, so that the compiler selects one: half of the signs would be mispredicted.
            let (product, quotient) = (logit * repetition, logit / repetition);
            logit = if logit < 0.0 { product } else { quotient };
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
        let Adjustments { penalties: Penalties { repetition, presence, frequency }, history, biases, .. } =
            *adjustments;
        let (prompt, text) = history.split_at(adjustments.prompt_end.min(history.len()));
        let (repeats, counts) = (repetition != 1.0, presence != 0.0 || frequency != 0.0);
        let kept = |tokens, is_kept| if is_kept { tokens } else { [].as_slice() };
        Self { prompt: kept(prompt, repeats), text: kept(text, repeats || counts), biases, length }
    }

    /// The most events there may be.
    fn count(&self) -> usize {
        self.prompt.len() + self.text.len() + self.biases.len()
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
