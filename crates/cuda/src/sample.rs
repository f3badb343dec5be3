//! Drawing tokens on the device: `sample.cu`.
//!
//! Everything a draw depends on is in device memory, so a captured launch draws anew each time it is replayed, with whatever logits,
//! settings and seeds are there by then. Nothing waits for the host.

use crate::buffer::Buffer;
use crate::context::Device;
use crate::error::{Error, Result};
use crate::launch::{Binding, Grid, In, Kernel, Out};
use crate::module::{Module, Source};
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

/// The kernels of this file.
pub(crate) const SOURCE: Source = Source {
    name: "sample.cu",
    text: include_str!("sample.cu"),
    headers: &[
        ("contract.cuh", include_str!("contract.cuh")),
        ("filter.cuh", include_str!("filter.cuh")),
        ("group.cuh", include_str!("group.cuh")),
        ("rows.cuh", include_str!("rows.cuh")),
        ("whole.cuh", include_str!("whole.cuh")),
    ],
    fused_multiply_add: false,
};

/// Threads of a block.
pub(crate) const THREADS: u32 = 1024;
/// Shared memory of a block: `Desk`.
pub(crate) const DESK_BYTES: u32 = 83_296;
/// What the blocks of a row share: `Board`.
const BOARD_BYTES: usize = 112_688;
/// A block takes at least so many logits of a row that several blocks share.
const LEAST_SHARE: u32 = 2048;
/// Blocks that can share a row: a board has so many slots.
const MOST_BLOCKS: u32 = 256;

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

    /// The place of the type in a table of kernels.
    pub(crate) fn kernel(&self) -> usize {
        match self {
            Self::F32(_) => 0,
            Self::F16(_) => 1,
            Self::Bf16(_) => 2,
        }
    }

    pub(crate) fn bind(self, bind: &mut Binding<'b>) -> In<u8> {
        match self {
            Self::F32(buffer) => bind.read(buffer).cast(),
            Self::F16(buffer) => bind.read(buffer).cast(),
            Self::Bf16(buffer) => bind.read(buffer).cast(),
        }
    }

    /// That there are this many.
    pub(crate) fn check(&self, expected: usize) -> Result<()> {
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
    boards: Out<u8>,
    stride: u64,
    rows: u32,
    vocabulary: u32,
    blocks: u32,
    flags: u32,
}

const _: () = assert!(size_of::<SampleArgs>() == 104, "the layout of `SampleArgs` in rows.cuh");

/// The sampling kernels of a device.
#[derive(Debug)]
pub struct Sampler {
    kernels: [Kernel<SampleArgs>; 3],
    resident_blocks: u32,
}

impl Sampler {
    /// Compiles the kernels, or takes them from the cache.
    pub fn new(device: &Device) -> Result<Self> {
        let module = Module::load(device, &SOURCE)?;
        let mut kernels = [module.kernel("sample_f32")?, module.kernel("sample_f16")?, module.kernel("sample_bf16")?];
        let resident_blocks = resident_blocks(&mut kernels)?;
        Ok(Self { kernels, resident_blocks })
    }

    /// What draws of so many rows need beside their inputs. Draws that share one must be on one stream.
    pub fn workspace(&self, stream: &Stream, rows: usize, vocabulary: usize) -> Result<Workspace> {
        let split = Split::new(self.resident_blocks, rows, vocabulary)?;
        Ok(Workspace {
            split,
            sequence: Buffer::zeroed(stream, 2)?,
            best: Buffer::zeroed(stream, rows)?,
            arrived: Buffer::zeroed(stream, 2)?,
            boards: split.boards(stream)?,
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
        let Workspace { split, sequence, best, arrived, boards } = workspace;
        let rows = split.rows as usize;
        logits.check(rows * split.vocabulary as usize)?;
        check("tokens", tokens.len(), &[rows])?;
        let lengths = [temperature.len(), top_k.len(), top_p.len(), seed.map_or(1, Buffer::len)];
        let mut flags = 0;
        for (bit, (name, length)) in ["temperature", "top_k", "top_p", "seed"].into_iter().zip(lengths).enumerate() {
            check(name, length, &[1, rows])?;
            flags |= u32::from(length > 1) << bit;
        }
        let kernel = self.kernels.get(logits.kernel()).expect("a kernel per type");
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
            boards: bind.write(boards),
            stride: u64::from(split.vocabulary),
            rows: split.rows,
            vocabulary: split.vocabulary,
            blocks: split.blocks_per_row,
            flags,
        })
    }
}

/// Memory that draws of one size need. It is left as it was found, but for the sequence of keys.
#[derive(Debug)]
pub struct Workspace {
    split: Split,
    sequence: Buffer<u32>,
    best: Buffer<u64>,
    arrived: Buffer<u32>,
    boards: Buffer<u8>,
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

    /// A board per group of blocks.
    pub(crate) fn boards(&self, stream: &Stream) -> Result<Buffer<u8>> {
        Buffer::zeroed(stream, (self.blocks / self.blocks_per_row) as usize * BOARD_BYTES)
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid::new(self.blocks, THREADS).shared_bytes(DESK_BYTES).cooperative()
    }
}

/// Lets each kernel have its desk, and tells how many blocks of any of them run at once.
pub(crate) fn resident_blocks<A: Pod>(kernels: &mut [Kernel<A>]) -> Result<u32> {
    let mut least = u32::MAX;
    for kernel in kernels {
        kernel.allow_shared_bytes(DESK_BYTES)?;
        least = least.min(kernel.resident_blocks(THREADS, DESK_BYTES)?);
    }
    Ok(least)
}

/// That an argument has one of these lengths.
pub(crate) fn check(name: &'static str, length: usize, expected: &[usize]) -> Result<()> {
    match expected.last() {
        Some(&last) if !expected.contains(&length) => Err(Error::Length { name, length, expected: last }),
        _ => Ok(()),
    }
}
