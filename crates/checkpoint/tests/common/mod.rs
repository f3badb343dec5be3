//! Small files, written by hand so that every number in them can be forged.
#![allow(dead_code, reason = "each test file uses its part")]

use ptero_checkpoint::{Bytes, Checkpoint, Limits, Result};

/// A safetensors file of this table and `n` bytes of data.
pub(crate) fn safetensors(table: &str, data: usize) -> Vec<u8> {
    let mut bytes = (table.len() as u64).to_le_bytes().to_vec();
    bytes.extend(table.as_bytes());
    bytes.extend((0..data).map(|at| u8::try_from(at % 251).expect("below 251")));
    bytes
}

pub(crate) fn read_safetensors(bytes: Vec<u8>) -> Result<Checkpoint> {
    Checkpoint::from_safetensors(&Bytes::from(bytes), &Limits::DEFAULT)
}

pub(crate) fn read_gguf(bytes: Vec<u8>) -> Result<Checkpoint> {
    Checkpoint::from_gguf(&Bytes::from(bytes), &Limits::DEFAULT)
}

/// A row of a GGUF table: name, sizes innermost first, type, offset.
pub(crate) type Row<'a> = (&'a str, &'a [u64], u32, u64);

/// A GGUF file of these raw pairs (key, type, value) and rows, and `n` bytes of data.
pub(crate) fn gguf(pairs: &[(&str, u32, &[u8])], rows: &[Row<'_>], alignment: usize, data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((rows.len() as u64).to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    for (key, kind, value) in pairs {
        bytes.extend(text(key));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(*value);
    }
    for (name, sizes, kind, offset) in rows {
        bytes.extend(text(name));
        bytes.extend(u32::try_from(sizes.len()).expect("a few").to_le_bytes());
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
    bytes.extend((0..data).map(|at| u8::try_from(at % 251).expect("below 251")));
    bytes
}

/// A text as GGUF writes it.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The start of an array as GGUF writes it.
pub(crate) fn array(kind: u32, count: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes
}

/// The text of the error.
pub(crate) fn refusal(result: Result<Checkpoint>) -> String {
    result.expect_err("must be refused").to_string()
}
