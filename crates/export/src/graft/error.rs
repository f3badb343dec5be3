//! Why a head cannot be grafted.

use crate::sampler::HeadError;
use ptero_pte::{DType, ShapeDim};
use std::fmt;

/// Why a program does not get a sampling head.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum GraftError {
    #[error("no method `{}`{}", method.escape_debug(), known(methods))]
    NoMethod { method: String, methods: Vec<String> },
    #[error("method `{}` has no MLX delegate{}\nhint: the head becomes part of its graph; export the method for MLX",
        method.escape_debug(), instead(found))]
    NoMlxDelegate { method: String, found: Vec<String> },
    #[error("method `{}` has no output {output}: it has {count}, counted from 0", method.escape_debug())]
    NoOutput { method: String, output: usize, count: usize },
    #[error("method `{}` has several outputs: {}", method.escape_debug(), outputs.join(", "))]
    SeveralOutputs { method: String, outputs: Vec<String> },
    #[error("output {output} is no tensor")]
    NoTensor { output: usize },
    #[error("already samples: the program's metadata says `use_sampling`")]
    UsesSampling,
    #[error("already samples: output {0} holds token ids, not logits")]
    ReturnsTokens(ShownOutput),
    #[error(
        "already samples: output {0} holds token ids, and not by upstream's head with all its inputs at the end\n\
        hint: the full head replaces only that one; graft onto the program that returns logits"
    )]
    OtherHead(ShownOutput),
    #[error(
        "nothing says how many positions a text may have, which the full sampling head needs to know\n\
        hint: export the model with the metadata `get_max_context_len`"
    )]
    NoContext,
    #[error("the metadata `{name}` is {value}, which is no number of positions")]
    Context { name: &'static str, value: i64 },
    #[error(
        "method `{}` does not take tokens, i64 (1, S), and then their positions, i64 (S), which the full sampling head \
        needs to know the text", method.escape_debug()
    )]
    NoText { method: String },
    #[error("output {0} does not hold logits: they are f32, f16 or bf16")]
    NotFloat(ShownOutput),
    #[error(
        "output {output} has the shape {shape}; the head takes the logits of one position, (B, V) or (B, 1, V)\n\
        hint: export the model so that it computes the last position only"
    )]
    Shape { output: usize, shape: ShownShape },
    #[error(
        "output {output} has the shape {shape}, so the size of the vocabulary is known only at run time\n\
        hint: export the model with a vocabulary of a fixed size"
    )]
    VocabularyVaries { output: usize, shape: ShownShape },
    #[error(
        "output {output} is not what an MLX delegate computes, so the head cannot be part of its graph\n\
        hint: export the model so that the delegate computes the logits as they are returned"
    )]
    NotFromGraph { output: usize },
    #[error(
        "output {output} is used by another part of the method too, so it cannot be replaced\n\
        hint: export the model so that it only returns the logits"
    )]
    UsedElsewhere { output: usize },
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error(transparent)]
    Program(#[from] ptero_pte::Error),
}

/// An output of a method, as errors show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownOutput {
    pub(super) output: usize,
    pub(super) dtype: DType,
    pub(super) shape: Vec<i32>,
}

impl fmt::Display for ShownOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:?}", self.output, self.dtype.name(), self.shape)
    }
}

/// A shape as errors show it: sizes, or the bounds of those that vary.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownShape(pub(super) Vec<ShapeDim>);

impl fmt::Display for ShownShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |dim: &ShapeDim| match (dim.value, dim.max_value) {
            (-1, -1) => format!("{}..", dim.min_value),
            (-1, max) => format!("{}..{max}", dim.min_value),
            (fixed, _) => fixed.to_string(),
        };
        write!(f, "[{}]", self.0.iter().map(dim).collect::<Vec<_>>().join(", "))
    }
}

fn known(methods: &[String]) -> String {
    match methods {
        [] => ": the program has none that computes".to_owned(),
        names => format!(" (there is: {})", listed(names)),
    }
}

fn instead(found: &[String]) -> String {
    match found {
        [] => String::new(),
        names => format!(", only {}", listed(names)),
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", name.escape_debug())).collect::<Vec<_>>().join(", ")
}
