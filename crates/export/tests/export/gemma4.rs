//! Gemma 4: what its configurations may not say, and whose weights they may not lack.

use crate::tiny::{exact, folder, open};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{Recipe, export};
use serde_json::{Value, json};
use std::path::Path;

/// What export says of a tiny model whose configuration is changed.
fn refused(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let path = folder(name).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut config);
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gemma4-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&scratch).unwrap();
    std::fs::write(scratch.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(folder(name).join("model.safetensors"), scratch.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&scratch, &Limits::default()).unwrap();
    let error = export(&checkpoint, &exact()).expect_err("is refused").to_string();
    std::fs::remove_dir_all(&scratch).unwrap();
    error
}

/// The same, with one setting changed.
pub(crate) fn refused_with(name: &str, key: &str, value: Value) -> String {
    refused(name, |config| config[key] = value)
}

#[test]
fn what_is_not_dense_or_not_causal_is_refused_by_name() {
    for (key, value, wanted) in [
        ("enable_moe_block", json!(true), "config: `enable_moe_block` is true, which is not supported"),
        (
            "use_bidirectional_attention",
            json!("all"),
            "config: `use_bidirectional_attention` is `all`, which is not supported",
        ),
        ("layer_types", json!(vec!["chunked"; 6]), "config: `layer_types` is `chunked`, which is not supported"),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_type": "longrope"}}),
            "config: `rope_type` is `longrope`, which is not supported",
        ),
        ("hidden_activation", json!("relu"), "config: `hidden_activation` is `relu`, which is not supported"),
    ] {
        assert_eq!(refused_with("gemma4", key, value), wanted);
    }
}

#[test]
fn settings_that_make_no_model_are_refused_by_name() {
    for (key, value, wanted) in [
        (
            "layer_types",
            json!(["full_attention"]),
            "config: `layer_types` is a list of 1, but has to be a list of all layers",
        ),
        ("sliding_window", json!(null), "config: `sliding_window` is null, but has to be a number of positions"),
        (
            "num_kv_shared_layers",
            json!(5),
            "config: `num_kv_shared_layers` is 5, but has to be few enough that each kind of layers has keys",
        ),
        (
            "final_logit_softcapping",
            json!(-1.0),
            "config: `final_logit_softcapping` is -1, but has to be a number above zero",
        ),
        (
            "per_layer_config",
            json!({"6": {"head_dim": 4}}),
            "config: `per_layer_config` is about `6`, but has to be about layers, by their numbers",
        ),
        (
            "per_layer_config",
            json!({"2": {"head_dim": 4}}),
            "config: `per_layer_config` is different for layers of one kind, which is not supported",
        ),
        (
            "num_global_key_value_heads",
            json!(3),
            "config: `num_key_value_heads` is 3 for 4, but has to be a divisor of it",
        ),
    ] {
        assert_eq!(refused_with("gemma4", key, value), wanted);
    }
    let unknown = refused_with("gemma4", "per_layer_config", json!({"2": {"skip": true}}));
    assert!(unknown.contains("unknown field `skip`"), "{unknown}");
    let flat = refused_with("gemma4", "rope_parameters", json!({"rope_theta": 10000.0}));
    assert!(flat.contains("unknown field `rope_theta`"), "{flat}");
}

#[test]
fn tensors_that_are_missing_misshapen_or_too_many_are_told_by_name() {
    let wide = refused_with("gemma4", "intermediate_size", json!(24));
    assert!(wide.contains("model.layers.0.mlp.gate_proj.weight"), "{wide}");
    let values = refused_with("gemma4", "attention_k_eq_v", json!(false));
    assert!(values.contains("model.layers.2.self_attn.v_proj.weight"), "{values}");
    let inputs = refused_with("gemma4_per_layer", "hidden_size_per_layer_input", json!(0));
    assert!(inputs.contains("model.embed_tokens_per_layer.weight"), "{inputs}");
    let untied = refused_with("gemma4", "tie_word_embeddings", json!(false));
    assert!(untied.contains("lm_head.weight"), "{untied}");
    // Eyes are passed over only where there is a model of text beside them.
    let part = refused("gemma4_small", |config| config["text_config"]["num_kv_shared_layers"] = json!(0));
    assert!(part.contains("model.language_model.layers.3.self_attn.k_proj.weight"), "{part}");
    assert!(!part.contains("vision"), "{part}");
}

#[test]
fn s4_1_capped_logits_are_singles_whatever_the_activations_are() {
    let program = crate::tiny::program(&open(&folder("gemma4")), &Recipe::default());
    let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
    let output = graph.output_map[0].slot();
    let ptero_pte::Slot::Tensor(output) = output else { panic!("{output:?}") };
    let meta = graph.meta(output).unwrap();
    assert_eq!(meta.shape.iter().map(|dim| dim.value).collect::<Vec<_>>(), [1, 96]);
    assert_eq!(meta.scalar_type, ptero_pte::DType::F32);
}
