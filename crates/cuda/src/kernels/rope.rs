//! Rotary embeddings: `rope.cu`.

use crate::kernels::{flag, source};
use crate::module::Source;
use crate::step::{Launch, Number, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::{Angles, Position, ViewId};

pub(crate) const ROPE: Source = source!("rope.cu");

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
    let defines = [
        ("X", step.tag(x)),
        ("OUT", step.tag(out)),
        ("POSITION", position_tag.unwrap_or("I64")),
        ("HOST_POSITION", flag(position_tag.is_none())),
        ("PERIODS", periods_tag.unwrap_or("F32")),
        ("USES_PERIODS", flag(periods_tag.is_some())),
    ];
    let width = view.shape.last().copied().unwrap_or(1);
    let items = view.count() / width.max(1) * (width - (rope.dims / 2).min(width));
    step.run(&ROPE, &defines, "rope", step.grid(items, THREADS as usize, THREADS), &args)
}
