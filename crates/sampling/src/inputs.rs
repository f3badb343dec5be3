//! What a program that samples takes beside the model's own inputs. Exporter, engine, server and command line walk this
//! table; a program that lacks one of its rows refuses the option by name.

use crate::adjust::{MASK_BITS, MOST_BIASES};
use crate::log_probabilities::MOST_LIKELIEST;
use ptero_tensor::DType;

/// One parameter of the sampling head, given anew with every call (S0.6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerInput {
    /// Its name as an input, an option and a field of a request.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: InputShape,
    /// The value that changes nothing, of every element.
    pub neutral: Scalar,
    /// The heads that take it.
    pub head: Head,
    /// What it does, in a line.
    pub help: &'static str,
}

/// The heads that a program may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Head {
    /// Upstream's without a seed: temperature, top-k and top-p.
    Unseeded,
    /// Upstream's.
    Plain,
    /// Every option.
    Full,
}

impl Head {
    /// Every head.
    pub const ALL: [Self; 3] = [Self::Unseeded, Self::Plain, Self::Full];

    /// The inputs that a program with this head takes after the model's own.
    pub fn inputs(self) -> impl Iterator<Item = &'static SamplerInput> {
        SAMPLER_INPUTS.iter().filter(move |input| input.head <= self)
    }
}

/// The shape of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// One element, without axes.
    Scalar,
    /// [`MOST_BIASES`] elements.
    Biases,
    /// A bit for each token, in words of [`MASK_BITS`].
    Mask,
}

impl InputShape {
    /// The size of its axis, for a vocabulary; `None` for a scalar.
    pub fn size(self, vocabulary: usize) -> Option<usize> {
        match self {
            InputShape::Scalar => None,
            InputShape::Biases => Some(MOST_BIASES),
            InputShape::Mask => Some(vocabulary.div_ceil(MASK_BITS)),
        }
    }
}

/// The value of a scalar tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type of its name")]
pub enum Scalar {
    F32(f32),
    I32(i32),
    I64(i64),
}

impl Scalar {
    /// The type of a tensor that holds it.
    pub fn dtype(self) -> DType {
        match self {
            Scalar::F32(_) => DType::F32,
            Scalar::I32(_) => DType::I32,
            Scalar::I64(_) => DType::I64,
        }
    }

    /// The bytes of a tensor that holds it.
    pub fn to_le_bytes(self) -> Vec<u8> {
        match self {
            Scalar::F32(value) => value.to_le_bytes().to_vec(),
            Scalar::I32(value) => value.to_le_bytes().to_vec(),
            Scalar::I64(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// The inputs, in the order in which they follow the model's own (S1.1).
pub const SAMPLER_INPUTS: [SamplerInput; 14] = [
    SamplerInput {
        name: "temperature",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(0.0),
        head: Head::Unseeded,
        help: "divides the logits before the draw; 0 picks the likeliest token",
    },
    SamplerInput {
        name: "top_k",
        dtype: DType::I64,
        shape: InputShape::Scalar,
        neutral: Scalar::I64(i64::MAX),
        head: Head::Unseeded,
        help: "draw among this many of the likeliest tokens, at least 1",
    },
    SamplerInput {
        name: "top_p",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(1.0),
        head: Head::Unseeded,
        help: "draw among the likeliest tokens that together have this mass, in (0, 1]",
    },
    SamplerInput {
        name: "seed",
        dtype: DType::I64,
        shape: InputShape::Scalar,
        neutral: Scalar::I64(0),
        head: Head::Plain,
        help: "the same seed draws the same token; only its low 32 bits count",
    },
    SamplerInput {
        name: "min_p",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(0.0),
        head: Head::Full,
        help: "draw among tokens at least this likely beside the likeliest, in [0, 1]",
    },
    SamplerInput {
        name: "repetition_penalty",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(1.0),
        head: Head::Full,
        help: "divides positive logits of tokens so far, multiplies negative ones",
    },
    SamplerInput {
        name: "presence_penalty",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(0.0),
        head: Head::Full,
        help: "subtracted from the logits of new tokens so far",
    },
    SamplerInput {
        name: "frequency_penalty",
        dtype: DType::F32,
        shape: InputShape::Scalar,
        neutral: Scalar::F32(0.0),
        head: Head::Full,
        help: "subtracted from logits of new tokens, once for each time they occur",
    },
    SamplerInput {
        name: "prompt_end",
        dtype: DType::I64,
        shape: InputShape::Scalar,
        neutral: Scalar::I64(0),
        head: Head::Full,
        help: "where new tokens start; presence and frequency count from there",
    },
    SamplerInput {
        name: "logit_bias_tokens",
        dtype: DType::I32,
        shape: InputShape::Biases,
        neutral: Scalar::I32(0),
        head: Head::Full,
        help: "tokens whose logits are changed",
    },
    SamplerInput {
        name: "logit_bias_values",
        dtype: DType::F32,
        shape: InputShape::Biases,
        neutral: Scalar::F32(0.0),
        head: Head::Full,
        help: "what is added to the logits of those tokens",
    },
    SamplerInput {
        name: "token_mask",
        dtype: DType::I32,
        shape: InputShape::Mask,
        neutral: Scalar::I32(-1),
        head: Head::Full,
        help: "a bit for each token, lowest first: 1 if it may be drawn",
    },
    SamplerInput {
        name: "logprobs",
        dtype: DType::I64,
        shape: InputShape::Scalar,
        neutral: Scalar::I64(0),
        head: Head::Full,
        help: "log-probabilities: 0 none, 1 the model's own, 2 after all of the above",
    },
    SamplerInput {
        name: "exact_tail",
        dtype: DType::I64,
        shape: InputShape::Scalar,
        neutral: Scalar::I64(0),
        head: Head::Full,
        help: "1 draws very unlikely tokens, too, as often as they should be",
    },
];

/// The index of the seed in [`SAMPLER_INPUTS`].
pub const SEED: usize = 3;

/// What a program with the full head returns after the token, for each row.
pub const SAMPLER_OUTPUTS: [SamplerOutput; 3] = [
    SamplerOutput { name: "logprob", dtype: DType::F32, size: None, help: "the token's log-probability" },
    SamplerOutput {
        name: "top_tokens",
        dtype: DType::I64,
        size: Some(MOST_LIKELIEST),
        help: "the likeliest tokens, from the likeliest down",
    },
    SamplerOutput {
        name: "top_logprobs",
        dtype: DType::F32,
        size: Some(MOST_LIKELIEST),
        help: "their log-probabilities",
    },
];

/// A further result of the full head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerOutput {
    /// Its name.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// Elements for each row; `None` for one without an axis of its own.
    pub size: Option<usize>,
    /// What it is, in a line.
    pub help: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_1_the_order_of_the_trailing_inputs_is_fixed_and_the_neutral_values_are_of_their_types() {
        let names = |head: Head| head.inputs().map(|input| input.name).collect::<Vec<_>>();
        assert_eq!(names(Head::Unseeded), ["temperature", "top_k", "top_p"]);
        assert_eq!(names(Head::Plain), ["temperature", "top_k", "top_p", "seed"]);
        assert_eq!(names(Head::Full), SAMPLER_INPUTS.map(|input| input.name));
        assert_eq!(SAMPLER_INPUTS[SEED].name, "seed");
        assert!(SAMPLER_INPUTS.is_sorted_by_key(|input| input.head), "a head takes the first inputs");
        for input in SAMPLER_INPUTS {
            assert_eq!(input.dtype, input.neutral.dtype(), "{}", input.name);
            assert_eq!(input.neutral.to_le_bytes().len() as u64, input.dtype.bytes(), "{}", input.name);
        }
    }
}
