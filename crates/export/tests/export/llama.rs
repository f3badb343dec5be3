//! Llama and its kin: what a configuration means by what it does not say, and what it may not say.

use crate::tiny::{exact, folder};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{ExportError, Recipe, ScaleType, export};
use serde_json::{Value, json};
use std::path::Path;

/// The program of a tiny model whose configuration is changed.
fn exported(name: &str, change: impl FnOnce(&mut Value)) -> Result<Vec<u8>, ExportError> {
    let path = folder(name).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut config);
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("llama-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&scratch).unwrap();
    std::fs::write(scratch.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(folder(name).join("model.safetensors"), scratch.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&scratch, &Limits::default()).unwrap();
    let mut bytes = Vec::new();
    let written = export(&checkpoint, &exact()).and_then(|export| export.write(&mut bytes, &mut |_| {}));
    std::fs::remove_dir_all(&scratch).unwrap();
    written.map(|()| bytes)
}

/// The program of a tiny model with these settings, of which null ones are not there.
fn exported_with(name: &str, settings: &Value) -> Result<Vec<u8>, ExportError> {
    exported(name, |config| {
        let config = config.as_object_mut().unwrap();
        for (key, value) in settings.as_object().unwrap() {
            match value {
                Value::Null => config.remove(key),
                value => config.insert(key.clone(), value.clone()),
            };
        }
    })
}

#[test]
fn what_is_not_said_means_what_transformers_takes_it_for() {
    for (name, unsaid, said) in [
        // As SmolLM3 is published: its own default is to be tied.
        ("smollm3", json!({ "tie_word_embeddings": null }), json!({ "tie_word_embeddings": true })),
        (
            "smollm3",
            json!({ "no_rope_layers": null, "no_rope_layer_interval": null }),
            json!({ "no_rope_layers": [1, 1, 1, 0] }),
        ),
        ("smollm3", json!({ "rope_parameters": null }), json!({ "rope_parameters": { "rope_theta": 2_000_000.0 } })),
        (
            "qwen2",
            json!({ "layer_types": null, "use_sliding_window": null, "max_window_layers": 0 }),
            json!({ "layer_types": null, "use_sliding_window": false, "max_window_layers": 0 }),
        ),
        (
            "mistral",
            json!({ "sliding_window": null, "max_position_embeddings": 8192 }),
            json!({ "sliding_window": 4096, "max_position_embeddings": 8192 }),
        ),
        ("llama", json!({ "sliding_window": 5 }), json!({ "sliding_window": null })),
    ] {
        let [unsaid, said] = [unsaid, said].map(|settings| (exported_with(name, &settings).unwrap(), settings));
        assert!(unsaid.0 == said.0, "{name}: {} is not {}", unsaid.1, said.1);
    }
}

#[test]
fn windows_are_where_transformers_has_them() {
    let windows = json!({ "use_sliding_window": true, "sliding_window": 5, "layer_types": null });
    let listed = ["full_attention", "sliding_attention", "full_attention"];
    let mut with_list = windows.clone();
    with_list["layer_types"] = json!(listed);
    // Layers of SmolLM3 without positions, of which the tiny one has one.
    assert!(exported_with("smollm3", &windows).unwrap() == exported_with("smollm3", &with_list).unwrap());
    assert!(exported_with("smollm3", &windows).unwrap() != exported_with("smollm3", &json!({})).unwrap());
}

#[test]
fn a_kind_of_rotary_positions_may_be_told_twice() {
    let rope = |names: &[&str]| {
        let mut rope = json!({ "factor": 4.0 });
        names.iter().for_each(|name| rope[*name] = json!("linear"));
        exported_with("llama", &json!({ "rope_parameters": null, "rope_scaling": rope })).unwrap()
    };
    let both = rope(&["type", "rope_type"]);
    assert!(both == rope(&["type"]) && both == rope(&["rope_type"]));
    assert!(both != exported_with("llama", &json!({})).unwrap());
}

#[test]
fn settings_that_would_change_what_is_computed_are_refused_by_name() {
    for (settings, wanted) in [
        (json!({ "partial_rotary_factor": 0.5 }), "config: `partial_rotary_factor` is 0.5, which is not supported"),
        (
            json!({ "layer_types": ["chunked_attention", "full_attention", "full_attention"] }),
            "config: unknown variant `chunked_attention`",
        ),
        (json!({ "layer_types": ["full_attention"] }), "config: `layer_types` is a list of 1"),
        (json!({ "no_rope_layers": [1] }), "config: `no_rope_layers` is a list of 1"),
        (json!({ "rms_norm_eps": -1.0 }), "config: -1 is no epsilon of a norm"),
        (json!({ "rms_norm_eps": 1e60 }), "config: inf is no epsilon of a norm"),
        (json!({ "head_dim": 7 }), "config: `head_dim` is 7, but has to be even"),
        (json!({ "rope_parameters": { "rope_theta": -5.0 } }), "config: `rope_theta` is -5"),
        (json!({ "rope_parameters": { "rope_theta": 1e60 } }), "config: `rope_theta` is inf"),
        (json!({ "rope_parameters": { "rope_type": "yarn" } }), "config: `factor` is missing"),
        (
            json!({ "rope_parameters": { "rope_type": "yarn", "factor": 2.0, "attention_factor": -1.0 } }),
            "config: `rope_parameters` is of type `yarn` with numbers that contradict each other",
        ),
    ] {
        let error = exported_with("llama", &settings).expect_err("is refused").to_string();
        assert!(error.starts_with(wanted), "{error}\nwanted: {wanted}");
    }
}

#[test]
fn weights_that_f16_cannot_hold_are_refused_by_name() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llama-too-large");
    std::fs::create_dir_all(&scratch).unwrap();
    std::fs::copy(folder("llama").join("config.json"), scratch.join("config.json")).unwrap();
    let mut weights = std::fs::read(folder("llama").join("model.safetensors")).unwrap();
    *weights.last_chunk_mut().unwrap() = 70_000_f32.to_le_bytes();
    std::fs::write(scratch.join("model.safetensors"), weights).unwrap();
    let checkpoint = Checkpoint::open(&scratch, &Limits::default()).unwrap();
    let write = |dtype| {
        let export = export(&checkpoint, &Recipe { dtype, ..Recipe::default() }).unwrap();
        export.write(&mut Vec::new(), &mut |_| {})
    };
    write(ScaleType::Bf16).unwrap();
    let error = write(ScaleType::F16).expect_err("is refused").to_string();
    assert!(error.contains("are not finite, or too large for the type f16"), "{error}");
    std::fs::remove_dir_all(&scratch).unwrap();
}
