//! Gemma 4: layers with a sliding window and layers with full attention, which differ in their sizes.

use super::llama::{ROPE_FREQS, causal, layers, rope_scaling, vocabulary};
use super::{Names, Source};
use crate::gguf::keys::Float;
use crate::{Fault, Result, TensorEntry};
use serde_json::{Map, Value as Json, json};

pub(super) const WHOLE: &Names = &[
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
];

pub(super) const IN_LAYER: &Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    // A number per layer; Hugging Face's name does not end in `weight`.
    ("layer_output_scale.weight", "layer_scalar"),
];

/// The whole config. Missing projections of values mean that the values are the projections of the keys.
pub(super) fn gemma4(source: &Source<'_>) -> Result<Map<String, Json>> {
    causal(source)?;
    let count = layers(source)?;
    let windows = source.keys.flags("attention.sliding_window_pattern", count)?;
    let shared = source.keys.number("attention.shared_kv_layers")?.unwrap_or(0);
    let mut config = Map::new();
    let mut insert = |key: &str, value: Json| config.insert(key.to_owned(), value);
    insert("model_type", "gemma4_text".into());
    insert("hidden_activation", "gelu_pytorch_tanh".into());
    insert("hidden_size", source.keys.needed_size("embedding_length")?.into());
    insert("num_hidden_layers", count.into());
    insert("num_attention_heads", source.keys.needed_size("attention.head_count")?.into());
    insert("max_position_embeddings", source.keys.needed_size("context_length")?.into());
    insert("rms_norm_eps", source.keys.needed_float("attention.layer_norm_rms_epsilon")?.into());
    insert("sliding_window", source.keys.needed_size("attention.sliding_window")?.into());
    insert("num_kv_shared_layers", shared.into());
    insert("final_logit_softcapping", source.keys.float("final_logit_softcapping")?.map_or(Json::Null, Json::from));
    insert("enable_moe_block", source.keys.number("expert_count")?.is_some_and(|experts| experts > 0).into());
    insert("tie_word_embeddings", source.tensor("output.weight").is_none().into());
    insert("attention_bias", source.tensor("blk.0.attn_q.bias").is_some().into());
    insert("hidden_size_per_layer_input", source.keys.number("embedding_length_per_layer_input")?.unwrap_or(0).into());
    if let Some(table) = source.tensor("per_layer_token_embd.weight") {
        insert("vocab_size_per_layer_input", TensorEntry::rows(table).into());
    }
    feed_forward(source, &mut config, count, shared)?;
    attention(source, &mut config, &windows)?;
    config.insert("rope_parameters".to_owned(), rope(source)?);
    vocabulary(source, &mut config)?;
    Ok(config)
}

/// One width, or twice that for the layers that reuse the keys of others.
fn feed_forward(source: &Source<'_>, config: &mut Map<String, Json>, count: u64, shared: u64) -> Result<()> {
    let key = "feed_forward_length";
    let widths = source.keys.sizes(key, count)?;
    let narrow = widths.first().copied().unwrap_or(0);
    let first_shared = count.saturating_sub(shared);
    let is_double = (0..).zip(&widths).any(|(layer, width)| layer >= first_shared && *width != narrow);
    let wanted = |layer: u64| if is_double && layer >= first_shared { narrow.saturating_mul(2) } else { narrow };
    if (0..).zip(&widths).any(|(layer, width)| *width != wanted(layer)) {
        return source.keys.refuse(key, Fault::UnsupportedValue);
    }
    config.insert("intermediate_size".to_owned(), narrow.into());
    config.insert("use_double_wide_mlp".to_owned(), is_double.into());
    Ok(())
}

/// Heads of both kinds of layers; `per_layer_config` lists them layer by layer.
fn attention(source: &Source<'_>, config: &mut Map<String, Json>, windows: &[bool]) -> Result<()> {
    let [wide, narrow] = [("", "rope.dimension_count"), ("_swa", "rope.dimension_count_swa")].map(|(kind, turned)| {
        let width = source.keys.needed_size(&format!("attention.key_length{kind}"))?;
        let values = format!("attention.value_length{kind}");
        for key in [values.as_str(), turned] {
            if source.keys.size(key)?.is_some_and(|other| other != width) {
                return source.keys.refuse(key, Fault::UnsupportedValue);
            }
        }
        Ok(width)
    });
    let (wide, narrow) = (wide?, narrow?);
    let heads = source.keys.sizes("attention.head_count_kv", windows.len() as u64)?;
    let of_windows = heads.iter().zip(windows).find(|(_, slides)| **slides).map(|(heads, _)| *heads);
    config.insert("head_dim".to_owned(), narrow.into());
    config.insert("num_key_value_heads".to_owned(), of_windows.or(heads.first().copied()).unwrap_or(0).into());
    let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    config.insert("layer_types".to_owned(), windows.iter().map(kind).collect());
    let layers = windows.iter().zip(heads).enumerate();
    let own = layers.map(|(layer, (slides, heads))| {
        let head_dim = if *slides { narrow } else { wide };
        (layer.to_string(), json!({ "head_dim": head_dim, "num_key_value_heads": heads }))
    });
    config.insert("per_layer_config".to_owned(), Json::Object(own.collect()));
    let lacks_values = |(layer, slides): (usize, &bool)| {
        let has = |name: &str| source.tensor(&format!("blk.{layer}.{name}.weight")).is_some();
        !slides && has("attn_k") && !has("attn_v")
    };
    config.insert("attention_k_eq_v".to_owned(), windows.iter().enumerate().any(lacks_values).into());
    Ok(())
}

/// Layers with full attention rotate only some of their pairs, which a tensor specifies.
fn rope(source: &Source<'_>) -> Result<Json> {
    if !rope_scaling(source)?.is_null() {
        return source.keys.refuse("rope.scaling.type", Fault::UnsupportedValue);
    }
    let base = |key: &str| Ok::<_, crate::Error>(Json::from(source.keys.float(key)?.unwrap_or(Float::new(10000.0))));
    let mut full = json!({ "rope_type": "default", "rope_theta": base("rope.freq_base")? });
    if let (Some(_), Json::Object(full)) = (source.tensor(ROPE_FREQS), &mut full) {
        full.insert("rope_freqs".to_owned(), ROPE_FREQS.into());
    }
    let sliding = json!({ "rope_type": "default", "rope_theta": base("rope.freq_base_swa")? });
    Ok(json!({ "full_attention": full, "sliding_attention": sliding }))
}
