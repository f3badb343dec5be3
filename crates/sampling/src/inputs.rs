//! What a program that samples takes beside the model's own inputs. Exporter, engine, server and command line walk this
//! table; a program that lacks one of its rows refuses the option by name.

use ptero_tensor::DType;

/// One parameter of the sampling head: a scalar tensor, given anew with every call (S0.6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerInput {
    /// Its name as an input, an option and a field of a request.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// The value that changes nothing.
    pub neutral: Scalar,
    /// A program may lack it.
    pub is_optional: bool,
    /// What it does, in a line.
    pub help: &'static str,
}

/// The value of a scalar tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type of its name")]
pub enum Scalar {
    F32(f32),
    I64(i64),
}

impl Scalar {
    /// The type of a tensor that holds it.
    pub fn dtype(self) -> DType {
        match self {
            Scalar::F32(_) => DType::F32,
            Scalar::I64(_) => DType::I64,
        }
    }

    /// The bytes of a tensor that holds it.
    pub fn to_le_bytes(self) -> Vec<u8> {
        match self {
            Scalar::F32(value) => value.to_le_bytes().to_vec(),
            Scalar::I64(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// The inputs, in the order in which they follow the model's own (S1.1). An array, so that a new row stops the build
/// wherever it must be handled.
pub const SAMPLER_INPUTS: [SamplerInput; 4] = [
    SamplerInput {
        name: "temperature",
        dtype: DType::F32,
        neutral: Scalar::F32(0.0),
        is_optional: false,
        help: "divides the logits before the draw; 0 picks the likeliest token",
    },
    SamplerInput {
        name: "top_k",
        dtype: DType::I64,
        neutral: Scalar::I64(i64::MAX),
        is_optional: false,
        help: "draw among this many of the likeliest tokens, at least 1",
    },
    SamplerInput {
        name: "top_p",
        dtype: DType::F32,
        neutral: Scalar::F32(1.0),
        is_optional: false,
        help: "draw among the likeliest tokens that together have this mass, in (0, 1]",
    },
    SamplerInput {
        name: "seed",
        dtype: DType::I64,
        neutral: Scalar::I64(0),
        is_optional: true,
        help: "the same seed draws the same token; only its low 32 bits count",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_1_the_order_of_the_trailing_inputs_is_fixed_and_the_neutral_values_are_of_their_types() {
        assert_eq!(SAMPLER_INPUTS.map(|input| input.name), ["temperature", "top_k", "top_p", "seed"]);
        for input in SAMPLER_INPUTS {
            assert_eq!(input.dtype, input.neutral.dtype(), "{}", input.name);
            assert_eq!(input.neutral.to_le_bytes().len() as u64, input.dtype.bytes(), "{}", input.name);
        }
    }
}
