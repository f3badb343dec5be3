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
use crate::generate::Rng;
use crate::wire::{Emit, Out, Place, Table, Vector};
use ptero_tensor::fault::AtStep;

/// A value with a place in a table.
pub(crate) trait Field: Sized {
    /// What an absent field means, when it means something.
    fn absent() -> Option<Self> {
        None
    }

    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>>;

    fn place(&self) -> Place<'_>;
}

/// The value of a field: what is there, or `default`, or what absence means for its type.
pub(crate) fn read<T: Field>(table: &Table<'_>, entry: usize, default: Option<T>) -> Result<T> {
    Ok(T::get(table, entry)?.or(default).or_else(T::absent).ok_or(Fault::Missing)?)
}

/// The place of a field. A number is left out when it is what its absence means, compared to the bit: `-0.0` is no `0.0`.
/// Vectors and texts are written even when empty, since ExecuTorch refuses programs without some of them.
pub(crate) fn place<T: Field>(value: &T, default: Option<T>) -> Place<'_> {
    let same = default.or_else(T::absent).is_some_and(|absent| absent.place().is_same_scalar(&value.place()));
    if same { Place::Absent } else { value.place() }
}

/// A field of a node: it can also be shown, made up, and asked for the slots it touches.
pub(crate) trait NodeField: Field {
    fn datum(&self) -> Datum;

    fn sample(rng: &mut Rng) -> Self;

    fn uses(&self, _see: &mut dyn FnMut(Use)) {}

    /// Gives every slot the number that `to` answers.
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

/// An element of a vector.
pub(crate) trait Elem: Field {
    /// Bytes per element, which is also its alignment.
    const STRIDE: usize = 4;

    fn elem(vector: &Vector<'_>, index: usize) -> Result<Self>;
}

/// A table with its fields in a fixed order; `records!` writes the implementation.
pub(crate) trait Record: Sized {
    fn read(table: &Table<'_>) -> Result<Self>;

    fn places(&self) -> Vec<Place<'_>>;
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
                let mut entry = 0;
                let mut next = || {
                    entry += 1;
                    entry - 1
                };
                Ok($name { $(
                    $field: ptero_tensor::fault::AtStep::at(
                        $crate::field::read::<$ty>(table, next(), $crate::field::default!($($default)?)),
                        || $crate::error::Step::Field(stringify!($field)),
                    )?,
                )* })
            }

            fn places(&self) -> Vec<$crate::wire::Place<'_>> {
                vec![$( $crate::field::place::<$ty>(&self.$field, $crate::field::default!($($default)?)) ),*]
            }
        }
    )*};
}
pub(crate) use records;

macro_rules! default {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}
pub(crate) use default;

impl<R: Record> Emit for R {
    fn emit(&self, out: &mut Out) -> usize {
        out.table(&Record::places(self))
    }
}

impl<R: Record> Field for R {
    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
        table.child(entry)?.map(|child| R::read(&child)).transpose()
    }

    fn place(&self) -> Place<'_> {
        Place::Child(self)
    }
}

impl<R: Record> Elem for R {
    fn elem(vector: &Vector<'_>, index: usize) -> Result<Self> {
        R::read(&vector.table(index)?)
    }
}

macro_rules! numbers {
    ($($ty:ty, $place:ident as $raw:ty, $datum:ident, $sample:expr;)*) => {$(
        impl Field for $ty {
            fn absent() -> Option<Self> {
                Some(<$ty>::default())
            }

            fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
                Ok(table.scalar(entry)?.map(<$ty>::from_le_bytes))
            }

            fn place(&self) -> Place<'_> {
                Place::$place(<$raw>::from_le_bytes(self.to_le_bytes()))
            }
        }

        impl NodeField for $ty {
            #[allow(clippy::cast_possible_wrap, reason = "only AsStrided's offset is u64, and it is shown, not used")]
            #[allow(clippy::unnecessary_cast, clippy::cast_lossless, reason = "one line serves all widths")]
            fn datum(&self) -> Datum {
                Datum::$datum(*self as _)
            }

            fn sample(rng: &mut Rng) -> Self {
                let sample: fn(u64) -> $ty = $sample;
                sample(rng.next())
            }
        }

        impl Elem for $ty {
            const STRIDE: usize = size_of::<$ty>();

            fn elem(vector: &Vector<'_>, index: usize) -> Result<Self> {
                Ok(<$ty>::from_le_bytes(vector.scalar(index)?))
            }
        }
    )*};
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "random numbers may wrap")]
mod numbers {
    use super::*;

    numbers! {
        u8, B1 as u8, Int, |random| random as u8;
        i8, B1 as u8, Int, |random| random as i8;
        i32, B4 as u32, Int, |random| random as i32;
        u32, B4 as u32, Int, |random| random as u32;
        f32, B4 as u32, Single, |random| random as i32 as f32 / 1024.0;
        i64, B8 as u64, Int, |random| random as i64 - 1000;
        u64, B8 as u64, Int, |random| random;
        f64, B8 as u64, Double, |random| random as i32 as f64 / 1024.0;
    }
}

impl Field for bool {
    fn absent() -> Option<Self> {
        Some(false)
    }

    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
        Ok(table.scalar(entry)?.map(|[byte]| byte != 0))
    }

    fn place(&self) -> Place<'_> {
        Place::B1(u8::from(*self))
    }
}

impl NodeField for bool {
    fn datum(&self) -> Datum {
        Datum::Bool(*self)
    }

    fn sample(rng: &mut Rng) -> Self {
        rng.below(2) == 1
    }
}

impl Elem for bool {
    const STRIDE: usize = 1;

    fn elem(vector: &Vector<'_>, index: usize) -> Result<Self> {
        let [byte] = vector.scalar(index)?;
        Ok(byte != 0)
    }
}

impl Field for String {
    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
        Ok(table.text(entry)?.map(str::to_owned))
    }

    fn place(&self) -> Place<'_> {
        Place::Child(self)
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

    fn sample(rng: &mut Rng) -> Self {
        format!("text {}", rng.below(100))
    }
}

impl Elem for String {
    fn elem(vector: &Vector<'_>, index: usize) -> Result<Self> {
        vector.text(index).map(str::to_owned)
    }
}

impl<T: Field> Field for Option<T> {
    fn absent() -> Option<Self> {
        Some(None)
    }

    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
        Ok(T::get(table, entry)?.map(Some))
    }

    fn place(&self) -> Place<'_> {
        self.as_ref().map_or(Place::Absent, T::place)
    }
}

impl<T: NodeField> NodeField for Option<T> {
    fn datum(&self) -> Datum {
        self.as_ref().map_or(Datum::Absent, T::datum)
    }

    fn sample(rng: &mut Rng) -> Self {
        (rng.below(3) > 0).then(|| T::sample(rng))
    }

    fn uses(&self, see: &mut dyn FnMut(Use)) {
        self.iter().for_each(|field| field.uses(see));
    }

    fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
        self.iter_mut().for_each(|field| field.rewire(to));
    }
}

impl<T: Elem> Field for Vec<T> {
    fn get(table: &Table<'_>, entry: usize) -> Result<Option<Self>> {
        let Some(vector) = table.vector(entry, T::STRIDE, T::STRIDE)? else { return Ok(None) };
        let items = (0..vector.len).map(|index| T::elem(&vector, index).at(|| Step::Element(index)));
        items.collect::<Result<_>>().map(Some)
    }

    fn place(&self) -> Place<'_> {
        Place::Child(self)
    }
}

impl<T: Elem> Emit for Vec<T> {
    fn emit(&self, out: &mut Out) -> usize {
        out.vector(T::STRIDE, self.iter().map(T::place))
    }
}

impl<T: Elem + NodeField> NodeField for Vec<T> {
    fn datum(&self) -> Datum {
        Datum::List(self.iter().map(T::datum).collect())
    }

    fn sample(rng: &mut Rng) -> Self {
        (0..rng.below(4)).map(|_| T::sample(rng)).collect()
    }

    fn uses(&self, see: &mut dyn FnMut(Use)) {
        self.iter().for_each(|item| item.uses(see));
    }

    fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
        self.iter_mut().for_each(|item| item.rewire(to));
    }
}
