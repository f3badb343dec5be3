//! Enumerations: numbers and words of the file that the reader turns into Rust enums.

use super::{Datum, Field, NodeField};
use crate::error::{Fault, Result};
use crate::wire::{Emit, Entry, Out, WireValue};
use ptero_tensor::{DType, SplitMix64};

/// Declares enums that are one byte on the wire.
macro_rules! codes {
    ($($(#[$doc:meta])* $ty:ident $what:literal { $( $(#[$case_doc:meta])* $code:literal $case:ident ),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $ty { $( $(#[$case_doc])* $case ),* }

        impl $crate::field::Field for $ty {
            const BYTES: usize = 1;

            fn absent() -> Option<Self> {
                [$( $ty::$case ),*].first().copied()
            }

            fn get(entry: $crate::wire::Entry<'_>) -> $crate::error::Result<Self> {
                match <u8 as $crate::field::Field>::get(entry)? {
                    $( $code => Ok($ty::$case), )*
                    other => Err($crate::error::Fault::UnknownCode { what: $what, value: other.into() }.into()),
                }
            }

            fn wire_value(&self) -> $crate::wire::WireValue<'_> {
                $crate::wire::WireValue::scalar([match self { $( $ty::$case => $code ),* }])
            }
        }
    )*};
}
pub(crate) use codes;

/// Declares enums that are a word on the wire.
macro_rules! words {
    ($($(#[$doc:meta])* $ty:ident $what:literal $known:literal {
        $( $(#[$case_doc:meta])* $word:literal $case:ident ),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $ty { $( $(#[$case_doc])* $case ),* }

        impl $ty {
            /// Its word in the file.
            pub fn word(self) -> &'static str {
                match self { $( $ty::$case => $word ),* }
            }
        }

        impl Emit for $ty {
            fn emit(&self, out: &mut Out) -> usize {
                out.text(self.word())
            }
        }

        impl Field for $ty {
            fn get(entry: Entry<'_>) -> Result<Self> {
                match entry.text()? {
                    $( $word => Ok($ty::$case), )*
                    word => Err(Fault::UnknownWord { what: $what, word: word.to_owned(), known: $known }.into()),
                }
            }

            fn wire_value(&self) -> WireValue<'_> {
                WireValue::Child(self)
            }
        }

        impl NodeField for $ty {
            fn datum(&self) -> Datum {
                Datum::Word(self.word())
            }

            fn sample(rng: &mut SplitMix64) -> Self {
                *rng.pick(&[$( $ty::$case ),*])
            }
        }
    )*};
}

words! {
    /// Which formula `Gelu` uses.
    GeluForm "approximation" "none or tanh" {
        /// The exact form, by the error function.
        "none" Erf,
        /// The approximation by a hyperbolic tangent.
        "tanh" Tanh,
    }
    /// What `Pad` puts round a tensor.
    PadMode "padding mode" "constant or edge" {
        /// A constant.
        "constant" Constant,
        /// The nearest element.
        "edge" Edge,
    }
    /// How quantized weights are packed.
    QuantMode "quantization mode" "affine, mxfp4, mxfp8 or nvfp4" {
        /// Integers with a scale and a bias per group.
        "affine" Affine,
        /// 4-bit floats with a power-of-two scale per 32.
        "mxfp4" Mxfp4,
        /// 8-bit floats with a power-of-two scale per 32.
        "mxfp8" Mxfp8,
        /// 4-bit floats with an 8-bit float scale per 16.
        "nvfp4" Nvfp4,
    }
}

impl Field for DType {
    const BYTES: usize = 1;

    fn absent() -> Option<Self> {
        Some(DType::U8)
    }

    fn get(entry: Entry<'_>) -> Result<Self> {
        let code = i8::get(entry)?;
        Ok(DType::from_code(code).ok_or(Fault::UnknownCode { what: "element type", value: code.into() })?)
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::scalar(self.code().to_le_bytes())
    }
}

impl NodeField for DType {
    fn datum(&self) -> Datum {
        Datum::Word(self.name())
    }

    fn sample(rng: &mut SplitMix64) -> Self {
        *rng.pick(DType::ALL)
    }
}
