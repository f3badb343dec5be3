//! The gated delta rule: attention with one state matrix per head. Heads are independent of each other.

use crate::lines::each_line;
use crate::memory::Sources;
use crate::pool::Scratch;
use crate::run::Context;
use crate::simd::delta::{self, Kept, Tokens};
use crate::window::{Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::{GatedDelta, ViewId};
use ptero_tensor::DType;

/// Tokens that are read at once: they stay in the L2 cache while the rows of a state stream through.
const BLOCK: usize = 64;

pub(crate) fn gated_delta(context: &mut Context<'_>, rule: &GatedDelta) -> Result<(), Fault> {
    // Changes no state if there is no memory for the outputs.
    context.open()?;
    let mut results = std::mem::take(&mut context.resources.staging);
    let sizes = if is_in_place(context, rule) { in_place(context, rule, &mut results)? } else { None };
    let (sizes, is_copied) = match sizes {
        Some(sizes) => (sizes, false),
        None => (copied(context, rule, &mut results)?, true),
    };
    let Sizes { tokens, heads, height, width, .. } = sizes;
    let (states, outputs) = results.split_at(if is_copied { sizes.heads_in_all() * height * width } else { 0 });
    let (target, _, mut workers) = context.open()?;
    each_line(&mut workers, target, (3, height), |number, out: &mut [f32], _| {
        // Lines are ordered by batch, token and head.
        let (head, token) = (number / (tokens * heads) * heads + number % heads, number / heads % tokens);
        let start = (head * tokens + token) * height;
        out.copy_from_slice(outputs.get(start..start + height).unwrap_or_default());
    });
    if is_copied {
        let (target, _, mut workers) = context.open_view(rule.state_out)?;
        each_line(&mut workers, target, (3, width), |number, out: &mut [f32], _| {
            out.copy_from_slice(states.get(number * width..(number + 1) * width).unwrap_or_default());
        });
    }
    context.resources.staging = results;
    Ok(())
}

/// Returns `true` if the state is updated in place and no operand shares its buffer.
fn is_in_place(context: &Context<'_>, rule: &GatedDelta) -> bool {
    let GatedDelta { q, k, v, g, beta, state, state_out, .. } = rule;
    let window = context.bound.window(*state);
    let is_elsewhere = |view: &&ViewId| context.bound.window(**view).buf != window.buf;
    state == state_out && window.dtype == DType::F32 && [q, k, v, g, beta].iter().all(is_elsewhere)
}

/// Updates the state in place, if it is contiguous; `results` gets the outputs, head by head.
fn in_place(context: &mut Context<'_>, rule: &GatedDelta, results: &mut Vec<f32>) -> Result<Option<Sizes>, Fault> {
    let (mut target, sources, mut workers) = context.open_view(rule.state_out)?;
    if !target.window.is_contiguous() {
        return Ok(None);
    }
    let heads = DeltaHeads::new(&sources, rule, &target.window, Kept::F32)?;
    let Sizes { tokens, height, width, .. } = heads.sizes;
    let (count, share) = (heads.sizes.heads_in_all(), height * width);
    results.resize(count * tokens * height, 0.0);
    let states = target.slice(0..count * share);
    workers.chunk_pairs((states, share), (results, tokens * height), |head, state, outputs, scratch| {
        heads.run(head, state, outputs, scratch);
    });
    Ok(Some(heads.sizes))
}

/// Computes with a copy of the state: `results` gets the states of all heads, followed by their outputs.
fn copied(context: &mut Context<'_>, rule: &GatedDelta, results: &mut Vec<f32>) -> Result<Sizes, Fault> {
    let kept = match context.bound.window(rule.state_out).dtype {
        DType::F16 => Kept::F16,
        DType::Bf16 => Kept::Bf16,
        _ => Kept::F32,
    };
    let (sources, mut workers) = context.sources();
    let state = sources.tensor(&rule.state)?;
    let heads = DeltaHeads::new(&sources, rule, &state.window, kept)?;
    let Sizes { tokens, height, width, .. } = heads.sizes;
    let (count, share) = (heads.sizes.heads_in_all(), height * width);
    results.resize(count * (share + tokens * height), 0.0);
    let (states, outputs) = results.split_at_mut(count * share);
    workers.chunk_pairs((states, share), (outputs, tokens * height), |head, copy, outputs, scratch| {
        let rows = state.window.inner(2, head);
        for (row, copy) in copy.chunks_exact_mut(width.max(1)).enumerate() {
            let start = rows.offset.wrapping_add_signed(row.cast_signed() * rows.stride(0));
            state.read(start, rows.stride(1), copy);
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

struct DeltaHeads<'a> {
    sizes: Sizes,
    kept: Kept,
    q: Tensor<'a>,
    k: Tensor<'a>,
    v: Tensor<'a>,
    g: Tensor<'a>,
    beta: Tensor<'a>,
}

impl<'a> DeltaHeads<'a> {
    fn new(sources: &Sources<'a>, rule: &GatedDelta, state: &Window, kept: Kept) -> Result<Self, Fault> {
        let (q, k, v) = (sources.tensor(&rule.q)?, sources.tensor(&rule.k)?, sources.tensor(&rule.v)?);
        let [tokens, heads, height] = [1, 2, 3].map(|axis| v.window.size(axis));
        if heads % k.window.size(2).max(1) != 0 {
            return Err(Fault::Contract("the heads of values are a multiple of those of keys"));
        }
        let sizes = Sizes { batches: state.size(0), tokens, heads, height, width: state.size(3) };
        Ok(Self { sizes, kept, q, k, v, g: sources.tensor(&rule.g)?, beta: sources.tensor(&rule.beta)? })
    }

    /// Runs all tokens of one head, counted over all batches.
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
            delta::tokens(self.q.isa, state, height, self.kept, Tokens { q, k, factors, v }, out);
        }
    }

    /// Reads the row of one token and one head, counted over all batches.
    fn read(&self, tensor: &Tensor<'_>, (head, token): (usize, usize), to: &mut [f32]) {
        let heads = self.sizes.heads;
        let (batch, head) = (head / heads, head % heads);
        let own = head / (heads / tensor.window.size(2).max(1)).max(1);
        tensor.read(offset(&tensor.window, [batch, token, own]), tensor.window.stride(3), to);
    }

    fn factors(&self, head: usize, token: usize) -> [f32; 2] {
        [&self.g, &self.beta].map(|tensor| {
            let mut factor = 0.0;
            self.read(tensor, (head, token), std::slice::from_mut(&mut factor));
            factor
        })
    }
}

/// The offset of the elements at these indices of the first three axes.
fn offset(window: &Window, at: [usize; 3]) -> usize {
    let steps = at.iter().zip(&window.strides).map(|(at, stride)| at.cast_signed() * stride);
    window.offset.wrapping_add_signed(steps.sum())
}
