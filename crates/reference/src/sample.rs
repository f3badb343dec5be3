//! Sampling: a token for each row of logits.

use crate::memory::Memory;
use crate::tensor::signed;
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::{MOST_TOKENS, Sample};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::sample_row;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry;

pub(crate) fn sample(memory: &mut Memory<'_>, views: &Sample<Value>) -> Result<(), Fault> {
    let &[rows, vocabulary] = memory.tensor(views.logits)?.shape() else { return Err(NOT_ROWS) };
    memory.expect_shape(views.out, &[rows])?;
    if !(1..=MOST_TOKENS).contains(&signed(vocabulary)) {
        return Err(NO_VOCABULARY);
    }
    let settings = settings(memory, rows, views)?;
    let seeds = views.seed.map(|seed| per_row(memory, seed, rows)).transpose()?;
    let key = match &seeds {
        Some(_) => [0; 2],
        None if memory.tensor(views.temperature)?.numbers().any(|number| number.float() > 0.0) => {
            memory.keys.next_key()
        }
        None => [0; 2],
    };
    let whole = |key, row, index| threefry::word(key, rows * vocabulary, row * vocabulary + index);
    let word = |row: usize, index: usize| match &seeds {
        Some(PerRow::Same(seed)) => whole(seed_key(seed.int()), row, index),
        Some(seeds @ PerRow::Each(_)) => threefry::word(seed_key(seeds.of(row).int()), vocabulary, index),
        None => whole(key, row, index),
    };
    // Row by row: a view may repeat one row more often than there is memory for.
    let logits = memory.tensor(views.logits)?.inner(1).zip(settings).enumerate();
    let tokens = logits.map(|(row, (logits, settings))| {
        Number::Int(signed(sample_row(&logits.floats(), &settings, |index| word(row, index))))
    });
    let tokens = tokens.collect();
    memory.store(views.out, tokens)
}

/// A parameter of a sampler.
enum PerRow {
    Same(Number),
    Each(Vec<Number>),
}

impl PerRow {
    fn of(&self, row: usize) -> Number {
        match self {
            PerRow::Same(number) => *number,
            PerRow::Each(numbers) => numbers.get(row).copied().unwrap_or(Number::Int(0)),
        }
    }
}

fn per_row(memory: &Memory<'_>, view: Value, rows: usize) -> Result<PerRow, Fault> {
    let tensor = memory.tensor(view)?;
    let count = tensor.layout.count();
    match tensor.numbers().next() {
        Some(number) if count == 1 => Ok(PerRow::Same(number)),
        _ if count == rows => Ok(PerRow::Each(tensor.numbers().collect())),
        _ => Err(NOT_PER_ROW),
    }
}

fn settings(
    memory: &Memory<'_>,
    rows: usize,
    views: &Sample<Value>,
) -> Result<impl Iterator<Item = Settings> + use<>, Fault> {
    let parameter = |view| per_row(memory, view, rows);
    let (temperature, top_k, top_p) = (parameter(views.temperature)?, parameter(views.top_k)?, parameter(views.top_p)?);
    Ok((0..rows).map(move |row| Settings {
        temperature: temperature.of(row).float(),
        top_k: top_k.of(row).int(),
        top_p: top_p.of(row).float(),
    }))
}

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
