//! Attention over the positions so far, whose keys and values are state.

use super::Net;
use crate::builder::Tensor;
use crate::config::Size;
use crate::error::Result;
use ptero_pte::field::Int;
use ptero_pte::nodes::Sdpa;

/// The shape of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Heads of the queries.
    pub(crate) heads: i32,
    /// Heads of keys and values; each serves several heads of the queries.
    pub(crate) kv_heads: i32,
    /// The width of a head.
    pub(crate) head_dim: i32,
    /// The factor of the scores.
    pub(crate) scale: f32,
    /// How many positions, its own included, a position attends to; `None` for all up to its own.
    pub(crate) window: Option<i32>,
}

impl Attention {
    /// Attention without a window. Checks that heads can be shared evenly, and that widths are sizes.
    pub(crate) fn new(heads: Size, kv_heads: Size, head_dim: Size) -> Result<Self> {
        heads.over(kv_heads, "num_key_value_heads")?;
        heads.times(head_dim)?;
        let (heads, kv_heads, head_dim) = (heads.get(), kv_heads.get(), head_dim.get());
        Ok(Self { heads, kv_heads, head_dim, scale: (head_dim as f32).sqrt().recip(), window: None })
    }

    /// The width of all queries together.
    pub(crate) fn width(&self) -> i32 {
        self.heads * self.head_dim
    }

    /// The width of all keys together, and of all values.
    pub(crate) fn kv_width(&self) -> i32 {
        self.kv_heads * self.head_dim
    }
}

/// The keys and values of a layer that queries of this call may attend to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvCache {
    keys: Tensor,
    values: Tensor,
    /// True where a query attends to a key; without it, a query attends to all keys up to its own.
    mask: Option<Tensor>,
}

impl Net<'_> {
    /// Stores keys and values and attends: all three are `[1, heads, length, head_dim]`, the result is
    /// `[1, length, heads * head_dim]`. State is named after the scope.
    pub(crate) fn attend(&mut self, q: Tensor, k: Tensor, v: Tensor, shape: &Attention) -> Tensor {
        let cache = self.update_cache(k, v, shape);
        self.attend_to(q, &cache, shape)
    }

    /// Writes the keys and values of new positions into the state.
    pub(crate) fn update_cache(&mut self, k: Tensor, v: Tensor, shape: &Attention) -> KvCache {
        let ring = shape.window.filter(|window| *window < self.context).map(|window| self.ring(window));
        let slots = ring.map_or(self.context, |ring| ring.slots);
        let [keys, values] = [("k_cache", k), ("v_cache", v)].map(|(name, new)| {
            let name = self.full_name(name);
            let state = self.graph.state(&name, self.dtype(), [1, shape.kv_heads, slots, shape.head_dim]);
            match ring {
                Some(ring) => self.write_ring(state, new, &ring),
                None => self.write(state, new, 2, self.position.int(), self.end.int()),
            }
            // A slice ends at the end of the state at the latest.
            self.slice(state, 2, Int::Literal(0), self.end.int())
        });
        KvCache { keys, values, mask: ring.map(|ring| ring.seen) }
    }

    /// Attends to the keys and values of this layer or of one before it.
    pub(crate) fn attend_to(&mut self, q: Tensor, cache: &KvCache, shape: &Attention) -> Tensor {
        let attended = self.graph.node(|out| Sdpa {
            q: q.src(),
            k: cache.keys.src(),
            v: cache.values.src(),
            out,
            scale: shape.scale,
            mask: cache.mask.map(Tensor::src),
            causal: cache.mask.is_none(),
        });
        let attended = self.transpose(attended, &[0, 2, 1, 3]);
        self.join_heads(attended, shape.width())
    }
}
