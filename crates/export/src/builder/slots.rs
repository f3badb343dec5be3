//! Handles of what a builder has declared.

use ptero_pte::field::{self, Dst, DstValue, Int, Src};

/// A tensor of a graph being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(pub(super) u32);

impl Tensor {
    /// As an input of a node.
    pub fn src(self) -> Src {
        Src(self.0)
    }

    /// As an output of a node.
    pub fn dst(self) -> Dst {
        Dst(self.0)
    }
}

/// A host value of a graph being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub(super) u32);

impl Value {
    /// As an input of a node.
    pub fn value(self) -> field::Value {
        field::Value(self.0)
    }

    /// As an input of a node that could also be a literal.
    pub fn int(self) -> Int {
        Int::Value(self.value())
    }

    /// As an output of a node.
    pub fn dst(self) -> DstValue {
        DstValue(self.0)
    }
}
