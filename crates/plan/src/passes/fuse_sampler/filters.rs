//! Matches what becomes minus infinity before a draw: top-k, top-p and min-p.

use super::pattern::{NEG, Parameter, SIZE, host, outside};
use crate::dim::Dim;
use crate::expr::{Binary, Compare, Scalar, Unary};
use crate::host::{HostBinary, HostOp};
use crate::passes::matcher::{Matched, Matcher, Traced};
use crate::prim::{Fold, Prim};
use ptero_tensor::DType::{F32, I32, I64};
use ptero_tensor::integer;

const FILTER: &str = "not fused: logits become minus infinity for another reason than top-k, top-p or min-p";
const TOP_P: &str = "not fused: what is kept is not the largest mass up to top-p";
const TOP_K: &str = "not fused: what is kept is not the k largest";
const MIN_P: &str = "not fused: what is kept is not as likely as min-p asks, beside the likeliest";

/// Matches `select(less(x, bound), -infinity, rest)`: `x`, `bound` and `rest`; `None` if it is no such filter.
fn masked(draw: &mut Matcher<'_>, kept: &Traced) -> Matched<Option<[Traced; 3]>> {
    let select = draw.peek(kept, Scalar::Select, Some(F32));
    let Some([mask, fill, rest]) = select else { return Ok(None) };
    draw.source(kept, FILTER)?;
    draw.ensure(draw.is_float(&fill, f32::NEG_INFINITY), FILTER)?;
    let [x, bound] = draw.operands(&mask, Scalar::Compare(Compare::Less), Some(F32), FILTER)?;
    Ok(Some([x, bound, rest]))
}

/// The operand of a sort, largest first.
fn descending(draw: &mut Matcher<'_>, sorted: &Traced, why: &'static str) -> Matched<Traced> {
    let [x] = draw.operands(sorted, NEG, Some(F32), why)?;
    let Prim::Sort { x, axis: 1, indices: false, .. } = draw.whole(&x, why)? else { return draw.decline(why) };
    let [x] = draw.operands(&draw.trace(*x), NEG, Some(F32), why)?;
    Ok(x)
}

/// Returns `true` if each row of a matrix repeats one element of the same row of another.
pub(super) fn is_spread(tensor: &Traced, rows: &Traced) -> bool {
    let is_apart = |(row, own): ((&Dim, &Dim), (&Dim, &Dim))| row.0 == own.0 && (row.0.is(1) || row.1 == own.1);
    let rows = rows.axes().next();
    tensor.view.shape.len() == 2
        && tensor.clone().without(1).is_some_and(|tensor| tensor.axes().next().zip(rows).is_some_and(is_apart))
}

/// The logits that top-p is applied to, and the mass; without that filter, the same logits and a mass of 1.
pub(super) fn top_p(draw: &mut Matcher<'_>, kept: Traced) -> Matched<(Traced, Parameter)> {
    let before = *draw;
    let Some([mass, least, scaled]) = masked(draw, &kept)? else { return Ok((kept, Parameter::Float(1.0))) };
    let Ok(Prim::Reduce { x, axes, fold: Fold::Min, .. }) = draw.source(&least, TOP_P) else {
        *draw = before;
        return Ok((kept, Parameter::Float(1.0)));
    };
    let is_least = least.view.offset.is(0) && is_spread(&least, &Traced::all_of(draw.graph, least.root));
    draw.ensure(*axes == [1] && is_least, TOP_P)?;
    let [is_after, fill, sorted] = draw.operands(&draw.trace(*x), Scalar::Select, Some(F32), TOP_P)?;
    draw.ensure(draw.is_float(&fill, f32::INFINITY), TOP_P)?;
    let [before, most] = draw.operands(&is_after, Scalar::Compare(Compare::Greater), Some(F32), TOP_P)?;
    let [sums, own] = draw.operands(&before, Scalar::Binary(Binary::Sub), Some(F32), TOP_P)?;
    let Prim::Cumsum { x: summed, axis: 1, reverse: false, inclusive: true, .. } = draw.whole(&sums, TOP_P)? else {
        return draw.decline(TOP_P);
    };
    let unsorted = descending(draw, &sorted, TOP_P)?;
    let is_same = own.is_same(&sorted) && draw.trace(*summed).is_same(&sorted) && unsorted.is_same(&mass);
    draw.ensure(is_same, TOP_P)?;
    let Prim::Softmax { x, axis: 1, .. } = draw.whole(&mass, TOP_P)? else { return draw.decline(TOP_P) };
    draw.ensure(draw.trace(*x).is_same(&scaled), TOP_P)?;
    Ok((scaled, Parameter::Tensor(outside(draw, most.element(), TOP_P)?)))
}

/// The logits that top-k is applied to, the number, and the index of the k-th; without that filter, the same logits.
pub(super) fn top_k(draw: &mut Matcher<'_>, kept: Traced) -> Matched<(Traced, Parameter, Option<Dim>)> {
    let Some([x, bound, scaled]) = masked(draw, &kept)? else { return Ok((kept, Parameter::Int(i64::MAX), None)) };
    let sorted = Traced::all_of(draw.graph, bound.root);
    draw.ensure(draw.peek::<1>(&sorted, NEG, Some(F32)).is_some(), FILTER)?;
    let unsorted = descending(draw, &sorted, TOP_K)?;
    let is_same = x.is_same(&scaled) && unsorted.is_same(&scaled) && is_spread(&bound, &sorted);
    draw.ensure(is_same, TOP_K)?;
    let tokens = draw.some(scaled.view.shape.get(1).and_then(Dim::as_fixed), SIZE)?;
    match bound.view.offset.as_fixed() {
        Some(index) if (0..tokens).contains(&index) => Ok((scaled, Parameter::Int(index + 1), None)),
        Some(_) => draw.decline(TOP_K),
        None => {
            let (k, last) = count(draw, &bound.view.offset, tokens)?;
            Ok((scaled, Parameter::Tensor(k), Some(last)))
        }
    }
}

/// Matches the index `(min(k, tokens) - 1) mod tokens`: `k`, and the index before the modulus.
fn count(draw: &mut Matcher<'_>, index: &Dim, tokens: i64) -> Matched<(Traced, Dim)> {
    let last = match host(draw, index) {
        Some(HostOp::Binary(HostBinary::Mod, last, size)) if size.is(tokens) => last,
        _ => return draw.decline(TOP_K),
    };
    let Some(HostOp::Item(least)) = host(draw, &(last + &Dim::fixed(1))) else { return draw.decline(TOP_K) };
    let [a, b] = draw.operands(&draw.trace(*least), Scalar::Binary(Binary::Min), None, TOP_K)?;
    let is_limit =
        |tensor: &Traced| draw.constant(tensor).map(|bytes| integer(tensor.view.dtype, bytes)) == Some(tokens);
    let (k, limit) = if is_limit(&b) { (a, b) } else { (b, a) };
    let is_k = is_limit(&limit) && matches!(k.view.dtype, I32 | I64);
    Ok((outside(draw, k.element().filter(|_| is_k), TOP_K)?, last.clone()))
}

/// The logits that min-p is applied to, and the least ratio; without that filter, the same logits and a ratio of 0.
pub(super) fn min_p(draw: &mut Matcher<'_>, kept: Traced) -> Matched<(Traced, Parameter)> {
    let before = *draw;
    let Some([ratio, bound, scaled]) = masked(draw, &kept)? else { return Ok((kept, Parameter::Float(0.0))) };
    let Some([difference]) = draw.peek(&ratio, Scalar::Unary(Unary::Exp), Some(F32)) else {
        *draw = before;
        return Ok((kept, Parameter::Float(0.0)));
    };
    let [own, largest] = draw.operands(&difference, Scalar::Binary(Binary::Sub), Some(F32), MIN_P)?;
    let Prim::Reduce { x, axes, fold: Fold::Max, .. } = draw.source(&largest, MIN_P)? else {
        return draw.decline(MIN_P);
    };
    let is_largest = largest.view.offset.is(0) && is_spread(&largest, &Traced::all_of(draw.graph, largest.root));
    let is_same = own.is_same(&scaled) && draw.trace(*x).is_same(&scaled);
    draw.ensure(*axes == [1] && is_largest && is_same, MIN_P)?;
    let bound = draw.some(bound.element(), MIN_P)?;
    let [least, one] = draw.operands(&bound, Scalar::Binary(Binary::Min), Some(F32), MIN_P)?;
    draw.ensure(draw.is_float(&one, 1.0), MIN_P)?;
    Ok((scaled, Parameter::Tensor(outside(draw, least.element(), MIN_P)?)))
}
