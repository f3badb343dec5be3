//! Panics: in a handler, and in what the batcher calls for a text.

use super::*;
use crate::config::Config;
use crate::server::Server;
use axum::body::{Body, to_bytes};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use ptero::{Model, TextEvent, TextSink};
use std::sync::Mutex;

/// Returns an app, and the statuses of the requests that it logs.
fn app() -> (Arc<App>, Arc<Mutex<Vec<StatusCode>>>) {
    let statuses = Arc::<Mutex<Vec<StatusCode>>>::default();
    let mut config = Config::new(vec![Model::included().unwrap().into()], 0);
    // A lane that is not freed holds up everybody else.
    config.batch.lanes = 1;
    let kept = Arc::clone(&statuses);
    config.log = Arc::new(move |log| kept.lock().unwrap().extend(log.status));
    (Server::bind(config).unwrap().into_app(), statuses)
}

/// Asks, and returns the status and the answer.
async fn ask(router: &Router, method: &str, path: &str, body: &str) -> (StatusCode, serde_json::Value) {
    let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_owned())).unwrap();
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    assert!(response.headers().contains_key(REQUEST_ID));
    let (status, body) = (response.status(), to_bytes(response.into_body(), 1 << 20).await.unwrap());
    (status, serde_json::from_slice(&body).unwrap())
}

/// Fails unless the process is healthy and generates texts.
async fn check_health(router: &Router) {
    for path in ["/health", "/ready"] {
        assert_eq!(ask(router, "GET", path, "").await.0, StatusCode::OK, "{path}");
    }
    let (status, text) = ask(router, "POST", "/v1/completions", r#"{"prompt": "The", "max_tokens": 3}"#).await;
    assert_eq!((status, &text["usage"]["completion_tokens"]), (StatusCode::OK, &json!(3)));
}

#[tokio::test]
async fn issue_19_a_panic_in_a_handler_is_answered_and_ends_nothing_else() {
    let (app, statuses) = app();
    let panics = get(async || -> Response { panic!("a test of panics") });
    let router = guarded(routes().route("/panic", panics), &app);
    for _ in 0..3 {
        let (status, answer) = ask(&router, "GET", "/panic", "").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer["error"]["type"], "server_error");
        assert!(!answer.to_string().contains("a test of panics"), "what it says stays here: {answer}");
    }
    check_health(&router).await;
    assert_eq!(statuses.lock().unwrap().iter().filter(|status| status.is_server_error()).count(), 3);
}

/// Panics whenever it is used.
struct Panics;

impl TextSink for Panics {
    fn send(&mut self, _: TextEvent) {
        panic!("a test of panics");
    }

    fn is_wanted(&self) -> bool {
        panic!("a test of panics");
    }
}

#[tokio::test]
async fn issue_19_a_panic_on_the_thread_that_generates_ends_neither_the_thread_nor_other_texts() {
    let (app, _) = app();
    let router = router(&app);
    let loaded = app.models.first().and_then(ModelEntry::loaded).unwrap();
    let prompt = loaded.model.encode("The").unwrap();
    let settings = loaded.model.generator().ignore_eos(true);
    for _ in 0..3 {
        loaded.batcher.submit(&settings, &prompt, vec![Box::new(Panics)]).unwrap();
        check_health(&router).await;
    }
}
