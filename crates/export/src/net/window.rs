//! State of layers with sliding-window attention: a ring buffer of keys and values.
//!
//! A call of `n` tokens overwrites the `n` oldest slots, and its first query still needs the `window - 1` positions before
//! it. So `window - 1 + prefill` slots are enough, and position `p` is stored in slot `p` modulo that. If the context is
//! shorter, there are only `context` slots and the ring never wraps.
//!
//! ```text
//! distance[query, slot] = (query - slot) mod round      how far the slot's position is before the query's
//! seen                  = distance < window
//! ```
//!
//! A slot that holds a position after the query has a distance of at least `round - (prefill - 1) = window`, and slots not
//! written since position 0 are cut off. So a state that restarts at position 0 needs no clearing. Going back by at most
//! `prefill` positions is correct as well; going back further is not, since the keys needed are overwritten.

use super::Net;
use crate::builder::{Tensor, Value};
use ptero_pte::field::Int;
use ptero_pte::nodes::{AddInt, Less, ModInt, Remainder, Subtract, SubtractInt, SymSize};
use ptero_sampling::inputs::Scalar;

/// Which slots a call writes and which its queries attend to. Layers with the same window share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// Slots of the state.
    pub(super) slots: i32,
    /// True where a query attends to a slot: `[length, slots written so far]`.
    pub(super) seen: Tensor,
    runs: Option<RingRuns>,
}

/// The new positions as two runs of slots. The second starts at slot 0 and is empty in most calls.
#[derive(Clone, Copy, Debug)]
struct RingRuns {
    /// The slot of the first new position.
    start: Value,
    /// How many positions the first run has.
    first: Value,
    /// The slot after it.
    stop: Value,
    /// How many positions the second run has.
    second: Value,
}

impl Net<'_> {
    /// The ring of this window.
    pub(super) fn ring(&mut self, window: i32) -> Ring {
        if let Some(ring) = self.rings.get(&window) {
            return *ring;
        }
        let round = window.saturating_sub(1).saturating_add(self.prefill);
        let slots = round.min(self.context);
        let ring =
            Ring { slots, seen: self.seen(window, round), runs: (round < self.context).then(|| self.ring_runs(round)) };
        self.rings.insert(window, ring);
        ring
    }

    fn seen(&mut self, window: i32, round: i32) -> Tensor {
        let (position, end) = (self.position.int(), self.end.int());
        let slots = self.range(Int::Literal(0), Int::Literal(round.into()));
        // A slice ends at the last slot at the latest.
        let slots = self.slice(slots, 0, Int::Literal(0), end);
        let queries = self.range(position, end);
        let queries = self.reshape(queries, vec![Int::Literal(-1), Int::Literal(1)]);
        let graph = &mut self.graph;
        let [round, window] = [round, window].map(|number| graph.scalar(Scalar::I64(number.into())));
        let apart = graph.node(|out| Subtract { a: queries.src(), b: slots.src(), out });
        let distance = graph.node(|out| Remainder { a: apart.src(), b: round.src(), out });
        graph.node(|out| Less { a: distance.src(), b: window.src(), out })
    }

    fn ring_runs(&mut self, round: i32) -> RingRuns {
        let (tokens, length, position) = (self.tokens, self.length, self.position);
        let round = Int::Literal(round.into());
        let start = self.graph.value(|out| ModInt { a: position.int(), b: round, out });
        let left = self.graph.value(|out| SubtractInt { a: round, b: start.int(), out });
        // There is no minimum of two values, but a slice ends at the end of its axis at the latest.
        let run = self.slice(tokens, 1, Int::Literal(0), left.int());
        let first = self.graph.value(|out| SymSize { a: run.src(), dim: 1, out });
        let stop = self.graph.value(|out| AddInt { a: start.int(), b: first.int(), out });
        let second = self.graph.value(|out| SubtractInt { a: length.int(), b: first.int(), out });
        RingRuns { start, first, stop, second }
    }

    /// Writes new positions, `[1, heads, length, head_dim]`, into their slots.
    pub(super) fn write_ring(&mut self, state: Tensor, new: Tensor, ring: &Ring) {
        let Some(RingRuns { start, first, stop, second }) = ring.runs else {
            self.write(state, new, 2, self.position.int(), self.end.int());
            return;
        };
        let head = self.slice(new, 2, Int::Literal(0), first.int());
        let rest = self.slice(new, 2, first.int(), self.length.int());
        self.write(state, head, 2, start.int(), stop.int());
        self.write(state, rest, 2, Int::Literal(0), second.int());
    }
}
