//! Functions, thoughts and responses over real connections. The included model writes nonsense, so calls are enforced.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Answer, get, model_with, post, start_with};
use serde_json::{Value, json};
use std::net::SocketAddr;

const CHAT: &str = "/v1/chat/completions";

/// A template that shows functions, and messages with everything in them.
fn template(more: &str) -> String {
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}\n{{% endif %}}\
         {{% for message in messages %}}{{{{ message.role }}}}: {{{{ message.content }}}}\
         {{% if message.tool_calls %}}{{{{ message.tool_calls | tojson }}}}{{% endif %}}\
         {{{{ message.tool_call_id }}}}{{{{ message.reasoning_content }}}}\n{{% endfor %}}assistant: {more}"
    )
}

fn tools() -> Value {
    let place = json!({"type": "object", "properties": {
        "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "hourly": {"type": "boolean"},
    }, "required": ["unit", "days", "hourly"]});
    let stamp = json!({"type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"],
        "$defs": {"zone": {"enum": ["UTC", "CET"]}}, "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": place, "strict": true}},
        {"type": "function", "function": {"name": "clock", "parameters": stamp}},
        {"type": "function", "function": {"name": "stop"}},
    ])
}

/// Fails unless a call is one of [`tools`], with arguments of its schema.
#[track_caller]
fn check_call(call: &Value) -> String {
    assert_eq!((call["type"].as_str(), call["id"].as_str().unwrap().len()), (Some("function"), 9), "{call}");
    check_arguments(&call["function"])
}

#[track_caller]
fn check_arguments(function: &Value) -> String {
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    let is_right = match function["name"].as_str().unwrap() {
        "weather" => {
            ["C", "F"].contains(&arguments["unit"].as_str().unwrap())
                && (1..10).contains(&arguments["days"].as_i64().unwrap())
                && arguments["hourly"].is_boolean()
                && arguments.as_object().unwrap().len() == 3
        }
        "clock" => arguments == json!({"zone": "UTC"}) || arguments == json!({"zone": "CET"}),
        "stop" => arguments == json!({}),
        _ => false,
    };
    assert!(is_right, "{function}");
    function["name"].as_str().unwrap().to_owned()
}

fn ask_for_calls(address: SocketAddr, choice: &Value, seed: i64, streams: bool) -> Answer {
    let request = json!({
        "messages": [{"role": "user", "content": "Weather?"}], "tools": tools(), "tool_choice": choice, "seed": seed,
        "max_tokens": 200, "stream": streams, "parallel_tool_calls": false, "temperature": 1.0,
    });
    post(address, CHAT, &request)
}

/// Joins the pieces of a stream to a message.
fn joined(events: &[Value]) -> (Value, String) {
    let (mut calls, mut reason): (Vec<Value>, _) = (Vec::new(), String::new());
    for event in events {
        let choice = &event["choices"][0];
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                assert!(
                    piece["id"].is_string() && piece["function"]["name"].is_string(),
                    "the name comes first: {piece}"
                );
                calls.push(piece.clone());
            } else {
                let arguments = piece["function"]["arguments"].as_str().unwrap();
                let whole = format!("{}{arguments}", calls[index]["function"]["arguments"].as_str().unwrap());
                calls[index]["function"]["arguments"] = whole.into();
            }
        }
        reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    calls.iter_mut().for_each(|call| drop(call.as_object_mut().unwrap().remove("index")));
    (calls.into(), reason)
}

#[test]
fn issue_19_calls_that_have_to_be_made_parse_and_follow_their_schema_in_every_format() {
    let signs = [
        "{# <tool_call> #}",
        "{# <tool_call> <function= #}",
        "{# \"parameters\": <|start_header_id|> #}",
        "{# [TOOL_CALLS] #}",
        "{# [TOOL_CALLS] [ARGS] #}",
        "{# <|tool_call> #}",
        // The prompt ends within thoughts, which end before the call.
        "{# <tool_call> </think> #}<think>\n",
    ];
    for sign in signs {
        let server = start_with(model_with(&template(sign)), |_| ());
        for seed in 0..3 {
            let named = json!({"type": "function", "function": {"name": "weather"}});
            let answer = ask_for_calls(server.address, &named, seed, false).json();
            let message = &answer["choices"][0]["message"];
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{sign}: {answer}");
            assert_eq!((&message["content"], message["tool_calls"].as_array().unwrap().len()), (&Value::Null, 1));
            assert_eq!(check_call(&message["tool_calls"][0]), "weather", "{sign}");
            let required = ask_for_calls(server.address, &json!("required"), seed, false).json();
            let calls = &required["choices"][0]["message"]["tool_calls"];
            check_call(&calls[0]);
            let (streamed, reason) = joined(&ask_for_calls(server.address, &json!("required"), seed, true).events());
            let functions = |calls: &Value| {
                calls.as_array().unwrap().iter().map(|call| call["function"].clone()).collect::<Vec<_>>()
            };
            assert_eq!((functions(&streamed), reason.as_str()), (functions(calls), "tool_calls"), "{sign}");
        }
    }
}

#[test]
fn issue_19_several_calls_may_be_required() {
    let model = model_with(&template("{# <tool_call> #}"));
    // The text goes on after every call.
    let bias: serde_json::Map<String, Value> =
        model.end_tokens().iter().map(|end| (end.to_string(), json!(-100))).collect();
    let server = start_with(model, |_| ());
    let mut request = json!({
        "messages": [{"role": "user", "content": "All?"}], "tools": tools(), "tool_choice": "required", "seed": 1,
        "max_tokens": 400, "logit_bias": bias,
    });
    let answer = post(server.address, CHAT, &request).json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    calls.iter().for_each(|call| drop(check_call(call)));
    let mut ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == calls.len() && calls.len() > 1, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    request["parallel_tool_calls"] = false.into();
    let answer = post(server.address, CHAT, &request).json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1, "{answer}");
}

#[test]
fn issue_19_functions_and_their_results_reach_the_template() {
    let model = model_with(&template("{# <tool_call> #}"));
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\": \"UTC\"}"}});
    let messages = json!([
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "12:00"},
    ]);
    let server = start_with(model.clone(), |_| ());
    let tokens = |request: &Value| {
        let answer = post(server.address, CHAT, request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        usize::try_from(answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()).unwrap()
    };
    let shown =
        json!([{"id": "abcdefghi", "type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}]);
    let shown = shown.to_string().replace("\":", "\": ").replace(",\"", ", \"");
    let conversation = format!("user: Time?\nassistant: {shown}Hm.\ntool: 12:00abcdefghi\nassistant: ");
    let expected = model.encode_rendered(&conversation).unwrap().len();
    assert_eq!(tokens(&json!({"messages": messages, "max_tokens": 1})), expected);
    assert_eq!(
        tokens(&json!({"messages": messages, "max_tokens": 1, "tools": tools(), "tool_choice": "none"})),
        expected
    );
    assert!(
        tokens(&json!({"messages": messages, "max_tokens": 1, "tools": tools()})) > expected,
        "functions are shown"
    );
}

#[test]
fn issue_19_what_is_wrong_with_functions_and_thoughts_is_named() {
    let server = start_with(model_with(&template("{# <tool_call> #}")), |_| ());
    let refused = |address: SocketAddr, fields: Value, param: &str, words: &str| {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = post(address, CHAT, &request);
        let error = answer.error();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    };
    let address = server.address;
    refused(address, json!({"tools": tools(), "tool_choice": "maybe"}), "tool_choice", "`maybe`");
    refused(address, json!({"tool_choice": "required"}), "tool_choice", "`tools`");
    let other = json!({"type": "function", "function": {"name": "other"}});
    refused(address, json!({"tools": tools(), "tool_choice": other}), "tool_choice", "`other`");
    refused(address, json!({"tools": [{"type": "web_search"}]}), "tools[0].type", "web_search");
    refused(address, json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools", "a b");
    refused(
        address,
        json!({"tools": tools(), "response_format": {"type": "json_object"}}),
        "response_format",
        "`tools`",
    );
    refused(address, json!({"enable_thinking": true}), "enable_thinking", "template");
    refused(address, json!({"reasoning_effort": "high"}), "reasoning_effort", "high");
    let message = |message: Value| json!({"messages": [message]});
    refused(address, message(json!({"role": "tool", "content": ""})), "messages[0].tool_call_id", "missing");
    let call = json!({"id": "a", "type": "function", "function": {"name": "clock", "arguments": "[1]"}});
    let calls = json!({"role": "assistant", "tool_calls": [call]});
    refused(address, message(calls), "messages[0].tool_calls[0].function.arguments", "object");
    let call = json!({"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}});
    refused(
        address,
        message(json!({"role": "user", "content": "", "tool_calls": [call]})),
        "messages[0].tool_calls",
        "assistant",
    );
    // A function that is not in the prompt could not be called.
    for template in ["{# <tool_call> #}{{ messages[0].content }}", "{{ tools }}{{ messages[0].content }}"] {
        let server = start_with(model_with(template), |_| ());
        refused(server.address, json!({"tools": tools()}), "tools", "knows no functions");
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "x"}}});
    let wrong = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let answer = post(
        address,
        CHAT,
        &json!({"messages": [{"role": "user", "content": ""}], "tools": wrong, "tool_choice": "required"}),
    );
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[test]
fn issue_19_thoughts_are_apart_from_content() {
    let thinks = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
    let server = start_with(model_with(&template(thinks)), |_| ());
    let mut request =
        json!({"messages": [{"role": "user", "content": "Once"}], "seed": 3, "max_tokens": 12, "ignore_eos": true});
    let whole = post(server.address, CHAT, &request).json();
    let message = &whole["choices"][0]["message"];
    let thought = message["reasoning_content"].as_str().unwrap();
    assert_eq!(
        (message["content"].as_str(), &whole["usage"]["completion_tokens_details"]["reasoning_tokens"]),
        (Some(""), &json!(12))
    );
    request["stream"] = true.into();
    let events = post(server.address, CHAT, &request).events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
    assert_eq!(pieces.collect::<String>(), thought);
    request["stream"] = false.into();
    let without = [
        json!({"enable_thinking": false}),
        json!({"reasoning_effort": "none"}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ];
    let texts = without.map(|field| {
        let mut request = request.clone();
        request.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let answer = post(server.address, CHAT, &request).json();
        assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0, "{answer}");
        assert!(answer["choices"][0]["message"]["reasoning_content"].is_null(), "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    });
    assert!(!texts[0].is_empty() && texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    // A format is that of the content.
    request["response_format"] = json!({"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "b"]}}});
    let message = post(server.address, CHAT, &request).json()["choices"][0]["message"].clone();
    assert!(["\"a\"", "\"b\""].contains(&message["content"].as_str().unwrap()), "{message}");
}

/// The events of a response: their names are those of their data, and their numbers count up.
fn response_events(answer: &Answer) -> Vec<Value> {
    let events = answer.body.split("\n\n").filter(|event| !event.is_empty()).enumerate().map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number);
        data
    });
    events.collect()
}

#[test]
fn issue_19_responses_come_whole_or_as_events() {
    let server = start_with(model_with(&template("{# <tool_call> #}")), |_| ());
    let path = "/v1/responses";
    let mut request = json!({"input": "Once upon a time", "instructions": "Tell.", "seed": 4, "max_output_tokens": 9,
        "temperature": 0.9, "top_p": 0.9, "exact_tail": true, "store": true, "metadata": {"a": "b"}});
    let whole = post(server.address, path, &request).json();
    let item = &whole["output"][0];
    assert_eq!(
        (&whole["object"], &whole["status"], &item["type"]),
        (&json!("response"), &json!("incomplete"), &json!("message"))
    );
    assert_eq!((&whole["incomplete_details"]["reason"], &whole["store"]), (&json!("max_output_tokens"), &json!(false)));
    assert_eq!((&whole["usage"]["output_tokens"], &whole["metadata"]["a"]), (&json!(9), &json!("b")));
    let text = item["content"][0]["text"].as_str().unwrap();
    request["stream"] = true.into();
    let events = response_events(&post(server.address, path, &request));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let middle = kinds.iter().filter(|kind| **kind == "response.output_text.delta").count();
    let expected =
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
            .into_iter()
            .chain(vec!["response.output_text.delta"; middle])
            .chain([
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ]);
    assert_eq!(kinds, expected.collect::<Vec<_>>());
    assert_eq!(events.iter().filter_map(|event| event["delta"].as_str()).collect::<String>(), text);
    assert_eq!(events.last().unwrap()["response"]["output"][0]["content"], item["content"]);
    // Items, as a client that keeps the conversation sends them back.
    let items = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Once"},
        item,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "12:00"},
    ]);
    let format =
        json!({"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["yes", "no"]}, "strict": true}});
    let answer = post(server.address, path, &json!({"input": items, "text": format, "max_output_tokens": 30})).json();
    assert_eq!(answer["status"], "completed");
    assert!(["\"yes\"", "\"no\""].contains(&answer["output"][0]["content"][0]["text"].as_str().unwrap()), "{answer}");
    let flat: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut tool = tool["function"].clone();
            tool["type"] = "function".into();
            tool
        })
        .collect();
    let mut request =
        json!({"input": "Weather?", "tools": flat, "tool_choice": {"type": "function", "name": "weather"}, "seed": 1});
    let answer = post(server.address, path, &request).json();
    let call = &answer["output"][0];
    assert_eq!((&call["type"], check_arguments(call)), (&json!("function_call"), "weather".to_owned()), "{answer}");
    request["stream"] = true.into();
    let events = response_events(&post(server.address, path, &request));
    let done = events.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!(done["arguments"], call["arguments"]);
    assert_eq!(events.last().unwrap()["type"], "response.completed");
}

#[test]
fn issue_19_what_is_wrong_with_a_response_is_named() {
    let server = start_with(model_with(&template("")), |_| ());
    let refused = |fields: Value, param: &str, words: &str| {
        let mut request = json!({"input": "Hi", "max_output_tokens": 1});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = post(server.address, "/v1/responses", &request);
        let error = answer.error();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    };
    refused(json!({"previous_response_id": "resp_1"}), "previous_response_id", "not stored");
    refused(json!({"background": true}), "background", "`background`");
    refused(json!({"include": ["x"]}), "include", "`include`");
    refused(json!({"truncation": "auto"}), "truncation", "auto");
    refused(json!({"text": {"verbosity": "low"}}), "text.verbosity", "`verbosity`");
    refused(json!({"input": []}), "input", "no messages");
    refused(
        json!({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}),
        "input",
        "input_image",
    );
    refused(json!({"input": [{"type": "item_reference", "id": "x"}]}), "input", "item_reference");
    refused(json!({"tools": [{"type": "file_search"}]}), "tools[0].type", "file_search");
    assert_eq!(get(server.address, "/v1/responses").status, 405);
}
