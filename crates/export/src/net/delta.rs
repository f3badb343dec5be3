//! Layers with a recurrent state of fixed size: the causal convolution and the gated delta rule.
//!
//! ```text
//! for each token, with the state S of a head, [value_dim, key_dim]:
//!     S = decay * S
//!     S = S + beta * (v - S k) kᵀ
//!     y = S q
//! ```

use super::Net;
use crate::builder::{GraphBuilder, Tensor};
use ptero_pte::DType;
use ptero_pte::field::{Collected, Fed, Int};
use ptero_pte::nodes::{
    Add, Concatenate, Conv1D, Exp, ExpandDims, IdCopy, LogAddExp, Multiply, NotEqual, Repeat, Scan, Subtract, Sum,
};
use ptero_sampling::inputs::Scalar;

/// The heads of a gated delta rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaHeads {
    /// Heads of queries and keys.
    pub(crate) keys: i32,
    /// Heads of values, a multiple of `keys`: consecutive heads share a key.
    pub(crate) values: i32,
    pub(crate) key_dim: i32,
    pub(crate) value_dim: i32,
}

/// The inputs of the rule for each token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRule {
    /// `[1, length, keys, key_dim]`.
    pub(crate) q: Tensor,
    /// Same shape as `q`.
    pub(crate) k: Tensor,
    /// `[1, length, values, value_dim]`.
    pub(crate) v: Tensor,
    /// How much of the state is kept, `[1, length, values]`, f32; [`Net::carried_decay`].
    pub(crate) decay: Tensor,
    /// The learning rate, `[1, length, values]`.
    pub(crate) beta: Tensor,
}

/// Factors of the state: 0 at position 0 and 1 after it. Buffers keep their values from call to call, and a text that starts over must
/// not see the previous one (S1.8).
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarryMask {
    /// For each token, `[1, length, 1]`, f32.
    tokens: Tensor,
    /// For the first token of a call, `[1, 1]`, as activations.
    first: Tensor,
}

impl Net<'_> {
    /// The factors of a call, for all layers.
    pub(crate) fn carry_mask(&mut self) -> CarryMask {
        let (start, stop) = (self.position.int(), self.end.int());
        let positions = self.range(start, stop);
        let zero = self.graph.scalar(Scalar::I64(0));
        let is_later = self.graph.node(|out| NotEqual { a: positions.src(), b: zero.src(), out });
        let factors = self.cast(is_later, DType::F32);
        let tokens = self.reshape(factors, vec![Int::Literal(1), self.length.int(), Int::Literal(1)]);
        let first = self.take(tokens, 1, 0);
        CarryMask { tokens, first: self.cast(first, self.dtype()) }
    }

    /// The decay of each token, `[1, length, heads]`; 0 at position 0, which is cheaper than clearing the state.
    pub(crate) fn carried_decay(&mut self, decay: Tensor, carry_mask: CarryMask) -> Tensor {
        self.multiply(decay, carry_mask.tokens)
    }

    /// Each channel of `[1, length, channels]` folded with its row of `name.weight`, `[channels, 1, taps]`: the last tap is
    /// for the token itself, the others for those before it. The last tokens are state, named after the scope.
    pub(crate) fn causal_conv(
        &mut self,
        name: &str,
        x: Tensor,
        [channels, taps]: [i32; 2],
        carry_mask: CarryMask,
    ) -> Tensor {
        let (dtype, before) = (self.dtype(), taps - 1);
        // The axis of size one may be on either side of the taps: the memory layout is the same.
        let (found, wanted) = ([channels, 1, taps], [channels, taps, 1]);
        let weight = self.constant_of(&format!("{name}.weight"), &found, &wanted, dtype, None);
        let padded = if before == 0 { x } else { self.with_previous(x, [before, channels], carry_mask) };
        self.graph.node(|out| Conv1D {
            x: padded.src(),
            w: weight.src(),
            out,
            stride: 1,
            padding: 0,
            dilation: 1,
            groups: channels,
        })
    }

    /// The last `before` tokens of earlier calls followed by those of this call. The last ones are stored for the next call.
    fn with_previous(&mut self, x: Tensor, [before, channels]: [i32; 2], carry_mask: CarryMask) -> Tensor {
        let (name, dtype) = (self.full_name("conv_state"), self.dtype());
        let state = self.graph.state(&name, dtype, [1, before, channels]);
        let window = self.multiply(state, carry_mask.first);
        let tensors = vec![window.src(), x.src()];
        let padded = self.graph.node(|out| Concatenate { tensors, out, axis: 1 });
        let last = self.slice(padded, 1, self.length.int(), Int::Literal(i64::MAX));
        self.write(state, last, 1, Int::Literal(0), Int::Literal(before.into()));
        padded
    }

    /// `log(1 + exp(x))`.
    pub(crate) fn softplus(&mut self, x: Tensor) -> Tensor {
        let zero = self.graph.scalar(Scalar::F32(0.0));
        self.graph.node(|out| LogAddExp { a: x.src(), b: zero.src(), out })
    }

    pub(crate) fn exp(&mut self, x: Tensor) -> Tensor {
        self.graph.node(|out| Exp { x: x.src(), out })
    }

    /// The rule for one token after the other: `[1, length, values, value_dim]`, f32. State is named after the scope.
    ///
    /// The state is f32 whatever the activations are: each token changes it a little, and what bf16 rounds away is gone
    /// for all tokens to come. Checkpoints ask for this (`mamba_ssm_dtype`); upstream's exporter keeps bf16.
    pub(crate) fn gated_delta(&mut self, rule: DeltaRule, heads: DeltaHeads) -> Tensor {
        let name = self.full_name("recurrent_state");
        let state = self.graph.state(&name, DType::F32, [1, heads.values, heads.value_dim, heads.key_dim]);
        let [q, k] = [rule.q, rule.k].map(|x| self.repeated(x, heads.values / heads.keys.max(1)));
        let graph = &mut self.graph;
        let carried = graph.node(|out| IdCopy { x: state.src(), out });
        let sliced = [q, k, rule.v, rule.decay, rule.beta].map(|_| graph.temporary());
        let given = graph.temporary();
        let body_chain_idx = graph.chain(|graph| step(graph, sliced, carried, given));
        graph.emit(Scan {
            originals: [q, k, rule.v, rule.decay, rule.beta].map(Tensor::src).to_vec(),
            sliced: sliced.map(|part| Fed(part.src().0)).to_vec(),
            outputs: vec![Collected(given.src().0)],
            carry: vec![carried.src()],
            body_chain_idx,
            scan_axis: 1,
        });
        graph.emit(IdCopy { x: carried.src(), out: state.dst() });
        given
    }

    /// Repeats each head `times` times.
    fn repeated(&mut self, x: Tensor, times: i32) -> Tensor {
        if times == 1 {
            return x;
        }
        self.graph.node(|out| Repeat { x: x.src(), out, repeats: Int::Literal(times.into()), axis: 2 })
    }
}

/// The rule for one token, as the exact sequence of nodes that upstream's exporter emits, so that passes that fuse it need
/// to know only one form.
fn step(graph: &mut GraphBuilder, [q, k, v, decay, beta]: [Tensor; 5], state: Tensor, given: Tensor) {
    let decay = expand(graph, decay, -1);
    graph.emit(ExpandDims { x: decay.src(), out: decay.dst(), axis: -1 });
    graph.emit(Multiply { a: state.src(), b: decay.src(), out: state.dst() });
    let key = expand(graph, k, -2);
    let known = graph.node(|out| Multiply { a: state.src(), b: key.src(), out });
    graph.emit(Sum { x: known.src(), out: known.dst(), axes: Some(vec![-1]), keepdims: false });
    let new = graph.node(|out| Subtract { a: v.src(), b: known.src(), out });
    let beta = expand(graph, beta, -1);
    graph.emit(Multiply { a: new.src(), b: beta.src(), out: new.dst() });
    let key = expand(graph, k, -2);
    graph.emit(ExpandDims { x: new.src(), out: new.dst(), axis: -1 });
    let learnt = graph.node(|out| Multiply { a: key.src(), b: new.src(), out });
    graph.emit(Add { a: state.src(), b: learnt.src(), out: state.dst() });
    let query = expand(graph, q, -2);
    let answer = graph.node(|out| Multiply { a: state.src(), b: query.src(), out });
    graph.emit(Sum { x: answer.src(), out: given.dst(), axes: Some(vec![-1]), keepdims: false });
}

fn expand(graph: &mut GraphBuilder, x: Tensor, axis: i32) -> Tensor {
    graph.node(|out| ExpandDims { x: x.src(), out, axis })
}
