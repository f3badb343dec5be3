//! The configuration of Gemma 4.

use crate::config::{self, Epsilon, Size, setting, unsupported};
use crate::error::{ExportError, Result};
use crate::net::{Activation, Attention, RopeConfig};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Every sixth layer has full attention, if the configuration lists no layers.
const PERIOD: usize = 6;

/// A dense model.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) text: Text,
    pub(super) width: i32,
    pub(super) eps: f32,
    /// `true` if the table of embeddings is also the head.
    pub(super) is_tied: bool,
    /// The bound of the logits.
    pub(super) final_cap: Option<f32>,
    pub(super) inputs: Option<Inputs>,
    /// Layers with a sliding window.
    pub(super) sliding: LayerKind,
    /// Layers with full attention.
    pub(super) full: LayerKind,
    pub(super) layers: Vec<Layer>,
}

/// The attention of one kind of layers.
#[derive(Debug)]
pub(super) struct LayerKind {
    pub(super) shape: Attention,
    pub(super) rope: RopeConfig,
    /// `false` if the values are the projection of the keys.
    pub(super) has_values: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) is_full: bool,
    /// `false` if it reuses the keys and values of the last layer of its kind that has them.
    pub(super) has_keys: bool,
    /// The width within its feed-forward network.
    pub(super) inner: i32,
}

/// Additional inputs of each layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    pub(super) vocabulary: i32,
    pub(super) width: i32,
    /// The width of the inputs of all layers together.
    pub(super) all: i32,
}

/// The part of `config.json` that the model is built from.
#[derive(Debug, Deserialize)]
pub(super) struct Text {
    pub(super) vocab_size: Size,
    hidden_size: Size,
    intermediate_size: Size,
    pub(super) num_hidden_layers: Size,
    num_attention_heads: Size,
    num_key_value_heads: Size,
    head_dim: Size,
    pub(super) max_position_embeddings: Size,
    #[serde(default)]
    rms_norm_eps: Epsilon,
    #[serde(default = "gelu")]
    hidden_activation: String,
    #[serde(default)]
    pub(super) attention_bias: bool,
    tie_word_embeddings: Option<bool>,
    final_logit_softcapping: Option<f32>,
    sliding_window: Option<Size>,
    layer_types: Option<Vec<String>>,
    rope_parameters: Option<RopeConfigs>,
    #[serde(default)]
    attention_k_eq_v: bool,
    /// Of layers with full attention, in files from before transformers had `per_layer_config`.
    global_head_dim: Option<Size>,
    num_global_key_value_heads: Option<Size>,
    /// By the number of the layer.
    per_layer_config: Option<BTreeMap<String, Overrides>>,
    /// The number of layers, at the end, that reuse the keys and values of others.
    pub(super) num_kv_shared_layers: Option<usize>,
    #[serde(default)]
    use_double_wide_mlp: bool,
    hidden_size_per_layer_input: Option<u32>,
    vocab_size_per_layer_input: Option<Size>,
    enable_moe_block: Option<bool>,
    use_bidirectional_attention: Option<String>,
}

/// By kind of layer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RopeConfigs {
    sliding_attention: Option<RopeConfig>,
    full_attention: Option<RopeConfig>,
}

/// Sizes in which one layer differs from the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Overrides {
    head_dim: Option<Size>,
    num_key_value_heads: Option<Size>,
}

fn gelu() -> String {
    "gelu_pytorch_tanh".to_owned()
}

impl Config {
    /// Reads `config.json`, of a text model or of a multimodal one.
    pub(super) fn of(config: &Value) -> Result<Self> {
        let text = Text::deserialize(config::text(config)).map_err(ExportError::Config)?;
        text.check_dense()?;
        let are_full = text.are_full()?;
        let layers = text.layers(&are_full)?;
        // The outermost object says whether the head is tied.
        let is_tied = config.get("tie_word_embeddings").and_then(Value::as_bool).or(text.tie_word_embeddings);
        Ok(Self {
            width: text.hidden_size.get(),
            eps: text.rms_norm_eps.get(),
            is_tied: is_tied.unwrap_or(true),
            final_cap: text.final_cap()?,
            inputs: text.inputs()?,
            sliding: text.sliding(&are_full)?,
            full: text.full(&are_full)?,
            layers,
            text,
        })
    }

    pub(super) fn activation(&self) -> Activation<'_> {
        Activation { key: "hidden_activation", name: &self.text.hidden_activation }
    }

    /// The shape of the table of embeddings, and of the head.
    pub(super) fn table(&self) -> [i32; 2] {
        [self.text.vocab_size.get(), self.width]
    }
}

impl Text {
    fn check_dense(&self) -> Result<()> {
        if self.enable_moe_block == Some(true) {
            return Err(ExportError::Unsupported { key: "enable_moe_block", found: "true".to_owned() });
        }
        // Between "vision" and nothing only images make a difference.
        match self.use_bidirectional_attention.as_deref() {
            None | Some("vision") => Ok(()),
            Some(other) => Err(unsupported("use_bidirectional_attention", other)),
        }
    }

    /// For each layer, `true` if it has full attention. The last layer always has it, whatever is listed.
    fn are_full(&self) -> Result<Vec<bool>> {
        let range = config::layers(self.num_hidden_layers)?;
        let (count, last) = (range.len(), range.len().saturating_sub(1));
        let Some(types) = &self.layer_types else {
            return Ok(range.map(|layer| layer % PERIOD == PERIOD - 1 || layer == last).collect());
        };
        if types.len() != count {
            return Err(setting("layer_types", format!("a list of {}", types.len()), "a list of all layers"));
        }
        let is_full = |(layer, kind): (usize, &String)| match kind.as_str() {
            "full_attention" => Ok(true),
            "sliding_attention" => Ok(layer == last),
            other => Err(unsupported("layer_types", other)),
        };
        types.iter().enumerate().map(is_full).collect()
    }

    fn layers(&self, are_full: &[bool]) -> Result<Vec<Layer>> {
        let first_shared = are_full.len().saturating_sub(self.num_kv_shared_layers.unwrap_or(0));
        let (narrow, doubled) = (self.intermediate_size, if self.use_double_wide_mlp { 2 } else { 1 });
        let wide = narrow.times(Size::new(doubled)?)?;
        let layer = |(index, is_full): (usize, &bool)| {
            let has_keys = index < first_shared;
            Layer { is_full: *is_full, has_keys, inner: if has_keys { narrow } else { wide }.get() }
        };
        Ok(are_full.iter().enumerate().map(layer).collect())
    }

    fn sliding(&self, are_full: &[bool]) -> Result<LayerKind> {
        let window = match self.sliding_window {
            Some(window) => window.get(),
            None if are_full.contains(&false) => {
                return Err(setting("sliding_window", "null", "a number of positions"));
            }
            None => 1,
        };
        let overrides = self.overrides(are_full, false)?.unwrap_or_default();
        let rope = self.rope_parameters.as_ref().and_then(|ropes| ropes.sliding_attention.clone());
        self.kind(overrides, Some(window), rope.unwrap_or_default(), true)
    }

    fn full(&self, are_full: &[bool]) -> Result<LayerKind> {
        let published = Overrides {
            head_dim: Some(self.global_head_dim.map_or_else(|| Size::new(512), Ok)?),
            num_key_value_heads: self.num_global_key_value_heads.filter(|_| self.attention_k_eq_v),
        };
        let overrides = self.overrides(are_full, true)?.unwrap_or(published);
        let rope = self.rope_parameters.as_ref().and_then(|ropes| ropes.full_attention.clone());
        let rope = rope.unwrap_or_else(|| RopeConfig::proportional_of(1_000_000.0, 0.25));
        self.kind(overrides, None, rope, !self.attention_k_eq_v)
    }

    /// The sizes that `per_layer_config` gives all layers of a kind, if there is one.
    fn overrides(&self, are_full: &[bool], kind: bool) -> Result<Option<Overrides>> {
        let Some(listed) = &self.per_layer_config else { return Ok(None) };
        let is_layer = |key: &&String| key.parse().is_ok_and(|layer: usize| layer < are_full.len());
        if let Some(stray) = listed.keys().find(|key| !is_layer(key)) {
            let found = format!("about `{}`", stray.escape_debug());
            return Err(setting("per_layer_config", found, "about layers, by their numbers"));
        }
        let of = |index: usize| listed.get(&index.to_string()).copied().unwrap_or_default();
        let mut layers = (0..).zip(are_full).filter(|(_, is_full)| **is_full == kind).map(|(index, _)| of(index));
        let first = layers.next().unwrap_or_default();
        if layers.any(|other| other != first) {
            let found = "different for layers of one kind".to_owned();
            return Err(ExportError::Unsupported { key: "per_layer_config", found });
        }
        Ok(Some(first))
    }

    fn kind(&self, overrides: Overrides, window: Option<i32>, rope: RopeConfig, has_values: bool) -> Result<LayerKind> {
        let kv_heads = overrides.num_key_value_heads.unwrap_or(self.num_key_value_heads);
        let head_dim = overrides.head_dim.unwrap_or(self.head_dim);
        let shape = Attention::new(self.num_attention_heads, kv_heads, head_dim)?;
        Ok(LayerKind { shape: Attention { scale: 1.0, window, ..shape }, rope, has_values })
    }

    fn final_cap(&self) -> Result<Option<f32>> {
        match self.final_logit_softcapping {
            Some(cap) if !(cap.is_finite() && cap > 0.0) => {
                Err(setting("final_logit_softcapping", cap, "a number above zero"))
            }
            cap => Ok(cap),
        }
    }

    fn inputs(&self) -> Result<Option<Inputs>> {
        let Some(width @ 1..) = self.hidden_size_per_layer_input else { return Ok(None) };
        let width = Size::new(width.into())?;
        let vocabulary = self.vocab_size_per_layer_input.unwrap_or(self.vocab_size).get();
        Ok(Some(Inputs { vocabulary, width: width.get(), all: self.num_hidden_layers.times(width)?.get() }))
    }
}
