//! The metadata of a program. A missing value is `None`; a value of the wrong type is an error (S1.7).

use crate::TokenId;
use crate::error::{Error, Result};
use ptero_pte::Program;

/// The metadata that matters for running.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// `true` if the program returns tokens, not logits (S1.2).
    pub(crate) samples: bool,
    /// The number of positions.
    pub(crate) context: usize,
    /// The most tokens of one call.
    pub(crate) max_prefill: Option<usize>,
    /// The size of the vocabulary.
    pub(crate) vocabulary: Option<usize>,
    /// The token that texts begin with.
    pub(crate) bos_id: Option<TokenId>,
    /// The tokens that texts end with.
    pub(crate) eos_ids: Vec<TokenId>,
}

/// Names for the number of positions; the first that exists counts. Programs without the first two mean both by the last.
const CONTEXT: [&str; 3] = ["get_max_context_len", "get_max_ctx_len", "get_max_seq_len"];
/// Names for the most tokens of one call; the smallest value counts.
const PREFILL: [&str; 3] = ["get_max_prefill_chunk", "get_prefill_chunk_size", "get_max_seq_len"];

impl Facts {
    pub(crate) fn read(program: &Program) -> Result<Self> {
        // Some of upstream's exporters write a single one.
        let single = program.int_metadata("get_eos_id")?;
        let eos_ids = program.ints_metadata("get_eos_ids")?.unwrap_or_else(|| single.into_iter().collect());
        // -1 means that there is none.
        let token = |id: i64| TokenId::try_from(id).ok();
        Ok(Self {
            samples: program.bool_metadata("use_sampling")?.unwrap_or(false),
            context: counts(program, &CONTEXT)?.next().ok_or(Error::MissingMetadata("get_max_context_len"))?,
            max_prefill: counts(program, &PREFILL)?.min(),
            vocabulary: count(program, "get_vocab_size")?,
            bos_id: program.int_metadata("get_bos_id")?.and_then(token),
            eos_ids: eos_ids.into_iter().filter_map(token).collect(),
        })
    }
}

/// Reads the counts of these names that the program has, in order.
fn counts(program: &Program, names: &[&'static str]) -> Result<impl Iterator<Item = usize> + use<>> {
    let counts: Vec<Option<usize>> = names.iter().map(|name| count(program, name)).collect::<Result<_>>()?;
    Ok(counts.into_iter().flatten())
}

/// Reads a count: at least 1, and at most `i32::MAX`, since positions are 32-bit host integers.
fn count(program: &Program, name: &'static str) -> Result<Option<usize>> {
    let count = |value: i64| match i32::try_from(value).ok().and_then(|value| usize::try_from(value).ok()) {
        Some(count) if count >= 1 => Ok(count),
        _ => Err(Error::BadMetadata { name, value }),
    };
    program.int_metadata(name)?.map(count).transpose()
}
