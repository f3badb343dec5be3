//! Draws of programs, whose tensors lie at addresses.

use super::{SEED_PER_ROW, SampleArgs, Sampler, WIDE_TOKENS, Workspace};
use crate::error::Result;
use crate::launch::{In, Out};
use crate::stream::Stream;

/// Addresses of what a draw of a program reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawAt {
    pub(crate) logits: u64,
    /// Elements between rows of logits.
    pub(crate) stride: u64,
    pub(crate) temperature: u64,
    pub(crate) top_k: u64,
    pub(crate) top_p: u64,
    pub(crate) min_p: u64,
    /// 0: none.
    pub(crate) exact_tail: u64,
    /// 0: the next key of `sequence`.
    pub(crate) seed: u64,
    pub(crate) sequence: u64,
    /// 64 bits each.
    pub(crate) tokens: u64,
    /// 0: nothing changes the logits.
    pub(crate) adjustments: u64,
    pub(crate) history: u64,
    pub(crate) bias_tokens: u64,
    pub(crate) bias_values: u64,
    pub(crate) mask: u64,
    /// 0: no log-probabilities.
    pub(crate) which: u64,
    pub(crate) log_probability: u64,
    pub(crate) likeliest: u64,
    pub(crate) of_likeliest: u64,
    /// Of temperature, top-k, top-p, seed, min-p and exact tail: 1, or the number of rows.
    pub(crate) counts: [usize; 6],
    /// The lengths of the history, of the biases and of the mask.
    pub(crate) lengths: [u32; 3],
}

impl Sampler {
    /// Puts a draw on the stream whose tensors lie at addresses. Their memory must live until the draw is done.
    pub(crate) fn launch_at(&self, stream: &Stream, at: DrawAt, workspace: &mut Workspace) -> Result<()> {
        let Workspace { split, best, arrived, group_states, kept, adjusted, .. } = workspace;
        let rows = split.rows as usize;
        let bits = [1, 2, 4, SEED_PER_ROW, 32, 128];
        let flags = bits.iter().zip(at.counts).fold(
            WIDE_TOKENS,
            |flags, (bit, count)| {
                if count > 1 { flags | bit } else { flags }
            },
        );
        let kernel = &self.kernel(rows, split.vocabulary as usize).kernel;
        kernel.launch(stream, split.grid(), |bind| SampleArgs {
            logits: In::at(at.logits),
            temperature: In::at(at.temperature),
            top_k: In::at(at.top_k),
            top_p: In::at(at.top_p),
            min_p: In::at(at.min_p),
            exact_tail: In::at(at.exact_tail),
            seed: In::at(at.seed),
            sequence: Out::at(at.sequence),
            tokens: Out::at(at.tokens),
            best: bind.write(best),
            arrived: bind.write(arrived),
            group_states: bind.write(group_states),
            adjustments: In::at(at.adjustments),
            history: In::at(at.history),
            bias_tokens: In::at(at.bias_tokens),
            bias_values: In::at(at.bias_values),
            mask: In::at(at.mask),
            adjusted: bind.write(adjusted),
            which: In::at(at.which),
            kept: bind.write(kept),
            log_probability: Out::at(at.log_probability),
            likeliest: Out::at(at.likeliest),
            of_likeliest: Out::at(at.of_likeliest),
            stride: at.stride,
            rows: split.rows,
            vocabulary: split.vocabulary,
            blocks: split.blocks_per_row,
            flags,
            share: split.pairs_per_block(flags & SEED_PER_ROW != 0),
            lengths: at.lengths,
        })
    }
}
