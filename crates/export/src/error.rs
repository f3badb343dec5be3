//! Why a checkpoint does not become a program.

use crate::families::FAMILIES;
use crate::sampler::HeadError;

/// The result of exporting.
pub(crate) type Result<T, E = ExportError> = std::result::Result<T, E>;

/// Why a checkpoint does not become a program.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum ExportError {
    #[error(
        "the checkpoint does not say what model it holds\nhint: `config.json` belongs beside the weights; of GGUF, the \
         architectures of the supported families are known"
    )]
    NoConfig,
    #[error("config: no `model_type` that is a text")]
    NoModelType,
    #[error("model type `{}` is not supported\nhint: supported are {}", found.escape_debug(), model_types())]
    UnknownFamily { found: String },
    #[error("config: {0}")]
    Config(serde_json::Error),
    #[error("config: `{key}` is {found}, but has to be {wanted}")]
    Setting { key: &'static str, found: String, wanted: &'static str },
    #[error("config: `{key}` is {found}, which is not supported")]
    Unsupported { key: &'static str, found: String },
    #[error("config: sizes whose product is {0} make no tensor")]
    TooLarge(i64),
    #[error("a context of {found} positions\nhint: the model was made for 1 to {limit}")]
    Context { found: u32, limit: u32 },
    #[error("{found} tokens in one call\nhint: the context has room for 1 to {limit}")]
    Prefill { found: u32, limit: u32 },
    #[error("tensor `{}` is {format}, which holds no weights", name.escape_debug())]
    NotWeights { name: String, format: &'static str },
    #[error(
        "weights of `{}` are not finite, or too large for the type {float}\nhint: try `--quantize none`, or another \
         `--dtype`", name.escape_debug()
    )]
    NotRepresentable { name: String, float: &'static str },
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error(transparent)]
    Checkpoint(#[from] ptero_checkpoint::Error),
    #[error("could not write: {0}")]
    Io(std::io::Error),
}

// Not by `#[from]`, which would also make it the source, so that its text is shown twice.
impl From<std::io::Error> for ExportError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

fn model_types() -> String {
    let types = FAMILIES.iter().flat_map(|family| family.model_types);
    types.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
