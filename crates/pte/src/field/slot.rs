//! Slots: numbered variables that hold the tensors and integers of a graph. The type of a field says how the node uses the
//! slot that it names.

use super::{Datum, Field, NodeField};
use crate::error::Result;
use crate::wire::{Entry, WireValue};
use ptero_tensor::SplitMix64;
use std::fmt;

/// A numbered variable of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// It holds a tensor.
    Tensor(u32),
    /// It holds an integer (or, from outside, a float or a bool) on the host.
    Value(u32),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::Tensor(index) => write!(f, "t{index}"),
            Slot::Value(index) => write!(f, "v{index}"),
        }
    }
}

/// How a node uses a slot, in the order in which things happen: reads, then what is fed to the chains, then the
/// chains themselves, then what is collected from them, then writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Must hold something before the node runs.
    Read(Slot),
    /// The node fills it before it runs its chain.
    Feed(Slot),
    /// The node runs this chain. Several chains of one node are alternatives.
    Chain(u32),
    /// The chain must have filled it; the node then replaces it.
    Collect(Slot),
    /// Holds something once the node has run.
    Write(Slot),
}

macro_rules! slots {
    ($($(#[$doc:meta])* $ty:ident: |$index:ident| $use:expr, $datum:expr, absent $absent:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $ty(pub u32);

        impl Field for $ty {
            fn absent() -> Option<Self> {
                $absent
            }

            fn get(entry: Entry<'_>) -> Result<Self> {
                u32::get(entry).map($ty)
            }

            fn wire_value(&self) -> WireValue<'_> {
                self.0.wire_value()
            }
        }

        impl NodeField for $ty {
            fn datum(&self) -> Datum {
                let $index = self.0;
                $datum
            }

            fn sample(rng: &mut SplitMix64) -> Self {
                $ty(u32::sample(rng) % 64)
            }

            fn uses(&self, see: &mut dyn FnMut(Use)) {
                let $index = self.0;
                see($use);
            }

            fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
                let $index = self.0;
                self.0 = to($use);
            }
        }
    )*};
}

slots! {
    /// A tensor that the node reads.
    Src: |index| Use::Read(Slot::Tensor(index)), Datum::Slot(Slot::Tensor(index)), absent None;
    /// A tensor that the node writes.
    Dst: |index| Use::Write(Slot::Tensor(index)), Datum::Slot(Slot::Tensor(index)), absent None;
    /// A tensor that the node writes for its chain to read.
    Fed: |index| Use::Feed(Slot::Tensor(index)), Datum::Slot(Slot::Tensor(index)), absent None;
    /// A tensor that the node takes from its chain and writes again, whole.
    Collected: |index| Use::Collect(Slot::Tensor(index)), Datum::Slot(Slot::Tensor(index)), absent None;
    /// A value that the node reads.
    Value: |index| Use::Read(Slot::Value(index)), Datum::Slot(Slot::Value(index)), absent None;
    /// A value that the node writes.
    DstValue: |index| Use::Write(Slot::Value(index)), Datum::Slot(Slot::Value(index)), absent None;
    /// A chain that the node runs. An absent one is chain 0: the format leaves zeros out.
    Chain: |index| Use::Chain(index), Datum::Chain(index), absent Some(Chain(0));
}
