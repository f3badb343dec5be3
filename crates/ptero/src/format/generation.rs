//! What the makers of a model recommend: each field of `generation_config.json`, and what becomes of it.

use super::{Files, GENERATION, json};
use crate::error::Result;
use crate::options::Options;
use crate::source::Source;
use ptero_engine::TokenId;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields of `generation_config.json` that are followed, and the others as they are.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct GenerationConfig {
    pub(crate) do_sample: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    stop_strings: Option<OneOrMany<String>>,
    eos_token_id: Option<OneOrMany<i64>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Treatment {
    /// It is followed: by this crate, or by the exporter, which writes it into the program.
    Followed,
    /// It changes how texts are computed or returned in transformers, and not which tokens are sampled.
    Harmless,
    /// How long texts are and how many there are is up to the caller, who may have a limit of their own.
    CallersChoice,
    /// It changes nothing without another field, which is named.
    Beside(&'static str),
    /// It is not supported, and named if it is another number than this.
    NotNumber(f64),
    /// It is not supported, and named if it is true.
    NotTrue,
    /// It is not supported, and named if it is anything but an empty list.
    NotSet,
}

use Treatment::{Beside, CallersChoice, Followed, Harmless, NotNumber, NotSet, NotTrue};

/// The fields that transformers 5.23 knows. It gives no others a meaning, and neither do we.
const FIELDS: &[(&str, Treatment)] = &[
    // How long a text is.
    ("max_length", CallersChoice),
    ("max_new_tokens", CallersChoice),
    ("max_time", CallersChoice),
    ("min_length", NotNumber(0.0)),
    ("min_new_tokens", NotNumber(0.0)),
    ("stop_strings", Followed),
    ("eos_token_id", Followed),
    ("forced_bos_token_id", NotSet),
    ("forced_eos_token_id", NotSet),
    ("exponential_decay_length_penalty", NotSet),
    // How a token is chosen.
    ("do_sample", Followed),
    ("temperature", Followed),
    ("top_k", Followed),
    ("top_p", Followed),
    ("min_p", Followed),
    ("repetition_penalty", Followed),
    ("top_h", NotNumber(1.0)),
    ("typical_p", NotNumber(1.0)),
    ("epsilon_cutoff", NotNumber(0.0)),
    ("eta_cutoff", NotNumber(0.0)),
    ("encoder_repetition_penalty", NotNumber(1.0)),
    ("no_repeat_ngram_size", NotNumber(0.0)),
    ("encoder_no_repeat_ngram_size", NotNumber(0.0)),
    ("bad_words_ids", NotSet),
    ("suppress_tokens", NotSet),
    ("begin_suppress_tokens", NotSet),
    ("sequence_bias", NotSet),
    ("guidance_scale", NotNumber(1.0)),
    ("watermarking_config", NotSet),
    ("token_healing", NotTrue),
    ("remove_invalid_values", NotTrue),
    // A constant that is added to all logits changes no probability.
    ("renormalize_logits", Harmless),
    // Other ways to search for a text.
    ("num_beams", NotNumber(1.0)),
    ("num_beam_groups", Beside("num_beams")),
    ("diversity_penalty", Beside("num_beams")),
    ("length_penalty", Beside("num_beams")),
    ("early_stopping", Beside("num_beams")),
    ("constraints", NotSet),
    ("force_words_ids", NotSet),
    ("penalty_alpha", NotNumber(0.0)),
    ("low_memory", Beside("penalty_alpha")),
    ("dola_layers", NotSet),
    // What comes back.
    ("num_return_sequences", CallersChoice),
    ("output_attentions", Harmless),
    ("output_hidden_states", Harmless),
    ("output_scores", Harmless),
    ("output_logits", Harmless),
    ("return_dict_in_generate", Harmless),
    // Special tokens.
    ("bos_token_id", Followed),
    ("pad_token_id", Harmless),
    ("decoder_start_token_id", Harmless),
    // How a text is computed.
    ("use_cache", Harmless),
    ("cache_implementation", Harmless),
    ("cache_config", Harmless),
    ("max_cache_len", Harmless),
    ("prefill_chunk_size", Harmless),
    ("compile_config", Harmless),
    ("disable_compile", Harmless),
    ("continuous_batching_config", Harmless),
    // Guesses of another model, which the model itself checks. A config cannot bring the other model.
    ("use_mtp", Harmless),
    ("is_assistant", Harmless),
    ("num_assistant_tokens", Harmless),
    ("num_assistant_tokens_schedule", Harmless),
    ("assistant_confidence_threshold", Harmless),
    ("prompt_lookup_num_tokens", Harmless),
    ("max_matching_ngram_size", Harmless),
    ("assistant_early_exit", Harmless),
    ("assistant_lookbehind", Harmless),
    ("target_lookbehind", Harmless),
    ("assistant_ensemble_weight", Harmless),
    ("speculation_type", Harmless),
    // Where the config comes from.
    ("_from_model_config", Harmless),
    ("_commit_hash", Harmless),
    ("transformers_version", Harmless),
];

impl Treatment {
    /// Returns `true` if a field with this value asks for what is not supported; `null` asks for nothing.
    fn asks_for_more(self, value: &Value) -> bool {
        match self {
            Followed | Harmless | CallersChoice | Beside(_) => false,
            NotNumber(neutral) => !value.is_null() && value.as_f64() != Some(neutral),
            NotTrue => !matches!(value, Value::Null | Value::Bool(false)),
            NotSet => !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()),
        }
    }
}

impl GenerationConfig {
    /// Reads the generation config of a model, if it has one.
    pub(crate) fn of(source: &Source, options: &Options) -> Result<Self> {
        let config = Files::new(source, options.tokenizer.as_deref())?.get(GENERATION)?;
        Ok(config.map(|bytes| json(GENERATION, &bytes)).transpose()?.unwrap_or_default())
    }

    /// Returns the names and values of the fields that only the full sampling head can follow.
    fn for_full_sampler(&self) -> impl Iterator<Item = (&'static str, f32)> {
        let fields = [("min_p", self.min_p, 0.0), ("repetition_penalty", self.repetition_penalty, 1.0)];
        fields.into_iter().filter_map(|(name, value, neutral)| Some((name, value.filter(|value| *value != neutral)?)))
    }

    /// Returns `true` if it recommends something that needs the full sampling head.
    pub(crate) fn needs_full_sampler(&self) -> bool {
        self.for_full_sampler().next().is_some()
    }

    /// Returns what it recommends that cannot be followed, as `name value`.
    pub(crate) fn unfollowed(&self, has_full_sampler: bool) -> Vec<String> {
        let missing = self.for_full_sampler().filter(|_| !has_full_sampler);
        let missing = missing.map(|(name, value)| format!("{name} {value}"));
        let unsupported = FIELDS.iter().filter_map(|(name, treatment)| {
            let shown = self.others.get(*name).filter(|value| treatment.asks_for_more(value))?.to_string();
            // Lists of tokens may be long.
            Some(if shown.len() > 40 { (*name).to_owned() } else { format!("{name} {shown}") })
        });
        missing.chain(unsupported).collect()
    }

    /// Returns the tokens that end a text.
    pub(super) fn ends(&self) -> Vec<TokenId> {
        let ids = self.eos_token_id.as_ref().map_or(&[][..], OneOrMany::as_slice);
        ids.iter().filter_map(|id| TokenId::try_from(*id).ok()).collect()
    }

    /// Returns the strings that end a text.
    pub(crate) fn stop_strings(&self) -> &[String] {
        self.stop_strings.as_ref().map_or(&[], OneOrMany::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn unfollowed(json: Value) -> Vec<String> {
        serde_json::from_value::<GenerationConfig>(json).unwrap().unfollowed(true)
    }

    /// What `GenerationConfig.__init__` of transformers 5.23.0 takes, in its order.
    const TRANSFORMERS: &str = include_str!("generation/fields.txt");

    #[test]
    fn every_field_of_transformers_has_a_treatment_and_no_other_has() {
        let known: BTreeSet<&str> = TRANSFORMERS.lines().collect();
        let ours: BTreeSet<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        assert_eq!(ours, known);
        assert_eq!(FIELDS.len(), ours.len(), "each field once");
    }

    #[test]
    fn a_field_is_named_exactly_if_it_asks_for_what_is_not_supported() {
        for (name, treatment) in FIELDS {
            let (neutral, other) = match treatment {
                // Values of types that do not fit are refused when the file is read.
                Followed => continue,
                Harmless | CallersChoice | Beside(_) => (vec![Value::from(1), Value::from(true)], None),
                NotNumber(neutral) => (vec![Value::from(*neutral)], Some(Value::from(*neutral + 2.0))),
                NotTrue => (vec![Value::from(false)], Some(Value::from(true))),
                NotSet => (vec![Value::Array(Vec::new())], Some(Value::from(vec![5]))),
            };
            for value in neutral.into_iter().chain([Value::Null]) {
                assert!(unfollowed(serde_json::json!({ *name: value })).is_empty(), "{name} {value}");
            }
            if let Some(value) = other {
                assert_eq!(unfollowed(serde_json::json!({ *name: value })), [format!("{name} {value}")]);
            }
        }
    }

    #[test]
    fn a_field_that_needs_another_one_needs_one_that_is_named() {
        for (name, treatment) in FIELDS {
            let Beside(other) = treatment else { continue };
            let found = FIELDS.iter().find(|(name, _)| name == other);
            assert!(matches!(found, Some((_, NotNumber(_)))), "{name}");
        }
    }

    #[test]
    fn followed_fields_are_read() {
        let read = |json: &str| serde_json::from_str::<GenerationConfig>(json).unwrap();
        for (name, treatment) in FIELDS {
            // The exporter writes the first token into the program.
            if *treatment != Followed || *name == "bos_token_id" {
                continue;
            }
            let value = match *name {
                "do_sample" => "true",
                "stop_strings" => r#""end""#,
                "top_k" | "eos_token_id" => "3",
                _ => "0.5",
            };
            let config = read(&format!(r#"{{"{name}": {value}}}"#));
            assert!(config.others.is_empty() && config != GenerationConfig::default(), "{name}");
        }
        assert_eq!(read(r#"{"stop_strings": ["a", "b"]}"#).stop_strings(), ["a", "b"]);
        assert_eq!(read(r#"{"eos_token_id": [7, -1]}"#).ends(), [7]);
    }

    #[test]
    fn without_the_full_head_what_only_it_can_do_is_named() {
        let config: GenerationConfig = serde_json::from_str(r#"{"min_p": 0.25, "repetition_penalty": 1.0}"#).unwrap();
        assert!(config.needs_full_sampler() && config.unfollowed(true).is_empty());
        assert_eq!(config.unfollowed(false), ["min_p 0.25"]);
    }

    #[test]
    fn a_long_list_is_named_without_its_tokens() {
        assert_eq!(
            unfollowed(serde_json::json!({ "suppress_tokens": (0..100).collect::<Vec<_>>() })),
            ["suppress_tokens"]
        );
    }
}
