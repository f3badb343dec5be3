//! Which weights a recipe stores how, in every family, and the size of groups that the exporter chooses.

use crate::tiny::{folder, open, program};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{ModelWeights, Recipe, Storage, bits_per_weight, export, model_weights};
use ptero_pte::{Node, Slot, Verified};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn int4() -> Recipe {
    Recipe { linear: Storage::Int4, embedding: Storage::Int8, ..Recipe::default() }
}

fn mixed() -> Recipe {
    Recipe { sensitive: Some(Storage::Int8), ..int4() }
}

/// A tiny model with random weights and another configuration.
fn random(model: &str, changes: Value) -> Checkpoint {
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder(model).join("config.json")).unwrap()).unwrap();
    let known = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    known.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recipe-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let path = scratch.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let checkpoint = Checkpoint::random(&path, 7, None, &Limits::default()).unwrap();
    std::fs::remove_dir_all(scratch).unwrap();
    checkpoint
}

/// The bits of each quantized matrix of products, by its name in the program without the prefix of the model.
fn bits(program: &Verified) -> BTreeMap<String, i32> {
    let (_, graph) = program.method("forward").unwrap().mlx_delegates().next().unwrap();
    let names: BTreeMap<u32, &str> = graph
        .named_slots
        .iter()
        .filter_map(|named| match named.slot.slot() {
            Slot::Tensor(slot) => Some((slot, named.name.as_str())),
            Slot::Value(_) => None,
        })
        .collect();
    let weight = |node: &Node| match node {
        Node::QuantizedMatmul(node) => Some((node.w.0, node.bits)),
        Node::GatherQmm(node) => Some((node.w.0, node.bits)),
        _ => None,
    };
    let short = |name: &str| name.strip_prefix("model.").unwrap_or(name).trim_end_matches(".weight").to_owned();
    let nodes = graph.instruction_chains.iter().flatten().filter_map(weight);
    nodes.map(|(slot, bits)| (short(names[&slot]), bits)).collect()
}

#[track_caller]
fn check(checkpoint: &Checkpoint, wanted: &[(&str, i32)]) {
    let found = bits(&program(checkpoint, &mixed()));
    let wanted: BTreeMap<String, i32> = wanted.iter().map(|(name, bits)| ((*name).to_owned(), *bits)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn values_down_projections_outer_layers_and_the_head_have_eight_bits() {
    let llama = random("llama_biases", json!({ "intermediate_size": 64, "attention_bias": true }));
    check(
        &llama,
        &[
            ("layers.0.self_attn.qkv_proj", 8),
            ("layers.0.self_attn.o_proj", 8),
            ("layers.0.mlp.gate_up_proj", 8),
            ("layers.0.mlp.down_proj", 8),
            ("layers.1.self_attn.qk_proj", 4),
            ("layers.1.self_attn.v_proj", 8),
            ("layers.1.self_attn.o_proj", 4),
            ("layers.1.mlp.gate_up_proj", 4),
            ("layers.1.mlp.down_proj", 8),
            ("layers.2.self_attn.qkv_proj", 8),
            ("layers.2.self_attn.o_proj", 8),
            ("layers.2.mlp.gate_up_proj", 8),
            ("layers.2.mlp.down_proj", 8),
            ("lm_head", 8),
        ],
    );
}

#[test]
fn stacks_of_experts_are_stored_as_one_matrix_is_and_linear_attention_has_no_values_of_its_own() {
    let kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"];
    let moe = random("qwen3_5_moe_groups", json!({ "num_hidden_layers": 4, "layer_types": kinds }));
    let found = bits(&program(&moe, &mixed()));
    for (name, wanted) in [
        ("layers.0.linear_attn.in_proj", 8),
        ("layers.0.mlp.experts.gate_up_proj", 8),
        ("layers.1.linear_attn.in_proj", 4),
        ("layers.1.linear_attn.out_proj", 4),
        ("layers.1.mlp.experts.gate_up_proj", 4),
        ("layers.1.mlp.experts.down_proj", 8),
        ("layers.1.mlp.shared_expert.gate_up_proj", 4),
        ("layers.1.mlp.shared_expert.down_proj", 8),
        ("layers.2.self_attn.qk_proj", 4),
        ("layers.2.self_attn.v_proj", 8),
        ("layers.2.self_attn.o_proj", 4),
        ("layers.3.mlp.experts.down_proj", 8),
        ("layers.3.linear_attn.out_proj", 8),
        ("lm_head", 8),
    ] {
        assert_eq!(found.get(name), Some(&wanted), "{name}: {found:?}");
    }
}

#[test]
fn keys_that_are_values_too_have_eight_bits() {
    let changes = json!({ "global_head_dim": 16, "num_global_key_value_heads": 2 });
    let found = bits(&program(&random("gemma4", changes), &mixed()));
    // Layer 1 has a sliding window and values, layer 2 full attention whose values are its keys.
    for (name, wanted) in [
        ("layers.1.self_attn.qk_proj", 4),
        ("layers.1.self_attn.v_proj", 8),
        ("layers.2.self_attn.q_proj", 4),
        ("layers.2.self_attn.k_proj", 8),
        ("layers.2.mlp.down_proj", 8),
        ("embed_tokens", 8),
    ] {
        assert_eq!(found.get(name), Some(&wanted), "{name}: {found:?}");
    }
}

#[test]
fn a_model_of_two_outer_layers_is_the_one_of_eight_bits_to_the_byte() {
    let checkpoint = open(&folder("qwen3_5_moe_groups"));
    let written = |recipe: &Recipe| {
        let mut bytes = Vec::new();
        export(&checkpoint, recipe).unwrap().write(&mut bytes, &mut |_| {}).unwrap();
        bytes
    };
    let int8 = Recipe { linear: Storage::Int8, ..int4() };
    assert!(written(&mixed()) == written(&int8));
    assert!(written(&mixed()) != written(&int4()));
}

/// A configuration of a real model.
fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/configs").join(name)
}

#[test]
fn groups_of_four_bits_are_larger_above_a_billion_parameters() {
    let path = config("Llama-3.2-1B.json");
    let whole = Checkpoint::random(&path, 0, None, &Limits::default()).unwrap();
    // Of a model that loses layers, all count: its layers are stored as in the whole model.
    let short = Checkpoint::random(&path, 0, Some(1), &Limits::default()).unwrap();
    for checkpoint in [&whole, &short] {
        let found = ModelWeights { parameters: 1_235_814_400, are_in_groups: false };
        assert_eq!(model_weights(checkpoint).unwrap(), found);
    }
    let tiny = open(&folder("llama"));
    let int8 = Recipe { linear: Storage::Int8, ..int4() };
    let given = |group| Recipe { group: Some(group), ..int4() };
    for (checkpoint, recipe, wanted) in [
        (&whole, int4(), 64),
        (&whole, mixed(), 64),
        (&short, int4(), 64),
        (&tiny, int4(), 32),
        (&whole, int8, 32),
        (&whole, given(32), 32),
        (&tiny, given(128), 128),
    ] {
        let export = export(checkpoint, &recipe).unwrap();
        assert_eq!(export.recipe, Recipe { group: Some(wanted), ..recipe });
    }
}

#[test]
fn a_billion_parameters_are_not_more_than_a_billion() {
    let weights = |parameters: u64| ModelWeights { parameters, are_in_groups: false };
    let group = |recipe: Recipe, parameters: u64| recipe.resolve(|| Ok::<_, ()>(weights(parameters))).unwrap().group;
    assert_eq!(group(int4(), 1_000_000_000), Some(32));
    assert_eq!(group(int4(), 1_000_000_001), Some(64));
    assert_eq!(group(Recipe::default(), u64::MAX), Some(32));
    // A model is not counted without need.
    assert_eq!(Recipe { group: Some(32), ..int4() }.resolve(|| Err(())).unwrap().group, Some(32));
    assert_eq!(int4().resolve(|| Err("is not there")).unwrap_err(), "is not there");
}

#[test]
fn weights_in_blocks_of_32_stay_in_groups_of_32() {
    let are_in_groups = |model: &str| model_weights(&open(&folder(model))).unwrap().are_in_groups;
    assert!(are_in_groups("qwen2_blocks"));
    // A GGUF file may hold plain floats, too.
    assert!(!are_in_groups("llama_gguf") && !are_in_groups("llama"));
    let group = |recipe: Recipe, are_in_groups: bool| {
        let weights = ModelWeights { parameters: 8_000_000_000, are_in_groups };
        recipe.resolve(|| Ok::<_, ()>(weights)).unwrap().group
    };
    for recipe in [int4(), mixed()] {
        assert_eq!([false, true].map(|are_in_groups| group(recipe.clone(), are_in_groups)), [Some(64), Some(32)]);
        // Whoever asks for larger groups gets them.
        assert_eq!(group(Recipe { group: Some(128), ..recipe }, true), Some(128));
    }
}

#[test]
fn forms_are_counted_and_add_up() {
    let checkpoint = Checkpoint::random(&config("Llama-3.2-1B.json"), 0, None, &Limits::default()).unwrap();
    for (recipe, wanted) in [
        (int4(), vec![("int4 in groups of 64", 64), ("int8 in groups of 64", 1), ("bf16", 33)]),
        // 14 layers between the outer two, each with v_proj and down_proj in eight bits.
        (mixed(), vec![("int8 in groups of 64", 37), ("int4 in groups of 64", 42), ("bf16", 33)]),
        (Recipe::default(), vec![("bf16", 98)]),
    ] {
        let export = export(&checkpoint, &recipe).unwrap();
        let forms = export.forms();
        let found: Vec<(&str, usize)> = forms.iter().map(|form| (form.form.as_str(), form.tensors)).collect();
        assert_eq!(found, wanted);
        assert_eq!(forms.iter().map(|form| form.weights).sum::<u64>(), model_weights(&checkpoint).unwrap().parameters);
        assert_eq!(forms.iter().map(|form| form.bytes).sum::<u64>(), export.weight_bytes());
        // Codes, and a scale and a bias of two bytes for each group.
        for form in &forms {
            let bits = match form.form.as_str() {
                "int4 in groups of 64" => 4.5,
                "int8 in groups of 64" => 8.5,
                _ => 16.0,
            };
            assert_eq!(form.bits_per_weight(), bits, "{}", form.form);
        }
    }
    assert_eq!(bits_per_weight(&[]), 0.0);
}
