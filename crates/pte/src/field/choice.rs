//! Fields that give a number in one of several ways: each is a small table whose last entry says which way was taken.

use super::{Datum, Field as _, NodeField, Record, Src, Use, Value, read};
use crate::error::{Fault, Result};
use crate::wire::{Table, WireValue};
use ptero_tensor::SplitMix64;

macro_rules! choices {
    ($($(#[$doc:meta])* $ty:ident, tag at $tag:literal {
        $( $(#[$case_doc:meta])* $code:literal => $case:ident($inner:ty) at $at:literal ),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum $ty { $( $(#[$case_doc])* $case($inner) ),* }

        impl Record for $ty {
            fn read(table: &Table<'_>) -> Result<Self> {
                match read::<u8>(table, $tag, None)? {
                    $( $code => read(table, $at, None).map($ty::$case), )*
                    other => Err(Fault::UnknownCode { what: stringify!($ty), value: other.into() }.into()),
                }
            }

            fn written(&self) -> Vec<WireValue<'_>> {
                let (tag, at, value) = match self { $( $ty::$case(inner) => ($code, $at, inner.wire_value()) ),* };
                let mut fields: Vec<_> = (0..$tag).map(|_| WireValue::Absent).collect();
                fields.splice(at..=at, [value]);
                fields.push(WireValue::scalar([tag]));
                fields
            }
        }

        impl NodeField for $ty {
            fn datum(&self) -> Datum {
                match self { $( $ty::$case(inner) => inner.datum() ),* }
            }

            fn sample(rng: &mut SplitMix64) -> Self {
                let cases: &[fn(&mut SplitMix64) -> Self] = &[$( |rng| $ty::$case(<$inner>::sample(rng)) ),*];
                rng.pick(cases)(rng)
            }

            fn uses(&self, see: &mut dyn FnMut(Use)) {
                match self { $( $ty::$case(inner) => inner.uses(see) ),* }
            }

            fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
                match self { $( $ty::$case(inner) => inner.rewire(to) ),* }
            }
        }
    )*};
}

choices! {
    /// A literal integer, or the value that will hold one.
    Int, tag at 2 {
        /// The integer itself.
        0 => Literal(i64) at 0,
        /// The value to read.
        1 => Value(Value) at 1,
    }
    /// A literal float, or the value that will hold one.
    Float, tag at 2 {
        /// The float itself.
        0 => Literal(f64) at 0,
        /// The value to read.
        1 => Value(Value) at 1,
    }
    /// A tensor, or a value.
    ValueOrSrc, tag at 2 {
        /// The tensor to read.
        0 => Tensor(Src) at 1,
        /// The value to read.
        1 => Value(Value) at 0,
    }
    /// A literal integer, a value, or a tensor of indices.
    IntOrSrc, tag at 3 {
        /// The integer itself.
        0 => Literal(i64) at 0,
        /// The value to read.
        1 => Value(Value) at 1,
        /// The tensor to read.
        2 => Tensor(Src) at 2,
    }
}
