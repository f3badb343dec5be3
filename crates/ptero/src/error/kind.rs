//! Who can do something about an error.

use super::Error;
use ptero_backend::Fault as DeviceFault;
use ptero_engine::Error as EngineError;
use ptero_pte::Fault as ProgramFault;
use ptero_text::Error as TextError;

/// What an error is about, for callers who treat kinds of errors differently.
///
/// ```
/// use ptero::{ErrorKind, Model};
///
/// let error = Model::open("missing.pte").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file, checkpoint or repository.
    NotFound,
    /// A file or a download: the disk or the network failed.
    Io,
    /// A program, a checkpoint or a file beside it is invalid or not supported.
    Model,
    /// A setting is invalid, or the program does not support it.
    Setting,
    /// A prompt or a conversation is refused.
    Prompt,
    /// A text, a grammar or a file is larger than ptero allows.
    Limit,
    /// A method or a session cannot be called like this.
    Call,
    /// A device is missing or failed.
    Device,
    /// A text was stopped, or its batcher is busy or closed.
    Stopped,
    /// A bug in ptero.
    Internal,
}

impl Error {
    /// Returns what the error is about.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::In { error, .. } => error.kind(),
            Self::NoSuchFile(_) | Self::NotASource(_) => ErrorKind::NotFound,
            Self::Read { cause, .. } => of_io(cause),
            Self::Write { .. } | Self::Hub(_) | Self::NoCacheFolder | Self::CacheLimit(_) => ErrorKind::Io,
            Self::Program(error) => match error.fault() {
                ProgramFault::Io(cause) => of_io(cause),
                _ => ErrorKind::Model,
            },
            Self::Json { .. }
            | Self::Checkpoint(_)
            | Self::Export(_)
            | Self::Graft(_)
            | Self::Plan(_)
            | Self::NoTokenizer
            | Self::NoChatTemplate
            | Self::TemplateNotUtf8 => ErrorKind::Model,
            Self::KvCache(_) | Self::UnknownCacheLayers | Self::CacheText(_) => ErrorKind::Setting,
            Self::Device(error) => of_device(error.fault()),
            Self::UnknownDevice { .. } | Self::NoDevice { .. } | Self::NotInBuild { .. } => ErrorKind::Device,
            Self::NoMethod { .. } | Self::InputCount { .. } | Self::Unsupported(_) | Self::Tensor { .. } => {
                ErrorKind::Call
            }
            Self::Engine(error) => of_engine(error),
            Self::Text(error) => of_text(error),
            Self::NoBeginning | Self::NothingToReplyTo => ErrorKind::Prompt,
            Self::QueueFull { .. } | Self::Closed => ErrorKind::Stopped,
            Self::Panicked => ErrorKind::Internal,
        }
    }
}

fn of_io(cause: &std::io::Error) -> ErrorKind {
    if cause.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io }
}

fn of_engine(error: &EngineError) -> ErrorKind {
    match error {
        EngineError::NoForward
        | EngineError::InputCount(_)
        | EngineError::Input { .. }
        | EngineError::LogProbabilityOutput { .. }
        | EngineError::SampledOutput(_)
        | EngineError::Logits { .. }
        | EngineError::NoSamplerInputs
        | EngineError::UnusedSamplerInputs
        | EngineError::Calls(_)
        | EngineError::NoValue(_)
        | EngineError::MissingMetadata(_)
        | EngineError::BadMetadata { .. }
        | EngineError::Vocabulary { .. }
        | EngineError::Program(_)
        | EngineError::Plan(_)
        | EngineError::NotAToken(_)
        | EngineError::Output { .. } => ErrorKind::Model,
        EngineError::Cache(_)
        | EngineError::UnknownPass(_)
        | EngineError::Refused(_)
        | EngineError::NeedsSampling(_)
        | EngineError::NeedsFullSampler(_)
        | EngineError::KeepsNoLogits
        | EngineError::TooManyBiases(_)
        | EngineError::Bias { .. }
        | EngineError::BiasOutside { .. }
        | EngineError::TakesNoSeed
        | EngineError::Filter(_) => ErrorKind::Setting,
        EngineError::EmptyPrompt
        | EngineError::NoRoom { .. }
        | EngineError::TokenOutside { .. }
        | EngineError::ContextFull { .. } => ErrorKind::Prompt,
        EngineError::RewindAhead { .. } | EngineError::CannotRewind { .. } | EngineError::Torn => ErrorKind::Call,
        EngineError::Stopped => ErrorKind::Stopped,
        EngineError::Backend(error) => of_device(error.fault()),
    }
}

/// What a call brought that does not fit is the caller's; everything else is the device's.
fn of_device(fault: &DeviceFault) -> ErrorKind {
    match fault {
        DeviceFault::WrongKind { .. }
        | DeviceFault::WrongDType { .. }
        | DeviceFault::WrongRank { .. }
        | DeviceFault::WrongSize { .. }
        | DeviceFault::WrongLength { .. }
        | DeviceFault::Unwritten
        | DeviceFault::Conflict { .. } => ErrorKind::Call,
        _ => ErrorKind::Device,
    }
}

fn of_text(error: &TextError) -> ErrorKind {
    match error {
        TextError::TooMany { .. } => ErrorKind::Limit,
        TextError::Refused(_) => ErrorKind::Prompt,
        // What else is not JSON is a file of the tokenizer.
        TextError::NotJson { file, .. } if !file.ends_with(".json") => ErrorKind::Setting,
        TextError::Grammar { .. }
        | TextError::NoText(_)
        | TextError::BrokenGrammar(_)
        | TextError::NotAllowed { .. }
        | TextError::DeadEnd { .. }
        | TextError::EmptyStop => ErrorKind::Setting,
        TextError::NoThread { .. } => ErrorKind::Device,
        // What is left is about the files of a tokenizer or a template.
        _ => ErrorKind::Model,
    }
}
