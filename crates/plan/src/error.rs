//! What can be wrong with a graph whose structure is sound: shapes, types, and what ptero cannot do.

use crate::dim::Dim;
use crate::graph::Origin;
use crate::print::list;
use ptero_tensor::DType;
use std::fmt;

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// Returns a fault from the function unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $fault:expr) => {
        if !$holds {
            return Err($fault.into());
        }
    };
}
pub(crate) use ensure;

/// What is wrong. [`PlanError`] adds the instruction.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Fault {
    #[error("axis {axis} of a tensor of rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("shapes {left} and {right} do not fit together")]
    Shapes { left: Shape, right: Shape },
    #[error("rank {found}, but {what} needs {wanted}")]
    Rank { what: &'static str, wanted: usize, found: usize },
    #[error("{found} of {what}, but {wanted} are needed")]
    Count { what: &'static str, wanted: usize, found: usize },
    #[error("{value} is no possible {what}")]
    Value { what: &'static str, value: i64 },
    #[error("{what} of type {dtype}")]
    DType { what: &'static str, dtype: DType },
    #[error("{size} cannot be made of {shape}")]
    Reshape { shape: Shape, size: Shape },
    #[error("writes {found} into state of {wanted}")]
    State { found: Shape, wanted: Shape },
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error("needs a key-value cache outside the graph, and none was described")]
    NoCache,
    #[error("a size that depends on too many values to be followed")]
    TooLarge,
    #[error("holds no tensor")]
    NoTensor,
    #[error("holds no integer")]
    NoInteger,
}

impl Fault {
    pub(crate) fn shapes(left: &[Dim], right: &[Dim]) -> Self {
        Self::Shapes { left: Shape(left.to_vec()), right: Shape(right.to_vec()) }
    }
}

/// A shape in a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape(pub Vec<Dim>);

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", list(&self.0))
    }
}

/// A fault and the instruction it was found at.
#[derive(Debug, thiserror::Error)]
#[error("instruction {chain}.{index} ({node}): {fault}")]
pub struct PlanError {
    /// The chain.
    pub chain: usize,
    /// The index in the chain.
    pub index: usize,
    /// The node.
    pub node: &'static str,
    /// What is wrong.
    pub fault: Fault,
}

impl PlanError {
    pub(crate) fn new((chain, index): Origin, node: &'static str, fault: Fault) -> Self {
        Self { chain: chain as usize, index: index as usize, node, fault }
    }
}
