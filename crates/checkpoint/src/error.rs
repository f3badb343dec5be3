//! What can be wrong with a checkpoint, and where.
//!
//! [`ptero_tensor::fault`] adds the location to a fault.

use crate::Differences;
use crate::gguf::{known_pre_tokenizers, known_tokenizers};
use ptero_tensor::fault::{self, Located};
pub use ptero_tensor::fault::{Kind, Step};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault and the location where it was found.
pub type Error = Located<Fault>;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Fault {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("neither a safetensors nor a GGUF file, nor a folder that holds a checkpoint")]
    NotACheckpoint,
    #[error("holds neither `model.safetensors` nor `model.safetensors.index.json`")]
    NoWeights,
    #[error("`pytorch_model.bin` is not read: it is a program, not data\nhint: convert it to safetensors first")]
    Pickle,

    #[error("{bytes} bytes at offset {at} reach outside the {size} bytes there are")]
    OutOfBounds { at: u64, bytes: u64, size: u64 },
    #[error("{count} {what}, over the limit of {limit}")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    #[error("more arrays inside each other than the limit allows")]
    TooDeep,
    #[error("duplicate `{}`", .0.escape_debug())]
    Duplicate(String),
    #[error("the bytes of shape {0:?} do not fit 64 bits")]
    CountOverflow(Vec<u64>),
    #[error("{found} bytes of data where {format} of shape {shape:?} takes {wanted}")]
    WrongLength { found: u64, format: &'static str, shape: Vec<u64>, wanted: u64 },
    #[error("data at {start} to {end} overlaps that of tensor `{}`, which ends at {before}", other.escape_debug())]
    Overlap { start: u64, end: u64, other: String, before: u64 },
    #[error("bytes {start} to {end} of the data belong to no tensor")]
    Hole { start: u64, end: u64 },
    #[error("data ends at {end}, before it starts at {start}")]
    Backwards { start: u64, end: u64 },

    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("element type `{}` is not one that ptero reads", .0.escape_debug())]
    UnknownDType(String),
    #[error("`{}` is not the plain name of a `.safetensors` file beside the index", .0.escape_debug())]
    BadShardName(String),
    #[error("not in `{}`, where the index says it is", .0.escape_debug())]
    NotInShard(String),

    #[error("not a GGUF file: it starts with `{}`, not `GGUF`", .0.escape_ascii())]
    NotGguf([u8; 4]),
    #[error("GGUF version {0}; versions 2 and 3 are read")]
    Version(u32),
    #[error("a big-endian GGUF file; only little-endian ones are read")]
    BigEndian,
    #[error("one of {0} parts of a checkpoint\nhint: join them first, with `llama-gguf-split --merge`")]
    Split(u64),
    #[error("{0} is not a known type of value")]
    UnknownValueType(u32),
    #[error("{0} is not a bool")]
    NotABool(u8),
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("alignment {0} is not a power of two")]
    BadAlignment(u64),
    #[error("offset {at} is not a multiple of {to}")]
    Misaligned { at: u64, to: u64 },
    #[error("GGUF type {code} ({name}) is not one that ptero reads")]
    UnknownGgufType { code: u32, name: &'static str },
    #[error("no such key, which {what} `{name}` must have")]
    NoSuchKey { what: &'static str, name: &'static str },
    #[error("not {0}")]
    NotOfType(&'static str),
    #[error("a value that ptero does not support")]
    UnsupportedValue,
    #[error("`{}` is not a tokenizer that ptero knows ({known})", .0.escape_debug(), known = known_tokenizers())]
    UnknownTokenizer(String),
    #[error("`{}` is not a pre-tokenizer that ptero knows ({known})", .0.escape_debug(), known = known_pre_tokenizers())]
    UnknownPreTokenizer(String),
    #[error("rows of {columns} elements are not whole blocks of {block}")]
    PartBlock { columns: u64, block: u64 },

    #[error("no such tensor")]
    NoSuchTensor,
    #[error("elements of type {0} are not read as f32")]
    NotFloats(&'static str),
    #[error("rows {start} to {end} of a tensor of {rows}")]
    NoSuchRows { start: u64, end: u64, rows: u64 },
    #[error("room for {found} elements where the rows hold {wanted}")]
    WrongRoom { found: u64, wanted: u64 },
    #[error("{0}")]
    Differs(Box<Differences>),
}

impl fault::Fault for Fault {
    fn kind(&self) -> Kind {
        match self {
            Fault::Io(_) => Kind::System,
            Fault::TooMany { .. } | Fault::TooDeep => Kind::Limit,
            Fault::Pickle
            | Fault::UnknownDType(_)
            | Fault::UnknownGgufType { .. }
            | Fault::Version(_)
            | Fault::BigEndian
            | Fault::Split(_)
            | Fault::UnsupportedValue
            | Fault::UnknownTokenizer(_)
            | Fault::UnknownPreTokenizer(_)
            | Fault::NotFloats(_) => Kind::Unsupported,
            Fault::NoSuchTensor | Fault::NoSuchRows { .. } | Fault::WrongRoom { .. } | Fault::Differs(_) => {
                Kind::Absent
            }
            _ => Kind::Malformed,
        }
    }
}

/// Refuses more than the limit.
pub(crate) fn at_most(what: &'static str, count: u64, limit: u64) -> Result<()> {
    if count > limit { Err(Fault::TooMany { what, count, limit }.into()) } else { Ok(()) }
}
