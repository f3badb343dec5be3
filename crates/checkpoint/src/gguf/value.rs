//! The values of GGUF's metadata.

use super::cursor::Cursor;
use crate::{Fault, Result, Step};
use ptero_tensor::Bytes;
use ptero_tensor::fault::AtStep;

impl Value {
    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// The number, if it is a whole one of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::U64(value) => Some(value),
            Value::I8(value) => value.try_into().ok(),
            Value::I16(value) => value.try_into().ok(),
            Value::I32(value) => value.try_into().ok(),
            Value::I64(value) => value.try_into().ok(),
            Value::F32(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::F64(_) => None,
        }
    }

    /// The number, if it is a float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }

    /// The bool, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    /// The array, if it is one.
    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(array) = self { Some(array) } else { None }
    }
}

macro_rules! values {
    ($( $code:literal $name:ident($ty:ty) $least:literal; )*) => {
        /// A value of metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each is what its name says")]
        pub enum Value { $( $name($ty) ),* }

        /// The type of a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is what its name says")]
        pub enum ValueType { $( $name ),* }

        impl ValueType {
            /// Reads the number of a type.
            pub(crate) fn read(cursor: &mut Cursor) -> Result<Self> {
                match cursor.u32()? {
                    $( $code => Ok(ValueType::$name), )*
                    code => Err(Fault::UnknownValueType(code).into()),
                }
            }

            /// The least bytes of a value; exact, except for texts and arrays.
            fn least_bytes(self) -> u64 {
                match self { $( ValueType::$name => $least ),* }
            }
        }
    };
}

values! {
    0 U8(u8) 1;
    1 I8(i8) 1;
    2 U16(u16) 2;
    3 I16(i16) 2;
    4 U32(u32) 4;
    5 I32(i32) 4;
    6 F32(f32) 4;
    7 Bool(bool) 1;
    8 String(String) 8;
    9 Array(Array) 12;
    10 U64(u64) 8;
    11 I64(i64) 8;
    12 F64(f64) 8;
}

/// An array that stays in the file until it is iterated, so that opening a vocabulary is cheap. It was checked when it was
/// read.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    kind: ValueType,
    count: u64,
    bytes: Bytes,
    /// How many levels of nested arrays it may hold.
    nesting: u64,
}

impl Array {
    /// The type of its elements.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns `true` if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its elements. Ends early only if the file was changed after it was opened.
    pub fn iter(&self) -> impl Iterator<Item = Value> + use<> {
        let (kind, nesting, mut cursor) = (self.kind, self.nesting, Cursor::new(self.bytes.clone(), u64::MAX));
        (0..self.count).map_while(move |_| read_value(&mut cursor, kind, nesting).ok())
    }
}

/// Reads the next value of this type, with at most `nesting` levels of nested arrays.
pub(crate) fn read_value(cursor: &mut Cursor, kind: ValueType, nesting: u64) -> Result<Value> {
    Ok(match kind {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array()?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array()?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array()?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array()?)),
        ValueType::U32 => Value::U32(cursor.u32()?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array()?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array()?)),
        ValueType::Bool => Value::Bool(bool_of(u8::from_le_bytes(cursor.array()?))?),
        ValueType::String => Value::String(cursor.text(u64::MAX)?),
        ValueType::Array => Value::Array(read_array(cursor, nesting)?),
        ValueType::U64 => Value::U64(cursor.u64()?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array()?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array()?)),
    })
}

fn bool_of(byte: u8) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::NotABool(other).into()),
    }
}

fn read_array(cursor: &mut Cursor, nesting: u64) -> Result<Array> {
    let nesting = nesting.checked_sub(1).ok_or(Fault::TooDeep)?;
    let kind = ValueType::read(cursor)?;
    let count = cursor.u64()?;
    cursor.fits(count, kind.least_bytes())?;
    let start = cursor.at();
    pass_values(cursor, kind, count, nesting)?;
    Ok(Array { kind, count, bytes: cursor.since(start)?, nesting })
}

/// Checks and skips `count` values.
fn pass_values(cursor: &mut Cursor, kind: ValueType, count: u64, nesting: u64) -> Result<()> {
    match kind {
        ValueType::String => (0..count).try_for_each(|at| cursor.pass_text().at(|| Step::Indexed("element", at))),
        ValueType::Array => {
            (0..count).try_for_each(|at| read_array(cursor, nesting).map(drop).at(|| Step::Indexed("element", at)))
        }
        ValueType::Bool => cursor.pass(count)?.iter().try_for_each(|byte| bool_of(*byte).map(drop)),
        _ => cursor.pass(count.saturating_mul(kind.least_bytes())).map(drop),
    }
}
