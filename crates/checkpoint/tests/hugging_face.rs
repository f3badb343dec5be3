//! GGUF files of known architectures look like Hugging Face folders; whatever their metadata says, nothing else happens.

mod common;

use common::{array, gguf, read_gguf, refusal, text};
use ptero_checkpoint::{Checkpoint, Kind, Limits, Result};
use serde_json::{Value, json};
use std::path::Path;

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A key, the type of its value, the value.
type Pair = (String, u32, Vec<u8>);

fn number(key: &str, value: u32) -> Pair {
    (key.to_owned(), U32, value.to_le_bytes().to_vec())
}

fn float(key: &str, value: f32) -> Pair {
    (key.to_owned(), F32, value.to_le_bytes().to_vec())
}

fn word(key: &str, value: &str) -> Pair {
    (key.to_owned(), STRING, text(value))
}

/// The keys that every architecture of the shape of Llama must have.
fn needed(architecture: &str) -> Vec<Pair> {
    let key = |key: &str| format!("{architecture}.{key}");
    vec![
        word("general.architecture", architecture),
        number(&key("embedding_length"), 8),
        number(&key("attention.head_count"), 2),
        number(&key("feed_forward_length"), 12),
        number(&key("block_count"), 1),
        number(&key("context_length"), 64),
        float(&key("attention.layer_norm_rms_epsilon"), 1e-5),
    ]
}

/// Reads a file of these pairs and f32 tensors of 8 elements, four rows each.
fn read(pairs: &[Pair], names: &[&str]) -> Result<Checkpoint> {
    let pairs: Vec<_> = pairs.iter().map(|(key, kind, value)| (key.as_str(), *kind, value.as_slice())).collect();
    let rows: Vec<_> = names.iter().zip(0_u64..).map(|(name, at)| (*name, [2, 4].as_slice(), 0, at * 32)).collect();
    read_gguf(gguf(&pairs, &rows, 32, names.len() * 32))
}

fn config(pairs: &[Pair], names: &[&str]) -> Value {
    read(pairs, names).expect("sound").config().expect("a known architecture").clone()
}

/// The needed keys of `llama` and these.
fn llama_and(more: &[Pair]) -> Vec<Pair> {
    needed("llama").into_iter().chain(more.iter().cloned()).collect()
}

fn golden(name: &str) -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    Checkpoint::open(&path, &Limits::DEFAULT).expect("sound")
}

#[test]
fn a_known_architecture_has_a_config_and_hugging_faces_names() {
    let names =
        ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_norm.weight", "blk.0.odd.weight", "output_norm.weight"];
    let file = read(&needed("llama"), &names).unwrap();
    let renamed: Vec<_> = file.tensors().map(|(name, _)| name).collect();
    let wanted = [
        "blk.0.odd.weight",
        "model.embed_tokens.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ];
    assert_eq!(renamed, wanted);
    assert_eq!(file.tensor("model.layers.0.self_attn.q_proj.weight").unwrap().shape(), [4, 2]);
    assert!(file.tensor("blk.0.attn_q.weight").is_err());
    assert_eq!(file.metadata()["llama.block_count"].as_u64(), Some(1), "metadata stays in GGUF's words");
    let told = json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 4, "intermediate_size": 12, "num_hidden_layers": 1, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null, "rope_interleaved": true,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "vocab_size": 4,
    });
    assert_eq!(file.config(), Some(&told));
}

#[test]
fn files_of_other_architectures_keep_their_names_and_have_no_config() {
    for pairs in [vec![], needed("tiny"), vec![number("general.architecture", 3)], needed("llama ")] {
        let file = read(&pairs, &["blk.0.attn_q.weight"]).unwrap();
        assert_eq!(file.config(), None);
        assert!(file.tensor("blk.0.attn_q.weight").is_ok());
    }
}

#[test]
fn each_architecture_says_how_its_rotary_pairs_lie() {
    let known = [("llama", true), ("mistral3", true), ("smollm3", true), ("qwen2", false), ("qwen3", false)];
    for (architecture, interleaved) in known {
        let config = config(&needed(architecture), &[]);
        assert_eq!(config["rope_interleaved"], interleaved, "{architecture}");
        assert_eq!(config["model_type"], if architecture == "mistral3" { "mistral" } else { architecture });
        assert_eq!(config["no_rope_layer_interval"] == 4, architecture == "smollm3");
    }
    let ministral = [
        needed("mistral3"),
        vec![
            float("mistral3.attention.temperature_scale", 0.1),
            word("mistral3.rope.scaling.type", "yarn"),
            float("mistral3.rope.scaling.factor", 16.0),
            float("mistral3.rope.scaling.yarn_log_multiplier", 1.0),
        ],
    ];
    let config = config(&ministral.concat(), &[]);
    assert_eq!(config["model_type"], "ministral3");
    let mut rope =
        json!({"rope_type": "yarn", "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0});
    assert_eq!(config["rope_scaling"], rope);
    let is_stretched = |(key, ..): &Pair| key.contains("rope.scaling");
    let [needed, more] = &ministral;
    let stretched: Vec<_> = needed.iter().chain(more.iter().filter(|pair| is_stretched(pair))).cloned().collect();
    let told = self::config(&stretched, &[]);
    rope.as_object_mut().unwrap().remove("llama_4_scaling_beta");
    assert_eq!(
        (&told["model_type"], &told["rope_scaling"]),
        (&json!("mistral"), &rope),
        "scores are not sharpened twice"
    );
    let scaled: Vec<_> = needed.iter().chain(more.iter().filter(|pair| !is_stretched(pair))).cloned().collect();
    let wanted = "key `mistral3.attention.temperature_scale`: a value that ptero does not support";
    assert_eq!(refusal(read(&scaled, &[])), wanted);
}

#[test]
fn what_the_tensors_tell_is_in_the_config() {
    let names = ["output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_down.bias"];
    let file = read(&needed("llama"), &names).unwrap();
    let config = file.config().unwrap();
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!((&config["attention_bias"], &config["mlp_bias"]), (&json!(true), &json!(true)));
    let factors = config["rope_freqs"].as_str().unwrap();
    assert!(file.tensor(factors).is_ok(), "the tensor has the name that the config says");
    assert_eq!(config.get("vocab_size"), None, "nothing tells it");
}

#[test]
fn widths_scaling_experts_and_special_tokens_are_told() {
    let told = config(
        &llama_and(&[
            number("llama.attention.head_count_kv", 1),
            number("llama.attention.key_length", 6),
            number("llama.attention.value_length", 6),
            number("llama.rope.dimension_count", 3),
            float("llama.rope.freq_base", 500_000.0),
            number("llama.vocab_size", 96),
            number("llama.expert_count", 8),
            number("llama.expert_used_count", 2),
            number("tokenizer.ggml.bos_token_id", 1),
            number("tokenizer.ggml.eos_token_id", 2),
            number("tokenizer.ggml.eot_token_id", 7),
            number("tokenizer.ggml.eom_token_id", 2),
            number("tokenizer.ggml.padding_token_id", 0),
        ]),
        &[],
    );
    for (key, wanted) in [
        ("num_key_value_heads", json!(1)),
        ("head_dim", json!(6)),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_theta", json!(500_000.0)),
        ("vocab_size", json!(96)),
        ("model_type", json!("mixtral")),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("bos_token_id", json!(1)),
        ("eos_token_id", json!([2, 7])),
        ("pad_token_id", json!(0)),
    ] {
        assert_eq!(told[key], wanted, "{key}");
    }
    let tokens = (String::from("tokenizer.ggml.tokens"), ARRAY, [array(STRING, 2), text("a"), text("b")].concat());
    assert_eq!(config(&llama_and(&[tokens]), &[])["vocab_size"], 2, "of a file with a vocabulary alone");
}

#[test]
fn scaled_rotary_frequencies_are_told_as_hugging_face_does() {
    let scaling = |more: &[Pair]| config(&llama_and(more), &[])["rope_scaling"].clone();
    let factor = || float("llama.rope.scaling.factor", 4.0);
    let kind = |kind: &str| word("llama.rope.scaling.type", kind);
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    assert_eq!(scaling(&[factor()]), linear);
    assert_eq!(scaling(&[factor(), kind("linear")]), linear);
    assert_eq!(scaling(&[float("llama.rope.scale_linear", 4.0)]), linear);
    assert_eq!(scaling(&[factor(), kind("none")]), Value::Null);
    assert_eq!(scaling(&[kind("linear")]), Value::Null);
    assert_eq!(scaling(&[float("llama.rope.scaling.factor", 0.0)]), Value::Null);
    let yarn = [
        factor(),
        kind("yarn"),
        number("llama.rope.scaling.original_context_length", 32),
        float("llama.rope.scaling.yarn_beta_fast", 8.0),
        float("llama.rope.scaling.yarn_beta_slow", 1.0),
        float("llama.rope.scaling.yarn_attn_factor", 1.25),
    ];
    let told = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0,
        "attention_factor": 1.25,
    });
    assert_eq!(scaling(&yarn), told);
    assert_eq!(scaling(&[kind("longrope")]), json!({"rope_type": "longrope"}), "unknown kinds are handed on");
}

#[test]
fn a_missing_key_is_named() {
    for at in 1..needed("llama").len() {
        let mut pairs = needed("llama");
        let (key, ..) = pairs.remove(at);
        let wanted = format!("key `{key}`: no such key, which architecture `llama` must have");
        assert_eq!(refusal(read(&pairs, &[])), wanted);
    }
}

#[test]
fn a_value_of_the_wrong_type_is_named() {
    let optional = [
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.attention.scale",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.rope.scaling.factor",
        "llama.vocab_size",
        "llama.expert_count",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.tokens",
    ];
    let needed_keys = needed("llama").into_iter().skip(1).map(|(key, ..)| key);
    for key in needed_keys.chain(optional.map(str::to_owned)) {
        let others = || needed("llama").into_iter().filter(|(other, ..)| *other != key);
        for wrong in [word(&key, "8"), (key.clone(), I32, (-8_i32).to_le_bytes().to_vec()), float(&key, f32::NAN)] {
            let error = read(&others().chain([wrong]).collect::<Vec<_>>(), &[]).expect_err("must be refused");
            assert!(error.to_string().starts_with(&format!("key `{key}`: not a")), "{error}");
            assert_eq!(error.kind(), Kind::Malformed);
        }
    }
    let kind = refusal(read(&llama_and(&[number("llama.rope.scaling.type", 1)]), &[]));
    assert_eq!(kind, "key `llama.rope.scaling.type`: not a text");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (key, value, wanted) in [
        ("llama.block_count", u32::MAX, "4294967295 layers, over the limit of 1000000"),
        ("llama.block_count", 0, "not a whole number above zero"),
        ("llama.attention.head_count", 0, "not a whole number above zero"),
        ("llama.rope.dimension_count", u32::MAX, "not at most the width of a head"),
        ("llama.attention.value_length", 5, "a value that ptero does not support"),
    ] {
        let others = needed("llama").into_iter().filter(|(other, ..)| other != key);
        let pairs: Vec<_> = others.chain([number(key, value)]).collect();
        assert_eq!(refusal(read(&pairs, &[])), format!("key `{key}`: {wanted}"));
    }
}

#[test]
fn keys_that_change_what_is_computed_and_that_nothing_reads_are_refused() {
    for (key, neutral) in [("logit_scale", 0.0), ("rope.scaling.alpha", 0.0), ("rope.scaling.attn_factor", 1.0)] {
        let key = format!("llama.{key}");
        let error = read(&llama_and(&[float(&key, 0.5)]), &[]).expect_err("changes what the model computes");
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(read(&llama_and(&[float(&key, neutral)]), &[]).is_ok());
    }
    let causal = |is_causal: bool| ("llama.attention.causal".to_owned(), BOOL, vec![is_causal.into()]);
    let wanted = "key `llama.attention.causal`: a value that ptero does not support";
    assert_eq!(refusal(read(&llama_and(&[causal(false)]), &[])), wanted);
    assert!(read(&llama_and(&[causal(true)]), &[]).is_ok());
}

#[test]
fn a_tensor_that_has_anothers_new_name_is_refused() {
    let names = ["blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"];
    let error = refusal(read(&needed("llama"), &names));
    assert_eq!(error, "duplicate `model.layers.0.self_attn.q_proj.weight`");
}

#[test]
fn files_of_llama_cpps_converter_are_the_folders_they_were_made_from() {
    for (name, interleaved, more) in [("llama", true, 0), ("llama3", true, 1), ("qwen3", false, 0)] {
        let (folder, file) = (golden(name), golden(&format!("{name}_gguf/model.gguf")));
        assert_eq!(file.tensors().len(), folder.tensors().len() + more);
        for (name, wanted) in folder.tensors() {
            let tensor = file.tensor(name).unwrap();
            assert_eq!(tensor.shape(), wanted.shape(), "{name}");
            let reordered = interleaved && (name.contains("q_proj") || name.contains("k_proj"));
            assert_eq!(tensor.bytes()[..] == wanted.bytes()[..], !reordered, "{name}");
        }
        let (told, wanted) = (file.config().unwrap(), folder.config().unwrap());
        for key in [
            "model_type",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "vocab_size",
            "max_position_embeddings",
            "tie_word_embeddings",
            "bos_token_id",
            "eos_token_id",
        ] {
            assert_eq!(told[key], wanted[key], "{name}: {key}");
        }
        let theta = wanted.get("rope_theta").unwrap_or_else(|| &wanted["rope_parameters"]["rope_theta"]);
        assert_eq!(&told["rope_theta"], theta);
        assert_eq!(told["rope_interleaved"], interleaved);
        assert_eq!(told.get("rope_freqs").is_some(), more == 1);
    }
}
