//! Tokens of logits.

use crate::element::{self, Number};
use crate::run::Context;
use crate::simd::Isa;
use crate::window::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::{MOST_TOKENS, View};
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::sample_row;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry;

/// What a sampler reads.
pub(crate) struct Sample<'a> {
    pub(crate) logits: &'a View,
    pub(crate) temperature: &'a View,
    pub(crate) top_k: &'a View,
    pub(crate) top_p: &'a View,
    pub(crate) seed: Option<&'a View>,
}

pub(crate) fn sample(context: &mut Context<'_>, out: &View, views: &Sample<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    // What has no room takes no key.
    context.open(out)?;
    let (sources, _) = context.sources();
    let logits = sources.tensor(views.logits)?;
    let &[rows, vocabulary] = logits.window.shape.as_slice() else { return Err(NOT_ROWS) };
    if !(1..=MOST_TOKENS).contains(&i64::try_from(vocabulary).unwrap_or(i64::MAX)) {
        return Err(NO_VOCABULARY);
    }
    let temperature = PerRow::<f32>::new(isa, &sources.tensor(views.temperature)?, rows)?;
    let top_k = PerRow::<i64>::new(isa, &sources.tensor(views.top_k)?, rows)?;
    let top_p = PerRow::<f32>::new(isa, &sources.tensor(views.top_p)?, rows)?;
    let seed = sources.optional(views.seed)?.map(|seed| PerRow::<i64>::new(isa, &seed, rows)).transpose()?;
    let is_drawn = temperature.numbers.iter().any(|temperature| *temperature > 0.0);
    let key = if seed.is_none() && is_drawn { context.keys.next_key() } else { [0; 2] };
    let whole = |key, row, index| threefry::word(key, rows * vocabulary, row * vocabulary + index);
    let word = |row: usize, index: usize| match &seed {
        Some(seed) if seed.is_same => whole(seed_key(seed.of(row)), row, index),
        Some(seed) => threefry::word(seed_key(seed.of(row)), vocabulary, index),
        None => whole(key, row, index),
    };
    let (target, sources, _) = context.open(out)?;
    let logits = sources.tensor(views.logits)?;
    if target.window.count() != rows {
        return Err(NOT_ROWS);
    }
    let (outer, line) = logits.window.lines(1);
    let mut row_logits = vec![0.0; vocabulary];
    for row in 0..rows {
        logits.read(isa, outer.offset_of(row), line.stride, &mut row_logits);
        let settings = Settings { temperature: temperature.of(row), top_k: top_k.of(row), top_p: top_p.of(row) };
        let token = sample_row(&row_logits, &settings, |index| word(row, index)).cast_signed() as i64;
        element::write(isa, target.dtype, target.bytes, target.window.offset_of(row), 0, &[token]);
    }
    Ok(())
}

/// A parameter: one number for all rows, or one for each.
struct PerRow<N> {
    numbers: Vec<N>,
    is_same: bool,
}

impl<N: Number> PerRow<N> {
    fn new(isa: Isa, tensor: &Tensor<'_>, rows: usize) -> Result<Self, Fault> {
        let count = tensor.window.count();
        if count != 1 && count != rows {
            return Err(NOT_PER_ROW);
        }
        let mut numbers = vec![N::default(); count];
        for (at, number) in numbers.iter_mut().enumerate() {
            tensor.read(isa, tensor.window.offset_of(at), 0, std::slice::from_mut(number));
        }
        Ok(Self { numbers, is_same: count == 1 })
    }

    fn of(&self, row: usize) -> N {
        self.numbers.get(if self.is_same { 0 } else { row }).copied().unwrap_or_default()
    }
}

const NOT_ROWS: Fault = Fault::Contract("logits are rows, and there is a token for each");
const NO_VOCABULARY: Fault = Fault::Contract("a row of logits has an element, and not over 2^23");
const NOT_PER_ROW: Fault = Fault::Contract("a parameter of a sampler is one element or one per row");
