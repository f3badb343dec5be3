//! Cases of gather and scatter.

use super::data::{ALL, Content, Datum, INTEGERS, any};
use super::draft::Draft;
use super::rng::Rng;
use super::views::{CALLS, Size};
use ptero_plan::graph::Value;
use ptero_plan::prim::{Axis, Prim};
use ptero_tensor::DType;

/// The axes of a gather or scatter: how coordinates in one tensor follow from those in another, which has the indices.
struct Indexing {
    /// The shape that indices have.
    shape: Vec<Size>,
    /// The shape of the tensor that they point into.
    sizes: Vec<Size>,
    axes: Vec<Axis<Value>>,
}

impl Indexing {
    /// In one of six cases the first call has an index outside an axis, if there is an axis for it.
    fn new(draft: &mut Draft) -> Self {
        draft.may_fail = draft.rng.one_in(6);
        let rank = draft.rank(0).min(4);
        let shape = draft.shape(rank, 1500);
        let mut coordinates: Vec<Option<usize>> = (0..rank).map(Some).chain([None, None]).collect();
        draft.rng.shuffle(&mut coordinates);
        let mut room = 6000;
        let mut indexing = Self { shape, sizes: Vec::new(), axes: Vec::new() };
        let count = draft.rng.within(0, 4) as usize;
        for coordinate in coordinates.into_iter().take(count) {
            let has_index = draft.rng.below(4) > 0;
            let size = match coordinate {
                Some(axis) => indexing.shape[axis].plus(draft.rng.pick(&[0, 0, 1, 3])),
                None => draft.size(&[1, 2, 7, 50]),
            };
            // A coordinate is needed where the axis is as long as that of the indices.
            if size.largest() > room {
                continue;
            }
            room /= size.largest().max(1);
            let span = coordinate.map_or(Size::fixed(1), |axis| indexing.shape[axis].clone());
            let is_wrong = draft.may_fail && coordinate.is_none();
            let index = has_index.then(|| indexing.index(draft, &size, &span, is_wrong));
            indexing.axes.push(Axis { index, coordinate });
            indexing.sizes.push(size);
        }
        indexing
    }

    /// Indices that leave room for `span` elements along an axis.
    fn index(&self, draft: &mut Draft, size: &Size, span: &Size, is_wrong: bool) -> Value {
        let dtype =
            if size.largest() > 100 { draft.rng.pick(&[DType::I32, DType::I64]) } else { draft.rng.pick(&INTEGERS) };
        let has_sign = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        let (sizes, spans) = (size.at, span.at);
        let content: Content = Box::new(move |rng, call, count| {
            let (size, last) = (sizes[call], (sizes[call] - spans[call]).max(0));
            let index = |rng: &mut Rng| {
                let index = rng.within(0, last);
                if has_sign && size > 0 && rng.one_in(3) { index - size } else { index }
            };
            let mut indices: Vec<i64> = (0..count).map(|_| index(rng)).collect();
            if is_wrong && call == 0 && count > 0 {
                indices[rng.below(count)] = if has_sign && rng.one_in(2) { -size - 1 } else { size };
            }
            indices.into_iter().map(Datum::Int).collect()
        });
        draft.operand_of_call(dtype, &self.shape, &content)
    }
}

pub(super) fn gather_case(draft: &mut Draft) {
    let indexing = Indexing::new(draft);
    let dtype = draft.rng.pick(&ALL);
    let x = draft.operand(dtype, &indexing.sizes, &any(dtype));
    let out = draft.target(dtype, &indexing.shape);
    draft.test(Prim::Gather { out, x, axes: indexing.axes });
}

pub(super) fn scatter_case(draft: &mut Draft) {
    let indexing = Indexing::new(draft);
    let dtype = draft.rng.pick(&ALL);
    let updates = draft.operand(dtype, &indexing.shape, &any(dtype));
    // A call that fails must change nothing, which only a state that nothing else writes shows.
    let (base, out) = match draft.rng.below(4) {
        _ if draft.may_fail => draft.kept(dtype, &indexing.sizes),
        0 => draft.kept(dtype, &indexing.sizes),
        1 => (draft.operand(dtype, &indexing.sizes, &any(dtype)), draft.target(dtype, &indexing.sizes)),
        _ => draft.changed(dtype, &indexing.sizes, &any(dtype)),
    };
    let add = dtype != DType::Bool && draft.rng.one_in(2);
    draft.test(Prim::Scatter { out, base, updates, axes: indexing.axes, add });
}

/// Random bits: up to three steps, so that keys follow each other within a call too.
pub(super) fn random_case(draft: &mut Draft) {
    for _ in 0..draft.rng.within(1, 3) {
        let rank = draft.rank(0);
        let shape = draft.shape(rank, 3000);
        let out = draft.rng.pick(&[DType::U8, DType::U16, DType::U32]);
        let out = draft.target(out, &shape);
        let seed = match draft.rng.below(4) {
            0 => Some((draft.rng.next() as i64).into()),
            1 => {
                let seeds: [i64; CALLS] = std::array::from_fn(|_| i64::from(draft.rng.next() as i32));
                Some(draft.var(seeds).dim)
            }
            _ => None,
        };
        draft.test(Prim::RandomBits { out, seed });
    }
}
