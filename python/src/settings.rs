//! Settings of texts: keyword arguments in Python, setters in the library.

use crate::errors::raise;
use ptero::{ChatBuilder, GeneratorBuilder, LogProbabilities, Penalties, TokenId, TokenSettings};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// Makes the struct, the table, and what reads and applies them, from a row for each setting: its documentation, its name, its
/// type, and the setter, which chats and generators have alike.
macro_rules! table {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty => |$builder:ident, $value:ident| $set:expr;)*) => {
        /// What a caller gave; `None` is left to the model.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Settings {
            $(pub(crate) $name: Option<$type>,)*
        }

        /// Names and meanings.
        const TABLE: &[(&str, &str)] = &[$((stringify!($name), concat!($($help),+)),)*];

        impl Settings {
            /// Reads keyword arguments; `None` is not given.
            pub(crate) fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
                let mut settings = Self::default();
                for (name, value) in given.iter() {
                    let name = name.cast::<PyString>()?.to_cow()?.into_owned();
                    if value.is_none() {
                        // Checked all the same: a name that does not exist is a mistake.
                        known(&name)?;
                        continue;
                    }
                    match name.as_str() {
                        $(stringify!($name) => settings.$name = Some(read(&name, &value)?),)*
                        _ => known(&name)?,
                    }
                }
                settings.check_structure()?;
                Ok(settings)
            }

            /// Applies the settings to those of a generator.
            pub(crate) fn generator(&self, mut builder: GeneratorBuilder) -> GeneratorBuilder {
                $(if let Some($value) = self.$name.clone() {
                    let $builder = builder;
                    builder = $set;
                })*
                builder
            }

            /// Applies the settings to those of a chat.
            pub(crate) fn chat(&self, mut builder: ChatBuilder) -> ChatBuilder {
                $(if let Some($value) = self.$name.clone() {
                    let $builder = builder;
                    builder = $set;
                })*
                builder
            }
        }
    };
}

table! {
    /// divides the logits; 0 takes the most likely token (default: the model's, or 0.8)
    temperature: f32 => |builder, value| builder.temperature(value);
    /// samples from this many of the most likely tokens; 0 keeps all (default: the model's, or 40)
    top_k: i64 => |builder, value| builder.top_k(value);
    /// samples from the most likely tokens with this mass; 1 keeps all (default: the model's, or 0.95)
    top_p: f32 => |builder, value| builder.top_p(value);
    /// samples from tokens at least this likely relative to the most likely one; 0 keeps all
    min_p: f32 => |builder, value| builder.min_p(value);
    /// divides positive logits of tokens of the prompt and the text, and multiplies negative ones; 1 changes nothing
    repetition_penalty: f32 => |builder, value| builder.repetition_penalty(value);
    /// subtracted from the logits of tokens that the text has
    presence_penalty: f32 => |builder, value| builder.presence_penalty(value);
    /// subtracted from the logits of tokens of the text, as often as it has them
    frequency_penalty: f32 => |builder, value| builder.frequency_penalty(value);
    /// added to the logits of tokens, by their ids
    logit_bias: Biases => |builder, value| builder.logit_bias(value.0);
    /// draws very unlikely tokens, too, as often as they should be
    exact_tail: bool => |builder, value| builder.exact_tail(value);
    /// the same seed gives the same text (default: a random one, which the result tells)
    seed: i64 => |builder, value| builder.seed(value);
    /// the most tokens of a text (default: 256, or until the end for replies)
    max_tokens: usize => |builder, value| builder.max_tokens(value);
    /// strings that end the text, which are not part of it
    stop: Strings => |builder, value| builder.stop(value.0);
    /// continues after tokens that would end the text
    ignore_eos: bool => |builder, value| builder.ignore_eos(value);
    /// makes the text JSON that a JSON Schema allows
    json_schema: String => |builder, value| builder.json_schema(value);
    /// makes the text a JSON object
    json_object: bool => |builder, value| if value { builder.json_object() } else { builder };
    /// makes the text match a regular expression as a whole
    regex: String => |builder, value| builder.regex(value);
    /// makes the text follow a Lark grammar
    grammar: String => |builder, value| builder.lark_grammar(value);
    /// log-probabilities of each token and of this many of the likeliest ones, up to 20
    logprobs: Likeliest => |builder, _value| builder.log_probabilities(LogProbabilities::Model);
    /// log-probabilities after all other settings instead of the model's own
    processed_logprobs: bool => |builder, value| {
        if value { builder.log_probabilities(LogProbabilities::Processed) } else { builder }
    };
    /// lets the host sample if the program returns logits; the tokens are the same
    host_sampling: bool => |builder, value| builder.host_sampling(value);
}

impl Settings {
    /// The number of likeliest tokens whose log-probabilities are wanted.
    pub(crate) fn likeliest(&self) -> usize {
        self.logprobs.map_or(0, |likeliest| likeliest.0)
    }

    fn check_structure(&self) -> PyResult<()> {
        let asked = [
            ("json_schema", self.json_schema.is_some()),
            ("json_object", self.json_object == Some(true)),
            ("regex", self.regex.is_some()),
            ("grammar", self.grammar.is_some()),
        ];
        let names: Vec<_> = asked.iter().filter(|(_, is_asked)| *is_asked).map(|(name, _)| *name).collect();
        if let [first, second, ..] = names.as_slice() {
            let message = format!("`{first}` and `{second}` exclude each other: a text follows one grammar");
            return Err(raise("SettingError", message));
        }
        Ok(())
    }

    /// Returns how one token is sampled, greedily unless there is a temperature. Settings of whole texts are refused.
    pub(crate) fn token(&self) -> PyResult<TokenSettings> {
        let Self { logit_bias, max_tokens, stop, ignore_eos, json_schema, json_object, regex, grammar, .. } = self;
        let of_texts = [
            ("logit_bias", logit_bias.is_some()),
            ("max_tokens", max_tokens.is_some()),
            ("stop", stop.is_some()),
            ("ignore_eos", ignore_eos.is_some()),
            ("json_schema", json_schema.is_some()),
            ("json_object", json_object.is_some()),
            ("regex", regex.is_some()),
            ("grammar", grammar.is_some()),
        ];
        if let Some((name, _)) = of_texts.iter().find(|(_, is_given)| *is_given) {
            return Err(PyTypeError::new_err(format!("`{name}` is a setting of texts, not of single tokens")));
        }
        let mut token = TokenSettings::GREEDY;
        let settings = &mut token.settings;
        settings.temperature = self.temperature.unwrap_or(settings.temperature);
        settings.top_k = self.top_k.filter(|top_k| *top_k != 0).unwrap_or(settings.top_k);
        settings.top_p = self.top_p.unwrap_or(settings.top_p);
        settings.min_p = self.min_p.unwrap_or(settings.min_p);
        settings.exact_tail = self.exact_tail.unwrap_or(settings.exact_tail);
        let none = Penalties::NONE;
        token.penalties = Penalties {
            repetition: self.repetition_penalty.unwrap_or(none.repetition),
            presence: self.presence_penalty.unwrap_or(none.presence),
            frequency: self.frequency_penalty.unwrap_or(none.frequency),
        };
        token.log_probabilities = match (self.processed_logprobs, self.logprobs) {
            (Some(true), _) => LogProbabilities::Processed,
            (_, Some(_)) => LogProbabilities::Model,
            (_, None) => LogProbabilities::None,
        };
        token.seed = self.seed.unwrap_or(token.seed);
        Ok(token)
    }
}

/// Refuses names that are not in the table.
fn known(name: &str) -> PyResult<()> {
    if TABLE.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    let names: Vec<_> = TABLE.iter().map(|(name, _)| *name).collect();
    Err(PyTypeError::new_err(format!("there is no setting `{name}` (there are: {})", names.join(", "))))
}

/// Reads a value, and says which setting it is of if it is none.
fn read<'py, T>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        let py = value.py();
        let is_type = error.is_instance_of::<PyTypeError>(py);
        let message = format!("`{name}`: {}", error.value(py));
        // Numbers that do not fit are values that are refused; the rest are mistakes of the caller's program.
        if is_type { PyTypeError::new_err(message) } else { raise("SettingError", message) }
    })
}

/// One string or several.
#[derive(Clone, Debug)]
pub(crate) struct Strings(Vec<String>);

impl<'py> FromPyObject<'_, 'py> for Strings {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.cast::<PyString>() {
            Ok(text) => Ok(Self(vec![text.to_cow()?.into_owned()])),
            Err(_) => Ok(Self(value.extract()?)),
        }
    }
}

/// Biases by token, in the caller's order.
#[derive(Clone, Debug)]
pub(crate) struct Biases(Vec<(TokenId, f32)>);

impl<'py> FromPyObject<'_, 'py> for Biases {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let items = value.cast::<PyDict>()?.iter().map(|(token, bias)| Ok((token.extract()?, bias.extract()?)));
        Ok(Self(items.collect::<PyResult<_>>()?))
    }
}

/// How many of the likeliest tokens are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Likeliest(usize);

impl<'py> FromPyObject<'_, 'py> for Likeliest {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let most = ptero::RowLogProbabilities::NONE.likeliest.len();
        let count: i64 = value.extract()?;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(Self(count)),
            _ => Err(raise("SettingError", format!("{count} is not a number from 0 to {most}"))),
        }
    }
}

/// Returns the names of all settings, and what they do.
#[pyfunction]
pub(crate) fn settings() -> Vec<(&'static str, &'static str)> {
    TABLE.iter().map(|(name, help)| (*name, help.trim())).collect()
}
