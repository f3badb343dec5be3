//! Matches the noise that scores have: of one random word for each token, or, by a branch, of two.

use super::log_probabilities::above;
use super::pattern::{NEG, Parameter, host, outside};
use crate::dim::Dim;
use crate::expr::{Binary, Scalar, Unary};
use crate::graph::{BlockId, Input, Node, Op, Value};
use crate::host::HostOp;
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Prim, View};
use ptero_tensor::DType::{F32, I32, I64, U32};

const NOISE: &str = "not fused: the noise is not -log(-log(u))";
const UNIFORM: &str = "not fused: the noise is not of 32 random bits over 2^32 - 1, below one";
const STREAM: &str = "not fused: the random bits are not one stream over the logits";
const SEED: &str = "not fused: the seed is not one element of type i32, i64 or u32";
const CHOICE: &str = "not fused: the noise is not chosen by one element above 0, with one seed";
const TAIL: &str = "not fused: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one";
const MORE: &str = "not fused: a branch does more than compute noise";

const LOG: Scalar = Scalar::Unary(Unary::Log);
const MUL: Scalar = Scalar::Binary(Binary::Mul);

/// The largest number below one.
const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// 2^-64.
const LEAST: f32 = 1.0 / 18_446_744_073_709_551_616.0;

/// What noise is computed from.
pub(super) struct Noise {
    pub(super) seed: Option<Parameter>,
    pub(super) exact_tail: Option<Traced>,
    /// The operation of the block that takes random words: the bits, or the branch.
    pub(super) source: Value,
}

/// Returns `true` if a value may be noise: a negation, or the result of a branch.
pub(super) fn may_be(draw: &Matcher<'_>, tensor: &Traced) -> bool {
    let is_negated = draw.peek::<1>(&Traced::all_of(draw.graph, tensor.root), NEG, Some(F32)).is_some();
    is_negated || draw.is_inside(tensor) && branch(draw, tensor.root).is_some()
}

/// The branch that computes a value.
fn branch<'a>(draw: &Matcher<'a>, value: Value) -> Option<(&'a Node, &'a Dim, [BlockId; 2])> {
    let node = draw.uses.node(draw.graph, value)?;
    match &node.op {
        Op::If { condition, then, otherwise, outs } if *outs == [value] => Some((node, condition, [*then, *otherwise])),
        _ => None,
    }
}

/// Matches noise of the logits.
pub(super) fn find(draw: &mut Matcher<'_>, noise: &Traced) -> Matched<Noise> {
    // Elementwise functions have one shape, so noise that is used whole has as many random bits as logits.
    draw.ensure(noise.is_same(&Traced::all_of(draw.graph, noise.root)), STREAM)?;
    let Some((node, condition, [then, otherwise])) = branch(draw, noise.root) else {
        let (source, seed) = one_word(draw, noise.clone())?;
        let seed = seed.map(|seed| seed_of(draw, seed)).transpose()?;
        return Ok(Noise { seed, exact_tail: None, source });
    };
    draw.at = node.origin;
    let exact_tail = outside(draw, Some(above(draw, condition, 0, CHOICE)?), CHOICE)?;
    let (mut arm, result) = arm(draw, then)?;
    let (bits, seed) = two_words(&mut arm, result)?;
    let exact_seed = seed_in(draw, &arm, bits, seed)?;
    let (mut arm, result) = self::arm(draw, otherwise)?;
    let (bits, seed) = one_word(&mut arm, result)?;
    let seed = seed_in(draw, &arm, bits, seed)?;
    draw.ensure(seed == exact_seed, CHOICE)?;
    Ok(Noise { seed: Some(seed), exact_tail: Some(exact_tail), source: noise.root })
}

/// A block of the branch, and its result.
fn arm<'a>(draw: &Matcher<'a>, block: BlockId) -> Matched<(Matcher<'a>, Traced)> {
    let arm = Matcher { block, ..*draw };
    let [result] = arm.graph.block(block).results.as_slice() else { return arm.decline(CHOICE) };
    let result = arm.trace(*result);
    arm.ensure(result.is_same(&Traced::all_of(arm.graph, result.root)), STREAM)?;
    Ok((arm, result))
}

/// The seed of the random bits of an arm, which does nothing else. Without a seed, it would be the arm that takes a key.
fn seed_in(draw: &Matcher<'_>, arm: &Matcher<'_>, bits: Value, seed: Option<&Dim>) -> Matched<Parameter> {
    let is_part = |op: &Op| match op {
        Op::Host(var) => !matches!(host(arm, &Dim::var(*var)), Some(HostOp::Chosen(..))),
        Op::Prim(prim) => *prim.out() == bits,
        _ => false,
    };
    arm.nothing_else(is_part, MORE)?;
    match seed_of(arm, arm.some(seed, CHOICE)?)? {
        Parameter::Tensor(seed) => Ok(Parameter::Tensor(outside(draw, Some(seed), SEED)?)),
        known @ (Parameter::Int(_) | Parameter::Float(_)) => Ok(known),
    }
}

/// Random bits and their seed.
type Bits<'a> = (Value, Option<&'a Dim>);

/// Matches the noise of a word for each token: `-log(-log(min(bits / (2^32 - 1), below one)))`.
fn one_word<'a>(draw: &mut Matcher<'a>, noise: Traced) -> Matched<Bits<'a>> {
    let mut x = noise;
    for op in [NEG, LOG, NEG, LOG] {
        [x] = draw.operands(&x, op, Some(F32), NOISE)?;
    }
    let [x, below_one] = draw.operands(&x, Scalar::Binary(Binary::Min), Some(F32), UNIFORM)?;
    draw.ensure(draw.is_float(&below_one, BELOW_ONE), UNIFORM)?;
    let [x, most] = draw.operands(&x, Scalar::Binary(Binary::Div), Some(F32), UNIFORM)?;
    draw.ensure(draw.is_float(&most, 4_294_967_295.0), UNIFORM)?;
    let [bits] = draw.operands(&x, Scalar::Cast, Some(U32), UNIFORM)?;
    let Prim::RandomBits { out, seed } = draw.whole(&bits, UNIFORM)? else { return draw.decline(UNIFORM) };
    Ok((*out, seed.as_ref()))
}

/// Matches the noise of two words for each token of one row, `-log(-log1p(-v))`: `v` is `high / 2^32 + low / 2^64`, bounded, of the
/// rows of a `[2, V]`.
fn two_words<'a>(draw: &mut Matcher<'a>, noise: Traced) -> Matched<Bits<'a>> {
    let mut x = noise;
    for op in [NEG, LOG, NEG, Scalar::Unary(Unary::Log1p), NEG] {
        [x] = draw.operands(&x, op, Some(F32), TAIL)?;
    }
    for (op, bound) in [(Binary::Min, BELOW_ONE), (Binary::Max, LEAST)] {
        let [within, end] = draw.operands(&x, Scalar::Binary(op), Some(F32), TAIL)?;
        draw.ensure(draw.is_float(&end, bound), TAIL)?;
        x = within;
    }
    let [high, low] = draw.operands(&x, Scalar::Binary(Binary::Add), Some(F32), TAIL)?;
    let [[high, high_unit], [low, low_unit]] =
        [draw.operands(&high, MUL, Some(F32), TAIL)?, draw.operands(&low, MUL, Some(F32), TAIL)?];
    let units = draw.is_float(&high_unit, 1.0 / 4_294_967_296.0) && draw.is_float(&low_unit, LEAST);
    let both = Traced::all_of(draw.graph, high.root);
    let tokens = match both.view.shape.as_slice() {
        [two, tokens] if two.is(2) => draw.some(tokens.as_fixed(), TAIL)?,
        _ => return draw.decline(TAIL),
    };
    let is_row = |part: &Traced, offset: i64| {
        let [rows, columns] = part.view.shape.as_slice() else { return false };
        let is_next = part.view.strides.get(1).is_some_and(|stride| stride.is(1));
        part.root == both.root && part.view.offset.is(offset) && rows.is(1) && columns.is(tokens) && is_next
    };
    draw.ensure(units && is_row(&high, 0) && is_row(&low, tokens), TAIL)?;
    let [bits] = draw.operands(&both, Scalar::Cast, Some(U32), TAIL)?;
    let Prim::RandomBits { out, seed } = draw.whole(&bits, TAIL)? else { return draw.decline(TAIL) };
    Ok((*out, seed.as_ref()))
}

fn seed_of(draw: &Matcher<'_>, seed: &Dim) -> Matched<Parameter> {
    if let Some(value) = seed.as_fixed() {
        draw.ensure(i32::try_from(value).is_ok(), SEED)?;
        return Ok(Parameter::Int(value));
    }
    let element = match host(draw, seed) {
        Some(HostOp::Item(value)) => draw.trace(*value).element(),
        Some(HostOp::Element { input, at }) => draw.graph.inputs.get(*input).and_then(|input| {
            let Input::Tensor(root) = input else { return None };
            let Traced { root, view } = Traced::all_of(draw.graph, *root);
            Some(Traced { root, view: View { shape: Vec::new(), strides: Vec::new(), offset: at.clone(), ..view } })
        }),
        _ => None,
    };
    let is_integer = |tensor: &Traced| matches!(tensor.view.dtype, I32 | I64 | U32);
    Ok(Parameter::Tensor(outside(draw, element.filter(is_integer), SEED)?))
}
