//! One safetensors file: eight bytes of length, a JSON table of contents, the data.
//!
//! This reader checks the table's length, its names and its ranges before it uses them, and refuses duplicate names, which a
//! JSON map would hide.

use crate::entry::{Tensors, check_spans, insert, window};
use crate::error::at_most;
use crate::{Fault, Format, Limits, Metadata, Result, Step, TensorEntry, Value};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, DType};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;

/// A tensor in the table of contents.
#[derive(serde::Deserialize)]
struct HeaderRow {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The whole table in the order of the file, including duplicate names.
#[derive(Default)]
struct Header {
    metadata: Pairs<String>,
    rows: Pairs<HeaderRow>,
}

/// The pairs of a JSON object in the order of the file, including duplicate names.
pub(crate) type Pairs<V> = Object<Vec<(String, V)>>;

/// What a JSON object is read into, pair by pair.
#[derive(Default)]
pub(crate) struct Object<T>(pub(crate) T);

/// Takes the pairs of a JSON object.
trait FromPairs<'de>: Default {
    fn take<A: MapAccess<'de>>(&mut self, name: String, map: &mut A) -> std::result::Result<(), A::Error>;
}

impl<'de, V: Deserialize<'de>> FromPairs<'de> for Vec<(String, V)> {
    fn take<A: MapAccess<'de>>(&mut self, name: String, map: &mut A) -> std::result::Result<(), A::Error> {
        let value = map.next_value().map_err(|error| in_pair(&name, &error))?;
        self.push((name, value));
        Ok(())
    }
}

impl<'de> FromPairs<'de> for Header {
    fn take<A: MapAccess<'de>>(&mut self, name: String, map: &mut A) -> std::result::Result<(), A::Error> {
        if name != "__metadata__" {
            return self.rows.0.take(name, map);
        }
        // MLX writes null if there is none.
        if let Some(Object(pairs)) =
            map.next_value::<Option<Pairs<String>>>().map_err(|error| in_pair(&name, &error))?
        {
            self.metadata.0.extend(pairs);
        }
        Ok(())
    }
}

impl<'de, T: FromPairs<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Object(T::default()))
    }
}

impl<'de, T: FromPairs<'de>> Visitor<'de> for Object<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<Self, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.0.take(name, &mut map)?;
        }
        Ok(self)
    }
}

fn in_pair<E: serde::de::Error>(name: &str, error: &E) -> E {
    E::custom(format_args!("`{}`: {error}", name.escape_debug()))
}

/// The tensors and the metadata of one file.
pub(crate) fn read(file: &Bytes, limits: &Limits) -> Result<(Tensors, Metadata)> {
    let (table, data) = split(file, limits)?;
    let Object(table): Object<Header> =
        serde_json::from_slice(&table).map_err(Fault::from).at(|| Step::Part("header"))?;
    at_most("tensors", table.rows.0.len() as u64, limits.tensors)?;
    let mut tensors = Tensors::new();
    for (name, row) in table.rows.0 {
        at_most("bytes of a name", name.len() as u64, limits.name_bytes)?;
        let tensor = tensor(row, &data, limits).at(|| Step::named("tensor", &name))?;
        insert(&mut tensors, name, tensor)?;
    }
    check_spans(&tensors, &data, true)?;
    Ok((tensors, metadata(table.metadata, limits)?))
}

/// The header and the data.
fn split(file: &Bytes, limits: &Limits) -> Result<(Bytes, Bytes)> {
    let size = file.len() as u64;
    let length = file.first_chunk().ok_or(Fault::OutOfBounds { at: 0, bytes: 8, size })?;
    let length = u64::from_le_bytes(*length);
    at_most("bytes of header", length, limits.header_bytes).at(|| Step::Part("header"))?;
    let end = length.saturating_add(8);
    let table = window(file, 8, length).at(|| Step::Part("header"))?;
    Ok((table, window(file, end, size.saturating_sub(end))?))
}

fn tensor(row: HeaderRow, data: &Bytes, limits: &Limits) -> Result<TensorEntry> {
    at_most("sizes of a shape", row.shape.len() as u64, limits.rank)?;
    let dtype = dtype(&row.dtype).ok_or_else(|| Fault::UnknownDType(row.dtype.clone()))?;
    let (start, end) = row.data_offsets;
    let bytes = end.checked_sub(start).ok_or(Fault::Backwards { start, end })?;
    TensorEntry::new(Format::Plain(dtype), row.shape, window(data, start, bytes)?)
}

fn metadata(pairs: Pairs<String>, limits: &Limits) -> Result<Metadata> {
    at_most("entries of metadata", pairs.0.len() as u64, limits.entries)?;
    let mut metadata = Metadata::new();
    pairs.0.into_iter().try_for_each(|(key, value)| insert(&mut metadata, key, Value::String(value)))?;
    Ok(metadata)
}

/// The types of safetensors that a program can hold.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "I8" => DType::I8,
        "I16" => DType::I16,
        "U16" => DType::U16,
        "I32" => DType::I32,
        "U32" => DType::U32,
        "I64" => DType::I64,
        "U64" => DType::U64,
        "F16" => DType::F16,
        "BF16" => DType::Bf16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        "F8_E4M3" => DType::F8E4M3,
        "F8_E5M2" => DType::F8E5M2,
        _ => return None,
    })
}
