//! Cases of several primitives, of which each reads what the one before it makes. In one of four cases another reads it, too; and results
//! may go to where an operand is.

use super::data::{FLOATS, any, between, moderate, tied};
use super::draft::Draft;
use super::views::{Size, dims, fixed};
use super::{gated_delta, quant, rows};
use ptero_plan::expr::{Binary, Unary};
use ptero_plan::function::{Function, Term};
use ptero_plan::graph::{Value, ViewOp};
use ptero_plan::prim::{Axis, Fold, Prim};
use ptero_tensor::DType;

/// The types that become longer, or shorter.
const SHORT: [DType; 2] = [DType::F16, DType::Bf16];

/// A product of a row that is normalized first; some are converted before that.
pub(super) fn norm_product(draft: &mut Draft) {
    quant::product(draft, true, |draft, dtype, shape| {
        let from = if draft.rng.one_in(3) { draft.rng.pick(&FLOATS) } else { dtype };
        let (x, cast) = match draft.rng.one_in(4) && from == DType::F32 {
            true => converted(draft, shape),
            false => (draft.operand(from, shape, &moderate(from)), None),
        };
        let out = draft.between(dtype, shape);
        let norm = rows::norm(draft, (x, out), &shape[shape.len() - 1..]);
        (out, cast.into_iter().chain([norm]).collect())
    });
}

/// Short floats as f32.
fn converted(draft: &mut Draft, shape: &[Size]) -> (Value, Option<Prim<Value>>) {
    let from = draft.rng.pick(&SHORT);
    let x = draft.operand(from, shape, &any(from));
    let out = draft.between(DType::F32, shape);
    (out, Some(function(out, &[x], &[from], |f, terms| f.cast(terms[0], DType::F32))))
}

fn function(
    out: Value,
    ins: &[Value],
    types: &[DType],
    function: impl FnOnce(&Function, &[Term]) -> Term,
) -> Prim<Value> {
    Prim::Map { out, ins: ins.to_vec(), expr: Function::of_list(types, function) }
}

/// A product of a row that a function makes from others.
pub(super) fn function_product(draft: &mut Draft) {
    quant::product(draft, true, |draft, dtype, shape| {
        let types: Vec<DType> = match draft.rng.below(3) {
            0 => vec![draft.rng.pick(&FLOATS)],
            1 => vec![dtype; 2],
            _ => (0..draft.rng.within(2, 7)).map(|_| draft.rng.pick(&FLOATS)).collect(),
        };
        let ins: Vec<Value> = types.iter().map(|from| draft.operand(*from, shape, &moderate(*from))).collect();
        let (out, gates) = (draft.between(dtype, shape), draft.rng.one_in(2));
        let prim = function(out, &ins, &types, |f, terms| {
            let first = f.cast(terms[0], dtype);
            let first = if gates { f.binary(Binary::Mul, first, f.unary(Unary::Sigmoid, first)) } else { first };
            terms[1..].iter().fold(first, |all, term| f.binary(Binary::Add, all, f.cast(*term, dtype)))
        });
        (out, vec![prim])
    });
}

pub(super) fn cast_norm(draft: &mut Draft) {
    let rank = draft.rank(1);
    let shape = draft.shape(rank, 3000);
    let to = draft.rng.pick(&FLOATS);
    let (x, cast) = converted(draft, &shape);
    let out = draft.target(to, &shape);
    let norm = rows::norm(draft, (x, out), &shape[rank - 1..]);
    cast.into_iter().chain([norm]).for_each(|prim| draft.test(prim));
}

pub(super) fn delta_cast(draft: &mut Draft) {
    let dtype = draft.rng.pick(&FLOATS);
    let from = if draft.rng.one_in(4) { dtype } else { DType::F32 };
    let mut x = Value(0);
    let (rule, shape) = gated_delta::rule(draft, dtype, |draft, shape| {
        x = draft.between(from, shape);
        x
    });
    let to = draft.rng.pick(&SHORT);
    let out = draft.target(to, &shape);
    draft.test(rule);
    draft.test(function(out, &[x], &[from], |f, terms| f.cast(terms[0], to)));
}

/// A filter for each channel, along a line, and a function of its results.
pub(super) fn filter_function(draft: &mut Draft) {
    let [taps, stride, dilation] =
        [draft.rng.pick(&[1, 3, 4, 4, 16, 17]), draft.rng.pick(&[1, 1, 1, 2]), draft.rng.pick(&[1, 1, 2])];
    let (padding, channels) = (draft.rng.within(0, taps - 1), draft.rng.pick(&[1, 5, 64]));
    let (batches, reach) = (draft.rng.pick(&[1, 1, 1, 2]), (taps - 1) * dilation);
    let places = reach + draft.rng.pick(&[1, 1, 2, 9]);
    let count = (places + 2 * padding - reach - 1) / stride + 1;
    let (dtype, to) = (draft.rng.pick(&FLOATS), draft.rng.pick(&FLOATS));
    let filters = if draft.rng.one_in(4) { draft.rng.pick(&FLOATS) } else { dtype };
    // A state holds what came before, and may be what the result replaces.
    let (shape, result) = (fixed(&[batches, places, channels]), fixed(&[batches, count, channels]));
    let (x, changed) = match to == dtype && shape[1].largest() == count && draft.rng.one_in(2) {
        true => draft.changed(dtype, &shape, &any(dtype)),
        false => (draft.operand(dtype, &shape, &any(dtype)), draft.target(to, &result)),
    };
    let w = draft.operand(filters, &fixed(&[channels, taps, 1]), &moderate(filters));
    let out = draft.between(dtype, &result);
    let [stride, padding, dilation] = [stride, padding, dilation].map(|number| vec![number]);
    draft.test(Prim::Conv { out, x, w, stride, padding, dilation, groups: channels, transposed: false });
    let gates = draft.rng.one_in(2);
    draft.test(function(changed, &[out], &[dtype], |f, terms| {
        let x = if gates { f.binary(Binary::Mul, terms[0], f.unary(Unary::Sigmoid, terms[0])) } else { terms[0] };
        f.cast(x, to)
    }));
}

/// The likeliest experts of each token, and what each weighs.
pub(super) fn choice_of_experts(draft: &mut Draft) {
    let (tokens, experts) = (draft.rng.pick(&[1, 1, 2, 5]), draft.rng.pick(&[1, 4, 8, 33, 64, 200]));
    let chosen = draft.rng.within(1, experts.min(9));
    let (all, some, one) = (fixed(&[tokens, experts]), fixed(&[tokens, chosen]), fixed(&[tokens, 1]));
    let dtype = draft.rng.pick(&FLOATS);
    let content = match draft.rng.below(6) {
        0 => tied(dtype),
        1 => any(dtype),
        2 => Box::new(rows::masked),
        _ => between(-4.0, 4.0),
    };
    let x = draft.operand(dtype, &all, &content);
    let out = draft.target(DType::F32, &some);
    let shown = draft.rng.one_in(2).then(|| draft.target(DType::U32, &some));
    let probabilities = draft.between(DType::F32, &all);
    draft.test(Prim::Softmax { out: probabilities, x, axis: 1 });
    let order = draft.between(DType::U32, &all);
    draft.test(Prim::Sort { out: order, x: probabilities, axis: 1, indices: true });
    // In few cases the least likely.
    let start = if draft.rng.one_in(6) { 0 } else { experts - chosen };
    let index = draft.view(order, dims(&some), ViewOp::Slice { axis: 1, start: start.into(), step: 1 });
    let kept = draft.between(DType::F32, &some);
    let rows = Axis { index: None, coordinate: Some(0) };
    let axes = vec![rows, Axis { index: Some(index), coordinate: None }];
    draft.test(Prim::Gather { out: kept, x: probabilities, axes });
    let sum = draft.between(DType::F32, &one);
    draft.test(Prim::Reduce { out: sum, x: kept, axes: vec![1], fold: Fold::Sum });
    let divisor = draft.view(sum, dims(&some), ViewOp::Broadcast);
    draft.test(function(out, &[kept, divisor], &[DType::F32; 2], |f, terms| f.binary(Binary::Div, terms[0], terms[1])));
    if let Some(shown) = shown {
        draft.test(function(shown, &[index], &[DType::U32], |_, terms| terms[0]));
    }
}

/// Products of the same row, which is normalized first.
pub(super) fn norm_products(draft: &mut Draft) {
    let dtype = draft.rng.pick(&FLOATS);
    let (rows, length) = (draft.rng.pick(&[1, 1, 1, 2]), 64 * draft.rng.pick(&[1, 2, 5]));
    let shape = fixed(&[1, rows, length]);
    let (x, out) = (draft.operand(dtype, &shape, &moderate(dtype)), draft.between(dtype, &shape));
    let norm = rows::norm(draft, (x, out), &shape[2..]);
    draft.test(norm);
    for _ in 0..draft.rng.within(1, 4) {
        let columns = draft.rng.pick(&[1, 2, 7, 32, 70]);
        quant::product_of(draft, (dtype, out), [rows, length, columns]);
    }
}

/// Some rows, each by its weight, added up; and a function of the sum.
pub(super) fn sum_of_experts(draft: &mut Draft) {
    let [tokens, chosen, width] =
        [draft.rng.pick(&[1, 1, 2, 5]), draft.rng.pick(&[1, 2, 8, 9]), draft.rng.pick(&[1, 33, 200])];
    let (all, one) = (fixed(&[1, tokens, chosen, width]), fixed(&[1, tokens, chosen, 1]));
    let dtype = draft.rng.pick(&FLOATS);
    let (x, shares) = (draft.operand(dtype, &all, &any(dtype)), draft.operand(DType::F32, &one, &any(DType::F32)));
    let shares = draft.view(shares, dims(&all), ViewOp::Broadcast);
    let parts = draft.between(DType::F32, &all);
    draft.test(function(parts, &[x, shares], &[dtype, DType::F32], |f, terms| {
        f.binary(Binary::Mul, f.cast(terms[0], DType::F32), terms[1])
    }));
    let sum = draft.between(DType::F32, &fixed(&[1, tokens, 1, width]));
    draft.test(Prim::Reduce { out: sum, x: parts, axes: vec![2], fold: Fold::Sum });
    let shape = fixed(&[1, tokens, width]);
    let sum = draft.view(sum, dims(&shape), ViewOp::Reshape);
    // The sum may be any operand, and the result may go to where another is.
    let (other, out) = match draft.rng.one_in(2) {
        true => draft.changed(dtype, &shape, &any(dtype)),
        false => (draft.operand(dtype, &shape, &any(dtype)), draft.target(dtype, &shape)),
    };
    let (ins, types) = match draft.rng.one_in(2) {
        true => ([sum, other], [DType::F32, dtype]),
        false => ([other, sum], [dtype, DType::F32]),
    };
    draft.test(function(out, &ins, &types, |f, terms| {
        let [a, b] = [terms[0], terms[1]].map(|term| f.cast(term, dtype));
        f.binary(Binary::Add, a, b)
    }));
}
