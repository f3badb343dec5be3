//! Scaled dot-product attention: `attention.cu`.

pub(crate) mod attention_row;
pub(crate) mod rope;

use crate::kernels::attention::attention_row::attention_row;
use crate::kernels::source;
use crate::launch::Grid;
use crate::module::Source;
use crate::step::{Launch, Number, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;

pub(crate) const ATTENTION: Source = source!("attention.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AttentionArgs {
    launch: Launch,
    out: ViewArg,
    q: ViewArg,
    k: ViewArg,
    v: ViewArg,
    mask: ViewArg,
    first: Number,
    window: i64,
    partial: u64,
    mixes: u64,
    most_parts: i64,
    scale: f32,
    causal: u32,
}

const _: () = assert!(size_of::<AttentionArgs>() == 824, "the layout of `AttentionArgs` in attention.cu");

/// Threads of a block; queries, columns of values, keys of a run, blocks of a run and runs whose blocks are parts, as in
/// attention.cu.
const THREADS: u32 = 128;
const QUERIES: usize = 8;
const WIDTH: usize = 256;
const RUN: usize = 256;
const RUN_BLOCKS: usize = 4;
const FINE_RUNS: usize = 16;
/// The most bytes of partial results.
const MOST_PARTIAL: usize = 64 << 20;

/// The parameters of an attention.
pub(crate) struct Attention<'a> {
    pub(crate) q: ViewId,
    pub(crate) k: ViewId,
    pub(crate) v: ViewId,
    pub(crate) mask: Option<ViewId>,
    pub(crate) first: &'a Dim,
    pub(crate) causal: bool,
    pub(crate) window: Option<i64>,
    pub(crate) scale: f32,
}

pub(crate) fn attention(step: &mut Step<'_>, out: ViewId, attention: &Attention<'_>) -> Result<(), Fault> {
    if attention_row(step, out, attention)? {
        return Ok(());
    }
    let Attention { q, k, v, mask, first, causal, window, scale } = *attention;
    let (queries, keys, width) = (step.shape(q).clone(), step.shape(k).clone(), step.shape(v).size(3));
    let mut args = AttentionArgs {
        launch: step.launch(),
        out: step.view(out),
        q: step.view(q),
        k: step.view(k),
        v: step.view(v),
        mask: mask.map_or_else(ViewArg::zeroed, |mask| step.view(mask)),
        first: step.number(first),
        window: window.unwrap_or(i64::MAX),
        partial: 0,
        mixes: 0,
        most_parts: 0,
        scale,
        causal: causal.into(),
    };
    let mask_kind = match mask.map(|mask| step.dtype(mask)) {
        None => "0",
        Some(DType::Bool) => "1",
        Some(_) => "2",
    };
    let defines = [
        ("Q", step.tag(q)),
        ("K", step.tag(k)),
        ("V", step.tag(v)),
        ("OUT", step.tag(out)),
        ("MASK", mask.map_or("Bool", |mask| step.tag(mask))),
        ("MASK_KIND", mask_kind),
    ];
    let (batches, heads, tokens, groups) = (queries.size(0), queries.size(1), queries.size(2), keys.size(1));
    let heads_per_group = heads.checked_div(groups).unwrap_or(1).max(1);
    let tiles = (heads_per_group * tokens).div_ceil(QUERIES);
    let items = batches * groups * width.div_ceil(WIDTH);
    let grid = |blocks: usize, items: usize| {
        let count = |count: usize| u32::try_from(count.clamp(1, 65_535)).unwrap_or(1);
        Grid { blocks: [count(blocks), count(items), 1], ..Grid::new(1, THREADS) }
    };
    let rows = batches * heads * tokens;
    let most_parts = most_keys(step, k).map_or(usize::MAX, most_parts);
    let partial_bytes = rows.saturating_mul(most_parts).saturating_mul(4 * (width + 2));
    let is_busy = tiles * items >= 2 * step.info().multiprocessors as usize;
    let is_short = step.is_fixed(k) && keys.size(2) <= RUN / RUN_BLOCKS;
    if is_short || is_busy || partial_bytes > MOST_PARTIAL {
        return step.run(&ATTENTION, &defines, "attention", grid(tiles, items), &args);
    }
    args.partial = step.scratch(rows * most_parts * 8)?;
    args.mixes = step.scratch(rows * most_parts * width * 4)?;
    args.most_parts = i64::try_from(most_parts).unwrap_or(0);
    // Keys may become more from step to step while the launch stays.
    let most_blocks = (8 * step.info().multiprocessors as usize).div_ceil(items.max(1));
    step.run(&ATTENTION, &defines, "attention_part", grid((tiles * most_parts).min(most_blocks), items), &args)?;
    step.run(&ATTENTION, &defines, "attention_merge", grid(rows, 1), &args)
}

/// The most keys that a view of keys can have while the sizes of the inputs stay, as it stays in its buffer; `None` if nothing tells.
pub(crate) fn most_keys(step: &Step<'_>, k: ViewId) -> Option<usize> {
    let (plan, bound) = (&step.program.plan, step.shape(k));
    if step.is_fixed(k) {
        return Some(bound.size(2));
    }
    let row = plan.view(k).strides.get(2).filter(|row| plan.follows_sizes(row))?.eval(&step.bound.values);
    let has_fixed_length = plan.follows_sizes(&plan.buffer(bound.buf).elements);
    let elements = has_fixed_length.then(|| step.bound.length(bound.buf) / bound.dtype.size())?;
    Some(elements.div_ceil(usize::try_from(row.unsigned_abs()).ok().filter(|row| *row > 0)?))
}

/// The most parts of this many keys. There may be a run more than they fill, since the first may start in the middle of one.
pub(crate) fn most_parts(keys: usize) -> usize {
    let runs = keys.div_ceil(RUN) + 1;
    (runs.min(FINE_RUNS) * RUN_BLOCKS).max(runs)
}
