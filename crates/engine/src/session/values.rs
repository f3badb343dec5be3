//! What a session writes into the inputs of a call and reads from its output.

use super::Session;
use super::adjusting::Adjusting;
use crate::TokenId;
use crate::error::{Error, Result};
use crate::options::TokenSettings;
use ptero_backend::{InputValue, OutputValue, cast};
use ptero_pte::DType;
use ptero_sampling::inputs::SAMPLER_INPUTS;
use ptero_sampling::log_probabilities::{LogProbabilities, MOST_LIKELIEST, RowLogProbabilities};
use ptero_tensor::{decode_floats, integer};

/// What goes into an input of the sampling head.
#[derive(Clone, Copy)]
enum Content {
    F32(f32),
    I64(i64),
    BiasTokens,
    BiasValues,
    Mask,
}

/// Writes up to `count` elements, and `rest` after them.
fn fill(bytes: &mut Vec<u8>, count: usize, elements: impl Iterator<Item = [u8; 4]>, rest: [u8; 4]) {
    elements.chain(std::iter::repeat(rest)).take(count).for_each(|element| bytes.extend_from_slice(&element));
}

impl Session {
    pub(super) fn write_tokens(&mut self, tokens: &[TokenId]) -> Result<()> {
        let first = i64::try_from(self.position()).unwrap_or(i64::MAX);
        let Self { engine, state, bytes, .. } = self;
        let (signature, count) = (engine.signature(), tokens.len() as u64);
        let mut write = |at: Option<usize>, shape: &[u64], values: &mut dyn Iterator<Item = i64>| match at {
            Some(at) => {
                bytes.clear();
                values.for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                state.write(at, InputValue::Tensor { dtype: DType::I64, shape, bytes })
            }
            None => Ok(()),
        };
        write(signature.tokens, &[1, count], &mut tokens.iter().map(|token| i64::from(*token)))?;
        write(signature.positions, &[count], &mut (first..).take(tokens.len()))?;
        Ok(())
    }

    /// Writes the inputs of the program's sampling head.
    pub(super) fn write_settings(&mut self, sampling: &TokenSettings) -> Result<()> {
        let TokenSettings { settings, penalties, log_probabilities, seed } = sampling;
        let text_start = i64::try_from(self.text_start).unwrap_or(i64::MAX);
        let values: [Content; SAMPLER_INPUTS.len()] = [
            Content::F32(settings.temperature),
            Content::I64(settings.top_k),
            Content::F32(settings.top_p),
            Content::I64(*seed),
            Content::F32(settings.min_p),
            Content::F32(penalties.repetition),
            Content::F32(penalties.presence),
            Content::F32(penalties.frequency),
            Content::I64(text_start),
            Content::BiasTokens,
            Content::BiasValues,
            Content::Mask,
            Content::I64(log_probabilities.code()),
            Content::I64(settings.exact_tail.into()),
        ];
        let Self { engine, state, bytes, adjusting, .. } = self;
        let Adjusting { biases, mask, are_biases_written, is_mask_written } = adjusting;
        for (((at, shape), value), input) in engine.signature().sampler.iter().zip(values).zip(&SAMPLER_INPUTS) {
            let Some(at) = *at else { continue };
            let count = usize::try_from(shape.iter().product::<u64>()).unwrap_or(usize::MAX);
            bytes.clear();
            match value {
                Content::F32(value) => bytes.extend_from_slice(&value.to_le_bytes()),
                Content::I64(value) => bytes.extend_from_slice(&value.to_le_bytes()),
                Content::BiasTokens | Content::BiasValues if *are_biases_written => continue,
                Content::Mask if *is_mask_written => continue,
                Content::BiasTokens => fill(bytes, count, biases.iter().map(|(token, _)| token.to_le_bytes()), [0; 4]),
                Content::BiasValues => fill(bytes, count, biases.iter().map(|(_, bias)| bias.to_le_bytes()), [0; 4]),
                Content::Mask => {
                    // Beyond the vocabulary there may be rows of padding, which a mask excludes.
                    let rest = if mask.is_empty() { -1_i32 } else { 0 };
                    fill(bytes, count, mask.iter().map(|word| word.to_le_bytes()), rest.to_le_bytes());
                }
            }
            state.write(at, InputValue::Tensor { dtype: input.dtype, shape, bytes })?;
        }
        (*are_biases_written, *is_mask_written) = (true, true);
        Ok(())
    }

    /// Reads the log-probabilities that the program returned with the token.
    pub(super) fn read_log_probabilities(&mut self, which: LogProbabilities) -> Result<()> {
        self.log_probabilities = None;
        let &[token, likeliest, of_likeliest] = self.engine.signature().log_probabilities.as_slice() else {
            return Ok(());
        };
        if which == LogProbabilities::None {
            return Ok(());
        }
        let mut floats = [[0.0; MOST_LIKELIEST]; 2];
        let mut row = RowLogProbabilities::NONE;
        for (output, to) in [(token, 0), (of_likeliest, 1)] {
            self.state.read_into(output, &mut self.output)?;
            let OutputValue::Tensor { dtype, bytes, .. } = &self.output else { continue };
            let count = bytes.len() / dtype.size();
            let to = floats.get_mut(to).and_then(|to| to.get_mut(..count)).unwrap_or_default();
            if !decode_floats(*dtype, bytes, to) {
                return Err(Error::Output { dtype: *dtype, found: count, wanted: MOST_LIKELIEST });
            }
        }
        self.state.read_into(likeliest, &mut self.output)?;
        let OutputValue::Tensor { dtype, bytes, .. } = &self.output else { return Ok(()) };
        let [[token, ..], of_likeliest] = floats;
        let tokens = bytes.chunks_exact(dtype.size()).map(|bytes| integer(*dtype, bytes));
        for ((to, token), share) in row.likeliest.iter_mut().zip(tokens).zip(of_likeliest) {
            *to = (TokenId::try_from(token).map_err(|_| Error::NotAToken(token))?, share);
        }
        row.token = token;
        self.log_probabilities = Some(row);
        Ok(())
    }

    /// Reads the output in its declared type.
    fn read(&mut self) -> Result<(DType, &[u8])> {
        let signature = self.engine.signature();
        self.state.read_into(signature.output, &mut self.output)?;
        let (declared, wanted) = (signature.output_dtype, signature.output_elements);
        let OutputValue::Tensor { dtype, bytes, .. } = &mut self.output else {
            return Err(Error::Output { dtype: declared, found: 0, wanted });
        };
        // A token may be an integer of any type; logits may have to be rounded.
        if *dtype != declared && declared != DType::I64 {
            (*bytes, *dtype) = (cast(bytes, *dtype, declared)?, declared);
        }
        let found = bytes.len() / dtype.size();
        if found == wanted { Ok((*dtype, bytes)) } else { Err(Error::Output { dtype: *dtype, found, wanted }) }
    }

    pub(super) fn read_token(&mut self) -> Result<TokenId> {
        let (dtype, bytes) = self.read()?;
        if !matches!(dtype, DType::I64 | DType::I32 | DType::U32) {
            return Err(Error::Output { dtype, found: 0, wanted: 1 });
        }
        let token = integer(dtype, bytes);
        TokenId::try_from(token).map_err(|_| Error::NotAToken(token))
    }

    /// Returns the logits of the last call, as the model computed them: before penalties, biases and masks. `None` if the program
    /// does not keep them; see [`Engine::keeps_logits`](crate::Engine::keeps_logits).
    ///
    /// # Errors
    /// When nothing was processed, or the device fails.
    pub fn fetch_logits(&mut self) -> Result<Option<Vec<f32>>> {
        if !self.engine.samples_itself() {
            return Ok(self.logits().map(<[f32]>::to_vec));
        }
        let Some(output) = self.engine.kept_logits() else { return Ok(None) };
        self.state.read_into(output, &mut self.output)?;
        let OutputValue::Tensor { dtype, bytes, .. } = &self.output else { return Ok(None) };
        let mut logits = vec![0.0; bytes.len() / dtype.size()];
        let is_float = decode_floats(*dtype, bytes, &mut logits);
        if is_float { Ok(Some(logits)) } else { Err(Error::Output { dtype: *dtype, found: 0, wanted: logits.len() }) }
    }

    pub(super) fn read_logits(&mut self) -> Result<()> {
        let mut logits = std::mem::take(&mut self.logits);
        let (dtype, bytes) = self.read()?;
        logits.resize(bytes.len() / dtype.size(), 0.0);
        if !decode_floats(dtype, bytes, &mut logits) {
            return Err(Error::Output { dtype, found: 0, wanted: 0 });
        }
        self.logits = logits;
        Ok(())
    }
}
