//! Everything that can go wrong.

mod kind;

pub use kind::ErrorKind;

use crate::cache::NotALimit;
use crate::device::Device;
use crate::hub::{HubError, NotASource};
use crate::output::WriteFault;
use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong. Its text names the file or method concerned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error, with the file, model or method that it concerns.
    #[error("{context}: {}", with_sources(error))]
    In {
        /// The file, model or method.
        context: String,
        /// What is wrong with it.
        error: Box<Error>,
    },

    /// A file that cannot be read.
    #[error("could not read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file that cannot be written.
    #[error("could not write {}: {fault}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        fault: WriteFault,
    },
    /// A file that does not exist.
    #[error("{}: no such file", .0.display())]
    NoSuchFile(PathBuf),
    /// A file beside the model that is not the JSON it should be.
    #[error("`{file}`: {cause}")]
    Json {
        /// Its name.
        file: &'static str,
        /// Why.
        cause: serde_json::Error,
    },

    /// Neither a path nor the name of a repository.
    #[error(transparent)]
    NotASource(#[from] NotASource),
    /// A checkpoint by name that cannot be found or downloaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// No folder to cache programs in.
    #[error("there is no folder to cache programs in\nhint: set `PTERO_CACHE` to one")]
    NoCacheFolder,
    /// `PTERO_CACHE_LIMIT` is not a number of bytes.
    #[error(transparent)]
    CacheLimit(#[from] NotALimit),
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] ptero_checkpoint::Error),
    /// A checkpoint that cannot be exported.
    #[error(transparent)]
    Export(#[from] ptero_export::ExportError),

    /// A program that the full sampling head cannot be put into.
    #[error("the full sampling head does not fit: {0}")]
    Graft(#[from] ptero_export::GraftError),

    /// A file that is not a valid program.
    #[error(transparent)]
    Program(#[from] ptero_pte::Error),
    /// A program that cannot be lowered: its shapes or types do not fit, or a node is not supported.
    #[error(transparent)]
    Plan(#[from] ptero_plan::PlanError),
    /// A key-value cache that makes no sense.
    #[error(transparent)]
    KvCache(#[from] ptero_plan::CacheError),
    /// A program that does not describe its key-value cache.
    #[error("the program does not say which layers its key-value cache has")]
    UnknownCacheLayers,
    /// The text of a key-value cache that cannot be parsed.
    #[error("`{0}` is not a key-value cache: capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]")]
    CacheText(String),
    /// A device that failed, or a call that it refused.
    #[error(transparent)]
    Device(#[from] ptero_backend::Error),
    /// A device that does not exist.
    #[error("there is no device `{name}` (there are: {})", Device::ALL.map(Device::name).join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
    },
    /// A device that this machine does not have.
    #[error("the device `{device}` cannot be used: {reason}")]
    NoDevice {
        /// The device.
        device: Device,
        /// What is missing.
        reason: String,
    },
    /// A device that this build does not have.
    #[error("this build is without the device `{device}`: its feature `{feature}` is off")]
    NotInBuild {
        /// The device.
        device: Device,
        /// The feature that adds it.
        feature: &'static str,
    },

    /// A method that the program does not have.
    #[error("the program has no method `{name}` (it has: {})", methods.join(", "))]
    NoMethod {
        /// The name asked for.
        name: String,
        /// The methods it has.
        methods: Vec<String>,
    },
    /// A call with too few or too many inputs.
    #[error("{given} inputs were given, but the method takes {wanted}")]
    InputCount {
        /// Inputs given.
        given: usize,
        /// Inputs of the method.
        wanted: usize,
    },
    /// A method that does what ptero does not support outside a graph.
    #[error("the method {0}, which is not supported")]
    Unsupported(String),
    /// Elements that do not fill the shape of a tensor.
    #[error("{bytes} bytes are not a tensor of shape {shape:?} and type {dtype}")]
    Tensor {
        /// The element type.
        dtype: ptero_pte::DType,
        /// The sizes.
        shape: Vec<u64>,
        /// The bytes given.
        bytes: usize,
    },

    /// A program that is not a language model, or a call that it refuses.
    #[error(transparent)]
    Engine(#[from] ptero_engine::Error),
    /// A tokenizer or chat template that is invalid, or that failed.
    #[error(transparent)]
    Text(#[from] ptero_text::Error),
    /// Text for a model without a tokenizer.
    #[error("the model has no tokenizer")]
    NoTokenizer,
    /// A conversation with a model without a chat template.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// A chat template that is not UTF-8.
    #[error("the chat template is not UTF-8")]
    TemplateNotUtf8,
    /// An empty prompt, and no token to begin a text with.
    #[error("there is no prompt, and the model has no token to begin a text with")]
    NoBeginning,
    /// A text for a batcher with a full queue.
    #[error("{waiting} texts are waiting; no more can wait")]
    QueueFull {
        /// The texts that are waiting.
        waiting: usize,
    },
    /// A text for a batcher that was closed.
    #[error("no more texts are generated")]
    Closed,
    /// A text that ended because of a panic.
    #[error("an internal error ended the text")]
    Panicked,
    /// A reply to a conversation whose last message is not the user's.
    #[error("there is no message to reply to")]
    NothingToReplyTo,
}

impl Error {
    /// Returns the error without the files and methods that were named around it.
    pub fn innermost(&self) -> &Self {
        match self {
            Self::In { error, .. } => error.innermost(),
            other => other,
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |cause| Self::Read { path: path.to_owned(), cause }
    }
}

/// Names what an error concerns.
pub(crate) trait Context<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::In { context: context(), error: Box::new(error.into()) })
    }
}

/// The text of an error and of what caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
