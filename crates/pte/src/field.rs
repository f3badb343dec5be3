//! The types that fields of tables have. A type here is the whole contract of a field: how it is read and written and,
//! where it can be part of a node, how it is shown, sampled, and which slots it touches.

mod choice;
mod code;
mod slot;

pub use choice::{Float, Int, IntOrSrc, ValueOrSrc};
pub(crate) use code::codes;
pub use code::{GeluForm, PadMode, QuantMode};
pub use slot::{Chain, Collected, Dst, DstValue, Fed, Slot, Src, Use, Value};

use crate::error::{Fault, Result, Step};
use crate::wire::{Emit, Entry, Out, Table, WireValue};
use ptero_tensor::SplitMix64;
use ptero_tensor::fault::AtStep;

/// A value that a field of a table or an element of a vector can hold.
pub(crate) trait Field: Sized {
    /// Bytes of the field or element, which is also its alignment.
    const BYTES: usize = 4;

    /// The value that an absent field stands for, if any.
    fn absent() -> Option<Self> {
        None
    }

    fn get(entry: Entry<'_>) -> Result<Self>;

    fn wire_value(&self) -> WireValue<'_>;
}

/// The value of a field. If it is absent: `default`, or what absence means for its type.
pub(crate) fn read<T: Field>(table: &Table<'_>, slot: usize, default: Option<T>) -> Result<T> {
    let found = table.entry(slot, T::BYTES)?.map(T::get).transpose()?;
    Ok(found.or(default).or_else(T::absent).ok_or(Fault::Missing)?)
}

/// What is written for a field. A number that equals the default is left out; numbers are compared by their bits, since
/// `-0.0` is not `0.0`. Vectors and texts are written even when empty, since ExecuTorch refuses programs without some of
/// them.
pub(crate) fn written<T: Field>(value: &T, default: Option<T>) -> WireValue<'_> {
    let value = value.wire_value();
    let is_default = default.or_else(T::absent).is_some_and(|absent| absent.wire_value().is_same_scalar(&value));
    if is_default { WireValue::Absent } else { value }
}

/// A field of a node: it can also be shown, generated at random, and asked for the slots it touches.
pub(crate) trait NodeField: Field {
    fn datum(&self) -> Datum;

    fn sample(rng: &mut SplitMix64) -> Self;

    fn uses(&self, _see: &mut dyn FnMut(Use)) {}

    /// Renumbers every slot by `to`.
    fn rewire(&mut self, _to: &mut dyn FnMut(Use) -> u32) {}
}

/// A field's value as it is shown.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is what its name says")]
pub enum Datum {
    Absent,
    Bool(bool),
    Int(i64),
    Single(f32),
    Double(f64),
    Text(String),
    /// One of a fixed set of words.
    Word(&'static str),
    Slot(Slot),
    Chain(u32),
    List(Vec<Datum>),
}

/// A table with its fields in a fixed order; `records!` writes the implementation.
pub(crate) trait Record: Sized {
    fn read(table: &Table<'_>) -> Result<Self>;

    fn written(&self) -> Vec<WireValue<'_>>;
}

/// Declares tables: one struct each, its fields in the order of the schema. Absent vectors and texts of the outer format
/// mean empty ones, so those carry a default here.
macro_rules! records {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$field_meta:meta])* $field:ident : $ty:ty $(= $default:expr)? ),* $(,)? } )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $( $(#[$field_meta])* pub $field: $ty ),* }

        impl $crate::field::Record for $name {
            #[allow(unused, reason = "a table may have no field")]
            fn read(table: &$crate::wire::Table<'_>) -> $crate::error::Result<Self> {
                let mut slots = 0..;
                let mut next = || slots.next().unwrap_or(usize::MAX);
                Ok($name { $(
                    $field: ptero_tensor::fault::AtStep::at(
                        $crate::field::read::<$ty>(table, next(), None$(.or(Some($default)))?),
                        || $crate::error::Step::named("field", stringify!($field)),
                    )?,
                )* })
            }

            fn written(&self) -> Vec<$crate::wire::WireValue<'_>> {
                vec![$( $crate::field::written::<$ty>(&self.$field, None$(.or(Some($default)))?) ),*]
            }
        }
    )*};
}
pub(crate) use records;

impl<R: Record> Emit for R {
    fn emit(&self, out: &mut Out) -> usize {
        out.table(&self.written())
    }
}

impl<R: Record> Field for R {
    fn get(entry: Entry<'_>) -> Result<Self> {
        R::read(&entry.table()?)
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::Child(self)
    }
}

macro_rules! numbers {
    ($($ty:ty, $datum:ident, $sample:expr;)*) => {$(
        impl Field for $ty {
            const BYTES: usize = size_of::<$ty>();

            fn absent() -> Option<Self> {
                Some(<$ty>::default())
            }

            fn get(entry: Entry<'_>) -> Result<Self> {
                Ok(<$ty>::from_le_bytes(entry.scalar()?))
            }

            fn wire_value(&self) -> WireValue<'_> {
                WireValue::scalar(self.to_le_bytes())
            }
        }

        impl NodeField for $ty {
            #[allow(clippy::cast_possible_wrap, reason = "only AsStrided's offset is u64, and it is shown, not used")]
            #[allow(clippy::unnecessary_cast, clippy::cast_lossless, reason = "one line serves all widths")]
            fn datum(&self) -> Datum {
                Datum::$datum(*self as _)
            }

            fn sample(rng: &mut SplitMix64) -> Self {
                let sample: fn(u64) -> $ty = $sample;
                sample(rng.next_u64())
            }
        }
    )*};
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "random numbers may wrap")]
mod numbers {
    use super::*;

    numbers! {
        u8, Int, |random| random as u8;
        i8, Int, |random| random as i8;
        i32, Int, |random| random as i32;
        u32, Int, |random| random as u32;
        f32, Single, |random| random as i32 as f32 / 1024.0;
        i64, Int, |random| random as i64 - 1000;
        u64, Int, |random| random;
        f64, Double, |random| random as i32 as f64 / 1024.0;
    }
}

impl Field for bool {
    const BYTES: usize = 1;

    fn absent() -> Option<Self> {
        Some(false)
    }

    fn get(entry: Entry<'_>) -> Result<Self> {
        Ok(u8::get(entry)? != 0)
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::scalar([u8::from(*self)])
    }
}

impl NodeField for bool {
    fn datum(&self) -> Datum {
        Datum::Bool(*self)
    }

    fn sample(rng: &mut SplitMix64) -> Self {
        rng.below(2) == 1
    }
}

impl Field for String {
    fn get(entry: Entry<'_>) -> Result<Self> {
        entry.text().map(str::to_owned)
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::Child(self)
    }
}

impl Emit for String {
    fn emit(&self, out: &mut Out) -> usize {
        out.text(self)
    }
}

impl NodeField for String {
    fn datum(&self) -> Datum {
        Datum::Text(self.clone())
    }

    fn sample(rng: &mut SplitMix64) -> Self {
        format!("text {}", rng.below(100))
    }
}

impl<T: Field> Field for Option<T> {
    const BYTES: usize = T::BYTES;

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn get(entry: Entry<'_>) -> Result<Self> {
        T::get(entry).map(Some)
    }

    fn wire_value(&self) -> WireValue<'_> {
        self.as_ref().map_or(WireValue::Absent, T::wire_value)
    }
}

impl<T: NodeField> NodeField for Option<T> {
    fn datum(&self) -> Datum {
        self.as_ref().map_or(Datum::Absent, T::datum)
    }

    fn sample(rng: &mut SplitMix64) -> Self {
        (rng.below(3) > 0).then(|| T::sample(rng))
    }

    fn uses(&self, see: &mut dyn FnMut(Use)) {
        self.iter().for_each(|field| field.uses(see));
    }

    fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
        self.iter_mut().for_each(|field| field.rewire(to));
    }
}

impl<T: Field> Field for Vec<T> {
    fn get(entry: Entry<'_>) -> Result<Self> {
        let vector = entry.vector(T::BYTES)?;
        (0..vector.len).map(|index| T::get(vector.entry(index)).at(|| Step::indexed("element", index))).collect()
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::Child(self)
    }
}

impl<T: Field> Emit for Vec<T> {
    fn emit(&self, out: &mut Out) -> usize {
        out.vector(T::BYTES, self.iter().map(T::wire_value))
    }
}

impl<T: NodeField> NodeField for Vec<T> {
    fn datum(&self) -> Datum {
        Datum::List(self.iter().map(T::datum).collect())
    }

    fn sample(rng: &mut SplitMix64) -> Self {
        (0..rng.below(4)).map(|_| T::sample(rng)).collect()
    }

    fn uses(&self, see: &mut dyn FnMut(Use)) {
        self.iter().for_each(|item| item.uses(see));
    }

    fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
        self.iter_mut().for_each(|item| item.rewire(to));
    }
}
