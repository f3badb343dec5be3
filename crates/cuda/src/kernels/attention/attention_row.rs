//! Attention of one token: `attention_row.cu`.

use crate::kernels::attention::{Attention, most_keys, most_parts};
use crate::kernels::together::{Part, part};
use crate::launch::Grid;
use crate::module::Variant;
use crate::step::{Launch, MOST_COUNTERS, Number, Step};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::bound::BoundView;
use ptero_plan::prim::{View, ViewId};

pub(crate) static ATTENTION_ROW: Part = part!("attention_row", "AttentionRowArgs");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AttentionRowArgs {
    launch: Launch,
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    q_head: i64,
    k_group: i64,
    k_row: i64,
    v_group: i64,
    v_row: i64,
    out_head: i64,
    keys: Number,
    first: Number,
    window: i64,
    partial: u64,
    mixes: u64,
    most_parts: i64,
    done: u64,
    scale: f32,
    unused: u32,
}

const _: () = assert!(size_of::<AttentionRowArgs>() == 160, "the layout of `AttentionRowArgs` in attention_row.cu");

const THREADS: u32 = 128;
/// Bytes of the widest load.
const VECTOR: usize = 16;
/// The most heads of a group, and elements of a head.
const MOST_HEADS: usize = 16;
const MOST_WIDTH: usize = 256;
/// Blocks of threads for each multiprocessor: parts beyond that are shared out.
const BLOCKS: usize = 4;

/// Launches the attention of one token. Returns `false` if it is of another form.
pub(crate) fn attention_row(step: &mut Step<'_>, out: ViewId, attention: &Attention<'_>) -> Result<bool, Fault> {
    let Attention { q, k, v, mask, first, window, scale, .. } = *attention;
    let (queries, keys, values, result) = (step.shape(q), step.shape(k), step.shape(v), step.shape(out));
    let ([1, heads, 1, depth], [_, groups, _, _], [_, _, _, width]) = (sizes(queries), sizes(keys), sizes(values))
    else {
        return Ok(false);
    };
    let has_form = depth.is_multiple_of(16)
        && width.is_multiple_of(64)
        && depth.max(width) <= MOST_WIDTH
        && (1..=MOST_HEADS).contains(&heads.checked_div(groups).unwrap_or(0))
        && groups <= MOST_COUNTERS;
    let is_row = |view: &BoundView| view.stride(3) == 1;
    let is_fixed = mask.is_none() && step.is_fixed(q) && step.is_fixed(out);
    let fits = has_form && is_fixed && [queries, keys, values, result].into_iter().all(is_row);
    let grows_only = |id: ViewId| {
        let View { shape, strides, offset, .. } = step.program.plan.view(id);
        let mut fixed = [0, 1, 3].iter().filter_map(|axis| shape.get(*axis)).chain(strides).chain([offset]);
        fixed.all(|number| step.program.plan.follows_sizes(number)) && has_vectors(step.shape(id))
    };
    let (true, Some(most)) = (fits && grows_only(k) && grows_only(v), most_keys(step, k)) else { return Ok(false) };
    let heads_of_group = (heads / groups).to_string();
    let (depth, width_text) = (depth.to_string(), width.to_string());
    let defines = [
        ("Q", step.tag(q)),
        ("K", step.tag(k)),
        ("V", step.tag(v)),
        ("OUT", step.tag(out)),
        ("HEADS", heads_of_group.as_str()),
        ("DEPTH", depth.as_str()),
        ("WIDTH", width_text.as_str()),
    ];
    let Some(number_of_keys) = step.program.plan.view(k).shape.get(2) else { return Ok(false) };
    let (number_of_keys, first) = (step.number(number_of_keys), step.number(first));
    let most_parts = most_parts(most);
    let done = step.counters(groups)?;
    let partial = step.scratch(heads * most_parts * 8)?;
    let mixes = step.scratch(heads * most_parts * width * 4)?;
    let address = |view: &BoundView| step.memory.address_of(step.program, view);
    let args = AttentionRowArgs {
        launch: step.launch(),
        q: address(queries)?,
        k: address(keys)?,
        v: address(values)?,
        out: address(result)?,
        q_head: queries.stride(1) as i64,
        k_group: keys.stride(1) as i64,
        k_row: keys.stride(2) as i64,
        v_group: values.stride(1) as i64,
        v_row: values.stride(2) as i64,
        out_head: result.stride(1) as i64,
        keys: number_of_keys,
        first,
        window: window.unwrap_or(i64::MAX),
        partial,
        mixes,
        most_parts: i64::try_from(most_parts).unwrap_or(0),
        done,
        scale,
        unused: 0,
    };
    let most_blocks = (BLOCKS * step.info().multiprocessors as usize).div_ceil(groups);
    let count = |count: usize| u32::try_from(count).unwrap_or(1);
    let blocks = [count(most_parts.min(most_blocks)), count(groups), 1];
    let variant = Variant { defines: &defines, generated: "" };
    step.run_part(&ATTENTION_ROW, variant, Grid { blocks, ..Grid::new(1, THREADS) }, &args);
    Ok(true)
}

/// The four sizes of a tensor of attention.
fn sizes(view: &BoundView) -> [usize; 4] {
    [0, 1, 2, 3].map(|axis| view.size(axis))
}

/// Returns `true` if every row starts at a multiple of the widest load.
fn has_vectors(view: &BoundView) -> bool {
    let is_aligned = |elements: usize| (elements * view.dtype.size()).is_multiple_of(VECTOR);
    is_aligned(view.offset) && [1, 2].iter().all(|axis| is_aligned(view.stride(*axis).unsigned_abs()))
}
