//! The gated delta rule: attention whose memory is one matrix per head. Heads are independent of each other.

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::{Isa, delta};
use crate::window::{Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::GatedDelta;

pub(crate) fn gated_delta(context: &mut Context<'_>, rule: &GatedDelta) -> Result<(), Fault> {
    let isa = context.isa;
    let mut results = std::mem::take(context.staging);
    let (sources, mut workers) = context.sources();
    let heads = Heads {
        isa,
        q: sources.tensor(&rule.q)?,
        k: sources.tensor(&rule.k)?,
        v: sources.tensor(&rule.v)?,
        g: sources.tensor(&rule.g)?,
        beta: sources.tensor(&rule.beta)?,
        state: sources.tensor(&rule.state)?,
    };
    let [tokens, count, height] = [1, 2, 3].map(|axis| heads.v.window.size(axis));
    let (batches, width) = (heads.state.window.size(0), heads.state.window.size(3));
    let groups = heads.k.window.size(2);
    if count % groups.max(1) != 0 {
        return Err(Fault::Contract("the heads of values are a multiple of those of keys"));
    }
    // For each head, its state and then its outputs.
    let share = height * width + tokens * height;
    results.resize(batches * count * share, 0.0);
    workers.chunks(&mut results, share, |head, results, scratch| {
        let (state, outputs) = results.split_at_mut(height * width);
        let [q, k, v] = scratch.floats([width, width, height]);
        heads.run(head, state, outputs, [q, k, v]);
    });
    let (target, _, mut workers) = context.open(&rule.out)?;
    each_line(&mut workers, isa, target, (3, height), |number, out: &mut [f32], _| {
        // Lines go by batch, token and head.
        let (head, token) = (number / (tokens * count) * count + number % count, number / count % tokens);
        let start = head * share + height * width + token * height;
        out.copy_from_slice(results.get(start..start + height).unwrap_or_default());
    });
    let (target, _, mut workers) = context.open(&rule.state_out)?;
    each_line(&mut workers, isa, target, (3, width), |number, out: &mut [f32], _| {
        let start = number / height.max(1) * share + number % height.max(1) * width;
        out.copy_from_slice(results.get(start..start + width).unwrap_or_default());
    });
    *context.staging = results;
    Ok(())
}

struct Heads<'a> {
    isa: Isa,
    q: Tensor<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    g: Tensor<'a>,
    beta: Tensor<'a>,
    state: Tensor<'a>,
}

impl Heads<'_> {
    /// All tokens of one head, counted through the batches.
    fn run(&self, head: usize, state: &mut [f32], outputs: &mut [f32], [q, k, v]: [&mut [f32]; 3]) {
        let (isa, count) = (self.isa, self.v.window.size(2));
        let (batch, head) = (head / count, head % count);
        let group = head / (count / self.k.window.size(2).max(1)).max(1);
        let (height, width) = (v.len(), k.len());
        let rows = self.state.window.inner(2, batch * count + head);
        for (row, state) in state.chunks_exact_mut(width.max(1)).enumerate() {
            let start = rows.offset.wrapping_add_signed(row.cast_signed() * rows.stride(0));
            self.state.read(isa, start, rows.stride(1), state);
        }
        for (token, outputs) in outputs.chunks_exact_mut(height.max(1)).enumerate() {
            let read = |tensor: &Tensor<'_>, head: usize, to: &mut [f32]| {
                tensor.read(isa, place(&tensor.window, [batch, token, head]), tensor.window.stride(3), to);
            };
            read(&self.q, group, q);
            read(&self.k, group, k);
            read(&self.v, head, v);
            let (mut g, mut beta) = ([0.0], [0.0]);
            read(&self.g, head, &mut g);
            read(&self.beta, head, &mut beta);
            let rows = state.chunks_exact_mut(width.max(1)).zip(v.iter()).zip(outputs);
            for ((state, v), out) in rows {
                *out = delta::step(isa, state, q, k, *v, g[0], beta[0]);
            }
        }
    }
}

/// Where the elements at these places of the first three axes start.
fn place(window: &Window, at: [usize; 3]) -> usize {
    let steps = at.iter().zip(&window.strides).map(|(at, stride)| at.cast_signed() * stride);
    window.offset.wrapping_add_signed(steps.sum())
}
