//! The JSON of `tokenizer.json`, read once.
//!
//! Vocabulary and merges are nearly all of it, so they become lists that borrow from the file; the rest becomes values.
//! Valid JSON is never refused here: values of an unexpected kind are kept as such and checked later.

use super::SpecialTokens;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::marker::PhantomData;

/// Reads a form from JSON.
pub(super) fn read<'de, F: Form<'de>>(bytes: &'de [u8]) -> serde_json::Result<F> {
    serde_json::from_slice(bytes).map(|Read(form)| form)
}

/// `tokenizer.json`.
pub(super) struct Outer<'a> {
    /// All but the model.
    pub(super) parts: Map<String, Value>,
    pub(super) model: Option<Model<'a>>,
}

/// What is under `model`, if it is an object.
pub(super) struct Model<'a> {
    /// All but the two below.
    pub(super) options: Map<String, Value>,
    pub(super) vocabulary: Option<Vocabulary<'a>>,
    pub(super) merges: Option<Vec<Merge<'a>>>,
}

/// What is under `vocab`.
pub(super) enum Vocabulary<'a> {
    /// An object: tokens, with their numbers where they are numbers that tokens can have.
    Numbered(Vec<(Cow<'a, str>, Option<u32>)>),
    Other(Value),
}

/// An element of the list under `merges`; the only one if that is not a list.
#[derive(Default)]
pub(super) enum Merge<'a> {
    /// `"a b"`.
    Line(Cow<'a, str>),
    /// `["a", "b"]`.
    Pair(Cow<'a, str>, Cow<'a, str>),
    #[default]
    Other,
}

/// What values of each kind are read as.
pub(super) trait Form<'de>: Default {
    /// A value of any other kind.
    fn other(_: Value) -> Self {
        Self::default()
    }

    fn number(number: u64) -> Self {
        Self::other(number.into())
    }

    fn text(text: Cow<'de, str>) -> Self {
        Self::other(Value::String(text.into_owned()))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(Self::other)
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Self, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(object)).map(Self::other)
    }
}

impl<'de> Form<'de> for Option<Outer<'de>> {
    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut outer = Outer { parts: Map::new(), model: None };
        while let Some(key) = object.next_key::<String>()? {
            if key == "model" {
                Read(outer.model) = object.next_value()?;
            } else {
                outer.parts.insert(key, object.next_value()?);
            }
        }
        Ok(Some(outer))
    }
}

impl<'de> Form<'de> for Option<Model<'de>> {
    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut model = Model { options: Map::new(), vocabulary: None, merges: None };
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "vocab" => model.vocabulary = Some(object.next_value::<Read<_>>()?.0),
                "merges" => model.merges = Some(object.next_value::<Read<_>>()?.0),
                _ => {
                    model.options.insert(key, object.next_value()?);
                }
            }
        }
        Ok(Some(model))
    }
}

impl Default for Vocabulary<'_> {
    fn default() -> Self {
        Self::Other(Value::Null)
    }
}

impl<'de> Form<'de> for Vocabulary<'de> {
    fn other(value: Value) -> Self {
        Self::Other(value)
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut tokens = Vec::new();
        while let Some((Read(key), Read(number))) = object.next_entry::<Read<Option<Cow<'de, str>>>, _>()? {
            // A key is always a text.
            tokens.push((key.unwrap_or_default(), number));
        }
        Ok(Self::Numbered(tokens))
    }
}

/// The number of a token.
impl Form<'_> for Option<u32> {
    fn number(number: u64) -> Self {
        u32::try_from(number).ok()
    }
}

impl<'de> Form<'de> for Option<Cow<'de, str>> {
    fn text(text: Cow<'de, str>) -> Self {
        Some(text)
    }
}

impl<'de> Form<'de> for Vec<Merge<'de>> {
    fn other(_: Value) -> Self {
        vec![Merge::Other]
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut merges = Self::new();
        while let Some(Read(merge)) = list.next_element()? {
            merges.push(merge);
        }
        Ok(merges)
    }
}

impl<'de> Form<'de> for Merge<'de> {
    fn text(text: Cow<'de, str>) -> Self {
        Self::Line(text)
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let left = list.next_element::<Read<Option<_>>>()?;
        let right = list.next_element::<Read<Option<_>>>()?;
        let mut more = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(match (left, right) {
            (Some(Read(Some(left))), Some(Read(Some(right)))) if !more => Self::Pair(left, right),
            _ => Self::Other,
        })
    }
}

impl<'de> Form<'de> for Option<SpecialTokens> {
    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut tokens = SpecialTokens::new();
        while let Some(name) = object.next_key::<String>()? {
            if !name.ends_with("_token") {
                object.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: Value = object.next_value()?;
            match value.get("content").unwrap_or(&value).as_str() {
                Some(text) => tokens.insert(name, text.to_owned()),
                None => tokens.remove(&name),
            };
        }
        Ok(Some(tokens))
    }
}

/// A form, read from JSON.
struct Read<F>(F);

impl<'de, F: Form<'de>> Deserialize<'de> for Read<F> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any(PhantomData)).map(Self)
    }
}

/// Methods of a visitor that have no form of their own.
macro_rules! visit_other {
    ($($method:ident $ty:ty;)*) => {$(
        fn $method<E>(self, value: $ty) -> Result<F, E> {
            Ok(F::other(value.into()))
        }
    )*};
}

/// Passes any value to a form.
struct Any<F>(PhantomData<F>);

impl<'de, F: Form<'de>> Visitor<'de> for Any<F> {
    type Value = F;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<F, E> {
        Ok(F::other(Value::Null))
    }

    fn visit_u64<E>(self, value: u64) -> Result<F, E> {
        Ok(F::number(value))
    }

    visit_other! { visit_bool bool; visit_i64 i64; visit_f64 f64; }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<F, E> {
        Ok(F::text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<F, E> {
        Ok(F::text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<F, A::Error> {
        F::list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<F, A::Error> {
        F::object(object)
    }
}
