//! Drawing tokens on the device: `sample.cu`.
//!
//! Everything a draw depends on is in device memory, so a captured launch draws anew each time it is replayed, with the current
//! logits, settings and seeds. Nothing waits for the host.

use crate::buffer::Buffer;
use crate::context::Device;
use crate::error::{Error, Result};
use crate::launch::{Binding, Grid, In, Kernel, Out};
use crate::module::{Module, Source};
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use ptero_sampling::log_probabilities::MOST_LIKELIEST;

/// What the kernels include.
const HEADERS: &[(&str, &str)] = &[
    ("adjust.cuh", include_str!("adjust.cuh")),
    ("candidates.cuh", include_str!("candidates.cuh")),
    ("contract.cuh", include_str!("contract.cuh")),
    ("few.cuh", include_str!("few.cuh")),
    ("filter.cuh", include_str!("filter.cuh")),
    ("group.cuh", include_str!("group.cuh")),
    ("likeliest.cuh", include_str!("likeliest.cuh")),
    ("nucleus.cuh", include_str!("nucleus.cuh")),
    ("rows.cuh", include_str!("rows.cuh")),
    ("whole.cuh", include_str!("whole.cuh")),
];

/// A source for each [`LogitType`], in its order: compiling takes seconds, and a program has one type.
pub(crate) type Sources = [Source; 3];

/// The sources of a file, in which the type is `LOGITS`.
macro_rules! sources {
    ($file:literal) => {{
        const fn source(name: &'static str, text: &'static str) -> Source {
            Source { name, text, headers: HEADERS, fused_multiply_add: false }
        }
        [
            source(concat!($file, " for f32"), concat!("#define LOGITS F32\n", include_str!($file))),
            source(concat!($file, " for f16"), concat!("#define LOGITS F16\n", include_str!($file))),
            source(concat!($file, " for bf16"), concat!("#define LOGITS Bf16\n", include_str!($file))),
        ]
    }};
}

pub(crate) const SAMPLE: Sources = sources!("sample.cu");
pub(crate) const CATEGORICAL: Sources = sources!("categorical.cu");

/// Threads of a block.
pub(crate) const THREADS: u32 = 512;
/// Shared memory of a block: `BlockState`.
pub(crate) const BLOCK_STATE_BYTES: u32 = 90_464;
/// Global memory that the blocks of a row share: `GroupState`.
const GROUP_STATE_BYTES: usize = 147_520;
/// The least number of logits of a row that a block takes, if several blocks share the row.
const LEAST_SHARE: u32 = 2048;
/// From this many logits on, two blocks share a multiprocessor.
const MANY_LOGITS: usize = 1 << 22;
/// The most blocks that can share a row: the slots of a `GroupState`.
const MOST_BLOCKS: u32 = 256;

/// The types that logits come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after themselves")]
pub enum LogitType {
    F32,
    F16,
    Bf16,
}

impl LogitType {
    pub(crate) fn source([f32, f16, bf16]: &Sources, logits: Self) -> &Source {
        match logits {
            Self::F32 => f32,
            Self::F16 => f16,
            Self::Bf16 => bf16,
        }
    }
}

/// Rows of logits.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named after their types")]
pub enum Logits<'b> {
    F32(&'b Buffer<f32>),
    F16(&'b Buffer<f16>),
    Bf16(&'b Buffer<bf16>),
}

impl<'b> Logits<'b> {
    fn len(&self) -> usize {
        match self {
            Self::F32(buffer) => buffer.len(),
            Self::F16(buffer) => buffer.len(),
            Self::Bf16(buffer) => buffer.len(),
        }
    }

    pub(crate) fn bind(self, bind: &mut Binding<'b>) -> In<u8> {
        match self {
            Self::F32(buffer) => bind.read(buffer).cast(),
            Self::F16(buffer) => bind.read(buffer).cast(),
            Self::Bf16(buffer) => bind.read(buffer).cast(),
        }
    }

    fn kind(&self) -> LogitType {
        match self {
            Self::F32(_) => LogitType::F32,
            Self::F16(_) => LogitType::F16,
            Self::Bf16(_) => LogitType::Bf16,
        }
    }

    /// Checks that there are `expected` logits of type `kind`.
    pub(crate) fn check(&self, kind: LogitType, expected: usize) -> Result<()> {
        if self.kind() != kind {
            return Err(Error::Logits { is: self.kind(), expected: kind });
        }
        check("logits", self.len(), &[expected])
    }
}

/// What to draw: settings and seeds have one element for all rows, or one for each.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    /// Rows of logits, one after another.
    pub logits: Logits<'b>,
    /// Temperatures.
    pub temperature: &'b Buffer<f32>,
    /// How many tokens to keep.
    pub top_k: &'b Buffer<i64>,
    /// The mass to keep.
    pub top_p: &'b Buffer<f32>,
    /// The least probability to keep, relative to that of the likeliest token. `None` keeps all.
    pub min_p: Option<&'b Buffer<f32>>,
    /// Above 0: very unlikely tokens are drawn as often as they should be, too ([`ptero_sampling::noise`]). `None` is 0.
    pub exact_tail: Option<&'b Buffer<i64>>,
    /// One seed draws all rows as one stream of noise, one per row draws each as if it were alone. `None` takes the next key of the
    /// workspace's own sequence.
    pub seed: Option<&'b Buffer<i64>>,
    /// What changes the logits. The workspace must be made for it.
    pub adjustments: Option<Adjustments<'b>>,
    /// Which log-probabilities to find: codes of [`ptero_sampling::log_probabilities::LogProbabilities`].
    pub log_probabilities: Option<&'b Buffer<i64>>,
}

/// What changes the logits of each row, all of it in device memory. A row uses parts of the other buffers; what it says lies
/// beyond their ends does not exist.
#[derive(Clone, Copy, Debug)]
pub struct Adjustments<'b> {
    /// One for each row.
    pub rows: &'b Buffer<RowAdjustments>,
    /// Tokens so far.
    pub history: &'b Buffer<i32>,
    /// Tokens whose logits change.
    pub bias_tokens: &'b Buffer<i32>,
    /// What is added to the logits of those tokens.
    pub bias_values: &'b Buffer<f32>,
    /// A bit for each token, 1 for those that may be drawn.
    pub mask: &'b Buffer<i32>,
}

/// What changes the logits of a row: `ptero_sampling::adjust`. Rows without penalties, biases and words of a mask cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RowAdjustments {
    /// Where the row's tokens start in the history, and how many there are.
    pub history: [u32; 2],
    /// How many of those are the prompt.
    pub prompt_end: u32,
    /// Where the row's biases start, and how many there are.
    pub biases: [u32; 2],
    /// Where the row's words of the mask start, and how many there are.
    pub mask: [u32; 2],
    /// The penalties: repetition, presence, frequency.
    pub penalties: [f32; 3],
}

impl RowAdjustments {
    /// Changes nothing.
    pub const NONE: Self =
        Self { history: [0; 2], prompt_end: 0, biases: [0; 2], mask: [0; 2], penalties: [1.0, 0.0, 0.0] };
}

const _: () = assert!(size_of::<RowAdjustments>() == 40, "the layout of `Adjustments` in rows.cuh");

/// What a draw writes.
#[derive(Debug)]
pub struct Results {
    /// A token for each row.
    pub tokens: Buffer<u32>,
    /// The log-probability of each.
    pub log_probability: Buffer<f32>,
    /// The likeliest tokens of each row, [`MOST_LIKELIEST`] each.
    pub likeliest: Buffer<i64>,
    /// Their log-probabilities.
    pub of_likeliest: Buffer<f32>,
}

impl Results {
    /// Allocates results of `rows` rows.
    pub fn new(stream: &Stream, rows: usize) -> Result<Self> {
        Ok(Self {
            tokens: Buffer::zeroed(stream, rows)?,
            log_probability: Buffer::zeroed(stream, rows)?,
            likeliest: Buffer::zeroed(stream, rows * MOST_LIKELIEST)?,
            of_likeliest: Buffer::zeroed(stream, rows * MOST_LIKELIEST)?,
        })
    }
}

/// What the kernels get (`SampleArgs` in rows.cuh).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SampleArgs {
    pub(crate) logits: In<u8>,
    pub(crate) temperature: In<f32>,
    pub(crate) top_k: In<i64>,
    pub(crate) top_p: In<f32>,
    pub(crate) min_p: In<f32>,
    pub(crate) exact_tail: In<i64>,
    pub(crate) seed: In<i64>,
    pub(crate) sequence: Out<u32>,
    pub(crate) tokens: Out<u32>,
    pub(crate) best: Out<u64>,
    pub(crate) arrived: Out<u32>,
    pub(crate) group_states: Out<u8>,
    pub(crate) adjustments: In<RowAdjustments>,
    pub(crate) history: In<i32>,
    pub(crate) bias_tokens: In<i32>,
    pub(crate) bias_values: In<f32>,
    pub(crate) mask: In<i32>,
    pub(crate) adjusted: Out<f32>,
    pub(crate) which: In<i64>,
    pub(crate) kept: Out<u32>,
    pub(crate) log_probability: Out<f32>,
    pub(crate) likeliest: Out<i64>,
    pub(crate) of_likeliest: Out<f32>,
    pub(crate) stride: u64,
    pub(crate) rows: u32,
    pub(crate) vocabulary: u32,
    pub(crate) blocks: u32,
    pub(crate) flags: u32,
    pub(crate) share: u32,
    /// The lengths of the history, of the biases and of the mask.
    pub(crate) lengths: [u32; 3],
}

const _: () = assert!(size_of::<SampleArgs>() == 224, "the layout of `SampleArgs` in rows.cuh");

impl Adjustments<'_> {
    /// The lengths of the history, of the biases and of the mask, if they are those of this many rows.
    fn lengths(&self, rows: usize) -> Result<[u32; 3]> {
        check("adjustments", self.rows.len(), &[rows])?;
        check("bias_values", self.bias_values.len(), &[self.bias_tokens.len()])?;
        // A row cannot reach more.
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Ok([self.history.len(), self.bias_tokens.len(), self.mask.len()].map(length))
    }
}

/// Bits of `flags` in rows.cuh: settings that have an element for each row, and tokens of 64 bits.
pub(crate) const TEMPERATURE: u32 = 1;
pub(crate) const TOP_K: u32 = 2;
pub(crate) const TOP_P: u32 = 4;
pub(crate) const SEED: u32 = 8;
const WIDE_TOKENS: u32 = 16;
pub(crate) const MIN_P: u32 = 32;
const LOG_PROBABILITIES: u32 = 64;
pub(crate) const EXACT_TAIL: u32 = 128;

/// The sampling kernels of a device, for one type of logits.
#[derive(Debug)]
pub struct Sampler {
    logits: LogitType,
    few: Cooperative<SampleArgs>,
    many: Cooperative<SampleArgs>,
}

impl Sampler {
    /// Compiles the kernels, or takes them from the cache.
    pub fn new(device: &Device, logits: LogitType) -> Result<Self> {
        let module = Module::load(device, LogitType::source(&SAMPLE, logits))?;
        let (few, many) = (Cooperative::new(&module, "sample_few")?, Cooperative::new(&module, "sample_many")?);
        Ok(Self { logits, few, many })
    }

    /// The kernel for `rows` rows of `vocabulary` logits.
    fn kernel(&self, rows: usize, vocabulary: usize) -> &Cooperative<SampleArgs> {
        if rows.saturating_mul(vocabulary) < MANY_LOGITS { &self.few } else { &self.many }
    }

    /// Allocates what draws of `rows` rows need beside their inputs: if logits are adjusted, also a copy of them. Draws that
    /// share a workspace must be on one stream.
    pub fn workspace(&self, stream: &Stream, rows: usize, vocabulary: usize, adjusts: bool) -> Result<Workspace> {
        let split = Split::new(self.kernel(rows, vocabulary).resident_blocks, rows, vocabulary)?;
        Ok(Workspace {
            split,
            sequence: Buffer::zeroed(stream, 2)?,
            best: Buffer::zeroed(stream, rows)?,
            arrived: Buffer::zeroed(stream, 3)?,
            group_states: split.group_states(stream)?,
            kept: Buffer::zeroed(stream, rows)?,
            adjusted: Buffer::zeroed(stream, if adjusts { rows * vocabulary } else { 0 })?,
        })
    }

    /// Puts the draw on the stream.
    pub fn launch<'b>(
        &self,
        stream: &'b Stream,
        request: Request<'b>,
        workspace: &'b mut Workspace,
        results: &'b mut Results,
    ) -> Result<()> {
        let Request { logits, temperature, top_k, top_p, min_p, exact_tail, seed, adjustments, log_probabilities } =
            request;
        let Workspace { split, adjusted, .. } = &*workspace;
        let Results { tokens, log_probability, likeliest, of_likeliest } = results;
        let rows = split.rows as usize;
        logits.check(self.logits, rows * split.vocabulary as usize)?;
        check("tokens", tokens.len(), &[rows])?;
        check("log_probability", log_probability.len(), &[rows])?;
        check("likeliest", likeliest.len(), &[rows * MOST_LIKELIEST])?;
        check("of_likeliest", of_likeliest.len(), &[rows * MOST_LIKELIEST])?;
        let lengths = adjustments.map_or(Ok([0; 3]), |adjustments| adjustments.lengths(rows))?;
        if adjustments.is_some() {
            check("adjusted", adjusted.len(), &[rows * split.vocabulary as usize])?;
        }
        let mut flags = 0;
        for (bit, name, length) in [
            (TEMPERATURE, "temperature", temperature.len()),
            (TOP_K, "top_k", top_k.len()),
            (TOP_P, "top_p", top_p.len()),
            (SEED, "seed", seed.map_or(1, Buffer::len)),
            (MIN_P, "min_p", min_p.map_or(1, Buffer::len)),
            (LOG_PROBABILITIES, "log_probabilities", log_probabilities.map_or(1, Buffer::len)),
            (EXACT_TAIL, "exact_tail", exact_tail.map_or(1, Buffer::len)),
        ] {
            check(name, length, &[1, rows])?;
            flags |= if length > 1 { bit } else { 0 };
        }
        let stride = u64::from(split.vocabulary);
        self.put(stream, workspace, flags, |bind, sequence| SampleArgs {
            logits: logits.bind(bind),
            temperature: bind.read(temperature),
            top_k: bind.read(top_k),
            top_p: bind.read(top_p),
            min_p: min_p.map_or_else(In::zeroed, |min_p| bind.read(min_p)),
            exact_tail: exact_tail.map_or_else(In::zeroed, |exact_tail| bind.read(exact_tail)),
            seed: seed.map_or_else(In::zeroed, |seed| bind.read(seed)),
            sequence: bind.write(sequence),
            tokens: bind.write(tokens),
            adjustments: adjustments.map_or_else(In::zeroed, |adjustments| bind.read(adjustments.rows)),
            history: adjustments.map_or_else(In::zeroed, |adjustments| bind.read(adjustments.history)),
            bias_tokens: adjustments.map_or_else(In::zeroed, |adjustments| bind.read(adjustments.bias_tokens)),
            bias_values: adjustments.map_or_else(In::zeroed, |adjustments| bind.read(adjustments.bias_values)),
            mask: adjustments.map_or_else(In::zeroed, |adjustments| bind.read(adjustments.mask)),
            which: log_probabilities.map_or_else(In::zeroed, |which| bind.read(which)),
            log_probability: bind.write(log_probability),
            likeliest: bind.write(likeliest),
            of_likeliest: bind.write(of_likeliest),
            stride,
            lengths,
            ..SampleArgs::zeroed()
        })
    }

    /// Puts a draw of a program on the stream, whose tensors lie at addresses. Their memory must live until the draw is done.
    pub(crate) fn launch_at(&self, stream: &Stream, tensors: SampleArgs, workspace: &mut Workspace) -> Result<()> {
        self.put(stream, workspace, tensors.flags | WIDE_TOKENS, |_, _| tensors)
    }

    /// Puts a draw on the stream, with all that it needs beside its tensors.
    fn put<'b>(
        &self,
        stream: &'b Stream,
        workspace: &'b mut Workspace,
        flags: u32,
        tensors: impl FnOnce(&mut Binding<'b>, &'b mut Buffer<u32>) -> SampleArgs,
    ) -> Result<()> {
        let Workspace { split, sequence, best, arrived, group_states, kept, adjusted } = workspace;
        let kernel = &self.kernel(split.rows as usize, split.vocabulary as usize).kernel;
        kernel.launch(stream, split.grid(), |bind| SampleArgs {
            best: bind.write(best),
            arrived: bind.write(arrived),
            group_states: bind.write(group_states),
            adjusted: bind.write(adjusted),
            kept: bind.write(kept),
            rows: split.rows,
            vocabulary: split.vocabulary,
            blocks: split.blocks_per_row,
            flags,
            share: split.pairs_per_block(flags & SEED != 0),
            ..tensors(bind, sequence)
        })
    }
}

/// Memory that draws of one size need. A draw changes nothing in it but the sequence of keys.
#[derive(Debug)]
pub struct Workspace {
    split: Split,
    sequence: Buffer<u32>,
    best: Buffer<u64>,
    arrived: Buffer<u32>,
    group_states: Buffer<u8>,
    kept: Buffer<u32>,
    adjusted: Buffer<f32>,
}

impl Workspace {
    /// Starts the sequence of keys, which draws without a seed take theirs from.
    pub fn start_sequence(&mut self, seed: u64) -> Result<()> {
        self.sequence.write(0, &ptero_sampling::threefry::key(seed))
    }
}

/// How rows are split among the blocks that the device runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) rows: u32,
    pub(crate) vocabulary: u32,
    /// Blocks that share a row. One, if there are at least as many rows as blocks.
    pub(crate) blocks_per_row: u32,
    blocks: u32,
}

impl Split {
    pub(crate) fn new(resident_blocks: u32, rows: usize, vocabulary: usize) -> Result<Self> {
        let longest = ptero_sampling::mass::LONGEST_ROW;
        if !(1..=longest).contains(&vocabulary) {
            return Err(Error::Vocabulary { vocabulary, longest });
        }
        let vocabulary = u32::try_from(vocabulary).expect("not above the longest");
        // Words of noise are counted in 32 bits.
        let fits = |rows: &u32| *rows > 0 && rows.checked_mul(vocabulary).is_some();
        let rows = u32::try_from(rows).ok().filter(fits).ok_or(Error::Rows(rows))?;
        let most = vocabulary.div_ceil(LEAST_SHARE).min(MOST_BLOCKS);
        let blocks_per_row = (resident_blocks / rows).clamp(1, most);
        // Whole rows are split without regard to where they end.
        let useful = (rows * vocabulary).div_ceil(2 * THREADS).max(rows.saturating_mul(blocks_per_row));
        Ok(Self { rows, vocabulary, blocks_per_row, blocks: resident_blocks.min(useful) })
    }

    /// The share of each block in the pairs of words of all rows, whether those are one stream of noise or one each.
    fn pairs_per_block(&self, alone: bool) -> u32 {
        let (streams, words) = if alone { (self.rows, self.vocabulary) } else { (1, self.rows * self.vocabulary) };
        (streams * words.div_ceil(2)).div_ceil(self.blocks)
    }

    /// Allocates a `GroupState` per group of blocks.
    pub(crate) fn group_states(&self, stream: &Stream) -> Result<Buffer<u8>> {
        Buffer::zeroed(stream, (self.blocks / self.blocks_per_row) as usize * GROUP_STATE_BYTES)
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid { shared_bytes: BLOCK_STATE_BYTES, cooperative: true, ..Grid::new(self.blocks, THREADS) }
    }
}

/// A kernel whose blocks have a `BlockState` each and wait for each other.
#[derive(Debug)]
pub(crate) struct Cooperative<A> {
    pub(crate) kernel: Kernel<A>,
    /// The number of blocks that run at once.
    pub(crate) resident_blocks: u32,
}

impl<A: Pod> Cooperative<A> {
    pub(crate) fn new(module: &Module, name: &'static str) -> Result<Self> {
        let mut kernel = module.kernel(name)?;
        kernel.allow_shared_bytes(BLOCK_STATE_BYTES)?;
        let resident_blocks = kernel.resident_blocks(THREADS, BLOCK_STATE_BYTES)?;
        Ok(Self { kernel, resident_blocks })
    }
}

/// Checks that an argument has one of these lengths.
pub(crate) fn check(name: &'static str, length: usize, expected: &[usize]) -> Result<()> {
    match expected.last() {
        Some(&last) if !expected.contains(&length) => Err(Error::Length { name, length, expected: last }),
        _ => Ok(()),
    }
}
