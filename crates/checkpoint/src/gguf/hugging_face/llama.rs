//! Architectures of the shape of Llama.

use super::super::keys::Float;
use super::{Names, Source};
use crate::error::at_most;
use crate::{Fault, Result, Step};
use ptero_tensor::fault::AtStep;
use serde_json::{Map, Value as Json, json};

/// Names within a layer besides those that all architectures share.
pub(super) const IN_LAYER: &Names = &[("ffn_norm", "post_attention_layernorm")];

/// Keys that change what a layer computes and have no counterpart in these configs, with their neutral values.
const NEUTRAL: &[(&str, f64)] = &[
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("logit_scale", 0.0),
    ("residual_scale", 0.0),
    ("embedding_scale", 0.0),
    ("rope.scaling.alpha", 0.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// The tensor of factors that divide the frequencies of rotary pairs.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Llama, Mistral, SmolLM2 and Mixtral, all of them `llama` in GGUF, which does not store a sliding window.
pub(super) fn llama(source: &Source<'_>) -> Result<Map<String, Json>> {
    let mut config = common(source, "llama", true)?;
    let biased = |stem: &str| source.tensor(&format!("blk.0.{stem}.bias")).is_some();
    config.insert("attention_bias".into(), (biased("attn_q") || biased("attn_output")).into());
    config.insert("mlp_bias".into(), (biased("ffn_gate") || biased("ffn_down")).into());
    if let Some(experts @ 1..) = source.keys.number("expert_count")? {
        config.insert("model_type".into(), "mixtral".into());
        config.insert("num_local_experts".into(), experts.into());
        config.insert("num_experts_per_tok".into(), source.keys.needed_size("expert_used_count")?.into());
    }
    Ok(config)
}

/// Mistral Small 3 and Ministral 3; the latter scales queries by their position.
pub(super) fn mistral3(source: &Source<'_>) -> Result<Map<String, Json>> {
    let scale = source.keys.float("attention.temperature_scale")?.filter(|scale| !scale.is_zero());
    let mut config = common(source, if scale.is_some() { "ministral3" } else { "mistral" }, true)?;
    // Without the key a config of Mistral has one.
    config.insert("sliding_window".into(), Json::Null);
    let all = source.keys.float("rope.scaling.yarn_log_multiplier")?.filter(|all| !all.is_zero());
    match config.get_mut("rope_scaling") {
        Some(Json::Object(rope)) => {
            insert_float(rope, "llama_4_scaling_beta", scale);
            // GGUF stores one of the two; llama.cpp assumes 1 for the other.
            insert_float(rope, "mscale", all.map(|_| Float::new(1.0)));
            insert_float(rope, "mscale_all_dim", all);
        }
        // It needs the original length, which is missing.
        _ if scale.is_some() => return source.keys.refuse("attention.temperature_scale", Fault::UnsupportedValue),
        _ => {}
    }
    Ok(config)
}

/// SmolLM3. GGUF does not store which layers have no rotary positions; it is every fourth.
pub(super) fn smollm3(source: &Source<'_>) -> Result<Map<String, Json>> {
    let mut config = common(source, "smollm3", true)?;
    config.insert("no_rope_layer_interval".into(), 4.into());
    Ok(config)
}

/// The keys of all of them; for Qwen 2, 2.5 and 3 (dense), the whole config. GGUF does not store Qwen's sliding window.
pub(super) fn common(source: &Source<'_>, model_type: &str, interleaved: bool) -> Result<Map<String, Json>> {
    for (key, neutral) in NEUTRAL {
        if source.keys.float(key)?.is_some_and(|value| value != Float::new(*neutral)) {
            return source.keys.refuse(key, Fault::UnsupportedValue);
        }
    }
    causal(source)?;
    let (hidden, heads) =
        (source.keys.needed_size("embedding_length")?, source.keys.needed_size("attention.head_count")?);
    let mut config = Map::new();
    let mut insert = |key: &str, value: Json| config.insert(key.to_owned(), value);
    insert("model_type", model_type.into());
    insert("hidden_act", "silu".into());
    insert("hidden_size", hidden.into());
    insert("num_attention_heads", heads.into());
    insert("num_key_value_heads", source.keys.size("attention.head_count_kv")?.unwrap_or(heads).into());
    insert("intermediate_size", source.keys.needed_size("feed_forward_length")?.into());
    insert("num_hidden_layers", layers(source)?.into());
    insert("max_position_embeddings", source.keys.needed_size("context_length")?.into());
    insert("rms_norm_eps", source.keys.needed_float("attention.layer_norm_rms_epsilon")?.into());
    insert("rope_theta", source.keys.float("rope.freq_base")?.unwrap_or(Float::new(10000.0)).into());
    insert("rope_scaling", rope_scaling(source)?);
    insert("rope_interleaved", interleaved.into());
    if source.tensor(ROPE_FREQS).is_some() {
        insert("rope_freqs", ROPE_FREQS.into());
    }
    insert("tie_word_embeddings", source.tensor("output.weight").is_none().into());
    heads_width(source, &mut config, hidden, heads)?;
    vocabulary(source, &mut config)?;
    Ok(config)
}

/// Checks that attention is causal: text embedding models may have the same architectures.
pub(super) fn causal(source: &Source<'_>) -> Result<()> {
    let key = "attention.causal";
    if source.keys.flag(key)? == Some(false) { source.keys.refuse(key, Fault::UnsupportedValue) } else { Ok(()) }
}

pub(super) fn layers(source: &Source<'_>) -> Result<u64> {
    let layers = source.keys.needed_size("block_count")?;
    // Each has a tensor at least.
    at_most("layers", layers, source.limits.tensors).at(|| Step::named("key", source.keys.key("block_count")))?;
    Ok(layers)
}

/// The width of a head, and how much of it rotates.
fn heads_width(source: &Source<'_>, config: &mut Map<String, Json>, hidden: u64, heads: u64) -> Result<()> {
    let told = source.keys.size("attention.key_length")?;
    let width = told.or_else(|| hidden.checked_div(heads)).unwrap_or(0);
    if source.keys.size("attention.value_length")?.is_some_and(|values| values != width) {
        return source.keys.refuse("attention.value_length", Fault::UnsupportedValue);
    }
    config.insert("head_dim".into(), width.into());
    let turned = source.keys.size("rope.dimension_count")?.filter(|turned| *turned != width);
    if let Some(turned) = turned {
        // Both are widths of a head: far below where a float stops being exact.
        let [turned, width] = [turned, width].map(|size| u32::try_from(size).map_or(f64::NAN, f64::from));
        let part = turned / width;
        if !(part > 0.0 && part <= 1.0) {
            return source.keys.refuse("rope.dimension_count", Fault::NotOfType("at most the width of a head"));
        }
        config.insert("partial_rotary_factor".into(), json!(part));
    }
    Ok(())
}

/// As transformers 4 writes it: null, or a `rope_type` and its numbers.
pub(super) fn rope_scaling(source: &Source<'_>) -> Result<Json> {
    let factor = source.keys.float("rope.scaling.factor")?;
    // The key of older files.
    let factor = if factor.is_some() { factor } else { source.keys.float("rope.scale_linear")? };
    let factor = factor.filter(|factor| !factor.is_zero());
    let kind = match (source.keys.text("rope.scaling.type")?, factor) {
        (Some("none"), _) | (Some("linear") | None, None) => return Ok(Json::Null),
        (kind, _) => kind.unwrap_or("linear"),
    };
    let mut rope = Map::new();
    rope.insert("rope_type".into(), kind.into());
    insert_float(&mut rope, "factor", factor);
    if let Some(context) = source.keys.size("rope.scaling.original_context_length")? {
        rope.insert("original_max_position_embeddings".into(), context.into());
    }
    for (key, told) in [
        ("attention_factor", "rope.scaling.yarn_attn_factor"),
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ] {
        insert_float(&mut rope, key, source.keys.float(told)?);
    }
    Ok(Json::Object(rope))
}

/// The size of the vocabulary and its special tokens, which GGUF stores with the tokenizer.
pub(super) fn vocabulary(source: &Source<'_>, config: &mut Map<String, Json>) -> Result<()> {
    let rows = source.tensor("token_embd.weight").map(crate::TensorEntry::rows);
    // A file of the vocabulary alone has no embedding.
    let told = source.keys.size("vocab_size")?.or(source.keys.array("tokenizer.ggml.tokens")?.map(crate::Array::len));
    if let Some(size) = rows.or(told) {
        config.insert("vocab_size".into(), size.into());
    }
    for (key, told) in [("bos_token_id", "bos"), ("pad_token_id", "padding")] {
        if let Some(id) = source.keys.number(&format!("tokenizer.ggml.{told}_token_id"))? {
            config.insert(key.to_owned(), id.into());
        }
    }
    // A model may end a text, a turn and a message with different tokens.
    let mut ends: Vec<u64> = Vec::new();
    for told in ["eos", "eot", "eom"] {
        let id = source.keys.number(&format!("tokenizer.ggml.{told}_token_id"))?;
        ends.extend(id.filter(|id| !ends.contains(id)));
    }
    match ends.as_slice() {
        [] => None,
        [end] => config.insert("eos_token_id".into(), (*end).into()),
        _ => config.insert("eos_token_id".into(), ends.into()),
    };
    Ok(())
}

fn insert_float(map: &mut Map<String, Json>, key: &str, value: Option<Float>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.into());
    }
}
