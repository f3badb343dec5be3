//! Llama and models of the same shape: a decoder of equal layers, each attention with rotary positions and a gated
//! feed-forward network, both with an RMS norm before them and a residual connection around them.
//!
//! The others differ in details that their configurations name: Mistral has a sliding window, Qwen2 has biases, Qwen3
//! normalizes queries and keys, SmolLM3 leaves out positions in some layers.

use super::{Family, Model};
use crate::builder::Tensor;
use crate::config::{self, Epsilon, Size, setting};
use crate::error::{ExportError, Result};
use crate::net::{Activation, Attention, Net, Rope, RopeConfig};
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) const FAMILY: Family =
    Family { name: "llama", model_types: &["llama", "mistral", "qwen2", "qwen3", "smollm3"], build };

/// The part of `config.json` that the model is built from.
#[derive(Debug, Deserialize)]
struct Config {
    model_type: ModelType,
    vocab_size: Size,
    hidden_size: Size,
    intermediate_size: Size,
    num_hidden_layers: Size,
    num_attention_heads: Size,
    num_key_value_heads: Option<Size>,
    head_dim: Option<Size>,
    max_position_embeddings: Size,
    #[serde(default)]
    rms_norm_eps: Epsilon,
    #[serde(default = "config::silu")]
    hidden_act: String,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    rope_parameters: Option<RopeConfig>,
    rope_scaling: Option<RopeConfig>,
    /// Ours: GGUF pairs neighbouring dimensions where Hugging Face pairs halves.
    #[serde(default)]
    rope_interleaved: bool,
    /// Ours, too: the tensor by which GGUF says that periods are longer than powers of the base.
    rope_freqs: Option<String>,
    sliding_window: Option<Size>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<LayerKind>>,
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
}

/// The model types, which differ in more than their configurations say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModelType {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Smollm3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LayerKind {
    FullAttention,
    SlidingAttention,
}

fn build(net: &mut Net<'_>, config: &Value) -> Result<Model> {
    let config = Config::of(config)?;
    let (vocabulary, width, eps) = (config.vocab_size, config.hidden_size.get(), config.rms_norm_eps.get());
    let shape = attention_shape(&config)?;
    let rope = config.rope(net, shape.head_dim)?;
    net.ignore(if config.tie_word_embeddings { &["lm_head.weight"] } else { &[] });

    let table = [vocabulary.get(), width];
    let mut x = net.embedding("model.embed_tokens", net.tokens, table);
    let layers = config::layers(config.num_hidden_layers)?;
    for layer in layers.clone() {
        x = net.layer("model.layers", layer, &layers, |net| {
            let normed = net.rms_norm("input_layernorm", x, width, eps);
            let attended = net.within("self_attn", |net| attention(net, &config, &shape, &rope, layer, normed));
            let x = net.add(x, attended);
            let normed = net.rms_norm("post_attention_layernorm", x, width, eps);
            let activation = Activation { key: "hidden_act", name: &config.hidden_act };
            let shape = [width, config.intermediate_size.get()];
            let fed = net.within("mlp", |net| net.feed_forward(normed, shape, activation, config.mlp_bias))?;
            let x = net.add(x, fed);
            net.tap("output", x, width);
            Ok::<_, ExportError>(x)
        })?;
    }
    let last = net.last_position(x);
    let normed = net.rms_norm("model.norm", last, width, eps);
    let logits = net.head("lm_head", config.tie_word_embeddings.then_some("model.embed_tokens"), normed, table);
    Ok(Model { logits, dtype: net.dtype(), vocabulary, layers: config.num_hidden_layers })
}

/// The shape of attention without its window.
fn attention_shape(config: &Config) -> Result<Attention> {
    let heads = config.num_attention_heads;
    let kv_heads = config.num_key_value_heads.unwrap_or(heads);
    let head_dim = config.head_dim.map_or_else(|| config.hidden_size.over(heads, "num_attention_heads"), Ok)?;
    Attention::new(heads, kv_heads, head_dim)
}

fn attention(net: &mut Net<'_>, config: &Config, shape: &Attention, rope: &Rope, layer: usize, x: Tensor) -> Tensor {
    let width = config.hidden_size.get();
    // Old checkpoints store the frequencies of the rotary positions.
    let unused = net.full_name("rotary_emb.inv_freq");
    net.ignore(&[&unused]);
    let projections = [("q_proj", shape.width()), ("k_proj", shape.kv_width()), ("v_proj", shape.kv_width())];
    let [q, k, v] = net.linears("qkv_proj", projections, x, width, config.has_qkv_bias());
    let mut q = net.split_heads(q, shape.heads, shape.head_dim);
    let mut k = net.split_heads(k, shape.kv_heads, shape.head_dim);
    let v = net.split_heads(v, shape.kv_heads, shape.head_dim);
    if config.model_type == ModelType::Qwen3 {
        q = net.rms_norm("q_norm", q, shape.head_dim, config.rms_norm_eps.get());
        k = net.rms_norm("k_norm", k, shape.head_dim, config.rms_norm_eps.get());
    }
    let [mut q, mut k, v] = [q, k, v].map(|x| net.transpose(x, &[0, 2, 1, 3]));
    if config.has_rope(layer) {
        [q, k] = [q, k].map(|x| net.rotate(x, rope));
    }
    let attended = net.attend(q, k, v, &Attention { window: config.window(layer), ..*shape });
    net.linear_with("o_proj", attended, [width, shape.width()], config.attention_bias)
}

impl Config {
    /// Reads `config.json`. The defaults of missing keys depend on the model type, as they do in transformers.
    fn of(config: &Value) -> Result<Self> {
        let kind = config.get("model_type").map(ModelType::deserialize).transpose().map_err(ExportError::Config)?;
        let mut all = kind.map_or_else(|| json!({}), ModelType::defaults);
        if let (Some(all), Some(said)) = (all.as_object_mut(), config.as_object()) {
            all.extend(said.clone());
        }
        let config = Self::deserialize(all).map_err(ExportError::Config)?;
        let layers = config::layers(config.num_hidden_layers)?.len();
        let lengths = [
            ("layer_types", config.layer_types.as_ref().map(Vec::len)),
            ("no_rope_layers", config.no_rope_layers.as_ref().map(Vec::len)),
        ];
        // Transformers accepts longer lists, too.
        match lengths.into_iter().find_map(|(key, length)| Some((key, length.filter(|length| *length < layers)?))) {
            Some((key, length)) => Err(setting(key, format!("a list of {length}"), "one for each layer")),
            None => Ok(config),
        }
    }

    fn rope(&self, net: &mut Net<'_>, dims: i32) -> Result<Rope> {
        let mut described = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref()).cloned().unwrap_or_default();
        described.rope_freqs = described.rope_freqs.or(self.rope_freqs.clone());
        let original = self.original_max_position_embeddings.or(described.original_max_position_embeddings);
        described.original_max_position_embeddings = original;
        let part = described.partial_rotary_factor.or(self.partial_rotary_factor);
        if let Some(part) = part.filter(|part| *part != 1.0) {
            return Err(ExportError::Unsupported { key: "partial_rotary_factor", found: part.to_string() });
        }
        let positions = self.max_position_embeddings.get() as f32;
        let rope = described.rope(net, [dims, dims], self.rope_theta.unwrap_or(10_000.0), positions)?;
        Ok(Rope { interleaved: self.rope_interleaved, ..rope })
    }

    /// Qwen2 always has them.
    fn has_qkv_bias(&self) -> bool {
        self.attention_bias || self.model_type == ModelType::Qwen2
    }

    /// SmolLM3 lists the layers that have positions, or leaves them out in every n-th layer.
    fn has_rope(&self, layer: usize) -> bool {
        if self.model_type != ModelType::Smollm3 {
            return true;
        }
        match (&self.no_rope_layers, self.no_rope_layer_interval) {
            (Some(listed), _) => listed.get(layer).is_none_or(|has_rope| *has_rope != 0),
            (None, Some(interval)) => (layer + 1).checked_rem(interval) != Some(0),
            (None, None) => true,
        }
    }

    /// The window of a layer, if it has one: in Mistral all do, in the others those that are listed; without a list, the
    /// later ones of Qwen, and those of SmolLM3 that have no positions. Llama has none, whatever it says.
    fn window(&self, layer: usize) -> Option<i32> {
        let window = self.sliding_window.filter(|_| self.use_sliding_window.unwrap_or(true))?;
        let listed = self.layer_types.as_ref().and_then(|types| types.get(layer));
        let slides = match (self.model_type, listed) {
            (ModelType::Llama, _) => false,
            (ModelType::Mistral, _) => true,
            (ModelType::Qwen2 | ModelType::Qwen3 | ModelType::Smollm3, Some(kind)) => {
                *kind == LayerKind::SlidingAttention
            }
            (ModelType::Qwen2 | ModelType::Qwen3, None) => self.max_window_layers.is_none_or(|first| layer >= first),
            (ModelType::Smollm3, None) => !self.has_rope(layer),
        };
        slides.then(|| window.get())
    }
}

impl ModelType {
    /// The defaults of transformers that differ between model types.
    fn defaults(self) -> Value {
        match self {
            ModelType::Llama => json!({}),
            ModelType::Mistral => json!({ "num_key_value_heads": 8, "sliding_window": 4096 }),
            ModelType::Qwen2 => json!({
                "num_key_value_heads": 32, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
            }),
            ModelType::Qwen3 => json!({
                "num_key_value_heads": 32, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
                "head_dim": 128,
            }),
            ModelType::Smollm3 => json!({
                "num_key_value_heads": 4, "use_sliding_window": false, "rope_theta": 2_000_000.0,
                "no_rope_layer_interval": 4, "tie_word_embeddings": true,
            }),
        }
    }
}
