//! The gated delta rule: attention with one state matrix per head. Heads are independent of each other.
#![allow(clippy::indexing_slicing, reason = "results are as long as the sizes of the rule say")]

use crate::lines::each_line;
use crate::memory::Sources;
use crate::pool::Scratch;
use crate::run::Context;
use crate::simd::delta::{self, Kept, Tokens};
use crate::view::{BoundView, Tensor, ensure_shape};
use ptero_backend::Fault;
use ptero_plan::bound::Bound;
use ptero_plan::prim::{GatedDelta, ViewId};
use ptero_tensor::DType;

/// Tokens that are read at once: they stay in the L2 cache while the rows of a state stream through.
const BLOCK: usize = 64;

pub(crate) fn gated_delta(context: &mut Context<'_>, rule: &GatedDelta) -> Result<(), Fault> {
    // Changes no state if there is no memory for the outputs.
    context.open()?;
    let sizes = Sizes::new(context.bound, rule)?;
    let Sizes { tokens, heads, height, width, .. } = sizes;
    let is_copied = !is_in_place(context, rule);
    let state_floats = if is_copied { sizes.heads_in_all() * height * width } else { 0 };
    let mut results = std::mem::take(&mut context.resources.staging);
    let output_floats = sizes.heads_in_all() * tokens * height;
    results.resize(results.len().max(state_floats + output_floats), 0.0);
    let (states, rest) = results.split_at_mut(state_floats);
    let outputs = rest.split_at_mut(output_floats).0;
    if is_copied {
        copied(context, rule, sizes, [&mut *states, &mut *outputs])?;
    } else {
        in_place(context, rule, sizes, outputs)?;
    }
    let (target, _, mut workers) = context.open()?;
    each_line(&mut workers, target, (3, height), |number, out: &mut [f32], _| {
        // Lines are ordered by batch, token and head.
        let (head, token) = (number / (tokens * heads) * heads + number % heads, number / heads % tokens);
        let start = (head * tokens + token) * height;
        out.copy_from_slice(&outputs[start..start + height]);
    });
    if is_copied {
        let (target, _, mut workers) = context.open_view(rule.state_out)?;
        each_line(&mut workers, target, (3, width), |number, out: &mut [f32], _| {
            out.copy_from_slice(&states[number * width..(number + 1) * width]);
        });
    }
    context.resources.staging = results;
    Ok(())
}

/// Returns `true` if the state is updated in place, is contiguous, and no operand shares its buffer.
fn is_in_place(context: &Context<'_>, rule: &GatedDelta) -> bool {
    let GatedDelta { q, k, v, g, beta, state, state_out, .. } = rule;
    let state_view = context.bound.view(*state);
    let is_elsewhere = |view: &&ViewId| context.bound.view(**view).buf != state_view.buf;
    let is_alone = [q, k, v, g, beta].iter().all(is_elsewhere);
    state == state_out && state_view.dtype == DType::F32 && is_alone && state_view.is_contiguous()
}

/// Updates the state in place; `outputs` are stored head by head.
fn in_place(context: &mut Context<'_>, rule: &GatedDelta, sizes: Sizes, outputs: &mut [f32]) -> Result<(), Fault> {
    let (mut target, sources, mut workers) = context.open_view(rule.state_out)?;
    let heads = DeltaHeads::new(&sources, rule, sizes, Kept::F32)?;
    let Sizes { tokens, height, width, .. } = sizes;
    let states = (target.slice(0..sizes.heads_in_all() * height * width), height * width);
    workers.chunk_pairs(states, (outputs, tokens * height), |head, state, outputs, scratch| {
        heads.run(head, state, outputs, scratch);
    });
    Ok(())
}

/// Computes with a copy of the state; `results` are states and outputs, stored head by head.
fn copied(context: &mut Context<'_>, rule: &GatedDelta, sizes: Sizes, results: [&mut [f32]; 2]) -> Result<(), Fault> {
    let [states, outputs] = results;
    let kept = match context.bound.view(rule.state_out).dtype {
        DType::F16 => Kept::F16,
        DType::Bf16 => Kept::Bf16,
        _ => Kept::F32,
    };
    let (sources, mut workers) = context.sources();
    let state = sources.tensor(&rule.state)?.lines(3);
    let heads = DeltaHeads::new(&sources, rule, sizes, kept)?;
    let Sizes { tokens, height, width, .. } = sizes;
    workers.chunk_pairs((states, height * width), (outputs, tokens * height), |head, copy, outputs, scratch| {
        for (row, copy) in (head * height..).zip(copy.chunks_exact_mut(width.max(1))) {
            state.read(row, 0, copy);
        }
        heads.run(head, copy, outputs, scratch);
    });
    Ok(())
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
    fn new(bound: &Bound, rule: &GatedDelta) -> Result<Self, Fault> {
        let (k, v, state) = (bound.view(rule.k), bound.view(rule.v), bound.view(rule.state));
        let [tokens, heads, height] = [1, 2, 3].map(|axis| v.size(axis));
        if heads % k.size(2).max(1) != 0 {
            return Err(Fault::Contract("the heads of values are a multiple of those of keys"));
        }
        let (batches, width) = (state.size(0), state.size(3));
        let (keys, values) = ([batches, tokens, k.size(2), width], [batches, tokens, heads, height]);
        let (states, factors) = ([batches, heads, height, width], [batches, tokens, heads]);
        let matrices = [(rule.q, keys), (rule.k, keys), (rule.v, values), (rule.out, values)];
        let mut matrices = matrices.into_iter().chain([(rule.state, states), (rule.state_out, states)]);
        matrices.try_for_each(|(view, shape)| ensure_shape(bound.view(view), &shape))?;
        [rule.g, rule.beta].into_iter().try_for_each(|view| ensure_shape(bound.view(view), &factors))?;
        Ok(Self { batches, tokens, heads, height, width })
    }

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
    fn new(sources: &Sources<'a>, rule: &GatedDelta, sizes: Sizes, kept: Kept) -> Result<Self, Fault> {
        let (q, k, v) = (sources.tensor(&rule.q)?, sources.tensor(&rule.k)?, sources.tensor(&rule.v)?);
        Ok(Self { sizes, kept, q, k, v, g: sources.tensor(&rule.g)?, beta: sources.tensor(&rule.beta)? })
    }

    /// Runs all tokens of one head, counted over all batches.
    fn run(&self, head: usize, state: &mut [f32], outputs: &mut [f32], scratch: &mut Scratch) {
        let Sizes { tokens, height, width, .. } = self.sizes;
        let (block, mut factors) = (BLOCK.min(tokens), [[0.0; 2]; BLOCK]);
        let [q, k, v] = scratch.floats([block * width, block * width, block * height]);
        for (first, out) in (0..tokens).step_by(BLOCK).zip(outputs.chunks_mut((BLOCK * height).max(1))) {
            let count = BLOCK.min(tokens - first);
            let operands = [(&self.q, &mut *q, width), (&self.k, &mut *k, width), (&self.v, &mut *v, height)];
            let [q, k, v] = operands.map(|(tensor, to, length)| {
                let to = &mut to[..count * length];
                for (to, token) in to.chunks_exact_mut(length.max(1)).zip(first..) {
                    self.read(tensor, (head, token), to);
                }
                &*to
            });
            let factors = factors.split_at_mut(count).0;
            factors.iter_mut().zip(first..).for_each(|(factors, token)| *factors = self.factors(head, token));
            delta::tokens(self.q.isa, state, height, self.kept, Tokens { q, k, factors, v }, out);
        }
    }

    /// Reads the row of one token and one head, counted over all batches.
    fn read(&self, tensor: &Tensor<'_>, (head, token): (usize, usize), to: &mut [f32]) {
        let heads = self.sizes.heads;
        let (batch, head) = (head / heads, head % heads);
        let own = head / (heads / tensor.view.size(2).max(1)).max(1);
        tensor.read(offset(&tensor.view, [batch, token, own]), tensor.view.stride(3), to);
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
fn offset(view: &BoundView, at: [usize; 3]) -> usize {
    let steps = at.iter().zip(&view.strides).map(|(at, stride)| at.cast_signed() * stride);
    view.offset.wrapping_add_signed(steps.sum())
}
