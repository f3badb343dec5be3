//! Tensor data files (`.ptd`): named data beside a program.

use crate::Limits;
use crate::container::{Container, Segments, segment};
use crate::error::{Fault, Result, Step, in_file};
use crate::field::Record;
use crate::program::{NamedData, no_duplicates};
use crate::schema::{raw, sizes};
use crate::wire::Buffer;
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, byte_count};
use std::io::{self, Write};
use std::path::Path;

/// The contents of a `.ptd`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorData {
    /// Its entries, in the order of the file.
    pub entries: Vec<NamedData>,
}

impl TensorData {
    /// Maps and reads a file.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        in_file(path, |file| Self::read(file, limits))
    }

    /// Reads a file that is in memory.
    pub fn read(file: &Bytes, limits: &Limits) -> Result<Self> {
        let container = Container::of_tensor_data(file)?;
        let buffer = Buffer::new(&container.contents, limits);
        let table = raw::FlatTensor::read(&buffer.root()?)?;
        if table.version != 0 {
            let found = table.version.to_string();
            return Err(Fault::Newer { what: "tensor data version", found, known: "0" }.into());
        }
        let segments = container.segments(&table.segments)?;
        let entry = |entry: raw::NamedTensor| {
            let data = data_of(&entry, &segments).at(|| Step::named("named data", &entry.key))?;
            Ok(NamedData { key: entry.key, data })
        };
        let entries = table.named_data.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
        no_duplicates(entries.iter().map(|entry| &entry.key)).at(|| Step::Part("named data"))?;
        Ok(Self { entries })
    }

    /// Writes the file; the same entries give the same bytes.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut segments = Segments::default();
        let entry = |entry: &NamedData| raw::NamedTensor {
            key: entry.key.clone(),
            segment_index: segments.add(entry.data.clone()),
            tensor_layout: None,
        };
        let named_data = self.entries.iter().map(entry).collect();
        let data = raw::FlatTensor { version: 0, segments: segments.table(), named_data };
        segments.write_tensor_data(&data, out)
    }
}

fn data_of(entry: &raw::NamedTensor, segments: &[Bytes]) -> Result<Bytes> {
    let data = segment(segments, entry.segment_index)?;
    if let Some(layout) = &entry.tensor_layout {
        let wanted = byte_count(&sizes(&layout.sizes)?, layout.scalar_type).ok_or(Fault::CountOverflow)?;
        if wanted != data.len() as u64 {
            return Err(Fault::WrongLength { found: data.len() as u64, wanted }.into());
        }
    }
    Ok(data.clone())
}
