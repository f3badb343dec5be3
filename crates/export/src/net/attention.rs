//! Attention over the positions so far, whose keys and values are state.

use super::Net;
use crate::builder::Tensor;
use ptero_pte::field::Int;
use ptero_pte::nodes::{Sdpa, SliceUpdate};

/// The shape of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Heads that ask.
    pub(crate) heads: i32,
    /// Heads that answer: each to several that ask.
    pub(crate) kv_heads: i32,
    /// The width of a head.
    pub(crate) head_dim: i32,
    /// What the scores are multiplied with.
    pub(crate) scale: f32,
    /// How many positions, its own included, a position sees; all before it where there is no window.
    pub(crate) window: Option<i32>,
}

/// What queries of one call may see of a layer's keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    keys: Tensor,
    values: Tensor,
    /// True where a query sees a key; without it, a query sees all keys up to its own.
    mask: Option<Tensor>,
}

impl Net<'_> {
    /// Keeps keys and values and attends: all three come as `[1, heads, length, head_dim]`, the result is
    /// `[1, length, heads * head_dim]`. State is named after the scope.
    pub(crate) fn attend(&mut self, q: Tensor, k: Tensor, v: Tensor, shape: &Attention) -> Tensor {
        let kept = self.keep(k, v, shape);
        self.attend_to(q, &kept, shape)
    }

    /// Writes the keys and values of new positions into the state.
    pub(crate) fn keep(&mut self, k: Tensor, v: Tensor, shape: &Attention) -> Kept {
        let ring = shape.window.filter(|window| *window < self.context).map(|window| self.ring(window));
        let slots = ring.map_or(self.context, |ring| ring.slots);
        let [keys, values] = [("k_cache", k), ("v_cache", v)].map(|(name, new)| {
            let name = self.full_name(name);
            let state = self.graph.state(&name, self.dtype(), [1, shape.kv_heads, slots, shape.head_dim]);
            match ring {
                Some(ring) => self.write_round(state, new, &ring),
                None => self.write(state, new, self.position.int(), self.end.int()),
            }
            // Cut where the state ends.
            self.slice(state, 2, Int::Literal(0), self.end.int())
        });
        Kept { keys, values, mask: ring.map(|ring| ring.seen) }
    }

    /// Attends to what this layer, or one before it, keeps.
    pub(crate) fn attend_to(&mut self, q: Tensor, kept: &Kept, shape: &Attention) -> Tensor {
        let attended = self.graph.node(|out| Sdpa {
            q: q.src(),
            k: kept.keys.src(),
            v: kept.values.src(),
            out,
            scale: shape.scale,
            mask: kept.mask.map(Tensor::src),
            causal: kept.mask.is_none(),
        });
        let attended = self.transpose(attended, &[0, 2, 1, 3]);
        let width = i64::from(shape.heads) * i64::from(shape.head_dim);
        self.reshape(attended, vec![Int::Literal(1), self.length.int(), Int::Literal(width)])
    }

    /// Writes into slots of a state.
    pub(super) fn write(&mut self, state: Tensor, new: Tensor, start: Int, stop: Int) {
        self.graph.emit(SliceUpdate {
            dst: state.src(),
            update: new.src(),
            out: state.dst(),
            axis: Int::Literal(2),
            start,
            stop,
            step: 1,
        });
    }
}
