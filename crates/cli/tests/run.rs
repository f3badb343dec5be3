//! `ptero run` as a person meets it: the model in the box, and tiny models without a tokenizer.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::folder;
use serde_json::{Value, json};
#[cfg(unix)]
use std::io::Read;
use std::io::Write;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Child;
use std::process::{Command, Output, Stdio};

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptero"));
    command.arg("run").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs with something on standard input.
fn fed(args: &[&str], input: &str) -> Output {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// What a run says, on standard output and on standard error.
#[track_caller]
fn said(output: Output) -> (String, String) {
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{err}");
    (out, err)
}

#[track_caller]
fn done(args: &[&str]) -> (String, String) {
    said(command(args).output().unwrap())
}

#[track_caller]
fn refused(args: &[&str], wanted: &str) {
    let output = command(args).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?} should say nothing and fail: {error}");
    assert!(error.contains(wanted), "{args:?}\nwanted: {wanted}\ngot: {error}");
}

fn events(args: &[&str]) -> Vec<Value> {
    let (out, err) = done(args);
    assert_eq!(err, "", "events say everything");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A tiny model, exported with or without a head that samples.
fn tiny(folder: &Path, name: &str, is_sampling: bool) -> String {
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    let program = folder.join(format!("{name}-{is_sampling}.pte"));
    let mut export = Command::new(env!("CARGO_BIN_EXE_ptero"));
    export.args(["export", "--quiet", "-o"]).arg(&program).arg(checkpoint);
    assert!(export.args(is_sampling.then_some("--sample")).status().unwrap().success());
    program.to_str().unwrap().to_owned()
}

#[test]
fn s1_5_only_the_text_is_on_stdout_and_the_printed_seed_repeats_it() {
    let (text, beside) = done(&["-p", "Once upon a time", "-n", "20"]);
    assert!(text.split_whitespace().count() > 5, "{text}");
    let seed = beside.split("seed ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert!(beside.starts_with("little-qwen on cpu: seed ") && beside.contains(", temperature 0.8, "), "{beside}");
    assert!(beside.contains("first token after ") && beside.contains("20 tokens, "), "{beside}");
    let (again, _) = done(&["-p", "Once upon a time", "-n", "20", "--seed", &seed]);
    assert_eq!(again, text);
    let (other, _) = done(&["-p", "Once upon a time", "-n", "20", "--seed", &seed, "--temp", "1.7"]);
    assert_ne!(other, text);
    let random = [done(&["-p", "A", "-n", "1", "-s", "-1"]).1, done(&["-p", "A", "-n", "1", "-s", "-1"]).1];
    assert_ne!(random[0].lines().next(), random[1].lines().next(), "-1 is a seed that nobody chose");
}

#[test]
fn s1_4_the_text_of_a_seed_depends_on_neither_threads_passes_nor_the_form_of_output() {
    let with = |more: &[&str]| done(&[&["-p", "The old man", "-n", "16", "-s", "7"], more].concat()).0;
    let text = with(&[]);
    for more in [&["--threads", "1"][..], &["-t", "3"], &["--without", "fuse-sampler"], &["--quiet"]] {
        assert_eq!(with(more), text, "{more:?}");
    }
    let events = events(&["-p", "The old man", "-n", "16", "-s", "7", "--json"]);
    let pieces: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(pieces, text);
    assert_eq!(done(&["-p", "The old man", "-n", "16", "-s", "7", "--quiet"]).1, "");
}

#[test]
fn s1_2_a_program_with_logits_writes_what_its_twin_draws_if_the_host_may() {
    let folder = folder("twins");
    for name in ["llama", "qwen3_5_moe", "gemma4"] {
        let (sampling, logits) = (tiny(&folder, name, true), tiny(&folder, name, false));
        let args = [
            "--tokens",
            "1,17 80",
            "-n",
            "12",
            "-s",
            "9",
            "--temp",
            "0.9",
            "--top-k",
            "30",
            "--top-p",
            "0.9",
            "--ignore-eos",
            "-m",
        ];
        let (text, beside) = done(&[&args[..], &[&sampling]].concat());
        assert_eq!(text.split(' ').filter(|id| id.parse::<u32>().is_ok()).count(), 12, "{text}");
        assert!(!beside.contains("on the host"), "{beside}");
        let (same, beside) = done(&[&args[..], &[&logits, "--host-sampling"]].concat());
        assert_eq!(same, text, "{name}");
        assert!(beside.contains(", sampled on the host"), "{beside}");
        refused(&[&args[..], &[&logits]].concat(), "top-k needs a program that samples, and this one returns logits");
    }
}

#[test]
fn s1_6_guards_say_what_is_wrong_and_what_to_do() {
    let folder = folder("guards");
    let logits = tiny(&folder, "llama", false);
    for (flag, value, what) in [("--top-k", "5", "top-k"), ("--top_p", "0.5", "top-p"), ("-s", "0", "a seed")] {
        let hint = "hint: export it with `--sample`, or let the host sample with `--host-sampling`";
        let message = format!("error: {what} needs a program that samples, and this one returns logits\n{hint}\n");
        refused(&["-m", &logits, "--tokens", "1", flag, value], &message);
    }
    let unseeded = folder.join("unseeded.pte").to_str().unwrap().to_owned();
    let graft = ["graft-sampler", &logits, &unseeded, "--no-seed"];
    assert!(Command::new(env!("CARGO_BIN_EXE_ptero")).args(graft).status().unwrap().success());
    let message =
        "error: this program draws without a seed, so none can be given\nhint: export it again with `--sample`\n";
    refused(&["-m", &unseeded, "--tokens", "1", "-s", "0"], message);
    let (_, beside) = done(&["-m", &logits, "--tokens", "1 2", "--temp", "0.5", "-n", "3"]);
    assert!(beside.contains("temperature 0.5, sampled on the host"), "a temperature alone is the host's: {beside}");
    // S1.5: the seed that is printed repeats the text, also here.
    let random = ["-m", &logits, "--tokens", "1 2", "-n", "12", "--ignore-eos"];
    let (text, beside) = done(&random);
    let seed = beside.split("seed ").nth(1).unwrap().split(',').next().unwrap();
    assert_eq!(done(&[&random[..], &["--host-sampling", "-s", seed]].concat()).0, text, "{beside}");
    for (args, message) in [
        (["--top-p", "1.5"], "top-p is 1.5; it must be above 0 and at most 1 (1 keeps every token)"),
        (["--top-p", "0"], "top-p is 0; it must be above 0"),
        (["--top-k", "-3"], "top-k is -3; it must be at least 1"),
        (["--temp", "-1"], "temperature is -1; it must be 0 (always the most likely token) or above"),
        (["--temperature", "NaN"], "temperature is NaN;"),
        (["--min-p", "1.5"], "min-p is 1.5; it must be at least 0 (which keeps every token) and at most 1"),
        (["--repeat-penalty", "0"], "repetition penalty is 0; it must be above 0 (1 changes nothing)"),
        (["--presence-penalty", "inf"], "presence penalty is inf; it must be finite"),
        (["--logit-bias", "4096=1"], "a logit bias is for token 4096, which is outside the vocabulary of 4096"),
        (["--logit-bias", "x=1"], "`x` is not a token id"),
        (["--logprobs", "21"], "a number from 0 to 20, or `N,processed`"),
        (["--choices", "0"], "0 is not in 1..=1024"),
        (["-n", "-2"], "-2 is not in -1.."),
        (["--stop", ""], "a stop string is empty"),
        (["-p", "and more"], "cannot be used multiple times"),
        (["--system", "Be brief."], "--system needs a chat template, and the model has none"),
        (["--device", "tpu"], "[possible values: auto, cpu, cuda, mlx, reference]"),
        (["--chat-template", "no-such-file"], "could not read no-such-file"),
        (["--tokenizer", "no-such-file"], "no-such-file: no such file"),
        (["-m", "no-such-file.pte"], "no-such-file.pte"),
    ] {
        refused(&[&["-p", "A"], &args[..]].concat(), message);
    }
    refused(&["-p", ""], "the prompt is empty\nhint: give one with `-p`, `-f` or standard input");
    refused(&[], "the prompt is empty");
    refused(&["some text"], "a prompt is given with `-p`, a model with `-m`, and `-` is standard input");
    refused(&["--tokens", "", "--json"], "the prompt is empty; at least one token is wanted");
    refused(&["--tokens", "1 4096"], "token 4096 at index 1 of the prompt is outside the vocabulary of 4096");
    let long = "1 ".repeat(1024);
    refused(
        &["--tokens", &long],
        "a prompt of 1024 tokens at position 0 leaves no room to generate; the context is 1024 tokens",
    );
    refused(&["-m", &logits, "-p", "A"], "the model has no tokenizer\nhint: give one with `--tokenizer FILE`");
}

#[test]
fn texts_follow_a_regular_expression_or_a_file_that_says_what_is_wrong_with_it() {
    let folder = folder("structure");
    let file = |name: &str, source: &str| {
        let path = folder.join(name);
        std::fs::write(&path, source).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ask = ["-p", "Once upon a time", "--quiet", "--temp", "1.5", "-s", "3"];
    let (text, beside) = done(&[&ask[..], &["--regex", "-?[0-9]{4}-[0-9]{2}"]].concat());
    let digits = text.trim_start_matches('-');
    assert!(digits.len() == 7 && digits.split('-').map(str::len).eq([4, 2]), "{text}");
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && beside.is_empty(), "{text} {beside}");
    let schema = file("colors.json", r#"{"enum": ["red", "green"]}"#);
    let (text, _) = done(&[&ask[..], &["--json-schema", &schema]].concat());
    assert!(["\"red\"", "\"green\""].contains(&text.trim()), "{text}");

    let refused = |flag: &str, value: &str, message: &str| refused(&[&ask[..], &[flag, value]].concat(), message);
    let broken = file("broken.json", "{\"type\": ");
    refused("--json-schema", &broken, "JSON Schema");
    let unsupported = file("unsupported.json", r#"{"items": {"not": {"type": "null"}}}"#);
    refused("--json-schema", &unsupported, "the JSON Schema, at `#/items`: the keyword `not` cannot be followed");
    let grammar = file("broken.lark", "start: \"a\" other\n");
    refused("--grammar", &grammar, "the Lark grammar, line 1, column 8: unknown name: \"other\"");
    refused("--json-schema", "no-such-file", "could not read no-such-file");
    refused("--regex", "(", "the regular expression");
}

#[test]
fn a_prompt_comes_from_a_file_or_a_pipe_too() {
    let folder = folder("sources");
    let file = folder.join("prompt.txt");
    std::fs::write(&file, "The old man\n").unwrap();
    let more = ["-n", "8", "-s", "7"];
    let (text, _) = done(&[&["-p", "The old man"], &more[..]].concat());
    assert_eq!(done(&[&["-f", file.to_str().unwrap()], &more[..]].concat()).0, text);
    assert_eq!(said(fed(&[&["-"], &more[..]].concat(), "The old man\n")).0, text);
    assert_eq!(said(fed(&more, "The old man")).0, text, "a pipe needs no sign");
    assert_eq!(said(fed(&[&["-p", "-"], &more[..]].concat(), "The old man")).0, text);
    refused(&["-f", "no-such-file"], "could not read no-such-file");
}

#[test]
fn the_flags_of_upstreams_runners_are_understood() {
    let folder = folder("aliases");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/little-gemma.pte");
    let prompt = folder.join("prompt.txt");
    std::fs::write(&prompt, "The sea").unwrap();
    let (program, prompt) = (program.to_str().unwrap(), prompt.to_str().unwrap());
    let upstream = ["--model_path", program, "--prompt_file", prompt, "--temperature=0.9", "--top_k", "0"];
    let more = ["--top_p", "0.9", "--seed", "3", "--max_new_tokens", "6", "--cpu_threads", "2", "--raw_prompt"];
    let ours =
        ["-m", program, "-p", "The sea", "--temp", "0.9", "--top-k", "0", "--top-p", "0.9", "-s", "3", "-n", "6"];
    let (text, beside) = done(&[&upstream[..], &more].concat());
    assert_eq!(text, done(&ours).0);
    assert!(beside.starts_with("little-gemma on cpu: seed 3, temperature 0.9, top-p 0.9\n"), "{beside}");
}

#[test]
fn texts_end_at_their_length_at_a_stop_string_and_at_a_full_context() {
    let text = done(&["-p", "The old man", "-n", "16", "-s", "7"]).0;
    let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop = &text[middle..=middle + 2];
    let first = text.find(stop).unwrap();
    let (cut, beside) = done(&["-p", "The old man", "-n", "16", "-s", "7", "--stop", "☃", "--stop", stop]);
    assert_eq!(cut, text[..first]);
    assert!(beside.ends_with(" · a stop string\n"), "{beside}");
    assert_eq!(done(&["-p", "The old man", "-n", "0"]).0, "");
    let ids = "9 ".repeat(1020);
    let (cut, beside) = done(&["--tokens", &ids, "-n", "-1", "-s", "7", "--ignore-eos"]);
    assert!(!cut.is_empty() && beside.contains(" · 4 tokens, "), "{beside}");
    assert!(beside.ends_with(" · the context is full\n"), "{beside}");
}

#[test]
fn events_tell_settings_tokens_and_timings() {
    let events = events(&["-p", "The old man", "-n", "4", "-s", "7", "--temp", "0.7", "--json"]);
    let (start, end) = (&events[0], events.last().unwrap());
    for (name, value) in [
        ("event", json!("start")),
        ("model", json!("little-qwen")),
        ("seed", json!(7)),
        ("temperature", json!(0.7)),
        ("top_p", json!(0.95)),
        ("samples_in_program", json!(true)),
    ] {
        assert_eq!(start[name], value, "{name}");
    }
    assert_eq!(events.iter().filter(|event| event["event"] == "token" && event["id"].is_u64()).count(), 4);
    assert_eq!((&end["event"], &end["reason"], &end["new_tokens"]), (&json!("end"), &json!("length"), &json!(4)));
    for name in ["load_seconds", "first_token_seconds", "prefill_tokens_per_second", "decode_tokens_per_second"] {
        assert!(end[name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert_eq!(start["prompt_tokens"], end["prompt_tokens"]);
}

#[test]
fn a_conversation_goes_on_and_obeys_commands() {
    let folder = folder("chat");
    let template = folder.join("template.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    let args = ["--chat", "--chat-template", template.to_str().unwrap(), "-n", "6", "-s", "5", "--stop", "\n"];
    let (one, beside) = said(fed(&args, "Good day.\n"));
    assert_eq!(one.lines().count(), 1, "{one}");
    assert!(beside.contains("seed 5") && beside.contains(" · prompt "), "{beside}");
    let (two, beside) = said(fed(&args, "Good day.\nAnd then?\n/nonsense\n/exit\nnever said\n"));
    assert!(two.starts_with(&one) && two.lines().count() == 2, "{two}");
    assert!(beside.contains("no command /nonsense\n/clear "), "{beside}");
    assert_eq!(beside.matches("prompt ").count(), 2, "two replies: {beside}");
    let first = two.lines().next().unwrap();
    // The schedule of seeds goes on from reply to reply; a conversation that was forgotten gives as many tokens as a new one.
    let given = |input: &str| {
        let (_, beside) = said(fed(&args, input));
        let counts =
            beside.split("prompt ").skip(1).map(|rest| rest.split(' ').next().unwrap().parse::<u32>().unwrap());
        counts.collect::<Vec<_>>()
    };
    let one = given("Good day.\n")[0];
    assert_eq!(given("Good day.\n/clear\nGood day.\n"), [one, one]);
    assert_eq!(
        given("Good day.\n/retry\n"),
        [one, one],
        "the state of this model cannot go back, so all is given again"
    );
    let told = given("Good day.\n/system Be brief, and kind.\nGood day.\n");
    assert!(told[1] > one, "{told:?}");
    assert_eq!(
        given("Good \\\nday.\\"),
        given("Good \\\nday.\\\n\n"),
        "a message of two lines, and the end of the input"
    );
    assert_eq!(given("Good day.\n/retry").len(), 2, "the last line needs no end");
    let reply =
        ["-p", "Good day.", "--chat-template", template.to_str().unwrap(), "-n", "6", "-s", "5", "--stop", "\n"];
    assert_eq!(done(&reply).0.trim_end(), first.trim_end(), "one message is a conversation of one");
    let told = |more: &[&str]| events(&[&reply[..], &["--json"], more].concat())[0]["prompt_tokens"].as_u64().unwrap();
    assert!(told(&["--system", "Speak like a queen."]) > told(&[]) + 4, "the model is told something else");
    let raw = [&reply[..], &["--raw"]].concat();
    assert_eq!(
        done(&raw).0,
        done(&["-p", "Good day.", "-n", "6", "-s", "5", "--stop", "\n"]).0,
        "as if it had no template"
    );
}

/// Waits for the first words, then does something with the process.
#[cfg(unix)]
fn after_first_words(mut child: Child, then: impl FnOnce(&Child)) -> (String, String, std::process::ExitStatus) {
    let mut out = child.stdout.take().unwrap();
    let mut text = vec![0; 8];
    out.read_exact(&mut text).unwrap();
    then(&child);
    out.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(text).unwrap(), String::from_utf8(output.stderr).unwrap(), output.status)
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_text_with_its_timings() {
    let child = command(&["-p", "The old man", "-n", "-1", "-s", "7", "--ignore-eos"]).spawn().unwrap();
    let (text, beside, status) = after_first_words(child, |child| {
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    });
    assert_eq!(status.code(), Some(130), "{beside}");
    assert!(beside.ends_with(" · interrupted\n"), "{beside}");
    let words = text.len().min(30);
    let whole = done(&["-p", "The old man", "-n", "30", "-s", "7", "--ignore-eos"]).0;
    assert_eq!(text.as_bytes()[..words], whole.as_bytes()[..words], "what was written is the beginning of the text");
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_a_conversation_that_nobody_types() {
    let folder = folder("interrupted");
    let template = folder.join("template.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    let args = ["--chat", "--chat-template", template.to_str().unwrap(), "-n", "-1", "-s", "7", "--ignore-eos"];
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"One.\nTwo.\nThree.\n").unwrap();
    let (_, beside, status) = after_first_words(child, |child| {
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    });
    assert_eq!((status.code(), beside.matches("prompt ").count()), (Some(130), 1), "{beside}");
}

#[test]
#[cfg(unix)]
fn a_reader_that_has_enough_ends_the_text_quietly() {
    let mut child = command(&["-p", "The old man", "-n", "-1", "--quiet", "--ignore-eos"]).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 8]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn files_beside_a_program_are_found_and_can_be_replaced() {
    let folder = folder("files");
    let program = tiny(&folder, "llama", true);
    // The tiny model has a hundred tokens or so; this tokenizer has four of them.
    let vocabulary = json!({"<unk>": 0, "hello": 1, "world": 2, "there": 3});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("generation_config.json"), r#"{"do_sample": false, "eos_token_id": 5000}"#).unwrap();
    let start = |args: &[&str]| events(&[args, &["-m", &program, "-n", "1", "--json"]].concat()).remove(0);
    let beside = start(&["-p", "hello world there"]);
    assert_eq!((&beside["prompt_tokens"], &beside["temperature"]), (&json!(3), &json!(0.0)), "the config beside it");
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::copy(folder.join("tokenizer.json"), elsewhere.join("tokenizer.json")).unwrap();
    let named = start(&["-p", "hello", "--tokenizer", elsewhere.to_str().unwrap()]);
    assert_eq!(
        (&named["prompt_tokens"], &named["temperature"]),
        (&json!(1), &json!(0.0)),
        "the rest is the model's own"
    );
    std::fs::write(elsewhere.join("generation_config.json"), r#"{"temperature": 0.5}"#).unwrap();
    let named = start(&["-p", "hello", "--tokenizer", elsewhere.to_str().unwrap()]);
    assert_eq!(named["temperature"], json!(0.5), "unless there is one beside the tokenizer");
    std::fs::write(folder.join("generation_config.json"), r#"{"temperature": "warm"}"#).unwrap();
    refused(&["-m", &program, "-p", "hello"], "`generation_config.json`: invalid type: string \"warm\"");
}

#[test]
fn an_exact_tail_is_drawn_by_name_fused_and_step_by_step() {
    let args = ["-p", "Once", "-s", "3", "-n", "12", "--temp", "1.3", "--ignore-eos"];
    let with = |more: &[&str]| done(&[&args[..], more].concat());
    let (text, beside) = with(&["--exact-tail"]);
    assert!(beside.contains("temperature 1.3") && beside.contains(", exact tail"), "{beside}");
    assert_eq!(with(&["--exact-tail"]).0, text);
    assert_eq!(with(&["--exact-tail", "--without", "fuse-sampler"]).0, text);
    let (plain, beside) = with(&[]);
    assert!(!beside.contains("exact tail"), "{beside}");
    assert_ne!(plain, text, "other noise");
}

#[test]
fn a_checkpoint_is_exported_once_and_a_killed_export_leaves_nothing_behind() {
    let folder = folder("checkpoint");
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny/llama");
    let weights = checkpoint.join("model.safetensors");
    let with = |model: &Path| {
        let mut command = command(&["--tokens", "1 17 80", "-n", "5", "-s", "3", "--ignore-eos", "-m"]);
        command.arg(model).env("PTERO_CACHE", folder.join("cache"));
        command
    };
    let mut killed = with(&checkpoint).spawn().unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (text, beside) = said(with(&checkpoint).output().unwrap());
    assert!(beside.contains("llama on cpu: seed 3"), "{beside}");
    let (again, beside) = said(with(&checkpoint).output().unwrap());
    assert_eq!(again, text);
    assert!(!beside.contains("exporting"), "it was kept: {beside}");
    let (same, beside) = said(with(&weights).output().unwrap());
    assert_eq!(same, text, "the weights alone are taken with what lies beside them");
    assert!(beside.contains("exporting model.safetensors to ") && beside.contains("(kept; `PTERO_CACHE` says where)"));
    let programs = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(folder.join("cache/programs")).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.file_name().unwrap() != ".lock").collect()
    };
    assert_eq!(programs().len(), 2, "{:?}", programs());
    for program in programs() {
        std::fs::write(program, "damaged").unwrap();
    }
    assert_eq!(said(with(&checkpoint).output().unwrap()).0, text, "what was damaged is made again");
    let output =
        with(Path::new("no-such/checkpoint")).env("HF_HUB_OFFLINE", "1").env("HF_HOME", &folder).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("no-such/checkpoint"), "{error}");
}
