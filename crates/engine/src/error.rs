//! Everything that can be wrong with a model or a call.

use crate::TokenId;
use ptero_pte::DType;
use ptero_sampling::adjust::MOST_BIASES;
use ptero_sampling::settings::Refused;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Error {
    // The program is not a language model.
    #[error("the program has no method `forward`")]
    NoForward,
    #[error("`forward` takes {0} inputs; a model takes `tokens` and `input_pos`, and 3, 4 or 13 more if it samples")]
    InputCount(usize),
    #[error("input `{name}` of `forward` is {found}; {wanted} is wanted")]
    Input { name: &'static str, found: Shown, wanted: &'static str },
    #[error("output {index} of `forward` is {found}; `{name}` of the full sampling head is wanted")]
    LogProbabilityOutput { index: usize, name: &'static str, found: Shown },
    #[error("`use_sampling` is set, but `forward` returns {0}; one i64 is wanted")]
    SampledOutput(Shown),
    #[error("`forward` returns {found}; logits of the last position, `[1, vocabulary]`, are wanted{}", hint(found))]
    Logits { found: Shown },
    #[error("`use_sampling` is set, but `forward` takes no sampling parameters")]
    NoSamplerInputs,
    #[error("`forward` takes sampling parameters, but `use_sampling` is not set")]
    UnusedSamplerInputs,
    #[error("`forward` must call one graph and do nothing else, but it has a {0}")]
    Calls(String),
    #[error("input {0} of the graph of `forward` is neither an input of the method nor a constant")]
    NoValue(usize),
    #[error("the program has no metadata `{0}`")]
    MissingMetadata(&'static str),
    #[error("metadata `{name}` is {value}, which makes no sense")]
    BadMetadata { name: &'static str, value: i64 },
    #[error("metadata `get_vocab_size` is {said}, but there are logits for {found} tokens")]
    Vocabulary { said: usize, found: usize },
    #[error(transparent)]
    Program(#[from] ptero_pte::Error),
    #[error(transparent)]
    Plan(#[from] ptero_plan::PlanError),
    #[error("key-value cache: {0}")]
    Cache(#[from] ptero_plan::CacheError),

    // The caller asked for something invalid, or for something that this program cannot do (S1.6).
    #[error("there is no pass `{0}`")]
    UnknownPass(String),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("{0} needs a program that samples, and this one returns logits")]
    NeedsSampling(&'static str),
    #[error("{0} needs a program with the full sampling head, and this one has another")]
    NeedsFullSampler(&'static str),
    #[error("the logits cannot be read: the program's sampling head is not the full one, or not one operation")]
    KeepsNoLogits,
    #[error("there are {0} logit biases; at most {MOST_BIASES} are possible")]
    TooManyBiases(usize),
    #[error("the logit bias of token {token} is {bias}; it must be finite")]
    Bias { token: TokenId, bias: f32 },
    #[error("a logit bias is for token {token}, which is outside the vocabulary of {vocabulary}")]
    BiasOutside { token: TokenId, vocabulary: usize },
    #[error("this program draws without a seed, so none can be given")]
    TakesNoSeed,
    #[error("the prompt is empty; at least one token is wanted")]
    EmptyPrompt,
    #[error(
        "a prompt of {prompt} tokens at position {position} leaves no room to generate; the context is {context} tokens"
    )]
    NoRoom { prompt: usize, position: usize, context: usize },
    #[error("token {token} at index {index} of the prompt is outside the vocabulary of {vocabulary}")]
    TokenOutside { token: TokenId, index: usize, vocabulary: usize },
    #[error("{tokens} tokens at position {position} do not fit the context of {context}")]
    ContextFull { tokens: usize, position: usize, context: usize },
    #[error("cannot go back to position {to}: only {position} tokens were given")]
    RewindAhead { to: usize, position: usize },
    #[error("cannot go back to position {to} of {position}: this model's state keeps no earlier positions, only 0")]
    CannotRewind { to: usize, position: usize },

    // A call ended early, or failed.
    #[error("stopped")]
    Stopped,
    #[error("an earlier call stopped halfway, and this model's state cannot be repaired; reset the session")]
    Torn,
    #[error(transparent)]
    Filter(Box<dyn std::error::Error + Send + Sync>),
    #[error("`forward` returned {0}, which is not a token id")]
    NotAToken(i64),
    #[error("`forward` returned {found} elements of type {dtype} where {wanted} were announced")]
    Output { dtype: DType, found: usize, wanted: usize },
    #[error(transparent)]
    Backend(#[from] ptero_backend::Error),
}

fn hint(shown: &Shown) -> &'static str {
    match shown {
        Shown::Tensor(DType::I64, _) => " (a program that returns tokens sets `use_sampling`)",
        Shown::Tensor(..) | Shown::Other(_) => "",
    }
}

/// What the program has where a tensor was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A tensor with these upper bounds of sizes.
    Tensor(DType, Vec<i32>),
    /// Something else.
    Other(&'static str),
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shown::Tensor(dtype, sizes) => write!(f, "{dtype} {sizes:?}"),
            Shown::Other(what) => f.write_str(what),
        }
    }
}
