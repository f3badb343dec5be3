//! Products of many rows with quantized weights, and of single rows that choose their weights: `quant_many.cu`.

use crate::kernels::products::by_choice::{ByChoice, by_choice};
use crate::kernels::products::product::Product;
use crate::kernels::quant::Defines;
use crate::kernels::quant::quant_matmul::{QuantMatMulArgs, grid};
use crate::kernels::rows::{MOST_OPERANDS, Stacked};
use crate::kernels::{flag, source};
use crate::module::{Source, Variant};
use crate::step::Step;
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;

pub(crate) const QUANT_MANY: Source = source!("quant_many.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct QuantManyArgs {
    of: QuantMatMulArgs,
    order: u64,
    tiles: u64,
    most_tiles: u64,
    others: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<QuantManyArgs>() == 1192, "the layout of `QuantManyArgs` in quant_many.cu");

/// Columns of a block, and its threads.
const TILE_N: usize = 64;
const THREADS: u32 = 128;

/// Multiplies many rows, of one matrix or several.
pub(crate) fn many(
    step: &mut Step<'_>,
    out: &Product,
    defines: Defines,
    whole_rows: usize,
    args: &QuantMatMulArgs,
) -> Result<(), Fault> {
    let tile = Tile::of(whole_rows);
    let tiles = out.matrices * whole_rows.div_ceil(tile.rows);
    launch(step, out, (defines, tile, tiles), (None, args))
}

/// Multiplies single rows, sorted by which of `matrices` matrices of weights they choose.
pub(crate) fn sorted(
    step: &mut Step<'_>,
    out: &Product,
    defines: Defines,
    (choices, matrices): (ViewId, usize),
    args: &QuantMatMulArgs,
) -> Result<(), Fault> {
    let parts = if defines.contains(&("SINGLE", "1")) { 2 } else { 1 };
    // Choices are uneven: a tile of one and a half times the mean leaves few for a second one.
    let tile = Tile::of(parts * out.matrices.div_ceil(matrices.max(1)) * 3 / 2);
    let by_choice = by_choice(step, choices, (out.matrices, matrices), tile.rows / parts)?;
    launch(step, out, (defines, tile, by_choice.most_tiles), (Some(by_choice), args))
}

/// Rows of a block, and their number as text.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    name: &'static str,
}

impl Tile {
    fn of(rows: usize) -> Self {
        let (rows, name) = match rows {
            0..=8 => (8, "8"),
            9..=16 => (16, "16"),
            17..=32 => (32, "32"),
            33.. => (64, "64"),
        };
        Self { rows, name }
    }
}

fn launch(
    step: &mut Step<'_>,
    out: &Product,
    (mut defines, tile, tiles): (Defines, Tile, usize),
    (by_choice, args): (Option<ByChoice>, &QuantMatMulArgs),
) -> Result<(), Fault> {
    defines.extend([("TILE_M", tile.name), ("SORTED", flag(by_choice.is_some()))]);
    defines.push(("HAS_EPILOGUE", flag(out.then.is_some())));
    let [order, tile_list, most_tiles] =
        by_choice.map_or([0; 3], |sorted| [sorted.order, sorted.tiles, sorted.most_tiles as u64]);
    let args = QuantManyArgs {
        of: *args,
        order,
        tiles: tile_list,
        most_tiles,
        others: out.then.as_ref().map_or_else(Zeroable::zeroed, |then| then.operands),
    };
    let generated = out.then.as_ref().map_or("", |then| &then.text);
    let grid = grid(step, out.columns.div_ceil(TILE_N), tiles, (16, THREADS));
    step.run_variant(&QUANT_MANY, Variant { defines: &defines, generated }, "quant_many", grid, &args)
}
