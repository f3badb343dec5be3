//! The gated delta rule: attention whose memory is one matrix per head.

use crate::matmul::dot;
use crate::memory::Memory;
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::GatedDelta;

pub(crate) fn gated_delta(memory: &mut Memory<'_>, rule: &GatedDelta<Value>) -> Result<(), Fault> {
    let (q, k, v) = (memory.tensor(rule.q)?, memory.tensor(rule.k)?, memory.tensor(rule.v)?);
    let (g, beta, state) = (memory.tensor(rule.g)?, memory.tensor(rule.beta)?, memory.tensor(rule.state)?);
    memory.expect_shape(rule.out, v.shape())?;
    memory.expect_shape(rule.state_out, state.shape())?;
    let kept = memory.element(rule.state_out)?;
    let ([groups, _], [heads, _]) = (k.last_sizes()?, v.last_sizes()?);
    let heads_per_group = heads.checked_div(groups).filter(|&heads| heads > 0).unwrap_or(1);

    let (mut numbers, mut end_states) = (Vec::new(), Vec::new());
    let batches = q.inner(3).zip(k.inner(3)).zip(v.inner(3)).zip(g.inner(2)).zip(beta.inner(2)).zip(state.inner(3));
    for (((((q, k), v), g), beta), state) in batches {
        let mut states: Vec<Vec<Vec<f32>>> = state.inner(2).map(|head| head.rows()).collect();
        let tokens = q.inner(2).zip(k.inner(2)).zip(v.inner(2)).zip(g.inner(1)).zip(beta.inner(1));
        for ((((q, k), v), g), beta) in tokens {
            let (q, k) = (q.rows(), k.rows());
            let heads = states.iter_mut().zip(v.rows()).zip(g.floats()).zip(beta.floats());
            for (head, (((state, v), g), beta)) in heads.enumerate() {
                let group = head / heads_per_group;
                let (Some(q), Some(k)) = (q.get(group), k.get(group)) else {
                    return Err(Fault::Contract("the heads of values are a multiple of those of keys"));
                };
                let rows = state.iter_mut().zip(v);
                numbers.extend(rows.map(|(row, v)| Number::Float(step(row, q, k, v, (g, beta)))));
                state.iter_mut().flatten().for_each(|s| *s = kept.convert(Number::Float(*s)).float());
            }
        }
        end_states.extend(states.into_iter().flatten().flatten().map(Number::Float));
    }
    memory.store(rule.out, numbers)?;
    memory.store(rule.state_out, end_states)
}

/// One token for one row of a head's state: `d = (v - g (s k)) beta; s = fma(d, k, s g); out = s q`.
fn step(row: &mut [f32], q: &[f32], k: &[f32], v: f32, (g, beta): (f32, f32)) -> f32 {
    let difference = (v - g * dot(row, k)) * beta;
    row.iter_mut().zip(k).for_each(|(element, k)| *element = difference.mul_add(*k, *element * g));
    dot(row, q)
}
