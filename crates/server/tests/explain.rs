//! Explanations over real connections: the winner is the token that the program drew, at every position and with any settings.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{JSON, ask, get, post, start};
use serde_json::{Value, json};

/// Merges the fields of objects.
fn with(mut request: Value, more: &Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn the_winner_of_every_position_is_the_token_that_was_drawn() {
    let server = start(|_| ());
    let cases = [
        json!({}),
        json!({"temperature": 0.0}),
        json!({"temperature": 1.7, "top_k": 0, "top_p": 1.0}),
        json!({"temperature": 0.9, "top_k": 7}),
        json!({"temperature": 1.2, "top_k": 0, "top_p": 0.5}),
        json!({"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.1}),
        json!({"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.6}),
        json!({"top_k": 100, "min_p": 0.02, "logit_bias": {"11": 4.0, "12": -100.0, "300": 6.5}}),
    ];
    for (settings, seed) in cases.iter().zip([3_i64, -1, 1 << 40, 77, i64::MAX, 0, 12345, 99]) {
        let request = json!({
            "prompt": "The old king looked at the sea, and", "seed": seed, "max_tokens": 24, "return_token_ids": true, "logprobs": 0,
            "ignore_eos": true,
        });
        let answer = post(server.address, "/v1/completions", &with(request, settings)).json();
        let choice = &answer["choices"][0];
        let (prompt, tokens) = (ids(&choice["prompt_token_ids"]), ids(&choice["token_ids"]));
        assert_eq!(tokens.len(), 24, "{answer}");
        for (at, token) in tokens.iter().enumerate() {
            let before = [&prompt[..], &tokens[..at]].concat();
            let request = json!({
                "prompt": before, "text_start": prompt.len(), "seed": seed.wrapping_add_unsigned(at as u64), "count": 8,
            });
            let found = post(server.address, "/v1/explain", &with(request, settings)).json();
            assert_eq!(found["winner"], *token, "{settings} {at}: {found}");
            let candidates = found["candidates"].as_array().unwrap();
            let score = |candidate: &&Value| candidate["score"].as_f64().unwrap();
            let kept = candidates.iter().filter(|candidate| candidate["dropped_by"].is_null());
            // Of equals, the first wins.
            let first = |candidate: &&Value| -candidate["token"].as_f64().unwrap();
            let best = kept.max_by(|a, b| score(a).total_cmp(&score(b)).then(first(a).total_cmp(&first(b)))).unwrap();
            assert_eq!(best["token"], *token, "the largest sum wins");
            assert_eq!(best["logprob"], choice["logprobs"]["token_logprobs"][at], "the program's own");
            assert!(candidates.len() >= 8);
        }
    }
}

#[test]
fn a_text_forked_at_any_token_continues_as_it_did() {
    let server = start(|_| ());
    let settings =
        json!({"temperature": 1.3, "presence_penalty": 0.9, "frequency_penalty": 0.5, "return_token_ids": true});
    let whole = json!({"prompt": "Once upon a time", "seed": 21, "max_tokens": 20, "ignore_eos": true});
    let whole = post(server.address, "/v1/completions", &with(whole, &settings)).json();
    let choice = &whole["choices"][0];
    let (prompt, tokens) = (ids(&choice["prompt_token_ids"]), ids(&choice["token_ids"]));
    for at in [0, 1, 7, 19] {
        let known = [&prompt[..], &tokens[..at]].concat();
        let fork = json!({
            "prompt": known, "text_start": prompt.len(), "seed": 21 + at, "max_tokens": 20 - at, "ignore_eos": true,
        });
        let fork = post(server.address, "/v1/completions", &with(fork, &settings)).json();
        assert_eq!(ids(&fork["choices"][0]["token_ids"]), tokens[at..], "{at}");
    }
}

#[test]
fn token_ids_are_those_of_the_text_whole_or_in_pieces() {
    let server = start(|_| ());
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let mut request =
        json!({"messages": messages, "seed": 4, "max_tokens": 12, "return_token_ids": true, "ignore_eos": true});
    let whole = post(server.address, "/v1/chat/completions", &request).json();
    let tokens = ids(&whole["choices"][0]["token_ids"]);
    assert_eq!((tokens.len(), ids(&whole["prompt_token_ids"]).is_empty()), (12, false));
    request["stream"] = true.into();
    let events = post(server.address, "/v1/chat/completions", &request).events();
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let streamed: Vec<u64> = events
        .iter()
        .flat_map(|event| match &event["choices"][0]["token_ids"] {
            Value::Null => Vec::new(),
            tokens => ids(tokens),
        })
        .collect();
    assert_eq!(streamed, tokens);
    let two = json!({"prompt": [[5, 6], [7]], "n": 2, "max_tokens": 2, "return_token_ids": true, "ignore_eos": true});
    let two = post(server.address, "/v1/completions", &two).json();
    let prompts: Vec<_> = (0..4).map(|at| ids(&two["choices"][at]["prompt_token_ids"])).collect();
    assert_eq!(prompts, [vec![5, 6], vec![5, 6], vec![7], vec![7]]);
    let without = json!({"prompt": [5], "max_tokens": 2});
    let without = post(server.address, "/v1/completions", &without).json();
    assert!(
        without["choices"][0].get("token_ids").is_none() && without["choices"][0].get("prompt_token_ids").is_none()
    );
}

#[test]
fn hostile_questions_are_refused_by_name() {
    let server = start(|config| (config.batch.lanes, config.batch.queue) = (1, 2));
    let refused = |request: Value, param: Option<&str>, words: &str| {
        let answer = post(server.address, "/v1/explain", &request);
        let error = answer.error();
        assert_eq!((answer.status, error["param"].as_str()), (400, param), "{request}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    };
    refused(json!({}), None, "prompt");
    refused(json!({"prompt": "text", "seed": 1}), Some("prompt"), "prompt");
    refused(json!({"prompt": [5]}), None, "seed");
    refused(json!({"prompt": [], "seed": 1}), None, "");
    refused(json!({"prompt": [-1], "seed": 1}), Some("prompt[0]"), "");
    refused(json!({"prompt": [5, 4_000_000_000_u32], "seed": 1}), None, "vocabulary");
    refused(json!({"prompt": vec![5; 5000], "seed": 1}), None, "context");
    refused(json!({"prompt": [5], "seed": 1, "count": 0}), Some("count"), "50");
    refused(json!({"prompt": [5], "seed": 1, "count": 51}), Some("count"), "50");
    refused(json!({"prompt": [5], "seed": 1, "text_start": 2}), Some("text_start"), "1 tokens");
    refused(json!({"prompt": [5], "seed": 1, "token": 4096}), Some("token"), "4096");
    refused(json!({"prompt": [5], "seed": 1, "temperature": -1}), None, "temperature");
    refused(json!({"prompt": [5], "seed": 1, "top_p": 0}), None, "top-p");
    refused(json!({"prompt": [5], "seed": 1, "logit_bias": {"x": 1}}), Some("logit_bias"), "token id");
    refused(json!({"prompt": [5], "seed": 1, "logit_bias": {"4096": 1}}), None, "4096");
    refused(json!({"prompt": [5], "seed": 1, "stream": true}), Some("stream"), "`stream`");
    let other = post(server.address, "/v1/explain", &json!({"prompt": [5], "seed": 1, "model": "gpt-4"}));
    assert_eq!(other.status, 404);
    let fork = json!({"prompt": [5], "text_start": 9});
    assert_eq!(post(server.address, "/v1/completions", &fork).error()["param"], "text_start");
    // Ten times too many at once: each is answered.
    let clients: Vec<_> = (0..30)
        .map(|seed| {
            let address = server.address;
            std::thread::spawn(move || post(address, "/v1/explain", &json!({"prompt": [5, 6, 7], "seed": seed})).status)
        })
        .collect();
    let answers: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert!(answers.iter().all(|status| [200, 429].contains(status)) && answers.contains(&200), "{answers:?}");
}

#[test]
fn the_page_is_served_with_headers_that_keep_others_out() {
    let server = start(|_| ());
    let page = get(server.address, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{}", page.head);
    assert!(!page.body.contains("<script>") && !page.body.contains("style=") && !page.body.contains("onclick"));
    assert!(!page.body.contains("http://") && !page.body.contains("https://"), "nothing from elsewhere");
    // Everything that the page and its modules name is there.
    let mut files: Vec<String> = names(&page.body, "\"page/");
    assert!(files.len() >= 4, "{files:?}");
    let mut seen = 0;
    while let Some(file) = files.get(seen).cloned() {
        let answer = get(server.address, &format!("/page/{file}"));
        assert_eq!(answer.status, 200, "{file}");
        for header in ["default-src 'self'", "x-content-type-options: nosniff", "cache-control: no-cache", "etag: "] {
            assert!(answer.head.contains(header), "{file} {header}: {}", answer.head);
        }
        assert!(!answer.body.contains("innerHTML") && !answer.body.contains("eval("), "{file}");
        files.extend(names(&answer.body, "\"./").into_iter().filter(|name| !files.contains(name)).collect::<Vec<_>>());
        seen += 1;
    }
    assert!(seen >= 10, "{files:?}");
    let tag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().trim();
    let again = ask(server.address, "GET", "/", &format!("Host: localhost\r\nIf-None-Match: {tag}\r\n"), "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    for header in ["Host: evil.example\r\n", "Host: localhost\r\nOrigin: https://evil.example\r\n"] {
        assert_eq!(ask(server.address, "GET", "/", header, "").status, 403, "{header}");
    }
    assert_eq!(ask(server.address, "POST", "/", JSON, "{}").status, 405);
    assert_eq!(get(server.address, "/page/../Cargo.toml").status, 404);
    let locked = start(|config| config.api_key = Some("secret".to_owned()));
    assert_eq!((get(locked.address, "/").status, get(locked.address, "/page/main.js").status), (200, 200));
    assert_eq!(get(locked.address, "/page/none.js").status, 401);
    assert_eq!(post(locked.address, "/v1/explain", &json!({"prompt": [5], "seed": 1})).status, 401);
    assert_eq!(ask(locked.address, "POST", "/", JSON, "{}").status, 401);
}

/// The file names that follow a beginning in a text.
fn names(text: &str, beginning: &str) -> Vec<String> {
    text.split(beginning).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

#[test]
fn models_tell_what_the_page_needs() {
    let server = start(|_| ());
    let model = get(server.address, "/v1/models").json()["data"][0].clone();
    assert_eq!(model["has_chat_template"], true);
    assert_eq!((&model["recommended"]["temperature"], &model["recommended"]["top_k"]), (&json!(0.8), &json!(50)));
    assert!(model["system_fingerprint"].as_str().is_some_and(|name| !name.is_empty()));
}
