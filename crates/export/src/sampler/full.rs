//! The full head: penalties, biases and a mask before the draw, min-p in it, and log-probabilities after it, as nodes that every
//! runtime of the format has. `ptero_sampling` says what each step is; there is one row of `V` logits and room for `C` tokens.
//!
//! ```text
//! main    history[positions] = tokens                                 state, so that a text is known from its positions
//!         seen  = how often the history has each token, up to the last position
//!         count = the same from `prompt_end` on
//!         x = f32(logits)
//!         x = where(seen > 0, where(x < 0, x * repetition, x / repetition), x)
//!         x = where(count > 0, x - count * frequency - presence, x)
//!         x = x + the sum of the biases of each token
//!         x = where(the bit of the mask, x, -inf)
//!         temperature > 0 ? sample : greedy
//! sample  upstream's, with x for the logits, and s = where(exp(s - max(s)) < min(min_p, 1), -inf, s) after top-p
//!         g = exact_tail > 0 ? -log(-log1p(-v)) : upstream's                v of a word of 64 bits over 2^64
//!         scores = s, without the noise
//! greedy  token = argmax(x), scores = x
//! main    logprobs > 0 ? compute : zeros
//! compute s = logprobs > 1 ? scores : f32(logits)
//!         l = s - logsumexp(s), of the token and of the 20 largest of s
//! ```

use super::{Logits, SamplerSlots, TextInputs, best, gumbel, top_k, top_p};
use crate::builder::{GraphBuilder, Tensor};
use ptero_pte::DType;
use ptero_pte::field::{Float, Int, IntOrSrc};
use ptero_pte::nodes::{
    ARange, Add, Argsort, AsType, BitwiseAnd, Divide, Exp, ExpandDims, Full, Greater, GreaterEqual, IdCopy, If,
    IndexCopy, ItemInt, Less, LessEqual, Log, Log1p, LogSumExp, LogicalAnd, Max, Maximum, Minimum, Multiply, Neg,
    NotEqual, RandomBits, Reshape, ScatterAdd, Slice, Squeeze, Subtract, SubtractInt, SymSize, Take, TakeAlongAxis,
    Where,
};
use ptero_sampling::adjust::MASK_BITS;
use ptero_sampling::inputs::Scalar;
use ptero_sampling::log_probabilities::MOST_LIKELIEST;
use ptero_sampling::noise::{BELOW_ONE, LEAST_DISTANCE};

/// How many of the likeliest tokens the head returns.
#[allow(clippy::cast_possible_wrap, reason = "a small constant")]
const LIKELIEST: i64 = MOST_LIKELIEST as i64;

/// The tensors that hold the parameters that upstream's head does not have, as the table of inputs orders them.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullSlots {
    min_p: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
    prompt_end: Tensor,
    bias_tokens: Tensor,
    bias_values: Tensor,
    mask: Tensor,
    log_probabilities: Tensor,
    exact_tail: Tensor,
}

impl FullSlots {
    pub(super) fn new(inputs: &[Tensor]) -> Option<Self> {
        let (&[min_p, repetition, presence, frequency, prompt_end], rest) = inputs.split_first_chunk()?;
        let &[bias_tokens, bias_values, mask, log_probabilities, exact_tail] = rest else { return None };
        Some(Self {
            min_p,
            repetition,
            presence,
            frequency,
            prompt_end,
            bias_tokens,
            bias_values,
            mask,
            log_probabilities,
            exact_tail,
        })
    }
}

/// What the head writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outputs {
    pub(super) token: Tensor,
    pub(super) log_probability: Tensor,
    pub(super) likeliest: Tensor,
    pub(super) of_likeliest: Tensor,
}

/// Emits the head.
pub(super) fn emit(
    b: &mut GraphBuilder,
    logits: &Logits,
    plain: &SamplerSlots,
    slots: &FullSlots,
    text: &TextInputs,
    outputs: &Outputs,
) {
    let counts = count(b, logits, slots, text);
    let x = b.node(|out| AsType { x: logits.tensor.src(), out, scalar_type: DType::F32 });
    let x = penalize(b, x, &counts, slots);
    let x = add_biases(b, x, logits, slots);
    let x = mask(b, x, logits, slots.mask);
    let scores = draw(b, &Logits { tensor: x, ..logits.clone() }, plain, slots, outputs.token);
    log_probabilities(b, logits, scores, slots.log_probabilities, outputs);
}

/// How often a text has each token, `[V]`.
struct Counts {
    /// The prompt included.
    seen: Tensor,
    /// Without the prompt.
    new: Tensor,
}

/// Keeps the tokens of the call, and counts the tokens so far.
fn count(b: &mut GraphBuilder, logits: &Logits, slots: &FullSlots, text: &TextInputs) -> Counts {
    let history = b.state("token_history", DType::I32, [text.context]);
    let length = b.value(|out| SymSize { a: text.tokens.src(), dim: 1, out });
    let tokens = b.node(|out| Reshape { x: text.tokens.src(), out, shape: vec![length.int()] });
    b.emit(AsType { x: tokens.src(), out: tokens.dst(), scalar_type: DType::I32 });
    let (dst, update, indices) = (history.src(), tokens.src(), text.positions.src());
    b.emit(IndexCopy { dst, update, indices, out: history.dst(), axis: 0 });

    let end = b.value(|out| SubtractInt { a: length.int(), b: Int::Literal(1), out });
    let last = b.node(|out| Take { x: indices, out, index: IntOrSrc::Value(end.value()), axis: 0 });
    let [start, stop, step] = [0, text.context.into(), 1].map(Int::Literal);
    let at = b.node(|out| ARange { out, start, stop, step, scalar_type: Some(DType::I64) });
    let is_so_far = b.node(|out| LessEqual { a: at.src(), b: last.src(), out });
    let is_after = b.node(|out| GreaterEqual { a: at.src(), b: slots.prompt_end.src(), out });
    let is_new = b.node(|out| LogicalAnd { a: is_so_far.src(), b: is_after.src(), out });
    let mut count = |is_counted: Tensor| {
        let ones = b.node(|out| AsType { x: is_counted.src(), out, scalar_type: DType::F32 });
        sum_by_token(b, history, ones, logits.vocabulary)
    };
    Counts { seen: count(is_so_far), new: count(is_new) }
}

/// The sum of the values of each token, `[V]`. Tokens outside the vocabulary have no sum.
fn sum_by_token(b: &mut GraphBuilder, tokens: Tensor, values: Tensor, vocabulary: i32) -> Tensor {
    let [first, end] = [0, vocabulary].map(|token| b.scalar(Scalar::I32(token)));
    let is_known = b.node(|out| GreaterEqual { a: tokens.src(), b: first.src(), out });
    let is_below = b.node(|out| Less { a: tokens.src(), b: end.src(), out });
    b.emit(LogicalAnd { a: is_known.src(), b: is_below.src(), out: is_known.dst() });
    let nothing = b.scalar(Scalar::F32(0.0));
    let tokens = b.node(|out| Where { condition: is_known.src(), x: tokens.src(), y: first.src(), out });
    let values = b.node(|out| Where { condition: is_known.src(), x: values.src(), y: nothing.src(), out });
    let shape = vec![Int::Literal(vocabulary.into())];
    let sums = b.node(|out| Full { out, shape, v: Float::Literal(0.0), scalar_type: DType::F32 });
    b.emit(ScatterAdd { x: sums.src(), indices: tokens.src(), updates: values.src(), out: sums.dst(), axis: 0 });
    sums
}

fn penalize(b: &mut GraphBuilder, x: Tensor, counts: &Counts, slots: &FullSlots) -> Tensor {
    let zero = b.scalar(Scalar::F32(0.0));
    let is_negative = b.node(|out| Less { a: x.src(), b: zero.src(), out });
    let product = b.node(|out| Multiply { a: x.src(), b: slots.repetition.src(), out });
    let quotient = b.node(|out| Divide { a: x.src(), b: slots.repetition.src(), out });
    let repeated = b.node(|out| Where { condition: is_negative.src(), x: product.src(), y: quotient.src(), out });
    let is_seen = b.node(|out| Greater { a: counts.seen.src(), b: zero.src(), out });
    let x = b.node(|out| Where { condition: is_seen.src(), x: repeated.src(), y: x.src(), out });

    let amount = b.node(|out| Multiply { a: counts.new.src(), b: slots.frequency.src(), out });
    let lowered = b.node(|out| Subtract { a: x.src(), b: amount.src(), out });
    b.emit(Subtract { a: lowered.src(), b: slots.presence.src(), out: lowered.dst() });
    let is_present = b.node(|out| Greater { a: counts.new.src(), b: zero.src(), out });
    b.node(|out| Where { condition: is_present.src(), x: lowered.src(), y: x.src(), out })
}

fn add_biases(b: &mut GraphBuilder, x: Tensor, logits: &Logits, slots: &FullSlots) -> Tensor {
    let sums = sum_by_token(b, slots.bias_tokens, slots.bias_values, logits.vocabulary);
    b.node(|out| Add { a: x.src(), b: sums.src(), out })
}

/// Tokens whose bit is not set become minus infinity.
fn mask(b: &mut GraphBuilder, x: Tensor, logits: &Logits, mask: Tensor) -> Tensor {
    let bits: Vec<u8> = (0..MASK_BITS).flat_map(|bit| (1_u32 << bit).to_le_bytes()).collect();
    let bits = b.constant("_mask_bits", DType::I32, [32], bits);
    let words = b.node(|out| ExpandDims { x: mask.src(), out, axis: -1 });
    let set = b.node(|out| BitwiseAnd { a: words.src(), b: bits.src(), out });
    let none = b.scalar(Scalar::I32(0));
    let is_allowed = b.node(|out| NotEqual { a: set.src(), b: none.src(), out });
    let shape = vec![Int::Literal(1), Int::Literal(-1)];
    b.emit(Reshape { x: is_allowed.src(), out: is_allowed.dst(), shape });
    let [axis, start, stop] = [1, 0, logits.vocabulary.into()].map(Int::Literal);
    b.emit(Slice { x: is_allowed.src(), out: is_allowed.dst(), axis, start, stop, step: 1 });
    let forbidden = b.scalar(Scalar::F32(f32::NEG_INFINITY));
    b.node(|out| Where { condition: is_allowed.src(), x: x.src(), y: forbidden.src(), out })
}

/// Draws the token, and returns the scores of what it was drawn from.
fn draw(b: &mut GraphBuilder, x: &Logits, inputs: &SamplerSlots, slots: &FullSlots, token: Tensor) -> Tensor {
    let zero = b.scalar(Scalar::F32(0.0));
    let is_hot = b.node(|out| Greater { a: inputs.temperature.src(), b: zero.src(), out });
    let cond = b.value(|out| ItemInt { x: is_hot.src(), out });
    let scores = b.temporary();
    let then_chain_idx = b.chain(|b| {
        let noise = noise(b, x, inputs.seed, slots.exact_tail);
        let scaled = b.node(|out| Divide { a: x.tensor.src(), b: inputs.temperature.src(), out });
        let forbidden = b.scalar(Scalar::F32(f32::NEG_INFINITY));
        let likely = top_k(b, scaled, x.vocabulary, inputs.top_k, forbidden);
        let kept = top_p(b, likely, inputs.top_p, forbidden);
        cut_min_p(b, kept, slots.min_p, forbidden, scores);
        let noisy = b.node(|out| Add { a: scores.src(), b: noise.src(), out });
        best(b, noisy, token);
    });
    let else_chain_idx = b.chain(|b| {
        b.emit(IdCopy { x: x.tensor.src(), out: scores.dst() });
        best(b, x.tensor, token);
    });
    b.emit(If { cond: cond.int(), then_chain_idx, else_chain_idx });
    scores
}

/// Noise of one random word for each token, or of two.
fn noise(b: &mut GraphBuilder, x: &Logits, seed: Option<Tensor>, exact_tail: Tensor) -> Tensor {
    let cond = is_above(b, exact_tail, 0);
    let noise = b.temporary();
    let then_chain_idx = b.chain(|b| exact_gumbel(b, x, seed, noise));
    let else_chain_idx = b.chain(|b| {
        let plain = gumbel(b, x, seed);
        b.emit(IdCopy { x: plain.src(), out: noise.dst() });
    });
    b.emit(If { cond, then_chain_idx, else_chain_idx });
    noise
}

/// Noise whose largest values are exact: of the distance of uniform random bits from 1.
fn exact_gumbel(b: &mut GraphBuilder, x: &Logits, seed: Option<Tensor>, noise: Tensor) {
    let seed = seed.map(|seed| b.value(|out| ItemInt { x: seed.src(), out }).value());
    let shape = vec![Int::Literal(2), Int::Literal(x.vocabulary.into())];
    let words = b.node(|out| RandomBits { out, shape, seed, width: 4 });
    b.emit(AsType { x: words.src(), out: words.dst(), scalar_type: DType::F32 });
    let parts = [(0, 1.0 / 4_294_967_296.0), (1, LEAST_DISTANCE)];
    let [high, low] = parts.map(|(row, unit)| {
        let [axis, start, stop] = [0, row, row + 1].map(Int::Literal);
        let part = b.node(|out| Slice { x: words.src(), out, axis, start, stop, step: 1 });
        let unit = b.scalar(Scalar::F32(unit));
        b.emit(Multiply { a: part.src(), b: unit.src(), out: part.dst() });
        part
    });
    let distance = b.node(|out| Add { a: high.src(), b: low.src(), out });
    let least = b.scalar(Scalar::F32(LEAST_DISTANCE));
    b.emit(Maximum { a: distance.src(), b: least.src(), out: distance.dst() });
    let below_one = b.scalar(Scalar::F32(BELOW_ONE));
    b.emit(Minimum { a: distance.src(), b: below_one.src(), out: distance.dst() });
    b.emit(Neg { x: distance.src(), out: distance.dst() });
    b.emit(Log1p { x: distance.src(), out: noise.dst() });
    b.emit(Neg { x: noise.src(), out: noise.dst() });
    b.emit(Log { x: noise.src(), out: noise.dst() });
    b.emit(Neg { x: noise.src(), out: noise.dst() });
}

/// What is too unlikely beside the likeliest becomes `forbidden`.
fn cut_min_p(b: &mut GraphBuilder, scaled: Tensor, min_p: Tensor, forbidden: Tensor, scores: Tensor) {
    let largest = b.node(|out| Max { x: scaled.src(), out, axes: Some(vec![-1]), keepdims: true });
    let ratio = b.node(|out| Subtract { a: scaled.src(), b: largest.src(), out });
    b.emit(Exp { x: ratio.src(), out: ratio.dst() });
    let one = b.scalar(Scalar::F32(1.0));
    let least = b.node(|out| Minimum { a: min_p.src(), b: one.src(), out });
    let is_below = b.node(|out| Less { a: ratio.src(), b: least.src(), out });
    b.emit(Where { condition: is_below.src(), x: forbidden.src(), y: scaled.src(), out: scores.dst() });
}

fn log_probabilities(b: &mut GraphBuilder, logits: &Logits, scores: Tensor, which: Tensor, outputs: &Outputs) {
    let cond = is_above(b, which, 0);
    let then_chain_idx = b.chain(|b| {
        let cond = is_above(b, which, 1);
        let chosen = b.temporary();
        let then_chain_idx = b.chain(|b| b.emit(IdCopy { x: scores.src(), out: chosen.dst() }));
        let model = AsType { x: logits.tensor.src(), out: chosen.dst(), scalar_type: DType::F32 };
        let else_chain_idx = b.chain(|b| b.emit(model));
        b.emit(If { cond, then_chain_idx, else_chain_idx });
        of_scores(b, chosen, outputs);
    });
    let else_chain_idx = b.chain(|b| {
        let rows = Int::Literal(1);
        let few = Int::Literal(LIKELIEST);
        let mut zeros = |out: Tensor, shape: Vec<Int>, scalar_type| {
            b.emit(Full { out: out.dst(), shape, v: Float::Literal(0.0), scalar_type });
        };
        zeros(outputs.log_probability, vec![rows], DType::F32);
        zeros(outputs.likeliest, vec![rows, few], DType::I64);
        zeros(outputs.of_likeliest, vec![rows, few], DType::F32);
    });
    b.emit(If { cond, then_chain_idx, else_chain_idx });
}

fn is_above(b: &mut GraphBuilder, number: Tensor, limit: i64) -> Int {
    let limit = b.scalar(Scalar::I64(limit));
    let is_above = b.node(|out| Greater { a: number.src(), b: limit.src(), out });
    b.value(|out| ItemInt { x: is_above.src(), out }).int()
}

/// Logarithms of the softmax of scores: that of the token, and the largest.
fn of_scores(b: &mut GraphBuilder, scores: Tensor, outputs: &Outputs) {
    let total = b.node(|out| LogSumExp { x: scores.src(), out, axes: Some(vec![-1]), keepdims: true });
    let shares = b.node(|out| Subtract { a: scores.src(), b: total.src(), out });
    let token = b.node(|out| ExpandDims { x: outputs.token.src(), out, axis: -1 });
    let own = b.node(|out| TakeAlongAxis { x: shares.src(), indices: token.src(), out, axis: -1 });
    b.emit(Squeeze { x: own.src(), out: outputs.log_probability.dst(), dims: Some(vec![-1]) });
    // By score: different scores may have the same share.
    let order = b.node(|out| Neg { x: scores.src(), out });
    b.emit(Argsort { x: order.src(), out: order.dst(), axis: -1 });
    let [axis, start, stop] = [1, 0, LIKELIEST].map(Int::Literal);
    let first = b.node(|out| Slice { x: order.src(), out, axis, start, stop, step: 1 });
    b.emit(AsType { x: first.src(), out: outputs.likeliest.dst(), scalar_type: DType::I64 });
    let (x, indices, out) = (shares.src(), first.src(), outputs.of_likeliest.dst());
    b.emit(TakeAlongAxis { x, indices, out, axis: -1 });
}
