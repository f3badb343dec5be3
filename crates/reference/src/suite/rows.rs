//! Cases of softmax and norms.

use super::data::{ALL, Datum, FLOATS, any, between, is_float, moderate};
use super::draft::Draft;
use super::probe::Seen;
use super::reduce::growth;
use super::rng::Rng;
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Normalize, Prim};
use ptero_tensor::DType;

/// The types of operand and result.
fn types(rng: &mut Rng) -> (DType, DType) {
    let from = if rng.one_in(6) { rng.pick(&ALL) } else { rng.pick(&FLOATS) };
    (from, if is_float(from) && !rng.one_in(8) { from } else { rng.pick(&FLOATS) })
}

fn operand_and_target(draft: &mut Draft, (from, to): (DType, DType), shape: &[Size]) -> (Value, Value) {
    let content = match draft.rng.below(8) {
        0 if is_float(from) => Box::new(masked),
        1 => between(-40.0, 40.0),
        2..4 if is_float(from) => any(from),
        _ => moderate(from),
    };
    draft.operand_and_target((from, to), shape, &content)
}

/// Mostly minus infinity, as after a mask; sometimes nothing else.
pub(super) fn masked(rng: &mut Rng, _: usize, count: usize) -> Vec<Datum> {
    let is_all = rng.one_in(3);
    let element = |rng: &mut Rng| if is_all || rng.below(3) > 0 { f32::NEG_INFINITY } else { rng.float(-2.0, 2.0) };
    (0..count).map(|_| Datum::Float(element(rng))).collect()
}

pub(super) fn softmax_case(draft: &mut Draft) {
    let (shape, axis) = draft.shape_and_axis(1, 3000);
    let types = types(&mut draft.rng);
    let (x, out) = operand_and_target(draft, types, &shape);
    draft.test(Prim::Softmax { out, x, axis });
}

/// The result itself: all that is summed is positive, so nothing cancels.
pub(super) fn softmax_slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let (Prim::Softmax { axis, .. }, [x]) = (prim, seen.operands.as_slice()) else { return Vec::new() };
    let mut slack = vec![0.0; x.data.len()];
    for line in x.groups(&[*axis]) {
        let largest = line.iter().map(|&place| x.data[place]).fold(f64::NEG_INFINITY, f64::max);
        let power = |place: usize| (x.data[place] - largest).exp();
        let sum: f64 = line.iter().map(|&place| power(place)).sum();
        let growth = growth(line.len());
        for place in line {
            slack[place] = power(place) / sum * growth;
        }
    }
    vec![slack]
}

pub(super) fn norm_case(draft: &mut Draft) {
    let rank = draft.rank(1);
    let shape = draft.shape(rank, 3000);
    let types = types(&mut draft.rng);
    let (x, out) = operand_and_target(draft, types, &shape);
    let prim = norm(draft, (x, out), &shape[rank - 1..]);
    draft.test(prim);
}

/// A norm with any parameters.
pub(super) fn norm(draft: &mut Draft, (x, out): (Value, Value), width: &[Size]) -> Prim<Value> {
    let to = draft.graph.ty(out).dtype;
    let factor = |draft: &mut Draft| {
        let dtype = draft.rng.pick(&[to, DType::F32]);
        (!draft.rng.one_in(3)).then(|| draft.operand(dtype, width, &moderate(dtype)))
    };
    let (weight, bias) = (factor(draft), factor(draft));
    let kind = draft.rng.pick(&[Normalize::Rms, Normalize::Layer]);
    let bias = if kind == Normalize::Rms && draft.rng.below(4) > 0 { None } else { bias };
    let eps = draft.rng.pick(&[1e-6, 1e-5, 1e-3]);
    Prim::Norm { out, x, weight, bias, eps, kind }
}

/// The magnitudes of what is subtracted, normalised as the result is, and that of the bias.
pub(super) fn norm_slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let Prim::Norm { weight, bias, eps, kind, .. } = prim else { return Vec::new() };
    let (x, mut factors) = (&seen.operands[0], seen.operands.iter().skip(1));
    let weight = weight.as_ref().and_then(|_| factors.next());
    let bias = bias.as_ref().and_then(|_| factors.next());
    let mut slack = vec![0.0; x.data.len()];
    for row in x.groups(&[x.shape.len() - 1]) {
        let count = row.len() as f64;
        let squares: f64 = row.iter().map(|&place| x.size(place).powi(2)).sum();
        let is_too_large = squares * 4.0 > f64::from(f32::MAX);
        let mean = row.iter().map(|&place| x.data[place]).sum::<f64>() / count;
        let mean_size = row.iter().map(|&place| x.size(place)).sum::<f64>() / count;
        let (center, spread) = match kind {
            Normalize::Rms => (0.0, squares / count),
            Normalize::Layer => {
                (mean_size, row.iter().map(|&place| (x.data[place] - mean).powi(2)).sum::<f64>() / count)
            }
        };
        let root = (spread + f64::from(*eps)).sqrt();
        for (at, place) in row.into_iter().enumerate() {
            let factor = weight.map_or(1.0, |weight| weight.size(at));
            let scaled = (x.size(place) + center) / root * factor * growth(count as usize)
                + bias.map_or(0.0, |bias| bias.size(at));
            slack[place] = if is_too_large { f64::INFINITY } else { scaled };
        }
    }
    vec![slack]
}
