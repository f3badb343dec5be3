//! Sampling: a token for each row of logits.

use crate::memory::Memory;
use crate::tensor::signed;
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Adjust, LogProbabilities, MOST_TOKENS, Sample};
use ptero_sampling::adjust::OwnedAdjustments;
use ptero_sampling::log_probabilities::{LogProbabilities as Which, RowLogProbabilities};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::{Keys, sample_row};
use ptero_sampling::settings::{Penalties, Settings};
use ptero_sampling::threefry::Key;

pub(crate) fn sample(memory: &mut Memory<'_>, views: &Sample<Value>) -> Result<(), Fault> {
    let &[rows, vocabulary] = memory.tensor(views.logits)?.shape() else { return Err(NOT_ROWS) };
    memory.expect_shape(views.out, &[rows])?;
    if !(1..=MOST_TOKENS).contains(&signed(vocabulary)) {
        return Err(NO_VOCABULARY);
    }
    let settings: Vec<Settings> = settings(memory, rows, views)?.collect();
    let adjustments = views.adjust.as_ref().map(|adjust| self::adjustments(memory, adjust, rows)).transpose()?;
    let seeds = views.seed.map(|seed| per_row(memory, seed, rows)).transpose()?;
    let is_drawn = memory.tensor(views.temperature)?.numbers().any(|number| number.float() > 0.0);
    let per_row: Vec<Key>;
    let keys = match seeds {
        Some(PerRow::Same(seed)) => Keys::Shared(seed_key(seed.int())),
        Some(PerRow::Each(seeds)) => {
            per_row = seeds.into_iter().map(|seed| seed_key(seed.int())).collect();
            Keys::PerRow(&per_row)
        }
        None => Keys::Shared(if is_drawn { memory.keys.next_key() } else { [0; 2] }),
    };
    let which = views.log_probabilities.as_ref().map_or(Ok(Which::None), |more| which(memory, more))?;
    let (mut tokens, mut more) = (Vec::new(), Vec::new());
    // Row by row: a view may repeat one row more often than there is memory for.
    for (row, (logits, settings)) in memory.tensor(views.logits)?.inner(1).zip(settings).enumerate() {
        let logits = logits.floats();
        let mut adjusted = logits.clone();
        adjustments.iter().for_each(|adjustments| adjustments.borrowed().apply(&mut adjusted));
        let token = sample_row(&adjusted, &settings, &keys.stream(row, rows, vocabulary));
        more.push(match which {
            Which::None => RowLogProbabilities::NONE,
            Which::Model => RowLogProbabilities::of_model(&logits, token),
            Which::Processed => RowLogProbabilities::of_processed(&adjusted, &settings, token),
        });
        tokens.push(Number::Int(signed(token)));
    }
    memory.store(views.out, tokens)?;
    views.log_probabilities.as_ref().map_or(Ok(()), |views| store(memory, views, &more))
}

fn which(memory: &Memory<'_>, views: &LogProbabilities<Value>) -> Result<Which, Fault> {
    Ok(Which::from_code(one(memory, views.which)?.int()))
}

fn store(memory: &mut Memory<'_>, views: &LogProbabilities<Value>, rows: &[RowLogProbabilities]) -> Result<(), Fault> {
    let likeliest = || rows.iter().flat_map(|row| row.likeliest);
    memory.store(views.token, rows.iter().map(|row| Number::Float(row.token)).collect())?;
    memory.store(views.likeliest, likeliest().map(|(token, _)| Number::Int(token.into())).collect())?;
    memory.store(views.of_likeliest, likeliest().map(|(_, share)| Number::Float(share)).collect())
}

/// The one element of a tensor.
fn one(memory: &Memory<'_>, view: Value) -> Result<Number, Fault> {
    match per_row(memory, view, 1)? {
        PerRow::Same(number) => Ok(number),
        PerRow::Each(_) => Err(NOT_ONE),
    }
}

/// What changes the logits of the one row.
fn adjustments(memory: &Memory<'_>, views: &Adjust<Value>, rows: usize) -> Result<OwnedAdjustments, Fault> {
    if rows != 1 {
        return Err(NOT_ONE_ROW);
    }
    let int = |view| one(memory, view).map(Number::int);
    let float = |view| one(memory, view).map(Number::float);
    let ints = |view| memory.tensor(view).map(|tensor| tensor.numbers().map(small).collect::<Vec<i32>>());
    let mut history = ints(views.history)?;
    history.truncate(usize::try_from(int(views.last)?.saturating_add(1)).unwrap_or(0));
    let tokens = ints(views.bias_tokens)?.into_iter();
    let values = memory.tensor(views.bias_values)?.numbers().map(Number::float);
    Ok(OwnedAdjustments {
        penalties: Penalties {
            repetition: float(views.repetition)?,
            presence: float(views.presence)?,
            frequency: float(views.frequency)?,
        },
        history,
        prompt_end: usize::try_from(int(views.prompt_end)?.max(0)).unwrap_or(usize::MAX),
        biases: tokens.zip(values).collect(),
        mask: ints(views.mask)?,
    })
}

/// An element of a tensor of type i32.
#[allow(clippy::cast_possible_truncation, reason = "the type is checked before the graph runs")]
fn small(number: Number) -> i32 {
    number.int() as i32
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
    let min_p = parameter(views.min_p)?;
    let exact_tail = views.exact_tail.map(parameter).transpose()?;
    Ok((0..rows).map(move |row| Settings {
        temperature: temperature.of(row).float(),
        top_k: top_k.of(row).int(),
        top_p: top_p.of(row).float(),
        min_p: min_p.of(row).float(),
        exact_tail: exact_tail.as_ref().is_some_and(|number| number.of(row).int() > 0),
    }))
}

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
const NOT_ONE: Fault =
    Fault::Contract("what changes logits, and which log-probabilities are wanted, is one element each");
const NOT_ONE_ROW: Fault = Fault::Contract("logits that are changed before the draw are one row");
