//! What a session writes into the inputs of a call and reads from its output.

use super::Session;
use crate::TokenId;
use crate::error::{Error, Result};
use crate::options::TokenSettings;
use ptero_backend::{InputValue, OutputValue, cast};
use ptero_pte::DType;
use ptero_sampling::inputs::{SAMPLER_INPUTS, Scalar};
use ptero_tensor::{decode_floats, integer};

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
        let TokenSettings { settings, seed } = sampling;
        let values: [Scalar; SAMPLER_INPUTS.len()] = [
            Scalar::F32(settings.temperature),
            Scalar::I64(settings.top_k),
            Scalar::F32(settings.top_p),
            Scalar::I64(*seed),
        ];
        for ((at, shape), value) in self.engine.signature().sampler.iter().zip(values) {
            let Some(at) = *at else { continue };
            let (dtype, f32_bytes, i64_bytes);
            let bytes: &[u8] = match value {
                Scalar::F32(value) => {
                    (dtype, f32_bytes) = (DType::F32, value.to_le_bytes());
                    &f32_bytes
                }
                Scalar::I64(value) => {
                    (dtype, i64_bytes) = (DType::I64, value.to_le_bytes());
                    &i64_bytes
                }
            };
            self.state.write(at, InputValue::Tensor { dtype, shape, bytes })?;
        }
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
