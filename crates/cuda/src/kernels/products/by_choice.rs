//! Products that choose their matrices of weights, sorted by their choice: `by_choice.cu`.

use crate::kernels::source;
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;

pub(crate) const BY_CHOICE: Source = source!("by_choice.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ByChoiceArgs {
    launch: Launch,
    choices: ViewArg,
    order: u64,
    tiles: u64,
    products: u32,
    matrices: u32,
    tile_products: u32,
    most_tiles: u32,
}

const _: () = assert!(size_of::<ByChoiceArgs>() == 200, "the layout of `ByChoiceArgs` in by_choice.cu");

const THREADS: u32 = 1024;
/// The most matrices of weights that products are sorted by.
pub(crate) const MOST_MATRICES: usize = THREADS as usize;
/// Bytes of a `ChoiceTile` in by_choice.cu.
const TILE_BYTES: usize = 16;

/// Products in the order of their choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByChoice {
    /// The addresses of the order and of its tiles.
    pub(crate) order: u64,
    pub(crate) tiles: u64,
    /// Tiles that have room; those at the end may be empty.
    pub(crate) most_tiles: usize,
}

/// Sorts `products` products by which of `matrices` matrices they choose, in tiles of up to `tile_products`.
pub(crate) fn by_choice(
    step: &mut Step<'_>,
    choices: ViewId,
    (products, matrices): (usize, usize),
    tile_products: usize,
) -> Result<ByChoice, Fault> {
    let small = |count: usize| u32::try_from(count).map_err(|_| Fault::Contract("products that are sorted are few"));
    // Each matrix that is chosen at all may leave a tile that is not full.
    let most_tiles = products / tile_products + matrices.min(products);
    let order = step.scratch(products * size_of::<u32>())?;
    let tiles = step.scratch(most_tiles * TILE_BYTES)?;
    let args = ByChoiceArgs {
        launch: step.launch(),
        choices: step.view(choices),
        order,
        tiles,
        products: small(products)?,
        matrices: small(matrices)?,
        tile_products: small(tile_products)?,
        most_tiles: small(most_tiles)?,
    };
    step.run(&BY_CHOICE, &[], "by_choice", Grid::new(1, THREADS), &args)?;
    Ok(ByChoice { order, tiles, most_tiles })
}
