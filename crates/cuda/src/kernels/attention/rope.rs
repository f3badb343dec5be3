//! Rotary embeddings: `rope.cu`, and of one token `rope_row.cu`.

use crate::kernels::rows::{contiguous, moving};
use crate::kernels::together::{Part, part};
use crate::kernels::{flag, source};
use crate::launch::Grid;
use crate::module::{Source, Variant};
use crate::step::{AnglesKey, Launch, Number, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::plan::BufferKind;
use ptero_plan::prim::{Angles, Position, ViewId};

pub(crate) const ROPE: Source = source!("rope.cu");
pub(crate) static ROPE_ROW: Part = part!("rope_row", "RopeRowArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RopeArgs {
    launch: Launch,
    out: ViewArg,
    x: ViewArg,
    position: ViewArg,
    periods: ViewArg,
    host_position: Number,
    dims: i64,
    scale: f32,
    base: f32,
    interleaved: u32,
    unused: u32,
}

const _: () = assert!(size_of::<RopeArgs>() == 656, "the layout of `RopeArgs` in rope.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RopeAnglesArgs {
    launch: Launch,
    angles: u64,
    periods: u64,
    position: Number,
    dims: u32,
    scale: f32,
    base: f32,
    unused: u32,
}

const _: () = assert!(size_of::<RopeAnglesArgs>() == 56, "the layout of `RopeAnglesArgs` in rope.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RopeRowArgs {
    launch: Launch,
    x: u64,
    out: u64,
    x_row: i64,
    out_row: i64,
    out_offset: Number,
    angles: u64,
    width: u32,
    dims: u32,
    interleaved: u32,
    unused: u32,
}

const _: () = assert!(size_of::<RopeRowArgs>() == 80, "the layout of `RopeRowArgs` in rope_row.cu");

const THREADS: u32 = 128;

/// The parameters of a rotary embedding.
pub(crate) struct Rope<'a> {
    pub(crate) dims: usize,
    pub(crate) interleaved: bool,
    pub(crate) scale: f32,
    pub(crate) position: &'a Position,
    pub(crate) angles: &'a Angles,
}

pub(crate) fn rope(step: &mut Step<'_>, out: ViewId, x: ViewId, rope: &Rope<'_>) -> Result<(), Fault> {
    if rope_row(step, out, x, rope)? {
        return Ok(());
    }
    let view = step.shape(x);
    let (host_position, position, position_tag) = match rope.position {
        Position::Host(number) => (step.number(number), ViewArg::zeroed(), None),
        Position::Tensor(view) => (Number::fixed(0), step.view(*view), Some(step.tag(*view))),
    };
    let (base, periods, periods_tag) = match rope.angles {
        Angles::Base(base) => (*base, ViewArg::zeroed(), None),
        Angles::Periods(view) => (0.0, step.view(*view), Some(step.tag(*view))),
    };
    let args = RopeArgs {
        launch: step.launch(),
        out: step.view(out),
        x: step.view(x),
        position,
        periods,
        host_position,
        dims: i64::try_from(rope.dims).map_err(|_| Fault::Contract("no more elements are rotated than there are"))?,
        scale: rope.scale,
        base,
        interleaved: rope.interleaved.into(),
        unused: 0,
    };
    let defines = defines((step.tag(x), step.tag(out)), position_tag, periods_tag);
    let width = view.shape.last().copied().unwrap_or(1);
    let items = view.count() / width.max(1) * (width - (rope.dims / 2).min(width));
    step.run(&ROPE, &defines, "rope", step.grid(items, THREADS as usize, THREADS), &args)
}

fn defines<'a>(
    (x, out): (&'a str, &'a str),
    position: Option<&'a str>,
    periods: Option<&'a str>,
) -> [(&'static str, &'a str); 6] {
    [
        ("X", x),
        ("OUT", out),
        ("POSITION", position.unwrap_or("I64")),
        ("HOST_POSITION", flag(position.is_none())),
        ("PERIODS", periods.unwrap_or("F32")),
        ("USES_PERIODS", flag(periods.is_some())),
    ]
}

/// Launches the rotation of one token at a position that the host knows. Returns `false` if it is of another form.
fn rope_row(step: &mut Step<'_>, out: ViewId, x: ViewId, rope: &Rope<'_>) -> Result<bool, Fault> {
    let [.., 1, width] = *step.shape(x).shape.as_slice() else { return Ok(false) };
    // Where a position may change within a call, angles are not shared.
    let from = contiguous(step, x, 1).filter(|_| step.program.is_capturable);
    let (Position::Host(position), Some(from)) = (rope.position, from) else { return Ok(false) };
    let (Some((to, out_offset)), Ok(dims), Ok(size)) =
        (moving(step, out), u32::try_from(rope.dims), u32::try_from(width))
    else {
        return Ok(false);
    };
    let rows = u32::try_from(step.shape(x).count() / width.max(1)).unwrap_or(0);
    if to.column != 1 || rows == 0 || dims > size {
        return Ok(false);
    }
    let (base, periods, periods_tag) = match rope.angles {
        Angles::Base(base) => (*base, 0, None),
        Angles::Periods(view) => {
            let constant = contiguous(step, *view, 1).filter(|_| is_constant(step, *view));
            let Some(constant) = constant else { return Ok(false) };
            (0.0, constant.address, Some(step.tag(*view)))
        }
    };
    let defines = defines((step.tag(x), step.tag(out)), None, periods_tag);
    let position = step.number(position);
    let key = AnglesKey {
        lane: step.memory.address(),
        position,
        periods,
        numbers: [rope.scale, base].map(f32::to_bits),
        dims,
    };
    let angles = match step.scratch.angles.known(&key) {
        Some(known) => known,
        None => {
            let angles = step.scratch.angles.take(step.stream, rope.dims / 2 * size_of::<[f32; 2]>())?;
            let (launch, scale) = (step.launch(), rope.scale);
            let args = RopeAnglesArgs { launch, angles, periods, position, dims, scale, base, unused: 0 };
            let blocks = (dims / 2).div_ceil(THREADS).max(1);
            step.run(&ROPE, &defines, "rope_angles", Grid::new(blocks, THREADS), &args)?;
            step.scratch.angles.note(key, angles);
            angles
        }
    };
    let args = RopeRowArgs {
        launch: step.launch(),
        x: from.address,
        out: to.address,
        x_row: from.matrix,
        out_row: to.matrix,
        out_offset,
        angles,
        width: size,
        dims,
        interleaved: rope.interleaved.into(),
        unused: 0,
    };
    let threads = (size - dims / 2).next_multiple_of(32).clamp(32, THREADS);
    let variant = Variant { defines: &[("X", step.tag(x)), ("OUT", step.tag(out))], generated: "" };
    step.run_part(&ROPE_ROW, variant, Grid::new(rows, threads), &args);
    Ok(true)
}

/// Returns `true` if no step writes the buffer of a view.
fn is_constant(step: &Step<'_>, view: ViewId) -> bool {
    let kind = &step.program.plan.buffer(step.shape(view).buf).kind;
    matches!(kind, BufferKind::Constant(_) | BufferKind::Derived)
}
