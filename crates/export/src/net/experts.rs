//! Mixture of experts: feed-forward networks of which each token uses a few.
//!
//! Each token is multiplied by the matrices that a tensor of indices selects. Tokens are not sorted by expert: backends
//! group the products that share a matrix.

use super::linear::{Stack, group_size};
use super::{Activation, Net};
use crate::builder::Tensor;
use crate::error::Result;
use ptero_pte::field::{Int, QuantMode};
use ptero_pte::nodes::{ArgPartition, Divide, GatherMm, GatherQmm, Softmax, Squeeze, Sum, TakeAlongAxis};

/// The sizes of a layer of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) count: i32,
    /// How many each token uses.
    pub(crate) chosen: i32,
    /// The width of the activations.
    pub(crate) width: i32,
    /// The width within an expert.
    pub(crate) inner: i32,
}

/// Which experts each token uses, and their shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routes {
    /// `[1, length, chosen]`.
    experts: Tensor,
    /// Same shape, f32.
    shares: Tensor,
}

impl Net<'_> {
    /// The experts with the largest of `scores`, `[1, length, count]`, f32, and their shares in the softmax over all; where
    /// `normalized`, in their own sum.
    pub(crate) fn route(&mut self, scores: Tensor, sizes: Experts, normalized: bool) -> Routes {
        let shares = self.graph.node(|out| Softmax { x: scores.src(), out, axis: -1, precise: true });
        let first = i64::from(sizes.count - sizes.chosen);
        let kth = Int::Literal(first);
        let order = self.graph.node(|out| ArgPartition { x: shares.src(), out, kth, axis: -1 });
        let experts = self.slice(order, -1, Int::Literal(first), Int::Literal(sizes.count.into()));
        let indices = experts.src();
        let mut shares = self.graph.node(|out| TakeAlongAxis { x: shares.src(), indices, out, axis: -1 });
        if normalized {
            let axes = Some(vec![-1]);
            let sum = self.graph.node(|out| Sum { x: shares.src(), out, axes, keepdims: true });
            shares = self.graph.node(|out| Divide { a: shares.src(), b: sum.src(), out });
        }
        Routes { experts, shares }
    }

    /// What the chosen experts make of `x`, `[1, length, width]`, each by its share. Their weights are `gate_up_proj` and
    /// `down_proj` with all experts in one tensor each, or `{expert}.gate_proj.weight` and the like.
    pub(crate) fn experts(
        &mut self,
        x: Tensor,
        routes: Routes,
        sizes: Experts,
        activation: Activation<'_>,
    ) -> Result<Tensor> {
        let inner = sizes.inner;
        let (gate_up, down) = self.expert_weights(sizes);
        // A row per token, which all experts of the token see: [1, length, 1, 1, width].
        let rows = self.expand(x, -2);
        let rows = self.expand(rows, -2);
        let both = self.chosen_product(rows, gate_up, routes.experts);
        let [gate, up] = self.split(both, [inner, inner]);
        let gate = self.activation(activation, gate)?;
        let gated = self.multiply(gate, up);
        let fed = self.chosen_product(gated, down, routes.experts);
        // From [1, length, chosen, 1, width]; the sum over the experts is f32, as the shares are.
        let fed = self.graph.node(|out| Squeeze { x: fed.src(), out, dims: Some(vec![-2]) });
        let shares = self.expand(routes.shares, -1);
        let parts = self.multiply(fed, shares);
        let sum = self.graph.node(|out| Sum { x: parts.src(), out, axes: Some(vec![-2]), keepdims: false });
        Ok(self.cast(sum, self.dtype()))
    }

    fn expert_weights(&mut self, sizes: Experts) -> (Stack, Stack) {
        let Experts { count, width, inner, .. } = sizes;
        let (both, down) = ([count, 2 * inner, width], [count, width, inner]);
        let (mut both_rows, mut down_rows) = (Vec::new(), Vec::new());
        if self.has("0.gate_proj.weight") {
            for expert in 0..count {
                for part in ["gate_proj", "up_proj"] {
                    both_rows.extend(self.rows_of(&format!("{expert}.{part}.weight"), &[inner, width]));
                }
                down_rows.extend(self.rows_of(&format!("{expert}.down_proj.weight"), &[width, inner]));
            }
        } else {
            both_rows.extend(self.rows_of("gate_up_proj", &both));
            down_rows.extend(self.rows_of("down_proj", &down));
        }
        let (both_name, down_name) = (self.full_name("gate_up_proj"), self.full_name("down_proj"));
        let [both_storage, down_storage] = ["gate_up_proj", "down_proj"].map(|name| self.storage(name));
        let both = self.store_stack(&both_name, both_rows, &both, both_storage);
        (both, self.store_stack(&down_name, down_rows, &down, down_storage))
    }

    /// Rows times the transposes of those matrices of a stack, `[count, out, in]`, that `chosen` names.
    fn chosen_product(&mut self, x: Tensor, stack: Stack, chosen: Tensor) -> Tensor {
        let rhs_indices = Some(chosen.src());
        match stack {
            Stack::Plain(stack) => {
                let stack = self.transpose(stack, &[0, 2, 1]);
                self.graph.node(|out| GatherMm {
                    a: x.src(),
                    b: stack.src(),
                    out,
                    lhs_indices: None,
                    rhs_indices,
                    sorted_indices: false,
                    sorted_indices_flag: None,
                })
            }
            Stack::Affine { codes, scales, biases, affine } => self.graph.node(|out| GatherQmm {
                x: x.src(),
                w: codes.src(),
                scales: scales.src(),
                out,
                mode: QuantMode::Affine,
                biases: Some(biases.src()),
                lhs_indices: None,
                rhs_indices,
                transpose: true,
                group_size: group_size(affine),
                bits: affine.bits().into(),
                sorted_indices: false,
                sorted_indices_flag: None,
            }),
        }
    }
}
