//! A real server on loopback, asked over real connections, by clients that are polite, many, gone or hostile.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Answer, JSON, Running, ask, connect, get, model, post, read, start};
use ptero::GeneratorBuilder;
use ptero_server::{Config, RequestLog, ServeError, Server};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The text of a generator that is alone.
fn alone(prompt: &str, seed: i64, tokens: usize) -> String {
    let mut generator = model().generator().seed(seed).max_tokens(tokens).start().unwrap();
    generator.generate(prompt).unwrap().text().unwrap()
}

#[test]
fn texts_come_whole_or_in_pieces_and_are_those_of_the_library() {
    let server = start(|_| ());
    let mut request = json!({"model": "little-qwen", "prompt": "The king", "seed": 5, "max_tokens": 9, "user": "me"});
    let whole = post(server.address, "/v1/completions", &request).json();
    let text = alone("The king", 5, 9);
    assert_eq!(whole["choices"][0]["text"], text);
    assert_eq!((&whole["object"], &whole["seed"]), (&json!("text_completion"), &json!(5)));
    assert_eq!(whole["system_fingerprint"], model().fingerprint().unwrap());
    assert_eq!(whole["usage"]["completion_tokens"], 9);
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    request["logprobs"] = 2.into();
    let streamed = post(server.address, "/v1/completions", &request);
    assert!(streamed.head.contains("text/event-stream") && streamed.head.contains("x-request-id"));
    let events = streamed.events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    assert_eq!(events.last().unwrap()["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[0]["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 2);
}

#[test]
fn a_conversation_gets_its_choices_its_format_and_its_log_probabilities() {
    let server = start(|_| ());
    let messages = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Tell"}]},
        {"role": "user", "content": "Once upon a time"},
    ]);
    let request = json!({
        "messages": messages, "n": 3, "seed": 1, "max_completion_tokens": 6, "temperature": 1.2, "min_p": 0.01,
        "logprobs": true, "top_logprobs": 3, "logit_bias": {"7": -100}, "frequency_penalty": 0.5, "stop": ["\n\n"],
    });
    let answer = post(server.address, "/v1/chat/completions", &request).json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    let tokens = choices[2]["logprobs"]["content"].as_array().unwrap();
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 3), "{tokens:?}");
    assert_eq!(post(server.address, "/v1/chat/completions", &request).json()["choices"], answer["choices"]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let request = json!({"messages": messages, "response_format": format, "stream": true, "max_tokens": 40});
    let events = post(server.address, "/v1/chat/completions", &request).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    let object: Value = serde_json::from_str(&text).unwrap();
    assert!(object["a"].is_boolean(), "{text}");
}

#[test]
fn what_is_wrong_is_named_in_the_shape_of_openai() {
    let server = start(|config| config.limits.body_bytes = 2000);
    let refused = |path: &str, body: &str, param: Option<&str>, words: &str| {
        let answer = ask(server.address, "POST", path, JSON, body);
        let error = answer.error();
        assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")), "{body}");
        assert_eq!(error["param"].as_str(), param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    };
    let chat = "/v1/chat/completions";
    refused(chat, "{", None, "not a valid request");
    refused(chat, "[]", None, "not a valid request");
    refused(chat, "{} x", None, "messages");
    refused(chat, r#"{"messages": [], "functions": []}"#, Some("functions"), "`functions`");
    refused(chat, r#"{"messages": []}"#, Some("messages"), "empty");
    refused(chat, r#"{"messages": [{"role": "critic"}]}"#, Some("messages[0].role"), "`critic`");
    refused(chat, r#"{"messages": [{"role": "user", "content": 5}]}"#, Some("messages[0].content"), "neither");
    let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
    refused(chat, image, Some("messages[0].content"), "image_url");
    let completion = |fields: &str| format!(r#"{{"prompt": "The", {fields}}}"#);
    let path = "/v1/completions";
    refused(path, &completion(r#""temperature": "hot""#), Some("temperature"), "temperature");
    refused(path, &completion(r#""temperature": -1"#), None, "temperature");
    refused(path, &completion(r#""echo": true"#), Some("echo"), "`echo`");
    refused(path, &completion(r#""n": 99"#), Some("n"), "99 texts");
    refused(path, &completion(r#""stop": """#), Some("stop"), "empty");
    refused(path, &completion(r#""logit_bias": {"x": 1}"#), Some("logit_bias"), "token id");
    refused(path, &completion(r#""logprobs": 50"#), Some("logprobs"), "at most 20");
    let schema = completion(r#""response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}"#);
    refused(path, &schema, None, "");
    let other = post(server.address, path, &json!({"prompt": "The", "model": "gpt-4"}));
    assert_eq!((other.status, other.error()["code"].as_str()), (404, Some("model_not_found")));
    let long = json!({"prompt": vec![vec![1]; 400]});
    assert_eq!(post(server.address, path, &long).status, 400, "too many prompts");
    assert_eq!(post(server.address, path, &json!({"prompt": "x".repeat(3000)})).status, 413);
    assert_eq!((get(server.address, "/v2").status, get(server.address, path).status), (404, 405));
}

#[test]
fn only_those_who_may_are_answered() {
    let open = start(|_| ());
    let status = |headers: &str| ask(open.address, "GET", "/v1/models", headers, "").status;
    assert_eq!(status("Host: localhost:1\r\n"), 200);
    assert_eq!(status("Host: evil.example\r\n"), 403, "DNS rebinding");
    assert_eq!(status("Host: localhost\r\nOrigin: https://evil.example\r\n"), 403);
    let plain = "Host: localhost\r\nContent-Type: text/plain\r\n";
    assert_eq!(ask(open.address, "POST", "/v1/completions", plain, "{}").status, 415, "posted by a page");
    let locked = start(|config| config.api_key = Some("secret".to_owned()));
    let status = |path: &str, headers: &str| ask(locked.address, "GET", path, headers, "").status;
    let host = "Host: somewhere\r\n";
    assert_eq!((status("/health", host), status("/ready", host), status("/metrics", host)), (200, 200, 401));
    for wrong in ["Bearer secre", "Bearer secret2", "secret", "Basic secret", "Bearer "] {
        assert_eq!(status("/v1/models", &format!("{host}Authorization: {wrong}\r\n")), 401, "{wrong}");
    }
    assert_eq!(status("/v1/models", &format!("{host}Authorization: Bearer secret\r\n")), 200);
    let mut config = Config::new(vec![model().into()], 0);
    config.address = SocketAddr::from(([0, 0, 0, 0], 0));
    assert!(matches!(Server::bind(config), Err(ServeError::NeedsKey(_))));
}

/// Returns settings that no other number has, as fields of a request and for the library.
fn different(number: u8) -> (Value, GeneratorBuilder) {
    let (kind, share) = (number % 8, f32::from(number / 8) * 0.25);
    let settings = model().generator();
    match kind {
        0 => (json!({"temperature": share}), settings.temperature(share)),
        1 => (json!({"temperature": 1.5 - share, "min_p": 0.125}), settings.temperature(1.5 - share).min_p(0.125)),
        2 => (json!({"top_k": 3 + number}), settings.top_k(i64::from(3 + number))),
        3 => (json!({"top_p": 0.5 + share, "exact_tail": true}), settings.top_p(0.5 + share).exact_tail(true)),
        4 => (json!({"repetition_penalty": 1.25 + share}), settings.repetition_penalty(1.25 + share)),
        5 => (json!({"logit_bias": {"5": 4.0 + share}}), settings.logit_bias([(5, 4.0 + share)])),
        6 => (
            json!({"frequency_penalty": 0.5 + share, "stop": [" the"]}),
            settings.frequency_penalty(0.5 + share).stop([" the"]),
        ),
        _ => {
            let settings = settings.presence_penalty(share).json_object();
            (json!({"presence_penalty": share, "response_format": {"type": "json_object"}}), settings)
        }
    }
}

#[test]
fn issue_19_browsers_let_only_pages_of_the_named_origins_ask() {
    let (named, other) = ("https://app.example", "https://evil.example");
    let ask_from = |server: &Running, method: &str, page: &str, more: &str| {
        ask(server.address, method, "/v1/models", &format!("Host: localhost\r\nOrigin: {page}\r\n{more}"), "")
    };
    let preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-any\r\n";
    let silent = |answer: &Answer| !answer.head.contains("access-control");
    let closed = start(|_| ());
    for page in [named, "http://localhost:3000"] {
        assert!(silent(&ask_from(&closed, "OPTIONS", page, preflight)) && silent(&ask_from(&closed, "GET", page, "")));
    }
    for key in [None, Some("secret")] {
        let server = start(|config| {
            config.origins = vec![named.parse().unwrap(), "http://other.example:81".parse().unwrap()];
            config.api_key = key.map(str::to_owned);
        });
        let allowed = format!("access-control-allow-origin: {named}\r\n");
        // Browsers send no key with this question.
        let may = ask_from(&server, "OPTIONS", named, preflight);
        assert!(may.status == 200 && may.head.contains(&allowed), "{}", may.head);
        assert!(may.head.contains("access-control-allow-headers: authorization,x-any"), "{}", may.head);
        assert!(!ask_from(&server, "OPTIONS", other, preflight).head.contains("allow-origin"));
        let answer = ask_from(&server, "GET", named, "Authorization: Bearer secret\r\n");
        assert!(answer.status == 200 && answer.head.contains(&allowed) && answer.head.contains("vary: origin"));
        assert!(answer.head.contains("access-control-expose-headers: x-request-id,retry-after"), "{}", answer.head);
        // Also the page of a named origin is told what was wrong, and needs the key.
        let refused = ask_from(&server, "GET", named, "Authorization: Bearer wrong\r\n");
        assert!(refused.head.contains(&allowed) && refused.status == if key.is_some() { 401 } else { 200 });
        let from_other = ask_from(&server, "GET", other, "");
        assert!(!from_other.head.contains("allow-origin"), "{}", from_other.head);
        assert_eq!(from_other.status, if key.is_some() { 401 } else { 403 });
    }
    let any = |key: Option<&str>| {
        let mut config = Config::new(vec![model().into()], 0);
        (config.origins, config.api_key) = (vec!["*".parse().unwrap()], key.map(str::to_owned));
        config
    };
    assert!(matches!(Server::bind(any(None)), Err(ServeError::AnyOrigin)));
    let server = start(|config| (config.origins, config.api_key) = (any(None).origins, Some("secret".to_owned())));
    let answer = ask_from(&server, "GET", other, "Authorization: Bearer secret\r\n");
    assert!(answer.status == 200 && answer.head.contains("access-control-allow-origin: *\r\n"), "{}", answer.head);
    assert_eq!(ask_from(&server, "GET", other, "").status, 401);
}

#[test]
fn s1_8_sixteen_random_arrivals_get_the_texts_they_would_get_alone() {
    let server = start(|config| (config.batch.lanes, config.batch.chunk) = (5, 8));
    let prompts = ["Once upon a time, there was a little girl who", "Once upon a time, there was a", "The dog", "A"];
    let clients = (0..16_u8).map(|number| {
        let address = server.address;
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(u64::from(number) * 37 % 101));
            let (prompt, tokens) = (prompts[usize::from(number) % 4], 5 + usize::from(number) % 7);
            let mut request =
                json!({"prompt": prompt, "seed": number, "max_tokens": tokens, "stream": number % 2 == 0});
            let (changes, settings) = different(number);
            request.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let answer = post(address, "/v1/completions", &request);
            let text = if number % 2 == 0 {
                let events = answer.events();
                events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
            } else {
                answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
            };
            let mut generator = settings.seed(number.into()).max_tokens(tokens).start().unwrap();
            assert_eq!(text, generator.generate(prompt).unwrap().text().unwrap(), "{number}");
        })
    });
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn ten_times_too_many_requests_are_all_answered() {
    let server = start(|config| (config.batch.lanes, config.batch.queue) = (2, 4));
    let clients = (0..60).map(|seed| {
        let address = server.address;
        std::thread::spawn(move || {
            let request = json!({"prompt": "The", "seed": seed, "max_tokens": 3});
            let answer = post(address, "/v1/completions", &request);
            match answer.status {
                200 => assert_eq!(answer.json()["usage"]["completion_tokens"], 3),
                429 => assert!(answer.head.contains("retry-after: 1"), "{}", answer.head),
                other => panic!("{other}: {}", answer.body),
            }
            answer.status == 200
        })
    });
    let answers = clients.collect::<Vec<_>>().into_iter().map(|client| client.join().unwrap());
    assert!(answers.filter(|is_text| *is_text).count() >= 6);
}

/// Waits until the metrics have a line.
fn wait_for(address: SocketAddr, line: &str) {
    for _ in 0..2000 {
        if get(address, "/metrics").body.lines().any(|found| found == line) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {line}");
}

#[test]
fn a_client_that_leaves_frees_its_lane() {
    let server = start(|config| (config.batch.lanes, config.limits.texts) = (1, 1));
    for streams in [true, false] {
        let body = json!({"prompt": "The", "max_tokens": 100_000, "ignore_eos": true, "stream": streams}).to_string();
        let mut stream = connect(server.address);
        let request = format!("POST /v1/completions HTTP/1.1\r\n{JSON}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        wait_for(server.address, r#"ptero_lanes_running{model="little-qwen"} 1"#);
        drop(stream);
        wait_for(server.address, r#"ptero_lanes_running{model="little-qwen"} 0"#);
    }
    let next = post(server.address, "/v1/completions", &json!({"prompt": "The", "seed": 1, "max_tokens": 4}));
    assert_eq!(next.json()["choices"][0]["text"], alone("The", 1, 4));
    assert!(
        server
            .log
            .lock()
            .unwrap()
            .iter()
            .any(|log| log.trouble.as_deref() == Some("the client left or stopped reading"))
    );
}

#[test]
fn issue_19_a_client_that_stops_reading_frees_its_lanes() {
    let server = start(|config| config.limits.write_time = Duration::from_millis(100));
    // 16 texts with the 20 likeliest tokens of each position are more than the system keeps for a client that does not read.
    let most = model().context() - 1;
    let body = json!({"prompt": [1], "n": 16, "max_tokens": most, "ignore_eos": true, "stream": true, "logprobs": 20});
    let body = body.to_string();
    let mut stream = connect(server.address);
    let request = format!("POST /v1/completions HTTP/1.1\r\n{JSON}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    wait_for(server.address, r#"ptero_requests_total{model="little-qwen",status="200"} 1"#);
    let is_stalled = |log: &RequestLog| log.trouble.as_deref() == Some("the client left or stopped reading");
    assert!(server.log.lock().unwrap().iter().any(is_stalled), "{:?}", server.log.lock().unwrap());
    wait_for(server.address, r#"ptero_lanes_running{model="little-qwen"} 0"#);
    // Its answer ends in the middle.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("[DONE]"));
}

#[test]
fn issue_19_a_request_that_takes_too_long_ends_with_an_error_and_its_texts_with_it() {
    let server = start(|config| config.limits.request_time = Duration::ZERO);
    for streams in [true, false] {
        let request = json!({"prompt": "The", "max_tokens": 100_000, "ignore_eos": true, "stream": streams});
        let answer = post(server.address, "/v1/completions", &request);
        assert!(answer.body.contains(r#""code":"timeout""#) && !answer.body.contains("[DONE]"), "{}", answer.body);
        // A stream may have begun before its time was over.
        let is_refused = answer.status == 504 && answer.head.contains("x-should-retry: false");
        assert!(is_refused || streams && answer.status == 200, "{}", answer.head);
    }
    wait_for(server.address, r#"ptero_lanes_running{model="little-qwen"} 0"#);
    let log = server.log.lock().unwrap();
    let late = log.iter().filter(|log| {
        log.path == "/v1/completions" && log.trouble.as_deref() == Some("the request took longer than 0 s")
    });
    assert_eq!(late.count(), 2, "{log:?}");
}

#[test]
fn issue_19_headers_that_are_too_many_or_too_long_are_refused() {
    let server = start(|_| ());
    let many = |count: usize| (0..count).map(|number| format!("X-{number}: a\r\n")).collect::<String>();
    for (count, wanted) in [(90, 200), (101, 431)] {
        let headers = format!("Host: localhost\r\n{}", many(count));
        assert_eq!(ask(server.address, "GET", "/health", &headers, "").status, wanted, "{count}");
    }
    let mut stream = connect(server.address);
    let long = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(1 << 20));
    let mut answer = Vec::new();
    // The server may close the connection while they are still being sent.
    let _ = stream.write_all(long.as_bytes());
    let _ = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn slow_clients_are_let_go() {
    let server = start(|config| {
        (config.limits.header_time, config.limits.body_time) = (Duration::from_millis(200), Duration::from_millis(200));
    });
    let mut body = connect(server.address);
    let head = format!("POST /v1/completions HTTP/1.1\r\nConnection: close\r\n{JSON}Content-Length: 100\r\n\r\n{{");
    body.write_all(head.as_bytes()).unwrap();
    assert_eq!(read(body).status, 408);
    let mut headers = connect(server.address);
    headers.write_all(b"GET /health HTTP/1.1\r\nHost: loc").unwrap();
    let mut rest = Vec::new();
    // Closed, with or without an answer.
    let _ = headers.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn a_server_that_ends_finishes_what_has_begun() {
    let mut server = start(|_| ());
    let address = server.address;
    let request = json!({"prompt": "The", "seed": 3, "max_tokens": 60, "ignore_eos": true});
    let client = std::thread::spawn(move || post(address, "/v1/completions", &request));
    wait_for(address, r#"ptero_lanes_running{model="little-qwen"} 1"#);
    drop(server.end.take());
    assert_eq!(client.join().unwrap().json()["usage"]["completion_tokens"], 60);
    server.thread.take().unwrap().join().unwrap();
    assert!(TcpStream::connect(address).is_err());
}
