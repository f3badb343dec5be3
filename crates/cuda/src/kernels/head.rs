//! Draws of a program: `head.cu` before and after `sample.cu`.

use crate::kernels::source;
use crate::launch::{Grid, In, Out};
use crate::module::Source;
use crate::program::{FIRST_OWN, device};
use crate::sample::{self, LogitType, SampleArgs};
use crate::step::{Launch, Step, ViewArg};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::prim::{Adjust, Sample, ViewId};
use ptero_sampling::log_probabilities::MOST_LIKELIEST;
use ptero_tensor::DType;

pub(crate) const HEAD: Source = source!("head.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct PrepareArgs {
    launch: Launch,
    logits: ViewArg,
    /// Temperature, top-k, top-p, min-p, exact tail, seed, which.
    parameters: [ViewArg; 7],
    /// In the order of [`Adjust`].
    adjust: [ViewArg; 9],
    to_logits: u64,
    to_parameters: [u64; 7],
    to_row: u64,
    /// History, tokens and values of biases, mask.
    to_lists: [u64; 4],
    to_sequence: u64,
    flags: u32,
    unused: u32,
}

const _: () = assert!(size_of::<PrepareArgs>() == 2720, "the layout of `PrepareArgs` in head.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct PublishArgs {
    launch: Launch,
    out: ViewArg,
    token: ViewArg,
    likeliest: ViewArg,
    of_likeliest: ViewArg,
    tokens: u64,
    of_tokens: u64,
    found: u64,
    of_found: u64,
    sequence: u64,
    flags: u32,
    unused: u32,
}

const _: () = assert!(size_of::<PublishArgs>() == 672, "the layout of `PublishArgs` in head.cu");

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SkipArgs {
    launch: Launch,
    temperature: ViewArg,
}

const _: () = assert!(size_of::<SkipArgs>() == 168, "the layout of `SkipArgs` in head.cu");

const HAS_SEED: u32 = 1;
const ADJUSTS: u32 = 2;
const HAS_WHICH: u32 = 4;
const PACKS: u32 = 8;
const HAS_EXACT_TAIL: u32 = 16;

const THREADS: u32 = 256;
/// Bytes of `RowAdjustments`.
const ROW_BYTES: usize = 40;

pub(crate) fn sample(step: &mut Step<'_>, views: &Sample) -> Result<(), Fault> {
    let (rows, vocabulary) = (step.shape(views.logits).size(0), step.shape(views.logits).size(1));
    if rows == 0 {
        return skip(step, views);
    }
    let logit_type = match step.dtype(views.logits) {
        DType::F16 => LogitType::F16,
        DType::Bf16 => LogitType::Bf16,
        _ => LogitType::F32,
    };
    let prepared = prepare(step, views)?;
    let results = Results::new(step, rows)?;
    let tensors = tensors(step, views, &prepared, &results)?;
    if !step.kernels.notes_draw(logit_type) {
        let sampler = device(step.kernels.sampler(logit_type))?;
        let size = (logit_type, rows, vocabulary, views.adjust.is_some());
        let workspace = device(step.scratch.workspace(step.stream, &sampler, size))?;
        device(sampler.launch_at(step.stream, tensors, workspace))?;
    }
    publish(step, views, &prepared, &results)
}

/// A draw of no rows: it takes a key, if it would have used one.
fn skip(step: &mut Step<'_>, views: &Sample) -> Result<(), Fault> {
    if views.seed.is_some() {
        return Ok(());
    }
    let args = SkipArgs { launch: step.launch(), temperature: step.view(views.temperature) };
    step.run(&HEAD, &[], "head_skip", Grid::new(1, 1), &args)
}

/// Where a draw writes.
struct Results {
    tokens: u64,
    of_tokens: u64,
    found: u64,
    of_found: u64,
}

impl Results {
    fn new(step: &mut Step<'_>, rows: usize) -> Result<Self, Fault> {
        Ok(Self {
            tokens: step.scratch(rows * 8)?,
            of_tokens: step.scratch(rows * 4)?,
            found: step.scratch(rows * MOST_LIKELIEST * 8)?,
            of_found: step.scratch(rows * MOST_LIKELIEST * 4)?,
        })
    }
}

/// Brings the parameters into the types and the order that the draw reads.
fn prepare(step: &mut Step<'_>, views: &Sample) -> Result<PrepareArgs, Fault> {
    let mut args = PrepareArgs { launch: step.launch(), logits: step.view(views.logits), ..PrepareArgs::zeroed() };
    let which = views.log_probabilities.as_ref().map(|more| more.which);
    let settings = [views.temperature, views.top_k, views.top_p, views.min_p].map(Some);
    let parameters = settings.into_iter().chain([views.exact_tail, views.seed, which]);
    for ((view, to), address) in parameters.zip(&mut args.parameters).zip(&mut args.to_parameters) {
        if let Some(view) = view {
            (*to, *address) = (step.view(view), step.scratch(step.shape(view).count() * 8)?);
        }
    }
    if let Some(adjust) = &views.adjust {
        let Adjust { history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask } =
            adjust;
        let all = [history, last, prompt_end, repetition, presence, frequency, bias_tokens, bias_values, mask];
        args.adjust = all.map(|view| step.view(*view));
        for (view, to) in [history, bias_tokens, bias_values, mask].into_iter().zip(&mut args.to_lists) {
            *to = step.scratch(step.shape(*view).count() * 4)?;
        }
        args.to_row = step.scratch(ROW_BYTES)?;
        args.flags |= ADJUSTS;
    }
    args.to_sequence = step.scratch(8)?;
    args.flags |= if views.seed.is_some() { HAS_SEED } else { 0 };
    args.flags |= if views.exact_tail.is_some() { HAS_EXACT_TAIL } else { 0 };
    args.flags |= if which.is_some() { HAS_WHICH } else { 0 };
    let logits = step.shape(views.logits);
    let mut items = logits.size(0);
    if !is_in_place(step, views.logits) {
        args.to_logits = step.scratch(logits.count() * logits.dtype.size())?;
        args.flags |= PACKS;
        items = logits.count();
    }
    if let Some(adjust) = &views.adjust {
        items = items.max(step.shape(adjust.history).count()).max(step.shape(adjust.mask).count());
    }
    step.run(&HEAD, &[], "head_prepare", step.grid(items, THREADS as usize, THREADS), &args)?;
    Ok(args)
}

/// Returns `true` if the draw can read logits where they are.
fn is_in_place(step: &Step<'_>, logits: ViewId) -> bool {
    let view = step.shape(logits);
    let is_row = view.size(1) == 1 || view.stride(1) == 1;
    // Buffers of their own may move.
    let stays = step.program.site(view.buf).region < FIRST_OWN;
    is_row && (view.size(0) == 1 || view.stride(0) > 0) && stays && step.is_fixed(logits)
}

/// What the draw reads and writes.
fn tensors(step: &Step<'_>, views: &Sample, prepared: &PrepareArgs, results: &Results) -> Result<SampleArgs, Fault> {
    let logits = step.shape(views.logits);
    let (address, stride) = if prepared.flags & PACKS == 0 {
        (step.memory.address_of(step.program, logits)?, logits.stride(0).unsigned_abs())
    } else {
        (prepared.to_logits, logits.size(1))
    };
    let [temperature, top_k, top_p, min_p, exact_tail, seed, which] = prepared.to_parameters;
    let [history, bias_tokens, bias_values, mask] = prepared.to_lists;
    let length = |view: ViewId| u32::try_from(step.shape(view).count()).unwrap_or(u32::MAX);
    let lengths = views
        .adjust
        .as_ref()
        .map_or([0; 3], |adjust| [length(adjust.history), length(adjust.bias_tokens), length(adjust.mask)]);
    let settings = [
        (sample::TEMPERATURE, Some(views.temperature)),
        (sample::TOP_K, Some(views.top_k)),
        (sample::TOP_P, Some(views.top_p)),
        (sample::MIN_P, Some(views.min_p)),
        (sample::SEED, views.seed),
        (sample::EXACT_TAIL, views.exact_tail),
    ];
    let per_row = settings.iter().filter(|(_, view)| view.is_some_and(|view| length(view) > 1));
    Ok(SampleArgs {
        logits: In::at(address),
        stride: stride as u64,
        temperature: In::at(temperature),
        top_k: In::at(top_k),
        top_p: In::at(top_p),
        min_p: In::at(min_p),
        exact_tail: In::at(exact_tail),
        seed: In::at(seed),
        sequence: Out::at(prepared.to_sequence),
        tokens: Out::at(results.tokens),
        adjustments: In::at(prepared.to_row),
        history: In::at(history),
        bias_tokens: In::at(bias_tokens),
        bias_values: In::at(bias_values),
        mask: In::at(mask),
        which: In::at(which),
        log_probability: Out::at(results.of_tokens),
        likeliest: Out::at(results.found),
        of_likeliest: Out::at(results.of_found),
        flags: per_row.fold(0, |flags, (bit, _)| flags | bit),
        lengths,
        ..SampleArgs::zeroed()
    })
}

/// Stores what was drawn.
fn publish(step: &mut Step<'_>, views: &Sample, prepared: &PrepareArgs, results: &Results) -> Result<(), Fault> {
    let more = views.log_probabilities.as_ref();
    let view = |id: Option<ViewId>| id.map_or_else(ViewArg::zeroed, |id| step.view(id));
    let args = PublishArgs {
        launch: step.launch(),
        out: step.view(views.out),
        token: view(more.map(|more| more.token)),
        likeliest: view(more.map(|more| more.likeliest)),
        of_likeliest: view(more.map(|more| more.of_likeliest)),
        tokens: results.tokens,
        of_tokens: results.of_tokens,
        found: results.found,
        of_found: results.of_found,
        sequence: prepared.to_sequence,
        flags: prepared.flags,
        unused: 0,
    };
    step.run(&HEAD, &[], "head_publish", Grid::new(1, THREADS), &args)
}
