//! Random bits: `random.cu`.

use crate::kernels::source;
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Number, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::prim::ViewId;

pub(crate) const RANDOM: Source = source!("random.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RandomArgs {
    launch: Launch,
    out: ViewArg,
    seed: Number,
    is_seeded: u32,
    unused: u32,
}

const _: () = assert!(size_of::<RandomArgs>() == 184, "the layout of `RandomArgs` in random.cu");

const THREADS: u32 = 256;

pub(crate) fn random_bits(step: &mut Step<'_>, out: ViewId, seed: Option<&Dim>) -> Result<(), Fault> {
    let args = RandomArgs {
        launch: step.launch(),
        out: step.view(out),
        seed: seed.map_or(Number::fixed(0), |seed| step.number(seed)),
        is_seeded: seed.is_some().into(),
        unused: 0,
    };
    let grid = step.grid(step.shape(out).count(), THREADS as usize, THREADS);
    step.run(&RANDOM, &[], "random_bits", grid, &args)?;
    if seed.is_some() {
        return Ok(());
    }
    step.run(&RANDOM, &[], "advance_key", Grid::new(1, 1), &step.launch())
}
