//! `ptero bench` as a person meets it. No test looks at how long anything takes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::{done, folder, ptero, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn at_root(path: &str) -> String {
    root().join(path).to_str().unwrap().to_owned()
}

fn model() -> String {
    at_root("models/little-qwen.pte")
}

#[track_caller]
fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&done(folder, args)).unwrap()
}

#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = ptero(&folder("refused"), args);
    assert!(!output.status.success(), "{args:?} should fail");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// A median with its range, above zero and in order.
#[track_caller]
fn check_figures(figures: &Value) {
    let [least, median, most] = ["least", "median", "most"].map(|name| figures[name].as_f64().unwrap());
    assert!(0.0 < least && least <= median && median <= most, "{figures}");
}

#[test]
fn the_table_has_a_row_for_each_test_and_says_what_was_skipped() {
    let args = ["bench", &model(), "-p", "4,9,100000", "-n", "3", "-d", "0,5,1022", "-r", "2", "-t", "1,2"];
    let table = done(&folder("table"), &args);
    let head = "| threads | test ";
    assert!(table.lines().any(|line| line.starts_with(head) && line.contains("tokens/s") && line.contains("GB/s")));
    for threads in [1, 2] {
        for test in ["prefill 4 ", "prefill 9 ", "decode 3 at 0", "decode 3 at 5"] {
            let start = format!("|       {threads} | {test}");
            assert_eq!(table.lines().filter(|line| line.starts_with(&start)).count(), 1, "{start}\n{table}");
        }
    }
    let skipped: Vec<&str> = table.lines().filter(|line| line.starts_with("skipped")).collect();
    assert_eq!(
        skipped,
        [
            "skipped prefill 100000: it does not fit the context of 1024 tokens",
            "skipped decode 3 at 1022: it does not fit the context of 1024 tokens"
        ]
    );
    assert!(table.starts_with("little-qwen: 11.1 MB, samples its own tokens, vocabulary 4096, context 1024"));
    assert!(table.contains("cpu, 1 thread: load ") && table.contains("first token of a prompt of 4 tokens"), "{table}");
    assert!(!table.contains("sampling,"));
}

#[test]
fn the_json_has_the_promised_names() {
    let args = ["bench", &model(), "--json", "-p", "4", "-n", "2", "-d", "3", "-r", "1", "-t", "1"];
    let report = json(&folder("json"), &args);
    assert_eq!(report["model"], "little-qwen");
    assert_eq!(report["samples_in_program"], true);
    assert_eq!(report["device"], "cpu");
    assert_eq!([&report["vocabulary"], &report["context"], &report["repeats"]], [4096, 1024, 1]);
    assert!(report["bytes_counted"].as_str().unwrap().contains("experts"));
    let run = &report["runs"][0];
    assert_eq!(run["threads"], 1);
    assert_eq!(run["first_token"]["prompt_tokens"], 4);
    for time in [&run["open_ms"], &run["compile_ms"], &run["first_token"]["ms"]] {
        assert!(time.as_f64().unwrap() > 0.0);
    }
    let [prefill, decode] = run["tests"].as_array().unwrap().as_slice() else { panic!("{run}") };
    for (test, name, tokens) in [(prefill, "prefill", 4), (decode, "decode", 2)] {
        assert_eq!((&test["test"], &test["tokens"]), (&name.into(), &tokens.into()));
        check_figures(&test["tokens_per_s"]);
        check_figures(&test["ms_per_token"]);
    }
    assert!(prefill.get("depth").is_none() && prefill.get("gb_per_s").is_none());
    assert_eq!(decode["depth"], 3);
    for name in ["gb_per_s", "machine_gb_per_s", "share_of_bandwidth"] {
        assert!(decode[name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(run.get("sampling").is_none());
}

/// Two of eight experts, and of the embedding one row: far less than the file. Keys and values of 2 layers, 2 heads of 64
/// and bf16 are 1024 bytes a position, and the rest of the state does not grow.
#[test]
fn bytes_of_a_step_are_what_it_reads() {
    let args = ["bench", &model(), "--json", "-p", "0", "-n", "1", "-d", "0,100", "-r", "1", "-t", "1"];
    let report = json(&folder("bytes"), &args);
    let bytes = |test: usize, what: &str| report["runs"][0]["tests"][test]["bytes_per_step"][what].as_u64().unwrap();
    assert_eq!([bytes(0, "weights"), bytes(1, "weights")], [7_403_252; 2]);
    assert_eq!([bytes(0, "state"), bytes(1, "state")], [618_496, 618_496 + 100 * 2 * 2 * 2 * 64 * 2]);
}

#[test]
fn a_profile_lists_every_step_once_and_adds_up() {
    let args = ["bench", &model(), "--json", "--profile", "-p", "4", "-n", "1", "-d", "0,100", "-r", "2", "-t", "2"];
    let report = json(&folder("profile-json"), &args);
    let tests = report["runs"][0]["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 3);
    for test in tests {
        let profile = &test["profile"];
        assert_eq!([&profile["recorded"], &profile["averaged"]], [2, 2]);
        let number = |value: &Value, name: &str| value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"));
        let steps = profile["steps"].as_array().unwrap();
        let mut places: Vec<[u64; 2]> =
            steps.iter().map(|step| ["block", "step"].map(|name| step[name].as_u64().unwrap())).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), steps.len());
        for step in steps {
            let spent = ["memory_us", "compute_us", "waiting_us", "serial_us"].map(|name| number(step, name));
            assert!(spent.iter().all(|us| *us >= 0.0), "{step}");
            assert!((spent.iter().sum::<f64>() - number(step, "us")).abs() < 1e-6, "{step}");
            assert!(number(step, "calls") >= 1.0 && step["label"].as_str().unwrap().contains('['), "{step}");
            assert!(step["node"].as_str().unwrap().contains('.') && step["part"].is_string(), "{step}");
            let is_shape = |shape: &Value| shape.as_array().unwrap().iter().all(Value::is_u64);
            assert!(step["reads"].as_array().unwrap().iter().all(is_shape), "{step}");
            assert!(!step["writes"].as_array().unwrap().is_empty(), "{step}");
        }
        let sum = |name: &str| steps.iter().map(|step| number(step, name)).sum::<f64>();
        // Steps cannot take longer than the token.
        assert!(number(profile, "outside_us") >= 0.0 && number(profile, "recording_us") > 0.0);
        assert!((sum("us") + number(profile, "outside_us") - number(profile, "us")).abs() < 1e-3);
        // The plan's steps read what the graph says.
        if test["test"] == "decode" {
            let bytes = |what: &str| test["bytes_per_step"][what].as_f64().unwrap();
            assert_eq!([sum("weight_bytes"), sum("state_bytes")], [bytes("weights"), bytes("state")]);
        }
    }
    let steps = tests[1]["profile"]["steps"].as_array().unwrap();
    let of = |kind: &str| steps.iter().filter(|step| step["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of("sample").len(), 1);
    let head = of("quant-matmul").pop().unwrap();
    assert_eq!(head["weight"], "model.embed_tokens.weight");
    assert!(head["label"].as_str().unwrap().contains(", 4096]"), "{head}");
}

#[test]
fn a_profile_is_a_table_and_a_picture() {
    let folder = folder("profile");
    let args = ["--profile", "-n", "2", "-d", "3", "-r", "1", "-t", "1,2", "--html", "out.html", "--svg", "out.svg"];
    let table = done(&folder, &[&["bench", &model()][..], &args].concat());
    assert!(!table.contains("prefill"), "a profile is of decoding unless prompts are asked for\n{table}");
    for threads in ["1 thread", "2 threads"] {
        assert!(table.contains(&format!("profile of decode 2 at 3, {threads}: a token takes ")), "{table}");
    }
    for start in ["| step ", "| part ", "| products ", "| attention ", "| outside of steps ", "| total "] {
        assert!(table.lines().filter(|line| line.starts_with(start)).count() >= 2, "{start}\n{table}");
    }
    assert!(table.lines().any(|line| line.starts_with("| quant-matmul int4 [1, ")), "{table}");
    let [page, picture] = ["out.html", "out.svg"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    for text in [&page, &picture] {
        for wanted in ["Where the time goes", "<title>sample [4096]\nnode ", "waiting for threads", "linear_attn"] {
            assert!(text.contains(wanted), "{wanted}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf\""));
    }
}

#[test]
fn page_and_picture_are_written_whole() {
    let folder = folder("page");
    let args = ["-p", "4,8", "-n", "2", "-d", "0,4", "-r", "2", "-t", "1,2", "--sampling"];
    let model = model();
    let args = [&["bench", &model, "--html", "out.html", "--svg", "out.svg"][..], &args].concat();
    assert!(done(&folder, &args).contains("| prefill 8 "));
    let [page, picture] = ["out.html", "out.svg"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for text in [&page, &picture] {
        for wanted in
            ["little-qwen", "2 threads", "Prefill: tokens per second", "Decode: tokens per second", "in the program"]
        {
            assert!(text.contains(wanted), "{wanted}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf\"") && !text.contains("@@"));
        // Nothing comes from elsewhere.
        assert_eq!(
            text.matches("http").count(),
            text.matches("http-equiv").count() + text.matches("http://www.w3.org/2000/svg").count()
        );
    }
    assert!(page.contains("<td class=\"word\">decode 2 at 4</td>"));
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// That they are the same is checked by the command itself, which fails otherwise.
#[test]
fn s2_2_tokens_drawn_in_the_program_and_on_the_host_are_compared() {
    let folder = folder("sampling");
    let args = ["-p", "0", "-n", "12", "-d", "3", "-r", "3", "-t", "1", "--sampling", "--json"];
    let mut compared = vec![json(&folder, &[&["bench", &model()][..], &args].concat())];
    // A program that returns logits is given the head.
    let tiny = at_root("crates/export/tests/tiny/llama");
    done(&folder, &["export", &tiny, "-o", "logits.pte"]);
    compared.push(json(&folder, &[&["bench", "logits.pte", "--temp", "1.5"][..], &args].concat()));
    for (report, (is_grafted, temperature)) in compared.iter().zip([(false, 0.8), (true, 1.5)]) {
        assert_eq!(report["samples_in_program"], !is_grafted);
        let sampling = &report["runs"][0]["sampling"];
        assert_eq!(sampling["grafted"], is_grafted);
        assert!((sampling["temperature"].as_f64().unwrap() - temperature).abs() < 1e-6);
        assert_eq!([&sampling["top_k"], &sampling["tokens"], &sampling["depth"], &sampling["rounds"]], [40, 12, 3, 3]);
        assert!((sampling["top_p"].as_f64().unwrap() - 0.95).abs() < 1e-6);
        let samplers = sampling["samplers"].as_array().unwrap();
        let names: Vec<&str> = samplers.iter().map(|way| way["sampler"].as_str().unwrap()).collect();
        assert_eq!(names, ["program", "host_fast", "host_reference"]);
        samplers.iter().for_each(|way| check_figures(&way["ms_per_token"]));
        assert!(samplers[0].get("program_is_faster_percent").is_none());
        for way in &samplers[1..] {
            assert!(way["program_is_faster_percent"]["median"].is_f64(), "{way}");
        }
    }
}

#[test]
fn s2_2_the_host_is_compared_on_the_reference_too() {
    let folder = folder("reference");
    done(&folder, &["export", &at_root("crates/export/tests/tiny/llama"), "-o", "tiny.pte", "--sample"]);
    let table = done(
        &folder,
        &[
            &["bench", "tiny.pte", "--device", "reference", "-p", "2", "-n", "3", "-d", "1", "-r", "1"][..],
            &["--sampling", "--top-k", "0"],
        ]
        .concat(),
    );
    assert!(
        table.contains("sampling, temperature 0.8, top-k all, top-p 0.95: decode 3 at 1, 1 thread, 1 round,"),
        "{table}"
    );
    for line in ["| program ", "| host_fast ", "| host_reference ", "host_fast: on the host, fast: "] {
        assert!(table.lines().any(|found| found.starts_with(line)), "{line}\n{table}");
    }
}

#[test]
fn logits_have_one_digest_on_every_device_and_for_any_number_of_threads() {
    let (folder, model) = (folder("digest"), model());
    let digests = |more: &[&str]| {
        let args = ["bench", &model, "--logits-digest", "--json", "-p", "4,20", "-n", "5"];
        json(&folder, &[&args[..], more].concat())
    };
    let expected = digests(&["--device", "reference"]);
    assert_eq!((&expected["prompt_tokens"], &expected["tokens"]), (&Value::from(20), &Value::from(5)));
    let of = |digests: &Value| {
        let texts = digests["texts"].as_array().unwrap().iter().chain([digests]);
        texts.map(|text| text["sha256"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = of(&expected);
    assert!(all.iter().all(|digest| digest.len() == 64), "{all:?}");
    assert_eq!(BTreeSet::from_iter(&all).len(), 4, "three seeds draw three texts: {all:?}");
    for threads in ["1", "2"] {
        assert_eq!(of(&digests(&["--device", "cpu", "-t", threads])), all);
        assert_eq!(of(&digests(&["--device", "cpu", "-t", threads, "--huge-pages"])), all);
    }
    assert_ne!(of(&digests(&["--temp", "0.7"])), all);

    let table = done(&folder, &["bench", &model, "--logits-digest", "-p", "20", "-n", "5", "--quiet"]);
    assert!(all.iter().all(|digest| table.contains(digest)), "{table}");
}

#[test]
fn what_has_no_digest_is_said() {
    let model = model();
    for (args, wanted) in [
        (vec!["-p", "1000", "-n", "25"], "a prompt of 1000 tokens and 25 more cannot be tested in a context of 1024"),
        (vec!["-p", "0"], "a prompt of 0 tokens"),
        (vec!["--sampling"], "cannot be used with"),
        (vec!["--profile"], "cannot be used with"),
    ] {
        let error = refused(&[&["bench", &model, "--logits-digest"][..], &args].concat());
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

/// This many repeats take hours, so that errors must be reported before the first.
#[test]
fn faults_are_found_before_anything_is_measured() {
    let (model, long) = (model(), ["-p", "512", "-r", "10000"]);
    for (args, wanted) in [
        (vec!["--html", "nowhere/out.html"], "could not write nowhere/out.html"),
        (vec!["--svg", "nowhere/out.svg"], "could not write nowhere/out.svg"),
        (vec!["--html", &model], "it is the input; give another name"),
        (vec!["--sampling", "-n", "0"], "--sampling decodes, and --decode is 0"),
        (vec!["--sampling", "-d", "5000"], "--sampling needs a depth that fits the context"),
    ] {
        let error = refused(&[&["bench", &model][..], &long, &args].concat());
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let model = model();
    for (args, wanted) in [
        (vec!["nowhere.pte"], "nowhere.pte"),
        (vec![&model, "-r", "0"], "0 is not in 1..=10000"),
        (vec![&model, "-t", "0"], "0 is not in 1..=65535"),
        (vec![&model, "-p", "0", "-n", "0"], "nothing to measure"),
        (vec![&model, "-p", "5000", "-n", "2000"], "the context is 1024 tokens, and every test is longer"),
        (vec![&model, "-n", "0", "-p", "1", "-r", "1", "--sampling"], "--sampling decodes, and --decode is 0"),
        (vec![&model, "-p", "0", "-d", "5000", "--sampling"], "--sampling needs a depth that fits the context"),
        (vec![&model, "--sampling", "--top-p", "0"], "top-p is 0; it must be above 0"),
        (vec![&model, "--top-k", "3"], "--sampling"),
        (vec![&model, "--device", "abacus"], "abacus"),
        (vec![&model, "--device", "reference", "--profile"], "--profile records the steps of the device `cpu`"),
        (vec![&at_root("README.md")], "README.md"),
    ] {
        let error = refused(&[&["bench"][..], &args].concat());
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn a_configuration_is_measured_with_weights_that_are_made_up() {
    let folder = folder("config");
    let text = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 200, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;
    std::fs::write(folder.join("shape.json"), text).unwrap();
    let args =
        ["bench", "shape.json", "--layers", "2", "-p", "4", "-n", "2", "-d", "0", "-r", "1", "--json", "--quiet"];
    let output = Command::new(env!("CARGO_BIN_EXE_ptero"))
        .args(args)
        .current_dir(&folder)
        .env("PTERO_CACHE", &folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.to_string().contains("shape-random-2-layers"), "{report}");
    assert!(refused(&["bench", &model(), "--layers", "2"]).contains("`--layers` is for a config.json"));
}
