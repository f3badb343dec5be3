//! Elements as numbers: floats are widened to `f32`, integers and bools to `i64`, and rounded or wrapped on the way back.

pub mod small_float;

use crate::error::{Fault, Result};
use half::{bf16, f16};
use ptero_tensor::DType;
use std::cmp::Ordering;

/// An element, widened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of an integer type or bool.
    Int(i64),
    /// Of a float type.
    Float(f32),
}

impl Number {
    /// As a float, rounded to the nearest.
    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a cast must")]
    pub fn float(self) -> f32 {
        match self {
            Number::Int(value) => value as f32,
            Number::Float(value) => value,
        }
    }

    /// Truncated towards zero. NaN gives 0, and a float beyond 64 bits the nearest integer of 64 bits.
    #[allow(clippy::cast_possible_truncation, reason = "truncation is meant")]
    pub fn int(self) -> i64 {
        match self {
            Number::Int(value) => value,
            Number::Float(value) => value as i64,
        }
    }

    /// Anything but zero, NaN included.
    pub fn is_true(self) -> bool {
        match self {
            Number::Int(value) => value != 0,
            Number::Float(value) => value != 0.0,
        }
    }

    /// Returns `true` for NaN.
    pub fn is_nan(self) -> bool {
        self.float().is_nan()
    }

    /// As comparisons see it: NaN has no order.
    pub fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
            (left, right) => left.float().partial_cmp(&right.float()),
        }
    }

    /// As sorting sees it: NaN is above all numbers.
    pub fn order(self, other: Self) -> Ordering {
        self.compare(other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
    }
}

macro_rules! elements {
    ($( $name:ident $bytes:literal; )* ! $( $other:ident )*) => {
        /// The types that are computed with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are those of the types")]
        pub enum Element { $( $name ),* }

        impl Element {
            /// The element of a type, if ptero computes with it.
            ///
            /// # Errors
            /// [`Fault::Unsupported`].
            pub fn new(dtype: DType) -> Result<Self, Fault> {
                match dtype {
                    $( DType::$name => Ok(Element::$name), )*
                    $( DType::$other )|* => Err(Fault::Unsupported(dtype)),
                }
            }

            /// Its size.
            pub fn bytes(self) -> usize {
                match self { $( Element::$name => $bytes ),* }
            }
        }
    };
}

elements! {
    Bool 1; U8 1; I8 1; U16 2; I16 2; U32 4; I32 4; I64 8; F16 2; Bf16 2; F32 4;
    ! U64 F64 Bits16 QI8 QU8 QI32 QU4x2 QU2x4 F8E5M2 F8E4M3 F8E5M2Fnuz F8E4M3Fnuz
}

impl Element {
    /// Returns `true` for floats.
    pub fn is_float(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16 | Element::F32)
    }

    /// The number in this type: rounded to nearest even, wrapped, or 0 or 1.
    pub fn convert(self, number: Number) -> Number {
        self.decode(self.encode(number))
    }

    /// The element at that index.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub fn load(self, bytes: &[u8], index: usize) -> Number {
        let mut bits = [0; 8];
        let stored = self.range(index, bytes.len()).and_then(|range| bytes.get(range));
        let stored = stored.expect("elements lie inside their buffers");
        bits.iter_mut().zip(stored).for_each(|(bit, byte)| *bit = *byte);
        self.decode(u64::from_le_bytes(bits))
    }

    /// Replaces the element at that index.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub fn store(self, bytes: &mut [u8], index: usize, number: Number) {
        let range = self.range(index, bytes.len());
        let stored = range.and_then(|range| bytes.get_mut(range)).expect("elements lie inside their buffers");
        stored.iter_mut().zip(self.encode(number).to_le_bytes()).for_each(|(byte, bits)| *byte = bits);
    }

    fn range(self, index: usize, length: usize) -> Option<std::ops::Range<usize>> {
        let start = index.checked_mul(self.bytes())?;
        (start < length).then(|| start..start + self.bytes())
    }

    /// The element's bits, in the low bytes; the other bytes are ignored.
    #[allow(clippy::cast_sign_loss, reason = "the bits of the number")]
    fn encode(self, number: Number) -> u64 {
        match self {
            Element::F16 => f16::from_f32(number.float()).to_bits().into(),
            Element::Bf16 => bf16::from_f32(number.float()).to_bits().into(),
            Element::F32 => number.float().to_bits().into(),
            Element::Bool => number.is_true().into(),
            Element::U8 | Element::I8 | Element::U16 | Element::I16 | Element::U32 | Element::I32 | Element::I64 => {
                number.int() as u64
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "only the element's own bits count")]
    fn decode(self, bits: u64) -> Number {
        match self {
            Element::F16 => Number::Float(f16::from_bits(bits as u16).to_f32()),
            Element::Bf16 => Number::Float(bf16::from_bits(bits as u16).to_f32()),
            Element::F32 => Number::Float(f32::from_bits(bits as u32)),
            Element::Bool => Number::Int((bits as u8 != 0).into()),
            Element::U8 => Number::Int((bits as u8).into()),
            Element::I8 => Number::Int((bits as i8).into()),
            Element::U16 => Number::Int((bits as u16).into()),
            Element::I16 => Number::Int((bits as i16).into()),
            Element::U32 => Number::Int((bits as u32).into()),
            Element::I32 => Number::Int((bits as i32).into()),
            Element::I64 => Number::Int(bits as i64),
        }
    }
}

/// The elements in another type, as by [`ptero_plan::expr::Scalar::Cast`].
///
/// # Errors
/// When ptero does not compute with one of the types, or the bytes are no whole number of elements.
pub fn cast(bytes: &[u8], from: DType, to: DType) -> Result<Vec<u8>> {
    let (source, target) = (Element::new(from)?, Element::new(to)?);
    let count = bytes.len() / source.bytes();
    if count * source.bytes() != bytes.len() {
        let wanted = (count as u64).saturating_mul(from.bytes());
        return Err(Fault::WrongLength { found: bytes.len(), wanted }.into());
    }
    let mut converted = vec![0; count * target.bytes()];
    for index in 0..count {
        target.store(&mut converted, index, source.load(bytes, index));
    }
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(element: Element, value: f32) -> i64 {
        element.convert(Number::Float(value)).int()
    }

    #[test]
    fn halves_round_to_the_even_neighbour() {
        let bf16 = |value| Element::Bf16.convert(Number::Float(value)).float();
        assert_eq!(bf16(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(bf16(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(bf16(1.0 + 1.0 / 256.0 + f32::EPSILON), 1.0 + 2.0 / 256.0);
        assert_eq!(bf16(f32::MAX), f32::INFINITY);
        assert!(bf16(f32::NAN).is_nan());
        let f16 = |value| Element::F16.convert(Number::Float(value)).float();
        assert_eq!((f16(2049.0), f16(2051.0), f16(65519.0), f16(65520.0)), (2048.0, 2052.0, 65504.0, f32::INFINITY));
        assert_eq!(f16(3.0e-8), 2.0_f32.powi(-24));
    }

    #[test]
    fn floats_become_integers_by_truncation_and_wrap() {
        assert_eq!((int(Element::I32, -1.9), int(Element::I32, 1.9)), (-1, 1));
        assert_eq!((int(Element::U8, 257.0), int(Element::U8, -1.0), int(Element::I8, 200.0)), (1, 255, -56));
        assert_eq!(int(Element::U32, 3e9), 3_000_000_000);
        assert_eq!((int(Element::I64, f32::NAN), int(Element::I32, f32::NAN)), (0, 0));
        assert_eq!((int(Element::I64, 1e30), int(Element::I64, f32::NEG_INFINITY)), (i64::MAX, i64::MIN));
        assert_eq!((int(Element::Bool, 0.5), int(Element::Bool, f32::NAN), int(Element::Bool, -0.0)), (1, 1, 0));
    }

    #[test]
    fn what_is_stored_is_what_is_loaded() {
        let cases = [
            (Element::Bool, 1),
            (Element::U8, 255),
            (Element::I8, -128),
            (Element::U16, 65535),
            (Element::I16, -2),
            (Element::U32, 4_294_967_295),
            (Element::I32, i64::from(i32::MIN)),
            (Element::I64, i64::MIN),
        ];
        for (element, value) in cases {
            let mut bytes = vec![0xAA; 3 * element.bytes()];
            element.store(&mut bytes, 1, Number::Int(value));
            assert_eq!(element.load(&bytes, 1), Number::Int(value), "{element:?}");
            assert!(bytes.iter().take(element.bytes()).all(|&byte| byte == 0xAA));
            assert!(bytes.iter().skip(2 * element.bytes()).all(|&byte| byte == 0xAA));
        }
    }

    #[test]
    fn casts_of_bytes_go_element_by_element() {
        let from: Vec<u8> = [1.5_f32, -2.5, 300.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(cast(&from, DType::F32, DType::U8).unwrap(), [1, 254, 44]);
        assert_eq!(cast(&from, DType::F32, DType::Bool).unwrap(), [1, 1, 1]);
        let i64s = cast(&[7, 0, 0, 0], DType::U32, DType::I64).unwrap();
        assert_eq!(i64s, 7_i64.to_le_bytes());
        assert_eq!(cast(&[0; 7], DType::F32, DType::U8).unwrap_err().to_string(), "7 bytes where 4 are wanted");
        let error = cast(&[], DType::F64, DType::F32).unwrap_err();
        assert_eq!(error.to_string(), "element type f64 is not one that ptero computes with");
    }
}
