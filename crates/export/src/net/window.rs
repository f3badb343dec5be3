//! State of layers that see a window: keys and values go round in as many slots as are ever looked at together.
//!
//! A call of `n` tokens overwrites the `n` oldest slots, and its first query still needs the `window - 1` positions before
//! it. So `window - 1 + prefill` slots are enough, and position `p` lies in slot `p` modulo that; where the context is
//! shorter, there are only so many slots, and nothing ever goes round.
//!
//! ```text
//! behind[query, slot] = (query - slot) mod round      how far the slot's position is before the query's
//! seen                = behind < window
//! ```
//!
//! A slot that holds a position after the query is at least `round - (prefill - 1) = window` behind, and slots that nothing
//! was written to since position 0 are cut off. So a state that starts again at position 0 needs no clearing. One that goes
//! back by at most `prefill` positions sees what it should as well, but by more it does not: what it would need is
//! overwritten.

use super::Net;
use crate::builder::{Tensor, Value};
use ptero_pte::DType;
use ptero_pte::field::Int;
use ptero_pte::nodes::{ARange, AddInt, Less, ModInt, Remainder, Subtract, SubtractInt, SymSize};
use ptero_sampling::inputs::Scalar;

/// Where a call writes and what its queries see. Layers with the same window share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// Slots of the state.
    pub(super) slots: i32,
    /// True where a query sees a slot: `[length, slots that were written to]`.
    pub(super) seen: Tensor,
    turn: Option<Turn>,
}

/// The new positions in two runs, of which the second starts again at the first slot. It is empty in most calls.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// The slot of the first new position.
    start: Value,
    /// How many positions the first run has.
    first: Value,
    /// The slot behind it.
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
            Ring { slots, seen: self.seen(window, round), turn: (round < self.context).then(|| self.turn(round)) };
        self.rings.insert(window, ring);
        ring
    }

    fn seen(&mut self, window: i32, round: i32) -> Tensor {
        let (position, end) = (self.position.int(), self.end.int());
        let slots = self.range(Int::Literal(0), Int::Literal(round.into()));
        // Cut at the slots that there are.
        let slots = self.slice(slots, 0, Int::Literal(0), end);
        let queries = self.range(position, end);
        let queries = self.reshape(queries, vec![Int::Literal(-1), Int::Literal(1)]);
        let graph = &mut self.graph;
        let [round, window] = [round, window].map(|number| graph.scalar(Scalar::I64(number.into())));
        let apart = graph.node(|out| Subtract { a: queries.src(), b: slots.src(), out });
        let behind = graph.node(|out| Remainder { a: apart.src(), b: round.src(), out });
        graph.node(|out| Less { a: behind.src(), b: window.src(), out })
    }

    fn range(&mut self, start: Int, stop: Int) -> Tensor {
        let step = Int::Literal(1);
        self.graph.node(|out| ARange { out, start, stop, step, scalar_type: Some(DType::I64) })
    }

    fn turn(&mut self, round: i32) -> Turn {
        let (tokens, length, position) = (self.tokens, self.length, self.position);
        let round = Int::Literal(round.into());
        let start = self.graph.value(|out| ModInt { a: position.int(), b: round, out });
        let left = self.graph.value(|out| SubtractInt { a: round, b: start.int(), out });
        // There is no smaller of two values, but a slice is cut where its axis ends.
        let run = self.slice(tokens, 1, Int::Literal(0), left.int());
        let first = self.graph.value(|out| SymSize { a: run.src(), dim: 1, out });
        let stop = self.graph.value(|out| AddInt { a: start.int(), b: first.int(), out });
        let second = self.graph.value(|out| SubtractInt { a: length.int(), b: first.int(), out });
        Turn { start, first, stop, second }
    }

    /// Writes new positions, `[1, heads, length, head_dim]`, into their slots.
    pub(super) fn write_round(&mut self, state: Tensor, new: Tensor, ring: &Ring) {
        let Some(Turn { start, first, stop, second }) = ring.turn else {
            self.write(state, new, self.position.int(), self.end.int());
            return;
        };
        let head = self.slice(new, 2, Int::Literal(0), first.int());
        let rest = self.slice(new, 2, first.int(), self.length.int());
        self.write(state, head, start.int(), stop.int());
        self.write(state, rest, Int::Literal(0), second.int());
    }
}
