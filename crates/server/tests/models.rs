//! Servers with several models: which one answers, when it is loaded, and what happens if it cannot be.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Answer, JSON, Running, ask, connect, get, model, post, start};
use ptero::{Model, Options};
use ptero_server::{Config, ModelSource, ServeError, Server};
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

const GEMMA: &str = "little-gemma";
const TEXTS: &str = "/v1/completions";

fn gemma_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/little-gemma.pte")
}

fn open(name: &str, path: &Path) -> ptero::Result<Model> {
    Options::new().threads(2).full_sampler(true).name(name).open_model(path)
}

fn gemma() -> ModelSource {
    ModelSource::new(GEMMA, || open(GEMMA, &gemma_path()))
}

/// A server that has `little-qwen` first, and another model.
fn start_with_other(other: ModelSource) -> Running {
    start(|config| config.models.push(other))
}

fn request(model: Option<&str>, tokens: usize) -> Value {
    json!({"model": model, "prompt": "The king", "seed": 5, "max_tokens": tokens, "ignore_eos": true})
}

fn statuses(address: SocketAddr) -> Vec<(String, String)> {
    let models = get(address, "/v1/models").json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (text(&model["id"]), text(&model["status"]["value"])))
        .collect()
}

fn status(address: SocketAddr, name: &str) -> String {
    statuses(address).into_iter().find(|(id, _)| id == name).unwrap().1
}

/// Asks until something holds.
fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never");
}

fn has_line(address: SocketAddr, line: &str) -> bool {
    get(address, "/metrics").body.lines().any(|found| found == line)
}

#[test]
fn issue_19_a_request_chooses_its_model_which_is_loaded_then() {
    let server = start_with_other(gemma());
    let address = server.address;
    let both =
        |second: &str| [("little-qwen", "loaded"), (GEMMA, second)].map(|(id, is)| (id.to_owned(), is.to_owned()));
    let first = post(address, TEXTS, &request(None, 6)).json();
    assert_eq!(first["model"], "little-qwen", "the first answers requests that name none");
    assert_eq!(post(address, TEXTS, &request(Some("little-qwen"), 6)).json()["choices"], first["choices"]);
    assert_eq!(statuses(address), both("unloaded"));
    assert!(has_line(address, r#"ptero_model_loaded{model="little-gemma"} 0"#));
    let about = get(address, "/v1/models/little-gemma").json();
    assert!(about["context_length"].is_null() && about["id"] == GEMMA, "{about}");
    assert_eq!(status(address, GEMMA), "unloaded", "asking about it does not load it");

    let second = post(address, TEXTS, &request(Some(GEMMA), 6)).json();
    let model = open(GEMMA, &gemma_path()).unwrap();
    let mut alone = model.generator().seed(5).max_tokens(6).ignore_eos(true).start().unwrap();
    assert_eq!(second["choices"][0]["text"], alone.generate("The king").unwrap().text().unwrap());
    assert_eq!(
        (&second["model"], &second["system_fingerprint"]),
        (&json!(GEMMA), &json!(model.fingerprint().unwrap()))
    );
    assert_ne!(second["system_fingerprint"], first["system_fingerprint"]);
    assert_eq!(statuses(address), both("loaded"));
    assert_eq!(get(address, "/v1/models/little-gemma").json()["context_length"], 1024);
    for line in [
        r#"ptero_model_loaded{model="little-gemma"} 1"#,
        r#"ptero_generated_tokens_total{model="little-qwen"} 12"#,
        r#"ptero_generated_tokens_total{model="little-gemma"} 6"#,
        r#"ptero_first_token_seconds_count{model="little-gemma"} 1"#,
        r#"ptero_requests_total{model="little-gemma",status="200"} 1"#,
    ] {
        assert!(has_line(address, line), "{line}\n{}", get(address, "/metrics").body);
    }
    let explain = |model: &str| {
        let answer = post(address, "/v1/explain", &json!({"model": model, "prompt": [0, 7], "seed": 1})).json();
        (answer["model"].clone(), answer["candidates"][0]["logit"].clone())
    };
    assert_eq!(explain(GEMMA).0, GEMMA);
    assert_ne!(explain(GEMMA).1, explain("little-qwen").1);
    let log = server.log.lock().unwrap();
    let named = |model: Option<&str>| log.iter().filter(|log| log.model.as_deref() == model).count();
    assert!(named(Some(GEMMA)) == 3 && named(Some("little-qwen")) == 3 && named(None) > 3, "{log:?}");
}

#[test]
fn issue_19_a_model_that_is_not_there_is_refused_with_the_names_of_those_that_are() {
    let server = start_with_other(gemma());
    let refused = |answer: Answer| {
        let error = answer.error();
        assert_eq!((answer.status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
        let message = error["message"].as_str().unwrap();
        assert_eq!(message, "there is no model `gpt-4`; this server has `little-qwen`, `little-gemma`");
    };
    refused(post(server.address, TEXTS, &request(Some("gpt-4"), 1)));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    refused(post(server.address, "/v1/chat/completions", &json!({"model": "gpt-4", "messages": messages})));
    refused(post(server.address, "/v1/responses", &json!({"model": "gpt-4", "input": "Hi"})));
    refused(post(server.address, "/v1/explain", &json!({"model": "gpt-4", "prompt": [1], "seed": 1})));
    refused(get(server.address, "/v1/models/gpt-4"));
    refused(ask(server.address, "POST", "/v1/models/gpt-4", JSON, ""));
    assert!(!get(server.address, "/metrics").body.contains("gpt-4"), "names of strangers are no labels");
}

#[test]
fn issue_19_a_model_can_be_loaded_before_it_is_needed() {
    let server = start_with_other(gemma());
    let answer = ask(server.address, "POST", "/v1/models/little-gemma", JSON, "").json();
    assert_eq!((&answer["status"]["value"], &answer["has_chat_template"]), (&json!("loaded"), &json!(false)));
    assert!(answer["recommended"]["temperature"].is_number(), "{answer}");
}

/// A model that is opened when the sender says so, and the number of times that it was.
fn gated() -> (ModelSource, mpsc::Sender<()>, Arc<AtomicUsize>) {
    let (gate, opened) = mpsc::channel();
    let (opened, count) = (Mutex::new(opened), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let source = ModelSource::new(GEMMA, move || {
        counted.fetch_add(1, Ordering::Relaxed);
        opened.lock().unwrap().recv().unwrap();
        open(GEMMA, &gemma_path())
    });
    (source, gate, count)
}

fn ask_later(address: SocketAddr, request: Value) -> JoinHandle<Answer> {
    std::thread::spawn(move || post(address, TEXTS, &request))
}

#[test]
fn issue_19_concurrent_first_requests_load_a_model_once_and_others_go_on() {
    let (source, gate, count) = gated();
    let server = start_with_other(source);
    let address = server.address;
    let clients: Vec<_> = (0..8).map(|_| ask_later(address, request(Some(GEMMA), 4))).collect();
    wait_until(|| status(address, GEMMA) == "loading");
    // More requests wait than there are threads that read requests.
    for _ in 0..3 {
        assert_eq!(post(address, TEXTS, &request(None, 4)).status, 200);
    }
    assert_eq!(status(address, GEMMA), "loading");
    gate.send(()).unwrap();
    let texts: Vec<_> = clients.into_iter().map(|client| client.join().unwrap().json()["choices"].clone()).collect();
    assert!(texts.iter().all(|text| *text == texts[0] && text[0]["text"].is_string()), "{texts:?}");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn issue_19_a_client_that_leaves_does_not_stop_a_load() {
    let (source, gate, count) = gated();
    let server = start_with_other(source);
    let body = request(Some(GEMMA), 4).to_string();
    let mut client = connect(server.address);
    write!(client, "POST {TEXTS} HTTP/1.1\r\n{JSON}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    wait_until(|| status(server.address, GEMMA) == "loading");
    drop(client);
    wait_until(|| server.log.lock().unwrap().iter().any(|log| log.status.is_none()));
    gate.send(()).unwrap();
    wait_until(|| status(server.address, GEMMA) == "loaded");
    assert_eq!(post(server.address, TEXTS, &request(Some(GEMMA), 4)).status, 200);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn issue_19_a_model_that_cannot_be_loaded_is_tried_again() {
    let path = std::env::temp_dir().join(format!("ptero-serve-broken-{}.pte", std::process::id()));
    std::fs::write(&path, b"no program").unwrap();
    let opened = path.clone();
    let server = start_with_other(ModelSource::new(GEMMA, move || open(GEMMA, &opened)));
    for _ in 0..2 {
        let answer = post(server.address, TEXTS, &request(Some(GEMMA), 1));
        let error = answer.error();
        assert_eq!((answer.status, &error["code"]), (500, &json!("model_not_loaded")), "{error}");
        assert_eq!(error["type"], "server_error");
        assert!(error["message"].as_str().unwrap().starts_with("the model `little-gemma` could not be loaded: "));
        assert_eq!(status(server.address, GEMMA), "failed");
        assert_eq!(post(server.address, TEXTS, &request(None, 1)).status, 200);
    }
    let is_logged = |log: &ptero_server::RequestLog| log.model.as_deref() == Some(GEMMA) && log.trouble.is_some();
    assert_eq!(server.log.lock().unwrap().iter().filter(|log| is_logged(log)).count(), 2);
    std::fs::copy(gemma_path(), &path).unwrap();
    assert_eq!(post(server.address, TEXTS, &request(Some(GEMMA), 1)).status, 200);
    assert_eq!(status(server.address, GEMMA), "loaded");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn issue_19_a_panic_while_a_model_is_loaded_is_no_end() {
    let is_first = AtomicUsize::new(0);
    let server = start_with_other(ModelSource::new(GEMMA, move || {
        assert!(is_first.fetch_add(1, Ordering::Relaxed) > 0, "the first attempt panics");
        open(GEMMA, &gemma_path())
    }));
    assert_eq!(post(server.address, TEXTS, &request(Some(GEMMA), 1)).status, 500);
    assert_eq!(post(server.address, TEXTS, &request(Some(GEMMA), 1)).status, 200);
}

#[test]
fn issue_19_names_are_those_of_different_models() {
    let bind = |models: Vec<ModelSource>| Server::bind(Config::new(models, 0)).unwrap_err();
    assert!(matches!(bind(vec![]), ServeError::NoModels));
    for wrong in ["", " a", "a\nb"] {
        let never = ModelSource::new(wrong, || panic!("opened"));
        assert!(matches!(bind(vec![never]), ServeError::ModelName(_)), "{wrong:?}");
    }
    let never = || ModelSource::new("a", || panic!("opened"));
    assert!(matches!(bind(vec![never(), never()]), ServeError::SameName(name) if name == "a"));
    let missing = ModelSource::new("a", || open("a", Path::new("missing.pte")));
    assert!(matches!(bind(vec![missing, model().into()]), ServeError::Model(_)), "the first is loaded at once");
}

#[test]
fn issue_19_a_server_that_ends_finishes_the_texts_of_all_models_and_a_load() {
    let (source, gate, _) = gated();
    let mut server = start(|config| {
        config.models.push(ModelSource::new("second", || open("second", &gemma_path())));
        config.models.push(source);
    });
    let address = server.address;
    let running = ["little-qwen", "second"].map(|name| ask_later(address, request(Some(name), 60)));
    let loading = ask_later(address, request(Some(GEMMA), 3));
    let is_running = |name: &str| has_line(address, &format!("ptero_lanes_running{{model=\"{name}\"}} 1"));
    wait_until(|| status(address, GEMMA) == "loading" && status(address, "second") == "loaded");
    wait_until(|| is_running("second") || running[1].is_finished());
    drop(server.end.take());
    gate.send(()).unwrap();
    for client in running {
        assert_eq!(client.join().unwrap().json()["usage"]["completion_tokens"], 60);
    }
    assert_eq!(loading.join().unwrap().json()["usage"]["completion_tokens"], 3);
    server.thread.take().unwrap().join().unwrap();
}
