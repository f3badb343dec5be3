//! Checkpoints that nobody trained: a configuration alone, and numbers that are made up as they are read. They answer how fast
//! and how large a model would be, not what it would say.

use crate::error::at_most;
use crate::{Checkpoint, Fault, Files, Limits, Metadata, Result, Step, entry};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, SplitMix64};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Numbers are evenly spread so far to both sides of their middle: as wide as models are before they are trained.
const SPREAD: f32 = 0.035;

/// What the numbers of a tensor are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeUp {
    seed: u64,
    /// Whether they are near one, as the factors of norms are, and not near zero.
    are_factors: bool,
}

impl MadeUp {
    /// Other numbers for every seed and name.
    pub(crate) fn new(seed: u64, name: &str, shape: &[u64]) -> Self {
        let seed = name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
        Self { seed, are_factors: shape.len() == 1 && name.ends_with("norm.weight") }
    }

    /// Some of the elements, as f32.
    pub(crate) fn bytes(self, elements: Range<u64>) -> Bytes {
        let middle = if self.are_factors { 1.0 } else { 0.0 };
        let number = |element: u64| {
            #[allow(clippy::cast_precision_loss, reason = "24 bits")]
            let fraction = (mix(self.seed.wrapping_add(element)) >> 40) as f32 / 8_388_608.0;
            middle + SPREAD * (fraction - 1.0)
        };
        Bytes::from(elements.flat_map(|element| number(element).to_le_bytes()).collect::<Vec<u8>>())
    }
}

/// A number that is unrelated to the given one, always the same.
fn mix(number: u64) -> u64 {
    SplitMix64::new(number).next_u64()
}

impl Checkpoint {
    /// A model of which only the configuration is known: a `config.json`, or a folder that has one. Every tensor that it is
    /// asked for is there, and its numbers follow from the seed. `layers` limits the number of layers.
    ///
    /// # Errors
    /// When there is no such file, or it is no JSON object.
    pub fn random(path: &Path, seed: u64, layers: Option<u32>, limits: &Limits) -> Result<Self> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let read = || -> Result<Value> {
            let bytes = Bytes::map(&file).map_err(Fault::from)?;
            at_most("bytes of JSON", bytes.len() as u64, limits.json_bytes)?;
            let config: Value = serde_json::from_slice(&bytes).map_err(Fault::from)?;
            if config.is_object() { Ok(config) } else { Err(Fault::NotAnObject.into()) }
        };
        let mut config = read().at(|| Step::File(file.clone()))?;
        if let Some(layers) = layers {
            shorten(&mut config, layers);
        }
        Ok(Self {
            tensors: entry::Tensors::new(),
            metadata: Metadata::default(),
            files: Files::new(),
            config: Some(config),
            is_gguf: false,
            made_up: Some(seed),
        })
    }
}

/// Leaves a configuration, or the part of it that is about text, the first layers.
fn shorten(config: &mut Value, layers: u32) {
    if let Some(text) = config.get_mut("text_config") {
        shorten(text, layers);
    }
    if let Some(count) = config.get_mut("num_hidden_layers") {
        *count = count.as_u64().unwrap_or(0).min(layers.into()).into();
    }
    if let Some(Value::Array(kinds)) = config.get_mut("layer_types") {
        kinds.truncate(layers as usize);
    }
}
