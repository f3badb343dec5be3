//! Tokens of logits.
//!
//! This file reads what the primitive gives; `rows.rs` finds the tokens.

mod choose;
mod noise;
mod piece;
mod row;
mod rows;

#[cfg(test)]
mod tests;

use crate::element::{self, Number};
use crate::memory::Sources;
use crate::run::Context;
use crate::simd::Isa;
use crate::window::Tensor;
pub use piece::Elements;
use ptero_backend::Fault;
use ptero_plan::prim::{MOST_TOKENS, Sample};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::Key;
use ptero_tensor::DType;
pub(crate) use rows::Buffers;
pub use rows::{Rows, sample_rows};

/// The parameters of a call and its result: memory that is kept.
#[derive(Debug, Default)]
pub(crate) struct Call {
    settings: Vec<Settings>,
    keys: Vec<Key>,
    /// Whether any temperature is above 0.
    is_drawn: bool,
    tokens: Vec<u32>,
}

pub(crate) fn sample(context: &mut Context<'_>, views: &Sample) -> Result<(), Fault> {
    let isa = context.isa;
    // What has no room takes no key.
    context.open(&views.out)?;
    let (sources, workers) = context.sources();
    let [rows, vocabulary] = shape(&sources.tensor(&views.logits)?)?;
    let mut call = std::mem::take(&mut workers.scratch.sample.call);
    call.read(isa, &sources, views, rows)?;
    let key = if views.seed.is_none() && call.is_drawn { context.keys.next_key() } else { [0; 2] };
    let mut staging = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(&views.out)?;
    if target.window.count() != rows {
        return Err(NOT_ROWS);
    }
    let logits = sources.tensor(&views.logits)?;
    let keys = match call.keys.as_slice() {
        [] => Keys::Shared(key),
        [key] => Keys::Shared(*key),
        keys => Keys::PerRow(keys),
    };
    let found = if let Some(found) = in_place(&logits, vocabulary) {
        found
    } else {
        staging.resize(rows * vocabulary, 0.0);
        let (outer, line) = logits.window.lines(1);
        for (row, to) in staging.chunks_exact_mut(vocabulary).enumerate() {
            logits.read(isa, outer.offset_of(row), line.stride, to);
        }
        Rows::contiguous(Elements::F32(&staging), vocabulary)
    };
    call.tokens.resize(rows, 0);
    sample_rows(&mut workers, isa, &found, &call.settings, keys, &mut call.tokens);
    for (row, token) in call.tokens.iter().enumerate() {
        element::write(isa, target.dtype, target.bytes, target.window.offset_of(row), 0, &[i64::from(*token)]);
    }
    workers.scratch.sample.call = call;
    *context.staging = staging;
    Ok(())
}

fn shape(logits: &Tensor<'_>) -> Result<[usize; 2], Fault> {
    let &[rows, vocabulary] = logits.window.shape.as_slice() else { return Err(NOT_ROWS) };
    if !(1..=MOST_TOKENS).contains(&i64::try_from(vocabulary).unwrap_or(i64::MAX)) {
        return Err(NO_VOCABULARY);
    }
    Ok([rows, vocabulary])
}

/// Rows whose elements lie side by side are read where they are.
fn in_place<'a>(logits: &Tensor<'a>, vocabulary: usize) -> Option<Rows<'a>> {
    let (first, stride) = (logits.window.offset, usize::try_from(logits.window.stride(0)).ok()?);
    if vocabulary > 1 && logits.window.stride(1) != 1 {
        return None;
    }
    let elements = match logits.dtype {
        DType::F32 => Elements::F32(element::elements(logits.bytes)),
        DType::F16 => Elements::F16(element::elements(logits.bytes)),
        DType::Bf16 => Elements::Bf16(element::elements(logits.bytes)),
        _ => return None,
    };
    Some(Rows { elements, first, stride, vocabulary })
}

impl Call {
    /// Settings: one, or one per row; keys of seeds, if there are any, likewise.
    fn read(&mut self, isa: Isa, sources: &Sources<'_>, views: &Sample, rows: usize) -> Result<(), Fault> {
        let temperature = PerRow::new(isa, sources.tensor(&views.temperature)?, rows)?;
        let top_k = PerRow::new(isa, sources.tensor(&views.top_k)?, rows)?;
        let top_p = PerRow::new(isa, sources.tensor(&views.top_p)?, rows)?;
        let count = if temperature.is_same && top_k.is_same && top_p.is_same { 1 } else { rows };
        let settings = |row| Settings { temperature: temperature.of(row), top_k: top_k.of(row), top_p: top_p.of(row) };
        // Not of the settings: where there are no rows there may be none, but the one temperature of all.
        let temperatures = if temperature.is_same { 1 } else { rows };
        self.is_drawn = (0..temperatures).any(|row| temperature.of::<f32>(row) > 0.0);
        self.settings.clear();
        self.settings.extend((0..count).map(settings));
        self.keys.clear();
        if let Some(seed) = sources.optional(views.seed.as_ref())? {
            let seed = PerRow::new(isa, seed, rows)?;
            self.keys.extend((0..if seed.is_same { 1 } else { rows }).map(|row| seed_key(seed.of(row))));
        }
        Ok(())
    }
}

/// A parameter: one number for all rows, or one for each.
struct PerRow<'a> {
    isa: Isa,
    tensor: Tensor<'a>,
    is_same: bool,
}

impl<'a> PerRow<'a> {
    fn new(isa: Isa, tensor: Tensor<'a>, rows: usize) -> Result<Self, Fault> {
        let count = tensor.window.count();
        if count != 1 && count != rows {
            return Err(NOT_PER_ROW);
        }
        Ok(Self { isa, tensor, is_same: count == 1 })
    }

    fn of<N: Number>(&self, row: usize) -> N {
        let mut number = N::default();
        let place = self.tensor.window.offset_of(if self.is_same { 0 } else { row });
        self.tensor.read(self.isa, place, 0, std::slice::from_mut(&mut number));
        number
    }
}

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
