//! What a config is made of: the metadata of a file by type, and which tensors there are.

use crate::entry::Tensors;
use crate::{Fault, Limits, Metadata, Result, Step, TensorEntry, Value};
use ptero_tensor::fault::AtStep;
use serde_json::{Number, Value as Json};

/// A file of a known architecture. Keys are told without the architecture before them; with a `tokenizer.` they are whole.
pub(super) struct Source<'a> {
    pub(super) architecture: &'static str,
    pub(super) metadata: &'a Metadata,
    /// Under GGUF's names.
    pub(super) tensors: &'a Tensors,
    pub(super) limits: &'a Limits,
}

impl Source<'_> {
    /// The whole key.
    pub(super) fn key(&self, key: &str) -> String {
        if key.starts_with("tokenizer.") { key.to_owned() } else { format!("{}.{key}", self.architecture) }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&self.key(key))
    }

    /// An error at this key.
    pub(super) fn refuse<T>(&self, key: &str, fault: Fault) -> Result<T> {
        Err(fault).at(|| Step::Key(self.key(key)))
    }

    /// What the key gives, where it is there and of the wanted type.
    fn optional<T>(&self, key: &str, wanted: &'static str, get: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        get(value).map_or_else(|| self.refuse(key, Fault::NotOfType(wanted)), |found| Ok(Some(found)))
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.map_or_else(|| self.refuse(key, Fault::NoSuchKey(self.architecture)), Ok)
    }

    /// A whole number, where it is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "a whole number that is not negative", Value::as_u64)
    }

    /// A whole number above zero, where it is there.
    pub(super) fn size(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "a whole number above zero", |value| value.as_u64().filter(|size| *size > 0))
    }

    /// A whole number above zero, which must be there.
    pub(super) fn needed_size(&self, key: &str) -> Result<u64> {
        self.required(key, self.size(key)?)
    }

    /// A finite number, where it is there.
    pub(super) fn float(&self, key: &str) -> Result<Option<Float>> {
        self.optional(key, "a finite number", Float::of)
    }

    /// A finite number, which must be there.
    pub(super) fn needed_float(&self, key: &str) -> Result<Float> {
        self.required(key, self.float(key)?)
    }

    /// A text, where it is there.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map_or_else(|| self.refuse(key, Fault::NotOfType("a text")), |text| Ok(Some(text)))
    }

    /// The elements of an array, where it is there.
    pub(super) fn length(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "an array", |value| value.as_array().map(crate::Array::len))
    }

    /// A whole number above zero for each of so many layers: one for all of them, or a list. It must be there.
    pub(super) fn sizes(&self, key: &str, layers: u64) -> Result<Vec<u64>> {
        let get = |value: &Value| {
            let each: Vec<_> = match value.as_array() {
                None => (0..layers).map(|_| value.as_u64()).collect(),
                Some(array) if array.len() == layers => array.iter().map(|value| value.as_u64()).collect(),
                Some(_) => return None,
            };
            each.into_iter().map(|size| size.filter(|size| *size > 0)).collect()
        };
        self.required(key, self.optional(key, "a whole number above zero, or one for each layer", get)?)
    }

    /// A truth for each of so many layers, which must be there.
    pub(super) fn flags(&self, key: &str, layers: u64) -> Result<Vec<bool>> {
        let get = |value: &Value| {
            let array = value.as_array().filter(|array| array.len() == layers)?;
            array.iter().map(|value| value.as_bool()).collect()
        };
        self.required(key, self.optional(key, "a list of truths, one for each layer", get)?)
    }

    /// A tensor, under GGUF's name.
    pub(super) fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }
}

/// A finite number as JSON writes it: of 32 bits the shortest decimal, as whoever wrote the config had it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Float(f64);

impl Float {
    fn of(value: &Value) -> Option<Self> {
        let number = match value {
            Value::F32(number) => number.to_string().parse().ok()?,
            other => other.as_f64()?,
        };
        number.is_finite().then_some(Self(number))
    }

    pub(super) fn is_zero(self) -> bool {
        self.0 == 0.0
    }

    pub(super) fn new(number: f64) -> Self {
        Self(number)
    }
}

impl From<Float> for Json {
    fn from(number: Float) -> Json {
        Number::from_f64(number.0).map_or(Json::Null, Json::Number)
    }
}
