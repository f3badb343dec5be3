//! The choice of experts in one launch: `route.cu`.

use crate::kernels::join::{MOST_JOINED, is_alone, is_early, is_known, next};
use crate::kernels::rows::contiguous;
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::DeviceStep;
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Binary, Expr, Scalar};
use ptero_plan::prim::{Axis, Fold, Prim, ViewId};
use ptero_tensor::DType;

pub(crate) static ROUTE: Part = part!("route", "RouteArgs");

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

/// A softmax and the four steps after it, by what they read and write.
struct Route {
    x: ViewId,
    order: ViewId,
    weights: ViewId,
}

/// Launches a softmax together with the four steps after it. Returns `false` if these do not choose experts.
pub(crate) fn route(step: &mut Step<'_>, at: &DeviceStep<'_>) -> bool {
    let Some(found) = matched(step, at) else { return false };
    let Some((args, grid)) = arguments(step, &found) else { return false };
    let defines = [("X", step.tag(found.x)), ("INDEX", step.tag(found.order))];
    step.run_part(&ROUTE, Variant { defines: &defines, generated: "" }, grid, &args);
    true
}

fn arguments(step: &Step<'_>, found: &Route) -> Option<(RouteArgs, Grid)> {
    let (shape, number) = (&step.shape(found.x).shape, |size: usize| u32::try_from(size).ok());
    let (size, outer) = shape.split_last()?;
    let (rows, chosen) = (outer.iter().product::<usize>(), *step.shape(found.weights).shape.last()?);
    let [x, order, weights] = [found.x, found.order, found.weights].map(|view| contiguous(step, view, 1));
    let (x, order, weights) = (x?, order?, weights?);
    if rows == 0 || chosen == 0 || *size > MOST_SHORT {
        return None;
    }
    let args = RouteArgs {
        launch: step.launch(),
        x: x.address,
        order: order.address,
        weights: weights.address,
        x_row: x.matrix,
        order_row: order.matrix,
        weights_row: weights.matrix,
        size: number(*size)?,
        chosen: number(chosen)?,
    };
    Some((args, Grid::new(number(rows)?, args.size.next_multiple_of(32))))
}

/// The steps, if each reads what the one before it writes, and nothing else reads what is not stored.
fn matched(step: &Step<'_>, at: &DeviceStep<'_>) -> Option<Route> {
    let further = |further| next(&step.program.plan, at, further);
    let Prim::Softmax { out: probabilities, x, axis } = *at.prim else { return None };
    let Prim::Sort { out: order, x: sorted, axis: sorted_axis, indices: true } = *further(1)? else { return None };
    let Prim::Gather { out: kept, x: gathered, axes } = further(2)? else { return None };
    let Prim::Reduce { out: sum, x: summed, axes: sum_axes, fold: Fold::Sum } = further(3)? else { return None };
    let Prim::Map { out: weights, ins, expr } = further(4)? else { return None };
    let [dividend, divisor] = *ins.as_slice() else { return None };
    let last = step.shape(x).shape.len().checked_sub(1)?;
    let are_same = |a: ViewId, others: &[ViewId]| others.iter().all(|other| step.shape(a) == step.shape(*other));
    let are_floats = [probabilities, *kept, *sum, *weights].iter().all(|view| step.dtype(*view) == DType::F32);
    let fits = are_floats
        && is_division(expr)
        && axis == last
        && sorted_axis == last
        && *sum_axes == [last]
        && are_same(probabilities, &[sorted, *gathered])
        && are_same(*kept, &[*summed, dividend])
        && gathers_last(step, axes, order, *kept)
        && repeats_rows(step.shape(divisor), step.shape(*sum), last)
        && is_alone(step, probabilities, 3)
        && is_alone(step, *kept, 3)
        && is_alone(step, *sum, 2)
        && [order, *weights].iter().all(|out| is_early(step, at.prim, *out))
        && is_known(step, at.prim)
        && (1..=MOST_JOINED).filter_map(further).all(|prim| is_known(step, prim));
    fits.then_some(Route { x, order, weights: *weights })
}

fn is_division(expr: &Expr) -> bool {
    let ops: Vec<_> = expr.steps.iter().map(|step| &step.op).collect();
    let divides = [&Scalar::Load(0), &Scalar::Load(1), &Scalar::Binary(Binary::Div)];
    ops == divides && expr.steps.last().is_some_and(|step| step.args[..2] == [0, 1])
}

/// Returns `true` if `divisor` is `sum`, of which each row is one element, for every element of a row.
fn repeats_rows(divisor: &BoundView, sum: &BoundView, last: usize) -> bool {
    let is_same = |axis: usize| divisor.size(axis) == 1 || divisor.stride(axis) == sum.stride(axis);
    let repeats = divisor.size(last) == 1 || divisor.stride(last) == 0;
    divisor.buf == sum.buf && divisor.offset == sum.offset && repeats && (0..last).all(is_same)
}

/// Returns `true` if a gather takes the elements of each row that come last in an order.
fn gathers_last(step: &Step<'_>, axes: &[Axis], order: ViewId, kept: ViewId) -> bool {
    let Some((Axis { index: Some(index), coordinate: None }, rows)) = axes.split_last() else { return false };
    let (index, order, kept, last) = (step.shape(*index), step.shape(order), step.shape(kept), rows.len());
    // Of one row, any coordinate is the first.
    let is_row = |(axis, row): (usize, &Axis)| {
        let is_own = row.coordinate == Some(axis) || order.size(axis) == 1;
        row.index.is_none() && is_own && kept.size(axis) == order.size(axis)
    };
    let is_along = |axis: usize| index.size(axis) == 1 || index.stride(axis) == order.stride(axis);
    let first = order.size(last).checked_sub(kept.size(last)).map(|first| order.offset + first);
    index.buf == order.buf
        && order.stride(last) == 1
        && first == Some(index.offset)
        && (0..=last).all(is_along)
        && rows.iter().enumerate().all(is_row)
}
