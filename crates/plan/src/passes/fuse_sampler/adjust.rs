//! Matches what changes the logits before the draw, from the changed logits back: a mask, biases, penalties for tokens of the text
//! so far, and the counts of these tokens.

use crate::dim::Dim;
use crate::expr::{Binary, Compare, Scalar};
use crate::graph::Def;
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Adjust, Prim};
use ptero_tensor::DType::{self, Bool, F32, I32, I64};
use ptero_tensor::integer;

const ROWS: &str = "not fused: logits are changed before the draw, but they are not one row";
const MASK: &str = "not fused: logits become minus infinity, but not by a bit for each token";
const BIASES: &str = "not fused: logits are masked, but no sum of biases is added before";
const TEXT: &str = "not fused: no presence and frequency penalties before biases";
const REPETITION: &str = "not fused: no repetition penalty before presence and frequency penalties";
const COUNTS: &str = "not fused: penalties are not for tokens that a history has, up to a position";

/// Tokens of a word of a mask.
const BITS: i64 = 32;

const MUL: Scalar = Scalar::Binary(Binary::Mul);
const SUB: Scalar = Scalar::Binary(Binary::Sub);

/// The tensors that change the logits, and the logits before that; `None` if nothing is masked.
pub(super) fn find(walk: &Matcher<'_>, changed: &Traced) -> Matched<Option<(Adjust<Traced>, Traced)>> {
    let mut walk = Matcher { looks_outside: true, ..*walk };
    let select = walk.peek(changed, Scalar::Select, Some(F32));
    let Some([is_allowed, x, _]) = select.filter(|[_, _, fill]| walk.is_float(fill, f32::NEG_INFINITY)) else {
        return Ok(None);
    };
    walk.source(changed, MASK)?;
    let [rows, tokens] = changed.view.shape.as_slice() else { return walk.decline(ROWS) };
    walk.ensure(rows.is(1), ROWS)?;
    let tokens = walk.some(tokens.as_fixed(), ROWS)?;
    let mask = mask(&mut walk, &is_allowed, tokens)?;
    let [x, sums] = walk.operands(&x, Scalar::Binary(Binary::Add), Some(F32), BIASES)?;
    let (bias_tokens, bias_values) = sum_by_token(&mut walk, &sums, tokens, BIASES)?;
    let (x, count, presence, frequency) = text_penalties(&mut walk, &x)?;
    let (x, seen, repetition) = repetition(&mut walk, &x)?;
    let (history, last, prompt_end) = counts(&mut walk, &seen, &count, tokens)?;
    let logits = walk.widened(&x).unwrap_or(x);
    let adjust = Adjust { history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask };
    Ok(Some((adjust, logits)))
}

/// The words whose bits allow tokens.
fn mask(walk: &mut Matcher<'_>, is_allowed: &Traced, tokens: i64) -> Matched<Traced> {
    let whole = Traced::all_of(walk.graph, is_allowed.root);
    let words = Dim::fixed((tokens + BITS - 1) / BITS);
    let is_all = whole.view.shape == [words.clone(), Dim::fixed(BITS)] && is_start(is_allowed, tokens);
    walk.ensure(is_all, MASK)?;
    let [bits, none] = walk.operands(&whole, Scalar::Compare(Compare::NotEqual), Some(I32), MASK)?;
    walk.ensure(walk.constant(&none) == Some(&[0; 4]), MASK)?;
    let [mask, each] = walk.operands(&bits, Scalar::Binary(Binary::BitAnd), Some(I32), MASK)?;
    let is_each = each.clone().without(0).is_some_and(|each| each.is_same(&Traced::all_of(walk.graph, each.root)));
    let powers: Vec<u8> = (0..BITS).flat_map(|bit| (1_u32 << bit).to_le_bytes()).collect();
    walk.ensure(is_each && bytes(walk, &each) == Some(&powers), MASK)?;
    let mask = walk.some(mask.without(1), MASK)?;
    walk.ensure(mask.view.shape == [words], MASK)?;
    Ok(mask)
}

/// Returns `true` for a row of the first elements of its root.
fn is_start(tensor: &Traced, count: i64) -> bool {
    let [row, column] = tensor.view.shape.as_slice() else { return false };
    let is_next = tensor.view.strides.get(1).is_some_and(|stride| stride.is(1));
    tensor.view.offset.is(0) && row.is(1) && column.is(count) && is_next
}

/// The bytes of a constant.
fn bytes<'a>(walk: &Matcher<'a>, tensor: &Traced) -> Option<&'a [u8]> {
    let Some(Def::Constant(number)) = walk.uses.def(tensor.root) else { return None };
    walk.graph.constants.get(number).map(|(_, bytes)| &**bytes)
}

/// Matches `[tokens]` zeros to which values are added by token: the tokens and the values, both `[N]`. A token outside the
/// vocabulary is replaced by the first, and its value by zero.
fn sum_by_token(walk: &mut Matcher<'_>, sums: &Traced, tokens: i64, why: &'static str) -> Matched<(Traced, Traced)> {
    let whole = Traced::all_of(walk.graph, sums.root);
    let Prim::Scatter { base, updates, axes, add: true, .. } = walk.source(sums, why)? else {
        return walk.decline(why);
    };
    let [axis] = axes.as_slice() else { return walk.decline(why) };
    let is_vector = whole.view.shape == [Dim::fixed(tokens)] && whole.view.dtype == F32 && sums.is_line(&whole);
    walk.ensure(is_vector && axis.coordinate.is_none() && is_zero(walk, &walk.trace(*base)), why)?;
    let by = walk.trace(walk.some(axis.index, why)?);
    let [is_known, by, first] = walk.operands(&by, Scalar::Select, Some(I32), why)?;
    let [also_known, values, nothing] = walk.operands(&walk.trace(*updates), Scalar::Select, Some(F32), why)?;
    let [is_after, is_before] = walk.operands(&is_known, Scalar::Binary(Binary::And), Some(Bool), why)?;
    let [own, start] = walk.operands(&is_after, Scalar::Compare(Compare::GreaterEqual), Some(I32), why)?;
    let [also_own, end] = walk.operands(&is_before, Scalar::Compare(Compare::Less), Some(I32), why)?;
    let is_int = |tensor: &Traced, number: i64| walk.constant(tensor).map(|bytes| integer(I32, bytes)) == Some(number);
    let is_checked = own.is_same(&by) && also_own.is_same(&by) && also_known.is_same(&is_known);
    let are_ends = is_int(&first, 0) && is_int(&start, 0) && is_int(&end, tokens) && walk.is_float(&nothing, 0.0);
    walk.ensure(is_checked && are_ends, why)?;
    walk.ensure(by.view.dtype == I32 && by.view.shape.len() == 1 && by.view.shape == values.view.shape, why)?;
    Ok((by, values))
}

/// Returns `true` for zeros that no tensor is read for.
fn is_zero(walk: &Matcher<'_>, tensor: &Traced) -> bool {
    walk.peek_nullary(tensor).is_some_and(|steps| matches!(steps, [step] if step.op == Scalar::Float(0.0)))
}

/// Matches `select(count > 0, x - count * frequency - presence, x)`: `x`, the count, presence and frequency.
fn text_penalties(walk: &mut Matcher<'_>, penalized: &Traced) -> Matched<(Traced, Traced, Traced, Traced)> {
    let [is_present, lowered, x] = walk.operands(penalized, Scalar::Select, Some(F32), TEXT)?;
    let count = above_zero(walk, &is_present, TEXT)?;
    let [lowered, presence] = walk.operands(&lowered, SUB, Some(F32), TEXT)?;
    let [before, amount] = walk.operands(&lowered, SUB, Some(F32), TEXT)?;
    let [factor, frequency] = walk.operands(&amount, MUL, Some(F32), TEXT)?;
    walk.ensure(before.is_same(&x) && factor.is_line(&count), TEXT)?;
    let (presence, frequency) = (one(walk, presence, F32, TEXT)?, one(walk, frequency, F32, TEXT)?);
    Ok((x, count, presence, frequency))
}

/// Matches `select(seen > 0, select(x < 0, x * repetition, x / repetition), x)`: `x`, what is seen, and the penalty.
fn repetition(walk: &mut Matcher<'_>, penalized: &Traced) -> Matched<(Traced, Traced, Traced)> {
    let [is_seen, repeated, x] = walk.operands(penalized, Scalar::Select, Some(F32), REPETITION)?;
    let seen = above_zero(walk, &is_seen, REPETITION)?;
    let [is_negative, product, quotient] = walk.operands(&repeated, Scalar::Select, Some(F32), REPETITION)?;
    let [low, zero] = walk.operands(&is_negative, Scalar::Compare(Compare::Less), Some(F32), REPETITION)?;
    let [times, factor] = walk.operands(&product, MUL, Some(F32), REPETITION)?;
    let [over, divisor] = walk.operands(&quotient, Scalar::Binary(Binary::Div), Some(F32), REPETITION)?;
    let is_same = [&low, &times, &over].into_iter().all(|own| own.is_same(&x)) && factor.is_same(&divisor);
    walk.ensure(is_same && walk.is_float(&zero, 0.0), REPETITION)?;
    let factor = one(walk, factor, F32, REPETITION)?;
    Ok((x, seen, factor))
}

/// Matches `x > 0`: `x`.
fn above_zero(walk: &mut Matcher<'_>, is_above: &Traced, why: &'static str) -> Matched<Traced> {
    let [x, zero] = walk.operands(is_above, Scalar::Compare(Compare::Greater), Some(F32), why)?;
    walk.ensure(walk.is_float(&zero, 0.0), why)?;
    Ok(x)
}

/// The one element that a tensor repeats.
fn one(walk: &Matcher<'_>, tensor: Traced, dtype: DType, why: &'static str) -> Matched<Traced> {
    walk.some(tensor.element().filter(|tensor| tensor.view.dtype == dtype), why)
}

/// Matches the counts of the tokens of a history, up to a position and from another one on: the history and the two positions.
fn counts(walk: &mut Matcher<'_>, seen: &Traced, count: &Traced, tokens: i64) -> Matched<(Traced, Traced, Traced)> {
    let (history, is_far) = sum_by_token(walk, seen, tokens, COUNTS)?;
    let (same, is_new) = sum_by_token(walk, count, tokens, COUNTS)?;
    let [is_far] = walk.operands(&is_far, Scalar::Cast, Some(Bool), COUNTS)?;
    let [is_new] = walk.operands(&is_new, Scalar::Cast, Some(Bool), COUNTS)?;
    let [also_far, is_after] = walk.operands(&is_new, Scalar::Binary(Binary::And), Some(Bool), COUNTS)?;
    let [at, last] = walk.operands(&is_far, Scalar::Compare(Compare::LessEqual), Some(I64), COUNTS)?;
    let [also_at, first] = walk.operands(&is_after, Scalar::Compare(Compare::GreaterEqual), Some(I64), COUNTS)?;
    let are_indices = [&at, &also_at].into_iter().all(|at| is_index(walk, at));
    walk.ensure(history.is_same(&same) && also_far.is_same(&is_far) && are_indices, COUNTS)?;
    Ok((history, one(walk, last, I64, COUNTS)?, one(walk, first, I64, COUNTS)?))
}

/// Returns `true` for the numbers from 0 on: `index * 1 + 0`.
fn is_index(walk: &Matcher<'_>, at: &Traced) -> bool {
    let int = |op: &Scalar, number: i64| matches!(op, Scalar::Int(value) if value.is(number));
    walk.peek_nullary(at).is_some_and(|steps| {
        let mut sum = steps.last();
        for (op, neutral) in [(Binary::Add, 0), (Binary::Mul, 1)] {
            let args = sum.filter(|step| step.op == Scalar::Binary(op)).map(|step| step.args);
            let step = |arg: usize| steps.get(usize::from(*args.as_ref()?.get(arg)?));
            sum = step(0).filter(|_| step(1).is_some_and(|step| int(&step.op, neutral)));
        }
        sum.is_some_and(|step| step.op == Scalar::Index(0)) && steps.iter().all(|step| step.dtype == I64)
    })
}
