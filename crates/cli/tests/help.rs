//! What `ptero run --help` says about sampling, for texts and for conversations, which are one command.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::folder;
use ptero_sampling::inputs::SAMPLER_INPUTS;
use std::io::Write;
use std::process::{Command, Stdio};

/// Options that draw texts, with a value that each may have. Empty values are those of flags.
const OPTIONS: &[(&str, &str)] = &[
    ("temperature", "0.7"),
    ("top-k", "30"),
    ("top-p", "0.9"),
    ("min-p", "0.01"),
    ("repetition-penalty", "1.1"),
    ("presence-penalty", "0.1"),
    ("frequency-penalty", "0.1"),
    ("logit-bias", "7=-2"),
    ("exact-tail", ""),
    ("json-schema", ""),
    ("regex", "[a-z ]*"),
    ("grammar", ""),
    ("seed", "3"),
    ("choices", "2"),
    ("logprobs", "2"),
    ("host-sampling", ""),
];

/// Those that conversations refuse (several texts, events), and those that need a file or another program.
const LEFT_OUT: [&str; 5] = ["json-schema", "grammar", "choices", "logprobs", "host-sampling"];

fn ptero(args: &[String], input: &str) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptero"));
    command.arg("run").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The options under each heading of the help.
fn headings(help: &str) -> Vec<(&str, Vec<&str>)> {
    let mut headings = Vec::new();
    for line in help.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            headings.push((line.trim_end_matches(':'), Vec::new()));
        } else if let (Some((_, options)), true) = (headings.last_mut(), line.trim_start().starts_with('-')) {
            let name = line.split_whitespace().find_map(|word| word.strip_prefix("--"));
            options.extend(name.map(|name| name.trim_end_matches(',')));
        }
    }
    headings
}

#[test]
fn all_sampling_options_are_under_one_heading() {
    let (_, help, _) = ptero(&["--help".to_owned()], "");
    let headings = headings(&help);
    let (sampling, others): (Vec<_>, Vec<_>) = headings.iter().partition(|(heading, _)| *heading == "Sampling");
    let [(_, sampling)] = sampling.as_slice() else { panic!("one heading: {help}") };
    let expected: Vec<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
    assert_eq!(*sampling, expected);
    assert!(others.len() > 3, "{help}");
    for (heading, options) in others {
        assert!(!options.iter().any(|option| expected.contains(option)), "{heading}: {options:?}");
    }
}

#[test]
fn every_input_of_the_sampler_has_an_option() {
    for input in SAMPLER_INPUTS {
        let option = match input.name {
            // Set by the engine.
            "prompt_end" => continue,
            "logit_bias_tokens" | "logit_bias_values" => "logit-bias".to_owned(),
            // Of a grammar.
            "token_mask" => "regex".to_owned(),
            name => name.replace('_', "-"),
        };
        assert!(OPTIONS.iter().any(|(name, _)| *name == option), "{}", input.name);
    }
}

#[test]
fn conversations_take_the_options_of_texts() {
    let template = folder("conversation").join("template.jinja");
    std::fs::write(&template, "{% for message in messages %}{{ message.content }}\n{% endfor %}").unwrap();
    let mut args =
        ["--chat", "--chat-template", template.to_str().unwrap(), "--max-tokens", "4"].map(String::from).to_vec();
    for (name, value) in OPTIONS.iter().filter(|(name, _)| !LEFT_OUT.contains(name)) {
        args.push(format!("--{name}"));
        args.extend((!value.is_empty()).then(|| (*value).to_owned()));
    }
    let (succeeds, reply, beside) = ptero(&args, "Good day.\n");
    assert!(succeeds && !reply.trim().is_empty(), "{reply}{beside}");
    let drawn_with = "seed 3, temperature 0.7, top-k 30, top-p 0.9, min-p 0.01, exact tail, repetition penalty 1.1, \
                      presence penalty 0.1, frequency penalty 0.1";
    assert!(beside.contains(drawn_with), "{beside}");
}
