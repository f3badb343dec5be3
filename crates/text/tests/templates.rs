//! Chat templates give what transformers makes of them (`conformance/make_templates.py`).

use ptero_text::{ChatTemplate, Conversation, Error, Limits, Message, SpecialTokens};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The folder of templates and results; `conformance/check_templates.py` brings another, with templates of public models.
fn goldens() -> PathBuf {
    let included = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    std::env::var_os("PTERO_TEMPLATES").map_or(included, PathBuf::from)
}

#[test]
fn templates_render_as_in_transformers() {
    let (goldens, is_public) = (goldens(), std::env::var_os("PTERO_TEMPLATES").is_some());
    let known: Value = serde_json::from_slice(&std::fs::read(goldens.join("templates.json")).unwrap()).unwrap();
    let special: SpecialTokens = serde_json::from_value(known["special"].clone()).unwrap();
    let mut wrong = Vec::new();
    for (name, results) in known["results"].as_object().unwrap() {
        let source = std::fs::read_to_string(goldens.join(format!("templates/{name}.jinja"))).unwrap();
        let results = results.as_object().unwrap();
        let template = match ChatTemplate::new(&source, &special, &Limits::default()) {
            Ok(template) => template,
            // What transformers cannot read either is no template.
            Err(_) if results.values().all(|expected| expected.get("text").is_none()) => continue,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (conversation, expected) in results {
            let found = render(&template, &known["conversations"][conversation], known["now"].as_i64());
            // transformers' sandbox has words of its own.
            let is_unsafe = expected["refused"].as_str().is_some_and(|reason| reason.ends_with("is unsafe."));
            let right = match &found {
                // Public templates fail where they walk through nothing, which is no list of nothing in Python.
                Ok(text) => expected["text"] == text.as_str() || is_public && expected["fails"] == true,
                Err(Error::Refused(reason)) => expected["refused"] == reason.as_str(),
                Err(_) => expected["fails"] == true || is_unsafe,
            };
            if !right {
                wrong.push(format!("{name}, {conversation}:\n{found:#?}\ninstead of\n{expected:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn render(template: &ChatTemplate, conversation: &Value, now: Option<i64>) -> ptero_text::Result<String> {
    let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone()).expect("messages");
    let mut variables: Map<String, Value> = conversation["variables"].as_object().expect("an object").clone();
    let add_generation_prompt = variables.remove("add_generation_prompt").is_none_or(|wanted| wanted == true);
    template.render(&Conversation { messages: &messages, add_generation_prompt, variables, now })
}
