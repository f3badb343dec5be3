//! The gated delta rule: attention whose memory is one matrix per head. Heads are independent of each other.

use crate::element::elements_mut;
use crate::lines::each_line;
use crate::memory::Sources;
use crate::pool::Scratch;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::delta::{self, Kept, Tokens};
use crate::window::{Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::{GatedDelta, ViewId};
use ptero_tensor::DType;

/// Tokens that are read at once: they stay in the second cache while the rows of a state pass by.
const BLOCK: usize = 64;

pub(crate) fn gated_delta(context: &mut Context<'_>, rule: &GatedDelta) -> Result<(), Fault> {
    let isa = context.isa;
    // What has no room for its outputs changes no state.
    context.open(&rule.out)?;
    let mut results = std::mem::take(context.staging);
    let sizes = if is_in_place(context, rule) { in_place(context, rule, &mut results)? } else { None };
    // Unless that was possible: for all heads the state, and then for all heads the outputs.
    let (sizes, is_copied) = match sizes {
        Some(sizes) => (sizes, false),
        None => (copied(context, rule, &mut results)?, true),
    };
    let Sizes { tokens, heads, height, width, .. } = sizes;
    let (states, outputs) = results.split_at(if is_copied { sizes.heads_in_all() * height * width } else { 0 });
    let (target, _, mut workers) = context.open(&rule.out)?;
    each_line(&mut workers, isa, target, (3, height), |number, out: &mut [f32], _| {
        // Lines go by batch, token and head.
        let (head, token) = (number / (tokens * heads) * heads + number % heads, number / heads % tokens);
        let start = (head * tokens + token) * height;
        out.copy_from_slice(outputs.get(start..start + height).unwrap_or_default());
    });
    if is_copied {
        let (target, _, mut workers) = context.open(&rule.state_out)?;
        each_line(&mut workers, isa, target, (3, width), |number, out: &mut [f32], _| {
            out.copy_from_slice(states.get(number * width..(number + 1) * width).unwrap_or_default());
        });
    }
    *context.staging = results;
    Ok(())
}

/// Whether the state is changed where it lies, and lies alone in its buffer.
fn is_in_place(context: &Context<'_>, rule: &GatedDelta) -> bool {
    let GatedDelta { q, k, v, g, beta, state, state_out, .. } = rule;
    let window = context.bound.window(*state);
    let is_elsewhere = |view: &&ViewId| context.buf(view) != window.buf;
    state == state_out && window.dtype == DType::F32 && [q, k, v, g, beta].iter().all(is_elsewhere)
}

/// Changes the state where it lies, if its elements lie side by side; outputs go to `results`, head by head.
fn in_place(context: &mut Context<'_>, rule: &GatedDelta, results: &mut Vec<f32>) -> Result<Option<Sizes>, Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(&rule.state_out)?;
    if !target.window.is_contiguous() {
        return Ok(None);
    }
    let heads = Heads::new(&sources, isa, rule, &target.window, Kept::F32)?;
    let Sizes { tokens, height, width, .. } = heads.sizes;
    results.resize(heads.sizes.heads_in_all() * tokens * height, 0.0);
    let (start, share) = (target.window.offset, height * width);
    let states = elements_mut::<f32>(target.bytes).get_mut(start..start + heads.sizes.heads_in_all() * share);
    let states = (states.unwrap_or_default(), share);
    workers.chunk_pairs(states, (results, tokens * height), |head, state, outputs, scratch| {
        heads.run(head, state, outputs, scratch);
    });
    Ok(Some(heads.sizes))
}

/// Computes with a copy of the state: `results` gets the states of all heads, and then their outputs.
fn copied(context: &mut Context<'_>, rule: &GatedDelta, results: &mut Vec<f32>) -> Result<Sizes, Fault> {
    let isa = context.isa;
    let kept = match context.bound.window(rule.state_out).dtype {
        DType::F16 => Kept::F16,
        DType::Bf16 => Kept::Bf16,
        _ => Kept::F32,
    };
    let (sources, mut workers) = context.sources();
    let state = sources.tensor(&rule.state)?;
    let heads = Heads::new(&sources, isa, rule, &state.window, kept)?;
    let Sizes { tokens, height, width, .. } = heads.sizes;
    let (count, share) = (heads.sizes.heads_in_all(), height * width);
    results.resize(count * (share + tokens * height), 0.0);
    let (states, outputs) = results.split_at_mut(count * share);
    workers.chunk_pairs((states, share), (outputs, tokens * height), |head, copy, outputs, scratch| {
        let rows = state.window.inner(2, head);
        for (row, copy) in copy.chunks_exact_mut(width.max(1)).enumerate() {
            let start = rows.offset.wrapping_add_signed(row.cast_signed() * rows.stride(0));
            state.read(isa, start, rows.stride(1), copy);
        }
        heads.run(head, copy, outputs, scratch);
    });
    Ok(heads.sizes)
}

#[derive(Clone, Copy)]
struct Sizes {
    batches: usize,
    tokens: usize,
    heads: usize,
    /// Rows of the state of a head.
    height: usize,
    width: usize,
}

impl Sizes {
    fn heads_in_all(self) -> usize {
        self.batches * self.heads
    }
}

struct Heads<'a> {
    isa: Isa,
    sizes: Sizes,
    kept: Kept,
    q: Tensor<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    g: Tensor<'a>,
    beta: Tensor<'a>,
}

impl<'a> Heads<'a> {
    fn new(sources: &Sources<'a>, isa: Isa, rule: &GatedDelta, state: &Window, kept: Kept) -> Result<Self, Fault> {
        let (q, k, v) = (sources.tensor(&rule.q)?, sources.tensor(&rule.k)?, sources.tensor(&rule.v)?);
        let [tokens, heads, height] = [1, 2, 3].map(|axis| v.window.size(axis));
        if heads % k.window.size(2).max(1) != 0 {
            return Err(Fault::Contract("the heads of values are a multiple of those of keys"));
        }
        let sizes = Sizes { batches: state.size(0), tokens, heads, height, width: state.size(3) };
        Ok(Self { isa, sizes, kept, q, k, v, g: sources.tensor(&rule.g)?, beta: sources.tensor(&rule.beta)? })
    }

    /// All tokens of one head, counted through the batches.
    fn run(&self, head: usize, state: &mut [f32], outputs: &mut [f32], scratch: &mut Scratch) {
        let Sizes { tokens, height, width, .. } = self.sizes;
        let (block, mut factors) = (BLOCK.min(tokens), [[0.0; 2]; BLOCK]);
        let [q, k, v] = scratch.floats([block * width, block * width, block * height]);
        for (first, out) in (0..tokens).step_by(BLOCK).zip(outputs.chunks_mut((BLOCK * height).max(1))) {
            let count = BLOCK.min(tokens - first);
            let [q, k] = [(&self.q, &mut *q), (&self.k, &mut *k)].map(|(tensor, to)| {
                let to = to.split_at_mut(count * width).0;
                to.chunks_exact_mut(width.max(1))
                    .zip(first..)
                    .for_each(|(to, token)| self.read(tensor, (head, token), to));
                &*to
            });
            let v = v.split_at_mut(count * height).0;
            v.chunks_exact_mut(height.max(1)).zip(first..).for_each(|(v, token)| self.read(&self.v, (head, token), v));
            let factors = factors.split_at_mut(count).0;
            factors.iter_mut().zip(first..).for_each(|(factors, token)| *factors = self.factors(head, token));
            delta::tokens(self.isa, state, height, self.kept, Tokens { q, k, factors, v }, out);
        }
    }

    /// What belongs to one token and a head, counted through the batches.
    fn read(&self, tensor: &Tensor<'_>, (head, token): (usize, usize), to: &mut [f32]) {
        let heads = self.sizes.heads;
        let (batch, head) = (head / heads, head % heads);
        let own = head / (heads / tensor.window.size(2).max(1)).max(1);
        tensor.read(self.isa, place(&tensor.window, [batch, token, own]), tensor.window.stride(3), to);
    }

    fn factors(&self, head: usize, token: usize) -> [f32; 2] {
        [&self.g, &self.beta].map(|tensor| {
            let mut factor = [0.0];
            self.read(tensor, (head, token), &mut factor);
            let [factor] = factor;
            factor
        })
    }
}

/// Where the elements at these places of the first three axes start.
fn place(window: &Window, at: [usize; 3]) -> usize {
    let steps = at.iter().zip(&window.strides).map(|(at, stride)| at.cast_signed() * stride);
    window.offset.wrapping_add_signed(steps.sum())
}
