//! Attention over the positions so far, whose keys and values are state.

use super::Net;
use crate::builder::Tensor;
use ptero_pte::DType;
use ptero_pte::field::Int;
use ptero_pte::nodes::{ARange, BitwiseAnd, GreaterEqual, Less, Reshape, Sdpa, SliceUpdate, Subtract};
use ptero_sampling::inputs::Scalar;

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

impl Net<'_> {
    /// Keeps keys and values and attends: all three come as `[1, heads, length, head_dim]`, the result is
    /// `[1, length, heads * head_dim]`. State is named after the scope.
    pub(crate) fn attend(&mut self, q: Tensor, k: Tensor, v: Tensor, shape: &Attention) -> Tensor {
        let keys = self.keep("k_cache", k, shape);
        let values = self.keep("v_cache", v, shape);
        let mask = shape.window.filter(|window| *window < self.context).map(|window| self.window_mask(window));
        let attended = self.graph.node(|out| Sdpa {
            q: q.src(),
            k: keys.src(),
            v: values.src(),
            out,
            scale: shape.scale,
            mask: mask.map(Tensor::src),
            causal: mask.is_none(),
        });
        let attended = self.transpose(attended, &[0, 2, 1, 3]);
        let width = i64::from(shape.heads) * i64::from(shape.head_dim);
        self.reshape(attended, vec![Int::Literal(1), self.length.int(), Int::Literal(width)])
    }

    /// Writes new positions into the state and gives all positions so far.
    fn keep(&mut self, name: &str, new: Tensor, shape: &Attention) -> Tensor {
        let name = self.full_name(name);
        let dtype = self.dtype();
        let state = self.graph.state(&name, dtype, [1, shape.kv_heads, self.context, shape.head_dim]);
        self.graph.emit(SliceUpdate {
            dst: state.src(),
            update: new.src(),
            out: state.dst(),
            axis: Int::Literal(2),
            start: self.position.int(),
            stop: self.end.int(),
            step: 1,
        });
        self.slice(state, 2, Int::Literal(0), self.end.int())
    }

    /// True where a key is neither after the query nor before its window. Layers with the same window share it.
    fn window_mask(&mut self, window: i32) -> Tensor {
        if let Some(mask) = self.masks.get(&window) {
            return *mask;
        }
        let graph = &mut self.graph;
        let (position, end) = (self.position.int(), self.end.int());
        let mut range = |start, stop| {
            graph.node(|out| ARange { out, start, stop, step: Int::Literal(1), scalar_type: Some(DType::I64) })
        };
        let (keys, queries) = (range(Int::Literal(0), end), range(position, end));
        let queries =
            graph.node(|out| Reshape { x: queries.src(), out, shape: vec![Int::Literal(-1), Int::Literal(1)] });
        let behind = graph.node(|out| Subtract { a: queries.src(), b: keys.src(), out });
        let (zero, window_size) = (graph.scalar(Scalar::I64(0)), graph.scalar(Scalar::I64(window.into())));
        let is_before = graph.node(|out| GreaterEqual { a: behind.src(), b: zero.src(), out });
        let is_near = graph.node(|out| Less { a: behind.src(), b: window_size.src(), out });
        let mask = graph.node(|out| BitwiseAnd { a: is_before.src(), b: is_near.src(), out });
        self.masks.insert(window, mask);
        mask
    }
}
