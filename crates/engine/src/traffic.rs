//! What a step of decoding must read from memory: what its speed is compared with.

use crate::rewind::host_values;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::plan::{BufferKind, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View};
use std::ops::AddAssign;

/// Bytes that a call with one token reads. What it writes, and what lives only within the call, is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepBytes {
    /// Weights: of an embedding the rows that are looked up, of a stack of experts as many as are chosen.
    pub weights: u64,
    /// What is kept from call to call: keys and values up to the position, and recurrent state.
    pub state: u64,
}

impl AddAssign for StepBytes {
    fn add_assign(&mut self, other: Self) {
        self.weights = self.weights.saturating_add(other.weights);
        self.state = self.state.saturating_add(other.state);
    }
}

impl StepBytes {
    fn times(self, count: u64) -> Self {
        Self { weights: self.weights.saturating_mul(count), state: self.state.saturating_mul(count) }
    }
}

/// Those of a call with one token at that position.
pub(crate) fn step_bytes(plan: &Plan, positions: Option<Buf>, position: i64) -> StepBytes {
    let mut values = host_values(plan, positions, position);
    block_bytes(plan, plan.main, &mut values, 0)
}

/// Blocks that call each other deeper than this are not followed.
const DEPTH: usize = 16;

fn block_bytes(plan: &Plan, block: usize, values: &mut Vec<i64>, depth: usize) -> StepBytes {
    let mut sum = StepBytes::default();
    let Some(block) = plan.blocks.get(block).filter(|_| depth < DEPTH) else { return sum };
    for step in &block.steps {
        match step {
            PlanStep::Device(prim) => sum += prim_bytes(plan, prim, values),
            PlanStep::Host { .. } | PlanStep::Check(_) => {}
            PlanStep::If { condition, then, otherwise } => {
                let chosen = if condition.eval(values) == 0 { *otherwise } else { *then };
                sum += block_bytes(plan, chosen, values, depth + 1);
            }
            PlanStep::Loop { index: Var(index), count, body } => {
                values.get_mut(*index as usize).into_iter().for_each(|index| *index = 0);
                let count = u64::try_from(count.eval(values)).unwrap_or(0);
                sum += block_bytes(plan, *body, values, depth + 1).times(count);
            }
        }
    }
    sum
}

fn prim_bytes(plan: &Plan, prim: &Prim, values: &[i64]) -> StepBytes {
    let mut sum = StepBytes::default();
    for view in prim.reads() {
        let bytes = elements_read(prim, view, values).saturating_mul(view.dtype.bytes());
        match plan.buffers.get(view.buf.0 as usize).map(|buffer| &buffer.kind) {
            Some(BufferKind::Constant(_) | BufferKind::Derived) => sum += StepBytes { weights: bytes, state: 0 },
            Some(BufferKind::State) => sum += StepBytes { weights: 0, state: bytes },
            Some(BufferKind::Input(_) | BufferKind::Temporary) | None => {}
        }
    }
    sum
}

/// How many elements of one of its views a primitive reads.
fn elements_read(prim: &Prim, view: &View, values: &[i64]) -> u64 {
    let all = count(view, values, 0..view.shape.len());
    match prim {
        // As many as it gives.
        Prim::Gather { x, out, .. } if x == view => all.min(count(out, values, 0..out.shape.len())),
        // Keys before the window are not looked at.
        Prim::Attention { q, k, v, window: Some(window), .. } if k == view || v == view => {
            let queries = size(q.shape.get(2), values);
            let keys = size(view.shape.get(2), values);
            let seen = u64::try_from(*window).unwrap_or(0).saturating_add(queries).saturating_sub(1);
            if keys > seen { all / keys * seen } else { all }
        }
        Prim::MatMul { a, b, lhs, rhs, .. } => chosen(view, values, all, [(&[a][..], lhs), (&[b], rhs)]),
        Prim::QuantMatMul { x, w, lhs, rhs, .. } => {
            let weights: Vec<&View> = [&w.codes].into_iter().chain(&w.scales).chain(&w.biases).collect();
            chosen(view, values, all, [(&[x][..], lhs), (&weights, rhs)])
        }
        Prim::Map { .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Softmax { .. } => all,
        Prim::Norm { .. } | Prim::Rope { .. } | Prim::Attention { .. } | Prim::Dequantize { .. } => all,
        Prim::Conv { .. } | Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } => all,
        Prim::Cumsum { .. } | Prim::GatedDelta(_) | Prim::RandomBits { .. } | Prim::Sample(_) => all,
    }
}

/// Of a stack that is chosen from, as many matrices as there are choices.
fn chosen(view: &View, values: &[i64], all: u64, operands: [(&[&View], &Option<View>); 2]) -> u64 {
    let choice = operands.into_iter().find(|(views, choice)| choice.is_some() && views.contains(&view));
    let Some((_, Some(choice))) = choice else { return all };
    let outer = view.shape.len().saturating_sub(2);
    let matrix = count(view, values, outer..view.shape.len());
    all.min(matrix.saturating_mul(count(choice, values, 0..choice.shape.len())))
}

/// Different elements along these axes: what is seen many times is read once.
fn count(view: &View, values: &[i64], axes: std::ops::Range<usize>) -> u64 {
    let axes = view.shape.iter().zip(&view.strides).take(axes.end).skip(axes.start);
    let sizes = axes.map(|(dim, stride)| match size(Some(dim), values) {
        0 => 0,
        _ if stride.eval(values) == 0 => 1,
        size => size,
    });
    sizes.fold(1, u64::saturating_mul)
}

fn size(dim: Option<&Dim>, values: &[i64]) -> u64 {
    dim.and_then(|dim| u64::try_from(dim.eval(values)).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptero_plan::plan::{Buffer, Input};
    use ptero_plan::prim::{Axis, QuantFormat, QuantMode, Quantized};
    use ptero_pte::DType;

    const STATE: Buf = Buf(0);
    const TABLE: Buf = Buf(1);
    const TEMPORARY: Buf = Buf(2);

    fn view(buf: Buf, dtype: DType, sizes: &[i64]) -> View {
        let strides = (1..=sizes.len()).map(|at| Dim::fixed(sizes.iter().skip(at).product())).collect();
        let shape = sizes.iter().map(|size| Dim::fixed(*size)).collect();
        View { buf, dtype, shape, strides, offset: Dim::fixed(0) }
    }

    fn bytes(prim: Prim) -> StepBytes {
        let mut plan = Plan::of(vec![PlanStep::Device(prim)]);
        let buffer = |kind| Buffer { dtype: DType::F32, elements: Dim::fixed(1 << 20), kind };
        let kinds = [BufferKind::State, BufferKind::Derived, BufferKind::Temporary];
        plan.buffers = kinds.into_iter().map(buffer).collect();
        plan.inputs = vec![Input::Int(Var(0))];
        plan.vars = 1;
        step_bytes(&plan, None, 0)
    }

    #[test]
    fn of_an_embedding_only_the_rows_that_are_looked_up_count() {
        let index = view(TEMPORARY, DType::I64, &[1, 64]);
        let axes = vec![Axis { index: Some(index), coordinate: None }, Axis { index: None, coordinate: Some(1) }];
        let (out, x) = (view(TEMPORARY, DType::F32, &[1, 64]), view(TABLE, DType::F32, &[1000, 64]));
        assert_eq!(bytes(Prim::Gather { out, x, axes }), StepBytes { weights: 4 * 64, state: 0 });
    }

    #[test]
    fn of_experts_as_many_count_as_are_chosen() {
        let w = Quantized {
            codes: view(TABLE, DType::U32, &[8, 16, 4]),
            scales: Some(view(TABLE, DType::Bf16, &[8, 16, 1])),
            biases: None,
            format: QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 },
        };
        let [x, out] = [view(TEMPORARY, DType::F32, &[2, 1, 32]), view(TEMPORARY, DType::F32, &[2, 1, 16])];
        let rhs = Some(view(TEMPORARY, DType::U32, &[2]));
        let prim = Prim::QuantMatMul { out, x, w, transpose: true, lhs: None, rhs };
        assert_eq!(bytes(prim), StepBytes { weights: 2 * (16 * 4 * 4 + 16 * 2), state: 0 });
    }

    #[test]
    fn keys_that_are_shown_to_several_heads_count_once_and_those_before_the_window_not_at_all() {
        let attention = |window| {
            let [q, out] = [view(TEMPORARY, DType::F32, &[1, 4, 1, 8]), view(TEMPORARY, DType::F32, &[1, 4, 1, 8])];
            let [k, v] = [view(STATE, DType::F32, &[1, 2, 100, 8]), view(STATE, DType::F32, &[1, 2, 100, 8])];
            bytes(Prim::Attention { out, q, k, v, mask: None, causal: true, window, scale: 1.0 })
        };
        assert_eq!(attention(None), StepBytes { weights: 0, state: 2 * 4 * 2 * 100 * 8 });
        assert_eq!(attention(Some(10)), StepBytes { weights: 0, state: 2 * 4 * 2 * 10 * 8 });
    }
}
