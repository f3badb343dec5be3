//! One GGUF file: counts, key-value pairs, rows of a table of tensors, padding, the data.

mod cursor;
mod hugging_face;
mod keys;
mod tokenizer;
mod value;

pub(crate) use hugging_face::translate;
pub(crate) use tokenizer::{known_pre_tokenizers, known_tokenizers, side_file};
pub use value::{Array, Value, ValueType};

use crate::entry::{Tensors, check_spans, insert, window};
use crate::error::at_most;
use crate::{Fault, Format, Limits, Metadata, Result, Step, TensorEntry};
use cursor::Cursor;
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, DType, GgufLegacyType, GgufType};
use value::read_value;

/// The first bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// The alignment of the data and of each tensor in it, unless `general.alignment` gives another.
const ALIGNMENT: u32 = 32;

/// The highest rank of a GGUF tensor.
const MAX_RANK: u64 = 4;

/// The least bytes of a pair: length of the key, type, one byte of value.
const LEAST_PAIR_BYTES: u64 = 8 + 4 + 1;

/// The least bytes of a row of the table: length of the name, rank, type, offset.
const LEAST_ROW_BYTES: u64 = 8 + 4 + 4 + 8;

/// A row of the table of tensors.
struct TensorRow {
    name: String,
    format: Format,
    /// Outermost first.
    shape: Vec<u64>,
    /// From the start of the data.
    offset: u64,
}

/// The tensors and the metadata of one file.
pub(crate) fn read(file: &Bytes, limits: &Limits) -> Result<(Tensors, Metadata)> {
    let mut cursor = Cursor::new(file.clone(), limits.header_bytes);
    let (tensors, pairs) = counts(&mut cursor, limits).at(|| Step::Part("header"))?;
    cursor.fits(pairs, LEAST_PAIR_BYTES).at(|| Step::Part("metadata"))?;
    let metadata = metadata(&mut cursor, pairs, limits)?;
    let alignment = alignment(&metadata).at(|| Step::named("key", "general.alignment"))?;
    if let Some(parts @ 2..) = metadata.get("split.count").and_then(Value::as_u64) {
        return Err(Fault::Split(parts).into());
    }
    cursor.fits(tensors, LEAST_ROW_BYTES).at(|| Step::Part("table of tensors"))?;
    let mut rows = Vec::new();
    for index in 0..tensors {
        rows.push(
            row(&mut cursor, limits).at(|| Step::Indexed("element", index)).at(|| Step::Part("table of tensors"))?,
        );
    }
    Ok((tensors_of(rows, &data(file, cursor.at(), alignment, tensors)?, alignment)?, metadata))
}

/// The number of tensors and the number of pairs.
fn counts(cursor: &mut Cursor, limits: &Limits) -> Result<(u64, u64)> {
    let magic = cursor.array()?;
    if &magic != MAGIC {
        return Err(Fault::NotGguf(magic).into());
    }
    match u32::from_le_bytes(cursor.array()?) {
        2 | 3 => {}
        version if (1..=3).contains(&version.swap_bytes()) => return Err(Fault::BigEndian.into()),
        version => return Err(Fault::Version(version).into()),
    }
    let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
    at_most("tensors", tensors, limits.tensors)?;
    at_most("entries of metadata", pairs, limits.entries)?;
    Ok((tensors, pairs))
}

fn metadata(cursor: &mut Cursor, pairs: u64, limits: &Limits) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for index in 0..pairs {
        let key =
            cursor.text(limits.name_bytes).at(|| Step::Indexed("element", index)).at(|| Step::Part("metadata"))?;
        let kind = ValueType::read(cursor).at(|| Step::named("key", &key))?;
        let value = read_value(cursor, kind, limits.nesting).at(|| Step::named("key", &key))?;
        insert(&mut metadata, key, value).at(|| Step::Part("metadata"))?;
    }
    Ok(metadata)
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let alignment = match metadata.get("general.alignment") {
        None => ALIGNMENT,
        Some(Value::U32(alignment)) => *alignment,
        Some(_) => return Err(Fault::NotOfType("a 32-bit whole number").into()),
    };
    if alignment.is_power_of_two() { Ok(alignment.into()) } else { Err(Fault::BadAlignment(alignment.into()).into()) }
}

fn row(cursor: &mut Cursor, limits: &Limits) -> Result<TensorRow> {
    let name = cursor.text(limits.name_bytes)?;
    let rest = |cursor: &mut Cursor| -> Result<(Format, Vec<u64>, u64)> {
        let rank = cursor.u32()?.into();
        at_most("sizes of a shape", rank, limits.rank.min(MAX_RANK))?;
        let mut shape = (0..rank).map(|_| cursor.u64()).collect::<Result<Vec<_>>>()?;
        shape.reverse();
        let code = cursor.u32()?;
        let format = format(code).ok_or_else(|| Fault::UnknownGgufType { code, name: unread_name(code) })?;
        Ok((format, shape, cursor.u64()?))
    };
    let (format, shape, offset) = rest(cursor).at(|| Step::named("tensor", &name))?;
    Ok(TensorRow { name, format, shape, offset })
}

/// The data after a header that ends at `end`. A file without tensors may end with its header.
fn data(file: &Bytes, end: u64, alignment: u64, tensors: u64) -> Result<Bytes> {
    let size = file.len() as u64;
    let start = match tensors {
        0 => size,
        _ => end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX).min(size),
    };
    window(file, start, size - start)
}

/// Gives each row its window on the data.
fn tensors_of(rows: Vec<TensorRow>, data: &Bytes, alignment: u64) -> Result<Tensors> {
    let mut tensors = Tensors::new();
    for TensorRow { name, format, shape, offset } in rows {
        let tensor = || {
            if offset.checked_rem(alignment) != Some(0) {
                return Err(Fault::Misaligned { at: offset, to: alignment }.into());
            }
            let bytes = window(data, offset, format.byte_count(&shape)?)?;
            TensorEntry::new(format, shape, bytes)
        };
        let tensor = tensor().at(|| Step::named("tensor", &name))?;
        insert(&mut tensors, name, tensor)?;
    }
    check_spans(&tensors, data, false)?;
    Ok(tensors)
}

/// The type with this number in ggml's `ggml_type`, if ptero reads it.
fn format(code: u32) -> Option<Format> {
    Some(match code {
        0 => Format::Plain(DType::F32),
        1 => Format::Plain(DType::F16),
        2 => Format::GgufLegacy(GgufLegacyType::Q4_0),
        3 => Format::GgufLegacy(GgufLegacyType::Q4_1),
        6 => Format::GgufLegacy(GgufLegacyType::Q5_0),
        7 => Format::GgufLegacy(GgufLegacyType::Q5_1),
        8 => Format::GgufLegacy(GgufLegacyType::Q8_0),
        12 => Format::Gguf(GgufType::Q4K),
        13 => Format::Gguf(GgufType::Q5K),
        14 => Format::Gguf(GgufType::Q6K),
        24 => Format::Plain(DType::I8),
        25 => Format::Plain(DType::I16),
        26 => Format::Plain(DType::I32),
        27 => Format::Plain(DType::I64),
        28 => Format::Plain(DType::F64),
        30 => Format::Plain(DType::Bf16),
        _ => return None,
    })
}

/// ggml's names of the types that ptero does not read.
fn unread_name(code: u32) -> &'static str {
    match code {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => "unknown",
    }
}
