//! What a program says of itself. What is absent is absent; what is there and of the wrong type is an error (S1.7).

use crate::error::{Error, Result};
use ptero_pte::Program;

/// The metadata that matters for running.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Whether the program returns tokens, not logits (S1.2).
    pub(crate) samples: bool,
    /// How many positions there are.
    pub(crate) context: usize,
    /// The most tokens of one call, if it is said.
    pub(crate) max_prefill: Option<usize>,
    /// How many tokens there are, if it is said.
    pub(crate) vocabulary: Option<usize>,
    /// The token that texts begin with.
    pub(crate) bos_id: Option<i64>,
    /// The tokens that texts end with.
    pub(crate) eos_ids: Vec<i64>,
}

/// Names for the number of positions: the first that is there counts. Programs without the first two mean both by the last.
const CONTEXT: [&str; 3] = ["get_max_context_len", "get_max_ctx_len", "get_max_seq_len"];
/// Names for the most tokens of one call: the least counts.
const PREFILL: [&str; 3] = ["get_max_prefill_chunk", "get_prefill_chunk_size", "get_max_seq_len"];

impl Facts {
    pub(crate) fn read(program: &Program) -> Result<Self> {
        let eos_ids = program.ints_metadata("get_eos_ids")?;
        // Some of upstream's exporters have a single one.
        let single = program.int_metadata("get_eos_id")?;
        Ok(Self {
            samples: program.bool_metadata("use_sampling")?.unwrap_or(false),
            context: counts(program, &CONTEXT)?.next().ok_or(Error::MissingMetadata("get_max_context_len"))?,
            max_prefill: counts(program, &PREFILL)?.min(),
            vocabulary: count(program, "get_vocab_size")?,
            bos_id: program.int_metadata("get_bos_id")?,
            eos_ids: eos_ids.unwrap_or_else(|| single.into_iter().collect()),
        })
    }
}

/// The counts of these names that the program has, in their order.
fn counts(program: &Program, names: &[&'static str]) -> Result<impl Iterator<Item = usize> + use<>> {
    let counts: Vec<Option<usize>> = names.iter().map(|name| count(program, name)).collect::<Result<_>>()?;
    Ok(counts.into_iter().flatten())
}

/// A count: at least 1, and small enough for positions to fit 32 bits, as host values must.
fn count(program: &Program, name: &'static str) -> Result<Option<usize>> {
    let count = |value: i64| match i32::try_from(value).ok().and_then(|value| usize::try_from(value).ok()) {
        Some(count) if count >= 1 => Ok(count),
        _ => Err(Error::BadMetadata { name, value }),
    };
    program.int_metadata(name)?.map(count).transpose()
}
