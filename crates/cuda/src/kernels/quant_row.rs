//! Products of one row of activations with quantized weights, with prologue and epilogue: `quant_row.cu`.

use crate::kernels::map::function_text;
use crate::kernels::product::{Epilogue, Factors};
use crate::kernels::quant::{Defines, defines, row_length};
use crate::kernels::quant_matmul::whole_group;
use crate::kernels::rows::{MOST_OPERANDS, Stacked, Then, is_plain, stacked};
use crate::kernels::{Generated, Special, flag, source};
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Step, tag};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::plan::BufferKind;
use ptero_plan::prim::{Choice, Normalize, Prim, QuantFormat, Quantized, ViewId};
use ptero_tensor::DType;

pub(crate) const QUANT_ROW: Source = source!("quant_row.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct QuantRowArgs {
    launch: Launch,
    codes: u64,
    scales: u64,
    biases: u64,
    out: u64,
    chosen: u64,
    chosen_step: i64,
    stack: i64,
    code_row: i64,
    code_matrix: i64,
    scale_row: i64,
    scale_matrix: i64,
    bias_row: i64,
    bias_matrix: i64,
    out_matrix: i64,
    length: u32,
    columns: u32,
    eps: f32,
    is_layer: u32,
    row: [Stacked; MOST_OPERANDS],
    others: [Stacked; MOST_OPERANDS],
}

const _: () = assert!(size_of::<QuantRowArgs>() == 528, "the layout of `QuantRowArgs` in quant_row.cu");

/// Columns of a cell, and cells of a chunk.
const CELL: usize = 64;
const CHUNK: usize = 4;
/// Warps of a block, and rows of weights of a warp.
const WARPS: usize = 8;
const WARP_ROWS: usize = 8;
/// Bytes of a cell in shared memory: `CELL_VECTORS` in quant_row.cu.
const CELL_BYTES: usize = 144;
/// The most shared memory of a block without asking for more.
const MOST_SHARED: usize = 48 << 10;

/// Launches a product of single rows. Returns `false` if it is of another form.
pub(crate) fn quant_row(
    step: &mut Step<'_>,
    out: ViewId,
    factors: Factors<'_>,
    (lhs, rhs): (&Choice, &Choice),
    epilogue: &Epilogue,
    before: Option<&Prim>,
) -> Result<bool, Fault> {
    let Factors::Quantized { x, w, transpose: true } = factors else { return Ok(false) };
    let [.., 1, length] = *step.shape(x).shape.as_slice() else { return Ok(false) };
    if whole_group(w.format).is_none() || lhs.is_some() || length == 0 {
        return Ok(false);
    }
    let Some(launch) = Row { x, w, out, rhs, length }.prepared(step, epilogue, before)? else { return Ok(false) };
    let Prepared { args, defines, text, grid } = launch;
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let special = Special { defines: &defines, generated: Some(Generated { digest: digest.as_str(), text: &text }) };
    step.run_special(&QUANT_ROW, special, "quant_row", grid, &args)?;
    Ok(true)
}

/// A product of single rows.
struct Row<'a> {
    x: ViewId,
    w: &'a Quantized,
    out: ViewId,
    rhs: &'a Choice,
    length: usize,
}

/// What is launched.
struct Prepared {
    args: QuantRowArgs,
    defines: Defines,
    text: String,
    grid: Grid,
}

impl Row<'_> {
    /// `None` if the kernel is not for it.
    fn prepared(&self, step: &Step<'_>, epilogue: &Epilogue, before: Option<&Prim>) -> Result<Option<Prepared>, Fault> {
        let shape = &step.shape(self.out).shape;
        let (Some(columns), Ok(length)) = (shape.last().copied(), u32::try_from(self.length)) else { return Ok(None) };
        let matrices: usize = shape.iter().rev().skip(2).product();
        if columns == 0 || matrices == 0 || matrices > 65_535 || length % 2 == 1 {
            return Ok(None);
        }
        let Some(mut args) = self.arguments(step, (length, columns), before.is_some()) else { return Ok(None) };
        let mut defines = defines(step, self.w)?;
        let Some(mut text) = self.prologue(step, before, &mut args, &mut defines) else { return Ok(None) };
        if let Some(fused) = epilogue {
            let Some(Then { operands, text: function }) = Then::of(step, &fused.ins, &fused.expr) else {
                return Ok(None);
            };
            args.others = operands;
            text.push_str(&function);
        }
        if defines.contains(&("VECTOR", "0")) {
            return Ok(None);
        }
        let is_single = !matches!(step.dtype(self.x), DType::F16 | DType::Bf16);
        let chosen = self.rhs.map_or("U32", |view| step.tag(view));
        defines.extend([("ROW", step.tag(self.x)), ("INDEX", chosen), ("HAS_EPILOGUE", flag(epilogue.is_some()))]);
        defines.extend([("CHOSEN", flag(self.rhs.is_some())), ("SINGLE", flag(is_single)), ("WARPS", "8")]);
        let shares = Shares::new(step, self, (columns, matrices));
        defines.extend([("SPLIT", shares.split.1), ("DEPTH", shares.depth)]);
        text.insert_str(0, &format!("#define OUT {}\n", tag(step.dtype(self.out))));
        let rows = if is_single { 2 } else { 1 };
        let staged = matches!(before, Some(Prim::Norm { .. }));
        let Some(grid) = shares.grid(self, (rows, staged), matrices, columns) else { return Ok(None) };
        Ok(Some(Prepared { args, defines, text, grid }))
    }

    /// The text of a prologue; what the kernel gets for it goes to the arguments and the macros. `None` if it is of another form.
    fn prologue(
        &self,
        step: &Step<'_>,
        before: Option<&Prim>,
        args: &mut QuantRowArgs,
        defines: &mut Defines,
    ) -> Option<String> {
        let mut text = String::new();
        let (kind, operands, tags) = match before {
            None => ("PLAIN_ROW", vec![Some(stacked(step, self.x, 2)?)], [Some(self.x), None, None]),
            Some(Prim::Norm { x, weight, bias, eps, kind, .. }) => {
                (args.eps, args.is_layer) = (*eps, (*kind == Normalize::Layer).into());
                let [weight_row, bias_row] = [weight, bias].map(|view| view.map(|view| vector(step, view)));
                let operands = vec![Some(stacked(step, *x, 2)?), weight_row.unwrap_or(None), bias_row.unwrap_or(None)];
                let found = operands.iter().flatten().count();
                let given = 1 + [weight, bias].into_iter().flatten().count();
                (found == given).then_some(("NORM_ROW", operands, [Some(*x), *weight, *bias]))?
            }
            Some(Prim::Map { ins, expr, .. }) if is_plain(expr) && ins.len() <= MOST_OPERANDS => {
                text = format!("namespace prologue {{\n{}}}\n", function_text(expr));
                let operands = ins.iter().map(|view| stacked(step, *view, 2).map(Some)).collect::<Option<Vec<_>>>()?;
                ("MAP_ROW", operands, [Some(self.x), None, None])
            }
            Some(_) => return None,
        };
        let [x, weight, bias] = tags.map(|view| view.map_or("F32", |view| step.tag(view)));
        let [_, has_weight, has_bias] = tags.map(|view| flag(view.is_some()));
        defines.extend([("PROLOGUE", kind), ("X", x), ("WEIGHT", weight), ("BIAS_ROW", bias)]);
        defines.extend([("HAS_WEIGHT", has_weight), ("HAS_BIAS_ROW", has_bias)]);
        args.row.iter_mut().zip(operands).for_each(|(to, from)| *to = from.unwrap_or_default());
        Some(text)
    }

    fn arguments(&self, step: &Step<'_>, (length, columns): (u32, usize), is_early: bool) -> Option<QuantRowArgs> {
        let w = self.w;
        let codes = stacked(step, w.codes, 2)?;
        let optional = |view: Option<ViewId>| match view {
            Some(view) => stacked(step, view, 2).filter(|found| found.column == 1),
            None => Some(Stacked { address: 0, matrix: 0, row: 0, column: 1 }),
        };
        let (scales, biases) = (optional(w.scales)?, optional(w.biases)?);
        let out = stacked(step, self.out, 2)?;
        let chosen = match *self.rhs {
            Some(view) => Some(stacked(step, view, 0)?),
            None => None,
        };
        let state = matches!(step.program.plan.buffer(step.shape(self.out).buf).kind, BufferKind::State);
        // A step that fails must not change a state.
        if codes.column != 1 || out.column != 1 || (chosen.is_some() && state) {
            return None;
        }
        if row_length(step, w) != self.length {
            return None;
        }
        let stack: usize = step.shape(w.codes).shape.iter().rev().skip(2).product();
        Some(QuantRowArgs {
            launch: if is_early { step.launch().of_next_step() } else { step.launch() },
            codes: codes.address,
            scales: scales.address,
            biases: biases.address,
            out: out.address,
            chosen: chosen.map_or(0, |chosen| chosen.address),
            chosen_step: chosen.map_or(0, |chosen| chosen.matrix),
            stack: i64::try_from(stack).ok()?,
            code_row: codes.row,
            code_matrix: codes.matrix,
            scale_row: scales.row,
            scale_matrix: scales.matrix,
            bias_row: biases.row,
            bias_matrix: biases.matrix,
            out_matrix: out.matrix,
            length,
            columns: u32::try_from(columns).ok()?,
            eps: 0.0,
            is_layer: 0,
            row: [Stacked::default(); MOST_OPERANDS],
            others: [Stacked::default(); MOST_OPERANDS],
        })
    }
}

/// How warps share the work.
struct Shares {
    /// Warps that share the chunks of a row of weights, and that number as text.
    split: (usize, &'static str),
    /// Chunks whose loads are under way together.
    depth: &'static str,
    /// The most blocks.
    most_blocks: usize,
}

/// Blocks that a multiprocessor runs at once.
const BLOCKS_AT_ONCE: usize = 3;

impl Shares {
    fn new(step: &Step<'_>, row: &Row<'_>, (columns, matrices): (usize, usize)) -> Self {
        let chunks = row.length.div_ceil(CELL * CHUNK);
        let warps = columns.div_ceil(WARP_ROWS) * matrices;
        // Few rows do not fill the device: then several warps share each.
        let room = step.info().multiprocessors as usize * WARPS;
        let fits = |split: &&(usize, &str)| split.0 < 2 * chunks && warps * split.0 <= room;
        let split = [(8, "8"), (4, "4"), (2, "2")].iter().find(fits).copied().unwrap_or((1, "1"));
        let most = if matches!(row.w.format, QuantFormat::Words { bits: 8, .. }) { 2 } else { 4 };
        let depth = match chunks.div_ceil(split.0).min(most) {
            0 | 1 => "1",
            2 => "2",
            3 => "3",
            4.. => "4",
        };
        Self { split, depth, most_blocks: step.info().multiprocessors as usize * BLOCKS_AT_ONCE }
    }

    /// `None` if a block would need too much shared memory.
    fn grid(&self, row: &Row<'_>, (rows, staged): (usize, bool), matrices: usize, columns: usize) -> Option<Grid> {
        let cells = row.length.div_ceil(CELL);
        let group = whole_group(row.w.format)?;
        let block_rows = WARP_ROWS * WARPS / self.split.0;
        let sums = if self.split.0 > 1 { rows * cells.div_ceil(CHUNK) * block_rows * size_of::<f32>() } else { 0 };
        let shared = rows * cells * (CELL_BYTES + CELL / group * size_of::<[f32; 2]>())
            + sums.max(if staged { row.length * size_of::<f32>() } else { 0 });
        // A block prepares the row once for all weights that it multiplies, so no more blocks than run at once.
        let blocks = columns.div_ceil(block_rows).min((self.most_blocks / matrices).max(1));
        let grid = Grid::new(u32::try_from(blocks).ok()?, u32::try_from(32 * WARPS).ok()?);
        let [x, ..] = grid.blocks;
        let blocks = [x, u32::try_from(matrices).ok()?, 1];
        (shared <= MOST_SHARED).then_some(Grid { blocks, shared_bytes: u32::try_from(shared).ok()?, ..grid })
    }
}

/// The weight or bias of a norm.
fn vector(step: &Step<'_>, view: ViewId) -> Option<Stacked> {
    stacked(step, view, 1).map(|found| Stacked { matrix: 0, ..found })
}
