//! A tensor that is read on demand.

use crate::random::RandomWeights;
use crate::{Fault, Format, Result, Step};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, DType};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// Tensors by name.
pub(crate) type Tensors = BTreeMap<String, TensorEntry>;

/// A tensor of a checkpoint: its format and shape, and a window on its bytes. Rows are consecutive, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    format: Format,
    shape: Vec<u64>,
    bytes: Bytes,
    /// Generates the numbers instead when rows are read.
    random: Option<RandomWeights>,
}

/// Bytes before rows that are released with them: more than the system maps around a page.
const RELEASED_BEFORE: u64 = 4 << 20;

impl TensorEntry {
    /// The window must have exactly the bytes that the shape takes.
    pub(crate) fn new(format: Format, shape: Vec<u64>, bytes: Bytes) -> Result<Self> {
        let (found, wanted) = (bytes.len() as u64, format.byte_count(&shape)?);
        if found != wanted {
            return Err(Fault::WrongLength { found, format: format.name(), shape, wanted }.into());
        }
        Ok(Self { format, shape, bytes, random: None })
    }

    /// A tensor of random numbers in f32.
    pub(crate) fn random(shape: &[u64], random: RandomWeights) -> Result<Self> {
        let format = Format::Plain(DType::F32);
        format.byte_count(shape)?;
        Ok(Self { format, shape: shape.to_vec(), bytes: Bytes::default(), random: Some(random) })
    }

    /// How the elements are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The stored bytes; for a mapped file they are read on access. Empty for a random tensor.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The innermost size; 1 for a scalar.
    pub fn columns(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The product of all other sizes; 0 for a tensor without elements.
    pub fn rows(&self) -> u64 {
        self.elements().checked_div(self.columns()).unwrap_or(0)
    }

    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        match self.random {
            Some(_) => self.shape.iter().product(),
            None => self.bytes.len() as u64 / self.format.block_bytes() * self.format.block_len(),
        }
    }

    /// Reads some rows as f32 into `out`, which must have room for exactly those.
    ///
    /// # Errors
    /// When there are no such rows, the room differs, or the elements are neither f32, f16, bf16 nor blocks of GGUF.
    pub fn read_rows(&self, rows: Range<u64>, out: &mut [f32]) -> Result<()> {
        let bytes = self.row_bytes(rows.clone())?;
        let count = rows.end.saturating_sub(rows.start);
        let (found, wanted) = (out.len() as u64, count.saturating_mul(self.columns()));
        if found != wanted {
            return Err(Fault::WrongRoom { found, wanted }.into());
        }
        self.format.decode(&bytes, out)
    }

    /// The bytes of some rows, as the file has them. The system is asked to read them now.
    ///
    /// # Errors
    /// When there are no such rows.
    pub fn row_bytes(&self, rows: Range<u64>) -> Result<Bytes> {
        let no_such_rows = Fault::NoSuchRows { start: rows.start, end: rows.end, rows: self.rows() };
        if let Some(random) = self.random.filter(|_| rows.start <= rows.end && rows.end <= self.rows()) {
            return Ok(random.bytes(rows.start * self.columns()..rows.end * self.columns()));
        }
        let bytes = self.window_of(&rows).ok_or(no_such_rows)?;
        // Maps do not read ahead by themselves.
        bytes.prefetch();
        Ok(bytes)
    }

    /// Releases the memory of rows that were read, and of some before them: if several threads read rows in turn, the
    /// system maps pages around every page that is read, including those just released.
    pub fn release_rows(&self, rows: Range<u64>) {
        let before = RELEASED_BEFORE.checked_div(self.row_width()).unwrap_or(0);
        self.window_of(&(rows.start.saturating_sub(before)..rows.end)).iter().for_each(Bytes::release);
    }

    /// Bytes of a row.
    fn row_width(&self) -> u64 {
        self.columns() / self.format.block_len() * self.format.block_bytes()
    }

    fn window_of(&self, rows: &Range<u64>) -> Option<Bytes> {
        if rows.end > self.rows() {
            return None;
        }
        let width = self.row_width();
        self.bytes.window(rows.start.checked_mul(width)?, rows.end.checked_sub(rows.start)?.checked_mul(width)?)
    }
}

/// Adds a value under a name that is not taken.
pub(crate) fn insert<T>(items: &mut BTreeMap<String, T>, name: String, item: T) -> Result<()> {
    match items.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(item);
            Ok(())
        }
        Entry::Occupied(entry) => Err(Fault::Duplicate(entry.key().clone()).into()),
    }
}

/// The `count` bytes at offset `at`.
pub(crate) fn window(bytes: &Bytes, at: u64, count: u64) -> Result<Bytes> {
    let outside = Fault::OutOfBounds { at, bytes: count, size: bytes.len() as u64 };
    Ok(bytes.window(at, count).ok_or(outside)?)
}

/// Refuses tensors of one file that share bytes, and with `whole` also bytes of `data` that belong to none.
pub(crate) fn check_spans(tensors: &Tensors, data: &Bytes, whole: bool) -> Result<()> {
    let span = |bytes: &Bytes| {
        let start = (bytes.offset() as u64).saturating_sub(data.offset() as u64);
        (start, start.saturating_add(bytes.len() as u64))
    };
    let mut spans: Vec<_> = tensors.iter().map(|(name, tensor)| (span(&tensor.bytes), name)).collect();
    spans.sort_unstable();
    let (mut before, mut other) = (0, "");
    for ((start, end), name) in spans {
        // An empty tensor shares nothing, wherever it lies.
        if start < before && start < end {
            let overlap = Fault::Overlap { start, end, other: other.to_owned(), before };
            return Err(overlap).at(|| Step::named("tensor", name));
        }
        if whole && start > before {
            return Err(Fault::Hole { start: before, end: start }.into());
        }
        if end >= before {
            (before, other) = (end, name);
        }
    }
    let size = data.len() as u64;
    if whole && before < size { Err(Fault::Hole { start: before, end: size }.into()) } else { Ok(()) }
}
