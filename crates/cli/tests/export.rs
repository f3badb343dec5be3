//! `ptero export` as a person meets it, on the tiny models of the exporter's own tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::{done, folder, ptero};
use ptero_pte::{Limits, Node, Program, Verified};
use serde_json::{Value, json};
use std::path::Path;

fn tiny(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    path.to_str().unwrap().to_owned()
}

/// A copy of the tiny llama, with another configuration.
fn checkpoint(folder: &Path, change: impl FnOnce(&mut Value)) -> String {
    let copy = folder.join("checkpoint");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(Path::new(&tiny("llama")).join("model.safetensors"), copy.join("model.safetensors")).unwrap();
    let config = std::fs::read(Path::new(&tiny("llama")).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    change(&mut config);
    std::fs::write(copy.join("config.json"), config.to_string()).unwrap();
    copy.to_str().unwrap().to_owned()
}

/// Fails with a message, and leaves no file.
#[track_caller]
fn refused(folder: &Path, args: &[&str], wanted: &str) {
    let output = ptero(folder, args);
    assert!(!output.status.success(), "{args:?} should fail");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(wanted), "wanted: {wanted}\ngot: {error}");
    let fault = wanted.strip_prefix("config: ").unwrap_or(&error);
    assert_eq!(error.matches(fault).count(), 1, "is said once: {error}");
    let left =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).filter(|name| name != "checkpoint");
    assert_eq!(left.count(), 0, "{args:?} leaves no file");
}

fn open(path: &Path) -> Verified {
    Verified::new(Program::open(path, &Limits::DEFAULT).unwrap(), &Limits::DEFAULT).unwrap()
}

#[test]
fn s1_1_sampling_is_asked_for_and_the_rest_is_the_same_to_the_byte() {
    let folder = folder("sample");
    for name in ["one.pte", "two.pte"] {
        done(&folder, &["export", &tiny("llama"), "-o", name]);
    }
    done(&folder, &["export", &tiny("llama"), "-o", "sampling.pte", "--sample"]);
    let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(bytes("one.pte"), bytes("two.pte"));
    let (plain, sampling) = (open(&folder.join("one.pte")), open(&folder.join("sampling.pte")));
    assert_eq!(plain.bool_metadata("use_sampling").unwrap(), Some(false));
    assert_eq!(sampling.bool_metadata("use_sampling").unwrap(), Some(true));
    assert_eq!(plain.method("forward").unwrap().inputs.len(), 2);
    assert_eq!(sampling.method("forward").unwrap().inputs.len(), 6);
    // What comes before the head does not know of it: only the copy into the logits is missing.
    let main_chain = |program: &Verified| -> Vec<&'static str> {
        let (_, graph) = program.method("forward").unwrap().mlx_delegates().next().unwrap();
        graph.instruction_chains.0[0].iter().map(Node::name).collect()
    };
    let (plain, sampling) = (main_chain(&plain), main_chain(&sampling));
    let (copy, model) = plain.split_last().unwrap();
    assert_eq!(*copy, "IdCopy");
    assert_eq!(sampling[..model.len()], *model);
    assert_eq!(sampling[model.len()..], ["Greater", "ItemInt", "If"]);
}

#[test]
fn a_report_says_what_was_made() {
    let folder = folder("report");
    let args = ["export", &tiny("llama"), "-o", "out.pte", "--sample", "-q", "int4", "-c", "32", "--max-prefill", "8"];
    let shown = ptero(&folder, &args);
    assert!(shown.status.success());
    let shown = String::from_utf8(shown.stderr).unwrap();
    for wanted in [
        "out.pte  llama, ",
        "samples its own tokens",
        "weights int4 in groups of 32, embeddings int8",
        "groups of 32: the default of int4 up to 1B parameters; the model has 29k\n",
        "stored 9 tensors int4 in groups of 32 (",
        " bits per weight\n",
        "context 32, prefill 8",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let report: Value =
        serde_json::from_str(&done(&folder, &[&args[..], &["--json", "--dtype", "f32"]].concat())).unwrap();
    let size = std::fs::metadata(folder.join("out.pte")).unwrap().len();
    assert_eq!((&report["bytes"], &report["max_context"], &report["dtype"]), (&json!(size), &json!(32), &json!("f32")));
    let program = open(&folder.join("out.pte"));
    for (name, wanted) in [("get_max_context_len", 32), ("get_max_prefill_chunk", 8), ("get_vocab_size", 96)] {
        assert_eq!(program.int_metadata(name).unwrap(), Some(wanted), "{name}");
    }
    assert_eq!(program.ints_metadata("get_eos_ids").unwrap(), Some(vec![2]));
}

#[test]
fn the_files_that_belong_to_a_model_are_part_of_it() {
    let folder = folder("files");
    let checkpoint = checkpoint(&folder, |_| {});
    let write = |name: &str, text: &str| std::fs::write(Path::new(&checkpoint).join(name), text).unwrap();
    write("tokenizer.json", "{\"model\": {}}");
    write("tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
    write("generation_config.json", "{\"eos_token_id\": [2, 7], \"bos_token_id\": 1}");
    done(&folder, &["export", &checkpoint, "-o", "with.pte"]);
    let program = open(&folder.join("with.pte"));
    let data = program.data_by_name();
    assert_eq!(&**data["files/tokenizer.json"], b"{\"model\": {}}");
    assert_eq!(&**data["files/chat_template.jinja"], b"{{ messages }}");
    assert_eq!(program.ints_metadata("get_eos_ids").unwrap(), Some(vec![2, 7]));
    let shown = done(&folder, &["inspect", "with.pte"]);
    assert!(shown.contains("get_eos_ids             [2,7]"), "{shown}");
    assert!(shown.contains("files\n  chat_template.jinja     14 B\n"), "{shown}");
    done(&folder, &["export", &checkpoint, "-o", "without.pte", "--no-files"]);
    assert!(open(&folder.join("without.pte")).data_by_name().keys().all(|key| !key.starts_with("files/")));
}

#[test]
fn what_quantization_costs_is_told() {
    let folder = folder("check");
    let args = ["export", &tiny("qwen3"), "-o", "out.pte", "-q", "int8", "--check", "--check-layers", "--quiet"];
    let shown = done(&folder, &args);
    for wanted in ["beside the same graph in f32, on 256 random tokens:", "same best token", "layer 0"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert!(!shown.contains("perplexity"), "random tokens have none: {shown}");
    std::fs::write(folder.join("tokens.txt"), "1 2 3 4 5\n6 7 8").unwrap();
    let args = ["export", &tiny("qwen3"), "-o", "out.pte", "-q", "none", "--dtype", "f32", "--check", "--json"];
    let exact = done(&folder, &[&args[..], &["--check-tokens", "tokens.txt"]].concat());
    let exact: Value = serde_json::from_str(&exact).unwrap();
    assert_eq!(exact["check"]["logits_error"], json!(0.0), "the same program twice");
    assert_eq!(exact["check"]["perplexity"]["cost_percent"], json!(0.0));
    // In chunks that are as short as the program's.
    let args = ["export", &tiny("qwen3"), "-o", "out.pte", "--check", "--quiet", "--max-prefill", "5", "-c", "12"];
    assert!(done(&folder, &args).contains("same best token"));
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "only the output and the tokens are left: {names:?}");
}

#[test]
fn every_recipe_is_compared_with_f32() {
    let folder = folder("recipes");
    std::fs::write(folder.join("tokens.txt"), "1 2 3 4 5\n6 7 8").unwrap();
    let args = ["export", &tiny("qwen3_5_moe_groups"), "-o", "out.pte", "--sample", "--check", "--check-recipes"];
    let shown = done(&folder, &[&args[..], &["-q", "int4", "--quiet", "--check-tokens", "tokens.txt"]].concat());
    for wanted in ["perplexity", "| recipe ", "decode tokens/s", "| f32 ", "| int4, groups of 32 (chosen) |"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert_eq!(shown.matches("(chosen)").count(), 1, "{shown}");

    let args = [&args[..], &["-q", "int4-mixed", "--group-size", "128", "--json"]].concat();
    let report: Value = serde_json::from_str(&done(&folder, &args)).unwrap();
    let rows = report["recipes"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["recipe"].as_str().unwrap()).collect();
    let compared = ["int8, groups of 32", "int4, groups of 32", "int4, groups of 64", "int4-mixed, groups of 32"];
    assert_eq!(names, [&["f32"], &compared[..], &["int4-mixed, groups of 128"]].concat());
    for row in rows {
        assert_eq!(row["chosen"], json!(row["group_size"] == 128), "{row}");
        assert!(row["decode_tokens_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["perplexity"], Value::Null, "random tokens have none");
        assert_eq!(row["logits_error"].is_null(), row["recipe"] == "f32", "{row}");
    }
    let bits = |row: usize| rows[row]["bits_per_weight"].as_f64().unwrap();
    assert!(bits(0) == 32.0 && bits(1) > bits(2) && bits(2) >= bits(3), "{rows:?}");
    // The chosen one is what `--check` compares, and what was written.
    let last = &rows[5];
    for figure in ["logits_error", "divergence", "same_best"] {
        assert_eq!(last[figure], report["check"][figure], "{figure}");
    }
    assert_eq!(last["bits_per_weight"], report["bits_per_weight"]);
    assert_eq!((&report["quantize"], &report["group_size"]), (&json!("int4-mixed"), &json!(128)));
    assert_eq!(report["group_size_reason"], "given by --group-size");
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "only the output and the tokens are left: {names:?}");
}

#[test]
fn the_size_of_groups_follows_the_size_of_the_model() {
    let folder = folder("groups");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/configs/Llama-3.2-1B.json");
    // A copy with few tokens and layers that are wide enough to be many parameters.
    let mut large: Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    for (key, size) in [("vocab_size", 64), ("hidden_size", 64), ("intermediate_size", 64), ("num_hidden_layers", 1024)]
    {
        large[key] = json!(size);
    }
    for (key, size) in [("head_dim", 2048), ("num_attention_heads", 4), ("num_key_value_heads", 1)] {
        large[key] = json!(size);
    }
    std::fs::write(folder.join("large.json"), large.to_string()).unwrap();
    let export = |more: &[&str]| -> Value {
        let args = ["export", "large.json", "-o", "out.pte", "--random", "1", "--layers", "1", "-q", "int4", "--json"];
        serde_json::from_str(&done(&folder, &[&args[..], more].concat())).unwrap()
    };
    let chosen = export(&[]);
    assert_eq!(chosen["group_size"], json!(64));
    let reason = "the default of int4 above 1B parameters; the model has 1.355B";
    assert_eq!(chosen["group_size_reason"], reason, "{}", chosen["parameters"]);
    let forms = chosen["weights"].as_array().unwrap();
    assert!(forms.iter().any(|form| form["form"] == "int4 in groups of 64"), "{forms:?}");
    assert_eq!(export(&["-g", "32"])["group_size"], json!(32));
    let help = done(&folder, &["export", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("[default: 32; for int4 and int4-mixed of a model with more than 1B parameters 64, unless the checkpoint is in groups of 32 itself]"),
        "{help}"
    );
}

#[test]
fn checkpoints_that_do_not_fit_are_refused_with_names() {
    let folder = folder("refused");
    let with = |key: &'static str, value: Value| checkpoint(&folder, |config| config[key] = value);
    let out = |checkpoint: &str, more: &[&str], wanted: &str| {
        refused(&folder, &[&["export", checkpoint, "-o", "out.pte"], more].concat(), wanted);
    };
    out(&with("model_type", json!("bert")), &[], "model type `bert` is not supported\nhint: supported are `llama`, ");
    out(&with("model_type", Value::Null), &[], "config: no `model_type` that is a text");
    out(&with("hidden_size", json!("x")), &[], "config: invalid type: string \"x\"");
    out(&with("hidden_size", json!(-8)), &[], "config: -8 is no size from 1 to 16777216");
    out(&with("num_attention_heads", json!(5)), &[], "config: `num_key_value_heads` is ");
    out(
        &with("num_hidden_layers", json!(100_000)),
        &[],
        "config: `num_hidden_layers` is 100000, but has to be at most 1024",
    );
    out(&with("num_hidden_layers", json!(9)), &[], "missing:\n  `model.layers.");
    out(&with("num_hidden_layers", json!(1)), &[], "not wanted:\n  `model.layers.1.");
    out(&with("intermediate_size", json!(64)), &[], "`model.layers.0.mlp.down_proj.weight`");
    out(
        &with("quantization_config", json!({ "quant_method": "fp8" })),
        &[],
        "`quantization_config` is `fp8`, which is not",
    );
    out(&with("hidden_act", json!("relu6")), &[], "config: `hidden_act` is `relu6`, which is not supported");
    out(&with("rope_parameters", json!({ "rope_type": "spiral" })), &[], "`rope_type` is `spiral`");
    out(
        &with("rope_parameters", json!({ "rope_type": "linear", "factor": 0.0 })),
        &[],
        "`factor` is 0, but has to be a number above zero",
    );
    out(&with("eos_token_id", json!("end")), &[], "`eos_token_id` is \"end\", but has to be a token id, or several");
    let good = checkpoint(&folder, |_| {});
    out(&good, &["-c", "1000000"], "a context of 1000000 positions\nhint: the model was made for 1 to ");
    out(&good, &["-c", "16", "--max-prefill", "17"], "17 tokens in one call\nhint: the context has room for 1 to 16");
    out(&good, &["--group-size", "48"], "invalid value '48'");
    out(&good, &["--check", "--check-tokens", "nowhere"], "nowhere: ");
    out(&good, &["--check", "--check-window", "1"], "a window of 1 token predicts nothing");
    out(&good, &["--check-recipes"], "--check");
    out(&good, &["--embed", "int4-mixed"], "invalid value 'int4-mixed'");
    out("nowhere", &[], "nowhere");
    out("owner/name", &[], "owner/name");
    refused(&folder, &["export", &good, "-o", "no-such-folder/out.pte"], "could not write no-such-folder/out.pte");
    refused(&folder, &["export", &good, "-o", &good], "it is a folder");
}

#[test]
fn a_checkpoint_is_not_overwritten_by_its_program() {
    let folder = folder("input");
    let gguf = folder.join("model.gguf");
    std::fs::copy(Path::new(&tiny("llama_gguf")).join("model.gguf"), &gguf).unwrap();
    let before = std::fs::read(&gguf).unwrap();
    let output = ptero(&folder, &["export", "model.gguf", "-o", "model.gguf"]);
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("it is the input"));
    assert_eq!(std::fs::read(&gguf).unwrap(), before);
    let checkpoint = checkpoint(&folder, |_| {});
    for name in ["model.safetensors", "config.json"] {
        let output = ptero(&folder, &["export", &checkpoint, "-o", &format!("checkpoint/{name}")]);
        assert!(String::from_utf8(output.stderr).unwrap().contains("it is the input"), "{name}");
    }
    // A program may lie there, and be made again.
    for _ in 0..2 {
        done(&folder, &["export", &checkpoint, "-o", "checkpoint/model.pte"]);
    }
}

#[test]
fn a_configuration_alone_becomes_a_program_with_weights_that_are_made_up() {
    let folder = folder("random");
    let config = checkpoint_config(&tiny("llama"));
    let export = |out: &str, seed: &str, more: &[&str]| {
        let args = [&["export", &config, "-o", out, "--random", seed, "--sample", "-q", "int4"], more].concat();
        done(&folder, &args);
        std::fs::read(folder.join(out)).unwrap()
    };
    let first = export("1.pte", "1", &[]);
    assert_eq!(first, export("again.pte", "1", &[]), "the same for a seed");
    assert_ne!(first, export("2.pte", "2", &[]));
    let short = export("short.pte", "1", &["--layers", "1"]);
    assert!(short.len() < first.len());
    open(&folder.join("short.pte"));
}

#[test]
fn a_configuration_without_weights_is_refused_with_a_way_to_get_some() {
    let (folder, config) = (folder("config"), checkpoint_config(&tiny("llama")));
    let hint = "hint: a configuration has no weights; `--random SEED` makes some up";
    refused(&folder, &["export", &config, "-o", "no.pte"], hint);
    refused(&folder, &["export", &config, "-o", "no.pte", "--layers", "1"], "--random <SEED>");
}

/// The configuration of a checkpoint, which its folder holds.
fn checkpoint_config(folder: &str) -> String {
    Path::new(folder).join("config.json").to_str().unwrap().to_owned()
}
