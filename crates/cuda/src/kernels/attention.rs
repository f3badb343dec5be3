//! Scaled dot-product attention: `attention.cu`.

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
    runs: i64,
    scale: f32,
    causal: u32,
}

const _: () = assert!(size_of::<AttentionArgs>() == 824, "the layout of `AttentionArgs` in attention.cu");

/// Threads of a block; queries, columns of values and keys of a run, as in attention.cu.
const THREADS: u32 = 128;
const QUERIES: usize = 8;
const WIDTH: usize = 256;
const RUN: usize = 256;
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
        runs: 0,
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
    // A run more than the keys fill: the first may start in the middle of one.
    let runs = keys.size(2).div_ceil(RUN) + 1;
    let rows = batches * heads * tokens;
    let partial_bytes = rows.saturating_mul(runs).saturating_mul(4 * (width + 2));
    let is_busy = tiles * items >= 2 * step.info().multiprocessors as usize;
    // Numbers that change from step to step would change the number of runs, for which scratch memory is reserved now.
    if runs <= 2 || is_busy || partial_bytes > MOST_PARTIAL || !step.is_fixed(k) {
        return step.run(&ATTENTION, &defines, "attention", grid(tiles, items), &args);
    }
    args.partial = step.scratch(rows * runs * 8)?;
    args.mixes = step.scratch(rows * runs * width * 4)?;
    args.runs = i64::try_from(runs).unwrap_or(0);
    step.run(&ATTENTION, &defines, "attention_run", grid(tiles * runs, items), &args)?;
    step.run(&ATTENTION, &defines, "attention_merge", grid(rows, 1), &args)
}
