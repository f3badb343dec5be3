//! Cases of attention.

use super::data::{Content, Datum, FLOATS, each, is_float, moderate, special};
use super::draft::Draft;
use super::probe::{Dense, Seen};
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::Prim;
use ptero_tensor::DType;

pub(super) fn case(draft: &mut Draft) {
    let batches = draft.size(&[1, 1, 2]);
    let (groups, per_group) = (draft.rng.within(1, 3), draft.rng.pick(&[1, 1, 2, 4]));
    let heads = groups * per_group;
    let [depth, width] = [0; 2].map(|_| draft.rng.pick(&[1, 3, 8, 16, 20, 40, 64, 65, 128]));
    let queries = draft.size_or_zero(&[1, 1, 1, 2, 5, 17]);
    let room = 120_000 / (batches.largest() * heads * queries.largest().max(1) * (depth + width));
    let keys: Vec<i64> =
        [1, 2, 7, 32, 33, 64, 129, 300, 600].into_iter().filter(|&keys| keys <= room.max(17)).collect();
    // In most cases there is a key for each query.
    let enough: Vec<i64> = keys.iter().copied().filter(|&keys| keys >= queries.largest()).collect();
    let keys = if enough.is_empty() || draft.rng.one_in(8) { keys } else { enough };
    let keys = draft.size_or_zero(&keys);
    let shape = |heads: i64, rows: &Size, columns: &Size| -> Vec<Size> {
        vec![batches.clone(), Size::fixed(heads), rows.clone(), columns.clone()]
    };
    let (depth, width) = (Size::fixed(depth), Size::fixed(width));
    let dtype = draft.rng.pick(&FLOATS);
    let mut operand = |shape: &[Size]| {
        let dtype = if draft.rng.one_in(8) { draft.rng.pick(&FLOATS) } else { dtype };
        draft.operand(dtype, shape, &mostly_moderate(dtype))
    };
    let q = operand(&shape(heads, &queries, &depth));
    let k = operand(&shape(groups, &keys, &depth));
    let v = operand(&shape(groups, &keys, &width));
    let mask = mask(draft, dtype, &shape(heads, &queries, &keys));
    let causal = draft.rng.one_in(2);
    let window = (causal && draft.rng.one_in(3)).then(|| draft.rng.pick(&[1, 2, 5, 40, 100, 400]));
    let scale = draft.rng.pick(&[1.0, 0.125, 0.3]);
    let first = draft.size(&[0, 0, 1, 5, 63, 64, 200, 1000]).dim;
    let out = draft.target(dtype, &shape(heads, &queries, &width));
    draft.test(Prim::Attention { out, q, k, v, mask, first, causal, window, scale });
}

/// In one of six tensors a few elements are huge, tiny or not finite: they must have no effect on queries that do not see them.
fn mostly_moderate(dtype: DType) -> Content {
    let moderate = moderate(dtype);
    Box::new(move |rng, call, count| {
        let mut data = moderate(rng, call, count);
        if count > 0 && rng.one_in(6) {
            for _ in 0..rng.within(1, 3) {
                let at = rng.below(count);
                data[at] = special(rng);
            }
        }
        data
    })
}

fn mask(draft: &mut Draft, dtype: DType, shape: &[Size]) -> Option<Value> {
    let dtype = match draft.rng.below(4) {
        0 | 1 => return None,
        2 => DType::Bool,
        _ => dtype,
    };
    let content = each(move |rng| match rng.below(4) {
        0 if is_float(dtype) => Datum::Float(f32::NEG_INFINITY),
        1 if is_float(dtype) => Datum::Float(rng.float(-3.0, 3.0)),
        0 => Datum::Int(0),
        _ => Datum::Int((!is_float(dtype)).into()),
    });
    Some(draft.operand(dtype, shape, &content))
}

/// The mix of the magnitudes of the values, times what the scores are sums of: an error of a score is a relative one of its
/// weight. A weight that is flushed to zero takes its value away. Without bound if a key or a value is not a number: devices also
/// multiply those by the weight of zero that keys have that are not attended to.
pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let (Prim::Attention { causal, window, scale, .. }, [q, k, v, mask @ ..]) = (prim, seen.operands.as_slice()) else {
        return Vec::new();
    };
    let (&[_, heads, queries, depth], &[_, groups, keys, width]) =
        (q.shape.as_array().expect("q has four axes"), v.shape.as_array().expect("v has four axes"));
    let is_bool = matches!(prim, Prim::Attention { mask: Some(mask), .. } if seen.dtype(*mask) == DType::Bool);
    let mut slack = Vec::new();
    for row in 0..q.shape.iter().take(3).product() {
        let (head, query) = (row / queries, row % queries);
        let group = head / heads * groups + head % heads / (heads / groups);
        let own_key = keys as i64 - queries as i64 + query as i64;
        let is_seen = |key: usize| {
            let far = own_key - key as i64;
            (!causal || far >= 0) && window.is_none_or(|window| far < window)
        };
        let score = |key: usize| {
            let bias = mask.first().map_or(0.0, |mask| mask.data[row * keys + key]);
            let bias = match is_bool {
                true if bias == 0.0 => return None,
                true => 0.0,
                false => bias,
            };
            let places = (0..depth).map(|at| (row * depth + at, (group * keys + key) * depth + at));
            let (sum, size) = dot(q, k, places);
            let scale = f64::from(*scale);
            Some((key, sum * scale + bias, size * scale + if bias.is_finite() { bias.abs() } else { 0.0 }))
        };
        let scores: Vec<_> = (0..keys).filter(|&key| is_seen(key)).filter_map(score).collect();
        let is_bounded = |dense: &Dense, width: usize| {
            let of_group = dense.data.iter().skip(group * keys * width).take(keys * width);
            of_group.into_iter().all(|x| x.is_finite())
        };
        let all = if is_bounded(k, depth) && is_bounded(v, width) { 0.0 } else { f64::INFINITY };
        slack.extend(mixed(&scores, v, group * keys * width, width).into_iter().map(|slack| slack + all));
    }
    vec![slack]
}

/// The sum of products, and that of their magnitudes.
fn dot(a: &Dense, b: &Dense, places: impl Iterator<Item = (usize, usize)>) -> (f64, f64) {
    places.fold((0.0, 0.0), |(sum, size), (left, right)| {
        let product = a.data[left] * b.data[right];
        (sum + product, size + product.abs())
    })
}

/// The smallest normal number over the tolerance, which slacks are multiplied by.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64 / 1e-4;

/// The magnitudes of values from `start`, weighted by the softmax of scores (key, score, magnitude).
fn mixed(scores: &[(usize, f64, f64)], v: &Dense, start: usize, width: usize) -> Vec<f64> {
    let largest = scores.iter().fold(f64::NEG_INFINITY, |largest, (_, score, _)| largest.max(*score));
    let size = scores.iter().fold(0.0, |largest: f64, (_, _, size)| largest.max(*size));
    let total: f64 = scores.iter().map(|(_, score, _)| (score - largest).exp()).sum();
    let mix = |column: usize| {
        let weighted = |(key, score, _): &(usize, f64, f64)| {
            ((score - largest).exp() / total + FLUSHED) * v.size(start + key * width + column)
        };
        scores.iter().map(weighted).sum::<f64>() * (1.0 + size)
    };
    (0..width).map(mix).collect()
}
