//! Products of one row of activations with quantized weights, with prologue and epilogue: `quant_row.cu`.

use crate::kernels::flag;
use crate::kernels::products::matmul::stack;
use crate::kernels::products::product::{Before, Epilogue, Factors};
use crate::kernels::products::prologue::Prologue;
use crate::kernels::quant::quant_matmul::{are_sorted, whole_group};
use crate::kernels::quant::{Defines, defines, row_length};
use crate::kernels::rows::{MOST_OPERANDS, Stacked, Then, contiguous, contiguous_if_any, stacked};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::plan::BufferKind;
use ptero_plan::prim::{Choice, Prim, QuantFormat, Quantized, ViewId};
use ptero_tensor::DType;

pub(crate) static QUANT_ROW: Part = part!("quant_row", "QuantRowArgs");

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

/// Launches a product of single rows, and `before` what computes the row. Returns `false` if it is of another form.
pub(crate) fn quant_row(
    step: &mut Step<'_>,
    out: ViewId,
    factors: Factors<'_>,
    (lhs, rhs): (&Choice, &Choice),
    epilogue: &Epilogue,
    before: Before<'_>,
) -> Result<bool, Fault> {
    let Factors::Quantized { x, w, transpose: true } = factors else { return Ok(false) };
    let defines = defines(step, w)?;
    let is_readable = !defines.contains(&("VECTOR", "0"))
        && are_there_before(step, [Some(w.codes), w.scales, w.biases].into_iter().flatten());
    let row = Row { x, w, out, rhs, epilogue, before };
    let prepared = if lhs.is_none() && is_readable { row.prepared(step, defines) } else { None };
    let Some(Prepared { args, defines, generated, grid }) = prepared else { return Ok(false) };
    let variant = Variant { defines: &defines, generated: &generated };
    step.run_part(&QUANT_ROW, variant, grid, &args);
    Ok(true)
}

/// Returns `true` if no launch of a step writes these weights: kernels read them before they wait for the launch before.
pub(crate) fn are_there_before(step: &Step<'_>, weights: impl IntoIterator<Item = ViewId>) -> bool {
    weights.into_iter().all(|view| {
        let kind = &step.program.plan.buffer(step.shape(view).buf).kind;
        matches!(kind, BufferKind::Constant(_) | BufferKind::Derived | BufferKind::Input(_))
    })
}

/// A product of single rows.
struct Row<'a> {
    x: ViewId,
    w: &'a Quantized,
    out: ViewId,
    rhs: &'a Choice,
    epilogue: &'a Epilogue,
    before: Before<'a>,
}

/// What is launched.
struct Prepared {
    args: QuantRowArgs,
    defines: Defines,
    generated: String,
    grid: Grid,
}

impl Row<'_> {
    /// `None` if the kernel is not for it.
    fn prepared(&self, step: &Step<'_>, mut defines: Defines) -> Option<Prepared> {
        let [.., 1, length] = *step.shape(self.x).shape.as_slice() else { return None };
        let [outer @ .., _, columns] = step.shape(self.out).shape.as_slice() else { return None };
        let (columns, matrices) = (*columns, outer.iter().product());
        let is_empty = columns == 0 || matrices == 0 || length == 0;
        // These are faster in tiles.
        let are_sorted = self.rhs.is_some() && are_sorted(matrices, 1, stack(step.shape(self.w.codes)));
        if is_empty || are_sorted || matrices > 65_535 || length % 2 == 1 || length != row_length(step, self.w) {
            return None;
        }
        let prologue = Prologue::of(step, self.x, self.before.prim())?;
        let mut generated = prologue.text.clone();
        let mut args = self.arguments(step, (length, columns), &prologue)?;
        if let Some(fused) = self.epilogue {
            let then = Then::of(step, &fused.ins, &fused.expr)?;
            args.others = then.operands;
            generated.push_str(&then.text);
        }
        let is_single = !matches!(step.dtype(self.x), DType::F16 | DType::Bf16);
        let shares = Shares::new(step, self, length, (columns, matrices));
        defines.extend(prologue.defines(step));
        defines.extend([("ROW", step.tag(self.x)), ("OUT", step.tag(self.out))]);
        defines
            .extend([("INDEX", self.rhs.map_or("U32", |view| step.tag(view))), ("CHOSEN", flag(self.rhs.is_some()))]);
        defines.extend([("HAS_EPILOGUE", flag(self.epilogue.is_some())), ("SINGLE", flag(is_single)), ("WARPS", "8")]);
        defines.extend([("SPLIT", shares.split.1), ("DEPTH", shares.depth)]);
        defines.push(("WHOLE", flag(length.is_multiple_of(CELL))));
        let rows = if is_single { 2 } else { 1 };
        let staged = if matches!(self.before.prim(), Some(Prim::Norm { .. })) { length } else { 0 };
        let grid = shares.grid(self.w, (rows, length, staged), (columns, matrices))?;
        Some(Prepared { args, defines, generated, grid })
    }

    fn arguments(
        &self,
        step: &Step<'_>,
        (length, columns): (usize, usize),
        prologue: &Prologue,
    ) -> Option<QuantRowArgs> {
        let (codes, out) = (contiguous(step, self.w.codes, 2)?, contiguous(step, self.out, 2)?);
        let [scales, biases] = [self.w.scales, self.w.biases].map(|view| contiguous_if_any(step, view, 2));
        let (scales, biases) = (scales?, biases?);
        let chosen = self.rhs.map_or(Some(Stacked::default()), |view| stacked(step, view, 0))?;
        let is_state = matches!(step.program.plan.buffer(step.shape(self.out).buf).kind, BufferKind::State);
        // A step that fails must not change a state.
        if self.rhs.is_some() && is_state {
            return None;
        }
        Some(QuantRowArgs {
            launch: if matches!(self.before, Before::Joined(_)) { step.launch().of_next_step() } else { step.launch() },
            codes: codes.address,
            scales: scales.address,
            biases: biases.address,
            out: out.address,
            chosen: chosen.address,
            chosen_step: chosen.matrix,
            stack: i64::try_from(stack(step.shape(self.w.codes))).ok()?,
            code_row: codes.row,
            code_matrix: codes.matrix,
            scale_row: scales.row,
            scale_matrix: scales.matrix,
            bias_row: biases.row,
            bias_matrix: biases.matrix,
            out_matrix: out.matrix,
            length: u32::try_from(length).ok()?,
            columns: u32::try_from(columns).ok()?,
            eps: prologue.eps,
            is_layer: prologue.is_layer.into(),
            row: prologue.operands,
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
    fn new(step: &Step<'_>, row: &Row<'_>, length: usize, (columns, matrices): (usize, usize)) -> Self {
        let chunks = length.div_ceil(CELL * CHUNK);
        let warps = columns.div_ceil(WARP_ROWS) * matrices;
        // Few rows do not fill the device: then several warps share each.
        let room = step.info().multiprocessors as usize * WARPS / step.lanes;
        let fits = |split: &&(usize, &str)| split.0 < 2 * chunks && warps * split.0 <= room;
        let split = [(8, "8"), (4, "4"), (2, "2")].iter().find(fits).copied().unwrap_or((1, "1"));
        let most = if matches!(row.w.format, QuantFormat::Words { bits: 8, .. }) { 2 } else { 4 };
        let depth = match chunks.div_ceil(split.0).min(most) {
            0 | 1 => "1",
            2 => "2",
            3 => "3",
            4.. => "4",
        };
        Self { split, depth, most_blocks: step.info().multiprocessors as usize * BLOCKS_AT_ONCE / step.lanes }
    }

    /// The grid for `rows` rows of whole numbers from one of `length` floats, of which `staged` are held first. `None` if a block would
    /// need too much shared memory.
    fn grid(
        &self,
        w: &Quantized,
        (rows, length, staged): (usize, usize, usize),
        (columns, matrices): (usize, usize),
    ) -> Option<Grid> {
        let cells = length.div_ceil(CELL);
        let block_rows = WARP_ROWS * WARPS / self.split.0;
        let sums = if self.split.0 > 1 { rows * cells.div_ceil(CHUNK) * block_rows } else { 0 };
        let shared = rows * cells * (CELL_BYTES + CELL / whole_group(w.format)? * size_of::<[f32; 2]>())
            + sums.max(staged) * size_of::<f32>();
        // A block prepares the row once for all weights that it multiplies, so no more blocks than run at once.
        let blocks = columns.div_ceil(block_rows).min((self.most_blocks / matrices).max(1));
        let blocks = [u32::try_from(blocks).ok()?, u32::try_from(matrices).ok()?, 1];
        let shared_bytes = u32::try_from(shared).ok().filter(|_| shared <= MOST_SHARED)?;
        Some(Grid { blocks, shared_bytes, ..Grid::new(1, u32::try_from(32 * WARPS).ok()?) })
    }
}
