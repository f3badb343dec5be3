//! Cases of the gated delta rule.

use super::data::{FLOATS, any, between, vanishing};
use super::draft::Draft;
use super::probe::Seen;
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::{GatedDelta, Prim};
use ptero_tensor::DType;

pub(super) fn case(draft: &mut Draft) {
    let dtype = draft.rng.pick(&FLOATS);
    let (rule, _) = rule(draft, dtype, |draft, shape| draft.target(dtype, shape));
    draft.test(rule);
}

/// A rule with operands of a type, and the shape of its result.
pub(super) fn rule(
    draft: &mut Draft,
    dtype: DType,
    result: impl FnOnce(&mut Draft, &[Size]) -> Value,
) -> (Prim<Value>, Vec<Size>) {
    let batches = draft.size(&[1, 1, 2]);
    let tokens = draft.size_or_zero(&[1, 1, 2, 5, 17, 70]);
    let (groups, per_group) = (draft.rng.within(1, 2), draft.rng.pick(&[1, 1, 2, 3]));
    let [depth, width] = [0; 2].map(|_| draft.rng.pick(&[1, 3, 4, 8, 15, 16, 32, 33]));
    let (heads, depth, width) = (Size::fixed(groups * per_group), Size::fixed(depth), Size::fixed(width));
    let shape = |sizes: &[&Size]| -> Vec<Size> { sizes.iter().map(|size| (*size).clone()).collect() };
    let groups = Size::fixed(groups);
    let [narrow, wide, factors] = [
        shape(&[&batches, &tokens, &groups, &depth]),
        shape(&[&batches, &tokens, &heads, &width]),
        shape(&[&batches, &tokens, &heads]),
    ];
    let other = draft.rng.pick(&[DType::F32, dtype]);
    // Keys of length below one: the rule then forgets, and errors die out.
    let length = (depth.largest() as f32).sqrt();
    let operand = |draft: &mut Draft, dtype: DType, shape: &[Size], low: f32, high: f32| -> Value {
        let content = match draft.rng.below(24) {
            0 => any(dtype),
            1 => vanishing(),
            _ => between(low, high),
        };
        draft.operand(dtype, shape, &content)
    };
    let q = operand(draft, dtype, &narrow, -1.0, 1.0);
    let k = operand(draft, dtype, &narrow, -1.0 / length, 1.0 / length);
    let v = operand(draft, dtype, &wide, -2.0, 2.0);
    let g = operand(draft, other, &factors, 0.3, 1.0);
    let beta = operand(draft, other, &factors, 0.0, 1.0);
    let memory = shape(&[&batches, &heads, &width, &depth]);
    let memory_dtype = draft.rng.pick(&[DType::F32, DType::F32, dtype]);
    let content = between(-1.0, 1.0);
    let (state, state_out) = match draft.rng.below(3) {
        0 => (draft.operand(memory_dtype, &memory, &content), draft.target(memory_dtype, &memory)),
        1 => draft.changed(memory_dtype, &memory, &content),
        _ => draft.kept(memory_dtype, &memory),
    };
    let out = result(draft, &wide);
    (Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state })), wide)
}

/// A row of a head's state, and the most that its elements were computed from so far.
struct Row {
    state: Vec<f64>,
    most: f64,
}

/// Of the state: its magnitude, and the largest of what went into it so far, which later tokens do not enlarge. Of the
/// result: the sum of the magnitudes of the products that are its terms, with that of the state.
pub(super) fn slack(_: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let [q, k, v, g, beta, state] = seen.operands.as_slice() else { return Vec::new() };
    let (&[batches, tokens, groups, depth], &[_, _, heads, width]) =
        (q.shape.as_array().expect("q has four axes"), v.shape.as_array().expect("v has four axes"));
    let mut outs = vec![0.0; v.data.len()];
    let mut states = Vec::new();
    for head in 0..batches * heads {
        let (batch, group) = (head / heads, head % heads / (heads / groups));
        for at in 0..width {
            let start = (head * width + at) * depth;
            let old = state.data[start..start + depth].to_vec();
            let mut row = Row { most: old.iter().fold(0.0, |most: f64, x| most.max(x.abs())), state: old };
            for token in 0..tokens {
                let step = batch * tokens + token;
                let pair = (step * groups + group) * depth;
                let (place, factor) = ((step * heads + head % heads) * width + at, step * heads + head % heads);
                let (q, k) = (&q.data[pair..pair + depth], &k.data[pair..pair + depth]);
                outs[place] = row.step(q, k, v.data[place], g.data[factor], beta.data[factor]);
            }
            states.extend(row.state.iter().map(|x| x.abs() + row.most));
        }
    }
    vec![outs, states]
}

impl Row {
    fn step(&mut self, q: &[f64], k: &[f64], v: f64, g: f64, beta: f64) -> f64 {
        self.state.iter_mut().for_each(|x| *x *= g);
        let (mut sum, mut size) = (0.0, v.abs());
        for (x, k) in self.state.iter().zip(k) {
            sum += x * k;
            size += (x * k).abs();
        }
        let largest = k.iter().fold(0.0, |most: f64, k| most.max(k.abs()));
        self.most = self.most.max(size * beta.abs() * largest);
        let difference = (v - sum) * beta;
        self.state.iter_mut().zip(k).for_each(|(x, k)| *x += difference * k);
        self.state.iter().zip(q).map(|(x, q)| (x.abs() + self.most) * q.abs()).sum()
    }
}
