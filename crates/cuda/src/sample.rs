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

/// What the kernels include.
const HEADERS: &[(&str, &str)] = &[
    ("candidates.cuh", include_str!("candidates.cuh")),
    ("contract.cuh", include_str!("contract.cuh")),
    ("filter.cuh", include_str!("filter.cuh")),
    ("group.cuh", include_str!("group.cuh")),
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
pub(crate) const BLOCK_STATE_BYTES: u32 = 91_392;
/// Global memory that the blocks of a row share: `GroupState`.
const GROUP_STATE_BYTES: usize = 112_696;
/// The least number of logits of a row that a block takes, if several blocks share the row.
const LEAST_SHARE: u32 = 2048;
/// From this many logits on, two blocks share a multiprocessor.
const MANY_LOGITS: usize = 1 << 22;
/// The most blocks that can share a row: the slots of a `GroupState`.
const MOST_BLOCKS: u32 = 256;

/// The types that logits come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// One seed draws all rows as one stream of noise, one per row draws each as if it were alone. `None` takes the next key of the
    /// workspace's own sequence.
    pub seed: Option<&'b Buffer<i64>>,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SampleArgs {
    logits: In<u8>,
    temperature: In<f32>,
    top_k: In<i64>,
    top_p: In<f32>,
    seed: In<i64>,
    sequence: Out<u32>,
    tokens: Out<u32>,
    best: Out<u64>,
    arrived: Out<u32>,
    group_states: Out<u8>,
    stride: u64,
    rows: u32,
    vocabulary: u32,
    blocks: u32,
    flags: u32,
    share: u32,
    unused: u32,
}

const _: () = assert!(size_of::<SampleArgs>() == 112, "the layout of `SampleArgs` in rows.cuh");

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

    /// Allocates what draws of `rows` rows need beside their inputs. Draws that share a workspace must be on one stream.
    pub fn workspace(&self, stream: &Stream, rows: usize, vocabulary: usize) -> Result<Workspace> {
        let split = Split::new(self.kernel(rows, vocabulary).resident_blocks, rows, vocabulary)?;
        Ok(Workspace {
            split,
            sequence: Buffer::zeroed(stream, 2)?,
            best: Buffer::zeroed(stream, rows)?,
            arrived: Buffer::zeroed(stream, 2)?,
            group_states: split.group_states(stream)?,
        })
    }

    /// Puts the draw on the stream: a token per row.
    pub fn launch<'b>(
        &self,
        stream: &'b Stream,
        request: Request<'b>,
        workspace: &'b mut Workspace,
        tokens: &'b mut Buffer<u32>,
    ) -> Result<()> {
        let Request { logits, temperature, top_k, top_p, seed } = request;
        let Workspace { split, sequence, best, arrived, group_states } = workspace;
        let rows = split.rows as usize;
        logits.check(self.logits, rows * split.vocabulary as usize)?;
        check("tokens", tokens.len(), &[rows])?;
        let lengths = [temperature.len(), top_k.len(), top_p.len(), seed.map_or(1, Buffer::len)];
        let mut flags = 0;
        for (bit, (name, length)) in ["temperature", "top_k", "top_p", "seed"].into_iter().zip(lengths).enumerate() {
            check(name, length, &[1, rows])?;
            flags |= u32::from(length > 1) << bit;
        }
        let kernel = &self.kernel(rows, split.vocabulary as usize).kernel;
        kernel.launch(stream, split.grid(), |bind| SampleArgs {
            logits: logits.bind(bind),
            temperature: bind.read(temperature),
            top_k: bind.read(top_k),
            top_p: bind.read(top_p),
            seed: seed.map_or_else(In::zeroed, |seed| bind.read(seed)),
            sequence: bind.write(sequence),
            tokens: bind.write(tokens),
            best: bind.write(best),
            arrived: bind.write(arrived),
            group_states: bind.write(group_states),
            stride: u64::from(split.vocabulary),
            rows: split.rows,
            vocabulary: split.vocabulary,
            blocks: split.blocks_per_row,
            flags,
            share: split.pairs_per_block(flags & 8 != 0),
            unused: 0,
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
