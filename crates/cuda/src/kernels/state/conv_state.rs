//! A convolution over time with a state in one launch: `conv_state.cu`.

use crate::kernels::join::{MOST_JOINED, is_alone, is_early, is_known, next};
use crate::kernels::rows::{MOST_OPERANDS, Stacked, Then, before, is_plain, stacked};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::DeviceStep;
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Expr, Scalar};
use ptero_plan::prim::{Prim, ViewId};

pub(crate) static CONV_STATE: Part = part!("conv_state", "ConvStateArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ConvStateArgs {
    launch: Launch,
    x: u64,
    w: u64,
    out: u64,
    state: u64,
    x_channel: i64,
    w_channel: i64,
    w_tap: i64,
    out_channel: i64,
    state_channel: i64,
    state_row: i64,
    channels: u32,
    unused: u32,
    kept: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<ConvStateArgs>() == 296, "the layout of `ConvStateArgs` in conv_state.cu");

/// Small blocks spread over the device.
const THREADS: u32 = 64;
/// The longest filter: the strands of a product.
const MOST_TAPS: usize = 16;

/// The five steps: a function of the state's rows and a copy of the new row, which together are what the filters read; a copy of the last
/// of these rows to the state; the filters, and a function of their results.
struct Chain<'a> {
    kept: (&'a [ViewId], &'a Expr),
    x: ViewId,
    state: ViewId,
    w: ViewId,
    out: ViewId,
    then: &'a Expr,
}

/// Launches a function together with the four steps after it. Returns `false` if these are not such a convolution of one row.
pub(crate) fn conv_state(step: &mut Step<'_>, at: &DeviceStep<'_>) -> bool {
    let Some(found) = matched(step, at) else { return false };
    let Some((args, generated)) = arguments(step, &found) else { return false };
    let taps = step.shape(found.w).size(1).to_string();
    let tags = [("X", step.tag(found.x)), ("W", step.tag(found.w)), ("OUT", step.tag(found.out)), ("TAPS", &*taps)];
    let grid = Grid::new(args.channels.div_ceil(THREADS), THREADS);
    step.run_part(&CONV_STATE, Variant { defines: &tags, generated: &generated }, grid, &args);
    true
}

fn matched<'a>(step: &Step<'a>, at: &DeviceStep<'a>) -> Option<Chain<'a>> {
    let after = |further| next(&step.program.plan, at, further);
    let Prim::Map { out: kept_rows, ins, expr: kept } = at.prim else { return None };
    let (Prim::Map { out: new_row, ins: of_new, expr: as_it_is }, Prim::Map { out: state, ins: of_state, expr: too }) =
        (after(1)?, after(2)?)
    else {
        return None;
    };
    let Prim::Conv { out: result, x: rows, w, stride, padding, dilation, groups, transposed: false } = after(3)? else {
        return None;
    };
    let Prim::Map { out, ins: of_result, expr: then } = after(MOST_JOINED)? else { return None };
    let ([x], [last], [filtered]) = (of_new.as_slice(), of_state.as_slice(), of_result.as_slice()) else { return None };
    let [1, taps @ 2..=MOST_TAPS, channels] = *step.shape(*rows).shape.as_slice() else { return None };
    let is_part = |view: ViewId, first: usize, count: usize| *step.shape(view) == part(step.shape(*rows), first, count);
    let are_parts = is_part(*kept_rows, 0, taps - 1) && is_part(*new_row, taps - 1, 1) && is_part(*last, 1, taps - 1);
    let are_filters = *step.shape(*w).shape == [channels, taps, 1] && usize::try_from(*groups) == Ok(channels);
    let is_plain_conv = *stride == [1] && *padding == [0] && *dilation == [1];
    let copies = is_copy(as_it_is) && is_copy(too) && is_plain(kept);
    let is_read_here =
        is_alone(step, *rows, 4) && is_alone(step, *result, 2) && step.shape(*result) == step.shape(*filtered);
    let all = [Some(at.prim), after(1), after(2), after(3), after(MOST_JOINED)];
    let are_known = all.iter().all(|prim| prim.is_some_and(|prim| is_known(step, prim)));
    // A thread reads a channel of the state before it replaces it; nothing else that is read may be there.
    let is_state = |view: &ViewId| step.shape(*view) == step.shape(*state);
    let reads_apart = ins.iter().filter(|view| !is_state(view)).chain([x, w]);
    let is_apart = reads_apart.into_iter().all(|view| step.shape(*view).buf != step.shape(*state).buf);
    let are_early = [at.prim, after(1)?, after(2)?, after(3)?].iter().all(|prim| is_early(step, prim, *out));
    let fits =
        are_parts && are_filters && is_plain_conv && copies && is_read_here && are_known && is_apart && are_early;
    fits.then_some(Chain { kept: (ins, kept), x: *x, state: *state, w: *w, out: *out, then })
}

/// Rows of a view of one matrix.
fn part(rows: &BoundView, first: usize, count: usize) -> BoundView {
    let mut view = rows.clone();
    view.offset = view.offset.wrapping_add_signed(view.stride(1) * first.cast_signed());
    if let (Some(size), Some(stride)) = (view.shape.get_mut(1), view.strides.get_mut(1)) {
        *size = count;
        // As in every view of one element along an axis.
        *stride = if count == 1 { 0 } else { *stride };
    }
    view
}

/// Returns `true` for a function that returns its operand.
fn is_copy(expr: &Expr) -> bool {
    matches!(expr.steps.as_slice(), [load] if load.op == Scalar::Load(0))
}

fn arguments(step: &Step<'_>, found: &Chain<'_>) -> Option<(ConvStateArgs, String)> {
    let (ins, expr) = found.kept;
    let mut kept = [Stacked::default(); MOST_OPERANDS];
    for (number, view) in ins.iter().enumerate() {
        *kept.get_mut(number)? = stacked(step, *view, 2)?;
    }
    let [x, w, out, state] = [found.x, found.w, found.out, found.state].map(|view| stacked(step, view, 2));
    let (x, w, out, state) = (x?, w?, out?, state?);
    let then = Then::of(step, &[], found.then)?;
    let args = ConvStateArgs {
        launch: step.launch(),
        x: x.address,
        w: w.address,
        out: out.address,
        state: state.address,
        x_channel: x.column,
        w_channel: w.matrix,
        w_tap: w.row,
        out_channel: out.column,
        state_channel: state.column,
        state_row: state.row,
        channels: u32::try_from(step.shape(found.w).size(0)).ok()?,
        unused: 0,
        kept,
    };
    Some((args, format!("{}{}", before(expr), then.text)))
}
