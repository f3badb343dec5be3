//! The sampling primitive. This file reads its parameters; `rows.rs` finds the tokens.

mod adjust;
mod choose;
mod log_probabilities;
mod noise;
mod overlay;
mod piece;
mod row;
mod rows;

#[cfg(test)]
mod tests;

use crate::element::{self, Number};
use crate::memory::Sources;
use crate::run::Context;
use crate::view::{Target, Tensor, ensure_shape};
use adjust::AdjustInputs;
pub use piece::Elements;
use ptero_backend::Fault;
use ptero_plan::prim::{MOST_TOKENS, Sample, ViewId};
use ptero_sampling::log_probabilities::{LogProbabilities, MOST_LIKELIEST};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::Key;
use ptero_tensor::DType;
pub(crate) use rows::Buffers;
pub use rows::{Drawn, LogitRows, Parameters, sample_rows};

/// The parameters and the result of a call. Its memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Call {
    settings: Vec<Settings>,
    keys: Vec<Key>,
    /// Some temperature is above 0.
    is_drawn: bool,
    adjust: AdjustInputs,
    which: LogProbabilities,
    drawn: Vec<Drawn>,
}

pub(crate) fn sample(context: &mut Context<'_>, views: &Sample) -> Result<(), Fault> {
    // Takes no key if there is no memory for the outputs.
    context.open()?;
    let (sources, workers) = context.sources();
    let [rows, vocabulary] = shape(&sources.tensor(&views.logits)?)?;
    let mut call = std::mem::take(&mut workers.scratch.sample.call);
    call.read(&sources, views, rows)?;
    open_log_probabilities(context, views, rows)?;
    let key = if views.seed.is_none() && call.is_drawn { context.resources.keys.next_key() } else { [0; 2] };
    call.draw(context, views, [rows, vocabulary], key)?;
    call.store(context, views)?;
    context.sources().1.scratch.sample.call = call;
    Ok(())
}

/// Fails unless log-probabilities can be written.
fn open_log_probabilities(context: &mut Context<'_>, views: &Sample, rows: usize) -> Result<(), Fault> {
    let Some(views) = &views.log_probabilities else { return Ok(()) };
    ensure_shape(&context.open_view(views.token)?.0.view, &[rows])?;
    for view in [views.likeliest, views.of_likeliest] {
        ensure_shape(&context.open_view(view)?.0.view, &[rows, MOST_LIKELIEST])?;
    }
    Ok(())
}

fn shape(logits: &Tensor<'_>) -> Result<[usize; 2], Fault> {
    let &[rows, vocabulary] = logits.view.shape.as_slice() else { return Err(NOT_ROWS) };
    if !(1..=MOST_TOKENS).contains(&i64::try_from(vocabulary).unwrap_or(i64::MAX)) {
        return Err(NO_VOCABULARY);
    }
    Ok([rows, vocabulary])
}

/// The rows in place, if their elements are contiguous floats.
fn in_place<'a>(logits: &Tensor<'a>, vocabulary: usize) -> Option<LogitRows<'a>> {
    let (first, stride) = (logits.view.offset, usize::try_from(logits.view.stride(0)).ok()?);
    if vocabulary > 1 && logits.view.stride(1) != 1 {
        return None;
    }
    let elements = match logits.dtype {
        DType::F32 => Elements::F32(element::elements(logits.bytes)),
        DType::F16 => Elements::F16(element::elements(logits.bytes)),
        DType::Bf16 => Elements::Bf16(element::elements(logits.bytes)),
        _ => return None,
    };
    Some(LogitRows { elements, first, stride, vocabulary })
}

impl Call {
    /// Finds the tokens of all rows.
    fn draw(
        &mut self,
        context: &mut Context<'_>,
        views: &Sample,
        [rows, vocabulary]: [usize; 2],
        key: Key,
    ) -> Result<(), Fault> {
        let isa = context.isa;
        let mut staging = std::mem::take(&mut context.resources.staging);
        let (target, sources, mut workers) = context.open()?;
        if target.view.count() != rows {
            return Err(NOT_ROWS);
        }
        let keys = match self.keys.as_slice() {
            [] => Keys::Shared(key),
            [key] => Keys::Shared(*key),
            keys => Keys::PerRow(keys),
        };
        let logits = sources.tensor(&views.logits)?;
        let found = if let Some(found) = in_place(&logits, vocabulary) {
            found
        } else {
            staging.resize(rows * vocabulary, 0.0);
            let logits = logits.lines(1);
            staging.chunks_exact_mut(vocabulary).enumerate().for_each(|(row, to)| logits.read(row, 0, to));
            LogitRows::contiguous(Elements::F32(&staging), vocabulary)
        };
        if let Some(views) = &views.adjust {
            workers.scratch.sample.reserve_changes(AdjustInputs::most_events(&sources, views)?, vocabulary);
        }
        let adjust = views.adjust.as_ref().map(|views| self.adjust.adjustments(&sources, views)).transpose()?;
        let parameters = Parameters {
            settings: &self.settings,
            keys,
            adjustments: adjust.as_slice(),
            log_probabilities: self.which,
        };
        self.drawn.resize(rows, Drawn::NONE);
        sample_rows(&mut workers, isa, &found, &parameters, &mut self.drawn);
        context.resources.staging = staging;
        Ok(())
    }

    /// Writes tokens and log-probabilities.
    fn store(&self, context: &mut Context<'_>, views: &Sample) -> Result<(), Fault> {
        let (mut target, ..) = context.open()?;
        for (row, drawn) in self.drawn.iter().enumerate() {
            write(&mut target, row, i64::from(drawn.token));
        }
        let Some(views) = &views.log_probabilities else { return Ok(()) };
        let found = || self.drawn.iter().map(|drawn| &drawn.log_probabilities);
        let likeliest = || found().flat_map(|row| row.likeliest).enumerate();
        let (mut target, ..) = context.open_view(views.token)?;
        found().enumerate().for_each(|(row, found)| write(&mut target, row, found.token));
        let (mut target, ..) = context.open_view(views.likeliest)?;
        likeliest().for_each(|(at, (token, _))| write(&mut target, at, i64::from(token)));
        let (mut target, ..) = context.open_view(views.of_likeliest)?;
        likeliest().for_each(|(at, (_, share))| write(&mut target, at, share));
        Ok(())
    }

    /// Reads settings and, if there are seeds, keys: one for all rows, or one for each.
    fn read(&mut self, sources: &Sources<'_>, views: &Sample, rows: usize) -> Result<(), Fault> {
        let parameter = |view| PerRow::new(sources.tensor(view)?, rows);
        let [temperature, top_k] = [parameter(&views.temperature)?, parameter(&views.top_k)?];
        let [top_p, min_p] = [parameter(&views.top_p)?, parameter(&views.min_p)?];
        let exact_tail = views.exact_tail.as_ref().map(parameter).transpose()?;
        let all = [&temperature, &top_k, &top_p, &min_p];
        let are_same = all.into_iter().chain(&exact_tail).all(|parameter| parameter.is_same);
        let count = if are_same { 1 } else { rows };
        let settings = |row| Settings {
            temperature: temperature.of(row),
            top_k: top_k.of(row),
            top_p: top_p.of(row),
            min_p: min_p.of(row),
            exact_tail: exact_tail.as_ref().is_some_and(|parameter| parameter.of::<i64>(row) > 0),
        };
        // Not from the settings: without rows there are none, though there may be one temperature for all rows.
        let temperatures = if temperature.is_same { 1 } else { rows };
        self.is_drawn = (0..temperatures).any(|row| temperature.of::<f32>(row) > 0.0);
        self.settings.clear();
        self.settings.extend((0..count).map(settings));
        self.keys.clear();
        if let Some(seed) = &views.seed {
            let seed = parameter(seed)?;
            self.keys.extend((0..if seed.is_same { 1 } else { rows }).map(|row| seed_key(seed.of(row))));
        }
        if let Some(adjust) = &views.adjust {
            self.adjust.read(sources, adjust, rows)?;
        }
        self.which = match &views.log_probabilities {
            Some(views) => LogProbabilities::from_code(one(sources, views.which)?),
            None => LogProbabilities::None,
        };
        Ok(())
    }
}

/// Writes an element at an index in row-major order.
fn write<N: Number>(target: &mut Target<'_>, at: usize, number: N) {
    element::write(target.isa, target.dtype, target.bytes, target.view.offset_of(at), 0, &[number]);
}

/// The one element of a tensor.
fn one<N: Number>(sources: &Sources<'_>, view: ViewId) -> Result<N, Fault> {
    let tensor = sources.tensor(&view)?;
    if tensor.view.count() == 1 { Ok(tensor.number(0)) } else { Err(NOT_ONE) }
}

/// A parameter: one number for all rows, or one for each.
struct PerRow<'a> {
    tensor: Tensor<'a>,
    is_same: bool,
}

impl<'a> PerRow<'a> {
    fn new(tensor: Tensor<'a>, rows: usize) -> Result<Self, Fault> {
        let count = tensor.view.count();
        if count != 1 && count != rows {
            return Err(NOT_PER_ROW);
        }
        Ok(Self { tensor, is_same: count == 1 })
    }

    fn of<N: Number>(&self, row: usize) -> N {
        self.tensor.number(if self.is_same { 0 } else { row })
    }
}

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
const NOT_ONE: Fault =
    Fault::Contract("what changes logits, and which log-probabilities are wanted, is one element each");
