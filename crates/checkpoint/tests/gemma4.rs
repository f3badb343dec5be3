//! GGUF files of Gemma 4 look like the Hugging Face folders that llama.cpp's converter made them from.

mod common;

use common::{array, gguf, read_gguf, refusal, text};
use ptero_checkpoint::{Checkpoint, Limits};
use serde_json::{Value, json};
use std::path::Path;

fn golden(name: &str) -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    Checkpoint::open(&path, &Limits::DEFAULT).expect("sound")
}

fn text_config(checkpoint: &Checkpoint) -> Value {
    let config = checkpoint.config().expect("a known architecture");
    config.get("text_config").unwrap_or(config).clone()
}

#[test]
fn files_of_llama_cpps_converter_are_the_folders_they_were_made_from() {
    for (name, prefix) in [("gemma4", "model."), ("gemma4_small", "model.language_model.")] {
        let (folder, file) = (golden(name), golden(&format!("{name}_gguf/model.gguf")));
        let of_text: Vec<_> = folder.tensors().filter(|(name, _)| name.starts_with(prefix)).collect();
        assert_eq!(file.tensors().len(), of_text.len() + 1, "and the factors of frequencies");
        for (name, wanted) in of_text {
            let tensor = file.tensor(&name.replace(prefix, "model.")).unwrap();
            assert_eq!(tensor.shape(), wanted.shape(), "{name}");
            assert_eq!(tensor.bytes()[..], wanted.bytes()[..], "{name}");
        }
        let (told, wanted) = (text_config(&file), text_config(&folder));
        for key in [
            "model_type",
            "hidden_activation",
            "hidden_size",
            "intermediate_size",
            "use_double_wide_mlp",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "attention_k_eq_v",
            "attention_bias",
            "layer_types",
            "sliding_window",
            "num_kv_shared_layers",
            "hidden_size_per_layer_input",
            "final_logit_softcapping",
            "enable_moe_block",
            "rms_norm_eps",
            "vocab_size",
            "max_position_embeddings",
            "tie_word_embeddings",
            "bos_token_id",
            "eos_token_id",
        ] {
            assert_eq!(told.get(key), wanted.get(key), "{name}: {key}");
        }
        // A table that is not there has no size.
        if let Some(rows) = told.get("vocab_size_per_layer_input") {
            assert_eq!(rows, &wanted["vocab_size_per_layer_input"], "{name}");
        }
        assert_eq!(told.get("vocab_size_per_layer_input").is_some(), name == "gemma4_small");
        let full = json!({"rope_type": "default", "rope_theta": 1000.0, "rope_freqs": "rope_freqs.weight"});
        let sliding = json!({"rope_type": "default", "rope_theta": 100.0});
        assert_eq!(told["rope_parameters"], json!({"full_attention": full, "sliding_attention": sliding}));
        let heads = if name == "gemma4" { 1 } else { 2 };
        assert_eq!(told["per_layer_config"]["2"], json!({"head_dim": 16, "num_key_value_heads": heads}));
        assert_eq!(told["per_layer_config"]["3"], json!({"head_dim": 8, "num_key_value_heads": 2}));
    }
}

const U32: u32 = 4;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A file of two layers with these values in the place of sound ones.
fn refused(changes: &[(&str, u32, Vec<u8>)]) -> String {
    let number = |value: u32| (U32, value.to_le_bytes().to_vec());
    let sound = [
        ("general.architecture", (STRING, text("gemma4"))),
        ("gemma4.block_count", number(2)),
        ("gemma4.embedding_length", number(8)),
        ("gemma4.feed_forward_length", number(8)),
        ("gemma4.context_length", number(64)),
        ("gemma4.attention.head_count", number(2)),
        ("gemma4.attention.head_count_kv", number(1)),
        ("gemma4.attention.key_length", number(8)),
        ("gemma4.attention.key_length_swa", number(4)),
        ("gemma4.attention.sliding_window", number(4)),
        ("gemma4.attention.sliding_window_pattern", (ARRAY, [array(BOOL, 2), vec![1, 0]].concat())),
        ("gemma4.attention.layer_norm_rms_epsilon", (F32, 1e-6_f32.to_le_bytes().to_vec())),
    ];
    let kept = sound.iter().filter(|(key, _)| changes.iter().all(|(other, ..)| other != key));
    let pairs: Vec<_> = kept.map(|(key, (kind, value))| (*key, *kind, value.as_slice())).collect();
    let changes = changes.iter().map(|(key, kind, value)| (*key, *kind, value.as_slice()));
    refusal(read_gguf(gguf(&pairs.into_iter().chain(changes).collect::<Vec<_>>(), &[], 32, 0)))
}

#[test]
fn lists_that_do_not_fit_the_layers_are_refused() {
    let list = |values: &[u32]| {
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        [array(U32, (values.len() / 4) as u64), values].concat()
    };
    let each = "not a whole number above zero, or one for each layer";
    let pattern = "gemma4.attention.sliding_window_pattern";
    let unread = "a value that ptero does not support";
    for (key, kind, value, wanted) in [
        ("gemma4.attention.head_count_kv", ARRAY, list(&[1, 1, 1]), each),
        ("gemma4.attention.head_count_kv", ARRAY, list(&[1, 0]), each),
        ("gemma4.feed_forward_length", ARRAY, list(&[8, 9]), unread),
        ("gemma4.attention.value_length", U32, 4_u32.to_le_bytes().to_vec(), unread),
        ("gemma4.rope.scaling.type", STRING, text("yarn"), unread),
        ("gemma4.attention.causal", BOOL, vec![0], unread),
        ("gemma4.rope.dimension_count_swa", U32, 2_u32.to_le_bytes().to_vec(), unread),
        (pattern, ARRAY, [array(BOOL, 1), vec![1]].concat(), "not a list of bools, one for each layer"),
        (pattern, U32, 6_u32.to_le_bytes().to_vec(), "not a list of bools, one for each layer"),
    ] {
        assert_eq!(refused(&[(key, kind, value)]), format!("key `{key}`: {wanted}"));
    }
}
