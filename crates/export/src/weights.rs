//! The weights of a program being exported: the rows of the checkpoint that each consists of, and the form in which it is
//! stored. Weights are read only while they are written.

mod forms;
mod stream;

pub(crate) use forms::count;
pub use forms::{FormCount, bits_per_weight};
pub(crate) use stream::write_all;

use crate::error::{ExportError, Result};
use ptero_checkpoint::TensorEntry;
use ptero_pte::Pending;
use ptero_tensor::{Affine, GgufLegacyType, GgufType, ScaleType};
use std::ops::Range;

/// Rows of a tensor of the checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct WeightRows {
    pub(crate) entry: TensorEntry,
    pub(crate) rows: Range<u64>,
}

impl WeightRows {
    /// All of a tensor.
    pub(crate) fn whole(entry: TensorEntry) -> Self {
        let rows = 0..entry.rows();
        Self { entry, rows }
    }

    fn len(&self) -> u64 {
        self.rows.end.saturating_sub(self.rows.start)
    }
}

/// A matrix of weights: consecutive rows of the checkpoint's tensors, and the form in which they are stored.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) parts: Vec<WeightRows>,
    pub(crate) columns: usize,
    /// Applied to each number first.
    pub(crate) change: Option<fn(f32) -> f32>,
    pub(crate) form: Form,
    /// The data it gives, in this order.
    pub(crate) data: Vec<Pending>,
}

/// The form in which weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The bytes of the checkpoint.
    Bytes,
    /// The bytes of the checkpoint, which are blocks.
    Blocks(GgufType),
    /// Numbers of a floating type.
    Plain(ScaleType),
    /// Codes, followed by scales and biases of the type.
    Affine(Affine, ScaleType),
    /// Same as `Affine`, with the codes of the checkpoint's blocks.
    Legacy(GgufLegacyType, ScaleType),
}

/// Some rows in the form that is stored: one list of bytes for each of the weight's data.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) main: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) biases: Vec<u8>,
}

impl Encoded {
    /// Appends codes, scales and biases of `numbers` weights, which `encode` writes.
    fn codes<T>(
        &mut self,
        affine: Affine,
        numbers: usize,
        float: ScaleType,
        encode: impl FnOnce(&mut [u8], &mut [f32], &mut [f32]) -> T,
    ) -> T {
        let (mut codes, groups) = (vec![0; affine.code_bytes(numbers)], affine.groups(numbers));
        let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
        let result = encode(&mut codes, &mut scales, &mut biases);
        self.main.extend_from_slice(&codes);
        extend(&mut self.scales, &scales, float);
        extend(&mut self.biases, &biases, float);
        result
    }
}

/// The smallest number that f16 rounds to infinity. The other types reach as far as what checkpoints hold.
const F16_OVERFLOW: f32 = 65520.0;

/// Numbers that are read and encoded at a time: enough to amortize the hand-over, few enough to stay in a cache.
const RUN: u64 = 1 << 18;

impl Weight {
    pub(crate) fn rows(&self) -> u64 {
        self.parts.iter().map(WeightRows::len).sum()
    }

    /// The rows in runs that are encoded one by one.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (rows, run) = (self.rows(), (RUN / (self.columns as u64).max(1)).max(1));
        (0..rows.div_ceil(run)).map(move |index| index * run..rows.min((index + 1) * run))
    }

    /// Reads these rows and gives them their form.
    pub(crate) fn encode(&self, rows: Range<u64>) -> Result<Encoded> {
        let mut encoded = Encoded::default();
        let mut first = 0;
        for part in &self.parts {
            let (start, end) = (rows.start.max(first), rows.end.min(first + part.len()));
            if start < end {
                let at = |row: u64| row - first + part.rows.start;
                self.encode_part(&part.entry, at(start)..at(end), &mut encoded)?;
            }
            first += part.len();
        }
        Ok(encoded)
    }

    fn encode_part(&self, entry: &TensorEntry, rows: Range<u64>, out: &mut Encoded) -> Result<()> {
        match self.form {
            Form::Bytes | Form::Blocks(_) => out.main.extend_from_slice(&entry.row_bytes(rows.clone())?),
            Form::Plain(float) => {
                let numbers = self.numbers(entry, rows.clone())?;
                if float == ScaleType::F16 && numbers.iter().any(|number| number.abs() >= F16_OVERFLOW) {
                    return Err(self.not_representable(float));
                }
                extend(&mut out.main, &numbers, float);
            }
            Form::Affine(affine, float) => {
                let numbers = self.numbers(entry, rows.clone())?;
                let written = out.codes(affine, numbers.len(), float, |codes, scales, biases| {
                    affine.encode(&numbers, float, codes, scales, biases)
                });
                written.map_err(|_| self.not_representable(float))?;
            }
            Form::Legacy(kind, float) => {
                let blocks = entry.row_bytes(rows.clone())?;
                let numbers = blocks.len() / kind.block_bytes() * kind.block_len();
                out.codes(kind.affine(), numbers, float, |codes, scales, biases| {
                    kind.to_affine(&blocks, codes, scales, biases);
                });
            }
        }
        entry.release_rows(rows);
        Ok(())
    }

    fn not_representable(&self, float: ScaleType) -> ExportError {
        let name = self.data.first().map(|pending| pending.key.clone()).unwrap_or_default();
        ExportError::NotRepresentable { name, float: float.dtype().name() }
    }

    fn numbers(&self, entry: &TensorEntry, rows: Range<u64>) -> Result<Vec<f32>> {
        // Vectors that follow each other are rows of different lengths.
        let count = (rows.end - rows.start).saturating_mul(entry.columns());
        let mut numbers = vec![0.0; usize::try_from(count).unwrap_or(0)];
        entry.read_rows(rows, &mut numbers)?;
        if let Some(change) = self.change {
            numbers.iter_mut().for_each(|number| *number = change(*number));
        }
        Ok(numbers)
    }
}

/// Appends the numbers in a floating type.
pub(crate) fn extend(out: &mut Vec<u8>, numbers: &[f32], float: ScaleType) {
    match float {
        ScaleType::F16 => out.extend(numbers.iter().flat_map(|number| half::f16::from_f32(*number).to_le_bytes())),
        ScaleType::Bf16 => out.extend(numbers.iter().flat_map(|number| half::bf16::from_f32(*number).to_le_bytes())),
        ScaleType::F32 => out.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
    }
}
