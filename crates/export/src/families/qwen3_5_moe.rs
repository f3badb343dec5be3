//! Qwen3.5: most layers are gated delta nets, which have a recurrent state of fixed size; every few layers one has full
//! attention with a gated result. Each is followed by a mixture of experts with a shared expert or, in the dense models, a
//! plain feed-forward network.
//!
//! Only the text part of the published models, which are multimodal, is exported.

use super::{Family, Model};
use crate::builder::Tensor;
use crate::config::{self, Epsilon, Size, setting, unsupported};
use crate::error::{ExportError, Result};
use crate::net::{Activation, Attention, CarryMask, DeltaHeads, DeltaRule, Experts, Net, Rope, RopeConfig};
use ptero_pte::DType;
use ptero_tensor::ScaleType;
use serde::Deserialize;
use serde_json::Value;

pub(super) const FAMILY: Family =
    Family { name: "qwen3_5_moe", model_types: &["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_text"], build };

/// The part of `config.json` that the model is built from.
#[derive(Debug, Deserialize)]
struct Config {
    vocab_size: Size,
    hidden_size: Size,
    num_hidden_layers: Size,
    max_position_embeddings: Size,
    #[serde(default)]
    rms_norm_eps: Epsilon,
    #[serde(default = "config::silu")]
    hidden_act: String,
    layer_types: Option<Vec<String>>,
    full_attention_interval: Option<usize>,

    num_attention_heads: Size,
    num_key_value_heads: Size,
    head_dim: Size,
    #[serde(default)]
    attention_bias: bool,
    attn_output_gate: Option<bool>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    rope_parameters: Option<RopeConfig>,
    rope_scaling: Option<RopeConfig>,

    linear_num_key_heads: Size,
    linear_num_value_heads: Size,
    linear_key_head_dim: Size,
    linear_value_head_dim: Size,
    linear_conv_kernel_dim: Size,

    /// Of the dense models.
    intermediate_size: Option<Size>,
    num_experts: Option<Size>,
    num_experts_per_tok: Option<Size>,
    moe_intermediate_size: Option<Size>,
    shared_expert_intermediate_size: Option<Size>,
}

fn build(net: &mut Net<'_>, config: &Value) -> Result<Model> {
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
    let config = Config::deserialize(config::text(config)).map_err(ExportError::Config)?;
    let layers = Layers::of(net, &config)?;
    let (vocabulary, width) = (config.vocab_size, config.hidden_size.get());
    net.ignore(&["model.visual.", "mtp."]);
    if tied {
        net.ignore(&["lm_head.weight"]);
    }
    // Published with a vision tower, and without it if only the text part was saved.
    let model = if net.has("model.language_model.embed_tokens.weight") { "model.language_model" } else { "model" };

    let (table, embedding) = ([vocabulary.get(), width], format!("{model}.embed_tokens"));
    let mut x = net.embedding(&embedding, net.tokens, table);
    let indices = config::layers(config.num_hidden_layers)?;
    for layer in indices.clone() {
        x = net.layer(&format!("{model}.layers"), layer, &indices, |net| {
            let normed = norm(net, "input_layernorm", x, width, &config);
            let mixed = match config.kind(layer)? {
                LayerKind::Delta => net.within("linear_attn", |net| delta_net(net, &config, &layers, normed)),
                LayerKind::Attention => net.within("self_attn", |net| attention(net, &config, &layers, normed)),
            };
            let x = net.add(x, mixed);
            let normed = norm(net, "post_attention_layernorm", x, width, &config);
            let fed = net.within("mlp", |net| match layers.experts {
                Some((sizes, shared)) => experts(net, &config, sizes, shared, normed),
                None => net.feed_forward(normed, [width, config.intermediate()?], config.activation(), false),
            })?;
            let x = net.add(x, fed);
            net.tap("output", x, width);
            Ok::<_, ExportError>(x)
        })?;
    }
    let last = net.last_position(x);
    let normed = norm(net, &format!("{model}.norm"), last, width, &config);
    let logits = net.head("lm_head", tied.then_some(embedding.as_str()), normed, table);
    Ok(Model { logits, dtype: net.dtype(), vocabulary, layers: config.num_hidden_layers })
}

/// Norms multiply by one and the weight; the one within a delta net alone by the weight.
fn norm(net: &mut Net<'_>, name: &str, x: Tensor, width: i32, config: &Config) -> Tensor {
    let weight = net.changed(&format!("{name}.weight"), &[width], Some(|weight| 1.0 + weight));
    net.rms_norm_by(x, Some(weight), config.rms_norm_eps.get())
}

/// What all layers share.
struct Layers {
    attention: Attention,
    rope: Rope,
    delta: DeltaHeads,
    /// Factors of the state, see [`Net::carry_mask`].
    carry_mask: CarryMask,
    /// The factors that make lengths of one from root mean squares of one: of queries, scaled as scores are, and keys.
    unit: [Tensor; 2],
    /// The experts that tokens choose from, and the width of the shared one.
    experts: Option<(Experts, i32)>,
}

impl Layers {
    fn of(net: &mut Net<'_>, config: &Config) -> Result<Self> {
        config.check()?;
        let attention = Attention::new(config.num_attention_heads, config.num_key_value_heads, config.head_dim)?;
        config.linear_num_key_heads.times(config.linear_key_head_dim)?;
        config.linear_num_value_heads.times(config.linear_value_head_dim)?;
        config.linear_num_value_heads.over(config.linear_num_key_heads, "linear_num_key_heads")?;
        let delta = DeltaHeads {
            keys: config.linear_num_key_heads.get(),
            values: config.linear_num_value_heads.get(),
            key_dim: config.linear_key_head_dim.get(),
            value_dim: config.linear_value_head_dim.get(),
        };
        let unit = (delta.key_dim as f32).sqrt().recip();
        let count = usize::try_from(delta.key_dim).unwrap_or(0);
        let unit = [("query_scale", unit * unit), ("key_scale", unit)]
            .map(|(name, scale)| net.numbers(name, &vec![scale; count], ScaleType::F32));
        let rope = config.rope(net)?;
        Ok(Self { attention, rope, delta, carry_mask: net.carry_mask(), unit, experts: config.experts()? })
    }
}

/// A gated delta net: a short convolution, the delta rule, and a norm that the input gates.
fn delta_net(net: &mut Net<'_>, config: &Config, layers: &Layers, x: Tensor) -> Tensor {
    let (heads, width) = (layers.delta, config.hidden_size.get());
    let (keys, values) = (heads.keys * heads.key_dim, heads.values * heads.value_dim);
    let channels = 2 * keys + values;
    let [mixed, gate] = net.linears("in_proj", [("in_proj_qkv", channels), ("in_proj_z", values)], x, width, false);
    // Decay and learning rate are small matrices that affect all later tokens: they are not quantized.
    // They come before what follows the other products, so that a device may do all products of `x` at once.
    let beta = net.plain_linear("in_proj_b", x, [heads.values, width]);
    let beta = net.sigmoid(beta);
    let step = net.plain_linear("in_proj_a", x, [heads.values, width]);
    let decay = decay(net, heads.values, step);
    let decay = net.carried_decay(decay, layers.carry_mask);

    let mixed = net.causal_conv("conv1d", mixed, [channels, config.linear_conv_kernel_dim.get()], layers.carry_mask);
    let mixed = net.silu(mixed);
    let [q, k, v] = net.split(mixed, [keys, keys, values]);
    let [q, k] = [(q, layers.unit[0]), (k, layers.unit[1])].map(|(x, unit)| {
        let x = net.split_heads(x, heads.keys, heads.key_dim);
        let x = net.cast(x, DType::F32);
        // The model adds a millionth to the sum of squares; this norm adds it to their mean.
        net.rms_norm_by(x, Some(unit), 1e-6 / heads.key_dim as f32)
    });
    let v = net.split_heads(v, heads.values, heads.value_dim);

    let found = net.gated_delta(DeltaRule { q, k, v, decay, beta }, heads);
    let found = net.cast(found, net.dtype());
    let normed = net.rms_norm("norm", found, heads.value_dim, config.rms_norm_eps.get());
    let gate = net.split_heads(gate, heads.values, heads.value_dim);
    let gate = net.silu(gate);
    let gated = net.multiply(normed, gate);
    let gated = net.join_heads(gated, values);
    net.linear("out_proj", gated, [width, values])
}

/// `exp(-exp(A_log) * softplus(step + dt_bias))`, in f32: a little below one is not the same as one.
fn decay(net: &mut Net<'_>, heads: i32, step: Tensor) -> Tensor {
    let rate = net.constant_of("A_log", &[heads], &[heads], DType::F32, Some(|log| -log.exp()));
    let bias = net.constant_of("dt_bias", &[heads], &[heads], DType::F32, None);
    let step = net.cast(step, DType::F32);
    let step = net.add(step, bias);
    let step = net.softplus(step);
    let exponent = net.multiply(rate, step);
    net.exp(exponent)
}

/// Attention with normalized and partly rotated queries and keys; the result of each head is gated by the input.
fn attention(net: &mut Net<'_>, config: &Config, layers: &Layers, x: Tensor) -> Tensor {
    let (shape, width) = (&layers.attention, config.hidden_size.get());
    let (heads, dim) = (shape.heads, shape.head_dim);
    let (wide, kv_wide) = (shape.width(), shape.kv_width());
    let projections = [("q_proj", 2 * wide), ("k_proj", kv_wide), ("v_proj", kv_wide)];
    let [q, k, v] = net.linears("qkv_proj", projections, x, width, config.attention_bias);
    // The query of each head is followed by its gate.
    let q = net.split_heads(q, heads, 2 * dim);
    let [q, gate] = net.split(q, [dim, dim]);
    let q = norm(net, "q_norm", q, dim, config);
    let k = net.split_heads(k, shape.kv_heads, dim);
    let k = norm(net, "k_norm", k, dim, config);
    let v = net.split_heads(v, shape.kv_heads, dim);
    let [q, k, v] = [q, k, v].map(|x| net.transpose(x, &[0, 2, 1, 3]));
    let [q, k] = [q, k].map(|x| net.rotate(x, &layers.rope));
    let found = net.attend(q, k, v, shape);
    let gate = net.join_heads(gate, wide);
    let gate = net.sigmoid(gate);
    let gated = net.multiply(found, gate);
    net.linear_with("o_proj", gated, [width, wide], config.attention_bias)
}

/// A few experts for each token, and a shared one with a gate. Neither router nor gate is quantized: choosing the wrong
/// expert costs more than their few bits.
fn experts(net: &mut Net<'_>, config: &Config, sizes: Experts, shared: i32, x: Tensor) -> Result<Tensor> {
    // The shared expert comes first, so that a device may do all products of `x` at once.
    let scores = net.plain_linear("gate", x, [sizes.count, sizes.width]);
    let scores = net.cast(scores, DType::F32);
    let gate = net.plain_linear("shared_expert_gate", x, [1, sizes.width]);
    let gate = net.sigmoid(gate);
    let shape = [sizes.width, shared];
    let all = net.within("shared_expert", |net| net.feed_forward(x, shape, config.activation(), false))?;
    let all = net.multiply(gate, all);
    let routes = net.route(scores, sizes, true);
    let found = net.within("experts", |net| net.experts(x, routes, sizes, config.activation()))?;
    Ok(net.add(found, all))
}

/// How a layer mixes tokens.
enum LayerKind {
    Delta,
    Attention,
}

/// More experts than any model has, and few enough to name each.
const MOST_EXPERTS: i32 = 4096;

/// The limit for all layers together: a short file may ask for the names of many tensors that it does not have.
const MOST_EXPERTS_OF_ALL_LAYERS: i32 = 1 << 17;

impl Config {
    fn activation(&self) -> Activation<'_> {
        Activation { key: "hidden_act", name: &self.hidden_act }
    }

    /// From the list of layers, or from the interval if there is none.
    fn kind(&self, layer: usize) -> Result<LayerKind> {
        let Some(types) = &self.layer_types else {
            let interval = self.full_attention_interval.unwrap_or(4).max(1);
            return Ok(if (layer + 1).is_multiple_of(interval) { LayerKind::Attention } else { LayerKind::Delta });
        };
        match types.get(layer).map(String::as_str) {
            Some("linear_attention") => Ok(LayerKind::Delta),
            Some("full_attention") => Ok(LayerKind::Attention),
            Some(other) => Err(unsupported("layer_types", other)),
            None => Err(setting("layer_types", format!("a list of {}", types.len()), "one for each layer")),
        }
    }

    /// Refuses settings that are computed differently.
    fn check(&self) -> Result<()> {
        if self.attn_output_gate == Some(false) {
            return Err(ExportError::Unsupported { key: "attn_output_gate", found: "false".to_owned() });
        }
        // The convolution's activation is the same setting.
        if self.hidden_act != "silu" {
            return Err(unsupported("hidden_act", &self.hidden_act));
        }
        Ok(())
    }

    /// Text has one position for each token, so it does not matter in how many sections images divide the pairs.
    fn rope(&self, net: &mut Net<'_>) -> Result<Rope> {
        let described = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref()).cloned().unwrap_or_default();
        let part = described.partial_rotary_factor.or(self.partial_rotary_factor).unwrap_or(0.25);
        #[allow(clippy::cast_possible_truncation, reason = "the model rounds down, too")]
        let dims = (self.head_dim.get() as f32 * part) as i32;
        if dims < 2 || dims % 2 != 0 || dims > self.head_dim.get() {
            let wanted = "such that an even number of a head's dimensions rotates";
            return Err(setting("partial_rotary_factor", part, wanted));
        }
        let positions = self.max_position_embeddings.get() as f32;
        described.rope(net, [dims, self.head_dim.get()], self.rope_theta.unwrap_or(10_000.0), positions)
    }

    fn intermediate(&self) -> Result<i32> {
        self.intermediate_size.map(Size::get).ok_or_else(|| setting("intermediate_size", "missing", "there"))
    }

    fn experts(&self) -> Result<Option<(Experts, i32)>> {
        let Some(count) = self.num_experts else { return Ok(None) };
        let need = |key, size: Option<Size>| size.ok_or_else(|| setting(key, "missing", "there, as there are experts"));
        let chosen = need("num_experts_per_tok", self.num_experts_per_tok)?;
        let inner = need("moe_intermediate_size", self.moe_intermediate_size)?;
        let shared = need("shared_expert_intermediate_size", self.shared_expert_intermediate_size)?;
        if count.get() > MOST_EXPERTS {
            return Err(setting("num_experts", count.get(), "at most 4096"));
        }
        let all = count.times(self.num_hidden_layers)?.get();
        if all > MOST_EXPERTS_OF_ALL_LAYERS {
            return Err(setting("num_experts", format!("{all} in all layers"), "at most 131072 in all layers"));
        }
        if chosen > count {
            return Err(setting("num_experts_per_tok", chosen.get(), "at most as many as there are experts"));
        }
        let (count, chosen, inner) = (count.get(), chosen.get(), inner.get());
        Ok(Some((Experts { count, chosen, width: self.hidden_size.get(), inner }, shared.get())))
    }
}
