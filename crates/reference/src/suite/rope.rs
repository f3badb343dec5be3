//! Cases of rotary embeddings.

use super::data::{Datum, FLOATS, each, moderate};
use super::draft::Draft;
use super::probe::Seen;
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Angles, Position, Prim};
use ptero_tensor::DType;

pub(super) fn case(draft: &mut Draft) {
    let rank = draft.rank(2);
    let mut shape: Vec<Size> = (0..rank).map(|_| draft.size(&[1, 2, 3])).collect();
    shape[rank - 2] = draft.size_or_zero(&[1, 1, 2, 7, 40]);
    let width = draft.rng.pick(&[2, 3, 8, 9, 16, 20, 64, 65]);
    shape[rank - 1] = Size::fixed(width);
    let dims = if draft.rng.one_in(2) { width / 2 * 2 } else { draft.rng.within(1, width / 2) * 2 };
    let angles = if draft.rng.one_in(2) {
        Angles::Base(draft.rng.pick(&[10_000.0, 500_000.0, 100.0]))
    } else {
        let period = each(|rng| Datum::Float(rng.float(0.0, 8.0).exp()));
        Angles::Periods(draft.filled(DType::F32, &[Size::fixed(dims / 2)], &period))
    };
    let position = position(draft, &shape);
    let dtype = draft.rng.pick(&FLOATS);
    let (x, out) = draft.operand_and_target((dtype, dtype), &shape, &moderate(dtype));
    let (interleaved, scale) = (draft.rng.one_in(2), draft.rng.pick(&[1.0, 0.25, 1.5]));
    draft.test(Prim::Rope { out, x, dims: dims as usize, interleaved, scale, position, angles });
}

fn position(draft: &mut Draft, shape: &[Size]) -> Position<Value> {
    let dtype = draft.rng.pick(&[DType::I32, DType::I64, DType::U32]);
    let positions = each(|rng| Datum::Int(if rng.one_in(2) { rng.within(0, 9) } else { rng.within(0, 4000) }));
    match draft.rng.below(4) {
        0 if shape.len() > 2 => Position::Tensor(draft.operand(dtype, &shape[..1], &positions)),
        1 => {
            let one = if draft.rng.one_in(2) { vec![Size::fixed(1)] } else { Vec::new() };
            Position::Tensor(draft.operand(dtype, &one, &positions))
        }
        _ => Position::Host(draft.size(&[0, 1, 5, 100, 4000]).dim),
    }
}

/// The magnitudes of the pair, and of each hundredth part of the angle once more: it is a product in f32, of a power that
/// devices compute differently. What is not rotated is copied.
pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let Prim::Rope { dims, interleaved, scale, position, angles, .. } = prim else { return Vec::new() };
    let (x, mut others) = (&seen.operands[0], seen.operands.iter().skip(1));
    let starts = match position {
        Position::Host(dim) => vec![dim.eval(seen.values) as f64],
        Position::Tensor(_) => others.next().expect("the position is an operand").data.clone(),
    };
    let rate = |pair: usize| match angles {
        Angles::Base(base) => f64::from(*base).powf(-2.0 * pair as f64 / *dims as f64),
        Angles::Periods(_) => 1.0 / seen.operands.last().expect("the periods are an operand").data[pair],
    };
    let &[rows, width] = x.shape.last_chunk().expect("x has rows");
    let per_batch = if x.shape.len() > 2 { x.shape[1..].iter().product() } else { x.data.len() };
    let half = dims / 2;
    let element = |place: usize| {
        let at = place % width;
        if at >= *dims {
            return 0.0;
        }
        let (pair, other) = match interleaved {
            true => (at / 2, at ^ 1),
            false => (at % half, (at + half) % dims),
        };
        let start = if starts.len() == 1 { starts[0] } else { starts[place / per_batch] };
        let angle = (start + (place / width % rows) as f64) * f64::from(*scale) * rate(pair);
        (x.size(place) + x.size(place - at + other)) * (1.0 + angle.abs() / 100.0)
    };
    vec![(0..x.data.len()).map(element).collect()]
}
