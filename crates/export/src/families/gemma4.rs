//! Gemma 4, dense: a decoder of two kinds of layers. Most have a sliding window; about every sixth has full attention, with
//! wider heads, fewer of them for keys and values, and rotary positions on some of its pairs.
//!
//! ```text
//! x = embedding(token) * sqrt(width)
//! each layer  x = x + norm(attention(norm(x)))            norms before and after either part
//!             x = x + norm(feed_forward(norm(x)))
//!             x = x + norm(up(act(down(x)) * input))      where layers have inputs of their own
//!             x = x * scalar
//! logits = cap * tanh(head(norm(x)) / cap)
//! ```
//!
//! Queries, keys and values are normalized, so that scores need no scale. Layers with full attention may take their values
//! from the projection of the keys, and late layers may reuse the keys and values of an earlier one.

mod config;

use super::{Family, Model};
use crate::builder::Tensor;
use crate::config::setting;
use crate::error::{ExportError, Result};
use crate::net::{Attention, KvCache, Net, Rope};
use config::{Config, Inputs, Layer, LayerKind};
use ptero_pte::DType;
use serde_json::Value;

pub(super) const FAMILY: Family =
    Family { name: "gemma4", model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"], build };

/// Prefixes of the vision and audio towers of multimodal models.
const NOT_TEXT: &[&str] = &[
    "model.vision_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
];

fn build(net: &mut Net<'_>, config: &Value) -> Result<Model> {
    let config = Config::of(config)?;
    let is_part = net.has("model.language_model.embed_tokens.weight");
    let name = if is_part { "model.language_model" } else { "model" };
    net.ignore(if is_part { NOT_TEXT } else { &[] });
    net.ignore(if config.is_tied { &["lm_head.weight"] } else { &[] });
    let sliding = LayerAttention::of(net, &config.sliding, &config)?;
    let full = LayerAttention::of(net, &config.full, &config)?;
    let x = net.within(name, |net| decoder(net, &config, sliding, full))?;
    let tied = config.is_tied.then(|| format!("{name}.embed_tokens"));
    let logits = net.head("lm_head", tied.as_deref(), x, config.table());
    let (logits, dtype) = match config.final_cap {
        Some(cap) => (net.soft_cap(logits, cap), DType::F32),
        None => (logits, net.dtype()),
    };
    Ok(Model { logits, dtype, vocabulary: config.text.vocab_size, layers: config.text.num_hidden_layers })
}

/// The model without its head.
fn decoder(
    net: &mut Net<'_>,
    config: &Config,
    mut sliding: LayerAttention,
    mut full: LayerAttention,
) -> Result<Tensor> {
    let embedded = net.embedding("embed_tokens", net.tokens, config.table());
    let mut x = net.scale(embedded, root(config.width));
    let inputs = config.inputs.map(|shape| (shape, own_inputs(net, config, &shape, x)));
    let indices = 0..config.layers.len();
    for (index, layer) in indices.clone().zip(&config.layers) {
        let attending = if layer.is_full { &mut full } else { &mut sliding };
        x = net.layer("layers", index, &indices, |net| {
            let normed = norm(net, config, "input_layernorm", x);
            let attended = net.within("self_attn", |net| attention(net, config, layer, attending, normed))?;
            let attended = norm(net, config, "post_attention_layernorm", attended);
            let x = net.add(x, attended);
            let normed = norm(net, config, "pre_feedforward_layernorm", x);
            let shape = [config.width, layer.inner];
            let fed = net.within("mlp", |net| net.feed_forward(normed, shape, config.activation(), false))?;
            let fed = norm(net, config, "post_feedforward_layernorm", fed);
            let mut x = net.add(x, fed);
            if let Some((shape, inputs)) = inputs {
                let input = net.take(inputs, 2, i64::try_from(index).unwrap_or(i64::MAX));
                x = with_input(net, config, &shape, input, x)?;
            }
            let scalar = net.weight("layer_scalar", &[1]);
            let x = net.multiply(x, scalar);
            net.tap("output", x, config.width);
            Ok::<_, ExportError>(x)
        })?;
    }
    let last = net.last_position(x);
    Ok(norm(net, config, "norm", last))
}

fn norm(net: &mut Net<'_>, config: &Config, name: &str, x: Tensor) -> Tensor {
    net.rms_norm(name, x, config.width, config.eps)
}

fn root(width: i32) -> f32 {
    (width as f32).sqrt()
}

/// The attention of one kind of layers.
struct LayerAttention {
    shape: Attention,
    rope: Rope,
    has_values: bool,
    /// The keys and values of the last layer that has any.
    cache: Option<KvCache>,
}

impl LayerAttention {
    fn of(net: &mut Net<'_>, kind: &LayerKind, config: &Config) -> Result<Self> {
        let positions = config.text.max_position_embeddings.get() as f32;
        let rope = kind.rope.rope(net, [kind.shape.head_dim; 2], 10_000.0, positions)?;
        Ok(Self { shape: kind.shape, rope, has_values: kind.has_values, cache: None })
    }
}

fn attention(net: &mut Net<'_>, config: &Config, layer: &Layer, of: &mut LayerAttention, x: Tensor) -> Result<Tensor> {
    let (shape, width, has_bias) = (of.shape, config.width, config.text.attention_bias);
    let (queries, keys) = (shape.width(), shape.kv_width());
    let (q, new) = match (layer.has_keys, of.has_values) {
        (true, true) => {
            let projections = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
            let [q, k, v] = net.linears("qkv_proj", projections, x, width, has_bias);
            (q, Some((k, v)))
        }
        (true, false) => {
            // These keys are the values, too.
            net.mark_sensitive("k_proj");
            let [q, k] = net.linears("qk_proj", [("q_proj", queries), ("k_proj", keys)], x, width, has_bias);
            (q, Some((k, k)))
        }
        (false, _) => (net.linear_with("q_proj", x, [queries, width], has_bias), None),
    };
    let q = net.split_heads(q, shape.heads, shape.head_dim);
    let q = net.rms_norm("q_norm", q, shape.head_dim, config.eps);
    let q = net.transpose(q, &[0, 2, 1, 3]);
    let q = net.rotate(q, &of.rope);
    if let Some((k, v)) = new {
        let [k, v] = [k, v].map(|x| net.split_heads(x, shape.kv_heads, shape.head_dim));
        let k = net.rms_norm("k_norm", k, shape.head_dim, config.eps);
        let v = net.rms_norm_by(v, None, config.eps);
        let [k, v] = [k, v].map(|x| net.transpose(x, &[0, 2, 1, 3]));
        let k = net.rotate(k, &of.rope);
        of.cache = Some(net.update_cache(k, v, &shape));
    } else {
        // Published files hold unused projections of keys and values for layers that reuse those of others.
        let unused = ["k_proj.", "v_proj.", "k_norm.", "v_norm."].map(|name| net.full_name(name));
        net.ignore(&unused.each_ref().map(String::as_str));
    }
    let shared = config.text.num_kv_shared_layers.unwrap_or(0);
    let none = || setting("num_kv_shared_layers", shared, "few enough that each kind of layers has keys");
    let attended = net.attend_to(q, &of.cache.ok_or_else(none)?, &shape);
    Ok(net.linear_with("o_proj", attended, [width, queries], has_bias))
}

/// The inputs of all layers, `[1, length, layers, width]`: a second embedding of the token, and a projection of the first.
fn own_inputs(net: &mut Net<'_>, config: &Config, shape: &Inputs, x: Tensor) -> Tensor {
    let layers = config.text.num_hidden_layers.get();
    let token = net.embedding("embed_tokens_per_layer", net.tokens, [shape.vocabulary, shape.all]);
    let token = net.scale(token, root(shape.width));
    let token = net.split_heads(token, layers, shape.width);
    let context = net.linear("per_layer_model_projection", x, [shape.all, config.width]);
    let context = net.scale(context, root(config.width).recip());
    let context = net.split_heads(context, layers, shape.width);
    let context = net.rms_norm("per_layer_projection_norm", context, shape.width, config.eps);
    let both = net.add(context, token);
    net.scale(both, std::f32::consts::FRAC_1_SQRT_2)
}

/// Adds the contribution of a layer's own input.
fn with_input(net: &mut Net<'_>, config: &Config, shape: &Inputs, input: Tensor, x: Tensor) -> Result<Tensor> {
    let gate = net.linear("per_layer_input_gate", x, [shape.width, config.width]);
    let gate = net.activation(config.activation(), gate)?;
    let gated = net.multiply(gate, input);
    let wide = net.linear("per_layer_projection", gated, [config.width, shape.width]);
    let normed = norm(net, config, "post_per_layer_input_norm", wide);
    Ok(net.add(x, normed))
}
