//! The fused sampler: on the host, by the rules that every device follows to the bit.
//!
//! Programs are compiled without fusing their sampling heads, whose nodes then run as MLX's own; a graph that has the fused
//! primitive all the same waits here for its logits.

use crate::frame::{Frame, device};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::graph::Value;
use ptero_plan::prim::{Adjust, LogProbabilities, MOST_TOKENS, Sample};
use ptero_sampling::adjust::Adjustments;
use ptero_sampling::log_probabilities::{LogProbabilities as Which, RowLogProbabilities};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::{Keys, sample_row};
use ptero_sampling::settings::{Penalties, Settings};
use ptero_sampling::threefry::Key;

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
const NOT_ONE: Fault =
    Fault::Contract("what changes logits, and which log-probabilities are wanted, is one element each");
const NOT_ONE_ROW: Fault = Fault::Contract("logits that are changed before the draw are one row");

pub(crate) fn sample(frame: &mut Frame<'_>, sampler: &Sample<Value>) -> Result<(), Fault> {
    // Nothing is drawn from what an index outside its axis led to; the fault is found when the step has run.
    let &[rows, vocabulary] = frame.shape(sampler.logits)?.as_slice() else { return Err(NOT_ROWS) };
    if frame.shape(sampler.out)?.as_slice() != [rows] {
        return Err(NOT_ROWS);
    }
    if !(1..=MOST_TOKENS).contains(&vocabulary.into()) {
        return Err(NO_VOCABULARY);
    }
    let [rows, vocabulary] = [rows, vocabulary].map(|size| usize::try_from(size).unwrap_or(0));
    let settings = settings(frame, rows, sampler)?;
    let adjustments = sampler.adjust.as_ref().map(|adjust| RowAdjustments::read(frame, adjust, rows)).transpose()?;
    let seeds = sampler.seed.map(|seed| PerRow::read(frame, seed, rows)).transpose()?;
    let draws = numbers(frame, sampler.temperature)?.iter().any(|number| number.float() > 0.0);
    let per_row: Vec<Key>;
    let keys = match seeds {
        Some(PerRow::Same(seed)) => Keys::Shared(seed_key(seed.int())),
        Some(PerRow::Each(seeds)) => {
            per_row = seeds.into_iter().map(|seed| seed_key(seed.int())).collect();
            Keys::PerRow(&per_row)
        }
        None => Keys::Shared(if draws { frame.keys.next_key() } else { [0; 2] }),
    };
    let which = match &sampler.log_probabilities {
        Some(more) => Which::from_code(one(frame, more.which)?.int()),
        None => Which::None,
    };
    let logits: Vec<f32> = numbers(frame, sampler.logits)?.into_iter().map(Number::float).collect();
    let (mut tokens, mut more) = (Vec::new(), Vec::new());
    for (row, (logits, settings)) in logits.chunks(vocabulary).zip(&settings).enumerate() {
        let mut adjusted = logits.to_vec();
        adjustments.iter().for_each(|adjustments| adjustments.borrowed().apply(&mut adjusted));
        let token = sample_row(&adjusted, settings, &keys.stream(row, rows, vocabulary));
        more.push(match which {
            Which::None => RowLogProbabilities::NONE,
            Which::Model => RowLogProbabilities::of_model(logits, token),
            Which::Processed => RowLogProbabilities::of_processed(&adjusted, settings, token),
        });
        tokens.push(Number::Int(i64::try_from(token).unwrap_or(0)));
    }
    store(frame, sampler.out, &tokens)?;
    sampler.log_probabilities.as_ref().map_or(Ok(()), |views| store_more(frame, views, &more))
}

fn store_more(
    frame: &mut Frame<'_>,
    views: &LogProbabilities<Value>,
    rows: &[RowLogProbabilities],
) -> Result<(), Fault> {
    let likeliest = || rows.iter().flat_map(|row| row.likeliest);
    let numbers = |numbers: Vec<f32>| numbers.into_iter().map(Number::Float).collect::<Vec<Number>>();
    store(frame, views.token, &numbers(rows.iter().map(|row| row.token).collect()))?;
    let tokens: Vec<Number> = likeliest().map(|(token, _)| Number::Int(token.into())).collect();
    store(frame, views.likeliest, &tokens)?;
    store(frame, views.of_likeliest, &numbers(likeliest().map(|(_, share)| share).collect()))
}

/// The elements of a value. Waits for the device.
fn numbers(frame: &mut Frame<'_>, value: Value) -> Result<Vec<Number>, Fault> {
    let element = Element::new(frame.compiled.graph.ty(value).dtype)?;
    let count = frame.shape(value)?.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product::<usize>();
    let mut bytes = vec![0; count * element.bytes()];
    frame.arrays().read(value.0, &mut bytes).map_err(device)?;
    Ok((0..count).map(|index| element.load(&bytes, index)).collect())
}

fn store(frame: &mut Frame<'_>, value: Value, numbers: &[Number]) -> Result<(), Fault> {
    let element = Element::new(frame.compiled.graph.ty(value).dtype)?;
    let (shape, kind) = (frame.shape(value)?, frame.kind(value)?);
    let mut bytes = vec![0; numbers.len() * element.bytes()];
    numbers.iter().enumerate().for_each(|(index, number)| element.store(&mut bytes, index, *number));
    frame.arrays().store(value.0, &bytes, &shape, kind).map_err(device)
}

/// The one element of a value.
fn one(frame: &mut Frame<'_>, value: Value) -> Result<Number, Fault> {
    match numbers(frame, value)?.as_slice() {
        [number] => Ok(*number),
        _ => Err(NOT_ONE),
    }
}

/// What changes the logits of the one row.
struct RowAdjustments {
    penalties: Penalties,
    history: Vec<i32>,
    prompt_end: usize,
    biases: Vec<(i32, f32)>,
    mask: Vec<i32>,
}

impl RowAdjustments {
    fn read(frame: &mut Frame<'_>, views: &Adjust<Value>, rows: usize) -> Result<Self, Fault> {
        if rows != 1 {
            return Err(NOT_ONE_ROW);
        }
        let mut history = ints(frame, views.history)?;
        let last = one(frame, views.last)?.int();
        history.truncate(usize::try_from(last.saturating_add(1)).unwrap_or(0));
        let tokens = ints(frame, views.bias_tokens)?.into_iter();
        let values = numbers(frame, views.bias_values)?.into_iter().map(Number::float);
        Ok(Self {
            penalties: Penalties {
                repetition: one(frame, views.repetition)?.float(),
                presence: one(frame, views.presence)?.float(),
                frequency: one(frame, views.frequency)?.float(),
            },
            history,
            prompt_end: usize::try_from(one(frame, views.prompt_end)?.int().max(0)).unwrap_or(usize::MAX),
            biases: tokens.zip(values).collect(),
            mask: ints(frame, views.mask)?,
        })
    }

    fn borrowed(&self) -> Adjustments<'_> {
        let Self { penalties, history, prompt_end, biases, mask } = self;
        Adjustments { penalties: *penalties, history, prompt_end: *prompt_end, biases, mask }
    }
}

/// The elements of a tensor of type i32.
#[allow(clippy::cast_possible_truncation, reason = "the type is checked before the graph runs")]
fn ints(frame: &mut Frame<'_>, value: Value) -> Result<Vec<i32>, Fault> {
    Ok(numbers(frame, value)?.into_iter().map(|number| number.int() as i32).collect())
}

/// A parameter of a sampler.
enum PerRow {
    Same(Number),
    Each(Vec<Number>),
}

impl PerRow {
    fn read(frame: &mut Frame<'_>, value: Value, rows: usize) -> Result<Self, Fault> {
        let numbers = numbers(frame, value)?;
        match numbers.as_slice() {
            [number] => Ok(PerRow::Same(*number)),
            each if each.len() == rows => Ok(PerRow::Each(numbers)),
            _ => Err(NOT_PER_ROW),
        }
    }

    fn of(&self, row: usize) -> Number {
        match self {
            PerRow::Same(number) => *number,
            PerRow::Each(numbers) => numbers.get(row).copied().unwrap_or(Number::Int(0)),
        }
    }
}

fn settings(frame: &mut Frame<'_>, rows: usize, sampler: &Sample<Value>) -> Result<Vec<Settings>, Fault> {
    let mut parameter = |value| PerRow::read(frame, value, rows);
    let (temperature, top_k) = (parameter(sampler.temperature)?, parameter(sampler.top_k)?);
    let (top_p, min_p) = (parameter(sampler.top_p)?, parameter(sampler.min_p)?);
    let exact_tail = sampler.exact_tail.map(&mut parameter).transpose()?;
    let of_row = |row| Settings {
        temperature: temperature.of(row).float(),
        top_k: top_k.of(row).int(),
        top_p: top_p.of(row).float(),
        min_p: min_p.of(row).float(),
        exact_tail: exact_tail.as_ref().is_some_and(|number| number.of(row).int() > 0),
    };
    Ok((0..rows).map(of_row).collect())
}
