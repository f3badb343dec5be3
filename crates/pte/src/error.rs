//! What can be wrong with a program, and where.
//!
//! [`ptero_tensor::fault`] adds the location to a fault.

use ptero_tensor::Bytes;
use ptero_tensor::fault::{self, AtStep, Located};
pub use ptero_tensor::fault::{Kind, Step};
use std::path::Path;

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

    #[error("{bytes} bytes at offset {at} reach outside the {size}-byte buffer")]
    OutOfBounds { at: u64, bytes: u64, size: u64 },
    #[error("offset {at} is not a multiple of {to}")]
    Misaligned { at: u64, to: u64 },
    #[error("required, but absent")]
    Missing,
    #[error("a null offset where a table is required")]
    Null,
    #[error("{value} is not a known {what}")]
    UnknownCode { what: &'static str, value: i64 },
    #[error("`{}` is not a known {what} ({known})", word.escape_debug())]
    UnknownWord { what: &'static str, word: String, known: &'static str },
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("text is not terminated by a zero byte")]
    Unterminated,
    #[error("tables overlap so often that reading them all would take over {times} times their {size} bytes")]
    Overlap { times: u64, size: u64 },
    #[error("{count} {what}, over the limit of {limit}")]
    TooMany { what: &'static str, count: u64, limit: u64 },

    #[error("not an ExecuTorch program: the identifier at byte 4 is `{}`, not `ET12`", .0.escape_ascii())]
    NotAProgram([u8; 4]),
    #[error("a tensor data file (`.ptd`), not a program")]
    IsTensorData,
    #[error("not a tensor data file: it must start with identifier `FT01` and header `FH01`")]
    NotTensorData,
    #[error("not an MLX graph: the magic at byte 4 is `{}`, not `MLX0`", .0.escape_ascii())]
    NotAGraph([u8; 4]),
    #[error("{what} {} is newer than the {known} this ptero knows", found.escape_debug())]
    Newer { what: &'static str, found: String, known: &'static str },
    #[error("delegate `{}` is not one that ptero runs (only `MLXBackend` is)", .0.escape_debug())]
    ForeignDelegate(String),
    #[error("{0}")]
    Unsupported(&'static str),

    #[error("index {index}, but there are only {count} {what}")]
    NoSuch { what: &'static str, index: i64, count: usize },
    #[error("segments {0} and {1} overlap")]
    SegmentsOverlap(usize, usize),
    #[error("duplicate `{}`", .0.escape_debug())]
    Duplicate(String),
    #[error("size {0} is negative")]
    NegativeSize(i64),
    #[error("size bounds {min} to {max} make no sense")]
    BadBounds { min: i32, max: i32 },
    #[error("the tensor's element count does not fit 64 bits")]
    CountOverflow,
    #[error("dimension order {order:?} is not a permutation of {rank} dimensions")]
    BadDimOrder { order: Vec<u8>, rank: usize },
    #[error("{found} bytes of data for a tensor of {wanted} bytes")]
    WrongLength { found: u64, wanted: u64 },
    #[error("found: {found}; needed: {wanted}")]
    WrongKind { found: &'static str, wanted: &'static str },
    #[error("element type {found} where the graph declares {wanted}")]
    WrongDType { found: &'static str, wanted: &'static str },
    #[error("element type {0} is not one that an MLX graph can hold")]
    GraphDType(&'static str),
    #[error("a size known only at run time, where it must be fixed")]
    NotStatic,
    #[error("no data named `{}` in the program or its data files", .0.escape_debug())]
    NoData(String),
    #[error("has no name, so its data cannot be found")]
    NoName,
    #[error("has no shape and type in `tensor_meta`")]
    NoMeta,
    #[error("{found} arguments for a graph of {inputs} inputs and {outputs} outputs")]
    WrongArgs { found: usize, inputs: usize, outputs: usize },
    #[error("{left} `{left_name}` but {right} `{right_name}`")]
    Unpaired { left_name: &'static str, left: usize, right_name: &'static str, right: usize },
    #[error("random bits {0} bytes wide; only 1, 2 and 4 exist, and sampling needs 4")]
    BadWidth(i32),

    #[error("reads {0} before anything writes it")]
    ReadBeforeWrite(crate::Slot),
    #[error("must be written by the body of the scan, but {0} is not")]
    NotCollected(crate::Slot),
    #[error("writes constant t{0}; only the init chain may")]
    WritesConstant(u32),
    #[error("output {0} is not written on every path")]
    OutputUnwritten(crate::Slot),
    #[error("chain {0} runs itself, directly or through others")]
    Recursive(usize),
}

impl fault::Fault for Fault {
    fn kind(&self) -> Kind {
        match self {
            Fault::Io(_) => Kind::System,
            Fault::TooMany { .. } | Fault::Overlap { .. } => Kind::Limit,
            Fault::Newer { .. } | Fault::ForeignDelegate(_) | Fault::Unsupported(_) | Fault::IsTensorData => {
                Kind::Unsupported
            }
            _ => Kind::Malformed,
        }
    }
}

/// Maps a file and reads it.
pub(crate) fn in_file<T>(path: &Path, read: impl FnOnce(&Bytes) -> Result<T>) -> Result<T> {
    let file = Bytes::map(path).map_err(|error| Fault::from(error).into());
    file.and_then(|file| read(&file)).at(|| Step::File(path.to_owned()))
}

/// Refuses more than the limit.
pub(crate) fn at_most(what: &'static str, count: u64, limit: u64) -> Result<()> {
    if count > limit { Err(Fault::TooMany { what, count, limit }.into()) } else { Ok(()) }
}

/// `items[index]`, or a fault with the number of items if the index is negative or too large.
pub(crate) fn pick<'a, T>(items: &'a [T], index: impl Into<i64>, what: &'static str) -> Result<&'a T> {
    let index = index.into();
    let item = usize::try_from(index).ok().and_then(|at| items.get(at));
    item.ok_or_else(|| Fault::NoSuch { what, index, count: items.len() }.into())
}
