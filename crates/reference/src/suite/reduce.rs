//! Cases along axes: reductions, sorting, running sums.

use super::data::{ALL, Datum, FLOATS, INTEGERS, any, each, is_float, moderate, tied};
use super::draft::Draft;
use super::probe::{Dense, Seen};
use super::rng::Rng;
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Fold, Prim};
use ptero_tensor::DType;

pub(super) fn case(draft: &mut Draft) {
    let rank = draft.rank(0);
    let mut shape = draft.shape(rank, 3000);
    let axes: Vec<usize> = (0..rank).filter(|_| draft.rng.one_in(2)).collect();
    let fold = fold(&mut draft.rng);
    let combined = |shape: &[Size], call: usize| axes.iter().map(|&axis| shape[axis].at[call]).product::<i64>();
    let least = match fold {
        Fold::Max | Fold::Min => 1,
        // Fewer elements than `ddof` are not specified; as many are, if it is one.
        Fold::Var { ddof: 2 } => 3,
        Fold::Var { .. } => 1,
        Fold::Sum | Fold::Prod | Fold::Any | Fold::All | Fold::Mean | Fold::LogSumExp => 0,
    };
    if [0, 1].into_iter().any(|call| combined(&shape, call) < least) {
        for &axis in &axes {
            shape[axis] = Size::fixed(3);
        }
    }
    let fold = if axes.is_empty() && fold == (Fold::Var { ddof: 2 }) { Fold::Sum } else { fold };
    let (from, to) = types(&mut draft.rng, fold);
    let content = match fold {
        Fold::Prod => each(move |rng| near_one(rng, from)),
        // Huge integers are not exact as floats.
        Fold::Var { .. } | Fold::LogSumExp | Fold::Mean if !is_float(from) => moderate(from),
        Fold::Sum | Fold::Max | Fold::Min | Fold::Any | Fold::All => any(from),
        Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => any(from),
    };
    let x = draft.operand(from, &shape, &content);
    for &axis in &axes {
        shape[axis] = Size::fixed(1);
    }
    let out = draft.target(to, &shape);
    draft.test(Prim::Reduce { out, x, axes, fold });
}

fn fold(rng: &mut Rng) -> Fold {
    let var = Fold::Var { ddof: rng.within(0, 2) as i32 };
    let folds = [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min, Fold::Any, Fold::All, Fold::Mean, var, Fold::LogSumExp];
    rng.pick(&folds)
}

/// The types of operand and result.
fn types(rng: &mut Rng, fold: Fold) -> (DType, DType) {
    let from = if rng.one_in(3) { rng.pick(&ALL) } else { rng.pick(&FLOATS) };
    let float = if is_float(from) && !rng.one_in(8) { from } else { rng.pick(&FLOATS) };
    let to = match fold {
        Fold::Sum | Fold::Prod if is_float(from) => float,
        Fold::Sum | Fold::Prod => rng.pick(&INTEGERS),
        Fold::Max | Fold::Min => from,
        Fold::Any | Fold::All => DType::Bool,
        Fold::Mean | Fold::Var { .. } | Fold::LogSumExp => float,
    };
    (from, to)
}

/// Factors whose product stays in range.
fn near_one(rng: &mut Rng, dtype: DType) -> Datum {
    match rng.below(200) {
        0 => Datum::Int(0),
        1..4 if is_float(dtype) => Datum::Float(rng.pick(&[0.5, 2.0, -0.5, -2.0])),
        _ if is_float(dtype) => Datum::Float(rng.float(0.95, 1.05) * rng.pick(&[1.0, -1.0])),
        1..30 => Datum::Int(rng.within(-3, 3)),
        _ => Datum::Int(1),
    }
}

pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let (Prim::Reduce { axes, fold, .. }, [x]) = (prim, seen.operands.as_slice()) else { return Vec::new() };
    vec![x.groups(axes).iter().map(|group| group_slack(*fold, x, group)).collect()]
}

/// The reference adds one element after the other, and equal ones (a stride of zero) round alike: of three thousand, sums were
/// seen to be off by 4e-5, where the tolerance is 1e-5.
pub(super) fn growth(count: usize) -> f64 {
    (count as f64 / 500.0).max(1.0)
}

fn group_slack(fold: Fold, x: &Dense, group: &[usize]) -> f64 {
    let sizes = || group.iter().map(|&place| x.size(place));
    let total: f64 = sizes().sum();
    match fold {
        Fold::Sum => total * growth(group.len()),
        Fold::Prod => product_slack(sizes()) * growth(group.len()),
        Fold::Max | Fold::Min | Fold::Any | Fold::All => 0.0,
        Fold::Mean if total > f64::from(f32::MAX) => f64::INFINITY,
        Fold::Mean => total / group.len().max(1) as f64 * growth(group.len()),
        Fold::Var { ddof } => variance_slack(x, group, ddof),
        // An error of the largest element, and a relative one of the sum under the logarithm.
        Fold::LogSumExp => 1.0 + sizes().fold(0.0, f64::max),
    }
}

/// The product itself; without bound where the factors above one, or those below, leave the range by themselves.
fn product_slack(sizes: impl Iterator<Item = f64>) -> f64 {
    let (mut above, mut below, mut is_zero) = (1.0, 1.0, false);
    for size in sizes {
        if size == 0.0 {
            is_zero = true;
        } else if size > 1.0 {
            above *= size;
        } else {
            below *= size;
        }
    }
    match above > f64::from(f32::MAX) || below < f64::from(f32::MIN_POSITIVE) {
        true => f64::INFINITY,
        false if is_zero => 0.0,
        false => above * below,
    }
}

/// Distances from the mean carry the rounding of what they are a difference of. The mean is itself rounded, which shows
/// squared.
fn variance_slack(x: &Dense, group: &[usize], ddof: i32) -> f64 {
    let count = group.len() as f64;
    let divisor = (count - f64::from(ddof)).max(1.0);
    let sizes = || group.iter().map(|&place| x.size(place));
    if sizes().map(|size| size * size).sum::<f64>() * 4.0 > f64::from(f32::MAX) {
        return f64::INFINITY;
    }
    let finite = |place: usize| Some(x.data[place]).filter(|x| x.is_finite()).unwrap_or(0.0);
    let mean = group.iter().map(|&place| finite(place)).sum::<f64>() / count.max(1.0);
    let mean_size = sizes().sum::<f64>() / count.max(1.0);
    let spread: f64 = group.iter().map(|&place| (finite(place) - mean).abs() * (x.size(place) + mean.abs())).sum();
    let growth = growth(group.len());
    spread / divisor * growth + 1e-5 * (mean_size * growth).powi(2) * count / divisor
}

pub(super) fn arg_case(draft: &mut Draft) {
    let (mut shape, axis) = draft.shape_and_axis(1, 3000);
    if shape[axis].at.contains(&0) {
        shape[axis] = Size::fixed(1);
    }
    let (x, _) = sortable(draft, &shape);
    shape[axis] = Size::fixed(1);
    let out = draft.target(DType::U32, &shape);
    let largest = draft.rng.one_in(2);
    draft.test(Prim::ArgReduce { out, x, axis, largest });
}

/// An operand of any type, with or without many ties, and its type.
fn sortable(draft: &mut Draft, shape: &[Size]) -> (Value, DType) {
    let dtype = if draft.rng.one_in(2) { draft.rng.pick(&ALL) } else { draft.rng.pick(&FLOATS) };
    let content = if draft.rng.one_in(2) { tied(dtype) } else { any(dtype) };
    (draft.operand(dtype, shape, &content), dtype)
}

pub(super) fn sort_case(draft: &mut Draft) {
    let (shape, axis) = draft.shape_and_axis(1, 3000);
    let (x, dtype) = sortable(draft, &shape);
    let indices = draft.rng.one_in(2);
    let out = draft.target(if indices { DType::U32 } else { dtype }, &shape);
    draft.test(Prim::Sort { out, x, axis, indices });
}

pub(super) fn cumsum_case(draft: &mut Draft) {
    let (shape, axis) = draft.shape_and_axis(1, 3000);
    let (from, to) = types(&mut draft.rng, Fold::Sum);
    let (x, out) = draft.operand_and_target((from, to), &shape, &any(from));
    let (reverse, inclusive) = (draft.rng.one_in(2), draft.rng.one_in(2));
    draft.test(Prim::Cumsum { out, x, axis, reverse, inclusive });
}

/// The sum of the magnitudes so far.
pub(super) fn cumsum_slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let (Prim::Cumsum { axis, reverse, .. }, [x]) = (prim, seen.operands.as_slice()) else { return Vec::new() };
    let mut slack = vec![0.0; x.data.len()];
    for mut line in x.groups(&[*axis]) {
        if *reverse {
            line.reverse();
        }
        let mut sum = 0.0;
        for (before, place) in line.into_iter().enumerate() {
            sum += x.size(place);
            slack[place] = sum * growth(before);
        }
    }
    vec![slack]
}
