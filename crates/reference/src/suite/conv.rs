//! Cases of convolutions.

use super::data::{FLOATS, any, moderate, vanishing};
use super::draft::Draft;
use super::probe::Seen;
use super::rng::Rng;
use super::views::Size;
use crate::tensor::coordinates;
use ptero_backend::Conv;
use ptero_plan::graph::Value;
use ptero_plan::prim::Prim;

/// A spatial axis.
struct Axis {
    size: Size,
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    /// The size of the result.
    result: Size,
}

impl Axis {
    fn new(draft: &mut Draft, sizes: &[i64], kernels: &[i64], is_transposed: bool) -> Self {
        let [kernel, stride, dilation] =
            [draft.rng.pick(kernels), draft.rng.pick(&[1, 1, 2, 3]), draft.rng.pick(&[1, 1, 2])];
        let reach = (kernel - 1) * dilation;
        let padding = draft.rng.within(0, reach.min(3) / if is_transposed { 2 } else { 1 });
        if is_transposed {
            let size = draft.size(sizes);
            let extra = draft.rng.within(0, stride - 1);
            let result = size.plus(-1).scaled(stride).plus(reach + 1 + extra - 2 * padding);
            return Self { size, kernel, stride, padding, dilation, result };
        }
        // With a stride, the size of the result is no polynomial of that of the operand.
        let size = if stride == 1 { draft.size(sizes) } else { Size::fixed(draft.rng.pick(sizes)) };
        let size = size.plus(reach);
        let span = size.plus(2 * padding - reach - 1);
        let result = if stride == 1 { span.plus(1) } else { Size::fixed(span.largest() / stride + 1) };
        Self { size, kernel, stride, padding, dilation, result }
    }
}

pub(super) fn case(draft: &mut Draft) {
    let spatial = draft.rng.pick(&[1, 1, 2, 2, 3]);
    let (sizes, kernels): (&[i64], &[i64]) = match spatial {
        1 => (&[1, 2, 7, 16, 33, 100], &[1, 2, 3, 4, 7, 18]),
        2 => (&[1, 2, 5, 9], &[1, 2, 3]),
        _ => (&[1, 2, 4], &[1, 2]),
    };
    let transposed = draft.rng.one_in(3);
    let axes: Vec<Axis> = (0..spatial).map(|_| Axis::new(draft, sizes, kernels, transposed)).collect();
    let groups = draft.rng.pick(&[1, 1, 2, 3]);
    let taps: i64 = axes.iter().map(|axis| axis.result.largest() * axis.kernel).product();
    let (channels, filters) = channels(&mut draft.rng, groups, 12_000 / taps.max(1));
    let batches = draft.size_or_zero(&[1, 1, 2]);
    let around = |first: Size, middle: Vec<Size>, last: i64| -> Vec<Size> {
        [first].into_iter().chain(middle).chain([Size::fixed(last)]).collect()
    };
    let dtype = draft.rng.pick(&FLOATS);
    let other = if draft.rng.one_in(8) { draft.rng.pick(&FLOATS) } else { dtype };
    let x = around(batches.clone(), axes.iter().map(|axis| axis.size.clone()).collect(), channels * groups);
    let content = if draft.rng.one_in(6) { vanishing() } else { any(dtype) };
    let x = draft.operand(dtype, &x, &content);
    let w = around(Size::fixed(filters), axes.iter().map(|axis| Size::fixed(axis.kernel)).collect(), channels);
    let content = match draft.rng.below(6) {
        0 => any(other),
        1 => vanishing(),
        _ => moderate(other),
    };
    let w = draft.operand(other, &w, &content);
    let out = around(batches, axes.iter().map(|axis| axis.result.clone()).collect(), filters);
    let out = draft.target(dtype, &out);
    let each = |parameter: fn(&Axis) -> i64| axes.iter().map(parameter).collect();
    let [stride, padding, dilation] = [each(|axis| axis.stride), each(|axis| axis.padding), each(|axis| axis.dilation)];
    draft.test(Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed });
}

/// Channels of a group, and filters.
fn channels(rng: &mut Rng, groups: i64, room: i64) -> (i64, i64) {
    let choices: Vec<i64> = [1, 2, 3, 5, 8, 17].into_iter().filter(|size| size * groups <= room.max(groups)).collect();
    let channels = rng.pick(&choices);
    let room = room / (channels * groups);
    let choices: Vec<i64> = [1, 2, 3, 8, 19].into_iter().filter(|&size| size <= room.max(1)).collect();
    (channels, rng.pick(&choices) * groups)
}

/// The sum of the magnitudes of the products that are the terms of an element. Without bound if an operand has elements that are
/// not numbers: whether zeros of the padding are multiplied by them is up to the device.
pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let (Prim::Conv { out, stride, padding, dilation, groups, transposed, .. }, [x, w]) =
        (prim, seen.operands.as_slice())
    else {
        return Vec::new();
    };
    let ([filters, kernel @ .., channels], [_, sizes @ .., all_channels]) = (w.shape.as_slice(), x.shape.as_slice())
    else {
        return Vec::new();
    };
    let shape = seen.shape(*out);
    let taps: Vec<Vec<usize>> = coordinates(kernel).collect();
    // The offset of the element of the operand that a tap reads.
    let conv = Conv { stride, padding, dilation, groups: *groups, transposed: *transposed };
    let source = |spatial: &[usize], tap: &[usize]| -> Option<usize> {
        let along = |axis: usize| conv.source(axis, spatial[axis], tap[axis], sizes[axis]);
        (0..sizes.len()).try_fold(0, |flat, axis| Some(flat * sizes[axis] + along(axis)?))
    };
    let element = |at: Vec<usize>| {
        let [batch, spatial @ .., filter] = at.as_slice() else { return 0.0 };
        let first = filter / (filters / *groups as usize) * channels;
        let from = batch * sizes.iter().product::<usize>();
        let terms = taps.iter().enumerate().filter_map(|(at, tap)| Some((at, source(spatial, tap)?)));
        let products = terms.flat_map(|(at, source)| {
            let (x_start, w_start) = ((from + source) * all_channels + first, (filter * taps.len() + at) * channels);
            (0..*channels).map(move |channel| x.size(x_start + channel) * w.size(w_start + channel))
        });
        products.sum()
    };
    let is_bounded = x.data.iter().chain(&w.data).all(|x| x.is_finite());
    vec![coordinates(&shape).map(|at| if is_bounded { element(at) } else { f64::INFINITY }).collect()]
}
