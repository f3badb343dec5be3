//! Random checkpoints: a configuration without weights, whose numbers are generated as they are read. They show how fast and
//! how large a model is, not what it says.

use crate::{Checkpoint, Fault, Limits, Result, Step, read_json};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, SplitMix64};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Numbers are uniform within this distance of their mean: the usual spread of untrained models.
const SPREAD: f32 = 0.035;

/// The random numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomWeights {
    seed: u64,
    /// `true` if the mean is one, as for the weights of norms, not zero.
    are_factors: bool,
}

impl RandomWeights {
    /// Different numbers for every seed and name.
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

/// A hash of a number.
fn mix(number: u64) -> u64 {
    SplitMix64::new(number).next_u64()
}

impl Checkpoint {
    /// A model of which only the configuration is known: a `config.json`, or a folder that has one. It has every tensor,
    /// with numbers that follow from the seed. `layers` limits the number of layers.
    ///
    /// # Errors
    /// When there is no such file, or it is no JSON object.
    pub fn random(path: &Path, seed: u64, layers: Option<u32>, limits: &Limits) -> Result<Self> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let read = || read_json(&Bytes::map(&file).map_err(Fault::from)?, limits);
        let mut config = read().at(|| Step::File(file.clone()))?;
        let whole_config = layers.map(|_| config.clone());
        if let Some(layers) = layers {
            shorten(&mut config, layers);
        }
        Ok(Self { config: Some(config), whole_config, seed: Some(seed), ..Self::default() })
    }
}

/// Keeps the first layers of a configuration or of its part about text.
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
