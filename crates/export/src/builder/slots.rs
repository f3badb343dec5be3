//! Handles of what a builder has declared.

use ptero_pte::field::{self, Dst, DstValue, Int, Src};

/// A tensor of a graph being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(pub(super) u32);

impl Tensor {
    /// As something that a node reads.
    pub fn src(self) -> Src {
        Src(self.0)
    }

    /// As something that a node writes.
    pub fn dst(self) -> Dst {
        Dst(self.0)
    }
}

/// A host value of a graph being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub(super) u32);

impl Value {
    /// As something that a node reads.
    pub fn value(self) -> field::Value {
        field::Value(self.0)
    }

    /// Likewise, where a literal could stand.
    pub fn int(self) -> Int {
        Int::Value(self.value())
    }

    /// As something that a node writes.
    pub fn dst(self) -> DstValue {
        DstValue(self.0)
    }
}
