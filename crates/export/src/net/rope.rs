//! Rotary positions: how configurations describe the frequencies, and the node that rotates.

use super::Net;
use crate::builder::Tensor;
use crate::config::{setting, unsupported};
use crate::error::Result;
use ptero_pte::field::ValueOrSrc;
use ptero_pte::nodes;
use ptero_tensor::ScaleType;
use serde::Deserialize;
use std::f32::consts::TAU;

/// More dimensions than any head has.
const MOST_DIMS: i32 = 1 << 16;

/// The rotary positions of a configuration: `rope_parameters`, or `rope_scaling` in older ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RopeConfig {
    rope_type: Option<String>,
    /// Its name in older files; some have both.
    #[serde(rename = "type")]
    old_type: Option<String>,
    pub(crate) rope_theta: Option<f32>,
    pub(crate) partial_rotary_factor: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    pub(crate) original_max_position_embeddings: Option<f32>,
    attention_factor: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    truncate: Option<bool>,
    /// Ours: the tensor of factors that GGUF multiplies the periods by.
    pub(crate) rope_freqs: Option<String>,
}

/// How one kind of layer rotates.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// How many of a head's dimensions rotate, from the first.
    pub(crate) dims: i32,
    /// `true` if a pair is two neighbours, not an element of each half.
    pub(crate) interleaved: bool,
    /// Periods over 2π, one for each pair, where they are no plain powers of the base.
    pub(crate) periods: Option<Tensor>,
    pub(crate) base: f32,
    /// The factor of the positions.
    pub(crate) scale: f32,
    /// Factors of the dimensions of a head: above one for those that rotate, if positions are stretched.
    pub(crate) stretch: Option<Tensor>,
}

impl RopeConfig {
    /// Rotates only a fraction of the pairs.
    pub(crate) fn proportional_of(base: f32, part: f32) -> Self {
        let (rope_type, rope_theta) = (Some("proportional".to_owned()), Some(base));
        Self { rope_type, rope_theta, partial_rotary_factor: Some(part), ..Self::default() }
    }

    /// How to rotate the first `dims` dimensions of a head; `default_base` and `positions` come from the rest of the
    /// configuration.
    pub(crate) fn rope(
        &self,
        net: &mut Net<'_>,
        [dims, head_dim]: [i32; 2],
        default_base: f32,
        positions: f32,
    ) -> Result<Rope> {
        let base = self.rope_theta.unwrap_or(default_base);
        if !(base.is_finite() && base > 1.0) {
            return Err(setting("rope_theta", base, "a number above one"));
        }
        if dims < 2 || dims % 2 != 0 || dims > MOST_DIMS {
            return Err(setting("head_dim", dims, "even, and at most 65536"));
        }
        let plain = periods(dims, base);
        let kind = self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default");
        let (own, scale, stretch) = match kind {
            "default" => (None, 1.0, 1.0),
            "linear" => (None, 1.0 / self.need("factor", self.factor)?, 1.0),
            "llama3" => (Some(self.llama3(&plain, positions)?), 1.0, 1.0),
            "yarn" => (Some(self.yarn(&plain, base, positions)?), 1.0, self.yarn_stretch()?),
            "proportional" => (Some(self.proportional(&plain)?), 1.0, 1.0),
            other => return Err(unsupported("rope_type", other)),
        };
        let is_sound = |period: &f32| *period > 0.0;
        if !(own.iter().flatten().all(is_sound) && stretch.is_finite() && stretch > 0.0) {
            let found = format!("of type `{kind}` with numbers that contradict each other");
            return Err(setting("rope_parameters", found, "such that every pair has a period"));
        }
        let own = match &self.rope_freqs {
            None => own,
            Some(name) => {
                let factors = net.read(name, dims / 2)?;
                Some(own.unwrap_or(plain).into_iter().zip(factors).map(|(period, factor)| period * factor).collect())
            }
        };
        let periods = own.map(|periods: Vec<f32>| net.numbers("rope_periods", &periods, ScaleType::F32));
        let stretch = (stretch != 1.0).then(|| {
            let factors = (0..head_dim).map(|at| if at < dims { stretch } else { 1.0 });
            net.numbers("rope_stretch", &factors.collect::<Vec<f32>>(), net.recipe.dtype)
        });
        Ok(Rope { dims, interleaved: false, periods, base, scale, stretch })
    }

    fn need(&self, key: &'static str, value: Option<f32>) -> Result<f32> {
        let valid = value.filter(|value| value.is_finite() && *value > 0.0);
        let found = || value.map_or_else(|| "missing".to_owned(), |value| value.to_string());
        valid.ok_or_else(|| setting(key, found(), "a number above zero"))
    }

    /// The periods are those of a whole head, but only the first pairs rotate. The others have an infinite period, so that
    /// a pair is one element of either half in both cases.
    fn proportional(&self, periods: &[f32]) -> Result<Vec<f32>> {
        let factor = self.need("factor", self.factor.or(Some(1.0)))?;
        let part = self.need("partial_rotary_factor", self.partial_rotary_factor.or(Some(1.0)))?;
        let turning = part * periods.len() as f32;
        let period =
            |(pair, period): (usize, &f32)| if pair as f32 + 1.0 <= turning { period * factor } else { f32::INFINITY };
        Ok(periods.iter().enumerate().map(period).collect())
    }

    /// Stretches long periods, keeps short ones, and interpolates between them.
    fn llama3(&self, periods: &[f32], positions: f32) -> Result<Vec<f32>> {
        let factor = self.need("factor", self.factor)?;
        let low = self.need("low_freq_factor", self.low_freq_factor)?;
        let high = self.need("high_freq_factor", self.high_freq_factor)?;
        let original = self.original_max_position_embeddings.unwrap_or(positions);
        let stretched = |period: &f32| {
            let turns = original / (TAU * period);
            let plain = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - plain) / (factor * period) + plain / period)
        };
        Ok(periods.iter().map(stretched).collect())
    }

    /// As in the paper: high frequencies are kept, low ones are interpolated, with a ramp between.
    fn yarn(&self, periods: &[f32], base: f32, positions: f32) -> Result<Vec<f32>> {
        let factor = self.need("factor", self.factor)?;
        let original = self.original_max_position_embeddings.unwrap_or(positions);
        let dims = 2.0 * periods.len() as f32;
        let pair_that_turns = |turns: f32| dims * (original / (turns * TAU)).ln() / (2.0 * base.ln());
        let mut low = pair_that_turns(self.beta_fast.filter(|turns| *turns != 0.0).unwrap_or(32.0));
        let mut high = pair_that_turns(self.beta_slow.filter(|turns| *turns != 0.0).unwrap_or(1.0));
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        let width = if high > low { high - low } else { 0.001 };
        let stretched = |(pair, period): (usize, &f32)| {
            let plain = 1.0 - ((pair as f32 - low) / width).clamp(0.0, 1.0);
            1.0 / ((1.0 - plain) / (factor * period) + plain / period)
        };
        Ok(periods.iter().enumerate().map(stretched).collect())
    }

    /// YaRN also scales the scores, depending on how far positions are stretched.
    fn yarn_stretch(&self) -> Result<f32> {
        let factor = self.need("factor", self.factor)?;
        let by = |scale: f32| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let derived = match (self.mscale.filter(|scale| *scale != 0.0), self.mscale_all_dim.filter(|all| *all != 0.0)) {
            (Some(scale), Some(all)) => by(scale) / by(all),
            _ => by(1.0),
        };
        Ok(self.attention_factor.unwrap_or(derived))
    }
}

/// The period over 2π of each pair of dimensions.
#[allow(clippy::cast_possible_truncation, reason = "rounded to a single, which is what the program holds")]
fn periods(dims: i32, base: f32) -> Vec<f32> {
    let pairs = u16::try_from(dims / 2).unwrap_or(0);
    (0..pairs).map(|pair| f64::from(base).powf(f64::from(2 * u32::from(pair)) / f64::from(dims)) as f32).collect()
}

impl Net<'_> {
    /// Rotates `[1, heads, length, head_dim]` by the positions of the tokens.
    pub(crate) fn rotate(&mut self, x: Tensor, rope: &Rope) -> Tensor {
        let rotated = self.graph.node(|out| nodes::Rope {
            x: x.src(),
            out,
            dims: rope.dims,
            offset: ValueOrSrc::Value(self.position.value()),
            freqs: rope.periods.map(Tensor::src),
            traditional: rope.interleaved,
            base: if rope.periods.is_some() { 0.0 } else { rope.base },
            scale: rope.scale,
        });
        rope.stretch.map_or(rotated, |stretch| self.multiply(rotated, stretch))
    }
}
