//! The bytes of all tokens.

use super::message;
use crate::error::at_most;
use crate::{Result, Tokenizer};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

/// Tokens; the trie has 24 bits for their ids.
const MOST_TOKENS: usize = (1 << 24) - 2;
/// Bytes of a token; the trie is built recursively and has ten bits for this.
const LONGEST_TOKEN: usize = 1023;
/// Starts a special token in llguidance's tries. No text has it: it is not UTF-8.
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The tokens of a model as a trie of bytes, built once per model. Copies share it.
#[derive(Clone)]
pub struct Vocabulary(Arc<Inner>);

struct Inner {
    parsers: ParserFactory,
    /// A bit per token that is text.
    text: Vec<u32>,
    size: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.0.size).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The tokens of a model that has `size` logits per row; ids without a token are never allowed.
    ///
    /// Tokens that are longer than 1,023 bytes, that are empty, or that contain the byte 255, which UTF-8 does not have, are
    /// never allowed either.
    ///
    /// # Errors
    /// When there are more than 2²⁴ - 2 tokens, or more than four million bytes in the trie.
    pub fn new(tokenizer: &Tokenizer, size: usize) -> Result<Self> {
        at_most("logits of a row", size, MOST_TOKENS)?;
        let ids = 0..u32::try_from(size).unwrap_or(u32::MAX);
        let tokens = ids.map(|id| tokenizer.bytes(id).filter(|bytes| is_text(bytes)).unwrap_or_default()).collect();
        // Large sets of tokens that JSON allows inside strings are precomputed.
        Self::from_bytes(tokens, &SlicedBiasComputer::json_slices())
    }

    /// A token per byte, for checking grammars alone.
    pub(super) fn of_bytes() -> Result<Self> {
        static BYTES: OnceLock<Vocabulary> = OnceLock::new();
        if let Some(vocabulary) = BYTES.get() {
            return Ok(vocabulary.clone());
        }
        let vocabulary = Self::from_bytes((0..MARKER).map(|byte| vec![byte]).collect(), &[])?;
        Ok(BYTES.get_or_init(|| vocabulary).clone())
    }

    fn from_bytes(mut tokens: Vec<Vec<u8>>, slices: &[String]) -> Result<Self> {
        let size = tokens.len();
        let mut text = vec![0; size.div_ceil(32)];
        for (id, _) in tokens.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            set(&mut text, id);
        }
        // One more, which is llguidance's end token: which tokens end a text is up to the matcher.
        tokens.push(Vec::new());
        let parsers = catch_unwind(AssertUnwindSafe(|| {
            let info = TokRxInfo::new(TokenId::try_from(tokens.len())?, TokenId::try_from(size)?);
            // Called approximate because it does not know how the model would cut a text, so no tokens are forced.
            let trie: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &tokens)));
            ParserFactory::new(&trie, InferenceCapabilities::default(), slices)
        }));
        let parsers = parsers.map_err(|error| message::error("vocabulary", &error))?;
        Ok(Self(Arc::new(Inner { parsers, text, size })))
    }

    /// The number of logits of a row.
    pub fn size(&self) -> usize {
        self.0.size
    }

    pub(super) fn parsers(&self) -> &ParserFactory {
        &self.0.parsers
    }

    pub(super) fn text(&self) -> &[u32] {
        &self.0.text
    }
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.len() <= LONGEST_TOKEN && !bytes.contains(&MARKER)
}

/// Sets a bit.
pub(super) fn set(mask: &mut [u32], id: usize) {
    if let Some(word) = mask.get_mut(id / 32) {
        *word |= 1 << (id % 32);
    }
}

/// Returns `true` for a bit that is set.
pub(super) fn is_set(mask: &[u32], id: usize) -> bool {
    mask.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}
