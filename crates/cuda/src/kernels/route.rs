//! The choice of experts in one launch: `route.cu`.

use crate::kernels::join::{is_alone, next};
use crate::kernels::rows::{Stacked, stacked};
use crate::kernels::source;
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::{DeviceStep, Fault};
use ptero_plan::expr::{Binary, Scalar};
use ptero_plan::prim::{Axis, Fold, Prim, ViewId};
use ptero_tensor::DType;

pub(crate) const ROUTE: Source = source!("route.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RouteArgs {
    launch: Launch,
    x: u64,
    order: u64,
    weights: u64,
    x_row: i64,
    order_row: i64,
    weights_row: i64,
    size: u32,
    chosen: u32,
}

const _: () = assert!(size_of::<RouteArgs>() == 72, "the layout of `RouteArgs` in route.cu");

/// The longest row: `MOST_SHORT` in route.cu.
const MOST_SHORT: usize = 1024;

/// A softmax and the four steps after it, by their results.
struct Route {
    x: ViewId,
    order: ViewId,
    weights: ViewId,
    chosen: usize,
}

/// Launches a softmax together with the four steps after it, if these choose experts. Returns what they write.
pub(crate) fn route(step: &mut Step<'_>, at: &DeviceStep<'_>) -> Result<Vec<ViewId>, Fault> {
    let Some(found) = matched(step, at) else { return Ok(Vec::new()) };
    let (shape, dtype) = (&step.shape(found.x).shape, [found.order, found.weights].map(|view| step.dtype(view)));
    let size = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().rev().skip(1).product::<usize>();
    let row = |view: ViewId| stacked(step, view, 1).filter(|found| found.column == 1);
    let (Some(x), Some(order), Some(weights)) = (row(found.x), row(found.order), row(found.weights)) else {
        return Ok(Vec::new());
    };
    let small = |number: usize| u32::try_from(number).ok();
    let sizes = small(size).zip(small(found.chosen)).zip(small(rows));
    let Some(((length, chosen), blocks)) = sizes.filter(|_| dtype == [DType::U32, DType::F32] && size <= MOST_SHORT)
    else {
        return Ok(Vec::new());
    };
    if rows == 0 || chosen == 0 || chosen > length {
        return Ok(Vec::new());
    }
    let Stacked { address, matrix, .. } = x;
    let args = RouteArgs {
        launch: step.launch(),
        x: address,
        order: order.address,
        weights: weights.address,
        x_row: matrix,
        order_row: order.matrix,
        weights_row: weights.matrix,
        size: length,
        chosen,
    };
    let defines = [("X", step.tag(found.x)), ("INDEX", step.tag(found.order))];
    step.run(&ROUTE, &defines, "route", Grid::new(blocks, length.next_multiple_of(32)), &args)?;
    Ok(vec![found.order, found.weights])
}

/// The steps, if each reads what the one before it writes, and nothing else reads what is not stored.
fn matched(step: &Step<'_>, at: &DeviceStep<'_>) -> Option<Route> {
    let Prim::Softmax { out: probabilities, x, axis } = at.prim else { return None };
    let last = step.shape(*x).shape.len().checked_sub(1)?;
    let Prim::Sort { out: order, x: sorted, axis: sorted_axis, indices: true } = next(step, at, 1)? else {
        return None;
    };
    let Prim::Gather { out: kept, x: gathered, axes } = next(step, at, 2)? else { return None };
    let Prim::Reduce { out: sum, x: summed, axes: sum_axes, fold: Fold::Sum } = next(step, at, 3)? else { return None };
    let Prim::Map { out: weights, ins, expr } = next(step, at, 4)? else { return None };
    let [dividend, divisor] = *ins.as_slice() else { return None };
    let is_division = matches!(
        expr.steps.as_slice(),
        [a, b, c] if a.op == Scalar::Load(0) && b.op == Scalar::Load(1) && c.op == Scalar::Binary(Binary::Div) && c.args[..2] == [0, 1]
    );
    let is_same = |a: ViewId, b: ViewId| step.shape(a) == step.shape(b);
    let are_floats = [*probabilities, *kept, *sum].iter().all(|view| step.dtype(*view) == DType::F32);
    let chains = is_same(*probabilities, *sorted)
        && is_same(*probabilities, *gathered)
        && is_same(*kept, *summed)
        && is_same(*kept, dividend);
    let along_last = *axis == last && *sorted_axis == last && *sum_axes == [last];
    let chosen = step.shape(*kept).size(last);
    let takes_last = gathers_last(step, axes, *order, chosen, last);
    let of_row = step.shape(divisor);
    let divides_by_sum =
        of_row.buf == step.shape(*sum).buf && of_row.offset == step.shape(*sum).offset && of_row.stride(last) == 0;
    // The sum has one element a row, and is read row by row.
    let rows_agree =
        (0..last).all(|axis| of_row.size(axis) == 1 || of_row.stride(axis) == step.shape(*sum).stride(axis));
    let unseen = is_alone(step, *probabilities, 3) && is_alone(step, *kept, 3) && is_alone(step, *sum, 2);
    let fits =
        is_division && are_floats && chains && along_last && takes_last && divides_by_sum && rows_agree && unseen;
    fits.then_some(Route { x: *x, order: *order, weights: *weights, chosen })
}

/// Returns `true` if a gather takes the elements of a row that come last in an order, and rows as they are.
fn gathers_last(step: &Step<'_>, axes: &[Axis], order: ViewId, chosen: usize, last: usize) -> bool {
    let Some((Axis { index: Some(index), coordinate: None }, rows)) = axes.split_last() else { return false };
    let (index, order) = (step.shape(*index), step.shape(order));
    let begins =
        order.size(last).checked_sub(chosen).map(|first| order.offset + first * order.stride(last).unsigned_abs());
    let is_row = |(axis, row): (usize, &Axis)| {
        // Of one row, any coordinate is the first.
        order.size(axis) == 1 || *row == Axis { index: None, coordinate: Some(axis) }
    };
    index.buf == order.buf
        && begins == Some(index.offset)
        && (0..=last).all(|axis| index.size(axis) == 1 || index.stride(axis) == order.stride(axis))
        && rows.iter().enumerate().all(is_row)
}
