//! What configurations are made of: numbers that are sizes of something.

use crate::error::{ExportError, Result};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A size of a tensor, or a count of its parts: at least one, and small enough that no sum of a few overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(i32);

impl Size {
    /// The largest.
    pub(crate) const MOST: i32 = 1 << 24;

    /// The number.
    pub(crate) fn get(self) -> i32 {
        self.0
    }

    /// The product.
    pub(crate) fn times(self, other: Self) -> Result<Self> {
        Self::new(i64::from(self.0) * i64::from(other.0))
    }

    /// The quotient, if there is no remainder.
    pub(crate) fn over(self, other: Self, key: &'static str) -> Result<Self> {
        let found = || format!("{} for {}", other.0, self.0);
        let exact = self.0.checked_rem(other.0) == Some(0);
        if exact { Self::new(i64::from(self.0 / other.0)) } else { Err(setting(key, found(), "a divisor of it")) }
    }

    /// Checks that a number is a size.
    pub(crate) fn new(size: i64) -> Result<Self> {
        let valid = i32::try_from(size).ok().filter(|size| (1..=Self::MOST).contains(size));
        valid.map(Self).ok_or(ExportError::TooLarge(size))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let size = i64::deserialize(deserializer)?;
        let wanted = || serde::de::Error::custom(format!("{size} is no size from 1 to {}", Self::MOST));
        Self::new(size).map_err(|_| wanted())
    }
}

/// The term that norms add to a mean square: finite and not negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epsilon(f32);

impl Epsilon {
    /// The number.
    pub(crate) fn get(self) -> f32 {
        self.0
    }
}

impl Default for Epsilon {
    fn default() -> Self {
        Self(1e-6)
    }
}

impl<'de> Deserialize<'de> for Epsilon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let eps = f32::deserialize(deserializer)?;
        let wanted = || serde::de::Error::custom(format!("{eps} is no epsilon of a norm"));
        if eps.is_finite() && eps >= 0.0 { Ok(Self(eps)) } else { Err(wanted()) }
    }
}

/// A setting that has a wrong value.
pub(crate) fn setting(key: &'static str, found: impl ToString, wanted: &'static str) -> ExportError {
    ExportError::Setting { key, found: found.to_string(), wanted }
}

/// A setting with a valid value that is not supported.
pub(crate) fn unsupported(key: &'static str, found: &str) -> ExportError {
    ExportError::Unsupported { key, found: format!("`{}`", found.escape_debug()) }
}

/// The activation of most models, where the configuration names none.
pub(crate) fn silu() -> String {
    "silu".to_owned()
}

/// More layers than any model has, and few enough to build a graph of.
const MOST_LAYERS: i32 = 1024;

/// The indices of `count` layers.
pub(crate) fn layers(count: Size) -> Result<std::ops::Range<usize>> {
    let found = count.get();
    let count = usize::try_from(found).ok().filter(|_| found <= MOST_LAYERS);
    count.map(|count| 0..count).ok_or_else(|| setting("num_hidden_layers", found, "at most 1024"))
}

/// The part of a configuration that is about text: all of it, except for multimodal models.
pub(crate) fn text(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}
