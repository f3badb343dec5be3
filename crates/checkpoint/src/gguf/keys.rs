//! The metadata of a file by key and type. A value of another type is an error that names the key.

use crate::{Array, Fault, Metadata, Result, Step, Value, ValueType};
use ptero_tensor::fault::AtStep;
use serde_json::{Number, Value as Json};

/// The metadata of an architecture or tokenizer. Keys are given without the architecture before them, except those that
/// start with `tokenizer.`.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    /// What the keys belong to: an architecture or a tokenizer.
    pub(super) what: &'static str,
    /// Its name.
    pub(super) name: &'static str,
}

impl<'a> Keys<'a> {
    /// The whole key.
    pub(super) fn key(&self, key: &str) -> String {
        if key.starts_with("tokenizer.") { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.metadata.get(&self.key(key))
    }

    /// An error at this key.
    pub(super) fn refuse<T>(&self, key: &str, fault: Fault) -> Result<T> {
        Err(fault).at(|| Step::named("key", self.key(key)))
    }

    /// The value of the key; `None` if the key is missing, an error if it has another type.
    fn optional<T>(&self, key: &str, wanted: &'static str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        get(value).map_or_else(|| self.refuse(key, Fault::NotOfType(wanted)), |found| Ok(Some(found)))
    }

    /// An error if the key was missing.
    pub(super) fn required<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.map_or_else(|| self.refuse(key, Fault::NoSuchKey { what: self.what, name: self.name }), Ok)
    }

    /// A whole number; `None` if the key is missing.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "a whole number that is not negative", Value::as_u64)
    }

    /// A whole number above zero; `None` if the key is missing.
    pub(super) fn size(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "a whole number above zero", |value| value.as_u64().filter(|size| *size > 0))
    }

    /// A whole number above zero; an error if the key is missing.
    pub(super) fn needed_size(&self, key: &str) -> Result<u64> {
        self.required(key, self.size(key)?)
    }

    /// A finite number; `None` if the key is missing.
    pub(super) fn float(&self, key: &str) -> Result<Option<Float>> {
        self.optional(key, "a finite number", Float::of)
    }

    /// A finite number; an error if the key is missing.
    pub(super) fn needed_float(&self, key: &str) -> Result<Float> {
        self.required(key, self.float(key)?)
    }

    /// A text; `None` if the key is missing.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.optional(key, "a text", Value::as_str)
    }

    /// A bool; `None` if the key is missing.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, "a bool", Value::as_bool)
    }

    /// A whole number above zero for each layer: one for all of them, or a list. An error if the key is missing.
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

    /// A bool for each layer; an error if the key is missing.
    pub(super) fn flags(&self, key: &str, layers: u64) -> Result<Vec<bool>> {
        let get = |value: &Value| {
            let array = value.as_array().filter(|array| array.len() == layers)?;
            array.iter().map(|value| value.as_bool()).collect()
        };
        self.required(key, self.optional(key, "a list of bools, one for each layer", get)?)
    }

    /// An array; `None` if the key is missing.
    pub(super) fn array(&self, key: &str) -> Result<Option<&'a Array>> {
        self.optional(key, "an array", Value::as_array)
    }

    /// The texts of an array; `None` if the key is missing.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let text = |value: Value| if let Value::String(text) = value { Some(text) } else { None };
        let texts = |value: &'a Value| {
            let array = value.as_array().filter(|array| array.kind() == ValueType::String)?;
            Some(array.iter().filter_map(text).collect())
        };
        self.optional(key, "an array of texts", texts)
    }
}

/// A finite number as JSON writes it: a 32-bit number is its shortest decimal.
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
