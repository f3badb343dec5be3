//! The element types of ExecuTorch, under its numbers.

use half::{bf16, f16};
use std::fmt;

macro_rules! dtypes {
    ($( $(#[$doc:meta])* $code:literal $name:ident $text:literal $bytes:literal; )*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $( $(#[$doc])* $name ),* }

        impl DType {
            /// Every type, in the order of its code.
            pub const ALL: &[DType] = &[$( DType::$name ),*];

            /// The type with this number in ExecuTorch's `ScalarType`, if there is one.
            pub fn from_code(code: i8) -> Option<Self> {
                match code { $( $code => Some(DType::$name), )* _ => None }
            }

            /// Its number in ExecuTorch's `ScalarType`.
            pub fn code(self) -> i8 {
                match self { $( DType::$name => $code ),* }
            }

            /// The short name used in everything ptero prints.
            pub fn name(self) -> &'static str {
                match self { $( DType::$name => $text ),* }
            }

            /// Bytes per element as stored.
            pub fn bytes(self) -> u64 {
                self.size() as u64
            }

            /// Same as [`DType::bytes`], for lengths in memory.
            pub fn size(self) -> usize {
                match self { $( DType::$name => $bytes ),* }
            }
        }
    };
}

dtypes! {
    /// Unsigned 8 bits.
    0 U8 "u8" 1;
    /// Signed 8 bits.
    1 I8 "i8" 1;
    /// Signed 16 bits.
    2 I16 "i16" 2;
    /// Signed 32 bits.
    3 I32 "i32" 4;
    /// Signed 64 bits.
    4 I64 "i64" 8;
    /// IEEE half precision.
    5 F16 "f16" 2;
    /// IEEE single precision.
    6 F32 "f32" 4;
    /// IEEE double precision.
    7 F64 "f64" 8;
    /// One byte, 0 or 1.
    11 Bool "bool" 1;
    /// PyTorch's quantized signed byte.
    12 QI8 "qi8" 1;
    /// PyTorch's quantized unsigned byte.
    13 QU8 "qu8" 1;
    /// PyTorch's quantized 32-bit integer.
    14 QI32 "qi32" 4;
    /// The upper half of a single.
    15 Bf16 "bf16" 2;
    /// Two 4-bit numbers in a byte.
    16 QU4x2 "qu4x2" 1;
    /// Four 2-bit numbers in a byte.
    17 QU2x4 "qu2x4" 1;
    /// Sixteen untyped bits.
    22 Bits16 "bits16" 2;
    /// 8-bit float, 5 exponent bits.
    23 F8E5M2 "f8e5m2" 1;
    /// 8-bit float, 4 exponent bits, finite only.
    24 F8E4M3 "f8e4m3fn" 1;
    /// `F8E5M2` without negative zero.
    25 F8E5M2Fnuz "f8e5m2fnuz" 1;
    /// `F8E4M3` without negative zero.
    26 F8E4M3Fnuz "f8e4m3fnuz" 1;
    /// Unsigned 16 bits.
    27 U16 "u16" 2;
    /// Unsigned 32 bits.
    28 U32 "u32" 4;
    /// Unsigned 64 bits.
    29 U64 "u64" 8;
}

impl DType {
    /// Returns `true` for the floats that ptero computes with: `f32`, `f16` and `bf16`.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A little-endian integer of that type.
pub fn integer(dtype: DType, bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let raw = i64::from_le_bytes(wide);
    let unused = 64 - 8 * bytes.len().min(8);
    let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    // Shifted up and down again, the sign spreads.
    if is_signed && unused < 64 { raw << unused >> unused } else { raw }
}

/// Decodes little-endian floats as `f32`. Returns `false` if the elements are none of `f32`, `f16` and `bf16`.
pub fn decode_floats(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
    fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], float: impl Fn([u8; N]) -> f32) {
        out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, raw)| *out = float(*raw));
    }
    match dtype {
        DType::F32 => decode(bytes, out, f32::from_le_bytes),
        DType::F16 => decode(bytes, out, |raw| f16::from_le_bytes(raw).to_f32()),
        DType::Bf16 => decode(bytes, out, |raw| bf16::from_le_bytes(raw).to_f32()),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_gaps_stay_gaps() {
        for code in i8::MIN..=i8::MAX {
            assert_eq!(DType::from_code(code).map(DType::code), DType::from_code(code).map(|_| code));
        }
        assert_eq!(DType::ALL.len(), 23);
        assert!([8, 9, 10, 18, 21, 30, -1].iter().all(|&gap| DType::from_code(gap).is_none()));
    }
}
