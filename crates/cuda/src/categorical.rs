//! `softmax_sample` on the device: `categorical.cu`.

use crate::buffer::Buffer;
use crate::context::Device;
use crate::error::{Error, Result};
use crate::launch::{In, Out};
use crate::module::Module;
use crate::sample::{CATEGORICAL, Cooperative, LogitType, Logits, Split};
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use ptero_sampling::categorical::{self, Drawn, Refused};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CategoricalArgs {
    logits: In<u8>,
    random: In<f32>,
    drawn: Out<[u32; 2]>,
    group_states: Out<u8>,
    stride: u64,
    temperature: f32,
    rows: u32,
    vocabulary: u32,
    blocks: u32,
}

const _: () = assert!(size_of::<CategoricalArgs>() == 56, "the layout of `CategoricalArgs` in categorical.cu");

/// The kernels of a device, for one type of logits.
#[derive(Debug)]
pub struct SoftmaxSampler {
    logits: LogitType,
    cooperative: Cooperative<CategoricalArgs>,
}

impl SoftmaxSampler {
    /// Compiles the kernels, or takes them from the cache.
    pub fn new(device: &Device, logits: LogitType) -> Result<Self> {
        let module = Module::load(device, LogitType::source(&CATEGORICAL, logits))?;
        Ok(Self { logits, cooperative: Cooperative::new(&module, "categorical")? })
    }

    /// Allocates memory for draws of `rows` rows.
    pub fn workspace(&self, stream: &Stream, rows: usize, vocabulary: usize) -> Result<SoftmaxWorkspace> {
        let split = Split::new(self.cooperative.resident_blocks, rows, vocabulary)?;
        let (random, drawn) = (Buffer::zeroed(stream, rows)?, Buffer::zeroed(stream, rows)?);
        Ok(SoftmaxWorkspace { split, random, drawn, group_states: split.group_states(stream)? })
    }

    /// One draw per row from `softmax(logits / temperature)`, with a uniform number for each: eight bytes per row come back.
    pub fn draw(
        &self,
        stream: &Stream,
        logits: Logits<'_>,
        temperature: f32,
        random: &[f32],
        workspace: &mut SoftmaxWorkspace,
    ) -> Result<Vec<Drawn>> {
        let (rows, vocabulary) = (workspace.split.rows as usize, workspace.split.vocabulary as usize);
        categorical::check(rows * vocabulary, vocabulary, temperature, random)?;
        workspace.random.write(0, random)?;
        self.launch(stream, logits, temperature, workspace)?;
        let drawn = workspace.drawn.read()?.into_iter().enumerate().map(|(row, [token, bits])| match token {
            u32::MAX => Err(Error::Refused(Refused::NoDistribution(row))),
            token => Ok(Drawn { token, log_probability: f32::from_bits(bits) }),
        });
        drawn.collect()
    }

    /// Puts the draw on the stream, with the uniform numbers of the last [`SoftmaxSampler::draw`].
    pub fn launch<'b>(
        &self,
        stream: &'b Stream,
        logits: Logits<'b>,
        temperature: f32,
        workspace: &'b mut SoftmaxWorkspace,
    ) -> Result<()> {
        let SoftmaxWorkspace { split, random, drawn, group_states } = workspace;
        logits.check(self.logits, split.rows as usize * split.vocabulary as usize)?;
        self.cooperative.kernel.launch(stream, split.grid(), |bind| CategoricalArgs {
            logits: logits.bind(bind),
            random: bind.read(random),
            drawn: bind.write(drawn),
            group_states: bind.write(group_states),
            stride: u64::from(split.vocabulary),
            temperature,
            rows: split.rows,
            vocabulary: split.vocabulary,
            blocks: split.blocks_per_row,
        })
    }
}

/// Memory that draws of one size need.
#[derive(Debug)]
pub struct SoftmaxWorkspace {
    split: Split,
    random: Buffer<f32>,
    drawn: Buffer<[u32; 2]>,
    group_states: Buffer<u8>,
}
