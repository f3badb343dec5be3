//! Faults of plans and calls, and where they are found.

use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Unary};
use ptero_plan::host::NumberFault;
use ptero_tensor::DType;
use std::fmt;
use std::mem::discriminant;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault, and where it was found.
#[derive(Debug, thiserror::Error)]
#[error("{}{fault}", place.map(|place| format!("{place}: ")).unwrap_or_default())]
pub struct Error {
    place: Option<Place>,
    fault: Fault,
}

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An input, by number.
    Input(usize),
    /// An output, by number.
    Output(usize),
    /// A buffer, by number.
    Buffer(usize),
    /// A state tensor, by number.
    State(usize),
    /// An operation.
    Step {
        /// The instruction it came from: chain, and index in the chain.
        origin: (u32, u32),
        /// What the operation does.
        name: &'static str,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Input(index) => write!(f, "input {index}"),
            Place::Output(index) => write!(f, "output {index}"),
            Place::Buffer(index) => write!(f, "buffer {index}"),
            Place::State(index) => write!(f, "state {index}"),
            Place::Step { origin: (chain, index), name } => write!(f, "instruction {chain}.{index} ({name})"),
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Fault {
    // The plan asks for something that this backend does not do.
    #[error("element type {0} is not one that ptero computes with")]
    Unsupported(DType),
    #[error("`{0:?}` does not exist for elements of type {1}")]
    NoUnary(Unary, DType),
    #[error("`{0:?}` does not exist for elements of type {1}")]
    NoBinary(Binary, DType),
    #[error("no memory for {bytes} bytes")]
    OutOfMemory { bytes: usize },
    #[error(
        "the program does not fit the device `{device}`: weights {} MiB, and for each session {} MiB of state and {} MiB of \
         working memory; {} MiB are free",
        mebibytes(*.weights), mebibytes(*.state), mebibytes(*.arena), mebibytes(*.free)
    )]
    DoesNotFit { device: &'static str, weights: u64, state: u64, arena: u64, free: u64 },
    #[error("the state of a session on this device cannot be copied")]
    NoFork,
    #[error(
        "Metal kernel `{}` (source {source_hash:016x}, header {header_hash:016x}) has no equivalent here",
        .name.escape_debug()
    )]
    Foreign { name: String, source_hash: u64, header_hash: u64 },

    // The graph cannot be laid out in memory, or is not what a graph must be.
    #[error(transparent)]
    Plan(#[from] ptero_plan::Fault),
    #[error("the graph breaks its contract: {0}")]
    Contract(&'static str),
    #[error("no {what} {index}; there are only {count}")]
    NoSuch { what: &'static str, index: usize, count: usize },
    #[error("the size {0} is known only when a call runs, where it must be fixed")]
    NotFixed(Dim),

    // A call brought something that does not fit.
    #[error("{found} where {wanted} is wanted")]
    WrongKind { found: &'static str, wanted: &'static str },
    #[error("element type {found} where {wanted} is wanted")]
    WrongDType { found: DType, wanted: DType },
    #[error("{found} axes where {wanted} are wanted")]
    WrongRank { found: usize, wanted: usize },
    #[error("size {found} along axis {axis} where {wanted} is wanted")]
    WrongSize { axis: usize, found: u64, wanted: i64 },
    #[error("{found} bytes where {wanted} are wanted")]
    WrongLength { found: usize, wanted: u64 },
    #[error("was never written")]
    Unwritten,
    #[error("gives {found} for h{var}, which another input gives as {wanted}")]
    Conflict { var: u32, found: i64, wanted: i64 },
    #[error("can be read only after a successful run")]
    NotRun,

    #[error("the run was cancelled")]
    Cancelled,
    #[error("the device failed: {0}")]
    Device(String),

    // A step met a value that it cannot use.
    #[error("index {index} is outside an axis of {size}")]
    IndexOutside { index: i64, size: usize },
    #[error("{0} is not a token id")]
    NotAToken(i64),
    #[error("{0} does not fit 32 bits")]
    Not32Bits(i128),
    #[error(transparent)]
    Number(#[from] NumberFault),
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl Fault {
    /// Adds the location of this fault.
    pub fn at(self, place: Place) -> Error {
        Error { place: Some(place), fault: self }
    }

    /// The kind of fault, without its numbers: all devices must agree on it.
    pub fn kind(&self) -> impl PartialEq + fmt::Debug + use<> {
        let number = if let Fault::Number(fault) = self { Some(discriminant(fault)) } else { None };
        (discriminant(self), number)
    }
}

impl Error {
    /// The fault, without its location.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// The location, if it has one.
    pub fn place(&self) -> Option<Place> {
        self.place
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error { place: None, fault }
    }
}

impl From<ptero_plan::PlanError> for Error {
    fn from(error: ptero_plan::PlanError) -> Self {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let origin = (number(error.chain), number(error.index));
        Fault::from(error.fault).at(Place::Step { origin, name: error.node })
    }
}
