//! Cases of operations that move elements without computing: joining and replacing.

use super::data::{ALL, any};
use super::draft::Draft;
use super::views::Size;
use ptero_plan::graph::Op;

pub(super) fn concat_case(draft: &mut Draft) {
    let (mut shape, axis) = draft.shape_and_axis(1, 800);
    let dtype = draft.rng.pick(&ALL);
    let mut total = Size::fixed(0);
    let mut parts = Vec::new();
    for _ in 0..draft.rng.within(1, 4) {
        if !parts.is_empty() {
            shape[axis] = draft.size_or_zero(&[1, 1, 2, 5, 17]);
        }
        total = total.sum(&shape[axis]);
        parts.push(draft.operand(dtype, &shape, &any(dtype)));
    }
    shape[axis] = total;
    let out = draft.target(dtype, &shape);
    draft.test_op(Op::Concat { out, parts, axis });
}

pub(super) fn update_case(draft: &mut Draft) {
    let (mut shape, axis) = draft.shape_and_axis(1, 800);
    let (dtype, step) = (draft.rng.pick(&ALL), draft.rng.pick(&[1, 1, 1, 2, 3]));
    let new = draft.operand(dtype, &shape, &any(dtype));
    let start = draft.size(&[0, 1, 2, 7]);
    let reach = start.sum(&shape[axis].scaled(step)).plus(draft.rng.pick(&[0, 0, 1, 4]));
    shape[axis] = Size::fixed(reach.largest());
    // A state that keeps what earlier calls wrote, as a cache does.
    let (base, out) = match draft.rng.below(4) {
        0 | 1 => draft.kept(dtype, &shape),
        2 => draft.changed(dtype, &shape, &any(dtype)),
        _ => (draft.operand(dtype, &shape, &any(dtype)), draft.target(dtype, &shape)),
    };
    draft.test_op(Op::Update { out, base, new, axis, start: start.dim, step });
}
