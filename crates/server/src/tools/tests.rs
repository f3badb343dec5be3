use super::*;

impl Tools {
    pub(crate) fn for_tests(format: CallFormat, functions: Vec<Function>) -> Self {
        Self { functions, format, allows_several: true, forced: None }
    }
}

fn template(name: &str) -> String {
    let path = format!("{}/../text/tests/goldens/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_template_decides_the_format() {
    let known = [
        ("qwen3", Some(CallFormat::Hermes)),
        ("qwen2_5", Some(CallFormat::Hermes)),
        ("llama3", Some(CallFormat::Llama)),
        ("mistral", Some(CallFormat::MistralList)),
        ("gemma", None),
        ("smollm2", None),
        ("phi", None),
        ("chatml", None),
    ];
    for (name, format) in known {
        assert_eq!(CallFormat::of(&template(name)), format, "{name}");
    }
    assert_eq!(CallFormat::of("<tool_call>\n<function=f>"), Some(CallFormat::Parameters));
    assert_eq!(CallFormat::of("[TOOL_CALLS]f[ARGS]{}"), Some(CallFormat::MistralArguments));
    assert_eq!(CallFormat::of("<|tool_call>call:f{}<tool_call|>"), Some(CallFormat::Gemma));
}

fn function(name: &str, parameters: Value) -> Function {
    serde_json::from_value(json!({"name": name, "parameters": parameters})).unwrap()
}

#[test]
fn what_cannot_be_enforced_is_named() {
    let refused = |parameters: Value, words: &str| {
        let tools = Tools {
            forced: Some(Forced::Any),
            ..Tools::for_tests(CallFormat::Parameters, vec![function("f", parameters)])
        };
        let error = tools.grammar().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools"));
        assert!(error.message.contains(words), "{}", error.message);
    };
    refused(json!({"type": "array"}), "`type`");
    refused(json!({"properties": {"a": {"type": "string", "pattern": "x"}}}), "`pattern`");
    refused(json!({"properties": {"a>": {}}}), "`a>`");
    refused(json!({"anyOf": [{"properties": {}}]}), "`anyOf`");
}

#[test]
fn names_are_plain_and_different() {
    let check = |names: &[&str]| {
        let functions: Vec<Function> = names.iter().map(|name| function(name, json!({}))).collect();
        request::check(&functions).map_err(|error| error.message)
    };
    assert_eq!(check(&["a", "b-1.c_d"]), Ok(()));
    for wrong in ["", "a b", "é", "\"", &"x".repeat(65)] {
        assert!(check(&[wrong]).is_err(), "{wrong}");
    }
    assert!(check(&["a", "b", "a"]).unwrap_err().contains("two functions `a`"));
}
